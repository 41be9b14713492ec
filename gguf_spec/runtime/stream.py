"""Public class `Stream`: reads, cancels and closes a running generation from any thread.

A generation is read in one of two ways: by a thread that iterates over it, or by a function that a
thread of the engine calls with each event (`listen`).
"""

from __future__ import annotations

import contextlib
import inspect
from collections import deque
from collections.abc import Callable, Generator, Iterator
from types import GeneratorType
from typing import cast

from ..errors import BusyError, ForkedError
from ..results import Chunk, Completion, Ended, Listener, Stats
from ..system.process import OfOneProcess
from .generation import Generation


class Stream(OfOneProcess):
    """A running generation: an iterator over `Chunk`s and a context manager.

    It can be cancelled from any thread. A stream that is garbage-collected releases the LLM: its
    ticket leaves the queue (`runtime/request_queue.py`).
    """

    def __init__(
        self,
        generation: Generation,
        chunks: Generator[Chunk, None, None],
        release: Callable[[], None],
        listen: Callable[[Stream, Listener], None],
    ) -> None:
        """Create a stream.

        Args:
            generation: The generation.
            chunks: Its chunks.
            release: Releases the models; repeated calls have no effect.
            listen: Lets the thread of the engine compute a stream that nobody has read, and then
                release the models; `chunks` is not used.
        """
        self._release, self._close_asked = release, False
        self._begin_listening, self._is_listened = listen, False
        # chunks of an aborted stream, not yet read
        self._left: deque[Chunk] = deque()
        self._generation = generation
        self._chunks = cast("GeneratorType[Chunk, None, None]", chunks)

    def _give_up(self) -> object:
        kept = self._chunks, self._release
        self._chunks = cast("GeneratorType[Chunk, None, None]", _refuse())
        self._release = lambda: None
        self._is_listened, self._begin_listening = False, _refuse_listening
        return kept

    def __repr__(self) -> str:
        g = self._generation
        return f"<{type(self).__name__}: {len(g.tokens)} tokens, {g.finish}>"

    @property
    def seed(self) -> int:
        """The seed in use."""
        return self._generation.seed

    @property
    def stats(self) -> Stats:
        """Token counts and times so far; complete after the last chunk."""
        return self._generation.stats

    @property
    def result(self) -> Completion:
        """The result so far; its finish reason is `cancelled` until the generation has ended."""
        g = self._generation
        return Completion(
            text="".join(g.text),
            tokens=tuple(g.tokens),
            finish_reason=g.finish,
            seed=g.seed,
            stats=g.stats,
            logprobs=tuple(g.logprobs),
            reasoning="".join(g.reasoning),
            stop_string=g.stop_string,
            accepted_text=tuple(g.accepted_text),
        )

    def cancel(self) -> None:
        """End the generation after the current pass or round.

        Safe from any thread and from a signal handler.
        """
        self._generation.cancelled = True

    def close(self) -> None:
        """Release the LLM; repeated calls have no effect. Safe from any thread.

        If another thread is inside a round, that thread finishes the round and then closes the
        stream.
        """
        # Set before the attempt, because the thread inside a round checks it afterwards.
        self._close_asked = True
        self.cancel()
        try:
            if not self._end():  # a round is running
                return
        except BaseException:
            self._release()
            raise
        self._release()

    def _end(self) -> bool:
        """Close the generator; return False if a thread is inside of it.

        Python 3.11 itself would say so, by a ValueError, but it crashes now and then: it looks for
        what a running generator delegates to in a word that counts calls. No other thread gets the
        interpreter between the question and the call.
        """
        if self._chunks.gi_running:
            return False
        self._chunks.close()
        return True

    def abort(self) -> None:
        """Cancel and close a stream that another thread reads or holds.

        That thread still receives the last chunk, with the finish reason `cancelled`.
        """
        self.cancel()
        self._close_asked = True
        with contextlib.suppress(Exception):  # a round is running; its thread closes the stream
            self._left.extend(self._chunks)
        self.close()

    def run_to_end(self, on_chunk: Callable[[Chunk], object] = lambda _: None) -> Completion:
        """Read the stream to its end, and return the result.

        Args:
            on_chunk: Called with each chunk, in the thread that computes it. With several requests
                at once that is another thread than this one, so it must not wait. An exception of
                it ends the generation, and is raised here.
        """
        self._check_reader()
        if inspect.getgeneratorstate(self._chunks) == inspect.GEN_CREATED:
            self._generation.on_chunk = on_chunk
        try:
            for chunk in self:
                on_chunk(chunk)
        finally:
            self.close()
        return self.result

    def listen(
        self, call: Callable[[Chunk | Ended], object], is_full: Callable[[], bool] = bool
    ) -> None:
        """Let the thread of the engine compute the stream, and return at once.

        The engine keeps the stream until its end; `cancel` and `close` end it as ever.

        Args:
            call: Called in that thread with each chunk, and at the end once with `Ended`. It must
                not wait: other requests share the thread. An exception of it ends this generation,
                and is the error of `Ended`.
            is_full: Called there between two rounds; the generation waits while it returns True.

        Raises:
            BusyError: The stream is read already, or listened to.
            ClosedError: The LLM is closed.
        """
        self._check_reader()
        if inspect.getgeneratorstate(self._chunks) != inspect.GEN_CREATED:
            raise BusyError("this stream is read already, or closed.", _ONE_READER)
        self._is_listened = True
        try:
            if not self._end():
                raise BusyError("this stream is read already, or closed.", _ONE_READER)
            self._begin_listening(self, Listener(call, is_full))
        except BaseException:
            self.close()
            raise

    def _check_reader(self) -> None:
        if self._is_listened:
            raise BusyError("this stream is listened to.", _ONE_READER)

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        if self._is_listened:
            self._check_reader()
        if self._left:
            return self._left.popleft()
        try:
            chunk = next(self._chunks)
            # True if another thread requested it during the round.
            if self._close_asked and chunk.finish_reason is None:
                self.abort()
            return chunk
        except BaseException as error:  # includes StopIteration
            close_asked = self._close_asked
            self.close()
            if close_asked and type(error) is ValueError:  # another thread is closing this stream
                raise StopIteration from None
            raise

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.close()
        except BaseException:  # Ctrl-C must not leave the LLM reserved
            self.close()
            raise


_ONE_READER = "read a stream in one place only."


def _refuse_listening(_stream: Stream, _listener: Listener) -> None:
    raise ForkedError


def _refuse() -> Generator[Chunk, None, None]:
    """Yield no chunk of a stream that was opened before a fork.

    Raises:
        ForkedError: A chunk was asked for.
    """
    yield from ()
    raise ForkedError
