"""Near ties: batches of different size run different kernels, so logits differ in the last digits, and a choice as close as that may flip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ._language_model import LanguageModel
from ._sampling import Candidates, Logits, Sampler
from ._types import Sampling

_RIVALS = 64  # best tokens of a row that are compared with the best one
_MARGIN = 2.0  # what a few rows show is not the most there can be


def measure_noise(target: LanguageModel, tokens: Sequence[int], k: int) -> float:
    """Return how far a logit's distance from the best one moves with the size of the batch, in logits; twice the most that was seen.

    Decodes `tokens` one at a time and again in batches of 2 and of k + 1. Leaves the cache empty.

    Args:
        target: The model.
        tokens: Some ids; two batches' worth are enough.
        k: Most tokens drafted in a round.
    """

    def rows(width: int) -> Logits:
        target.rollback(0)
        parts = [tokens[i : i + width] for i in range(0, len(tokens), width)]
        return np.concatenate([target.logits(part, len(part)).copy() for part in parts]).astype(np.float64)

    alone, worst = rows(1), 0.0
    best = np.argsort(-alone, axis=1)[:, :_RIVALS]
    for width in sorted({2, k + 1}):
        with np.errstate(invalid="ignore"):  # tokens that cannot come are at -inf in both
            moved = np.take_along_axis(rows(width) - alone, best, axis=1)
            moved = np.abs(moved - moved[:, :1])
        worst = max(worst, float(moved[np.isfinite(moved)].max(initial=0.0)))
    target.rollback(0)
    return _MARGIN * worst


def is_near_tie(sampler: Sampler, logits: Logits, history: Sequence[int], token: int, noise: float) -> bool:
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
    noise *= max(s.repeat_penalty, 1 / s.repeat_penalty) * (1 + s.top_n_sigma)  # penalties stretch it, and a sigma moves with it
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
    return replace(s, top_p=top_p, typical_p=typical_p, min_p=s.min_p * math.exp(-slack), top_n_sigma=0.0)
