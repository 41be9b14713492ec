"""Limit of the work for the conversion of schemas to a grammar: they may come from a request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..errors import GrammarTooLargeError

# units of work for one conversion, each of at most about a microsecond
MOST_WORK = 600_000

_left: ContextVar[int] = ContextVar("gguf_spec_work_left")


@contextmanager
def limited_work() -> Iterator[None]:
    """Limit the work in the block; a block inside of another one is a part of its work."""
    if _left.get(None) is not None:
        yield
        return
    token = _left.set(MOST_WORK)
    try:
        yield
    finally:
        _left.reset(token)


def spend(n: int) -> None:
    """Count units of work; outside of `limited_work` they are not limited.

    Args:
        n: Number of units.

    Raises:
        GrammarTooLargeError: The limit is exceeded.
    """
    left = _left.get(None)
    if left is not None:
        _left.set(left - n)
        if left < n:
            raise GrammarTooLargeError
