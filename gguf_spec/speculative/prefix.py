"""Prefix of a text in a cache: how much of it is kept, and how the rest is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..arrays import Logits
from ..errors import RollbackError
from ..passes import LanguageModel, ModelSequence


def retain_prefix(model: LanguageModel, tokens: Sequence[int]) -> None:
    """Roll back to the longest prefix of `tokens` whose cache equals that of a new prefill.

    A model that cannot roll back that far is emptied.
    """
    same = model.exactness.same_bits(model.cached, model.n_read, tokens)
    try:
        model.rollback(same)
    except RollbackError:
        model.rollback(0)
    if model.n_past < same and model.exactness.beyond(model.n_past):
        model.rollback(0)


def return_to(model: LanguageModel, tokens: Sequence[int], n: int) -> None:
    """Roll back to the first `n` cached tokens; read tokens again that were dropped before `n`."""
    try:
        model.rollback(n)
    except RollbackError:
        model.rollback(0)
    read_on(model, tokens[:n], lambda: False)


def read_on(
    model: LanguageModel,
    tokens: Sequence[int],
    cancelled: Callable[[], bool],
    on_pass: Callable[[int, int], object] | None = None,
) -> None:
    """Read the tokens that are not cached yet, pass by pass until `cancelled()`.

    After each pass `on_pass` is called with the numbers of cached tokens and of all tokens.
    """
    while model.n_past < len(tokens) and not cancelled():
        end = min(model.n_past + model.reads_at_once, len(tokens))
        # A pass ends at a multiple of the grid, except for the last one.
        on_grid = end - model.exactness.beyond(end)
        model.read(tokens[model.n_past : on_grid if on_grid > model.n_past else end])
        if on_pass:
            on_pass(model.n_past, len(tokens))


def decode_last(model: LanguageModel, tokens: Sequence[int], n_prompt: int | None = None) -> Logits:
    """Return a copy of the row after `tokens`, shape `(V,)`, with an initially empty cache.

    The first `n_prompt` tokens are read as a prompt; those behind them are decoded one by one, as
    generated tokens are. None for all but the last one.
    """
    before = tokens[:-1]
    model.rollback(0)
    read_on(model, before[:n_prompt], lambda: False)
    for token in before[model.n_past :]:
        model.read([token])
    return np.array(model.logits(tokens[-1:], 1)[0])


def reusable(cache: ModelSequence, tokens: Sequence[int]) -> int:
    """Return how many tokens of a text need not be read with this cache."""
    same = cache.exactness.same_bits(cache.cached, cache.n_read, tokens)
    if cache.recurrent:
        return cache.recurrent.nearest(same) or 0
    can_cut = cache.can_roll_back and same >= cache.least_cut
    return same if can_cut or same == len(cache.cached) else 0
