"""Work beside the event loop of the server: in turn, and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..protocols.errors import too_slow

T = TypeVar("T")
# Bytes of a body or an answer above which it is converted in a thread.
LARGE = 1 << 16


async def in_turn(
    turn: asyncio.Lock, n_bytes: int, function: Callable[..., T], *given: object
) -> T:
    """Call a function that does not use the event loop; in a thread if it has much to do.

    Such calls with one lock take turns.
    """
    if n_bytes <= LARGE:
        return function(*given)
    async with turn:
        return await asyncio.to_thread(function, *given)


class Alarm:
    """Time limit of steps that come often: it calls a function in a step that takes too long.

    A timer for each step would take longer than most steps.

    Attributes:
        has_rung: Whether it has called the function.
    """

    def __init__(self, seconds: float, ring: Callable[[], object]) -> None:
        """Set the limit; 0 for none."""
        self._seconds, self._ring = seconds, ring
        self.has_rung: bool = False
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None  # begin of the step that is not yet over
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Begin a step."""
        self._since = self._loop.time()
        if self._seconds and not self._timer:
            self._timer = self._loop.call_later(self._seconds, self._look)

    def end(self) -> None:
        self._since = None

    def stop(self) -> None:
        if self._timer:
            self._timer.cancel()

    def _look(self) -> None:
        now, since = self._loop.time(), self._since
        left = self._seconds if since is None else since + self._seconds - now
        if left <= 0:
            self.has_rung, self._since, left = True, None, self._seconds
            self._ring()
        self._timer = self._loop.call_later(left, self._look)


async def in_time(work: Awaitable[T], seconds: float | None) -> T:
    """Return the result of some work; `too_slow` where it takes longer than the time limit."""
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        assert seconds is not None
        raise too_slow(seconds) from None
