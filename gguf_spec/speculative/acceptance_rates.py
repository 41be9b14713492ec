"""Acceptance rates of proposals by bucket, over all requests and within one request."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .drafters import Kind

# Factor on the counts of a bucket at each new observation.
_FORGET = 0.997
# Largest weight of a bucket that is read from disk, in observations.
_KEPT = 40.0
# Default weight of a prior, in observations.
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
    """

    def __init__(
        self, priors: Mapping[str, Iterable[float]], firm: Mapping[str, float] | None = None
    ) -> None:
        """Start from priors.

        Args:
            priors: Name of a drafter -> prior acceptance rate of each of its buckets.
            firm: Name of a drafter -> weight of its priors, in observations; for other drafters a
                default.
        """
        self._seen: dict[Kind, list[float]] = {}  # [hits, positions]
        for name, chances in priors.items():
            places = (firm or {}).get(name, _DOUBT)
            for bucket, chance in enumerate(chances):
                self._seen[name, bucket] = [places * chance, places]

    def of(self, kind: Kind) -> float:
        """Return the acceptance rate of a bucket."""
        hits, places = self._seen[kind]
        return hits / places

    def learn(self, kind: Kind, hit: float) -> None:
        """Count a proposal.

        Args:
            kind: Its bucket.
            hit: 1 if it was right, 0 if it was wrong; a share if that is explained in part.
        """
        seen = self._seen[kind]
        # The number of positions is updated first: hits never exceed positions, even if Ctrl-C
        # interrupts.
        seen[1] = _FORGET * seen[1] + 1
        seen[0] = _FORGET * seen[0] + hit

    def to_list(self) -> list[tuple[str, int, float, float]]:
        """Return all counts as plain values: drafter, bucket, hits, positions."""
        return [(*kind, hits, places) for kind, (hits, places) in self._seen.items()]

    def recall(self, seen: Iterable[Any]) -> None:
        """Restore counts from `to_list`, for the buckets that exist here.

        Raises:
            TypeError, ValueError: The data has another form.
        """
        kept: dict[Kind, list[float]] = {}
        for name, bucket, hits, places in seen:
            # This also fails for a number that is not finite.
            if not 0 <= hits <= places < 1e6:
                raise ValueError(seen)
            if (name, bucket) in self._seen and places:
                kept[name, bucket] = [hits * min(1.0, _KEPT / places), min(places, _KEPT)]
        # One update: all counts are restored or none.
        self._seen |= kept


class RequestAcceptance:
    """Acceptance rates within one request.

    They are the rates over all requests with one shift of the log odds for each drafter. A text
    that is harder or easier than usual changes the rates of all buckets. A single number for each
    drafter adapts within a few tokens.

    Source: a Gaussian prior on the shift, updated by one Newton step for each observation (online
    logistic regression).
    """

    def __init__(self, known: AcceptanceRates, firm: Iterable[str] = ()) -> None:
        """Start from the rates over all requests.

        Args:
            known: Rates over all requests; updated too.
            firm: Drafters whose rates differ less from request to request.
        """
        self._known, self._firm = known, frozenset(firm)
        self._shifts: dict[str, list[float]] = {}  # drafter -> [shift, precision]

    def of(self, kind: Kind) -> float:
        """Return the acceptance rate of a bucket in this request."""
        chance = self._known.of(kind)
        shift = self._shifts.get(kind[0])
        return shifted(chance, shift[0]) if shift else chance

    def learn(self, kind: Kind, hit: bool) -> None:
        """Count a proposal that was right or wrong."""
        least = _FIRM_SHIFT_PRECISION if kind[0] in self._firm else _SHIFT_PRECISION
        shift = self._shifts.setdefault(kind[0], [0.0, least])
        usual = self._known.of(kind)
        chance = shifted(usual, shift[0])
        shift[1] = max(least, _SHIFT_FORGET * shift[1]) + chance * (1 - chance)
        shift[0] += (hit - chance) / shift[1]
        # The rates of all requests learn only what the shift does not explain. Otherwise a text
        # that is copied as a whole would make all buckets sure for the next text.
        self._known.learn(kind, min(1.0, max(0.0, usual + hit - chance)))


def fitted(priors: Sequence[float], seen: Sequence[tuple[float, float]]) -> list[float]:
    """Return prior acceptance rates adapted to the observations of a pair.

    The log odds of all buckets are shifted by one fitted number. Then each rate is moved towards
    the observations of its bucket.

    Args:
        priors: Prior acceptance rate of each bucket.
        seen: Hits and positions of each bucket.

    Returns:
        Acceptance rate of each bucket.
    """
    shift = 0.0
    for _ in range(_NEWTON_STEPS):
        rates = [shifted(prior, shift) for prior in priors]
        slope = (
            sum(hits - places * rate for rate, (hits, places) in zip(rates, seen, strict=True))
            - _FIT_PRECISION * shift
        )
        curve = (
            sum(places * rate * (1 - rate) for rate, (_, places) in zip(rates, seen, strict=True))
            + _FIT_PRECISION
        )
        shift += max(-1.0, min(1.0, slope / curve))
    rates = [shifted(prior, shift) for prior in priors]
    return [
        (_FIT_FAITH * rate + hits) / (_FIT_FAITH + places)
        for rate, (hits, places) in zip(rates, seen, strict=True)
    ]


def shifted(chance: float, shift: float) -> float:
    """Return a probability with its log odds moved by `shift`."""
    chance = max(_NEVER, min(1 - _NEVER, chance))
    odds = chance / (1 - chance) * math.exp(max(-_SHIFT_MOST, min(_SHIFT_MOST, shift)))
    return odds / (1 + odds)
