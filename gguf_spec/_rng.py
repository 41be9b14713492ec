"""The random choices: two kinds, seeded, so that a test can replay every one of them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Rng(Protocol):
    """Where all randomness of a generation comes from."""

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""

    def choose(self, probabilities: NDArray[np.float64]) -> int:
        """Return an index into `probabilities`, shape `(n,)`, sum 1, drawn by them."""


class SeededRng:
    """Random choices that depend on the seed alone. A choice with one outcome draws nothing."""

    def __init__(self, seed: int) -> None:
        self._uniform = np.random.Generator(np.random.Philox(seed)).random

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        if probability >= 1 or probability <= 0:
            return probability >= 1
        return bool(self._uniform() < probability)

    def choose(self, probabilities: NDArray[np.float64]) -> int:
        """Return an index into `probabilities`, shape `(n,)`, drawn by them."""
        if len(probabilities) == 1:
            return 0
        cumulative = np.cumsum(probabilities)
        # Scaled by the sum and clipped at the last token that has mass: rounding never draws a token of probability 0.
        i = np.searchsorted(cumulative, self._uniform() * cumulative[-1], side="right")
        return int(min(i, np.searchsorted(cumulative, cumulative[-1], side="left")))
