"""Common prefixes of texts, and how much of a cache a text can use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class SequenceCache(Protocol):
    """Cache of one sequence: that of a model with one, or a slot.

    Attributes:
        cached: Ids of the cached tokens.
        n_read: Length of the prefix that prefill passes decoded, on the grid.
        least_cut: Shortest prefix, above 0, to which the cache can be cut.
    """

    n_read: int
    least_cut: int

    @property
    def cached(self) -> list[int]:
        """As above."""

    @property
    def grid(self) -> int:
        """Prefill passes end at multiples of this; 0 where the ends do not matter."""

    @property
    def least_cut_of_state(self) -> int:
        """Value of `least_cut` after the present state was restored."""

    @property
    def can_roll_back(self) -> bool:
        """Whether the model can remove a part of its cache."""

    def rollback(self, to: int) -> None:
        """Drop all cached tokens after the first `to`."""

    def state_bytes(self) -> int:
        """Return the approximate size of `state`, in bytes."""

    def state(self) -> NDArray[np.uint8]:
        """Return the cache as bytes; an empty array if that is not possible."""

    def restore(self, tokens: Sequence[int], n_read: int, state: Any) -> bool:
        """Replace the cache by a state; return False, with an empty cache, if that fails."""


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # comparing slices is faster than comparing items
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def same_bits(cached: Sequence[int], n_read: int, grid: int, tokens: Sequence[int]) -> int:
    """Return the length of the longest prefix of `tokens` whose cache equals that of a new prefill.

    Where the bits of a row depend on the width of its pass (`grid` is not 0), tokens cached by
    decode passes do not count. The last part of a prompt with another continuation does not either,
    because it was read in a pass of another width.
    """
    same = common(cached, tokens)
    if grid and not same == len(tokens) == n_read:
        same = min(same, n_read)
        same -= same % grid
    return same


def reusable(cache: SequenceCache, tokens: Sequence[int]) -> int:
    """Return how many tokens of a text need not be read with this cache."""
    same = same_bits(cache.cached, cache.n_read, cache.grid, tokens)
    can_cut = cache.can_roll_back and same >= cache.least_cut
    return same if can_cut or same == len(cache.cached) else 0
