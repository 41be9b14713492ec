"""What the loop and the drafters need of a model; `gguf_spec._model.Model` has it, and so have the fakes of the tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ._sampling import Logits
from .errors import RollbackError


class LanguageModel(Protocol):
    """Tokens in, logits out, and a cache that can be cut back.

    Attributes:
        n_vocab: V, the length of a row of logits.
        n_ctx: Positions the cache holds.
        busy_s: Seconds spent inside the model.
        start: A token that a text may begin with.
        weight_bytes: What the weights take.
        cached_bytes: What one token takes in the cache.
        cached: The tokens in the cache, one after the other.
        reads_at_once: Tokens of a prompt that are read in one pass.
    """

    n_vocab: int
    n_ctx: int
    busy_s: float
    start: int
    weight_bytes: int
    cached_bytes: float
    cached: list[int]
    reads_at_once: int

    @property
    def n_past(self) -> int:
        """How many tokens are in the cache."""

    def read(self, tokens: Sequence[int]) -> None:
        """Put tokens into the cache."""

    def logits(self, tokens: Sequence[int], n_rows: int, branches: Sequence[tuple[int, int]] = ()) -> Logits:
        """Put tokens into the cache and return the logits after each of the last `n_rows`; the next call may overwrite them.

        Below them stand the logits after each of the `branches`, in order: an index into `tokens`, and the token that stands there instead.
        Branches do not stay in the cache.
        """

    def rollback(self, to: int) -> None:
        """Forget all but the first `to` tokens."""

    def is_end(self, token: int) -> bool:
        """Whether a token ends a generation."""


def keep_beginning(model: LanguageModel, tokens: Sequence[int]) -> None:
    """Forget all that a model has read but the longest beginning of `tokens`; everything, where it cannot go back to that."""
    same = next((i for i, (a, b) in enumerate(zip(model.cached, tokens, strict=False)) if a != b), min(model.n_past, len(tokens)))
    try:
        model.rollback(same)
    except RollbackError:
        model.rollback(0)


def read_on(model: LanguageModel, tokens: Sequence[int], cancelled: Callable[[], bool], on_pass: Callable[[int, int], object] | None = None) -> None:
    """Read what a model has not read of `tokens`, pass by pass until `cancelled()`.

    After each pass `on_pass` is called with the number of tokens in the cache and of all tokens.
    """
    while model.n_past < len(tokens) and not cancelled():
        model.read(tokens[model.n_past : model.n_past + model.reads_at_once])
        if on_pass:
            on_pass(model.n_past, len(tokens))


def row_afresh(model: LanguageModel, tokens: Sequence[int], at_once: int = 32) -> Logits:
    """Return a copy of the row after `tokens`, read into an empty cache so many at once."""
    model.rollback(0)
    for i in range(0, len(tokens) - 1, at_once):
        model.read(tokens[i : min(i + at_once, len(tokens) - 1)])
    return np.array(model.logits(tokens[-1:], 1)[0])
