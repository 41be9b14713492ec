"""Pairwise cases: few combinations in which each two values of two factors occur together."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any


def pairwise(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return combinations of one value of each factor that have all pairs of values.

    Most faults need one value or two together. The full product has them too, with many more cases.

    Source: Kuhn, Wallace and Gallo 2004, Software fault interactions and implications for software
    testing.
    """
    indices = list(product(*(range(len(one)) for one in factors)))
    missing = {pair for one in indices for pair in _pairs(one)}
    chosen = []
    while missing:
        best = max(indices, key=lambda one: sum(pair in missing for pair in _pairs(one)))
        missing.difference_update(_pairs(best))
        chosen.append(tuple(factor[i] for factor, i in zip(factors, best, strict=True)))
    return chosen


def _pairs(one: Iterable[int]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return list(combinations(enumerate(one), 2))
