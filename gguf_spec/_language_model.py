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
    """

    n_vocab: int
    n_ctx: int
    busy_s: float

    @property
    def n_past(self) -> int:
        """How many tokens are in the cache."""

    def read(self, tokens: Sequence[int]) -> None:
        """Put tokens into the cache."""

    def logits(self, tokens: Sequence[int], n_rows: int) -> Logits:
        """Put tokens into the cache and return the logits after each of the last `n_rows`; the next call may overwrite them."""

    def rollback(self, to: int) -> None:
        """Forget all but the first `to` tokens."""

    def is_end(self, token: int) -> bool:
        """Whether a token ends a generation."""
