"""A stream that its readers cannot hold up."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from ..results import Chunk
from ..runtime.stream import Stream


def pumped(open_stream: Callable[[], Stream]) -> Iterator[Chunk]:
    """Yield a stream's chunks, which a thread of its own reads.

    An LLM is taken as long as a stream is open. Frameworks read each piece in another thread of a pool, keep iterators that they do not read on, and
    open more of them than the pool has threads: whoever reads must not decide when the next request may begin. An iterator that is closed or
    dropped ends the stream after the round that runs.
    """
    ready: queue.SimpleQueue[Chunk | BaseException | None] = queue.SimpleQueue()
    dropped = threading.Event()
    opened: list[Stream] = []

    def read() -> None:
        try:
            with open_stream() as stream:
                opened.append(stream)
                if dropped.is_set():  # while this waited for its turn
                    stream.cancel()
                for chunk in stream:
                    ready.put(chunk)
            ready.put(None)
        except BaseException as error:  # it is the reader's
            ready.put(error)

    try:
        threading.Thread(target=read, name="gguf-spec-stream", daemon=True).start()
        while (one := ready.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one
    finally:
        dropped.set()
        for stream in opened:
            stream.cancel()
