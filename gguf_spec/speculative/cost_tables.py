"""Measured cost tables: repair of a wrong entry, and costs of the widths between the measured ones.

A table maps the width of a pass, in tokens, to seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping

# Largest distance of a valid entry from its neighbours, as a natural logarithm (a factor of 2.2).
# No step of a real table is larger.
_STEEPEST = 0.8
# Fewest entries of a table that show which of them is wrong.
_FEWEST_WITNESSES = 4


def repaired(measured: Mapping[int, float]) -> dict[int, float]:
    """Return a measured table in which an entry that contradicts the others is replaced.

    Each entry is compared with the value that the other entries give for it. A wrong entry makes
    its neighbours look wrong too. Of all conspicuous entries, the one whose removal makes the rest
    fit best is replaced.

    Args:
        measured: Width in tokens -> seconds.
    """
    if len(measured) < _FEWEST_WITNESSES:
        return dict(measured)
    odd = [n for n in measured if _misfit(measured, n) > _STEEPEST]
    if not odd:
        return dict(measured)
    rests = {n: {m: s for m, s in measured.items() if m != n} for n in odd}
    worst = min(odd, key=lambda n: max(_misfit(rests[n], m) for m in rests[n]))
    return rests[worst] | {worst: interpolate(rests[worst], worst)}


def _misfit(measured: Mapping[int, float], n: int) -> float:
    """Return how far an entry is from the value that the others give, as a natural logarithm."""
    return abs(
        math.log(measured[n] / interpolate({m: s for m, s in measured.items() if m != n}, n))
    )


def interpolate(measured: Mapping[int, float], n: int) -> float:
    """Return the seconds of a pass over `n` tokens from those of other widths."""
    widths = sorted(measured)
    if n in measured or len(widths) == 1:
        return measured.get(n, n / widths[0] * measured[widths[0]])
    i = min(max(bisect_left(widths, n), 1), len(widths) - 1)
    first, a, b = widths[0], widths[i - 1], widths[i]
    rise = (measured[b] - measured[a]) / (b - a)
    if n <= b:
        return max(measured[b] - rise * (b - n), 1e-9)
    steady = (measured[b] - measured[first]) / (b - first)
    # Beyond the table a row costs as much as the last rows, but at most the mean of all rows before
    # it: kernels gain from more rows.
    return measured[b] + (n - b) * max(min(max(rise, steady), measured[b] / b), 0.0)


def interpolate_depth(depth: Mapping[int, float], n: int) -> float:
    """Return the depth cost of a pass over `n` tokens, in seconds for each cached token.

    It is linear between measured widths, and proportional to the number of rows outside them.
    """
    widths = sorted(depth)
    if not widths:
        return 0.0
    i = bisect_left(widths, n)
    if i == len(widths) or i == 0:
        end = widths[min(i, len(widths) - 1)]
        return depth[end] * n / end
    a, b = widths[i - 1], widths[i]
    return depth[a] + (depth[b] - depth[a]) * (n - a) / (b - a)
