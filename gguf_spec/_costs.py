"""Cost model of the passes of one model: a measured table over pass widths, corrected by every pass.

Symbols: a pass of width n computes n rows behind `n_past` cached tokens. `seconds(n, n_past) = pace * (base[n] + depth[n] * n_past)`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

_TABLE_STEP = 0.08  # share of a pass's error that its table entry takes on
_PACE_STEP = 0.1  # share of a pass's error that the machine's pace takes on
_REACH = 3  # neighbouring widths that learn too, half as much with each step; width 1 has kernels of its own
_OUTLIER = 0.4  # natural logarithm; a larger error is a wrong entry if it comes twice in a row, else another program's doing
_SAME_JUMP = 0.5  # two widths whose corrections differ by less than this logarithm were moved by the same cause: the machine
_JUMP_MEMORY = 64  # passes in which corrections of two widths are compared
_CONFIRMED = 2  # passes after which an entry is known from use
_NARROWER = 1.5  # a pass costs at most this many times as much as a wider one: kernels gain from full blocks of rows
_UNTRIED = 4.0  # an entry that is not confirmed may be this many times too high


class Pace:
    """Speed of the machine against the time of measuring, as a factor on seconds; shared by all models on it."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._n_passes = 0
        self._jumps: list[tuple[int, Costs, int, float]] = []

    def learn(self, error: float) -> None:
        """Move towards a pass that took `exp(error)` times the prediction."""
        self._n_passes += 1
        self.factor *= math.exp(_PACE_STEP * error)

    def jumped(self, costs: Costs, n: int, size: float) -> None:
        """Take over a correction of an entry if an entry elsewhere was corrected alike a moment ago: then the machine changed, not the entries."""
        self._jumps = [one for one in self._jumps if self._n_passes - one[0] < _JUMP_MEMORY]
        for at, other, width, earlier in self._jumps:
            if (other is not costs or abs(width - n) > _REACH or (width == 1) != (n == 1)) and abs(earlier - size) < _SAME_JUMP:
                common = (earlier + size) / 2
                costs.scale(n, -common)
                other.scale(width, -common)
                self.factor *= math.exp(common)
                costs.set_caps()
                other.set_caps()
                self._jumps.remove((at, other, width, earlier))
                return
        self._jumps.append((self._n_passes, costs, n, size))


class Costs:
    """Seconds of a pass by its width and the tokens cached before it.

    Attributes:
        base: Seconds of a pass over n tokens into an empty cache, at index n; index 0 is 0.
        depth: Seconds more for each cached token, for the whole pass, at index n.
    """

    def __init__(self, measured: Mapping[int, float], depth: Mapping[int, float], n_most: int, pace: Pace) -> None:
        """Make the table from a measurement.

        Args:
            measured: Width -> seconds with an empty cache; at least one width.
            depth: Width -> seconds more for each cached token; empty where that is not known.
            n_most: Widest pass of the table. Wider ones read prompts; they have one cost for each row.
            pace: Speed of the machine.
        """
        self.base = [0.0, *(interpolate(measured, n) for n in range(1, n_most + 1))]
        self.depth = [0.0, *(interpolate_depth(depth, n) for n in range(1, n_most + 1))]
        self._pace = pace
        self._wide_row_s = self.base[-1] / n_most  # of passes beyond the table
        self._wide_depth = self.depth[-1] / n_most
        self._n_passes = [0] * (n_most + 1)
        self._caps = [math.inf] * (n_most + 1)  # the most that entries may cost by what is known of others; only those never used have one
        self._has_read = False
        self._last_errors = [0.0] * (n_most + 2)  # the last place is that of wider passes

    def seconds(self, n: int, n_past: int) -> float:
        """Return the seconds of a pass over `n` tokens behind `n_past` others."""
        if n < len(self.base):
            return self._pace.factor * (min(self.base[n], self._caps[n]) + self.depth[n] * n_past)
        return self._pace.factor * n * (self._wide_row_s + self._wide_depth * n_past)

    def passes_s(self, first: int, n: int, n_past: int) -> list[float]:
        """Return the seconds of passes over `first`, `first` + 1, ... tokens, `n` of them."""
        return [self.seconds(width, n_past) for width in range(first, first + n)]

    def hopeful_s(self, first: int, n: int, n_past: int) -> list[float]:
        """Return the same as `passes_s` with entries that were never used as low as they may be; for exploring."""
        least = 0.9 * self.seconds(1, n_past)
        return [
            one if self.is_confirmed(width) else min(one, max(least, one / _UNTRIED))
            for width, one in enumerate(self.passes_s(first, n, n_past), first)
        ]

    def is_confirmed(self, n: int) -> bool:
        """Return whether passes of this width were seen since the table was made."""
        return n >= len(self.base) or self._n_passes[n] >= _CONFIRMED

    def reading_s(self, n: int, n_past: int, at_once: int) -> float:
        """Return the seconds of reading `n` tokens, `at_once` in a pass."""
        full, rest = divmod(n, at_once)
        seconds = sum(self.seconds(at_once, n_past + i * at_once) for i in range(full))
        return seconds + (self.seconds(rest, n_past + full * at_once) if rest else 0.0)

    def learn(self, n: int, n_past: int, seconds: float) -> None:
        """Correct the table by what a pass took.

        A small error moves the entry, its neighbours and the pace a little. A large one counts only if it comes twice in a row: then the smaller
        of the two corrects the entry in full. A single slow pass is the work of another program.
        """
        if n < 1 or not math.isfinite(seconds):
            return
        error = math.log(max(seconds, 1e-9) / self.seconds(n, n_past))
        if n < len(self.base):
            self.base[n], self._caps[n] = min(self.base[n], self._caps[n]), math.inf
        at = min(n, len(self.base))
        last, self._last_errors[at] = self._last_errors[at], error
        size = math.copysign(min(abs(last), abs(error)), error) if last * error > 0 else 0.0
        if abs(size) > _OUTLIER:
            self._last_errors[at] = 0.0
            self._correct(n, n_past, size)
        else:
            clipped = max(-_OUTLIER, min(_OUTLIER, error))
            share = self._attention_share(n, n_past)
            self.scale(n, _TABLE_STEP * (1 - share) * clipped, _TABLE_STEP * share * clipped)
            self._pace.learn(clipped)
        if n < len(self.base):
            self._n_passes[n] += 1
        else:
            self._has_read = True
        if n >= len(self.base) or self._n_passes[n] == _CONFIRMED or abs(size) > _OUTLIER:
            self.set_caps()

    def scale(self, n: int, log_base: float, log_depth: float = 0.0) -> None:
        """Multiply the entry of width `n` by the exponentials given, and its neighbours half as far with each step."""
        if n >= len(self.base):
            self._wide_row_s *= math.exp(log_base)
            self._wide_depth *= math.exp(log_depth)
            return
        for width in range(max(2, n - _REACH), min(len(self.base), n + _REACH + 1)) if n > 1 else (1,):
            share = 0.5 ** abs(width - n)
            self.base[width] *= math.exp(share * log_base)
            self.depth[width] *= math.exp(share * log_depth)

    def _attention_share(self, n: int, n_past: int) -> float:
        """Return the part of a pass that depends on the cached tokens."""
        base, depth = (self.base[n], self.depth[n]) if n < len(self.base) else (n * self._wide_row_s, n * self._wide_depth)
        return depth * n_past / (base + depth * n_past)

    def _correct(self, n: int, n_past: int, size: float) -> None:
        """Correct an entry so that passes of its width are predicted to take `exp(size)` times as long."""
        share = self._attention_share(n, n_past)
        factor = math.exp(size)
        if share > 0.5:
            self.scale(n, 0.0, math.log(max((factor - 1 + share) / share, 0.05)))
        else:
            before = self.base[n] if n < len(self.base) else self._wide_row_s
            self.scale(n, math.log(max((factor - share) / (1 - share), 0.05)))
            after = self.base[n] if n < len(self.base) else self._wide_row_s
            self._pace.jumped(self, n, math.log(after / before))

    def set_caps(self) -> None:
        """Bound the entries that were never used by those that were, and by what prompts cost.

        A narrower pass costs hardly more than a wider one, and a wider one not more than several narrow ones.
        """
        known = [(n, self.base[n]) for n in range(1, len(self.base)) if self._n_passes[n] >= _CONFIRMED]
        if self._has_read:
            known.append((len(self.base), len(self.base) * self._wide_row_s))
        for width in range(1, len(self.base)):
            if not self._n_passes[width]:
                self._caps[width] = min((_NARROWER * s if width < n else s * -(-width // n) for n, s in known), default=math.inf)


class Overhead:
    """Python's time around passes, in seconds each time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def learn(self, seconds: float) -> None:
        """Move towards one time; a single long one is another program's doing."""
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
    # Beyond the table a row costs what the last rows cost, but not more than the mean of those before it: kernels gain from more rows.
    return measured[b] + (n - b) * max(min(max(rise, steady), measured[b] / b), 0.0)


def interpolate_depth(depth: Mapping[int, float], n: int) -> float:
    """Return the seconds that each cached token adds to a pass over `n` tokens: linear between widths, outside them proportional to the rows."""
    widths = sorted(depth)
    if not widths:
        return 0.0
    i = bisect_left(widths, n)
    if i == len(widths) or i == 0:
        end = widths[min(i, len(widths) - 1)]
        return depth[end] * n / end
    a, b = widths[i - 1], widths[i]
    return depth[a] + (depth[b] - depth[a]) * (n - a) / (b - a)


def slope_depth(slope: float, widths: Sequence[int] = (1,)) -> dict[int, float]:
    """Return the depth table of a model whose rows each cost `slope` seconds for each cached token."""
    return {n: slope * n for n in widths}
