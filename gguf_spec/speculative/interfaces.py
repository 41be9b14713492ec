"""What the loop and the drafters need of a model; `gguf_spec.llama.model.Model` has it, and so have the fakes of the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from ..arrays import Logits
from ..errors import RollbackError


class LanguageModel(Protocol):
    """Tokens in, logits out, and a cache that can be cut back.

    Attributes:
        n_vocab: V, the length of a row of logits.
        n_ctx: Positions the cache holds.
        busy_s: Seconds spent inside the model.
        start: A token that a text may begin with.
        weight_bytes: What the weights take.
        cached_bytes: What one token takes in the cache.
        reads_at_once: Tokens of a prompt that are read in one pass.
        grid: Passes that read a prompt end at multiples of this; 0 where it does not matter.
        n_read: How many of the cached tokens, from the first on, were read as a prompt, on the grid.
        exact_attention: Attention gives a row the same bits in passes of all widths, at all depths.
        most_exact_rows: Passes over more tokens than that do not have the bits of single-token passes, whatever a few rows show.
        depth_costs: Tokens in a pass -> seconds more for each cached token; empty where that was not measured.
    """

    n_vocab: int
    n_ctx: int
    busy_s: float
    start: int
    weight_bytes: int
    cached_bytes: float
    reads_at_once: int
    grid: int
    n_read: int
    exact_attention: bool
    most_exact_rows: int
    depth_costs: Mapping[int, float]

    @property
    def cached(self) -> list[int]:
        """The tokens in the cache, one after the other."""

    @property
    def n_past(self) -> int:
        """How many tokens are in the cache."""

    def read(self, tokens: Sequence[int]) -> None:
        """Put tokens into the cache."""

    def logits(
        self, tokens: Sequence[int], n_rows: int, branches: Sequence[tuple[int, int]] = ()
    ) -> Logits:
        """Put tokens into the cache and return the logits after each of the last `n_rows`; the next call may overwrite them.

        Below them stand the logits after each of the `branches`, in order: an index into `tokens`, and the token that stands there instead.
        Branches do not stay in the cache.
        """

    def rollback(self, to: int) -> None:
        """Forget all but the first `to` tokens."""

    def is_end(self, token: int) -> bool:
        """Whether a token ends a generation."""


def retain_prefix(model: LanguageModel, tokens: Sequence[int]) -> None:
    """Roll back to the longest beginning of `tokens` whose cache is what reading `tokens` afresh gives; to nothing, where the model cannot do that.

    Where the bits of a row depend on the width of its pass (`grid`), decoded tokens are read again, and so is the last part of a prompt that goes
    on differently: it was read in a pass of another width.
    """
    same = next(
        (i for i, (a, b) in enumerate(zip(model.cached, tokens, strict=False)) if a != b),
        min(model.n_past, len(tokens)),
    )
    if model.grid and not same == len(tokens) == model.n_read:
        same = min(same, model.n_read)
        same -= same % model.grid
    try:
        model.rollback(same)
    except RollbackError:
        model.rollback(0)


def read_on(
    model: LanguageModel,
    tokens: Sequence[int],
    cancelled: Callable[[], bool],
    on_pass: Callable[[int, int], object] | None = None,
) -> None:
    """Read what a model has not read of `tokens`, pass by pass until `cancelled()`.

    After each pass `on_pass` is called with the number of tokens in the cache and of all tokens.
    """
    while model.n_past < len(tokens) and not cancelled():
        model.read(tokens[model.n_past : _pass_end(model, len(tokens))])
        if on_pass:
            on_pass(model.n_past, len(tokens))


def _pass_end(model: LanguageModel, n_tokens: int) -> int:
    """Return where the next pass ends: at a multiple of the grid, but for the last pass."""
    end = min(model.n_past + model.reads_at_once, n_tokens)
    on_grid = end - end % model.grid if model.grid else end
    return on_grid if on_grid > model.n_past else end


def decode_last(model: LanguageModel, tokens: Sequence[int], one_by_one: bool = False) -> Logits:
    """Return a copy of the row after `tokens`, read into an empty cache as a prompt is, or one token in each pass."""
    model.rollback(0)
    if one_by_one:
        for token in tokens[:-1]:
            model.read([token])
    else:
        read_on(model, tokens[:-1], lambda: False)
    return np.array(model.logits(tokens[-1:], 1)[0])
