"""What belongs to one process: objects with native memory, and the end of their threads.

A child made by `os.fork` has the memory of its parent, but none of its threads, and may find each
lock held for ever. The objects of the parent are given up there: they refuse calls, and free
nothing. Objects that the child makes work as ever.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Generic, NoReturn, Protocol, TypeVar
from weakref import ref

T = TypeVar("T")


class Held(Generic[T]):
    """Objects that others hold; each is forgotten when nobody does.

    A WeakSet forgets by Python code, and Python drops a Ctrl-C that arrives there.
    """

    def __init__(self) -> None:
        self._refs: set[ref[T]] = set()

    def add(self, one: T) -> None:
        self._refs.add(ref(one, self._refs.discard))

    def discard(self, one: T) -> None:
        self._refs.discard(ref(one))

    def clear(self) -> None:
        self._refs.clear()

    def __iter__(self) -> Iterator[T]:
        """Iterate over those of the time of the call."""
        return iter([one for each in self._refs.copy() if (one := each()) is not None])


_alive: Held[OfOneProcess] = Held()
# What a child by fork must not free: its parent uses it, and its threads are not there.
_kept: list[object] = []


class OfOneProcess:
    """Base of objects of one process: they cannot be copied or pickled, and a fork ends them."""

    def __new__(cls, *_arguments: Any, **_options: Any) -> Any:
        """Create the object, and remember it for a fork."""
        self = super().__new__(cls)
        _alive.add(self)
        return self

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"{name} cannot be copied or pickled; load in each process instead.")

    def _give_up(self) -> object:
        """Refuse calls from now on, in the child of a fork; return what must not be freed."""
        return None


def _forked() -> None:
    """Give up the objects of the parent, in the child of a fork."""
    for one in _alive:
        with suppress(Exception):  # another thread was making it
            _kept.append(one._give_up())
    _alive.clear()
    with suppress(Exception):  # Python has no public way
        _begin_imports_again()


def _begin_imports_again() -> None:
    """Forget the modules that other threads were importing: nobody would end that."""
    locks: dict[str, Any] = vars(importlib)["_bootstrap"]._module_locks
    for name, find in [*locks.items()]:
        owner = getattr(find(), "owner", None)
        if owner not in (None, threading.get_ident()):
            del locks[name]
            sys.modules.pop(name, None)


def before_end_of_threads(call: Callable[[], object]) -> None:
    """Call a function at the end of the program, before Python waits for the threads of pools.

    Pools must be imported before: they are asked in the reverse order.
    """
    getattr(threading, "_register_atexit", atexit.register)(call)


class Cancellable(Protocol):
    """Something that runs and can be ended."""

    def cancel(self) -> object:
        """End it soon; called in the main thread."""


def cancel_with_program(running: Iterable[Cancellable]) -> None:
    """Cancel what is in a collection at the end of the program, which waits for threads of pools.

    Pools must be imported before, as for `before_end_of_threads`.
    """
    before_end_of_threads(lambda: [one.cancel() for one in running])


def renewed(lock: Any) -> Any:
    """Return a lock that is free in the child of a fork, where its holder does not run."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lock._at_fork_reinit)
    return lock


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
