"""Logits to probabilities: the one chain that target rows and draft rows go through, in llama.cpp's order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..arrays import Ids, Logits
from ..errors import NoTokenLeftError
from ..options import Sampling
from ..results import TokenLogprob
from .rng import Rng, all_ids

_OUT_OF_SIGHT = 1e4  # a logit so far below the best is a penalty or a ban, not the model's
_QUICKLY_SORTED = 1024  # numbers whose order a stable sort finds quickly enough
COLDEST = 1e-30  # colder than that is no different, and would overflow


class Distribution(NamedTuple):
    """Probabilities of the tokens that survived the filters; all others have none.

    Attributes:
        ids: Token ids, ascending, shape `(n,)`.
        probs: Their probabilities, shape `(n,)`, each above 0, sum 1.
    """

    ids: Ids
    probs: NDArray[np.float64]

    def prob(self, token: int) -> float:
        """Return the probability of one token."""
        i = int(np.searchsorted(self.ids, token))
        return float(self.probs[i]) if i < len(self.ids) and self.ids[i] == token else 0.0


class Candidates(NamedTuple):
    """The tokens that survived the filters, in any order.

    Attributes:
        ids: Token ids, shape `(n,)`.
        logits: Their logits after bias and penalties, before the temperature, shape `(n,)`.
    """

    ids: Ids
    logits: NDArray[np.floating]


class Grammar(Protocol):
    """What may come next; `gguf_spec.grammar.token_grammar.Grammar` is one."""

    def possible(self, history: Sequence[int]) -> NDArray[np.bool_]:
        """Return a superset of what may follow, shape `(V,)`, quickly."""

    def allowed(self, history: Sequence[int], ids: Ids) -> NDArray[np.bool_]:
        """Return which of `ids` may follow."""


class Filters(NamedTuple):
    """The parts of a chain that need the model's vocabulary, made for one request.

    Attributes:
        dry: History -> ids, and what is taken off their logits.
        grammar: What may come next.
        ends: Ids that end a generation, for `ignore_eos` and grammars.
        penalise_from: Penalties look at the history from this position on.
    """

    dry: Callable[[Sequence[int]], tuple[Ids, NDArray[np.float64]]] | None = None
    grammar: Grammar | None = None
    ends: Ids = np.zeros(0, dtype=np.int64)
    penalise_from: int = 0


NO_FILTERS = Filters()


@dataclass(frozen=True)
class CompatSampling(Sampling):
    """Sampling as llama-cpp-python does it: penalties look at the answer only, and bytes that are not UTF-8 are left out of the text."""


@dataclass(frozen=True)
class Sampler:
    """The chain and the random choices of one generation."""

    sampling: Sampling
    rng: Rng
    filters: Filters = NO_FILTERS

    def distribution(self, logits: Logits, history: Sequence[int]) -> Distribution:
        """Return the law of the next token.

        Args:
            logits: Shape `(V,)`; not changed.
            history: All token ids before this one, prompt and draft included.

        Raises:
            NoTokenLeftError: No logit is a finite number.
        """
        ids, kept = self.candidates(logits, history)
        if len(ids) == 1:
            return Distribution(ids, np.ones(1))
        kept = kept.astype(np.float64)
        probs = np.exp((kept - kept.max()) / max(self.sampling.temperature, COLDEST))
        alive = probs > 0
        if not alive.all():
            ids, probs = ids[alive], probs[alive]
        probs /= probs.sum()
        if (
            ids[1:] < ids[:-1]
        ).any():  # what was filtered may be in any order, a whole vocabulary is not worth sorting
            order = np.argsort(ids)
            ids, probs = ids[order], probs[order]
        return Distribution(ids, probs)

    def token(self, logits: Logits, history: Sequence[int]) -> int:
        """Return the next token, drawn from the law by the noise of its position: whoever asks again gets the same.

        Raises:
            NoTokenLeftError: No logit is a finite number.
        """
        return self.pick(self.candidates(logits, history), len(history))

    def pick(self, candidates: Candidates, position: int) -> int:
        """Return one of the candidates by the noise of a position."""
        ids, logits = candidates
        if len(ids) == 1:
            return int(ids[0])
        return int(
            ids[self.rng.pick(ids, logits, max(self.sampling.temperature, COLDEST), position)]
        )

    def draw(self, distribution: Distribution) -> int:
        """Return a token id drawn from `distribution`, by the next of the random choices."""
        return int(distribution.ids[self.rng.choose(distribution.probs)])

    def candidates(self, logits: Logits, history: Sequence[int]) -> Candidates:
        """Return the tokens that survive the filters; one where the choice is greedy.

        Raises:
            NoTokenLeftError: No logit is a finite number.
        """
        return self.survivors(self.shaped(logits, history), len(history))

    def shaped(self, logits: Logits, history: Sequence[int]) -> Logits:
        """Return the logits after bias, penalties, DRY, `ignore_eos` and grammar. The caller must not change them."""
        s, row = self.sampling, logits
        logits = _penalise(
            _bias(logits, s),
            history[self.filters.penalise_from :] if self.filters.penalise_from else history,
            s,
        )
        if self.filters.dry:
            ids, penalties = self.filters.dry(history)
            within = ids < len(logits)  # a draft may have fewer tokens than its target
            logits = logits.copy()
            logits[ids[within]] -= penalties[within]
        ends = self.filters.ends[self.filters.ends < len(logits)]
        if s.ignore_eos:
            logits = logits.copy()
            logits[ends] = -np.inf
        if self.filters.grammar:
            masked = _mask(logits, history, self.filters.grammar, self._n_needed(len(logits)))
            if masked.max() > -np.inf:
                return masked
            # The grammar is at its end: where `ignore_eos` or a bias forbid the ends, they are all that is left to say.
            logits = np.full_like(row, -np.inf)
            logits[ends[self.filters.grammar.allowed(history, ends)]] = 0
        return logits

    def survivors(self, logits: Logits, position: int) -> Candidates:
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
        total = None
        if 0 < s.top_k < n_vocab:
            ids = largest(logits, s.top_k)
        elif s.top_p < 1 and s.typical_p == 1:
            ids, total = _nucleus_superset(logits, best, s.top_p)
        else:
            ids = all_ids(n_vocab)
        kept: NDArray[np.floating] = (
            logits if len(ids) == n_vocab else logits[ids].astype(np.float64)
        )
        if kept.min() == -np.inf:
            alive = np.flatnonzero(kept > -np.inf)
            ids, kept = alive if len(ids) == n_vocab else ids[alive], kept[alive]
        if s.typical_p < 1:
            ids = _llama().typical(ids, kept.astype(np.float64), s.typical_p)
            kept = logits[ids].astype(np.float64)
        if s.top_p < 1:
            ids, kept = _nucleus(ids, kept.astype(np.float64), best, total, s.top_p)
        if s.min_p > 0:
            within = kept >= kept.max() + np.log(s.min_p)
            ids, kept = ids[within], kept[within]
        if s.xtc_probability > 0:
            ids = _llama().xtc(
                ids,
                kept.astype(np.float64),
                s.xtc_probability,
                s.xtc_threshold,
                self.rng.coin(position),
            )
            kept = logits[ids].astype(np.float64)
        return Candidates(ids, kept)

    def sigma_limit(self, logits: Logits) -> float:
        """Return the lowest logit that top-n-sigma keeps."""
        best = logits.max()
        return float(
            best
            - self.sampling.top_n_sigma
            * np.std(logits, where=logits > best - _OUT_OF_SIGHT, dtype=np.float64)
        )

    def _n_needed(self, n_vocab: int) -> int:
        """Return how many of the best allowed tokens the filters may look at, with some to spare for near ties."""
        s = self.sampling
        if s.greedy:
            return 2
        return s.top_k + 8 if 0 < s.top_k < n_vocab and not s.top_n_sigma else n_vocab


def logprob(logits: Logits, token: int, n_top: int) -> TokenLogprob:
    """Return how likely a row finds a token, and its `n_top` likeliest tokens; of equal ones the lower id comes first.

    Tokens that cannot come at all are not among the likeliest, and have the lowest finite logarithm.
    """
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    top = largest(logits, min(n_top, len(logits))) if n_top else np.zeros(0, dtype=np.int64)
    top = top[np.lexsort((top, -logits[top]))]
    lowest = np.finfo(np.float32).min
    return TokenLogprob(
        token,
        max(float(wide[token]), float(lowest)),
        tuple((int(i), float(wide[i])) for i in top if wide[i] > -np.inf),
    )


def _llama() -> ModuleType:
    from ..llama import samplers  # llama.cpp's own where it has a sampler and speed does not matter

    return samplers


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
    if (
        s.repeat_penalty == 1 and s.frequency_penalty == 0 and s.presence_penalty == 0
    ) or s.penalty_last_n == 0:
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


def _mask(logits: Logits, history: Sequence[int], grammar: Grammar, n_needed: int) -> Logits:
    """Return the logits with -inf for all that the grammar forbids; of what it allows only the best are sought, at least `n_needed`."""
    reachable = np.where(grammar.possible(history)[: len(logits)], logits, np.float32(-np.inf))
    n = 2 * n_needed + 50
    while True:
        ids = largest(reachable, min(n, len(logits)))
        ids = ids[reachable[ids] > -np.inf]
        ids_allowed = ids[grammar.allowed(history, ids)]
        if len(ids_allowed) >= n_needed or len(ids) < n:
            break
        n *= 8
    masked = np.full_like(logits, -np.inf)
    masked[ids_allowed] = logits[ids_allowed]
    return masked


def largest(logits: Logits, n: int) -> Ids:
    """Return the indices of the `n` largest, in any order."""
    ids, n_lanes = None, 64
    width = len(logits) // n_lanes
    if 2 * n < width:
        # The n-th largest of many maxima bounds the n-th largest of all from below: spares a partition of the whole row.
        maxima = logits[: n_lanes * width].reshape(n_lanes, width).max(axis=0)
        ids = np.flatnonzero(logits >= np.partition(maxima, width - n)[width - n])
        logits = logits[ids]
    best = np.argpartition(logits, len(logits) - n)[len(logits) - n :]
    return best if ids is None else ids[best]


def _nucleus_superset(logits: Logits, best: np.floating, top_p: float) -> tuple[Ids, float]:
    """Return ids that hold the nucleus, and the mass of all tokens relative to the likeliest: spares the sort of a whole vocabulary."""
    relative = logits - best
    np.exp(relative, out=relative)
    total, least = float(relative.sum()), np.float32(2.0**-7)
    while least > 1e-12:
        ids = np.flatnonzero(relative >= least)
        if relative[ids].sum() >= top_p * total:
            return ids, total
        least /= 64
    return all_ids(len(logits)), total


def _nucleus(
    ids: Ids, kept: NDArray[np.float64], best: np.floating, total: float | None, top_p: float
) -> tuple[Ids, NDArray[np.float64]]:
    """Return the smallest set of likeliest tokens that reaches `top_p` of `total`, which is their own mass where it is not given."""
    order = _descending(kept)
    reached = np.cumsum(np.exp(kept[order] - best))
    n = int(np.searchsorted(reached, top_p * (total or reached[-1]), side="left")) + 1
    return ids[order[:n]], kept[order[:n]]


def _descending(values: NDArray[np.float64]) -> Ids:
    """Return the indices of `values` from the largest to the smallest; of equal ones the lower index comes first."""
    narrow = values.astype(np.float32)
    if len(values) <= _QUICKLY_SORTED or (narrow != values).any():
        return np.argsort(-values, kind="stable")
    # Sorting unsigned integers is several times faster than a stable sort: the upper 32 bits order the values, the lower ones are the index.
    bits = (np.float32(0) - narrow).view(np.uint32)
    bits ^= np.where(bits >> np.uint32(31), np.uint32(0xFFFFFFFF), np.uint32(0x80000000))
    keys = (bits.astype(np.uint64) << np.uint64(32)) | np.arange(len(values), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
