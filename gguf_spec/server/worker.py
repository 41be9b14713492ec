"""The one thread that the models belong to, the queue before it, and the way back to each client."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..results import Chunk, Completion, Stats
from .errors import ApiError, as_refusal, ending, gone
from .metrics import Metrics
from .requests import CompletionRequest

if TYPE_CHECKING:
    from ..runtime.llm import LLM
    from ..runtime.stream import Stream

Why = Literal["gone", "timeout", "ending"]


@dataclass(frozen=True)
class Started:
    """The prompt is in order, and the model is at it."""


@dataclass(frozen=True)
class TokenInfo:
    """A token's text and bytes, how likely it was, and what else was likely there."""

    text: str
    piece: bytes
    logprob: float
    top: tuple[TokenInfo, ...] = ()


@dataclass(frozen=True)
class ChunkEvent:
    """A piece of the answer."""

    chunk: Chunk
    logprobs: tuple[TokenInfo, ...]


@dataclass(frozen=True)
class Finished:
    """The end of an answer; `why` it was cut short, if it was."""

    result: Completion
    why: Why | None


@dataclass(frozen=True)
class ErrorEvent:
    """What came in place of an answer, or of its end."""

    refusal: ApiError


Event = Started | ChunkEvent | Finished | ErrorEvent


class Job:
    """A request on its way to the worker, and its answer on the way back. What the worker posts never waits for the client."""

    def __init__(self, asked: CompletionRequest) -> None:
        self.asked = asked
        self.events: asyncio.Queue[Event] = asyncio.Queue()  # bounded by the tokens of the answer
        self.why: Why | None = None
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._stream: Stream | None = None

    def post(self, event: Event) -> None:
        """Hand an event to the event loop; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody reads
            self._loop.call_soon_threadsafe(self.events.put_nowait, event)

    def begins(self, stream: Stream) -> None:
        """Let `cancel` reach the stream."""
        with self._lock:
            self._stream = stream
            if self.why:
                stream.cancel()

    def ends(self) -> None:
        """Let go of the stream."""
        with self._lock:
            self._stream = None

    def cancel(self, why: Why) -> None:
        """End the answer within a round; the first reason counts."""
        with self._lock:
            self.why = self.why or why
            if self._stream:
                self._stream.cancel()


class Worker:
    """Serves jobs one after the other, in the order they came."""

    def __init__(self, llm: LLM, most_waiting: int, totals: Metrics) -> None:
        self.totals = totals
        self._llm, self._most = llm, most_waiting
        self._changed = threading.Condition()
        self._waiting: collections.deque[Job] = collections.deque()
        self._running: Job | None = None
        self._ends = False
        self._seconds = 1.0  # what an answer took of late
        self._thread = threading.Thread(target=self._run, name="gguf-spec-worker", daemon=True)
        self._thread.start()

    @property
    def n_waiting(self) -> int:
        """Jobs that wait."""
        return len(self._waiting)

    @property
    def is_busy(self) -> bool:
        """Whether a job runs."""
        return self._running is not None

    def submit(self, job: Job) -> None:
        """Put a job into the queue.

        Raises:
            Refusal: The queue is full, or the server is to end.
        """
        with self._changed:
            if self._ends:
                raise ending()
            if len(self._waiting) + self.is_busy > self._most:
                seconds = min(60, max(1, math.ceil(self._seconds)))
                raise ApiError(
                    f"{len(self._waiting)} requests are waiting already. Try again in {seconds} s.",
                    None,
                    "queue_full",
                    429,
                    {"Retry-After": str(seconds)},
                )
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job, why: Why) -> None:
        """End a job, wherever it is; one that waits leaves the queue at once."""
        job.cancel(why)
        with self._changed:
            if job not in self._waiting:
                return
            self._waiting.remove(job)
        job.post(ErrorEvent(gone() if why == "gone" else ending()))

    def cancel_all(self) -> None:
        """End what runs within a round, and refuse what waits."""
        with self._changed:
            jobs = [*self._waiting, *([self._running] if self._running else [])]
        for job in jobs:
            self.cancel(job, "ending")

    def close(self) -> None:
        """End all jobs and the thread; more than once does nothing."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self.cancel_all()
        self._thread.join()

    def _run(self) -> None:
        while job := self._next():
            last = self._answer(job)
            with self._changed:
                self._running = None
            job.post(last)  # now that the place is free: the client may come again at once
            del job, last

    def _next(self) -> Job | None:
        with self._changed:
            while not self._waiting and not self._ends:
                self._changed.wait()
            if self._waiting:
                self._running = self._waiting.popleft()
            return self._running

    def _answer(self, job: Job) -> Event:
        """Serve a job; return the event that ends it."""
        asked = job.asked
        stats = Stats()
        try:
            with self._open(asked) as stream:
                try:
                    job.begins(stream)
                    self.totals.began(stream)
                    job.post(Started())
                    for chunk in stream:
                        job.post(ChunkEvent(chunk, self._named(chunk)))
                finally:
                    job.ends()
                    stats = stream.stats
                    self.totals.ended(stats)
            self._seconds += 0.2 * (stats.total_s - self._seconds)
            return Finished(stream.result, job.why)
        except Exception as error:
            return ErrorEvent(as_refusal(error, asked.names))

    def _open(self, asked: CompletionRequest) -> Stream:
        llm = self._llm
        if isinstance(asked.prompt, str):
            return llm.stream(
                asked.prompt, asked.sampling, speculation=asked.speculation, echo=asked.echo
            )
        if asked.tools:
            return llm.stream(
                asked.prompt, asked.sampling, speculation=asked.speculation, tools=asked.tools
            )
        if asked.is_chat:
            return llm.stream(asked.prompt, asked.sampling, speculation=asked.speculation)
        return llm.stream_tokens(asked.prompt, asked.sampling, speculation=asked.speculation)

    def _named(self, chunk: Chunk) -> tuple[TokenInfo, ...]:
        return tuple(
            self._name(one.token, one.logprob, tuple(self._name(*other) for other in one.top))
            for one in chunk.logprobs
        )

    def _name(self, token: int, logprob: float, top: tuple[TokenInfo, ...] = ()) -> TokenInfo:
        text = self._llm.token_text(token)
        return TokenInfo(
            text, self._llm.token_bytes(token) or text.encode(), max(logprob, -9999.0), top
        )  # JSON knows no infinity
