"""Jobs of the worker: a request with its choices, and the queue of events for its client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..results import Stats
from .choices import ChoiceRequest, requests_of
from .errors import as_refusal, ending
from .events import ErrorEvent, Event, Finished, Why
from .model_pool import ServedModel
from .requests import CompletionRequest

if TYPE_CHECKING:
    from ..runtime.llm import LLM
    from ..runtime.stream import Stream


class Job:
    """Request for the worker, with the queue of events for its client.

    Several threads may answer its choices. `post` never waits for the client. Create a job in the
    event loop of the client.

    Attributes:
        model: The model.
        asked: The request, or a task: a function of the loaded model.
        why: Reason for a cancellation, or None.
        stats: Statistics of the complete choices.
        n_threads: Number of threads that answer it. The worker changes it.
        last: The last event, to be sent when no thread answers it any more.
    """

    def __init__(
        self,
        model: ServedModel,
        asked: CompletionRequest | Callable[[LLM], Any],
        names: dict[str, str] | None = None,
    ) -> None:
        """Create a job.

        Args:
            model: The model.
            asked: The request or the task.
            names: For a task: option name -> field name, for errors.
        """
        self.model, self.asked = model, asked
        self._names = asked.names if isinstance(asked, CompletionRequest) else names or {}
        # No explicit size limit: the length of the answer bounds the queue.
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.why: Why | None = None
        self.stats: list[Stats] = []
        self.n_threads = 0
        self.last: Event = Finished()
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._streams: list[Stream] = []
        # Not the same lock: a choice of a long prompt takes long, and the event loop cancels.
        self._choosing = threading.Lock()
        self._choices: Iterator[ChoiceRequest] | None = None
        self._n_chosen = 0
        self._failed = self._has_started = False

    def post(self, event: Event) -> None:
        """Send an event to the event loop. May be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no reader
            self._loop.call_soon_threadsafe(self.events.put_nowait, event)

    def start(self, event: Event) -> None:
        """Send the first event; from now on other threads may answer further choices."""
        self.post(event)
        self._has_started = True

    @property
    def has_more(self) -> bool:
        """Whether a thread can answer a further choice, beside others or after them."""
        asked = self.asked
        if self._failed or not (self._has_started and isinstance(asked, CompletionRequest)):
            return False
        return self._n_chosen < asked.n_choices

    @property
    def has_failed(self) -> bool:
        """Whether an error ended it."""
        return self._failed

    def next_choice(self, llm: LLM) -> ChoiceRequest | None:
        """Return the next choice, or None after the last one or an error."""
        assert isinstance(self.asked, CompletionRequest)
        with self._choosing:
            if self._failed:
                return None
            if self._choices is None:
                self._choices = requests_of(self.asked, llm)
            chosen = next(self._choices, None)
            self._n_chosen += chosen is not None
            return chosen

    @contextmanager
    def reading(self, stream: Stream) -> Iterator[None]:
        """Let `cancel` and `fail` cancel a stream inside of the block."""
        with self._lock:
            self._streams.append(stream)
            if self.why or self._failed:
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
        refusal = ending() if self.why == "ending" else as_refusal(error, self._names)
        with self._lock:
            if not self._failed:
                self.last, self._failed = ErrorEvent(refusal), True
            for stream in self._streams:
                stream.cancel()
