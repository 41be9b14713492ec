"""Public class `AsyncLLM`: an `LLM` for programs with asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import BusyError, ClosedError, EventLoopError
from ..options import Sampling
from ..results import Completion, OnProgress, Progress
from .async_stream import AsyncStream, Generation
from .chat import Chat, Turn
from .stream import Stream

if TYPE_CHECKING:
    from .embedding import Embeddings, Texts
    from .llm import LLM
from .request import Prompt

T = TypeVar("T")


class _CancelledError(Exception):
    """The task that waits for a computation is cancelled."""


class AsyncLLM:
    """An `LLM` for one event loop.

    Requests run in threads, `LLM.parallel` at once; more wait in order of arrival. If a task is
    cancelled, its generation ends after the current round.

    Attributes:
        llm: The LLM, whose other methods do not wait for requests. `close` does.
    """

    def __init__(self, llm: LLM) -> None:
        """Use an LLM, which `aclose` closes."""
        self.llm = llm
        self._pool = ThreadPoolExecutor(llm.parallel, "gguf-spec-async")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[Generation] = set()
        self._is_closed = False

    @classmethod
    async def load(cls, *arguments: Any, **options: Any) -> AsyncLLM:
        """Call `gguf_spec.load` in a thread, with the same arguments."""
        from .load import load

        return cls(await asyncio.to_thread(load, *arguments, **options))

    async def generate(
        self, prompt: Prompt, sampling: Sampling | None = None, **options: Any
    ) -> Completion:
        """Complete a prompt.

        Args:
            prompt: As for `LLM.generate`.
            sampling: As for `LLM.generate`.
            options: Other arguments of `LLM.generate`. Callbacks are called in another thread.

        Raises:
            GgufSpecError: As `LLM.generate`.
            EventLoopError: The AsyncLLM belongs to another event loop.
            BusyError: This task reads a stream that this request would wait for.
        """
        return await self._complete(partial(self.llm.stream, prompt, sampling, **options))

    def stream(
        self, prompt: Prompt, sampling: Sampling | None = None, **options: Any
    ) -> AsyncStream:
        """Start a generation and return an asynchronous iterator over its chunks.

        Args:
            prompt: As for `LLM.generate`.
            sampling: As for `LLM.generate`.
            options: Other arguments of `LLM.generate`. Callbacks are called in another thread.

        Raises:
            EventLoopError: The AsyncLLM belongs to another event loop.
            BusyError: This task reads a stream that this request would wait for.
        """
        return AsyncStream(self._start, partial(self.llm.stream, prompt, sampling, **options))

    def chat(self, system: str | None = None, **options: Any) -> AsyncChat:
        """Start a conversation.

        Args:
            system: System message, or None.
            options: Other arguments of `LLM.chat`.
        """
        return AsyncChat(self.llm.chat(system, **options), self._complete, self._start)

    async def embed(
        self, texts: Texts, *, on_pass: OnProgress | None = None, **options: Any
    ) -> Embeddings:
        """Return the embeddings of texts; it waits for running requests, and they for it.

        Args:
            texts: As for `LLM.embed`.
            on_pass: As for `LLM.embed`. It is called in another thread.
            options: Other arguments of `LLM.embed`.

        Raises:
            GgufSpecError: As `LLM.embed`.
            EventLoopError: The AsyncLLM belongs to another event loop.
            BusyError: This task reads a stream, which the passes would wait for.
        """
        return await self._compute(partial(self.llm.embed, texts, **options), on_pass)

    async def rerank(
        self, query: str, documents: Sequence[str], *, on_pass: OnProgress | None = None
    ) -> list[float]:
        """Return the relevance of each document for a query, as `LLM.rerank`.

        Args:
            query: The query.
            documents: The documents.
            on_pass: As for `embed`.

        Raises:
            GgufSpecError: As `LLM.rerank`.
            EventLoopError, BusyError: As for `embed`.
        """
        return await self._compute(partial(self.llm.rerank, query, documents), on_pass)

    async def aclose(self) -> None:
        """End all requests and free the native memory; further calls have no effect.

        Running requests end after their current round, as `cancelled`. Waiting ones raise
        `ClosedError`.
        """
        self._is_closed = True
        self._cancel_begun()
        await asyncio.to_thread(self.llm.close)
        self._cancel_begun()  # those that were about to begin
        self._pool.shutdown(wait=False)

    def _cancel_begun(self) -> None:
        """Cancel the requests that have a stream; those that wait find a closed LLM."""
        for one in list(self._running):
            if one.stream is not None:
                one.cancel()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _complete(self, begin: Callable[[], Stream | Turn]) -> Completion:
        one = self._start(begin)
        try:
            await asyncio.wait([one.ended])
        except asyncio.CancelledError:
            await one.end()
            raise
        one.ended.result()
        assert one.stream is not None
        return one.stream.result

    async def _compute(self, work: Callable[..., T], on_pass: OnProgress | None) -> T:
        """Call `work` in a thread; if the task is cancelled, it ends after the current pass."""
        is_cancelled = threading.Event()

        def passed(progress: Progress) -> None:
            if is_cancelled.is_set():
                raise _CancelledError
            if on_pass:
                on_pass(progress)

        self._check(1)
        try:
            return await asyncio.wrap_future(self._pool.submit(work, on_pass=passed))
        except asyncio.CancelledError:
            is_cancelled.set()
            raise

    def _start(
        self, begin: Callable[[], Stream | Turn], owner: AsyncStream | None = None
    ) -> Generation:
        def begin_open() -> Stream | Turn:
            if self._is_closed:
                raise ClosedError
            return begin()

        self._check(self.llm.parallel)
        one = Generation(self._pool, begin_open, owner)
        self._running.add(one)
        one.ended.add_done_callback(lambda _: self._running.discard(one))
        return one

    def _check(self, n_most: int) -> None:
        """Check that a request can run here and now.

        Args:
            n_most: Number of streams that this task reads from which it would wait for itself.
        """
        loop = asyncio.get_running_loop()
        if self._is_closed:
            raise ClosedError
        if self._loop not in (None, loop):
            raise EventLoopError
        self._loop, task = loop, asyncio.current_task()
        mine = [one for one in self._running if task and one.is_read_by(task)]
        if len(mine) >= n_most:
            raise BusyError


class AsyncChat:
    """A conversation for one event loop.

    One turn runs at a time: wait for its end before the next one begins.

    Attributes:
        chat: The conversation, with its messages; `undo`, `reset` and `system` may be used between
            two turns.
    """

    def __init__(
        self,
        chat: Chat,
        complete: Callable[[Callable[[], Stream | Turn]], Any],
        start: Callable[[Callable[[], Stream | Turn], AsyncStream], Generation],
    ) -> None:
        self.chat, self._complete, self._start = chat, complete, start

    @property
    def messages(self) -> list[dict[str, str]]:
        """All messages so far."""
        return self.chat.messages

    async def send(self, text: str, sampling: Sampling | None = None, **options: Any) -> Completion:
        """Send a message and return the complete answer, as `Chat.send`."""
        answer: Completion = await self._complete(
            partial(self.chat.stream, text, sampling, **options)
        )
        return answer

    def stream(self, text: str, sampling: Sampling | None = None, **options: Any) -> AsyncStream:
        """Send a message and return an asynchronous iterator over the answer, as `Chat.stream`."""
        return AsyncStream(self._start, partial(self.chat.stream, text, sampling, **options))
