"""Operations on one row of logits."""

from __future__ import annotations

import numpy as np

from ..arrays import Ids, Logits


def largest(logits: Logits, n: int) -> Ids:
    """Return the indices of the `n` largest logits, in any order."""
    ids, n_lanes = None, 64
    width = len(logits) // n_lanes
    if 2 * n < width:
        # The n-th largest of many maxima is a lower bound of the n-th largest logit. This avoids a
        # partition of the whole row.
        maxima = logits[: n_lanes * width].reshape(n_lanes, width).max(axis=0)
        ids = np.flatnonzero(logits >= np.partition(maxima, width - n)[width - n])
        logits = logits[ids]
    best = np.argpartition(logits, len(logits) - n)[len(logits) - n :]
    return best if ids is None else ids[best]
