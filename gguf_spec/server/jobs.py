"""Jobs of the worker: a request with its choices, its events, and their queue for its client."""

from __future__ import annotations

import asyncio
import collections
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..protocols.errors import LOG, ApiError, as_refusal, shutting_down, too_slow
from ..protocols.events import ChoiceEnded, ChunkEvent, PromptRead, Started, Why
from ..protocols.fields import NOTED
from ..protocols.fit import Choice, requests_of
from ..protocols.request import CompletionRequest
from ..results import Completion, Stats
from .model_pool import ServedModel

if TYPE_CHECKING:
    from ..engine import Answer
    from ..runtime.llm import LLM
    from ..tools.grammar import Unenforced

JOB = "gguf_spec.job"  # key of the job of a request in its ASGI scope


@dataclass(frozen=True)
class Ping:
    """Event: nothing was sent for some time. It does not come from the worker."""


@dataclass(frozen=True)
class Done:
    """Event: all choices are complete, or a task has run."""

    value: Any = None


@dataclass(frozen=True)
class Sent:
    """Event: a part of the result of a task."""

    kind: str
    value: Any


@dataclass(frozen=True)
class ErrorEvent:
    """Event: an error ended the request, before or during the answer."""

    refusal: ApiError


Event = Started | PromptRead | ChunkEvent | ChoiceEnded | Ping | Done | Sent | ErrorEvent


class _Inbox:
    """Events from other threads for the queues of one event loop.

    The loop is woken once for all events that come before it takes them: a wake takes longer than
    an event, and a round of several requests sends many.
    """

    def __init__(self) -> None:
        self._events = collections.deque[tuple[asyncio.Queue[Event], Event]]()
        self._is_woken = False

    def post(
        self, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Event], event: Event
    ) -> None:
        """Put an event into a queue, in the loop; in the order of the calls."""
        self._events.append((queue, event))
        if self._is_woken:  # it takes this one, too: it clears the mark before it takes any
            return
        self._is_woken = True
        try:
            loop.call_soon_threadsafe(self._take)
        except RuntimeError:  # the loop is closed: there is no reader
            self._events.clear()
            self._is_woken = False

    def _take(self) -> None:
        self._is_woken = False
        while self._events:
            queue, event = self._events.popleft()
            queue.put_nowait(event)


# It holds no loop, so an entry goes with its loop.
_INBOXES: WeakKeyDictionary[asyncio.AbstractEventLoop, _Inbox] = WeakKeyDictionary()


class Job:
    """Request for the worker, with the queue of events for its client.

    Several threads may answer its choices. `post` never waits for the client. Create a job in the
    event loop of the client.

    Attributes:
        request: The request, or a task: a function of the loaded model.
        stats: Statistics of the complete choices.
        n_turns: Number of its turns: choices, or its task, that are being answered. The worker
            changes it.
        last: The last event, to be sent when no thread answers it any more.
        began_s: Time when it was created, by `time.perf_counter`.
        faults: What the answers do not fulfil of the schemas.
        has_started: Whether the first event was sent. From then on other threads may answer further
            choices.
        n_ctx: Length of the context that it waits for, in tokens.
        tried: The longest for which it has waited.
        noted: The list of `fields.NOTED` of its request, for the threads that answer it.
        begins_again: Whether it waits for that context.
        n_bytes: Bytes that its request takes in memory, about.
        limit_s: Its time limit, for the error where nothing was generated within it.
    """

    began_s: float
    begins_again: bool
    failed: bool
    limit_s: float
    model: ServedModel
    n_bytes: int
    n_ctx: int
    noted: list[str] | None
    tried: int

    def __init__(
        self,
        model: ServedModel,
        request: CompletionRequest | Callable[[LLM], Any],
        names: dict[str, str] | None = None,
    ) -> None:
        """Create a job; the `names` of a task are its fields by option, for errors."""
        self.model, self.request = model, request
        self._names = request.names if isinstance(request, CompletionRequest) else names or {}
        # No explicit size limit: the length of the answer bounds the queue.
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.began_s, self.noted = time.perf_counter(), NOTED.get()
        self.why: Why | None = None
        self.stats: list[Stats] = []
        self.unenforced: Unenforced | None = None
        self.faults: list[str] = []
        self.n_turns = 0
        self.last: Event = Done()
        self._loop = asyncio.get_running_loop()
        self._inbox = _INBOXES.setdefault(self._loop, _Inbox())
        self._lock = threading.Lock()
        self._streams: list[Answer] = []
        # Not the same lock: a choice of a long prompt takes long, and the event loop cancels.
        self._choosing = threading.Lock()
        self._choices: Iterator[Choice[Answer]] | None = None
        self._llm: LLM | None = None  # for which the choices were made
        self._n_chosen = 0
        self.failed = self.has_started = self.begins_again = False
        self.n_ctx = self.tried = 0
        self.limit_s, self.n_bytes = 0.0, 0
        self._n_ended, self._empty = 0, list[ChoiceEnded]()

    def post(self, event: Event) -> None:
        """Send an event to the event loop. May be called from any thread."""
        self._inbox.post(self._loop, self.events, event)

    @property
    def has_more(self) -> bool:
        """Whether a thread can answer a further choice, beside others or after them."""
        if self.why or self.failed or self.begins_again:
            return self.begins_again
        n_choices = self.request.n_choices if isinstance(self.request, CompletionRequest) else 0
        return self.has_started and self._n_chosen < n_choices

    def begin_again(self, n_ctx: int) -> None:
        """Begin again when the context has this length; nothing was sent yet."""
        self.n_ctx, self.tried, self.begins_again = n_ctx, n_ctx, True
        self._choices, self._n_chosen = None, 0

    def next_choice(self, llm: LLM, n_ctx_max: int = 0) -> Choice[Answer] | None:
        """Return the next choice, or None after the last one or an error."""
        assert isinstance(self.request, CompletionRequest)
        with self._choosing:
            if self.failed or (self.why and self.has_started):
                return None
            if self._choices is None or llm is not self._llm:  # it may have been loaded again
                grows = max(llm.n_ctx, self.tried) < n_ctx_max
                choices = requests_of(self.request, llm, lambda: self.why, grows)
                self._choices, self._llm = islice(choices, self._n_chosen, None), llm
            chosen = next(self._choices, None)
            if chosen and not self._n_chosen:  # a seed that was drawn holds for all
                sampling = replace(self.request.sampling, seed=chosen.sampling.seed)
                given = self.request.given | {"seed"}
                self.request = replace(self.request, sampling=sampling, given=given)
            self._n_chosen += chosen is not None
            return chosen

    def choice_ended(self, ended: ChoiceEnded) -> None:
        """Send the end of a choice; one without a token at the time limit waits for the others."""
        result = ended.result
        is_cut = self.why == "timeout" and result.finish_reason == "cancelled"
        with self._lock:
            if is_cut and not result.stats.n_generated:
                self._empty.append(ended)
                return
            self._n_ended += 1
        self.post(ended)

    def finish(self) -> None:
        """Send the last event; choices of a cancelled job that have not begun are empty.

        At the time limit it is an error if no choice has a token.
        """
        if self.has_started and self._choices and not self.failed:
            left = self._empty
            for choice in self._choices:
                nothing = Completion("", (), "cancelled", choice.seed, Stats())
                left.append(ChoiceEnded(choice.index, nothing, self.why))
            if self.why == "timeout" and left and not self._n_ended:
                self.last, self.failed = ErrorEvent(too_slow(self.limit_s, 408)), True
            else:
                for ended in left:
                    self.post(ended)
        if self.why == "timeout" and not self.failed:
            LOG.warning("An answer ended at the time limit of %g s (--timeout).", self.limit_s)
        self.post(self.last)

    @contextmanager
    def reading(self, stream: Answer) -> Iterator[None]:
        """Let `cancel` and `fail` cancel a stream inside of the block."""
        with self._lock:
            self._streams.append(stream)
            if self.why or self.failed:
                stream.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._streams.remove(stream)

    def cancel(self, why: Why) -> None:
        """Cancel the answer within one round; the first reason is kept."""
        with self._lock:
            self.why = self.why or why
            for stream in self._streams:
                stream.cancel()

    def fail(self, error: Exception) -> None:
        """End the answer with an error; the first one is kept."""
        refusal = shutting_down() if self.why == "shutting_down" else as_refusal(error, self._names)
        with self._lock:
            if not self.failed:
                self.last, self.failed = ErrorEvent(refusal), True
            for stream in self._streams:
                stream.cancel()
