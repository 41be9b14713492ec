"""Logits to probabilities: the one chain that target rows and draft rows go through, in llama.cpp's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._rng import Rng
from ._types import Sampling
from .errors import NoTokenLeftError

Logits = NDArray[np.float32]


class Distribution(NamedTuple):
    """Probabilities of the tokens that survived the filters; all others have none.

    Attributes:
        ids: Token ids, ascending, shape `(n,)`.
        probs: Their probabilities, shape `(n,)`, each above 0, sum 1.
    """

    ids: NDArray[np.int64]
    probs: NDArray[np.float64]

    def prob(self, token: int) -> float:
        """Return the probability of one token."""
        i = int(np.searchsorted(self.ids, token))
        return float(self.probs[i]) if i < len(self.ids) and self.ids[i] == token else 0.0


@dataclass(frozen=True)
class Sampler:
    """The chain and the random choices of one generation."""

    sampling: Sampling
    rng: Rng

    def distribution(self, logits: Logits, history: Sequence[int]) -> Distribution:
        """Return the law of the next token.

        Args:
            logits: Shape `(V,)`; not changed.
            history: All token ids before this one, prompt and draft included, for the penalties.

        Raises:
            NoTokenLeftError: No logit is a finite number.
        """
        s = self.sampling
        logits = _penalise(_bias(logits, s), history, s)
        if s.greedy:
            best = int(np.argmax(logits))
            _check_finite(logits[best])
            return Distribution(np.array([best]), np.ones(1))
        ids, kept = _filter(logits, s)
        scaled = (kept - kept.max()) / s.temperature
        probs = np.exp(scaled)
        alive = probs > 0
        if not alive.all():
            ids, probs = ids[alive], probs[alive]
        probs /= probs.sum()
        if (ids[1:] < ids[:-1]).any():  # what was filtered may be in any order, a whole vocabulary is not worth sorting
            order = np.argsort(ids)
            ids, probs = ids[order], probs[order]
        return Distribution(ids, probs)

    def draw(self, law: Distribution) -> int:
        """Return a token id drawn from `law`."""
        return int(law.ids[self.rng.choose(law.probs)])


def _check_finite(best: np.floating) -> None:
    if not np.isfinite(best):
        raise NoTokenLeftError


def _bias(logits: Logits, s: Sampling) -> Logits:
    if not s.logit_bias:
        return logits
    logits = logits.copy()
    for token, bias in s.logit_bias.items():
        if token < len(logits):
            logits[token] += bias
    return logits


def _penalise(logits: Logits, history: Sequence[int], s: Sampling) -> Logits:
    """Lower the logits of tokens seen in the last `penalty_last_n` places."""
    if (s.repeat_penalty == 1 and s.frequency_penalty == 0 and s.presence_penalty == 0) or s.penalty_last_n == 0:
        return logits
    last = history if s.penalty_last_n < 0 else history[-s.penalty_last_n :]
    seen, counts = np.unique(np.asarray(last, dtype=np.int64), return_counts=True)
    within = seen < len(logits)  # a draft may have fewer tokens than its target
    seen, counts = seen[within], counts[within]
    logits = logits.copy()
    old = logits[seen]
    new = np.where(old > 0, old / s.repeat_penalty, old * s.repeat_penalty)
    logits[seen] = new - counts * s.frequency_penalty - s.presence_penalty
    return logits


def _filter(logits: Logits, s: Sampling) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return ids and logits that survive top-k, top-p and min-p, in any order."""
    n_vocab = len(logits)
    best = logits.max()
    _check_finite(best)
    if 0 < s.top_k < n_vocab:
        ids = _largest(logits, s.top_k)
        total = float(np.exp(logits[ids].astype(np.float64) - best).sum())
    elif s.top_p < 1:
        ids, total = _nucleus_superset(logits, best, s.top_p)
    else:
        ids, total = np.arange(n_vocab), 1.0
    kept = logits[ids].astype(np.float64)
    if s.top_p < 1:
        order = np.argsort(-kept, kind="stable")
        reached = np.cumsum(np.exp(kept[order] - best)) / total
        n = int(np.searchsorted(reached, s.top_p, side="left")) + 1
        ids, kept = ids[order[:n]], kept[order[:n]]
    if s.min_p > 0:
        within = kept >= best + np.log(s.min_p)
        ids, kept = ids[within], kept[within]
    return ids, kept


def _largest(logits: Logits, n: int) -> NDArray[np.int64]:
    return np.argpartition(logits, len(logits) - n)[len(logits) - n :]


def _nucleus_superset(logits: Logits, best: np.floating, top_p: float) -> tuple[NDArray[np.int64], float]:
    """Return ids that hold the nucleus, and the mass of all tokens relative to the likeliest: spares the sort of a whole vocabulary."""
    relative = np.exp(logits.astype(np.float64) - best)
    total, n = float(relative.sum()), 512
    while n < len(logits):
        ids = _largest(logits, n)
        if relative[ids].sum() / total >= top_p:
            return ids, total
        n *= 8
    return np.arange(len(logits)), total
