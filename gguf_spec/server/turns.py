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


async def in_time(work: Awaitable[T], seconds: float | None) -> T:
    """Return the result of some work; `too_slow` where it takes longer than the time limit."""
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        assert seconds is not None
        raise too_slow(seconds) from None
