"""Statistics of a model pair on this machine: costs, acceptance rates, and the usual answer.

Acceptance rates of proposals are kept by bucket, over all requests and within one request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .cost_model import CostModel, Overhead
from .drafters import N_CONFIDENCE_BUCKETS, Kind

# Factor on the counts of confidence buckets at each draft token.
_CONFIDENCE_MEMORY = 0.99


@dataclass
class PairStatistics:
    """Costs and statistics of a pair on this machine, over all requests so far.

    Attributes:
        draft: Cost model of the draft model; None without one.
        chances: Acceptance rate of each bucket of proposals.
        answer: Usual length of an answer, in tokens.
        per_token: Python's time for each emitted token.
        per_proposal: Python's time for each token that the draft model proposes.
        per_search: Python's time for each round that looks for a draft.
        confidences: Number of proposals of the draft model in each confidence bucket.
        spare_s: Seconds available for probes of an unused draft model and for passes of untried
            widths.
        check_s: Seconds available for passes that check the costs and decode known tokens again.
    """

    target: CostModel
    draft: CostModel | None
    chances: AcceptanceRates
    answer: float = 128.0
    per_token: Overhead = field(default_factory=Overhead)
    per_proposal: Overhead = field(default_factory=Overhead)
    per_search: Overhead = field(default_factory=Overhead)
    confidences: list[float] = field(default_factory=lambda: [1.0] * N_CONFIDENCE_BUCKETS)
    spare_s: float = 0.0
    check_s: float = 0.0
    n_emitted: int = 0

    def drafted(self, confidence: int) -> None:
        self.confidences = [_CONFIDENCE_MEMORY * count for count in self.confidences]
        self.confidences[confidence] += 1

    def answered(self, n_tokens: int, is_whole: bool) -> None:
        """Update the usual length of an answer.

        One that was cut off, and not ended by the model or a stop string, is at least so long.
        """
        if is_whole or n_tokens > self.answer:
            self.answer += (n_tokens - self.answer) / 5


@dataclass
class Forecast:
    """Predicted seconds of a generation, from the costs known when each round began.

    Attributes:
        plain_s: Seconds of the same tokens in plain decoding.
    """

    rounds_s: float = 0.0
    plain_s: float = 0.0


# Factor on the counts of a bucket at each new observation.
_FORGET = 0.997
# Largest weight of a bucket that is read from disk, in observations.
_KEPT = 40.0
# Positions of a draft model that was not measured, at which its rates of all requests are learned.
_NEW = 64
# Weight of a prior, in observations.
_DOUBT = 2.0
# Prior precision (1 / variance) of a request's shift of the log odds against those of all requests.
_SHIFT_PRECISION = 1.5
# Prior precision of that shift for a draft model, whose acceptance rate differs less between texts.
_FIRM_SHIFT_PRECISION = 12.0
# Factor on the precision at each observation, so that the shift follows a change within a text.
_SHIFT_FORGET = 0.98
# Smallest rate that is used; the largest is 1 minus this. A more extreme rate is based on too few
# observations.
_NEVER = 0.005
# Largest absolute value of a shift, in log odds.
_SHIFT_MOST = 6.0
# Prior precision (1 / variance) of a pair's shift of the log odds; weight of a shifted prior rate,
# in observations.
_FIT_PRECISION, _FIT_FAITH = (0.25, 5.0)
# Newton steps of `fitted`.
_NEWTON_STEPS = 12


class AcceptanceRates:
    """Acceptance rate of each bucket of proposals.

    Only positions whose preceding tokens were all right are counted. The product of the rates along
    a draft is therefore the probability that all of it is accepted.

    Attributes:
        n_new: Number of positions at which proposals of a draft model count in full, because
            nothing is known of it; later a request explains a part of them by its text.
    """

    n_new: int

    def __init__(self, priors: Mapping[str, Iterable[float]], is_new: bool = False) -> None:
        """Start from priors: name of a drafter -> prior acceptance rate of each of its buckets.

        `is_new` says that the agreement of the draft model was not measured.
        """
        self.n_new = _NEW if is_new else 0
        self._seen: dict[Kind, list[float]] = {}  # [hits, positions]
        self._recalled: dict[Kind, list[float]] = {}  # those of drafters that were not added yet
        self.add(priors)

    def add(self, priors: Mapping[str, Iterable[float]]) -> None:
        """Add the priors of drafters; known ones stay as they are."""
        for name, chances in priors.items():
            for bucket, chance in enumerate(chances):
                start = self._recalled.pop((name, bucket), [_DOUBT * chance, _DOUBT])
                self._seen.setdefault((name, bucket), start)

    def of(self, kind: Kind) -> float:
        hits, places = self._seen[kind]
        return hits / places

    def learn(self, kind: Kind, hit: float) -> None:
        """Count a proposal: 1 if right, 0 if wrong, or a share if that is explained in part."""
        seen = self._seen[kind]
        # The number of positions is updated first: hits never exceed positions, even if Ctrl-C
        # interrupts.
        seen[1] = _FORGET * seen[1] + 1
        seen[0] = _FORGET * seen[0] + hit

    def seen_in(self, names: Iterable[str], bucket: int) -> tuple[float, float]:
        """Return hits and positions in a bucket of the drafters, without those of the prior."""
        seen = [self._seen.get((name, bucket), [0.0, _DOUBT]) for name in names]
        hits = sum(hits * max(0.0, 1 - _DOUBT / places) for hits, places in seen)
        return hits, sum(max(0.0, places - _DOUBT) for _, places in seen)

    def to_list(self) -> list[tuple[str, int, float, float]]:
        """Return all counts as plain values: drafter, bucket, hits, positions."""
        return [
            (*kind, hits, places) for kind, (hits, places) in (self._recalled | self._seen).items()
        ]

    def recall(self, seen: Iterable[Any]) -> None:
        """Restore counts from `to_list`; those of other drafters wait until these are added.

        Raises:
            TypeError, ValueError: The data has another form.
        """
        kept: dict[Kind, list[float]] = {}
        for name, bucket, hits, places in seen:
            # This also fails for a number that is not finite.
            if not 0 <= hits <= places < 1e6:
                raise ValueError(seen)
            if places:
                kept[name, bucket] = [hits * min(1.0, _KEPT / places), min(places, _KEPT)]
        self._recalled = {kind: one for kind, one in kept.items() if kind not in self._seen}
        # One update: all counts are restored or none.
        self._seen |= {kind: one for kind, one in kept.items() if kind in self._seen}


class RequestAcceptance:
    """Acceptance rates within one request.

    They are the rates over all requests with one shift of the log odds for each drafter. A text
    that is harder or easier than usual changes the rates of all buckets. A single number for each
    drafter adapts within a few tokens.

    Source: a Gaussian prior on the shift, updated by one Newton step for each observation (online
    logistic regression).
    """

    def __init__(self, known: AcceptanceRates, firm: Iterable[str] = ()) -> None:
        """Start from the rates of all requests, which are updated too; `firm` ones differ less."""
        self._known, self._firm = known, frozenset(firm)
        # drafter -> shift, precision, and the factor of the odds: a round asks for many rates
        self._shifts: dict[str, tuple[float, float, float]] = {}

    def of(self, kind: Kind) -> float:
        chance = self._known.of(kind)
        shift = self._shifts.get(kind[0])
        return _scaled(chance, shift[2]) if shift else chance

    def learn(self, kind: Kind, hit: bool) -> None:
        least = _FIRM_SHIFT_PRECISION if kind[0] in self._firm else _SHIFT_PRECISION
        shift, precision, factor = self._shifts.setdefault(kind[0], (0.0, least, 1.0))
        if kind[0] in self._firm and self._known.n_new:
            self._known.n_new -= 1
            self._known.learn(kind, hit)
            return
        usual = self._known.of(kind)
        chance = _scaled(usual, factor)
        precision = max(least, _SHIFT_FORGET * precision) + chance * (1 - chance)
        shift += (hit - chance) / precision
        self._shifts[kind[0]] = shift, precision, _factor(shift)
        # The rates of all requests learn only what the shift does not explain. Otherwise a text
        # that is copied as a whole would make all buckets sure for the next text.
        self._known.learn(kind, min(1.0, max(0.0, usual + hit - chance)))


def fitted(priors: Sequence[float], seen: Sequence[tuple[float, float]]) -> list[float]:
    """Return the prior acceptance rates of buckets, adapted to the observations of a pair.

    The log odds of all buckets are shifted by one fitted number. Then each rate is moved towards
    the hits and positions of its bucket.
    """
    shift = 0.0
    for _ in range(_NEWTON_STEPS):
        rates = [shifted(prior, shift) for prior in priors]
        both = [(rate, *one) for rate, one in zip(rates, seen, strict=True)]
        slope = sum(hits - places * rate for rate, hits, places in both) - _FIT_PRECISION * shift
        curve = sum(places * rate * (1 - rate) for rate, _, places in both) + _FIT_PRECISION
        shift += max(-1.0, min(1.0, slope / curve))
    rates = [shifted(prior, shift) for prior in priors]
    return [
        (_FIT_FAITH * rate + hits) / (_FIT_FAITH + places)
        for rate, (hits, places) in zip(rates, seen, strict=True)
    ]


def shifted(chance: float, shift: float) -> float:
    """Return a probability with its log odds moved by `shift`."""
    return _scaled(chance, _factor(shift))


def _factor(shift: float) -> float:
    """Return the factor of the odds whose log odds are moved by `shift`."""
    return math.exp(max(-_SHIFT_MOST, min(_SHIFT_MOST, shift)))


def _scaled(chance: float, factor: float) -> float:
    """Return a probability with its odds multiplied by `factor`."""
    chance = max(_NEVER, min(1 - _NEVER, chance))
    odds = chance / (1 - chance) * factor
    return odds / (1 + odds)
