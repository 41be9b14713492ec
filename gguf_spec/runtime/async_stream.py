"""A generation in a thread, read by one event loop, with back pressure."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from ..results import Chunk, Completion, Stats
from .chat import Turn
from .stream import Stream

# Chunks that wait for the reader. Then the generation waits.
_CHUNKS = 4
# Interval in seconds in which a waiting thread looks whether its reader is still there.
_LOOK_S = 0.1


class Generation:
    """A generation in a thread of a pool.

    Attributes:
        ended: Done when the thread has ended; has its error.
        stream: The open stream, or None before it is open.
    """

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        begin: Callable[[], Stream | Turn],
        owner: AsyncStream | None = None,
    ) -> None:
        """Start a generation, or let it wait for a thread of the pool.

        Args:
            pool: The threads.
            begin: Opens the stream, in the thread.
            owner: Reader of the chunks; None if nobody reads them. The generation is cancelled when
                it is garbage-collected.
        """
        self.stream: Stream | Turn | None = None
        self._reader: weakref.ref[asyncio.Task[Any]] | None = None
        self._begin, self._owner = begin, weakref.ref(owner) if owner else None
        self._loop = asyncio.get_running_loop()
        self._is_cancelled = self._is_reported = False
        self._chunks: asyncio.Queue[Chunk | None] = asyncio.Queue()  # None: there are no more
        self._room = threading.Semaphore(_CHUNKS)
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.ended.add_done_callback(_retrieve)
        self._job = pool.submit(self._run)

    def _run(self) -> None:
        """Read the stream, in the thread."""
        error: BaseException | None = None
        try:
            self._read()
        except BaseException as raised:
            error = raised
        self._call(self._end_with, error)

    def _read(self) -> None:
        with self._begin() as stream:
            self.stream = stream
            if self._is_cancelled:
                stream.cancel()
            for chunk in stream:
                if self._owner and self._wait_for_room():
                    self._call(self._chunks.put_nowait, chunk)

    def _end_with(self, error: BaseException | None) -> None:
        """Report the end, in the event loop."""
        self._chunks.put_nowait(None)
        if error:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    def _call(self, function: Callable[[Any], object], argument: object) -> None:
        """Call a function in the event loop; cancel the generation if the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:
            self._is_cancelled = True
            if self.stream is not None:
                self.stream.cancel()

    def _wait_for_room(self) -> bool:
        """Wait until the reader has read; return whether there is a reader."""
        while not (self._is_cancelled or self._room.acquire(timeout=_LOOK_S)):
            if self._loop.is_closed() or (self._owner and self._owner() is None):
                self.cancel()
        return bool(self._owner and self._owner())

    async def next(self) -> Chunk | None:
        """Return the next chunk; None after the last one, or if it was cancelled before its begin.

        Raises:
            GgufSpecError: The generation failed.
        """
        task = asyncio.current_task()
        self._reader = weakref.ref(task) if task else None
        chunk = await self._chunks.get()
        if chunk is not None:
            self._room.release()
            return chunk
        self._chunks.put_nowait(None)  # for further calls
        await asyncio.wait([self.ended])
        self.ended.result()
        return None

    def is_read_by(self, task: asyncio.Task[Any]) -> bool:
        """Return whether a task has read chunks, and may read further ones."""
        has_owner = self._owner is not None and self._owner() is not None
        return has_owner and self._reader is not None and self._reader() is task

    def cancel(self) -> None:
        """End the generation after the current pass or round; one that waits does not begin.

        Safe from any thread.
        """
        self._is_cancelled = True
        if self._job.cancel():
            if not self._is_reported:
                self._is_reported = True
                self._call(self._end_with, None)
        elif self.stream is not None:
            self.stream.cancel()

    async def end(self) -> None:
        """Cancel the generation, and wait until its stream is closed.

        A generation that waits for the LLM ends as soon as it has its turn; that is not awaited.
        """
        self.cancel()
        if self.stream is not None:
            await asyncio.wait([self.ended])


def _retrieve(ended: asyncio.Future[None]) -> None:
    """Take note of an error, so that asyncio does not report it for a stream nobody reads."""
    if not ended.cancelled():
        ended.exception()


class AsyncStream:
    """A running generation: an asynchronous iterator over `Chunk`s and context manager.

    At most a few chunks wait for the reader; then the generation waits. If the task that reads is
    cancelled, the generation ends after its current round.
    """

    def __init__(
        self,
        start: Callable[[Callable[[], Stream | Turn], AsyncStream], Generation],
        begin: Callable[[], Stream | Turn],
    ) -> None:
        self._generation = start(begin, self)

    @property
    def stats(self) -> Stats:
        """Token counts and times so far; complete after the last chunk."""
        return self._stream.stats

    @property
    def seed(self) -> int:
        """The seed in use."""
        return self._stream.seed

    @property
    def result(self) -> Completion:
        """The result so far; its finish reason is `cancelled` until the generation has ended."""
        return self._stream.result

    @property
    def _stream(self) -> Stream | Turn:
        stream = self._generation.stream
        if stream is None:
            raise asyncio.InvalidStateError("The generation has not begun.")
        return stream

    def cancel(self) -> None:
        """End the generation after the current pass or round. Safe from any thread."""
        self._generation.cancel()

    async def aclose(self) -> None:
        """End the generation and release the LLM; further calls have no effect."""
        await self._generation.end()

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Chunk:
        try:
            chunk = await self._generation.next()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()
