"""From a row of the draft model to the token it proposes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...arrays import Logits
from ...errors import NoTokenLeftError
from ...sampling.chain import COLDEST, Distribution, Sampler, largest

_TEMPERATURES = np.array(
    [0.05, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0, 1.15, 1.3]
)  # of the draft, times the temperature asked for
_WAYS = np.array(
    [(t, corrected) for corrected in (1.0, 0.0) for t in _TEMPERATURES]
)  # to read a row: temperature, share of the correction
_AT_FIRST = 5  # 0.9, corrected
_MOST = 64  # candidates; those further down are hardly ever what the target says
_DOUBT = 3.0  # places in which a token must have been seen before its correction is half of what was seen there
_FORGET = 0.99  # of what is known of a token, each time that it is seen again
_CLEAR = 0.02  # a token counts fully where one of the models finds it as likely as that
_TOO_FAR = 3.0  # no single place corrects a logit by more
_LEADS = (
    0.15,
    0.3,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    2.5,
    3.0,
    4.0,
    5.5,
    7.5,
)  # of the guess over the second, in logits, that are told apart
N_CONFIDENCE_BUCKETS = len(_LEADS) + 1


class DraftToken(NamedTuple):
    """A token taken from a row.

    Attributes:
        token: Its id.
        sureness: From 0, not at all, to `N_CONFIDENCE_BUCKETS` - 1.
        q: The law it was drawn from, where the rule asks for it.
        second: The next best token, or None.
    """

    token: int
    confidence: int
    q: Distribution | None = None
    second: int | None = None


class DraftSampler(Protocol):
    """How a drafter takes a token from a row.

    Attributes:
        beliefs: For each sureness the chance to be right before anything was seen.
    """

    @property
    def priors(self) -> Sequence[float]:
        """Prior acceptance rate of each confidence bucket."""

    def token(self, row: Logits, history: Sequence[int]) -> DraftToken:
        """Return the token.

        Raises:
            NoTokenLeftError: There is none to propose.
        """

    def review(self, row: Logits, history: Sequence[int], token: int) -> tuple[int, bool]:
        """Return how sure a guess from this row would have been, and whether it would have been `token`. Draws nothing."""

    def learn(self, start: int, tokens: Sequence[int], rows: Logits) -> None:
        """Take note of what did follow the first `start` tokens, and of the target's rows there, shape `(n, V)`."""


class StochasticDraftSampler:
    """Draws from the draft's law, which the rules `rejection` and `block` need to know."""

    priors: tuple[float, ...] = tuple(np.linspace(0.5, 0.98, N_CONFIDENCE_BUCKETS).tolist())

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def token(self, row: Logits, history: Sequence[int]) -> DraftToken:
        """Return a token and its law."""
        distribution = self._sampler.distribution(row, history)
        token = self._sampler.draw(distribution)
        return DraftToken(token, _sureness_of_share(distribution.prob(token)), distribution)

    def review(self, row: Logits, history: Sequence[int], token: int) -> tuple[int, bool]:
        """Judge the likeliest token in place of a drawn one: it is right a little less often than a drawn one is kept."""
        distribution = self._sampler.distribution(row, history)
        best = int(np.argmax(distribution.probs))
        return _sureness_of_share(distribution.probs[best]), int(distribution.ids[best]) == token

    def learn(self, start: int, tokens: Sequence[int], rows: Logits) -> None:
        """Do nothing: whatever changes q would change the text."""


class DraftCorrection:
    """What a draft has learned of its target, in all requests so far. It changes how often the draft is right, never the text.

    Attributes:
        bias: Correction of the draft's logits, shape `(V,)`: for each token about the mean of what the target lately found it more likely.
        hits: Temperature asked for -> how often the draft would have been right by each of the ways to read it.
    """

    def __init__(self, n_vocab: int) -> None:
        self.bias = np.zeros(n_vocab, dtype=np.float32)
        self.hits: dict[float, NDArray[np.float64]] = {}
        self._sum, self._weight = np.zeros(n_vocab), np.zeros(n_vocab)

    def learn(
        self, ids: NDArray[np.int64], draft: NDArray[np.floating], target: NDArray[np.floating]
    ) -> None:
        """Take note of what both models say of some tokens in one place; logits, shape `(n,)`."""
        ours, theirs = _log_softmax(draft), _log_softmax(target)
        weight = np.minimum(1.0, np.exp(np.maximum(ours, theirs)) / _CLEAR)
        self._sum[ids] = _FORGET * self._sum[ids] + weight * np.clip(
            theirs - ours, -_TOO_FAR, _TOO_FAR
        )
        self._weight[ids] = _FORGET * self._weight[ids] + weight
        self.bias[ids] = self._sum[ids] / (self._weight[ids] + _DOUBT)


class CoupledDraftSampler:
    """Guesses the target's token by the noise that the target will use.

    What is emitted never depends on the guess, so the draft may guess as it likes, and learn: from the target's rows how its logits are off, and
    from what was emitted whether that helps and at which temperature it is best read. All ways are tried on each row; that with the most hits so
    far decides. How sure a guess is: its lead over the second best, noise included.
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
        first = np.zeros(len(_WAYS))
        first[_AT_FIRST] = 0.5
        self._hits = calibration.hits.setdefault(round(self._temperature, 2), first)
        self._drafted: list[_Place] = []
        self._row = np.empty_like(calibration.bias)

    def token(self, row: Logits, history: Sequence[int]) -> DraftToken:
        """Return the guess."""
        place = self._guess(row, history)
        self._drafted.append(place)
        return DraftToken(int(place.guesses[self._best]), place.confidence, second=place.second)

    def review(self, row: Logits, history: Sequence[int], token: int) -> tuple[int, bool]:
        """Judge a guess, and all ways to make it, by the token that was said."""
        place = self._guess(row, history)
        hit = bool(place.guesses[self._best] == token)
        self._hits += place.guesses == token
        return place.confidence, hit

    def learn(self, start: int, tokens: Sequence[int], rows: Logits) -> None:
        """Compare each row that had the true past with what the target said there."""
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
        """Return the likeliest token, for all ways, its lead, and the second: what is further down than `seen` is not worth a look."""
        shaped = self._sampler.shaped(row, history)
        ids = seen if shaped is row else largest(shaped, len(seen))
        logits = shaped[ids] + self._calibration.bias[ids]
        order = np.argsort(logits)
        if not np.isfinite(logits[order[-1]]):
            raise NoTokenLeftError
        second = int(ids[order[-2]]) if len(ids) > 1 else None
        return (
            ids[order[-1]].repeat(len(_WAYS)),
            float(logits[order[-1]] - logits[order[-2:][0]]),
            second,
        )

    def _drawn(
        self, row: Logits, history: Sequence[int]
    ) -> tuple[NDArray[np.int64], float, int | None]:
        """Return the tokens that each of the ways draws, the lead of the one in use, and what comes second there."""
        bias, best = self._calibration.bias, self._best
        share = np.float32(_WAYS[best, 1])  # 0 or 1
        ids, logits = self._sampler.candidates(
            np.add(row, bias[: len(row)], out=self._row[: len(row)]) if share else row, history
        )
        if len(ids) > _MOST:
            top = largest(logits, _MOST)
            ids, logits = ids[top], logits[top]
        if len(ids) == 1:
            return ids.repeat(len(_WAYS)), np.inf, None
        ways = logits - logits.max() + (_WAYS[:, 1:] - share) * bias[ids]
        scores = ways / (_WAYS[:, :1] * self._temperature) + self._sampler.rng.gumbel(
            ids, len(history)
        )
        behind, first = np.argpartition(scores[best], -2)[-2:]
        return (
            ids[np.argmax(scores, axis=1)],
            (scores[best, first] - scores[best, behind]) * self._temperature,
            int(ids[behind]),
        )


class _Place(NamedTuple):
    """What the draft found in one place: guesses in all ways to read its row, and its likeliest tokens with their logits."""

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
