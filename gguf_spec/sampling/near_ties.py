"""Near ties: choices so close that rounding differences between passes may change them.

Passes of different width use different kernels, so their logits differ in the last digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits
from ..options import Sampling
from .chain import Candidates, Sampler, largest

# Number of best tokens of a row that are compared with the best one.
_RIVALS = 64
# Safety factor on measured noise: a few rows do not show the largest possible noise.
NOISE_MARGIN = 2.0


class SingleTokenReference:
    """Rows of single-token passes, for the comparison with wider passes over the same tokens."""

    def __init__(self) -> None:
        self._best: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []

    def add(self, row: Logits) -> None:
        """Add the next row, shape `(V,)`."""
        best = largest(row, min(_RIVALS, len(row)))
        best = best[np.argsort(-row[best])]
        self._best.append((best, row[best].astype(np.float64)))

    def max_shift(self, rows: Logits) -> float:
        """Return the largest change of a logit gap between the reference rows and `rows`.

        A logit gap is the distance of a token's logit from that of the reference's best token. The
        result is in logits.

        Args:
            rows: Rows of a wider pass, from the first reference row on, shape `(n, V)`.
        """
        worst = 0.0
        for (best, alone), row in zip(self._best, rows, strict=False):
            # Tokens that are forbidden have the logit -inf in both rows.
            with np.errstate(invalid="ignore"):
                moved = row[best].astype(np.float64) - alone
                moved = np.abs(moved - moved[0])
            worst = max(worst, float(moved[np.isfinite(moved)].max(initial=0.0)))
        return worst


def is_near_tie(
    sampler: Sampler, logits: Logits, history: Sequence[int], token: int, noise: float
) -> bool:
    """Return whether logit changes of `noise` might prevent the choice of `token`.

    The token must still be chosen if its logit is lower or higher by `noise`, and if tokens that a
    filter removed by at most `noise` are kept. This covers the case that another token overtakes
    it, and the limits of all filters. It does not cover two simultaneous changes that alter the
    tokens that XTC, typical-p or infill remove.

    Args:
        sampler: The chain, under the rule `coupled` or greedy.
        logits: The row, shape `(V,)`.
        history: All token ids before this one.
        noise: Largest change of logits against each other, in logits.
    """
    if noise == 0:
        return False
    s, position, noise = sampler.sampling, len(history), scaled_noise(sampler.sampling, noise)
    shaped = sampler.shaped(logits, history, 2 * noise)
    tighter = replace(sampler, sampling=limits_of(s, -noise))
    lower = shaped.copy()
    lower[token] -= noise
    if tighter.pick(tighter.survivors(lower, position), position) != token:
        return True
    if s.greedy:
        return False
    # These filters may remove a token that is too likely.
    if s.typical_p < 1 or s.xtc_probability or sampler.filters.infill:
        higher = shaped.copy()
        higher[token] += noise
        if tighter.pick(tighter.survivors(higher, position), position) != token:
            return True
    # The limit of top-n-sigma changes with every logit, also with those lowered or raised above.
    if s.top_n_sigma:
        limit = sampler.sigma_limit(shaped)
        # Without the tokens right above it the others have a larger share, which top-p limits.
        fewer = np.where(shaped >= limit + noise, lower, np.float32(-np.inf))
        narrow = replace(tighter, sampling=replace(tighter.sampling, top_n_sigma=0.0))
        if (
            abs(shaped[token] - limit) < noise
            or narrow.pick(narrow.survivors(fewer, position), position) != token
        ):
            return True
        shaped = np.where(shaped >= limit - noise, shaped, np.float32(-np.inf))
    kept = replace(sampler, sampling=limits_of(s, noise)).survivors(shaped, position).logits
    least, most = np.float64(kept.min()) - noise, np.float64(kept.max()) + noise
    rivals = np.flatnonzero((shaped >= least) & (shaped <= most))
    return sampler.pick(Candidates(rivals, lower[rivals]), position) != token


def scaled_noise(s: Sampling, noise: float) -> float:
    """Return the noise behind the penalties, which scale it.

    The standard deviation of top-n-sigma changes with it, too.
    """
    return noise * max(s.repeat_penalty, 1 / s.repeat_penalty) * (1 + s.top_n_sigma)


def limits_of(s: Sampling, slack: float) -> Sampling:
    """Return the options with filter limits moved by the effect of logit changes of `slack`.

    A positive slack keeps more tokens, and a negative one keeps fewer. A positive slack also
    switches top-n-sigma off.

    Consider a set of tokens with share a. If all of them rise by slack / 2 and all others fall by
    as much, the share grows by less than slack / 4. The limit of min-p depends only on a token's
    distance from the best one. For a negative slack it is therefore sufficient that the token
    itself is lower.
    """
    top_p = s.top_p if s.top_p == 1 else min(1.0, max(1e-9, s.top_p + slack / 4))
    typical_p = s.typical_p if s.typical_p == 1 else min(1.0, max(1e-9, s.typical_p + slack))
    if slack < 0:
        return replace(s, top_p=top_p, typical_p=typical_p)
    return replace(
        s, top_p=top_p, typical_p=typical_p, min_p=s.min_p * math.exp(-slack), top_n_sigma=0.0
    )
