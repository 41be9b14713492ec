"""Rows of a target's hidden state, from which a prediction head predicts the tokens after next."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class HiddenRows:
    """One row for each token in the cache of a target, as far as they are known.

    A row depends on all tokens up to its own. Rows are overwritten when other tokens take their
    place; until then they belong to the text that the target decoded last.

    Attributes:
        width: Length of a row.
        first: First position whose row is known.
        end: The position after the last one whose row is known.
    """

    def __init__(self, n_ctx: int, width: int) -> None:
        self.width, self.first, self.end = width, 0, 0
        # the system allocates pages when they are written
        self._rows = np.empty((n_ctx, width), np.float32)

    def put(self, at: int, rows: NDArray[np.float32]) -> None:
        """Store the rows of tokens decoded at position `at`; later rows become unknown."""
        if not self.first <= at <= self.end:
            self.first = at
        self.end = at + len(rows)
        self._rows[at : self.end] = rows

    def cut(self, n: int) -> None:
        """Forget the rows from position `n` on."""
        self.first, self.end = min(self.first, n), min(self.end, n)

    def before(self, start: int, n: int) -> NDArray[np.float32]:
        """Return the rows before `n` positions from `start` on; zeros where they are unknown."""
        rows = np.zeros((n, self.width), np.float32)
        first, end = max(start - 1, self.first), min(start - 1 + n, self.end)
        if first < end:
            rows[first - start + 1 : end - start + 1] = self._rows[first:end]
        return rows
