"""Acceptance rates: how often the target emits what a drafter proposes, by kind of evidence, over all requests and in one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_FORGET = 0.99  # factor on the counts of a kind at each new observation
_KEPT = 40.0  # observations of a kind that count when they are read back from disk
_DOUBT = 2.0  # observations that the first belief is worth
_SHIFT_PRECISION = 3.0  # of a request's log odds against those of all: 1 / variance
_FIRM_SHIFT_PRECISION = 12.0  # of those of a draft model, which texts differ in less
_SHIFT_FORGET = (
    0.98  # factor on the precision at each observation, so that a change within a text is followed
)
_NEVER = 0.005  # a rate below it, or above 1 minus it, was seen in too few places to be believed
_SHIFT_MOST = 6.0  # log odds
_FIT_PRECISION, _FIT_FAITH = (
    0.25,
    5.0,
)  # of the prior on a pair's shift; observations that a shifted rate is worth
_NEWTON_STEPS = 12

Kind = tuple[str, int]
"""Who proposed, and how sure it was: a drafter's name and the number of a bucket, higher for surer."""


class AcceptanceRates:
    """For each kind of proposal how often it was what the target said.

    Only places whose past was right are counted, so the product along a draft is the chance that all of it stays.
    """

    def __init__(
        self, priors: Mapping[str, Iterable[float]], firm: Mapping[str, float] | None = None
    ) -> None:
        """Take for each name what to believe of its buckets before anything was seen; `firm` says of some for how many places that counts."""
        self._seen: dict[Kind, list[float]] = {}  # [hits, places]
        for name, chances in priors.items():
            places = (firm or {}).get(name, _DOUBT)
            for bucket, chance in enumerate(chances):
                self._seen[name, bucket] = [places * chance, places]

    def of(self, kind: Kind) -> float:
        """Return the chance that a proposal of this kind is right."""
        hits, places = self._seen[kind]
        return hits / places

    def learn(self, kind: Kind, hit: float) -> None:
        """Take note of a proposal that was right (1) or not (0)."""
        seen = self._seen[kind]
        seen[1] = (
            _FORGET * seen[1] + 1
        )  # first: should Ctrl-C come in between, there are never more hits than places
        seen[0] = _FORGET * seen[0] + hit

    def to_list(self) -> list[tuple[str, int, float, float]]:
        """Return all that was seen as plain values."""
        return [(*kind, hits, places) for kind, (hits, places) in self._seen.items()]

    def recall(self, seen: Iterable[Any]) -> None:
        """Take what `to_list` gave, of those kinds that are known.

        Raises:
            TypeError, ValueError: It is something else.
        """
        kept: dict[Kind, list[float]] = {}
        for name, bucket, hits, places in seen:
            if not 0 <= hits <= places < 1e6:  # a number that is not finite fails too
                raise ValueError(seen)
            if (name, bucket) in self._seen and places:
                kept[name, bucket] = [hits * min(1.0, _KEPT / places), min(places, _KEPT)]
        self._seen |= kept  # all of it or nothing


class RequestAcceptance:
    """Acceptance rates in one request: those over all requests, with one shift of the log odds for each drafter.

    A text that is harder or easier than usual shows in all kinds of evidence. One number for each drafter follows within a few tokens.

    Source: a Gaussian prior on the shift, updated by one Newton step for each observation (online logistic regression).
    """

    def __init__(self, known: AcceptanceRates, firm: Iterable[str] = ()) -> None:
        """Begin with the rates over all requests; `known` learns too. Drafters named in `firm` differ less from request to request."""
        self._known, self._firm = known, frozenset(firm)
        self._shifts: dict[str, list[float]] = {}  # drafter -> [shift, precision]

    def of(self, kind: Kind) -> float:
        """Return the chance that a proposal of this kind is right."""
        chance = self._known.of(kind)
        shift = self._shifts.get(kind[0])
        return shifted(chance, shift[0]) if shift else chance

    def learn(self, kind: Kind, hit: bool) -> None:
        """Count a proposal that was right or not."""
        least = _FIRM_SHIFT_PRECISION if kind[0] in self._firm else _SHIFT_PRECISION
        shift = self._shifts.setdefault(kind[0], [0.0, least])
        chance = shifted(self._known.of(kind), shift[0])
        shift[1] = max(least, _SHIFT_FORGET * shift[1]) + chance * (1 - chance)
        shift[0] += (hit - chance) / shift[1]
        self._known.learn(kind, hit)


def fitted(priors: Sequence[float], seen: Sequence[tuple[float, float]]) -> list[float]:
    """Return acceptance rates with their log odds shifted alike, as observations suggest, and then each moved to its own observations.

    Args:
        beliefs: Rate for each bucket before anything was seen.
        seen: Hits and places for each bucket.
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
    """Return a chance whose log odds are moved by `shift`."""
    chance = max(_NEVER, min(1 - _NEVER, chance))
    odds = chance / (1 - chance) * math.exp(max(-_SHIFT_MOST, min(_SHIFT_MOST, shift)))
    return odds / (1 + odds)
