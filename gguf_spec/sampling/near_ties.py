"""Near ties: batches of different size run different kernels, so logits differ in the last digits, and a choice as close as that may flip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits
from ..options import Sampling
from .chain import Candidates, Sampler, largest

_RIVALS = 64  # best tokens of a row that are compared with the best one
NOISE_MARGIN = 2.0  # what a few rows show is not the most there can be


class SingleTokenReference:
    """What rows of passes over one token each say, to be compared with rows of wider passes over the same tokens."""

    def __init__(self) -> None:
        self._best: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []

    def add(self, row: Logits) -> None:
        """Take the next row, shape `(V,)`."""
        best = largest(row, min(_RIVALS, len(row)))
        best = best[np.argsort(-row[best])]
        self._best.append((best, row[best].astype(np.float64)))

    def max_shift(self, rows: Logits) -> float:
        """Return how far a logit's distance from the best one is another in `rows`, the first rows again, shape `(n, V)`; in logits."""
        worst = 0.0
        for (best, alone), row in zip(self._best, rows, strict=False):
            with np.errstate(invalid="ignore"):  # tokens that cannot come are at -inf in both
                moved = row[best].astype(np.float64) - alone
                moved = np.abs(moved - moved[0])
            worst = max(worst, float(moved[np.isfinite(moved)].max(initial=0.0)))
        return worst


def is_near_tie(
    sampler: Sampler, logits: Logits, history: Sequence[int], token: int, noise: float
) -> bool:
    """Return whether `token`, which `sampler` chose from this row, might not be chosen if logits moved against each other by `noise`.

    It must be chosen still when it is lower or higher by that much, and when what the filters left out by no more than that is let in. That
    covers another token getting ahead, and the limits of all filters; not two moves at once that change what XTC or typical-p take out.

    Args:
        sampler: The chain, under the rule `coupled` or greedy.
        logits: The row, shape `(V,)`.
        history: All token ids before this one.
        token: The one that was chosen.
        noise: What `measure_noise` found.
    """
    if noise == 0:
        return False
    s, position, shaped = sampler.sampling, len(history), sampler.shaped(logits, history)
    noise *= max(s.repeat_penalty, 1 / s.repeat_penalty) * (
        1 + s.top_n_sigma
    )  # penalties stretch it, and a sigma moves with it
    tighter = replace(sampler, sampling=_with_limits(s, -noise))
    lower = shaped.copy()
    lower[token] -= noise
    if tighter.pick(tighter.survivors(lower, position), position) != token:
        return True
    if s.greedy:
        return False
    if s.typical_p < 1 or s.xtc_probability:  # these may take out what is too likely
        higher = shaped.copy()
        higher[token] += noise
        if tighter.pick(tighter.survivors(higher, position), position) != token:
            return True
    if s.top_n_sigma:  # its limit moves with every logit, those just lowered and raised too
        limit = sampler.sigma_limit(shaped)
        if abs(shaped[token] - limit) < noise:
            return True
        shaped = np.where(shaped >= limit - noise, shaped, np.float32(-np.inf))
    kept = replace(sampler, sampling=_with_limits(s, noise)).survivors(shaped, position).logits
    rivals = np.flatnonzero((shaped >= kept.min() - noise) & (shaped <= kept.max() + noise))
    return sampler.pick(Candidates(rivals, lower[rivals]), position) != token


def _with_limits(s: Sampling, slack: float) -> Sampling:
    """Return the filters with their limits moved by what logits that move by `slack` can do; below 0 the other way, and outwards the sigma is off.

    Of a set of tokens with share a, all up by slack / 2 and all others down, the share grows by less than slack / 4. What min-p keeps is
    a matter of one token's distance from the best, so inwards it is enough that the token itself is lower.
    """
    top_p = s.top_p if s.top_p == 1 else min(1.0, max(1e-9, s.top_p + slack / 4))
    typical_p = s.typical_p if s.typical_p == 1 else min(1.0, max(1e-9, s.typical_p + slack))
    if slack < 0:
        return replace(s, top_p=top_p, typical_p=typical_p)
    return replace(
        s, top_p=top_p, typical_p=typical_p, min_p=s.min_p * math.exp(-slack), top_n_sigma=0.0
    )
