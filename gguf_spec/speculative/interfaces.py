"""Model interface that the generation loop and the drafters require.

`gguf_spec.llama.sequence.CachedSequence` and the fakes of the tests implement it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from ..arrays import Logits

if TYPE_CHECKING:
    from ..llama.exactness import Exactness


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

        Their shape is `(n_rows, V)`. The next call may overwrite them.
        """

    def rollback(self, to: int) -> None:
        """Remove all but the first `to` tokens from the cache, or all but fewer."""

    def hold(self, lasting: bool = False) -> None:
        """Make it possible to roll back to the present number of tokens.

        That lasts until the next call with `lasting`; without, until the next pass with several
        rows or the next call.
        """

    def is_end(self, token: int) -> bool:
        """Return whether a token ends a generation."""
