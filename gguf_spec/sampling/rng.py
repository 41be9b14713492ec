"""Random numbers of a generation: a seeded sequence, and noise that depends on the position."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.random  # not later: a fork in between would leave it half imported
from numpy.typing import NDArray

from ..arrays import CLEAR, Floats, log

_U32 = np.uint32
# Largest number of ids whose noise is computed for all; of more ids, only for those that can win.
FEW = 2048
# Number of ids from which it is faster to compute noise only for tokens near the best one.
_MANY = 32768
# Number of ids whose arrays fit into a processor cache.
AT_ONCE = 16384
# Smallest weight; 2**32 divided by it is finite in single precision.
LEAST_WEIGHT = np.float32(1e-28)
# Distance from the best score within which the noise of a token is always computed, in nats.
_NEAR = 6.0
# Numbers of smallest hash values that are inverted; inverting more needs fewer forward hashes.
_FIRST_HASHES = (4096, 65536)
# Limit of the fast path: if more than one token in ten is near, all hashes are computed.
_SHARE = 10
# Factor that covers rounding in single precision.
_MARGIN = 1.001
# Odd constants of the hash, and their inverses modulo 2**32.
_MULTIPLIERS = (0x9E3779B9, 0x21F0AAAD, 0xD35A2D97)
_INVERSES = tuple(pow(multiplier, -1, 2**32) for multiplier in _MULTIPLIERS)


# Vocabulary size -> its ids.
_WHOLE: dict[int, NDArray[np.int64]] = {}


def all_ids(n: int) -> NDArray[np.int64]:
    """Return the ids 0 to n - 1, for the same `n` always the same read-only array."""
    if n not in _WHOLE:
        ids = np.arange(n)
        ids.flags.writeable = False
        _WHOLE.setdefault(n, ids)
    return _WHOLE[n]


class SeededRng:
    """Random choices that depend on the seed alone.

    `chance` and `choose` use one sequence of numbers; a choice with one outcome uses no number.
    `pick` is the Gumbel-max trick, argmax(logit / temperature + g), with one g for each position
    and id. Two calls at the same position with nearly the same logits nearly always give the same
    id. g comes from 64 bits, hashed from the seed, the position and the id, and only for the ids in
    question.

    Source: Daliri, Musco, Suresh 2024, arXiv:2408.07978 (drafter-invariant speculative decoding).
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed.to_bytes(8, "little")
        self._keyed = hashlib.blake2b(key=self._seed, digest_size=20)

    @cached_property
    def _uniform(self) -> Callable[[], float]:  # many requests need none of these numbers
        seed = int.from_bytes(self._seed, "little")
        return np.random.Generator(np.random.Philox(seed)).random

    def chance(self, probability: float) -> bool:
        if probability >= 1 or probability <= 0:
            return probability >= 1
        return bool(self._uniform() < probability)

    def choose(self, probabilities: NDArray[np.float64]) -> int:
        """Return an index drawn from `probabilities`, shape `(n,)`."""
        if len(probabilities) == 1:
            return 0
        cumulative = np.cumsum(probabilities)
        # The number is scaled by the sum, and the index clipped at the last token with mass.
        # Rounding therefore never gives a token of probability 0.
        i = np.searchsorted(cumulative, self._uniform() * cumulative[-1], side="right")
        return int(min(i, np.searchsorted(cumulative, cumulative[-1], side="left")))

    def pick(
        self,
        ids: NDArray[np.int64],
        logits: NDArray[np.floating],
        temperature: float,
        position: int,
    ) -> int:
        """Return an index into `ids`, drawn from norm(exp(logits / temperature)).

        The result is the same for the same arguments.
        """
        few = (
            self.contenders(ids, logits, temperature, position)
            if len(ids) > FEW
            else np.arange(len(ids))
        )
        scores = (logits[few].astype(np.float64) - logits.max()) / temperature
        found = scores + self.gumbel(ids[few], position)
        best = found.argmax()
        if np.count_nonzero(found >= found[best] - CLEAR) > 1:
            best = (scores + self.gumbel(ids[few], position, fixed=True)).argmax()
        return int(few[best])

    def gumbel(self, ids: NDArray[np.int64], position: int, fixed: bool = False) -> Floats:
        """Return the noise of ids at one position, shape `(n,)`.

        The values are independent standard Gumbel numbers.

        Args:
            fixed: Use functions that have the same bits everywhere.
        """
        keys, short = self.keys_at(position), ids.astype(_U32)
        # 64 random bits give a uniform number above 0 that is fine near 0, where the noise is
        # largest.
        bits = hash32(short, keys[0], keys[1]) * 2.0**32 + hash32(short, keys[2], keys[3])
        uniform = np.asarray((bits + 0.5) * 2.0**-64, dtype=np.float64)
        np.minimum(uniform, 1 - 2.0**-53, out=uniform)
        return np.asarray(-log(_of_exponential(uniform)) if fixed else -np.log(-np.log1p(-uniform)))

    def coin(self, position: int) -> float:
        """Return a uniform number of a position, in [0, 1), independent of `pick`.

        It is what llama.cpp's XTC draws with a seed of 32 bits: the first number of the Mersenne
        Twister.
        """
        seed = int(self.keys_at(position)[4]) % (2**32 - 1)
        return int.from_bytes(np.random.RandomState(seed).bytes(4), "little") / 2**32

    def contenders(
        self,
        ids: NDArray[np.int64],
        logits: NDArray[np.floating],
        temperature: float,
        position: int,
    ) -> NDArray[np.intp]:
        """Return the indices, ascending, of a few tokens that include the winner.

        With E = -log(1 - u) >= u, argmax(score + g) is argmin(E / exp(score)). The first 32 bits h
        of u bound u from below by h / 2**32. A token far from the best can win only with a very
        small h. The hash is a bijection, so the ids with a small h are computed from h.
        """
        if len(ids) > _MANY and (ids is _WHOLE.get(len(ids)) or (ids[1:] > ids[:-1]).all()):
            few = self._contenders_by_distance(ids, logits, temperature, position)
            if few is not None:
                return few
        least = np.empty(len(ids), dtype=np.float32)
        for i in range(0, len(ids), AT_ONCE):
            part = slice(i, i + AT_ONCE)
            self._bound(
                ids[part], logits[part], logits.max(), temperature, position, out=least[part]
            )
        return np.flatnonzero(
            least <= self._limit(ids, logits, int(least.argmin()), temperature, position)
        )

    def _contenders_by_distance(
        self,
        ids: NDArray[np.int64],
        logits: NDArray[np.floating],
        temperature: float,
        position: int,
    ) -> NDArray[np.intp] | None:
        """Return the contenders, or None if too many tokens are near the best one.

        `ids` must be ascending.
        """
        near = _above(logits, _NEAR * temperature)
        if len(near) > len(ids) // _SHARE:
            return None
        best = logits.max()
        least = self._bound(ids[near], logits[near], best, temperature, position)
        limit = self._limit(ids, logits, int(near[least.argmin()]), temperature, position)
        for n_hashes in _FIRST_HASHES:
            distance = max(_NEAR, math.log(limit / n_hashes)) if limit > 0 else _NEAR
            if distance > _NEAR:
                near = _above(logits, distance * temperature)
            if len(near) <= len(ids) // _SHARE:
                break
        else:
            return None
        if distance > _NEAR:
            least = self._bound(ids[near], logits[near], best, temperature, position)
        # Any other token has a weight below exp(-distance), so its hash must be below this number
        # to win.
        n_hashes = math.ceil(limit * math.exp(-distance) * _MARGIN) + 1
        lucky = ids_of(np.arange(n_hashes, dtype=_U32), *self.keys_at(position)[:2])
        lucky = lucky[lucky <= ids[-1]].astype(np.int64)
        if ids is not _WHOLE.get(len(ids)):
            at = np.searchsorted(ids, lucky)
            lucky = at[ids[at] == lucky]
        return np.union1d(near[least <= limit], lucky)

    def _bound(
        self,
        ids: NDArray[np.int64],
        logits: NDArray[np.floating],
        best: np.floating,
        temperature: float,
        position: int,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Return a lower bound of 2**32 * E / exp(score) in single precision, shape `(n,)`."""
        keys = self.keys_at(position)
        # A score of minus infinity has weight 0.
        with np.errstate(over="ignore"):
            weight = np.exp(((logits - best) / temperature).astype(np.float32, copy=False))
        np.maximum(weight, LEAST_WEIGHT, out=weight)
        return np.asarray(
            np.divide(
                hash32(ids.astype(_U32), keys[0], keys[1]),
                weight,
                out=out,
                dtype=np.float32,
                casting="same_kind",
            )
        )

    def _limit(
        self,
        ids: NDArray[np.int64],
        logits: NDArray[np.floating],
        i: int,
        temperature: float,
        position: int,
    ) -> float:
        """Return the upper limit of a contender's lower bound.

        It is 2**32 * E / exp(score) of the token at index `i`, times a margin for rounding.
        """
        weight = max(np.exp((float(logits[i]) - logits.max()) / temperature), LEAST_WEIGHT)
        return float(np.exp(-self.gumbel(ids[i : i + 1], position)[0]) * 2.0**32 / weight * _MARGIN)

    def keys(self, first: int, n: int) -> bytes:
        """Return the random numbers of `n` positions: what noise and coin are made of."""
        if n == 1:
            return self._digest(first)
        return b"".join([self._digest(i) for i in range(first, first + n)])

    def keys_at(self, position: int) -> NDArray[np.uint32]:
        return np.frombuffer(self._digest(position), "<u4")

    def _digest(self, position: int) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(position.to_bytes(8, "little"))
        return keyed.digest()


def _of_exponential(uniform: Floats) -> Floats:
    """Return -log(1 - u) of uniform numbers u, as exact as u near 0."""
    rest = 1 - uniform
    rounded = 1 - rest
    tiny = rounded == 0
    rounded[tiny] = rest[tiny] = 0.5
    return np.where(tiny, uniform, -log(rest) * (uniform / rounded))


def _above(logits: NDArray[np.floating], distance: float) -> NDArray[np.intp]:
    """Return the indices of all logits at most `distance` below the best one.

    A few more at the limit may be included.
    """
    limit = logits.dtype.type(
        max(float(logits.max()) - distance, float(np.finfo(logits.dtype).min))
    )
    return np.flatnonzero(logits >= np.nextafter(limit, logits.dtype.type(-np.inf)))


def hash32(ids: NDArray[np.uint32], a: np.uint32, b: np.uint32) -> NDArray[np.uint32]:
    """Return 32 random bits for each id, shape `(n,)`.

    The hash has two rounds of multiplication and shift, each with its own key.
    """
    x: NDArray[np.uint32] = ids * _U32(_MULTIPLIERS[0])
    x += a
    x ^= x >> _U32(16)
    x *= _U32(_MULTIPLIERS[1])
    x += b
    x ^= x >> _U32(15)
    x *= _U32(_MULTIPLIERS[2])
    x ^= x >> _U32(15)
    return x


def ids_of(hashes: NDArray[np.uint32], a: np.uint32, b: np.uint32) -> NDArray[np.uint32]:
    """Return the id of each hash: the inverse of `hash32`, step by step."""
    x: NDArray[np.uint32] = hashes ^ (hashes >> _U32(15)) ^ (hashes >> _U32(30))
    x *= _U32(_INVERSES[2])
    x ^= (x >> _U32(15)) ^ (x >> _U32(30))
    x -= b
    x *= _U32(_INVERSES[1])
    x ^= x >> _U32(16)
    x -= a
    x *= _U32(_INVERSES[0])
    return x
