"""Choice of the slots of a new request: those whose caches hold the longest part of its prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..speculative.prefixes import common, reusable
from ..speculative.task import SlotPair
from .kept_prefixes import LEAST_COPIED, Found, PrefixStore


def choose_slots(pairs: Sequence[SlotPair], prompt: Sequence[int], kept: PrefixStore) -> SlotPair:
    """Return free slots for a prompt, with as much of it in their caches as possible.

    A prefix that only another slot holds, such as a common system prompt, is copied; one that only
    the store holds is restored. Without any common prefix the slots that were not used for the
    longest time are taken, the lowest first: neighbouring slots are cheaper in common passes.

    Args:
        pairs: All slots, at least one of them free.
        prompt: Token ids.
        kept: Texts that no slot holds any more; a text that loses its slots goes there.
    """
    tokens = prompt[:-1]  # the last token is decoded with the answer
    same = {id(pair): reusable(pair.target, tokens) for pair in pairs}
    free = [pair for pair in pairs if pair.task is None]
    best = max(free, key=lambda pair: (same[id(pair)], -pair.used_at, -pair.target.index))
    source, found = max(pairs, key=lambda pair: same[id(pair)]), kept.find(tokens)
    n_copied = same[id(source)] if source.target.can_roll_back else 0
    if max(n_copied, found.n) - same[id(best)] < LEAST_COPIED:
        kept.use(best, tokens, Found())
        return best
    to = min(free, key=lambda pair: (pair.used_at, pair.target.index))
    if found.n > n_copied:
        kept.use(to, tokens, found)
    else:
        kept.use(to, tokens, Found())
        _copy(source, to, n_copied)
    return to


def _copy(source: SlotPair, to: SlotPair, n: int) -> None:
    """Copy the first `n` tokens of other slots."""
    to.target.copy_from(source.target)
    to.target.rollback(n)
    if to.draft and source.draft:
        to.draft.copy_from(source.draft)
        to.first.offset, to.first.failed = source.first.offset, source.first.failed


def reads_prefix(
    pairs: Sequence[SlotPair],
    others: Iterable[Sequence[int]],
    prompt: Sequence[int],
    kept: PrefixStore,
) -> bool:
    """Return whether another request is about to read a prefix of a prompt that can be copied then.

    Args:
        pairs: All slots.
        others: Prompts of the running requests.
        prompt: Token ids.
        kept: Texts that no slot holds any more.
    """
    if not pairs[0].target.can_roll_back:
        return False
    tokens = prompt[:-1]
    known = max(kept.find(tokens).n, *(common(pair.target.cached, tokens) for pair in pairs))
    return any(common(other[:-1], tokens) >= known + LEAST_COPIED for other in others)
