"""What the loop and the drafters need of a model; `gguf_spec._model.Model` has it, and so have the fakes of the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ._sampling import Logits


class LanguageModel(Protocol):
    """Tokens in, logits out, and a cache that can be cut back.

    Attributes:
        n_vocab: V, the length of a row of logits.
        n_ctx: Positions the cache holds.
        busy_s: Seconds spent inside the model.
        start: A token that a text may begin with.
        weight_bytes: What the weights take.
        cached_bytes: What one token takes in the cache.
    """

    n_vocab: int
    n_ctx: int
    busy_s: float
    start: int
    weight_bytes: int
    cached_bytes: float

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
