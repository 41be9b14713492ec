"""The filters and the seeded choice without what makes them fast: what the fast code must give, bit for bit."""

from __future__ import annotations

import numpy as np

from gguf_spec.arrays import exp, total
from gguf_spec.errors import NoTokenLeftError
from gguf_spec.sampling.chain import Candidates, Sampler, typical, xtc
from gguf_spec.sampling.rng import AT_ONCE, FEW, LEAST_WEIGHT, SeededRng, hash32


class OldRng(SeededRng):
    def pick(self, ids, logits, temperature, position):
        """Return an index into `ids`, drawn by norm(exp(logits / temperature)), always the same for the same arguments."""
        few = (
            self.contenders(ids, logits, temperature, position)
            if len(ids) > FEW
            else np.arange(len(ids))
        )
        scores = (logits[few].astype(np.float64) - logits.max()) / temperature
        return int(few[np.argmax(scores + self.gumbel(ids[few], position, fixed=True))])

    def contenders(self, ids, logits, temperature, position):
        """Return the indices of all that can win: with E = -log(1 - u) >= u, argmax(score + g) is argmin(E / exp(score)).

        The first 32 bits bound u from below, in single precision; a thousandth is more than rounding can hide.
        """
        keys, best, least = (
            self.keys_at(position),
            logits.max(),
            np.empty(len(ids), dtype=np.float32),
        )
        for i in range(0, len(ids), AT_ONCE):
            part = slice(i, i + AT_ONCE)
            with np.errstate(over="ignore"):  # far below the best is far enough
                weight = np.exp(
                    ((logits[part] - best) / temperature).astype(np.float32, copy=False)
                )
            np.maximum(weight, LEAST_WEIGHT, out=weight)
            np.divide(
                hash32(ids[part].astype(np.uint32), keys[0], keys[1]),
                weight,
                out=least[part],
                dtype=np.float32,
                casting="same_kind",
            )
        first = least.argmin()
        weight_of_first = max(np.exp((float(logits[first]) - best) / temperature), LEAST_WEIGHT)
        race = np.exp(-self.gumbel(ids[first : first + 1], position)[0]) * 2.0**32 / weight_of_first
        return np.flatnonzero(least <= race * 1.001)


class OldSampler(Sampler):
    def survivors(self, logits, position):
        """Filter shaped logits: top-n-sigma, top-k, typical-p, top-p, min-p, XTC. Up to ties, what is left is all tokens between two logits."""
        s, n_vocab = self.sampling, len(logits)
        best = logits.max()
        if not np.isfinite(best):
            raise NoTokenLeftError
        if s.greedy:
            return Candidates(np.array([np.argmax(logits)]), np.zeros(1))
        if (
            s.top_n_sigma
        ):  # ours, like all that looks at whole rows: llama.cpp would want 12 bytes a token
            logits = np.where(logits >= self.sigma_limit(logits), logits, np.float32(-np.inf))
        mass, ids = None, np.arange(n_vocab)
        if 0 < s.top_k < n_vocab:
            ids = largest(logits, s.top_k)
        elif s.top_p < 1 and s.typical_p == 1:
            mass = total(exp(logits.astype(np.float64) - best))
        kept = logits if len(ids) == n_vocab else logits[ids].astype(np.float64)
        if kept.min() == -np.inf:
            ids, kept = ids[kept > -np.inf], kept[kept > -np.inf]
        if s.typical_p < 1:
            some = typical(kept.astype(np.float64), s.typical_p)
            ids, kept = ids[some], kept[some]
        if s.top_p < 1:
            ids, kept = _nucleus(ids, kept.astype(np.float64), best, mass, s.top_p)
        if s.min_p > 0:
            within = kept >= kept.max() + np.log(s.min_p)
            ids, kept = ids[within], kept[within]
        if s.xtc_probability > 0 and self.rng.coin(position) <= s.xtc_probability:
            some = xtc(kept.astype(np.float64), s.xtc_threshold if s.xtc_threshold <= 0.5 else 2)
            ids, kept = ids[some], kept[some]
        return Candidates(ids, kept)


def largest(logits, n):
    """Return the indices of the `n` largest, ascending; of equal ones the lowest."""
    return np.sort(np.argsort(-logits, kind="stable")[:n])


def _nucleus(ids, kept, best, mass, top_p):
    """Return the smallest set of likeliest tokens that reaches `top_p` of a mass, which is their own where it is not given."""
    order = np.argsort(-kept, kind="stable")
    reached = np.cumsum(exp(kept[order] - best))
    n = int(np.searchsorted(reached, top_p * (mass or reached[-1]), side="left")) + 1
    return ids[order[:n]], kept[order[:n]]
