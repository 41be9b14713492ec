"""Whose turn it is: one at a time, in the order they came.

Each change is one operation of a list, which no exception can leave half done: what Ctrl-C ends keeps no turn that is not its own, and to leave
more than once does nothing. The locks only wake those who wait; they look themselves, too, so that a call that is lost delays them a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import ref

_LOOK_S = 0.1  # seconds after which those who wait look themselves


class Ticket:
    """One who waits for the turn, or has it.

    Attributes:
        thread: Whose it is.
        stream: What it is used for, if that is a stream.
    """

    def __init__(self) -> None:
        """Make a ticket of this thread."""
        self.thread = threading.get_ident()
        self.stream: ref[Any] | None = None
        self._called = threading.Lock()
        self._called.acquire()

    def call(self) -> None:
        """Wake its thread."""
        with suppress(RuntimeError):  # called before
            self._called.release()

    def wait(self) -> None:
        """Wait for a call, or a moment."""
        self._called.acquire(timeout=_LOOK_S)


class Line:
    """Those who wait; the first of them has the turn."""

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []

    @property
    def first(self) -> Ticket | None:
        """Who has the turn."""
        return next(iter(self._tickets), None)

    def join(self, ticket: Ticket, meanwhile: Callable[[], object] | None = None) -> None:
        """Wait for the turn, and call `meanwhile` again and again until then. Whatever this raises, `leave` is to be called."""
        self._tickets.append(ticket)
        while self._tickets[0] is not ticket:
            if meanwhile:
                meanwhile()
            ticket.wait()

    def leave(self, ticket: Ticket) -> None:
        """Give the turn back, or the place; where there is none it does nothing. From any thread."""
        with suppress(ValueError):
            self._tickets.remove(ticket)
        first = self.first
        if first:
            first.call()
