"""Public class `AsyncLLM`: an `LLM` for programs with asyncio."""

from __future__ import annotations

import asyncio
import collections
import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ..engine import Prompt
from ..errors import BusyError, ClosedError, EventLoopError, ForkedError
from ..options import Sampling, Speculation, check_types, named, with_options
from ..results import Chunk, Completion, Ended, OnProgress, Progress, ScoredOption, Stats
from ..system.process import Held, OfOneProcess, before_end_of_threads
from .stream import Stream

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Unpack

    from ..arguments import (
        EditOptions,
        EncodingOptions,
        GenerateOptions,
        LoadOptions,
        NoOptions,
        SendOptions,
    )
    from ..edit import Edit
    from ..options import Message
    from ..text.encoding import Texts
    from .chat import Chat, Turn
    from .default_model import DefaultModel
    from .embedding import Embeddings
    from .llm import LLM

T = TypeVar("T")


class _CancelledError(Exception):
    """The task that waits for a computation is cancelled."""


class AsyncLLM(OfOneProcess):
    """An `LLM` for one event loop.

    The engine computes `LLM.parallel` requests at once; more wait in order of arrival. A thread
    prepares each; none waits for its answer. If a task is cancelled, its generation ends after the
    current round.

    Attributes:
        llm: The LLM, whose other methods do not wait for requests. `close` does.
    """

    _error: type[ClosedError] = ClosedError
    _program_ends = False  # of all

    def __init__(self, llm: LLM) -> None:
        """Use an LLM, which `aclose` closes."""
        check_types(llm=llm)
        self.llm = llm
        self._pool = ThreadPoolExecutor(1, "gguf-spec-async")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[AsyncGeneration] = set()
        self._waiting: collections.deque[AsyncGeneration] = collections.deque()
        self._n_begun = 0
        self._is_closed = False
        _opened.add(self)

    def _give_up(self) -> object:
        # Its threads are not there, and a lock may be held.
        kept = self._pool, self._running, self._waiting
        self._pool = ThreadPoolExecutor(1, "gguf-spec-async")
        self._running, self._is_closed, self._error = set(), True, ForkedError
        self._waiting = collections.deque()
        return kept

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.llm!r}>"

    @classmethod
    async def load(
        cls,
        model: str | Path | DefaultModel | None = None,
        draft: str | Path | None = "auto",
        **options: Unpack[LoadOptions],
    ) -> AsyncLLM:
        """Call `gguf_spec.load` in a thread, with the same arguments."""
        from .load import load

        return cls(await asyncio.to_thread(load, model, draft, **options))

    async def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """Complete a prompt, as `LLM.generate`; callbacks are called in another thread.

        Raises:
            GgufSpecError: As `LLM.generate`.
            EventLoopError: The AsyncLLM belongs to another event loop.
            BusyError: This task reads a stream that this request would wait for.
        """
        return await self._complete(partial(self.llm.stream, prompt, sampling, **options))

    async def ask(
        self,
        question: str,
        sampling: Sampling | None = None,
        *,
        system: str | None = None,
        think: bool | None = None,
        **options: Unpack[SendOptions],
    ) -> Completion:
        """Answer one question, as `LLM.ask`; it raises what `generate` raises."""
        sampling = sampling or self.llm.sampling_to_the_end
        return await self.chat(system, think=think).send(question, sampling, **options)

    async def edit(
        self,
        text: str,
        instruction: str,
        *,
        name: str = "",
        scope: Sequence[str] = (),
        others: Mapping[str, str] | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        max_tokens: int | None = None,
        **options: Unpack[EditOptions],
    ) -> Edit:
        """Return the edit of a text, as `LLM.edit` does; it raises the same errors, and others.

        Raises:
            EventLoopError, BusyError: As `generate`.
        """
        from ..edit import EditPlan

        sampling, speculation = with_options(
            sampling or Sampling(temperature=0), speculation or self.llm.speculation, options
        )
        plan = await asyncio.to_thread(EditPlan, text, instruction, name=name, scope=scope)
        asked = await asyncio.to_thread(plan.begin, self.llm, sampling, max_tokens, others)
        if asked is None:
            return plan.end(None, None)
        completion = await self.generate(**asked.arguments, speculation=speculation)
        return plan.end(asked, completion)

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncStream:
        """Start a generation, as `generate`, and return an asynchronous iterator over its chunks.

        Raises:
            EventLoopError: The AsyncLLM belongs to another event loop.
            BusyError: This task reads a stream that this request would wait for.
        """
        return AsyncStream(self, partial(self.llm.stream, prompt, sampling, **options))

    @named
    def chat(
        self,
        system: str | None = None,
        *,
        sampling: Sampling | None = None,
        overflow: Literal["error", "shift"] = "error",
        think: bool | None = None,
    ) -> AsyncChat:
        """Start a conversation, as `LLM.chat`."""
        chat = self.llm.chat(system, sampling=sampling, overflow=overflow, think=think)
        return AsyncChat(self, chat)

    async def embed(
        self,
        texts: Texts,
        *,
        normalize: bool = True,
        special: bool = True,
        on_pass: OnProgress | None = None,
        **others: Unpack[NoOptions],
    ) -> Embeddings:
        """Return the embeddings of texts, as `LLM.embed`; requests wait for it, and it for them.

        `on_pass` is called in another thread.

        Raises:
            GgufSpecError: As `LLM.embed`.
            EventLoopError: The AsyncLLM belongs to another event loop.
            BusyError: This task reads a stream, which the passes would wait for.
        """
        embed = partial(self.llm.embed, texts, normalize=normalize, special=special, **others)
        return await self._compute(embed, on_pass)

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        on_pass: OnProgress | None = None,
        **others: Unpack[NoOptions],
    ) -> list[float]:
        """Return the relevance of each document for a query, as `LLM.rerank`.

        Raises:
            GgufSpecError: As `LLM.rerank`.
            EventLoopError, BusyError: As for `embed`.
        """
        return await self._compute(partial(self.llm.rerank, query, documents, **others), on_pass)

    async def choose(
        self,
        prompt: str | Sequence[Message],
        options: Sequence[str],
        *,
        prefill: str = "",
        on_pass: OnProgress | None = None,
        **encoding: Unpack[EncodingOptions],
    ) -> list[ScoredOption]:
        """Return how likely each option is, as `LLM.choose`.

        Raises:
            GgufSpecError: As `LLM.choose`.
            EventLoopError, BusyError: As for `embed`.
        """
        choose = partial(self.llm.choose, prompt, options, prefill=prefill, **encoding)
        return await self._compute(choose, on_pass)

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

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _complete(self, begin: Callable[[], Stream | Turn]) -> Completion:
        """Read a stream in a thread, and return its result.

        Args:
            begin: Opens the stream, in the thread.
        """
        one = self._start(begin)
        try:
            while not one.ended.done():
                await asyncio.wait([one.ended], timeout=None if one.stream else STUCK_S)
                if one.stream is None and not one.ended.done():
                    self._check_streams(self.llm.parallel)
        except (asyncio.CancelledError, BusyError):
            await one.end()
            raise
        one.ended.result()
        assert one.stream is not None
        return one.stream.result

    async def _compute(self, work: Callable[..., T], on_pass: OnProgress | None) -> T:
        """Call `work` in a thread; if the task is cancelled, it ends after the current pass."""
        is_cancelled = False

        def passed(progress: Progress) -> None:
            if is_cancelled or self._program_ends:
                raise _CancelledError
            if on_pass:
                on_pass(progress)

        self._check(1)
        result = asyncio.wrap_future(self._pool.submit(work, on_pass=passed))
        try:
            while not result.done():
                await asyncio.wait([result], timeout=STUCK_S)
                self._check_streams(1)
            return result.result()
        except (asyncio.CancelledError, BusyError):
            result.cancel()
            is_cancelled = True
            raise

    def _check_streams(self, n_most: int) -> None:
        """Check that this task does not wait for streams which it would have to read itself.

        Raises:
            BusyError: That many generations wait for this task.
        """
        task = asyncio.current_task()
        if sum(one.waits_for(task) for one in self._running) >= n_most:
            raise BusyError

    def _start(
        self, begin: Callable[[], Stream | Turn], owner: AsyncStream | None = None
    ) -> AsyncGeneration:
        """Start a generation, or let it wait for a thread.

        Args:
            begin: Opens the stream, in the thread.
            owner: Reader of the chunks; None if nobody reads them. The generation is cancelled when
                it is garbage-collected.
        """
        self._check(self.llm.parallel)

        def begin_open() -> Stream | Turn:
            if self._is_closed:
                raise self._error
            return begin()

        check = partial(self._check_streams, self.llm.parallel)
        one = AsyncGeneration(begin_open, owner, check)
        self._running.add(one)
        self._waiting.append(one)
        one.ended.add_done_callback(lambda _: self._end(one))
        self._begin_waiting()
        return one

    def _end(self, one: AsyncGeneration) -> None:
        self._running.discard(one)
        self._n_begun -= one.has_begun
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        while self._waiting and self._n_begun < self.llm.parallel:
            one = self._waiting.popleft()
            if not one.ended.done():
                self._n_begun += one.begin(None if self._is_closed else self._pool, self._error)

    def _check(self, n_most: int) -> None:
        """Check that a request can run here and now.

        Args:
            n_most: Number of streams that this task reads from which it would wait for itself.
        """
        loop = asyncio.get_running_loop()
        if self._is_closed:
            raise self._error
        if self._loop not in (None, loop):
            raise EventLoopError
        self._loop, task = loop, asyncio.current_task()
        if sum(one.is_read_by(task) for one in self._running) >= n_most:
            raise BusyError


class AsyncChat(OfOneProcess):
    """A conversation for one event loop.

    One turn runs at a time: wait for its end before the next one begins.

    Attributes:
        chat: The conversation, with its messages; `undo`, `reset` and `system` may be used between
            two turns.
    """

    chat: Chat

    def __init__(self, llm: AsyncLLM, chat: Chat) -> None:
        self._llm, self.chat = llm, chat

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.chat!r}>"

    @property
    def messages(self) -> list[dict[str, str]]:
        """All messages so far."""
        return self.chat.messages

    async def send(
        self, text: str, sampling: Sampling | None = None, **options: Unpack[SendOptions]
    ) -> Completion:
        """Send a message and return the complete answer, as `Chat.send`."""
        return await self._llm._complete(partial(self.chat.stream, text, sampling, **options))

    def stream(
        self, text: str, sampling: Sampling | None = None, **options: Unpack[SendOptions]
    ) -> AsyncStream:
        """Send a message and return an asynchronous iterator over the answer, as `Chat.stream`."""
        return AsyncStream(self._llm, partial(self.chat.stream, text, sampling, **options))


# Chunks that wait for the reader. Then the generation waits.
MOST_UNREAD = 64
# Interval in seconds in which a task that waits for its turn looks whether it waits for itself; and
# seconds after which a stream that nobody has read yet waits for the task that made it.
STUCK_S, TAKEN_OVER_S = 0.25, 2.0


class AsyncGeneration(OfOneProcess):
    """A generation that the engine computes for a task.

    Attributes:
        ended: Done when the generation has ended; has its error.
        stream: The open stream, or None before it is open.
        has_begun: Whether it was prepared, or is being prepared.
    """

    _is_forked = False

    def __init__(
        self,
        begin: Callable[[], Stream | Turn],
        owner: AsyncStream | None,
        check: Callable[[], None],
    ) -> None:
        """Let a generation wait for its turn.

        Args:
            begin: Opens the stream, in a thread.
            owner: As for `AsyncLLM._start`.
            check: Raises a `BusyError` where the current task would wait for itself.
        """
        self.stream: Stream | Turn | None = None
        self.has_begun: bool = False
        self._reader: weakref.ref[asyncio.Task[Any]] | None = None
        task, self._check = asyncio.current_task(), check
        self._maker = weakref.ref(task) if task else None
        self._full_s = math.inf  # since when it waits for its reader
        self._begin = begin
        self._owner = weakref.ref(owner) if owner else None
        self._loop = asyncio.get_running_loop()
        self._is_cancelled = False
        self._chunks: asyncio.Queue[Chunk | None] = asyncio.Queue()  # None: there are no more
        self._n_sent = self._n_read = 0  # chunks; one thread writes each number
        self._job: Future[None] | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()
        # Its error is retrieved: asyncio must not report it for a stream that nobody reads.
        self.ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    def begin(self, pool: ThreadPoolExecutor | None, closed: type[ClosedError]) -> bool:
        """Prepare it in a thread; without threads it ends as closed. Return whether it begins."""
        if pool is None:
            self._end_with(closed())
            return False
        self.has_begun = True
        self._job = pool.submit(self._open)
        return True

    def _give_up(self) -> object:
        self._is_forked = self._is_cancelled = True
        return None

    def _open(self) -> None:
        """Open the stream, and let the engine compute it."""
        try:
            stream = self.stream = self._begin()
            if self._is_cancelled:
                stream.cancel()
            stream.listen(self._came, self._is_full)
        except BaseException as error:
            self._call(self._end_with, error)

    def _came(self, event: Chunk | Ended) -> None:
        """Hand an event to the reader, in the thread of the engine."""
        if isinstance(event, Ended):
            self._call(self._end_with, event.error)
        elif self._owner and self._owner():
            self._n_sent += 1
            self._call(self._chunks.put_nowait, event)
        elif self._owner:
            self.cancel()

    def _is_full(self) -> bool:
        """Return whether the generation waits for its reader, in the thread of the engine."""
        if self._is_cancelled or self._n_sent - self._n_read <= MOST_UNREAD:
            self._full_s = math.inf
            return False
        self._full_s = min(self._full_s, time.monotonic())
        if self._loop.is_closed() or (self._owner and self._owner() is None):
            self.cancel()
        return True

    def _end_with(self, error: BaseException | None) -> None:
        """Report the end, in the event loop; further calls have no effect."""
        if self.ended.done():
            return
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

    async def next(self) -> Chunk | None:
        """Return the next chunk; None after the last one, or if it was cancelled before its begin.

        Raises:
            GgufSpecError: The generation failed.
        """
        if self._is_forked:
            raise ForkedError
        task = asyncio.current_task()
        self._reader = weakref.ref(task) if task else None
        chunk = await self._next()
        if chunk is not None:
            self._n_read += 1
            return chunk
        self._chunks.put_nowait(None)  # for further calls
        await asyncio.wait([self.ended])
        self.ended.result()
        return None

    async def _next(self) -> Chunk | None:
        while self.stream is None:
            try:
                return await asyncio.wait_for(self._chunks.get(), STUCK_S)
            except asyncio.TimeoutError:
                self._check()
        return await self._chunks.get()

    def waits_for(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether the generation waits until a task reads a further chunk."""
        if self._full_s == math.inf or not (task and self._owner and self._owner()):
            return False
        if self._reader:
            return self._reader() is task
        is_left = time.monotonic() - self._full_s >= TAKEN_OVER_S
        return is_left and self._maker is not None and self._maker() is task

    def is_read_by(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a task has read chunks, and may read further ones."""
        if not (task and self._reader and self._owner and self._owner()):
            return False
        return self._reader() is task

    def cancel(self) -> None:
        """End the generation after the current pass or round; one that waits does not begin.

        Safe from any thread.
        """
        if self._is_forked:
            return
        self._is_cancelled = True
        if self._job is None or self._job.cancel():
            self._call(self._end_with, None)
        elif self.stream is not None:
            self.stream.cancel()

    async def end(self) -> None:
        """Cancel the generation, and wait until its stream is closed.

        A generation that waits for the LLM ends as soon as it has its turn; that is not awaited.
        """
        self.cancel()
        if self.stream is not None and not self._is_forked:
            await asyncio.wait([self.ended])


class AsyncStream(OfOneProcess):
    """A running generation: an asynchronous iterator over `Chunk`s and context manager.

    At most a few chunks wait for the reader; then the generation waits. If the task that reads is
    cancelled, the generation ends after its current round.
    """

    def __init__(self, llm: AsyncLLM, begin: Callable[[], Stream | Turn]) -> None:
        self._generation = llm._start(begin, self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._generation.stream!r}>"

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

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


_opened: Held[AsyncLLM] = Held()


@before_end_of_threads
def _cancel_all() -> None:
    """Cancel all requests with the program, which waits for the threads."""
    AsyncLLM._program_ends = True
    for llm in _opened:
        for one in [*llm._running]:
            one.cancel()
