"""All randomness of a generation: seeded choices in sequence, and noise that belongs to a place in the text."""

from __future__ import annotations

import hashlib
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_U32 = np.uint32
_FEW = 2048  # ids whose noise is computed at once; of more, only those that can win
_AT_ONCE = 16384  # ids whose arrays fit into a cache
_LEAST_WEIGHT = np.float32(1e-28)  # 2**32 over it is still a single-precision number


class Rng(Protocol):
    """Where all randomness of a generation comes from."""

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""

    def choose(self, probabilities: NDArray[np.float64]) -> int:
        """Return an index into `probabilities`, shape `(n,)`, sum 1, drawn by them."""

    def pick(self, ids: NDArray[np.int64], logits: NDArray[np.floating], temperature: float, position: int) -> int:
        """Return an index into `ids`, drawn by norm(exp(logits / temperature)). The noise belongs to position and id, whoever asks, and how often."""

    def gumbel(self, ids: NDArray[np.int64], position: int) -> NDArray[np.float64]:
        """Return the noise that `pick` uses."""

    def coin(self, position: int) -> int:
        """Return 32 random bits that belong to a position."""


class SeededRng:
    """Random choices that depend on the seed alone.

    `chance` and `choose` go through one sequence of numbers; a choice with one outcome draws nothing. `pick` is the Gumbel-max trick,
    argmax(logit / temperature + g), with one g for each position and id: two that pick at the same place by nearly the same logits nearly always pick
    the same. g comes from 64 bits, hashed from the seed, the position and the id, for just the ids asked for.

    Source: Daliri, Musco, Suresh 2024, arXiv:2408.07978 (drafter-invariant speculative decoding).
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed.to_bytes(8, "little")
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

    def pick(self, ids: NDArray[np.int64], logits: NDArray[np.floating], temperature: float, position: int) -> int:
        """Return an index into `ids`, drawn by norm(exp(logits / temperature)), always the same for the same arguments."""
        few = self._contenders(ids, logits, temperature, position) if len(ids) > _FEW else np.arange(len(ids))
        scores = (logits[few].astype(np.float64) - logits.max()) / temperature
        return int(few[np.argmax(scores + self.gumbel(ids[few], position))])

    def gumbel(self, ids: NDArray[np.int64], position: int) -> NDArray[np.float64]:
        """Return the noise of some ids in one place, shape `(n,)`: independent standard Gumbel numbers."""
        keys, short = self._keys(position), ids.astype(_U32)
        # 64 random bits make a uniform number above 0 that is fine near 0, where the noise is largest
        uniform = (_hash(short, keys[0], keys[1]) * 2.0**32 + _hash(short, keys[2], keys[3]) + 0.5) * 2.0**-64
        return np.asarray(-np.log(-np.log1p(-np.minimum(uniform, 1 - 2.0**-53))))

    def coin(self, position: int) -> int:
        """Return 32 random bits that belong to a position; independent of `pick`."""
        return int(self._keys(position)[4])

    def _contenders(self, ids: NDArray[np.int64], logits: NDArray[np.floating], temperature: float, position: int) -> NDArray[np.intp]:
        """Return the indices of all that can win: with E = -log(1 - u) >= u, argmax(score + g) is argmin(E / exp(score)).

        The first 32 bits bound u from below, in single precision; a thousandth is more than rounding can hide.
        """
        keys, best, least = self._keys(position), logits.max(), np.empty(len(ids), dtype=np.float32)
        for i in range(0, len(ids), _AT_ONCE):
            part = slice(i, i + _AT_ONCE)
            with np.errstate(over="ignore"):  # far below the best is far enough
                weight = np.exp(((logits[part] - best) / temperature).astype(np.float32, copy=False))
            np.maximum(weight, _LEAST_WEIGHT, out=weight)
            np.divide(_hash(ids[part].astype(_U32), keys[0], keys[1]), weight, out=least[part], dtype=np.float32, casting="same_kind")
        first = least.argmin()
        weight_of_first = max(np.exp((float(logits[first]) - best) / temperature), _LEAST_WEIGHT)
        race = np.exp(-self.gumbel(ids[first : first + 1], position)[0]) * 2.0**32 / weight_of_first
        return np.flatnonzero(least <= race * 1.001)

    def _keys(self, position: int) -> NDArray[np.uint32]:
        return np.frombuffer(hashlib.blake2b(position.to_bytes(8, "little"), key=self._seed, digest_size=20).digest(), "<u4")


def _hash(ids: NDArray[np.uint32], a: np.uint32, b: np.uint32) -> NDArray[np.uint32]:
    """Return 32 random bits for each id: two rounds of multiply and shift, each with a key of its own."""
    x = ids * _U32(0x9E3779B9)
    x += a
    x ^= x >> _U32(16)
    x *= _U32(0x21F0AAAD)
    x += b
    x ^= x >> _U32(15)
    x *= _U32(0xD35A2D97)
    x ^= x >> _U32(15)
    return x
