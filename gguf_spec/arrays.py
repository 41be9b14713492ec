"""Array types, and arithmetic that gives the same bits on every machine.

Types: logits of shape `(V,)` or `(n, V)`, and token ids. NumPy's exp, log and sums depend on the
processor and on the version in their last bits, and a seed must give the same text everywhere. The
functions here are sequences of single operations, each of which IEEE 754 defines.
`kernels/sampling.cpp` has the same ones. They are slower than NumPy's, so a choice is made by
NumPy's where it is clear: where `CLEAR` would not change it.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]
Floats = NDArray[np.float64]

# Relative difference far above the rounding of NumPy's functions, and far below what matters.
CLEAR = 1e-9
# Number of values whose intermediate results fit into a processor cache.
_AT_ONCE = 8192
# exp is 0 below this; above it no result is a denormal number.
_LOWEST = -708.0
_LOG2_E = 1.4426950408889634
# ln 2 in two parts; products of the first one with integers up to 2**20 are exact.
_LN2 = (6.93147180369123816490e-01, 1.90821492927058770002e-10)
# Coefficients of exp's Taylor series, the highest first.
_TAYLOR = tuple(1 / math.factorial(n) for n in range(13, -1, -1))
# Coefficients of FreeBSD's msun (e_log.c): log(1 + f) with s = f / (2 + f), by powers of s**2.
_LOG = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)
# Bits of the square root of 1/2, upper half.
_SQRT_HALF = 0x3FE6A09E << 32
# Number of sums that `total` computes side by side.
_LANES = 64


def row_bits(row: Logits) -> bytes:
    """Return a hash of the bits of a row."""
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def exp(values: ArrayLike) -> Floats:
    """Return e to the power of values up to 0, shape `(n,)`; 0 below -708."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) <= _AT_ONCE:
        return _exp(x)
    return np.concatenate([_exp(x[i : i + _AT_ONCE]) for i in range(0, len(x), _AT_ONCE)])


def _exp(x: Floats) -> Floats:
    rest = np.maximum(x, _LOWEST)
    n = rest * _LOG2_E
    np.rint(n, out=n)
    rest -= n * _LN2[0]
    rest -= n * _LN2[1]
    powers: Floats = rest * _TAYLOR[0]
    powers += _TAYLOR[1]
    for coefficient in _TAYLOR[2:]:
        powers *= rest
        powers += coefficient
    bits = n.astype(np.int64)
    bits += 1023
    bits <<= 52
    powers *= bits.view(np.float64)
    powers[x < _LOWEST] = 0
    return powers


def log(values: ArrayLike) -> Floats:
    """Return the natural logarithm of positive normal numbers, shape `(n,)`."""
    bits = np.array(values, dtype=np.float64).view(np.int64)
    bits += 0x3FF00000 - 0x3FE6A09E << 32
    n = ((bits >> 52) - 1023).astype(np.float64)
    bits &= (1 << 52) - 1
    bits += _SQRT_HALF
    f = bits.view(np.float64) - 1
    s = f / (f + 2)
    z = s * s
    series: Floats = z * _LOG[-1]
    for coefficient in _LOG[-2::-1]:
        series += coefficient
        series *= z
    half = f * f * 0.5
    return np.asarray(n * _LN2[0] - ((half - (s * (half + series) + n * _LN2[1])) - f))


def total(values: Floats) -> float:
    """Return the sum of values, shape `(n,)`, added in a fixed order."""
    n = len(values) - len(values) % _LANES
    if n:
        lanes = np.add.reduce(values[:n].reshape(-1, _LANES), axis=0)
        values = np.concatenate([lanes, values[n:]])
    return float(np.add.accumulate(values)[-1]) if len(values) else 0.0
