"""From a row of the draft model to the token it proposes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .._sampling import COLDEST, Distribution, Logits, Sampler, largest

_TEMPERATURES = np.array([0.05, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0, 1.15, 1.3])  # of the draft, times the temperature asked for
_WAYS = np.array([(t, corrected) for corrected in (1.0, 0.0) for t in _TEMPERATURES])  # to read a row: temperature, share of the correction
_AT_FIRST = 5  # 0.9, corrected
_MOST = 64  # candidates; those further down are hardly ever what the target says
_DOUBT = 3.0  # places in which a token must have been seen before its correction is half of what was seen there
_FORGET = 0.99  # of what is known of a token, each time that it is seen again
_CLEAR = 0.02  # a token counts fully where one of the models finds it as likely as that
_TOO_FAR = 3.0  # no single place corrects a logit by more


class Guess(Protocol):
    """How a drafter takes a token from a row."""

    def token(self, row: Logits, history: Sequence[int]) -> tuple[int, Distribution | None]:
        """Return the token, and the law it was drawn from where the rule asks for it.

        Raises:
            NoTokenLeftError: There is none to propose.
        """

    def learn(self, tokens: Sequence[int], rows: Logits) -> None:
        """Take note of what did follow, from the first token since `learn` was last called, and of the target's rows, shape `(n, V)`."""


class DrawnGuess:
    """Draws from the draft's law, which the rules `rejection` and `block` need to know."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def token(self, row: Logits, history: Sequence[int]) -> tuple[int, Distribution | None]:
        """Return a token and its law."""
        law = self._sampler.distribution(row, history)
        return self._sampler.draw(law), law

    def learn(self, tokens: Sequence[int], rows: Logits) -> None:
        """Do nothing: whatever changes q would change the text."""


class Calibration:
    """What a draft has learned of its target, in all requests so far. It changes how often the draft is right, never the text.

    Attributes:
        bias: Correction of the draft's logits, shape `(V,)`: for each token about the mean of what the target lately found it more likely.
        hits: Temperature asked for -> how often the draft would have been right by each of the ways to read it.
    """

    def __init__(self, n_vocab: int) -> None:
        self.bias = np.zeros(n_vocab, dtype=np.float32)
        self.hits: dict[float, NDArray[np.float64]] = {}
        self._sum, self._weight = np.zeros(n_vocab), np.zeros(n_vocab)

    def learn(self, ids: NDArray[np.int64], draft: NDArray[np.floating], target: NDArray[np.floating]) -> None:
        """Take note of what both models say of some tokens in one place; logits, shape `(n,)`."""
        ours, theirs = _log_softmax(draft), _log_softmax(target)
        weight = np.minimum(1.0, np.exp(np.maximum(ours, theirs)) / _CLEAR)
        self._sum[ids] = _FORGET * self._sum[ids] + weight * np.clip(theirs - ours, -_TOO_FAR, _TOO_FAR)
        self._weight[ids] = _FORGET * self._weight[ids] + weight
        self.bias[ids] = self._sum[ids] / (self._weight[ids] + _DOUBT)


class CoupledGuess:
    """Guesses the target's token by the noise that the target will use.

    What is emitted never depends on the guess, so the draft may guess as it likes, and learn: from the target's rows how its logits are off, and
    from what was emitted whether that helps and at which temperature it is best read. All ways are tried on each row; that with the most hits so
    far decides.
    """

    def __init__(self, sampler: Sampler, calibration: Calibration) -> None:
        self._sampler, self._calibration = sampler, calibration
        self._temperature = max(sampler.sampling.temperature, COLDEST)
        first = np.zeros(len(_WAYS))
        first[_AT_FIRST] = 0.5
        self._hits = calibration.hits.setdefault(round(self._temperature, 2), first)
        self._drafted: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.floating]]] = []

    def token(self, row: Logits, history: Sequence[int]) -> tuple[int, Distribution | None]:
        """Return the guess."""
        seen, bias, best = largest(row, min(_MOST, len(row))), self._calibration.bias, int(np.argmax(self._hits))
        share = np.float32(_WAYS[best, 1])
        ids, logits = self._sampler.candidates(row + share * bias[: len(row)], history)
        if len(ids) > _MOST:
            top = largest(logits, _MOST)
            ids, logits = ids[top], logits[top]
        guesses = np.broadcast_to(ids[:1], len(_WAYS))
        if len(ids) > 1:
            ways = logits - logits.max() + (_WAYS[:, 1:] - share) * bias[ids]
            noise = self._sampler.rng.gumbel(ids, len(history))
            guesses = ids[np.argmax(ways / (_WAYS[:, :1] * self._temperature) + noise, axis=1)]
        self._drafted.append((guesses, seen, row[seen]))
        return int(guesses[best]), None

    def learn(self, tokens: Sequence[int], rows: Logits) -> None:
        """Compare each row that had the true past with what the target said there."""
        for (guesses, seen, logits), token, row in zip(self._drafted, tokens, rows, strict=False):
            self._hits += guesses == token
            alive = np.isfinite(logits) & np.isfinite(row[seen])
            if alive.any():
                self._calibration.learn(seen[alive], logits[alive], row[seen[alive]])
        self._drafted.clear()


def _log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    return np.asarray(wide - np.log(np.exp(wide).sum()))
