"""Sampling chain: logits to probabilities for target rows and draft rows, in llama.cpp's order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..arrays import CLEAR, Floats, Ids, Logits, exp, log, total
from ..errors import NoTokenLeftError
from ..options import Sampling
from ..results import TokenLogprob
from .rng import SeededRng, all_ids

if TYPE_CHECKING:
    from ..grammar.token_grammar import Grammar

# Distance below the best logit from which a logit is a penalty or a ban, not the model's value, in
# logits.
_OUT_OF_SIGHT = 1e4
# Largest number of values that a stable sort orders fast enough.
_QUICKLY_SORTED = 1024
# Logit relative to the best one from which a token counts in typical-p: its share is far from 0.
_FAINT = -70.0
# XTC has no effect above this threshold: two tokens cannot have it.
MOST_XTC = 0.5
# Lowest temperature in use: a lower one has the same effect and would overflow.
COLDEST = 1e-30


def largest(logits: Logits, n: int) -> Ids:
    """Return the indices of the `n` largest logits, ascending; of equal ones the lowest indices."""
    ids, n_lanes = None, 64
    width = len(logits) // n_lanes
    if 2 * n < width:
        # The n-th largest of many maxima is a lower bound of the n-th largest logit. This avoids a
        # partition of the whole row.
        maxima = logits[: n_lanes * width].reshape(n_lanes, width).max(axis=0)
        ids = np.flatnonzero(logits >= np.partition(maxima, width - n)[width - n])
        logits = logits[ids]
    if n < len(logits):
        least = np.partition(logits, len(logits) - n)[len(logits) - n]
        found = np.flatnonzero(logits >= least)
        if len(found) > n:
            equal = np.flatnonzero(logits[found] == least)
            found = np.delete(found, equal[n - len(found) :])
    else:
        found = all_ids(len(logits))
    return found if ids is None else ids[found]


class Reasoning(Protocol):
    """Protocol of the reasoning before an answer; `text.reasoning.Thinking` implements it.

    All results depend only on the history.
    """

    def forced(self, history: Sequence[int]) -> int | None:
        """Return the only token that may follow; None if the token is free."""

    def is_answer(self, history: Sequence[int]) -> bool:
        """Return whether the next token belongs to the answer."""

    def answer(self, history: Sequence[int]) -> list[int]:
        """Return the history without the reasoning."""

    def forbidden(self, history: Sequence[int]) -> Sequence[int]:
        """Return the tokens that may not end the reasoning if a grammar follows."""


def mask(
    logits: Logits, history: Sequence[int], grammar: Grammar, n_needed: int, slack: float = 0.0
) -> Logits:
    """Return the logits with -inf for all tokens that the grammar forbids.

    Where the grammar has no mask at once, only the best of the allowed tokens are kept: at least
    `n_needed` if there are as many, and all that are at most `slack` below the last one of these.
    """
    known = grammar.mask(history)
    if known is not None:
        bits = np.frombuffer(known, np.uint8)
        is_allowed = np.unpackbits(bits, bitorder="little")[: len(logits)].view(np.bool_)
        return np.where(is_allowed & (logits > -np.inf), logits, np.float32(-np.inf))
    reachable = np.flatnonzero(grammar.possible(history)[: len(logits)] & (logits > -np.inf))
    row, n = logits[reachable], 2 * n_needed + 50
    while True:
        ids = reachable[largest(row, n)] if n < len(row) else reachable
        ids_allowed = ids[grammar.allowed(history, ids)]
        if len(ids) < n or _is_enough(logits[ids], logits[ids_allowed], n_needed, slack):
            break
        n *= 8
    masked = np.full_like(logits, -np.inf)
    masked[ids_allowed] = logits[ids_allowed]
    return masked


def _is_enough(asked: Logits, allowed: Logits, n_needed: int, slack: float) -> bool:
    """Return whether no logit behind the ones that were asked for is needed."""
    n = len(allowed)
    if n < n_needed or not slack:
        return n >= n_needed
    return float(asked.min()) < float(np.partition(allowed, n - n_needed)[n - n_needed]) - slack


def only(logits: Logits, ids: Ids | Sequence[int]) -> Logits:
    """Return a row in which only some tokens are possible, all with the logit 0.

    A draft model may have a smaller vocabulary than its target; its row is then empty.
    """
    row = np.full_like(logits, -np.inf)
    row[_within(logits, ids)] = 0
    return row


def without(logits: Logits, ids: Ids | Sequence[int]) -> Logits:
    """Return a row in which some tokens are forbidden."""
    row: Logits = logits.copy()
    row[_within(logits, ids)] = -np.inf
    return row


def _within(logits: Logits, ids: Ids | Sequence[int]) -> Ids:
    found = np.asarray(ids, dtype=np.int64)
    return found[found < len(logits)]


class Distribution(NamedTuple):
    """Probabilities of the tokens that passed the filters; all others have probability 0.

    Attributes:
        ids: Token ids, ascending, shape `(n,)`.
        probs: Their probabilities, shape `(n,)`, each above 0, sum 1.
    """

    ids: Ids
    probs: NDArray[np.float64]

    def prob(self, token: int) -> float:
        i = int(np.searchsorted(self.ids, token))
        return float(self.probs[i]) if i < len(self.ids) and self.ids[i] == token else 0.0


class Candidates(NamedTuple):
    """Tokens that passed the filters, in any order.

    Attributes:
        ids: Token ids, shape `(n,)`.
        logits: Their logits after bias and penalties, before the temperature, shape `(n,)`.
    """

    ids: Ids
    logits: NDArray[np.floating]


Penalties = Callable[[Sequence[int]], tuple[Ids, NDArray[np.float64]]]
"""History -> ids, and what is subtracted from their logits."""


class Filters(NamedTuple):
    """Parts of a chain that need the model's vocabulary, made for one request.

    Attributes:
        dry: The penalties of DRY.
        grammar: Grammar of the answer, or None.
        ends: Ids that end a generation, for `ignore_eos` and grammars.
        penalise_from: First position of the history that penalties consider.
        reasoning: Reasoning before the answer, if it has a token budget or a grammar follows it.
        infill: Ids and their logits -> the ids that llama.cpp's sampler `infill` keeps.
    """

    dry: Penalties | None = None
    grammar: Grammar | None = None
    ends: Ids = np.zeros(0, dtype=np.int64)
    penalise_from: int = 0
    reasoning: Reasoning | None = None
    infill: Callable[[Ids, NDArray[np.float64]], Ids] | None = None


# Filters of a request without options that need the vocabulary.
NO_FILTERS = Filters()


@dataclass(frozen=True)
class CompatSampling(Sampling):
    """Sampling with the behaviour of llama-cpp-python.

    Penalties consider the answer only, and bytes that are not valid UTF-8 are left out of the text.
    """


@dataclass(frozen=True)
class Sampler:
    """Chain and random choices of one generation."""

    sampling: Sampling
    rng: SeededRng
    filters: Filters = NO_FILTERS

    def distribution(self, logits: Logits, history: Sequence[int]) -> Distribution:
        """Return the distribution of the next token.

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
        probs = exp((kept - kept.max()) / max(self.sampling.temperature, COLDEST))
        alive = probs > 0
        if not alive.all():
            ids, probs = ids[alive], probs[alive]
        probs /= total(probs)
        # Filtered tokens may be in any order; a whole vocabulary is in order and needs no sort.
        if (ids[1:] < ids[:-1]).any():
            order = np.argsort(ids)
            ids, probs = ids[order], probs[order]
        return Distribution(ids, probs)

    def token(self, logits: Logits, history: Sequence[int]) -> int:
        """Return the next token, drawn with the noise of its position.

        The result is the same for each call with the same arguments.

        Raises:
            NoTokenLeftError: No logit is a finite number.
        """
        return self.pick(self.candidates(logits, history), len(history))

    def pick(self, candidates: Candidates, position: int) -> int:
        """Return one of the candidates, drawn with the noise of a position."""
        ids, logits = candidates
        if len(ids) == 1:
            return int(ids[0])
        return int(
            ids[self.rng.pick(ids, logits, max(self.sampling.temperature, COLDEST), position)]
        )

    def draw(self, distribution: Distribution) -> int:
        """Return a token id drawn from `distribution` with the next number of the sequence."""
        return int(distribution.ids[self.rng.choose(distribution.probs)])

    def candidates(self, logits: Logits, history: Sequence[int]) -> Candidates:
        """Return the tokens that pass the filters; exactly one if the choice is greedy.

        Raises:
            NoTokenLeftError: No logit is a finite number.
        """
        return self.survivors(self.shaped(logits, history), len(history))

    def shaped(self, logits: Logits, history: Sequence[int], slack: float = 0.0) -> Logits:
        """Return the logits after bias, penalties, DRY, `ignore_eos`, reasoning and grammar.

        The caller must not change them. Tokens that a grammar allows may be missing if the filters
        do not use them, also if each logit is `slack` higher or lower.
        """
        s, row, reasoning = self.sampling, logits, self.filters.reasoning
        forced = reasoning.forced(history) if reasoning else None
        if forced is not None:
            return only(logits, [forced])
        logits = _penalise(
            _bias(logits, s),
            history[self.filters.penalise_from :] if self.filters.penalise_from else history,
            s,
        )
        if self.filters.dry:
            ids, penalties = self.filters.dry(history)
            # A draft model may have a smaller vocabulary than its target.
            within = ids < len(logits)
            logits = logits.copy()
            logits[ids[within]] -= penalties[within]
        ends = self.filters.ends[self.filters.ends < len(logits)]
        if s.ignore_eos:
            logits = logits.copy()
            logits[ends] = -np.inf
        grammar = self.filters.grammar
        if grammar is None:
            return logits
        if reasoning and not reasoning.is_answer(history):
            return without(logits, [*ends, *reasoning.forbidden(history)])
        history = reasoning.answer(history) if reasoning else history
        masked = mask(logits, history, grammar, self._n_needed(len(logits)), slack)
        if masked.max() > -np.inf:
            return masked
        # The grammar is complete. Where `ignore_eos` or a bias forbids the end tokens, they are
        # the only tokens left.
        return only(row, ends[grammar.allowed(history, ends)])

    def survivors(self, logits: Logits, position: int) -> Candidates:
        """Filter shaped logits: top-n-sigma, top-k, typical-p, top-p, min-p, XTC, infill.

        Except for ties, and without infill, the result is the set of all tokens between two logits.
        """
        s, n_vocab = self.sampling, len(logits)
        best = logits.max()
        if not np.isfinite(best):
            raise NoTokenLeftError
        if s.greedy:
            return Candidates(np.array([np.argmax(logits)]), np.zeros(1))
        if s.top_n_sigma:
            logits = np.where(logits >= self.sigma_limit(logits), logits, np.float32(-np.inf))
        whole = None
        if 0 < s.top_k < n_vocab:
            ids = largest(logits, s.top_k)
        elif s.top_p < 1 and s.typical_p == 1:
            whole = logits.astype(np.float64) - best
            ids = _nucleus_superset(whole, s.top_p)
        else:
            ids = all_ids(n_vocab)
        kept: NDArray[np.floating] = (
            logits if len(ids) == n_vocab else logits[ids].astype(np.float64)
        )
        if kept.min() == -np.inf:
            alive = np.flatnonzero(kept > -np.inf)
            ids, kept = alive if len(ids) == n_vocab else ids[alive], kept[alive]
        if s.typical_p < 1:
            some = typical(kept.astype(np.float64), s.typical_p)
            ids, kept = ids[some], kept[some]
        if s.top_p < 1:
            ids, kept = _nucleus(ids, kept.astype(np.float64), best, whole, s.top_p)
        if s.min_p > 0:
            within = kept >= kept.max() + np.log(s.min_p)
            ids, kept = ids[within], kept[within]
        return self._last_filters(logits, Candidates(ids, kept), position)

    def _last_filters(self, logits: Logits, left: Candidates, position: int) -> Candidates:
        """Filter what is left of shaped logits, shape `(V,)`: XTC, infill."""
        s, (ids, kept) = self.sampling, left
        if 0 < s.xtc_probability >= self.rng.coin(position) and s.xtc_threshold <= MOST_XTC:
            stays = xtc(kept.astype(np.float64), s.xtc_threshold)
            ids, kept = ids[stays], kept[stays]
        if self.filters.infill:
            some = self.filters.infill(ids, kept.astype(np.float64))
            some = some[some < len(logits)]  # a draft model may have a smaller vocabulary
            some = some[logits[some] > -np.inf]
            if len(some):
                ids, kept = some, logits[some].astype(np.float64)
        return Candidates(ids, kept)

    def sigma_limit(self, logits: Logits) -> float:
        """Return the lowest logit that top-n-sigma keeps."""
        best = logits.max()
        alive = logits[logits >= best - np.float32(_OUT_OF_SIGHT)].astype(np.float64)
        alive -= total(alive) / len(alive)
        variance = total(alive * alive) / len(alive)
        return float(best) - self.sampling.top_n_sigma * math.sqrt(variance)

    def _n_needed(self, n_vocab: int) -> int:
        """Return how many of the best allowed tokens the filters may use, and one more."""
        s = self.sampling
        if s.greedy:
            return 2
        return s.top_k + 1 if 0 < s.top_k < n_vocab and not s.top_n_sigma else n_vocab


def logprob(logits: Logits, token: int, n_top: int) -> TokenLogprob:
    """Return the log-probability of a token, and the `n_top` likeliest tokens of the row.

    Of equally likely tokens the lower id comes first. Tokens of probability 0 are not among the
    likeliest. The log-probability of such a token is the lowest finite number.

    Args:
        logits: The row, shape `(V,)`.
    """
    best = logits.max()
    if not np.isfinite(best):  # an option forbids the token with that logit
        return TokenLogprob(token, math.nan, ())
    wide = logits.astype(np.float64)
    wide -= best
    wide -= log([total(exp(wide))])
    top = largest(logits, min(n_top, len(logits))) if n_top else np.zeros(0, dtype=np.int64)
    top = top[np.lexsort((top, -logits[top]))]
    lowest = np.finfo(np.float32).min
    return TokenLogprob(
        token,
        max(float(wide[token]), float(lowest)),
        tuple((int(i), float(wide[i])) for i in top if wide[i] > -np.inf),
    )


def typical(logits: Floats, p: float) -> Ids:
    """Return the indices that locally typical sampling keeps (arXiv:2202.00666), ascending.

    These are the fewest tokens with more than `p` of the mass, those first whose surprisal is
    nearest to the entropy: whose logit is nearest to the mean, each logit weighted by its
    probability. Of equally near ones the lower index comes first.

    Args:
        logits: Finite logits, shape `(n,)`, n >= 1.
    """
    relative = logits - logits.max()
    some = np.flatnonzero(relative >= _FAINT)
    relative = relative[some]
    masses = exp(relative)
    whole = total(masses)
    distances = np.abs(relative - total(masses * relative) / whole)
    order = np.argsort(distances, kind="stable")
    n = int(np.searchsorted(np.cumsum(masses[order]), p * whole, side="right"))
    return some[np.sort(order[: n + 1])]


def xtc(logits: Floats, threshold: float) -> NDArray[np.bool_]:
    """Return which tokens XTC keeps, shape `(n,)`.

    It removes those with at least `threshold` of the mass, but for the least likely of them, the
    last one of equal ones.

    Args:
        logits: Finite logits, shape `(n,)`, n >= 1.
    """
    masses = exp(logits - logits.max())
    stays = masses < threshold * total(masses)
    above = np.flatnonzero(~stays)
    if len(above):
        stays[above[len(above) - 1 - int(np.argmin(logits[above][::-1]))]] = True
    return stays


def _bias(logits: Logits, s: Sampling) -> Logits:
    if not s.logit_bias:
        return logits
    logits = logits.copy()
    for token, bias in s.logit_bias.items():
        if token < len(logits):
            logits[token] += bias
    return logits


def _penalise(logits: Logits, history: Sequence[int], s: Sampling) -> Logits:
    """Lower the logits of tokens among the last `penalty_last_n` ones."""
    if (
        s.repeat_penalty == 1 and s.frequency_penalty == 0 and s.presence_penalty == 0
    ) or s.penalty_last_n == 0:
        return logits
    last = history if s.penalty_last_n < 0 else history[-s.penalty_last_n :]
    seen, counts = np.unique(np.asarray(last, dtype=np.int64), return_counts=True)
    # A draft model may have a smaller vocabulary than its target.
    within = seen < len(logits)
    seen, counts = seen[within], counts[within]
    logits = logits.copy()
    old = logits[seen]
    new = np.where(old > 0, old / s.repeat_penalty, old * s.repeat_penalty)
    logits[seen] = new - counts * s.frequency_penalty - s.presence_penalty
    return logits


def _nucleus_superset(relative: Floats, top_p: float) -> Ids:
    """Return ids that include the nucleus, of logits relative to the best one.

    This avoids a sort of the whole vocabulary.
    """
    masses, least = np.exp(relative), 2.0**-7
    enough = top_p * float(masses.sum()) * (1 + CLEAR)
    while least > 1e-12:
        ids = np.flatnonzero(masses >= least)
        if masses[ids].sum() >= enough:
            return ids
        least /= 64
    return all_ids(len(relative))


def _nucleus(
    ids: Ids, kept: Floats, best: np.floating, whole: Floats | None, top_p: float
) -> tuple[Ids, Floats]:
    """Return the smallest set of likeliest tokens that reaches a share of the mass.

    Args:
        whole: All logits relative to the best one, whose mass counts; None for that of `kept`.
    """
    order = descending(kept)
    relative = kept[order] - best
    for fixed in (False, True):
        reached = np.cumsum(exp(relative) if fixed else np.exp(relative))
        mass = float(reached[-1])
        if whole is not None:
            mass = total(exp(whole)) if fixed else float(np.exp(whole).sum())
        n = int(np.searchsorted(reached, top_p * mass, side="left"))
        if (np.abs(reached[max(0, n - 1) : n + 1] - top_p * mass) > CLEAR * mass).all():
            break
    return ids[order[: n + 1]], kept[order[: n + 1]]


def descending(values: NDArray[np.float64]) -> Ids:
    """Return the indices of `values` in descending order; of equal values the lower index first."""
    narrow = values.astype(np.float32)
    if len(values) <= _QUICKLY_SORTED or (narrow != values).any():
        return np.argsort(-values, kind="stable")
    # Sorting unsigned integers is several times faster than a stable sort. The upper 32 bits order
    # the values, and the lower 32 bits are the index.
    bits = (np.float32(0) - narrow).view(np.uint32)
    bits ^= np.where(bits >> np.uint32(31), np.uint32(0xFFFFFFFF), np.uint32(0x80000000))
    keys = (bits.astype(np.uint64) << np.uint64(32)) | np.arange(len(values), dtype=np.uint64)
    keys.sort()
    order: NDArray[np.int64] = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return order
