"""Cost model of the passes of one model: a measured table over pass widths, corrected by every pass.

Symbols: a pass of width n computes n rows behind `n_past` cached tokens. `seconds(n, n_past) = pace * (base[n] + depth[n] * n_past)`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping

_TABLE_STEP = 0.08  # share of a pass's error that its table entry takes on
_PACE_STEP = 0.1  # share of a pass's error that the machine's pace takes on
_REACH = 3  # neighbouring widths that learn too, half as much with each step; width 1 has kernels of its own
_OUTLIER = 0.4  # natural logarithm; a larger error is a wrong entry if it comes twice in a row, else another program's doing
_SAME_JUMP = 0.5  # two widths whose corrections differ by less than this logarithm were moved by the same cause: the machine
_JUMP_MEMORY = 64  # passes in which corrections of two widths are compared
_STEEPEST = (
    0.8  # logarithm; no step of a real table is further from its neighbours, a factor of 2.2
)
_FEWEST_WITNESSES = 4  # entries of a table that can tell which of them is wrong
_CONFIRMED = 2  # passes after which an entry is known from use
_NARROWER = 1.5  # a pass costs at most this many times as much as a wider one: kernels gain from full blocks of rows
_DEPTH_STEP = (
    0.3  # share of a pass's error that the depth of its width takes on, as far as it is to blame
)
_DEEP = 2000.0  # cached tokens that may double the time of a pass where nothing else is known
_BASE_DOUBT = 0.15  # share of a base that may be wrong
_NEGLIGIBLE = 0.01
_CONTRADICTED = (
    3  # corrections after which measured entries that were never used follow those that were
)
_UNTRIED = 4.0  # an entry that is not confirmed may be this many times too high


class Pace:
    """Speed of the machine against the time of measuring, as a factor on seconds; shared by all models on it."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._n_passes = 0
        self._jumps: list[tuple[int, CostModel, int, float]] = []

    def learn(self, error: float) -> None:
        """Move towards a pass that took `exp(error)` times the prediction."""
        self._n_passes += 1
        self.factor *= math.exp(_PACE_STEP * error)

    def jumped(self, costs: CostModel, n: int, size: float) -> None:
        """Take over a correction if another model's entry, or that of single tokens, was corrected alike a moment ago: then the machine changed.

        Two widths of one table prove nothing: one wrong measurement between them moves both.
        """
        self._jumps = [one for one in self._jumps if self._n_passes - one[0] < _JUMP_MEMORY]
        for at, other, width, earlier in self._jumps:
            if (other is not costs or (width == 1) != (n == 1)) and abs(
                earlier - size
            ) < _SAME_JUMP:
                common = (earlier + size) / 2
                self.factor *= math.exp(common)
                costs.undo(n, common)
                other.undo(width, common)
                self._jumps.remove((at, other, width, earlier))
                return
        self._jumps.append((self._n_passes, costs, n, size))


class CostModel:
    """Seconds of a pass by its width and the tokens cached before it.

    Attributes:
        base: Seconds of a pass over n tokens into an empty cache, at index n; index 0 is 0.
        depth: Seconds more for each cached token, for the whole pass, at index n.
    """

    def __init__(
        self, measured: Mapping[int, float], depth: Mapping[int, float], n_most: int, pace: Pace
    ) -> None:
        """Make the table from a measurement.

        Args:
            measured: Width -> seconds with an empty cache; at least one width.
            depth: Width -> seconds more for each cached token; empty where that is not known.
            n_most: Widest pass of the table. Wider ones read prompts; they have one cost for each row.
            pace: Speed of the machine.
        """
        measured = repaired(measured)
        self.base = [0.0, *(interpolate(measured, n) for n in range(1, n_most + 1))]
        self.depth = [0.0, *(interpolate_depth(depth, n) for n in range(1, n_most + 1))]
        self._pace = pace
        self._wide_row_s = self.base[-1] / n_most  # of passes beyond the table
        self._wide_depth = self.depth[-1] / n_most
        self._anchors = {
            n for n in measured if n <= n_most
        }  # widths known from measuring or from use; others are interpolated
        self._n_passes = [0] * (n_most + 1)
        self._caps = (
            [math.inf] * (n_most + 1)
        )  # the most that entries may cost by what is known of others; only those never used have one
        self._n_corrected = 0
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
        in_table = n < len(self.base)
        if in_table:
            self.base[n], self._caps[n] = min(self.base[n], self._caps[n]), math.inf
        size = self._twice(min(n, len(self.base)), error)
        if in_table and not self._n_passes[n] and n not in self._anchors and abs(error) > _OUTLIER:
            size = (
                error / 2
            )  # never measured: an estimate that is this far off is worth less than one pass
        if size:
            self._correct(n, n_past, size)
        else:
            clipped = max(-_OUTLIER, min(_OUTLIER, error))
            by_depth = self._blame_of_depth(n, n_past)
            if by_depth > _NEGLIGIBLE:
                took = (
                    self._unpaced(n, n_past) * math.expm1(_DEPTH_STEP * by_depth * clipped) / n_past
                )
                self._set_depth(n, max(self._depth_of(n) + took, 0.5 * self._depth_of(n)))
            self.scale(n, _TABLE_STEP * (1 - by_depth) * clipped)
            self._pace.learn((1 - by_depth) * clipped)
        if in_table:
            self._n_passes[n] += 1
            if self._n_passes[n] == _CONFIRMED:
                self._anchors.add(n)
        else:
            self._has_read = True
        if size or not in_table or self._n_passes[n] == _CONFIRMED:
            self.set_caps()

    def is_doubtful(self, n: int) -> bool:
        """Return whether the last pass of this width was far off, and nothing was made of that yet."""
        return n < len(self.base) and abs(self._last_errors[n]) > _OUTLIER

    def _twice(self, at: int, error: float) -> float:
        """Return the smaller of the last two errors of a width if both are large and of one sign, else 0."""
        last, self._last_errors[at] = self._last_errors[at], error
        size = math.copysign(min(abs(last), abs(error)), error) if last * error > 0 else 0.0
        if abs(size) <= _OUTLIER:
            return 0.0
        self._last_errors[at] = 0.0
        return size

    def scale(self, n: int, log_base: float) -> None:
        """Multiply the base of width `n` by `exp(log_base)`, and that of its neighbours half as far with each step."""
        if n >= len(self.base):
            self._wide_row_s *= math.exp(log_base)
            return
        for width in (
            range(max(2, n - _REACH), min(len(self.base), n + _REACH + 1)) if n > 1 else (1,)
        ):
            if width == n or self._n_passes[width] < _CONFIRMED:
                self.base[width] *= math.exp(log_base * 0.5 ** abs(width - n))

    def _blame_of_depth(self, n: int, n_past: int) -> float:
        """Return which part of an error is the depth's: the further into a text, the more, for the base is known better."""
        base = self.base[n] if n < len(self.base) else n * self._wide_row_s
        of_depth = max(self._depth_of(n), base / _DEEP) * n_past
        return of_depth**2 / ((_BASE_DOUBT * base) ** 2 + of_depth**2)

    def _correct(self, n: int, n_past: int, size: float) -> None:
        """Correct an entry so that passes of its width are predicted to take `exp(size)` times as long."""
        whole, attention = self._unpaced(n, n_past), self._depth_of(n) * n_past
        rest = math.exp(size) * whole - (whole - attention)
        if rest > 0 and self._blame_of_depth(n, n_past) > 0.5:
            self._set_depth(n, rest / n_past)
            return
        log_base = math.log(max((math.exp(size) * whole - attention) / (whole - attention), 0.05))
        self._shift(self.base, n, log_base)
        self._n_corrected += 1
        if self._n_corrected == _CONTRADICTED:
            self._anchors = {width for width in self._anchors if self._n_passes[width]}
        self._pace.jumped(self, n, log_base)

    def _unpaced(self, n: int, n_past: int) -> float:
        """Return the seconds of a pass at the pace of measuring."""
        return self.seconds(n, n_past) / self._pace.factor

    def _depth_of(self, n: int) -> float:
        return self.depth[n] if n < len(self.depth) else n * self._wide_depth

    def _set_depth(self, n: int, depth: float) -> None:
        """Set the depth of width `n`, and scale those derived from it."""
        before = self._depth_of(n)
        if before > 0:
            self._shift(self.depth, n, math.log(depth / before))
        elif depth > 0:
            self.depth = [depth * width / n for width in range(len(self.depth))]
            self._wide_depth = depth / n

    def _shift(self, entries: list[float], n: int, size: float) -> None:
        """Multiply entry `n` by `exp(size)`, and those derived from it: less with the distance up to the next known width, all beyond the last."""
        if n >= len(self.base):
            if entries is self.base:
                self._wide_row_s *= math.exp(size)
            else:
                self._wide_depth *= math.exp(size)
            return
        below = max((width for width in self._anchors if width < n), default=0)
        above = min((width for width in self._anchors if width > n), default=0)
        for width in range(below + 1, above or len(entries)):
            distance = (
                (n - width) / (n - below)
                if width < n
                else (width - n) / (above - n)
                if above
                else 0.0
            )
            entries[width] *= math.exp(size * (1 - distance))

    def undo(self, n: int, size: float) -> None:
        """Take back a correction of the base."""
        self._shift(self.base, n, -size)
        self.set_caps()

    def set_caps(self) -> None:
        """Bound the entries that were never used by those that were, and by what prompts cost.

        A narrower pass costs hardly more than a wider one, and a wider one not more than several narrow ones.
        """
        known = [
            (n, self.base[n]) for n in range(1, len(self.base)) if self._n_passes[n] >= _CONFIRMED
        ]
        if self._has_read:
            known.append((len(self.base), len(self.base) * self._wide_row_s))
        for width in range(1, len(self.base)):
            if not self._n_passes[width]:
                self._caps[width] = min(
                    (_NARROWER * s if width < n else s * -(-width // n) for n, s in known),
                    default=math.inf,
                )


class Overhead:
    """Python's time around passes, in seconds each time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def learn(self, seconds: float) -> None:
        """Move towards one time; a single long one is another program's doing."""
        seconds = max(seconds, 0.0)
        most = 4 * self.seconds if self.seconds else seconds
        self.seconds += (
            _PACE_STEP * (min(seconds, most) - self.seconds) if self.seconds else seconds
        )


def repaired(measured: Mapping[int, float]) -> dict[int, float]:
    """Return a measured table; where one entry does not fit the others, they decide.

    An entry is compared with what its neighbours give without it. A wrong one makes its neighbours look wrong too: of those that stand out, that
    is replaced without which the rest fits best.
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
    """Return how far an entry is from what the others give, as a logarithm."""
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
