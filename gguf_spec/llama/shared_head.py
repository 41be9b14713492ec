"""Prediction head that reads the cache of its target (Gemma 4's assistant).

It has no cache, so nothing is read or dropped. All tokens of a draft are decoded at the position
after the target's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits
from ..errors import InvalidOptionError
from .head import Head


class SharedHead(Head):
    """A head without a cache; its tokens are only counted."""

    shares_cache = True

    @property
    def is_ready(self) -> bool:
        """Whether the target's cache has a token; the mean of none is not a number."""
        return self._target.n_past > 0

    def _flash_attention(self) -> str:
        return self._target.flash_attention

    def read(self, tokens: Sequence[int]) -> None:
        """Count tokens."""
        self._cached = [*self.cached, *tokens]
        self._n_true, self._own = self.n_past, None

    def logits(
        self, tokens: Sequence[int], n_rows: int, branches: Sequence[tuple[int, int]] = ()
    ) -> Logits:
        """Return the logits after the last token.

        Raises:
            InvalidOptionError: More than one row is asked for.
            DecodeError: The context is full, or llama.cpp rejected the batch.
        """
        if branches or n_rows != 1 or not tokens:
            raise InvalidOptionError("n_rows", n_rows, "1, without branches")
        n_known = self._n_known(len(tokens))
        if n_known:
            self.read(tokens[:n_known])
            rows = self._decode_at_end(tokens[n_known - 1], None)
        for token in tokens[n_known:]:
            self._cached = [*self.cached, token]
            rows = self._decode_at_end(token, self._own)
        return rows

    def rollback(self, to: int) -> None:
        """Drop all tokens after the first `to`, and those decoded with own rows."""
        n = min(to, self._n_true)
        self._own, self._n_true = (self._own if n >= self.n_past else None), n
        self._cached = self.cached[:n]

    def state_bytes(self) -> int:
        """Return 0."""
        return 0

    def restore(self, tokens: Sequence[int], n_read: int, state: Any) -> bool:
        """Count the tokens."""
        self.rollback(0)
        self.read(tokens)
        return n_read == 0 and not len(state)

    def _decode_at_end(self, token: int, row: NDArray[np.float32] | None) -> Logits:
        """Decode a token behind the target's cache, with a row of the head or of the target."""
        assert self._rows_of_target is not None
        counted, self._cached = self.cached, []
        end = self._target.n_past
        rows = self._rows_of_target.before(end, 1) if row is None else row[None]
        self._pass(end, [token], rows, 1, 0)
        self._cached = counted
        return self._results(1, 1)

    def _clear(self, data: bool) -> None:
        """Do nothing: the cache is the target's."""
