"""Choice of the slots of a new request: those whose caches hold the longest part of its prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..speculative.scheduler import SlotPair

# Tokens; a copy of another slot's cache must save reading at least as many.
_LEAST_COPIED = 64


def choose_slots(pairs: Sequence[SlotPair], prompt: Sequence[int]) -> SlotPair:
    """Return free slots for a prompt, with as much of it in their caches as possible.

    A prefix that only another slot holds, such as a common system prompt, is copied. Without any
    common prefix the slots that were not used for the longest time are taken, the lowest first:
    neighbouring slots are cheaper in common passes.

    Args:
        pairs: All slots, at least one of them free.
        prompt: Token ids.
    """
    # The last token is decoded with the answer.
    same = {id(pair): common(pair.target.cached, prompt[:-1]) for pair in pairs}
    free = [pair for pair in pairs if pair.task is None]
    best = max(free, key=lambda pair: (same[id(pair)], -pair.used_at, -pair.target.index))
    source = max(pairs, key=lambda pair: same[id(pair)])
    n_copied = same[id(source)] - same[id(best)]
    if n_copied < _LEAST_COPIED or not best.target.model.can_roll_back:
        return best
    to = min(free, key=lambda pair: (pair.used_at, pair.target.index))
    to.target.copy_from(source.target)
    to.target.rollback(same[id(source)])
    if to.draft and source.draft:
        to.draft.copy_from(source.draft)
        to.first.offset, to.first.failed = source.first.offset, source.first.failed
    return to


def reads_prefix(
    pairs: Sequence[SlotPair], others: Iterable[Sequence[int]], prompt: Sequence[int]
) -> bool:
    """Return whether another request is about to read a prefix of a prompt that can be copied then.

    Args:
        pairs: All slots.
        others: Prompts of the running requests.
        prompt: Token ids.
    """
    if not pairs[0].target.model.can_roll_back:
        return False
    known = max(common(pair.target.cached, prompt[:-1]) for pair in pairs)
    return any(common(other[:-1], prompt[:-1]) >= known + _LEAST_COPIED for other in others)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # comparing slices is faster than comparing items
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low
