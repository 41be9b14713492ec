"""Draft samplers: they choose the proposed token from a row of the draft model."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...arrays import Logits
from ...errors import NoTokenLeftError
from ...sampling.chain import COLDEST, Distribution, Sampler, largest

# Candidate temperatures of the draft, as multiples of the requested temperature.
_TEMPERATURES = np.array([0.05, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0, 1.15, 1.3])
# Candidates for reading a row, shape `(n, 2)`: temperature multiple, share of the logit correction.
CANDIDATES = np.array([(t, corrected) for corrected in (1.0, 0.0) for t in _TEMPERATURES])
# Index of the initial candidate: temperature multiple 0.9 with correction.
_AT_FIRST = 5
# Number of best tokens of a row that are considered. The target hardly ever emits a lower one.
_MOST = 64
# Number of observations of a token after which its correction is half of the observed difference.
_DOUBT = 3.0
# Factor on the statistics of a token each time that it is observed again.
_FORGET = 0.99
# Probability under one of the models from which a token has full weight.
_CLEAR = 0.02
# Largest correction from one observation, in logits.
_TOO_FAR = 3.0
# Bucket edges of the lead of the best token over the second, in logits.
_LEADS = (0.15, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.5, 7.5)
# Number of confidence buckets of the draft model.
N_CONFIDENCE_BUCKETS = len(_LEADS) + 1


class DraftToken(NamedTuple):
    """Token chosen from a row.

    Attributes:
        token: Its id.
        confidence: Bucket from 0, lowest, to `N_CONFIDENCE_BUCKETS` - 1.
        q: The distribution it was drawn from, if the acceptance rule needs it.
        second: The second-best token, or None.
    """

    token: int
    confidence: int
    q: Distribution | None = None
    second: int | None = None


class DraftSampler(Protocol):
    """Protocol for the choice of a token from a row of the draft model.

    Attributes:
        priors: Prior acceptance rate of each confidence bucket.
    """

    @property
    def priors(self) -> Sequence[float]:
        """Prior acceptance rate of each confidence bucket."""

    def token(self, row: Logits, history: Sequence[int]) -> DraftToken:
        """Return the chosen token.

        Raises:
            NoTokenLeftError: The row has no token to propose.
        """

    def review(self, row: Logits, history: Sequence[int], token: int) -> tuple[int, bool]:
        """Return the confidence of a guess from this row, and whether it equals `token`.

        No random number is drawn.
        """

    def learn(self, start: int, tokens: Sequence[int], rows: Logits) -> None:
        """Observe the tokens that followed the first `start`, and the target's rows there.

        Args:
            start: Number of tokens before them.
            tokens: The emitted token ids.
            rows: The target's rows, shape `(n, V)`.
        """


class StochasticDraftSampler:
    """Sampler that draws from the draft's distribution, for the rules `rejection` and `block`.

    These rules need to know that distribution.
    """

    priors: tuple[float, ...] = tuple(np.linspace(0.5, 0.98, N_CONFIDENCE_BUCKETS).tolist())

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def token(self, row: Logits, history: Sequence[int]) -> DraftToken:
        """Return a drawn token and its distribution."""
        distribution = self._sampler.distribution(row, history)
        token = self._sampler.draw(distribution)
        return DraftToken(token, _sureness_of_share(distribution.prob(token)), distribution)

    def review(self, row: Logits, history: Sequence[int], token: int) -> tuple[int, bool]:
        """Evaluate the likeliest token instead of a drawn one.

        It is right slightly less often than a drawn token is accepted.
        """
        distribution = self._sampler.distribution(row, history)
        best = int(np.argmax(distribution.probs))
        return _sureness_of_share(distribution.probs[best]), int(distribution.ids[best]) == token

    def learn(self, start: int, tokens: Sequence[int], rows: Logits) -> None:
        """Do nothing: a change of q would change the text."""


class DraftCorrection:
    """Online correction of a draft model towards its target, over all requests.

    It changes the acceptance rate, never the text.

    Attributes:
        bias: Correction of the draft's logits, shape `(V,)`: for each token approximately the
            recent mean log-probability difference, target minus draft.
        hits: Requested temperature -> number of right guesses of each candidate for reading a row.
        candidates: The candidates: temperature as a share of the target's, and share of the
            correction, shape `(n, 2)`.
        first: Index of the candidate in use before anything was learned.
    """

    def __init__(
        self, n_vocab: int, candidates: NDArray[np.float64] = CANDIDATES, first: int = _AT_FIRST
    ) -> None:
        self.candidates, self.first = candidates, first
        self.bias = np.zeros(n_vocab, dtype=np.float32)
        self.hits: dict[float, NDArray[np.float64]] = {}
        self._sum, self._weight = np.zeros(n_vocab), np.zeros(n_vocab)

    def learn(
        self, ids: NDArray[np.int64], draft: NDArray[np.floating], target: NDArray[np.floating]
    ) -> None:
        """Update the correction at one position.

        Args:
            ids: Token ids, shape `(n,)`.
            draft: The draft model's logits of these tokens, shape `(n,)`.
            target: The target's logits of these tokens, shape `(n,)`.
        """
        ours, theirs = _log_softmax(draft), _log_softmax(target)
        weight = np.minimum(1.0, np.exp(np.maximum(ours, theirs)) / _CLEAR)
        self._sum[ids] = _FORGET * self._sum[ids] + weight * np.clip(
            theirs - ours, -_TOO_FAR, _TOO_FAR
        )
        self._weight[ids] = _FORGET * self._weight[ids] + weight
        self.bias[ids] = self._sum[ids] / (self._weight[ids] + _DOUBT)


class CoupledDraftSampler:
    """Sampler that predicts the target's token with the noise that the target will use.

    The emitted text never depends on the guess, so the guess can be tuned online. The target's rows
    give a correction of the draft's logits. The emitted tokens show which temperature is best and
    whether the correction helps. All candidates are evaluated on each row, and the one with the
    most hits so far is used. The confidence is the lead of the guess over the second-best token,
    noise included.
    """

    priors: tuple[float, ...] = (
        0.35,
        0.5,
        0.6,
        0.7,
        0.78,
        0.86,
        0.92,
        0.95,
        0.97,
        0.98,
        0.985,
        0.99,
        0.99,
    )

    def __init__(self, sampler: Sampler, calibration: DraftCorrection) -> None:
        self._sampler, self._calibration = sampler, calibration
        self._temperature = max(sampler.sampling.temperature, COLDEST)
        self._candidates = calibration.candidates
        first = np.zeros(len(self._candidates))
        first[calibration.first] = 0.5
        self._hits = calibration.hits.setdefault(round(self._temperature, 2), first)
        self._drafted: list[_Place] = []
        self._row = np.empty_like(calibration.bias)

    def token(self, row: Logits, history: Sequence[int]) -> DraftToken:
        """Return the guess."""
        place = self._guess(row, history)
        self._drafted.append(place)
        return DraftToken(int(place.guesses[self._best]), place.confidence, second=place.second)

    def review(self, row: Logits, history: Sequence[int], token: int) -> tuple[int, bool]:
        """Evaluate the guess, and all candidates, against the emitted token."""
        place = self._guess(row, history)
        hit = bool(place.guesses[self._best] == token)
        self._hits += place.guesses == token
        return place.confidence, hit

    def learn(self, start: int, tokens: Sequence[int], rows: Logits) -> None:
        """Compare each row after right tokens with the target's row at the same position."""
        for place in self._drafted:
            i = place.position - start
            if not 0 <= i < len(tokens):
                continue
            self._hits += place.guesses == tokens[i]
            logits, theirs = place.logits, rows[i][place.seen]
            alive = np.isfinite(logits) & np.isfinite(theirs)
            if alive.any():
                self._calibration.learn(place.seen[alive], logits[alive], theirs[alive])
        self._drafted.clear()

    @property
    def _best(self) -> int:
        return int(np.argmax(self._hits))

    def _guess(self, row: Logits, history: Sequence[int]) -> _Place:
        seen = largest(row, min(_MOST, len(row)))
        guesses, lead, second = (
            self._best_of(row, history, seen)
            if self._sampler.sampling.greedy
            else self._drawn(row, history)
        )
        return _Place(len(history), guesses, bisect_right(_LEADS, lead), seen, row[seen], second)

    def _best_of(
        self, row: Logits, history: Sequence[int], seen: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], float, int | None]:
        """Return the likeliest token for all candidates, its lead in logits, and the second.

        Tokens below those in `seen` are ignored.
        """
        shaped = self._sampler.shaped(row, history)
        ids = seen if shaped is row else largest(shaped, len(seen))
        logits = shaped[ids] + self._calibration.bias[ids]
        order = np.argsort(logits)
        if not np.isfinite(logits[order[-1]]):
            raise NoTokenLeftError
        second = int(ids[order[-2]]) if len(ids) > 1 else None
        return (
            ids[order[-1]].repeat(len(self._candidates)),
            float(logits[order[-1]] - logits[order[-2:][0]]),
            second,
        )

    def _drawn(
        self, row: Logits, history: Sequence[int]
    ) -> tuple[NDArray[np.int64], float, int | None]:
        """Return the token that each candidate draws, and lead and second of the one in use."""
        bias, best = self._calibration.bias, self._best
        # The share of the correction is 0 or 1.
        share = np.float32(self._candidates[best, 1])
        ids, logits = self._sampler.candidates(
            np.add(row, bias[: len(row)], out=self._row[: len(row)]) if share else row, history
        )
        if len(ids) > _MOST:
            top = largest(logits, _MOST)
            ids, logits = ids[top], logits[top]
        if len(ids) == 1:
            return ids.repeat(len(self._candidates)), np.inf, None
        ways = logits - logits.max() + (self._candidates[:, 1:] - share) * bias[ids]
        scores = ways / (self._candidates[:, :1] * self._temperature) + self._sampler.rng.gumbel(
            ids, len(history)
        )
        behind, first = np.argpartition(scores[best], -2)[-2:]
        return (
            ids[np.argmax(scores, axis=1)],
            (scores[best, first] - scores[best, behind]) * self._temperature,
            int(ids[behind]),
        )


class _Place(NamedTuple):
    """Draft model's result at one position.

    It contains the guess of each candidate, and the likeliest tokens with their logits.
    """

    position: int
    guesses: NDArray[np.int64]
    confidence: int
    seen: NDArray[np.int64]
    logits: NDArray[np.floating]
    second: int | None


def _sureness_of_share(share: float) -> int:
    return min(int(share * N_CONFIDENCE_BUCKETS), N_CONFIDENCE_BUCKETS - 1)


def _log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    return np.asarray(wide - np.log(np.exp(wide).sum()))
