"""Moves that make the sequences of the running requests neighbours.

llama.cpp decodes sequences with consecutive ids in one pass, and others in several. Requests end in
any order, so the sequences of those that go on are moved together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

# Number of passes whose saved time must pay for the moves.
_PASSES = 16


def moves(active: Sequence[int], free: Collection[int]) -> list[tuple[int, int]]:
    """Return the fewest moves after which the active sequences have consecutive ids.

    Args:
        active: Ids of the active sequences.
        free: Ids to which a sequence can be moved.

    Returns:
        Pairs of an active and a free id; empty if nothing need or can be moved.
    """
    places, n = {*active, *free}, len(active)
    windows = [
        window
        for low in sorted(places)
        if places.issuperset(window := range(low, low + n))
    ]  # fmt: skip
    if not active or not windows:
        return []
    best = max(windows, key=lambda window: (len(set(active).intersection(window)), -window[0]))
    outside = [i for i in sorted(active) if i not in best]
    return list(zip(outside, (i for i in best if i not in active), strict=True))


def runs(active: Sequence[int]) -> list[int]:
    """Return the lengths of the runs of consecutive ids."""
    ids = sorted(active)
    ends = [i for i in range(1, len(ids) + 1) if i == len(ids) or ids[i] != ids[i - 1] + 1]
    return [b - a for a, b in pairwise([0, *ends])]


def pays(apart_s: float, together_s: float, n_moves: int, move_s: float) -> bool:
    """Return whether moves take less time than the passes after them save.

    Args:
        apart_s: Seconds of a pass before the moves.
        together_s: Seconds of a pass after them.
        n_moves: Number of moves.
        move_s: Seconds of a move.
    """
    return n_moves * move_s < _PASSES * (apart_s - together_s)
