"""How likely the target is to say what a drafter proposes: counted for each kind of evidence that drafters give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_FORGET = 0.98  # of what was seen of a kind, each time that it is seen again
_KEPT = 20.0  # places of a kind that count when they are recalled another day
_DOUBT = 2.0  # places by which the first belief counts

Kind = tuple[str, int]
"""Who proposed, and how sure it was: a drafter's name and the number of a bucket, higher for surer."""


class Chances:
    """For each kind of proposal how often it was what the target said.

    Only places whose past was right are counted, so the product along a draft is the chance that all of it stays.
    """

    def __init__(self, beliefs: Mapping[str, Iterable[float]], firm: Mapping[str, float] | None = None) -> None:
        """Take for each name what to believe of its buckets before anything was seen; `firm` says of some for how many places that counts."""
        self._seen: dict[Kind, list[float]] = {}  # [hits, places]
        for name, chances in beliefs.items():
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
        seen[0] = _FORGET * seen[0] + hit
        seen[1] = _FORGET * seen[1] + 1

    def to_list(self) -> list[tuple[str, int, float, float]]:
        """Return all that was seen as plain values."""
        return [(*kind, hits, places) for kind, (hits, places) in self._seen.items()]

    def recall(self, seen: Iterable[Any]) -> None:
        """Take what `to_list` gave, of those kinds that are known.

        Raises:
            TypeError, ValueError: It is something else.
        """
        for name, bucket, hits, places in seen:
            if not 0 <= hits <= places < 1e6:
                raise ValueError(seen)
            if (name, bucket) in self._seen and places:
                self._seen[name, bucket] = [hits * min(1.0, _KEPT / places), min(places, _KEPT)]
