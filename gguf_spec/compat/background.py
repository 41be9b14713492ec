"""Read a stream in a background thread, so that a slow reader does not block the LLM."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from ..results import Chunk
from ..runtime.stream import Stream


def pumped(open_stream: Callable[[], Stream]) -> Iterator[Chunk]:
    """Yield the chunks of a stream that a background thread reads.

    The LLM is locked while a stream is open. Frameworks read each chunk in another thread of a
    pool, keep iterators that they do not read to the end, and open more iterators than the pool has
    threads. With the background thread, the reader does not decide when the next request can begin.
    Closing or dropping the iterator cancels the stream after the current round.

    Args:
        open_stream: Opens the stream; called in the background thread.
    """
    ready: queue.SimpleQueue[Chunk | BaseException | None] = queue.SimpleQueue()
    dropped = threading.Event()
    opened: list[Stream] = []

    def read() -> None:
        try:
            with open_stream() as stream:
                opened.append(stream)
                if dropped.is_set():  # while this thread waited for the LLM
                    stream.cancel()
                for chunk in stream:
                    ready.put(chunk)
            ready.put(None)
        except BaseException as error:  # raised again in the thread of the reader
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
