"""Model interface that the generation loop and the drafters require.

`gguf_spec.llama.sequence.CachedSequence` and the fakes of the tests implement it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..arrays import Logits
from ..errors import RollbackError

if TYPE_CHECKING:
    from ..llama.exactness import Exactness
    from ..llama.sequence import CachedSequence


class LanguageModel(Protocol):
    """Model that turns tokens into logits, with a cache that can be rolled back.

    A rollback may drop more tokens than asked for, which are then decoded again with the next ones.

    Attributes:
        n_vocab: V, the length of a row of logits.
        n_ctx: Capacity of the cache, in tokens.
        start: A token that may begin a text.
        weight_bytes: Size of the weights, in bytes.
        cached_bytes: Size of one cached token, in bytes.
        depth_costs: Pass width in tokens -> extra seconds of the pass for each cached token; empty
            where that was not measured.
        slow_first_pass: Whether the first pass of a width takes longer than later ones, because the
            driver of a GPU compiles kernels for it.
    """

    n_vocab: int
    n_ctx: int
    start: int
    weight_bytes: int
    cached_bytes: float
    slow_first_pass: bool
    depth_costs: Mapping[int, float]

    @property
    def exactness(self) -> Exactness:
        """Which passes give a row the same bits."""

    @property
    def busy_s(self) -> float:
        """Seconds spent inside the model."""

    @property
    def n_read(self) -> int:
        """Length of the cached prefix that prefill passes on the grid decoded, in tokens."""

    @property
    def reads_at_once(self) -> int:
        """Prompt tokens decoded in one prefill pass."""

    @property
    def free_rollback(self) -> int:
        """Most tokens that a rollback drops without dropping others."""

    @property
    def cached(self) -> list[int]:
        """The tokens in the cache, in order."""

    @property
    def n_past(self) -> int:
        """Number of tokens in the cache."""

    def read(self, tokens: Sequence[int]) -> None:
        """Append tokens to the cache."""

    def logits(self, tokens: Sequence[int], n_rows: int) -> Logits:
        """Append tokens to the cache and return the logits after each of the last `n_rows`.

        The next call may overwrite the returned rows.

        Args:
            tokens: Token ids.
            n_rows: Number of last tokens whose logits are returned.

        Returns:
            Logits, shape `(n_rows, V)`.
        """

    def rollback(self, to: int) -> None:
        """Remove all but the first `to` tokens from the cache, or all but fewer."""

    def hold(self, lasting: bool = False) -> None:
        """Make it possible to roll back to the present number of tokens.

        Args:
            lasting: Until the next call with `lasting`; else until the next pass with several rows,
                or the next call.
        """

    def is_end(self, token: int) -> bool:
        """Return whether a token ends a generation."""


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

    After each pass `on_pass` is called with the number of cached tokens and the number of all
    tokens.
    """
    while model.n_past < len(tokens) and not cancelled():
        end = min(model.n_past + model.reads_at_once, len(tokens))
        # A pass ends at a multiple of the grid, except for the last one.
        on_grid = end - model.exactness.beyond(end)
        model.read(tokens[model.n_past : on_grid if on_grid > model.n_past else end])
        if on_pass:
            on_pass(model.n_past, len(tokens))


def decode_last(model: LanguageModel, tokens: Sequence[int], n_prompt: int | None = None) -> Logits:
    """Return a copy of the row after `tokens`, computed with an initially empty cache.

    Args:
        model: The model; its cache is emptied first.
        tokens: Token ids, at least one.
        n_prompt: Number of first tokens that are read as a prompt; those behind them are decoded
            one by one, as generated tokens are. None for all but the last one.

    Returns:
        Logits, shape `(V,)`.
    """
    before = tokens[:-1]
    model.rollback(0)
    read_on(model, before[:n_prompt], lambda: False)
    for token in before[model.n_past :]:
        model.read([token])
    return np.array(model.logits(tokens[-1:], 1)[0])


def reusable(cache: CachedSequence, tokens: Sequence[int]) -> int:
    """Return how many tokens of a text need not be read with this cache."""
    same = cache.exactness.same_bits(cache.cached, cache.n_read, tokens)
    if cache.recurrent:
        return cache.recurrent.nearest(same) or 0
    can_cut = cache.can_roll_back and same >= cache.least_cut
    return same if can_cut or same == len(cache.cached) else 0
