"""Queue of threads that wait for the models: one turn at a time, in order of arrival.

Each change is a single list operation, which no exception can leave half done. A thread that Ctrl-C
interrupts therefore keeps no turn, and repeated calls of `leave` have no effect. The locks only
wake waiting threads. These also poll, so that a lost wake-up delays them only by the poll interval.

The turn of a stream that is garbage-collected ends without a finalizer, because Python drops a
Ctrl-C that arrives inside of one: the queue looks whether the stream is still there.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import ref

_LOOK_S = 0.1  # poll interval of a waiting thread, in seconds
_NUMBERS = itertools.count(1)


class Ticket:
    """A thread's place in the queue.

    Attributes:
        number: Position in the order of all tickets of this process.
        thread: Id of the thread.
        stream: The stream that uses the turn, or None.
    """

    def __init__(self) -> None:
        """Create a ticket of the current thread."""
        self.number = next(_NUMBERS)
        self.thread = threading.get_ident()
        self.stream: ref[Any] | None = None
        self._called = threading.Lock()
        self._called.acquire()

    @property
    def is_abandoned(self) -> bool:
        """Whether the stream that used the turn is gone."""
        return self.stream is not None and self.stream() is None

    def call(self) -> None:
        """Wake the thread."""
        with suppress(RuntimeError):  # already woken
            self._called.release()

    def wait(self) -> None:
        """Wait until woken, at most one poll interval."""
        self._called.acquire(timeout=_LOOK_S)


class Line:
    """Queue of tickets; the first one has the turn."""

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []

    @property
    def first(self) -> Ticket | None:
        """The ticket that has the turn, or None; tickets of streams that are gone leave."""
        while (first := next(iter(self._tickets), None)) and first.is_abandoned:
            self._remove(first)
        return first

    def has_others(self, ticket: Ticket) -> bool:
        """Whether other tickets wait behind this one."""
        return any(one is not ticket for one in [*self._tickets])

    def join(self, ticket: Ticket, meanwhile: Callable[[], object] | None = None) -> None:
        """Wait for the turn, and call `meanwhile` repeatedly until then.

        If this raises, the caller must call `leave`.
        """
        self._tickets.append(ticket)
        while self.first is not ticket:
            if meanwhile:
                meanwhile()
            ticket.wait()

    def leave(self, ticket: Ticket) -> None:
        """Remove a ticket from the queue; no effect if it is not in it. Safe from any thread."""
        self._remove(ticket)
        first = self.first
        if first:
            first.call()

    def _remove(self, ticket: Ticket) -> None:
        with suppress(ValueError):
            self._tickets.remove(ticket)
