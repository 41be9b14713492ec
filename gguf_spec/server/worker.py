"""Worker thread that runs all requests, with their queue and the events for each client."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..results import Chunk, Completion, Stats
from .choices import ChoiceRequest, requests_of
from .errors import ApiError, as_refusal, ending, gone
from .metrics import Metrics
from .model_pool import ModelPool, ServedModel
from .requests import CompletionRequest
from .tool_calls import Form, form_of

if TYPE_CHECKING:
    from ..runtime.llm import LLM
    from ..runtime.stream import Stream

Why = Literal["gone", "timeout", "ending"]


@dataclass(frozen=True)
class Started:
    """Event: the model is loaded, the prompt is valid and the generation has started.

    Attributes:
        model: Name of the model.
        form: Form of its tool calls.
    """

    model: str
    form: Form


@dataclass(frozen=True)
class TokenInfo:
    """Token with its log-probability and the alternatives at its position.

    Attributes:
        text: Text of the token.
        piece: Bytes of the token.
        logprob: Log-probability; at least -9999.
        top: Most likely tokens at this position.
    """

    text: str
    piece: bytes
    logprob: float
    top: tuple[TokenInfo, ...] = ()


@dataclass(frozen=True)
class ChunkEvent:
    """Event: one chunk of a choice.

    Attributes:
        chunk: The chunk.
        logprobs: Its tokens with log-probabilities; empty unless requested.
        index: Index of the choice.
    """

    chunk: Chunk
    logprobs: tuple[TokenInfo, ...]
    index: int = 0


@dataclass(frozen=True)
class ChoiceEnded:
    """Event: one choice is complete.

    Attributes:
        index: Index of the choice.
        result: The completion.
        why: Reason for a cancellation; None if the choice was not cancelled.
    """

    index: int
    result: Completion
    why: Why | None


@dataclass(frozen=True)
class Finished:
    """Event: all choices are complete."""


@dataclass(frozen=True)
class Done:
    """Event: a task has run.

    Attributes:
        value: What it returned.
    """

    value: Any


@dataclass(frozen=True)
class ErrorEvent:
    """Event: an error ended the request, before or during the answer."""

    refusal: ApiError


Event = Started | ChunkEvent | ChoiceEnded | Finished | Done | ErrorEvent


class Job:
    """Request for the worker, with the queue of events for its client.

    `post` never waits for the client. Create a job in the event loop of the client.

    Attributes:
        model: The model.
        asked: The request, or a task: a function of the loaded model.
    """

    def __init__(self, model: ServedModel, asked: CompletionRequest | Callable[[LLM], Any]) -> None:
        self.model, self.asked = model, asked
        # No explicit size limit: the length of the answer bounds the queue.
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.why: Why | None = None
        self.stats: list[Stats] = []  # of the complete choices
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._stream: Stream | None = None

    def post(self, event: Event) -> None:
        """Send an event to the event loop. May be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no reader
            self._loop.call_soon_threadsafe(self.events.put_nowait, event)

    def begins(self, stream: Stream) -> None:
        """Register the stream of this job, so that `cancel` can cancel it."""
        with self._lock:
            self._stream = stream
            if self.why:
                stream.cancel()

    def ends(self) -> None:
        """Remove the stream of this job."""
        with self._lock:
            self._stream = None

    def cancel(self, why: Why) -> None:
        """Cancel the answer within one round; the first reason is kept."""
        with self._lock:
            self.why = self.why or why
            if self._stream:
                self._stream.cancel()


class Worker:
    """Thread that runs jobs one at a time, in the order of their submission."""

    def __init__(self, pool: ModelPool, most_waiting: int, totals: Metrics) -> None:
        self.totals = totals
        self._pool, self._most = pool, most_waiting
        self._changed = threading.Condition()
        self._waiting: collections.deque[Job] = collections.deque()
        self._running: Job | None = None
        self._ends = False
        self._seconds = 1.0  # moving average of the time of an answer, in seconds
        self._thread = threading.Thread(target=self._run, name="gguf-spec-worker", daemon=True)
        self._thread.start()

    @property
    def n_waiting(self) -> int:
        """Number of waiting jobs."""
        return len(self._waiting)

    @property
    def is_busy(self) -> bool:
        """Whether a job is running."""
        return self._running is not None

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Add a job to the queue.

        Raises:
            ApiError: The queue is full, or the server is shutting down.
        """
        with self._changed:
            if self._ends:
                raise ending()
            if len(self._waiting) + self.is_busy > self._most:
                seconds = min(60, max(1, math.ceil(self._seconds)))
                raise ApiError(
                    f"{len(self._waiting)} requests are already waiting. Try again in {seconds} s.",
                    None,
                    "queue_full",
                    429,
                    {"Retry-After": str(seconds)},
                )
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job, why: Why) -> None:
        """Cancel a waiting or running job; a waiting job leaves the queue at once."""
        job.cancel(why)
        with self._changed:
            if job not in self._waiting:
                return
            self._waiting.remove(job)
        job.post(ErrorEvent(gone() if why == "gone" else ending()))

    def cancel_all(self) -> None:
        """Cancel the running job within one round, and all waiting jobs."""
        with self._changed:
            jobs = [*self._waiting, *([self._running] if self._running else [])]
        for job in jobs:
            self.cancel(job, "ending")

    def close(self) -> None:
        """Cancel all jobs and end the thread; further calls have no effect."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self.cancel_all()
        self._thread.join()
        self._pool.close()

    def _run(self) -> None:
        while job := self._next():
            last = self._answer(job)
            with self._changed:
                self._running = None
            # Only now, when the worker is free: the client may send its next request at once.
            job.post(last)
            del job, last

    def _next(self) -> Job | None:
        """Return the next job, or None at the end; unload idle models while no job waits."""
        while True:
            with self._changed:
                if not self._waiting and not self._ends:
                    self._changed.wait(self._pool.seconds_left())
                if self._waiting or self._ends:
                    self._running = self._waiting.popleft() if self._waiting else None
                    break
            self._pool.unload_idle()
        if self._running:
            self._pool.unload_idle(but_for=self._running.model)
        return self._running

    def _answer(self, job: Job) -> Event:
        """Run a job and return its last event."""
        names = job.asked.names if isinstance(job.asked, CompletionRequest) else {}
        try:
            with self._pool.use(job.model, lambda: bool(job.why)) as llm:
                if not isinstance(job.asked, CompletionRequest):
                    return Done(job.asked(llm))
                for request in requests_of(job.asked, llm):
                    self._choose(job, llm, request)
            return Finished()
        except Exception as error:
            return ErrorEvent(ending() if job.why == "ending" else as_refusal(error, names))

    def _choose(self, job: Job, llm: LLM, request: ChoiceRequest) -> None:
        """Generate one choice."""
        stats = Stats()
        with request.open(llm) as stream:
            try:
                job.begins(stream)
                self.totals.began(stream)
                if request.index == 0:
                    job.post(Started(llm.name, form_of(llm.chat_template or "")))
                for chunk in stream:
                    job.post(ChunkEvent(chunk, named(llm, chunk), request.index))
            finally:
                job.ends()
                stats = stream.stats
                job.stats.append(stats)
                self.totals.ended(stats)
        self._seconds += 0.2 * (stats.total_s - self._seconds)
        job.post(ChoiceEnded(request.index, stream.result, job.why))


def named(llm: LLM, chunk: Chunk) -> tuple[TokenInfo, ...]:
    """Return the tokens of a chunk with their texts, if log-probabilities were requested."""
    return tuple(
        _name(llm, one.token, one.logprob, tuple(_name(llm, *other) for other in one.top))
        for one in chunk.logprobs
    )


def _name(llm: LLM, token: int, logprob: float, top: tuple[TokenInfo, ...] = ()) -> TokenInfo:
    text = llm.token_text(token)
    # JSON has no infinity: log-probabilities are at least -9999.
    return TokenInfo(text, llm.token_bytes(token) or text.encode(), max(logprob, -9999.0), top)
