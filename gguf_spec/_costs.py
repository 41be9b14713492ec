"""What a pass of a model costs here: a staircase in the number of tokens, measured once and then corrected by every pass."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping

_STEP = 0.08  # how far one pass moves what is known of passes of its width
_REACH = 3  # widths to either side that it moves too, half as far with each step; but a single token has kernels of its own
_PACE_STEP = 0.1  # and of the machine's pace
_LEAP = 0.4  # logarithm of the most that one pass may be off: beyond that another program had the processor


class Pace:
    """How fast the machine is today against when it was measured; one for all models on it."""

    def __init__(self) -> None:
        self.factor = 1.0

    def learn(self, error: float) -> None:
        """Take note that a pass took `exp(error)` times what was predicted."""
        self.factor *= math.exp(_PACE_STEP * error)


class Costs:
    """Seconds of a pass over n tokens after n_past others: `pace * (base[n] + n * slope * n_past)`.

    The base is a table, for wide passes are not simply dearer: kernels work on rows of four or eight. Attention looks at every cached token
    for every row.

    Attributes:
        base: Seconds of a pass over n tokens with nothing before, at index n; index 0 is 0.
        slope: Seconds for each row and each cached token.
    """

    def __init__(self, measured: Mapping[int, float], depth: Mapping[int, float], n_most: int, pace: Pace) -> None:
        """Take measured widths, at least one; those between are interpolated, those beyond go on as the last two do."""
        slope = depth[min(depth)] / min(depth)
        self.base = [0.0, *(interpolate(measured, n) for n in range(1, n_most + 1))]
        self.slope, self._pace = slope, pace
        self._per_row = self.base[-1] / n_most

    def seconds(self, n: int, n_past: int) -> float:
        """Return what a pass over `n` tokens will take; beyond the table by its last row's cost for each token."""
        base = self.base[n] if n < len(self.base) else n * self._per_row
        return self._pace.factor * (base + n * self.slope * n_past)

    def learn(self, n: int, n_past: int, seconds: float) -> None:
        """Take note of what a pass took."""
        if n >= len(self.base):
            return
        error = max(-_LEAP, min(_LEAP, math.log(max(seconds, 1e-9) / self.seconds(n, n_past))))
        attention = n * self.slope * n_past
        share = attention / (self.base[n] + attention)
        step = _STEP * (1 - share) * error
        for width in range(max(2, n - _REACH), min(len(self.base), n + _REACH + 1)) if n > 1 else (1,):
            self.base[width] *= math.exp(step / 2 ** abs(width - n))
        self.slope *= math.exp(_STEP * share * error)
        self._pace.learn(error)


class Overhead:
    """What Python takes around passes, in seconds each time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def learn(self, seconds: float) -> None:
        """Take note of one time; a single long one is another program's doing."""
        seconds = max(seconds, 0.0)
        most = 4 * self.seconds if self.seconds else seconds
        self.seconds += _PACE_STEP * (min(seconds, most) - self.seconds) if self.seconds else seconds


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
    # What was not measured is no bargain, but no row is dearer than those before it: kernels gain from more of them.
    return measured[b] + (n - b) * max(min(max(rise, steady), measured[b] / b), 0.0)
