"""A loaded model that several threads use: in turn, or with requests that share passes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ..errors import BusyError, ClosedError
from ..llama.head import Head
from ..llama.model import Model
from ..results import PrefixMemory, SlotState
from ..speculative.pair import ModelPair
from .kept_prefixes import PrefixStore
from .loaded_model import LoadedModel
from .parallel import ParallelRunner
from .slot_state import only_slot
from .turns import Line, Ticket

T = TypeVar("T")


class SharedModel(LoadedModel):
    """A loaded model that may be used from any thread, in order of arrival."""

    def __init__(self, name: str, pair: ModelPair, prefix_memory: int = 0) -> None:
        super().__init__(name, pair)
        self._line = Line()  # only the ticket that has the turn may use the models
        self._kept = PrefixStore(prefix_memory)
        self._runner = ParallelRunner(pair, self._line, self._kept) if self.parallel > 1 else None

    def slots(self) -> tuple[SlotState, ...]:
        """Return the state of each slot, of which there are `parallel`.

        It does not wait for running requests.

        Raises:
            ClosedError: The LLM is closed.
        """
        target = self.vocabulary
        return self._runner.slots() if self._runner else (only_slot(target, self._line),)

    @property
    def prefix_memory(self) -> PrefixMemory:
        """Memory for earlier texts whose caches were given to other texts, and its use.

        A request that begins like one of them needs not read that part. The text does not change.
        """
        return self._kept.memory()

    @contextmanager
    def models(self) -> Iterator[tuple[Model, Model | Head | None]]:
        """Reserve the LLM and yield `(target, draft)` for checks of the models' internals.

        The second item is a prediction head if one drafts, and None without a draft model.

        Raises:
            BusyError, ClosedError: As for a generation.
        """
        self._check_generates()
        ticket = Ticket()
        try:
            self._take(ticket)
            yield self._target, self._draft
        finally:
            self._line.leave(ticket)

    def close(self) -> None:
        """Free the native memory; repeated calls have no effect.

        An open stream is closed first. A round in progress is finished first.

        Raises:
            BusyError: This thread is inside a round, or has reserved the models.
        """
        self._end_stream()
        self._closed = True  # waiting threads raise ClosedError on their turn
        if self._runner:
            self._runner.is_closed = True
        ticket = Ticket()
        try:
            try:
                self._line.join(ticket, self._end_stream)
                self._kept.forget()
                self._free()
            finally:
                self._line.leave(ticket)
        except BaseException:
            self._line.leave(ticket)
            raise

    def _end_stream(self) -> None:
        """Close an open stream; a stream of another thread ends after its current round."""
        if self._runner:
            self._runner.cancel()
        first = self._line.first
        stream = first.stream() if first and first.stream else None
        if first and first.thread == threading.get_ident():
            if stream:
                stream.close()
            if self._line.first is first:
                raise BusyError
        elif stream:
            stream.abort()

    def _in_turn(self, do: Callable[[Ticket], T]) -> T:
        """Call `do` with a ticket that has the turn, and release the turn on any exception."""
        ticket = Ticket()
        try:
            try:
                self._take(ticket)
                return do(ticket)
            finally:
                self._line.leave(ticket)
        except BaseException:
            self._line.leave(ticket)  # Ctrl-C may arrive just before the first call
            raise

    def _take(self, ticket: Ticket) -> None:
        """Wait for the turn. If this raises, the caller must remove the ticket from the line."""
        self._check_thread(ticket.thread)
        self._line.join(ticket)
        if self._closed:
            raise ClosedError

    def _check_thread(self, thread: int) -> None:
        """Check that a thread would not wait for a stream of its own."""
        first = self._line.first
        if first and first.thread == thread:
            raise BusyError
        if self._runner:
            self._runner.check_thread()
