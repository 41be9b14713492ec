"""Cost model of the passes of one model: measured times by pass width, updated by each pass.

Symbols of the cost model and of the decisions on the draft length:

    Symbol  Meaning                                                    Unit      Code
    n       width of a pass: number of tokens decoded in it            tokens    `n`
    d       depth of a pass: cached tokens before it                   tokens    `n_past`
    V(n)    verify cost: time of a target pass of width n              s         `seconds(n, d)`
    D(n)    draft cost: time of a draft-model pass of width n          s         `seconds(n, d)`
    b(n)    base: time of a pass with an empty cache                   s         `base[n]`
    a(n)    depth cost: time per cached token, of the whole pass       s/token   `depth[n]`
    f       machine speed: time of a pass relative to the measurement  1         `Pace.factor`
    t       Python's time for each emitted token                       s/token   `Prices.token_s`
    c_i     acceptance rate of draft token i after right tokens        1         `chances`
    R_i     reach of draft token i: c_1 c_2 ... c_i                    1         `reaches`
    r       throughput, the price of a second                          tokens/s  `Prices.rate`
    w       value of an emitted token: 1 - r t                         tokens    `Prices.worth`

    V(n) = f (b(n) + a(n) d), and the same for D(n) with the draft model's table
    gain(m) = w (R_1 + ... + R_m) - r (V(1 + m) - V(1)), of checking m draft tokens

The gain assumes one pending token. b(n) and a(n) are in seconds at the machine speed of the
measurement.

Several sequences may be decoded in common passes. All of them wait for the pass, so its whole time
is the price of each. With N sequences of r rows each, a pass emits on average

    sum over the sequences of 1 + R_1 + ... + R_(r-1) tokens in V(N, r) seconds,

where R_i is the reach of draft token i (`speculative.draft_length`). The rows are equally many for
all sequences, because llama.cpp decodes unequal numbers in several passes. Their number is the one
with the largest value: these tokens, less the price of the seconds. The price is the throughput of
all sequences in recent passes, drafting included. Draft models propose tokens in common passes,
too. Before each of these the scheduler decides which sequences propose another token, for all at
once: a request that decides for itself drafts tokens that the common pass then leaves out. With
many sequences a row is expensive and the best r is 1; alone it is what one request would choose.

V(N, r) is the cost of N r rows of one sequence, and of reading the caches of the N - 1 others: a
pass over one token behind d cached ones takes V(1, d) - V(1, 0) longer than with an empty cache.
The sum is multiplied by a factor that is learned for each number of rows N r: errors of the table
of one sequence are the largest ones.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, ParamSpec

import numpy as np
from numpy.typing import NDArray

# Weight of one pass's log error in the update of its table entry.
_TABLE_STEP = 0.08
# Weight of one pass's log error in the update of the machine speed.
_PACE_STEP = 0.1
# Limit of a small error, as a natural logarithm. A larger error is a wrong entry if it occurs twice
# in a row, and otherwise the effect of another program.
_OUTLIER = 0.4
# Most that a pass over several tokens costs, relative to as many passes over one.
_MOST_OF_SINGLE = 2.0
# Number of passes within which a large error of a single token shows that other errors like it are
# of the machine.
_NEAR = 5
# Passes over single tokens after which entries that were not used meanwhile are moved back towards
# the measurement, and the share of a correction, as a logarithm, that is left. Each further
# correction upward makes it four times as many, up to a limit; one that is undone takes that back.
_FADE_EVERY, _FADED, _MOST_PATIENCE = 32, 0.8, 1024
# Largest difference of two corrections with a common cause (the machine), as a natural logarithm.
_SAME_JUMP = 0.5
# Number of passes within which the corrections of two widths are compared.
_JUMP_MEMORY = 64
# Number of passes after which an entry is confirmed.
_CONFIRMED = 2
# Largest cost of a pass relative to a wider one. It exceeds 1 because kernels gain from full blocks
# of rows.
_NARROWER = 1.5
# Weight of one pass's log error in the update of the depth cost, times the share of the depth.
_DEPTH_STEP = 0.3
# Number of cached tokens that may double the time of a pass, if no depth cost is known.
_DEEP = 2000.0
# Relative uncertainty of a base.
_BASE_DOUBT = 0.15
# Depth cost that no error makes smaller, in seconds for each cached token.
_LEAST_DEPTH = 1e-15
# Share of the depth in an error up to which the depth cost stays unchanged.
_NEGLIGIBLE = 0.01
# Number of corrections after which measured entries that no pass has used follow the used ones.
_CONTRADICTED = 3
# Number of corrections after which the table is checked again.
_REFUTED = 2
# Factor by which an unconfirmed entry may be too high.
_UNTRIED = 4.0
# Widths that a check of the table decodes, in tokens, in this order.
_CHECKED = (1, 2, 4, 8, 16)
# Number of passes of a width before a large error can be that of the machine and not of the entry.
_ESTABLISHED = 4
# Passes of a guessed width, and over single tokens of a guessed table, whose shortest one counts.
_OF_GUESS, _SINGLES_OF_GUESS = (2, 4)


class Pace:
    """Machine speed: factor on all predicted seconds relative to the time of measuring.

    All models on the machine share it.
    """

    factor: float

    def __init__(self) -> None:
        self.factor = 1.0
        self._n_passes = 0
        self._jumps: list[tuple[int, CostModel, int, float]] = []

    def learn(self, error: float) -> None:
        """Update the factor with a pass that took `exp(error)` times the prediction."""
        self._n_passes += 1
        self.factor *= math.exp(_PACE_STEP * error)

    def led(self, size: float) -> None:
        """Apply a correction of the width that leads, and undo those with the same cause."""
        self.factor *= math.exp(size)
        alike = [one for one in self._jumps if abs(one[-1] - size) < _SAME_JUMP]
        self._jumps = [one for one in self._jumps if one not in alike]
        for at, costs, width, earlier in alike:
            if self._n_passes - at < _JUMP_MEMORY:
                costs.undo(width, earlier)

    def forget(self, costs: CostModel, n: int) -> None:
        """Forget the corrections of an entry, which were undone."""
        self._jumps = [one for one in self._jumps if one[1] is not costs or one[2] != n]

    def jumped(self, costs: CostModel, n: int, size: float) -> None:
        """Move a correction to the machine speed if an unrelated entry had a similar one just now.

        Two unrelated entries that were wrong by the same factor mean that the machine changed, not
        the entries. Unrelated are those of two models, and single tokens and any other width of
        one model. Two other widths are not: one wrong measurement between them moves both.
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
    """Seconds of a pass by its width and the number of tokens cached before it.

    Attributes:
        base: Seconds of a pass over n tokens with an empty cache, at index n; index 0 is 0.
        depth: Extra seconds of the whole pass for each cached token, at index n; index 0 is 0.
        n_checks: Number of checks of the table that have ended.
        is_guess: Costs of some widths were a guess at first.
    """

    depth: list[float]
    n_checks: int
    is_guess: bool

    def __init__(
        self,
        measured: Mapping[int, float],
        depth: Mapping[int, float],
        n_most: int,
        pace: Pace,
        guesses_depth: bool = False,
        trusted: bool = True,
        leads: bool = False,
        guessed: Collection[int] = (),
    ) -> None:
        """Make the table from a measurement.

        Args:
            measured: Width in tokens -> seconds with an empty cache; at least one width.
            depth: Width in tokens -> extra seconds for each cached token; empty if not known.
            n_most: Widest pass of the table, in tokens. Wider passes read prompts and have one cost
                per row.
            guesses_depth: `depth` is an estimate: a correction applies to all widths that no
                pass corrected.
            trusted: The measurement is right: an error is that of the machine. Otherwise the first
                errors of an entry are its own.
            leads: Single tokens show the speed of the machine, as most passes are over one token:
                while other programs run, all widths take longer, and not that of the moment alone.
                Only of a measurement that is trusted: the corrections of another one are its own.
            guessed: Widths of `measured` that no pass timed. The first pass of one counts in full;
                that over a single token, of the model that leads, is the speed of the machine.
        """
        measured = repaired(measured)
        self.base: list[float] = [0.0, *(interpolate(measured, n) for n in range(1, n_most + 1))]
        self.depth = [0.0, *(interpolate_depth(depth, n) for n in range(1, n_most + 1))]
        self._pace = pace
        # Seconds of a row, and seconds of a row for each cached token, in passes wider than the
        # table.
        self._wide_row_s = self.base[-1] / n_most
        self._wide_depth = self.depth[-1] / n_most
        # Widths known from a measurement or from use; other widths are interpolated.
        self._anchors = {n for n in measured if n <= n_most and n not in guessed}
        # Guessed widths, each with the number of its passes that still count in full.
        self._guessed = dict.fromkeys(guessed, _OF_GUESS)
        self._untimed = {*guessed}
        self.is_guess, self._sets_pace = bool(guessed), leads
        if leads and 1 in guessed:
            self._guessed[1] = _SINGLES_OF_GUESS
        # Widths of an estimated depth cost that passes corrected, the length of the table for all
        # wider passes; None if the depth cost was measured.
        self._corrected_depth: set[int] | None = set() if guesses_depth else None
        self._n_passes = [0] * (n_most + 1)
        # Upper bound of each entry, derived from other entries; finite only for entries that were
        # never used.
        self._caps = [math.inf] * (n_most + 1)
        self._n_corrected = 0
        # Widths that the next rounds decode, in tokens.
        self._to_check: list[int] = []
        self.n_checks, self._is_trusted = 0, trusted
        # Whether single tokens may lead, and whether they do: from the first one that took about as
        # long as was measured.
        self._may_lead, self._is_leading = leads and trusted, False
        # The table as measured; passes over single tokens: their number, that when each width was
        # used last, that of the last time that entries faded, and how many there are between two.
        self._measured, self._n_single = [*self.base], 0
        self._used_at = [0] * (n_most + 1)
        self._faded_at, self._patience = 0, _FADE_EVERY
        # Number of passes; that of the last large error of a single token, and the error; that of
        # the last correction of another width, the width and the size.
        self._n_learned, self._single = 0, (-_NEAR, 0.0)
        self._other = (-_NEAR, 0, 0.0)
        self._has_read = False
        # Last log error of each width; the last index stands for all wider passes.
        self._last_errors = [0.0] * (n_most + 2)

    def seconds(self, n: int, n_past: int) -> float:
        """Return the seconds of a pass over `n` tokens behind `n_past` cached ones."""
        if n < len(self.base):
            return self._pace.factor * (min(self.base[n], self._caps[n]) + self.depth[n] * n_past)
        return self._pace.factor * n * (self._wide_row_s + self._wide_depth * n_past)

    def passes_s(self, first: int, n: int, n_past: int) -> list[float]:
        """Return the seconds of passes over `first`, `first` + 1, ... tokens, `n` values."""
        # In one go: this is the costliest part of a decision.
        f, stop = self._pace.factor, first + n
        table = zip(
            self.base[first:stop], self._caps[first:stop], self.depth[first:stop], strict=True
        )
        seconds = [f * ((b if b < cap else cap) + d * n_past) for b, cap, d in table]
        return seconds + [
            self.seconds(width, n_past) for width in range(first + len(seconds), stop)
        ]

    def hopeful_s(self, first: int, n: int, n_past: int) -> list[float]:
        """Return the values of `passes_s` with the lowest plausible cost of unconfirmed widths.

        They serve exploration.
        """
        least = 0.9 * self.seconds(1, n_past)
        return [
            one if self.is_confirmed(width) else min(one, max(least, one / _UNTRIED))
            for width, one in enumerate(self.passes_s(first, n, n_past), first)
        ]

    def is_confirmed(self, n: int) -> bool:
        """Return whether enough passes of this width were timed since the table was made."""
        return n >= len(self.base) or self._n_passes[n] >= _CONFIRMED

    def reading_s(self, n: int, n_past: int, at_once: int) -> float:
        """Return the seconds of reading `n` tokens, `at_once` in a pass."""
        full, rest = divmod(n, at_once)
        seconds = sum(self.seconds(at_once, n_past + i * at_once) for i in range(full))
        return seconds + (self.seconds(rest, n_past + full * at_once) if rest else 0.0)

    def learn_reading(self, n: int, n_past: int, at_once: int, seconds: float) -> None:
        """Update the cost of wide passes with the time to read `n` tokens, `at_once` in a pass.

        The narrow rest of a prompt counts at its predicted time. The wide passes count as one at
        their mean depth, so that a correct table predicts `seconds`.
        """
        n_narrow = n % at_once if n % at_once < len(self.base) else 0
        n_wide, end = n - n_narrow, n_past + n - n_narrow
        took = seconds - (self.seconds(n_narrow, end) if n_narrow else 0.0)
        if n < at_once or took <= 0:
            return
        depth = sum(at * min(at_once, end - at) for at in range(n_past, end, at_once)) // n_wide
        self.learn(at_once, depth, took * at_once / n_wide)

    def learn(self, n: int, n_past: int, seconds: float) -> None:
        """Update the table with the time of one pass.

        A small error moves the entry and the machine speed a little. A large error counts only if
        it occurs twice in a row. Then the smaller of the two corrects the entry in full. A single
        slow pass is the effect of another program.

        Args:
            n: Width of the pass, in tokens.
            n_past: Cached tokens before it.
        """
        if n < 1 or not math.isfinite(seconds):
            return
        error = math.log(max(seconds, 1e-9) / self.seconds(n, n_past))
        in_table = n < len(self.base)
        if n in self._guessed:
            self._take(n, error)
            return
        self._n_learned += 1
        self._see_single(n, error)
        if in_table:
            self.base[n], self._caps[n] = min(self.base[n], self._caps[n]), math.inf
        size = self._twice(min(n, len(self.base)), error)
        if in_table and not self._n_passes[n] and n not in self._anchors and abs(error) > _OUTLIER:
            # Half of the error is applied at once: an interpolated entry with a large error is less
            # reliable than one pass.
            size = error / 2
        step = 1.0
        if size:
            self._correct(n, n_past, size)
        else:
            clipped = max(-_OUTLIER, min(_OUTLIER, error))
            by_depth = self._blame_of_depth(n, n_past)
            if by_depth > _NEGLIGIBLE:
                took = (
                    self._unpaced(n, n_past) * math.expm1(_DEPTH_STEP * by_depth * clipped) / n_past
                )
                before = self._depth_of(n)
                self._set_depth(n, max(before + took, 0.5 * before, min(before, _LEAST_DEPTH)))
            step = math.exp(_TABLE_STEP * (1 - by_depth) * clipped)
            if self._shows_machine(n, _CONFIRMED):
                self._pace.learn((1 - by_depth) * clipped)
        if in_table:
            self.base[n] *= step
            self._n_passes[n] += 1
            self._used_at[n] = self._n_single
            if self._n_passes[n] == _CONFIRMED:
                self._anchors.add(n)
        else:
            self._wide_row_s *= step
            self._has_read = True
        if size or not in_table or self._n_passes[n] == _CONFIRMED:
            self.set_caps()

    def _take(self, n: int, error: float) -> None:
        """Replace a guess by the time of a pass, and by that of the next one if that is shorter.

        The second pass counts after a large error alone, which another program may have caused.
        """
        self.base[n], self._caps[n] = min(self.base[n], self._caps[n]), math.inf
        self._n_learned += 1
        if n in self._untimed or error < 0:
            if n == 1 and self._sets_pace:
                self._pace.factor *= math.exp(error)
            else:
                self._shift(self.base, n, error)
        is_large = n in self._untimed and abs(error) > _OUTLIER and n > 1
        self._last_errors[n] = error if is_large else 0.0
        self._guessed[n] -= 1
        if not self._guessed[n] or not (is_large or n == 1):
            del self._guessed[n]
        self._untimed.discard(n)
        self._anchors.add(n)
        self._n_passes[n] += 1
        self._used_at[n] = self._n_single
        self.set_caps()

    @property
    def untimed(self) -> tuple[int, ...]:
        """The guessed widths that no pass has timed, ascending."""
        return tuple(sorted(self._untimed))

    @property
    def pace(self) -> float:
        """Speed of the machine relative to that of the table."""
        return self._pace.factor

    @property
    def is_checked(self) -> bool:
        return bool(self._to_check)

    def check(self) -> None:
        """Let the next rounds decode a few widths each, for any costs in the table.

        Of a table with guesses these are the guessed ones, if a few are among them.
        """
        widths = [n for n in _CHECKED if n < len(self.base)]
        self._to_check = [n for n in widths if n in self._untimed] or widths
        self._is_trusted = False

    def width_to_check(self, least: int, most: int, chance: float, draft_s: float) -> int:
        """Return the width that the next round decodes to check the table, or 0.

        Each width is decoded once, and again after a large error. The check ends at a width that
        even the best drafts cannot make pay, by the width before it.

        Args:
            least: Smallest possible width, in tokens.
            most: Largest possible width, in tokens.
            chance: Acceptance rate of a draft token.
            draft_s: Seconds to draft a token.
        """
        while self._to_check:
            n = self._to_check[0]
            if n > most or (n > least and self._cannot_pay(n, chance, draft_s)):
                self._to_check = []
            elif n < least or self._n_passes[n] > self.is_doubtful(n):
                del self._to_check[0]
            else:
                return n
            if not self._to_check:
                self._end_check()
        return 0

    def skip_check(self, n: int) -> None:
        """Give up a width for which there was no draft."""
        self._to_check = [width for width in self._to_check if width != n]
        if not self._to_check:
            self._end_check()

    def _end_check(self) -> None:
        """Let all other widths follow those that were decoded, if the measurement was wrong."""
        self.n_checks += 1
        # The widths of a guess follow each that is decoded (`_shift`).
        if self._n_corrected and self._n_passes[1] and not self.is_guess:
            known = {n: self.base[n] for n in range(1, len(self.base)) if self._n_passes[n]}
            self.base[1:] = [interpolate(known, n) for n in range(1, len(self.base))]
            self._anchors = set(known)
            self.set_caps()

    def _cannot_pay(self, n: int, chance: float, draft_s: float) -> bool:
        """Return whether passes of width `n` and above cost more than their tokens, at best."""
        before = max((width for width in _CHECKED if width < n), default=1)
        cost_s = self.seconds(before, 0) + (before - 1) * draft_s
        return cost_s * (1 - chance) > self.seconds(1, 0)

    def is_doubtful(self, n: int) -> bool:
        """Return whether the last pass of this width had a large error that is not applied yet."""
        return n < len(self.base) and abs(self._last_errors[n]) > _OUTLIER

    def _twice(self, at: int, error: float) -> float:
        """Return the smaller of the last two errors if both are large and of one sign, else 0."""
        last, self._last_errors[at] = self._last_errors[at], error
        size = math.copysign(min(abs(last), abs(error)), error) if last * error > 0 else 0.0
        if abs(size) <= _OUTLIER:
            return 0.0
        self._last_errors[at] = 0.0
        return size

    def _blame_of_depth(self, n: int, n_past: int) -> float:
        """Return the share of an error that the depth cost explains, from 0 to 1.

        The share grows with the number of cached tokens, because the base is known better.
        """
        base = self.base[n] if n < len(self.base) else n * self._wide_row_s
        of_depth = max(self._depth_of(n), base / _DEEP) * n_past
        return of_depth**2 / ((_BASE_DOUBT * base) ** 2 + of_depth**2)

    def _correct(self, n: int, n_past: int, size: float) -> None:
        """Correct an entry so that its passes are predicted to take `exp(size)` times as long."""
        whole, attention = self._unpaced(n, n_past), self._depth_of(n) * n_past
        rest = math.exp(size) * whole - (whole - attention)
        if rest > 0 and self._blame_of_depth(n, n_past) > 0.5:
            self._set_depth(n, rest / n_past)
            return
        log_base = math.log(max((math.exp(size) * whole - attention) / (whole - attention), 0.05))
        if n == 1 and self._is_leading:
            self._pace.led(log_base)
            return
        at, single = self._single
        if self._is_leading and single * log_base > 0 and self._n_learned - at < _NEAR:
            return
        self._shift(self.base, n, log_base)
        self._limit()
        self._other = self._n_learned, n, log_base
        if log_base > 0:
            self._patience = min(_MOST_PATIENCE, 4 * self._patience)
        self._n_corrected += 1
        if self._n_corrected == _CONTRADICTED:
            self._anchors = {width for width in self._anchors if self._n_passes[width]}
        if self._shows_machine(n, _ESTABLISHED):
            self._pace.jumped(self, n, log_base)
        if self._n_corrected == _REFUTED:
            self.check()

    def _limit(self) -> None:
        """Let no pass cost more than some times as much as passes over its single tokens."""
        if not self._is_leading:
            return
        most = _MOST_OF_SINGLE * self.base[1]
        self.base[2:] = [min(cost, most * n) for n, cost in enumerate(self.base[2:], 2)]

    def _see_single(self, n: int, error: float) -> None:
        """Note the error of a pass over a single token, which shows the speed of the machine."""
        if n > 1 or not self._may_lead:
            return
        self._is_leading = self._is_leading or abs(error) <= _OUTLIER
        if not self._is_leading:
            return
        self._n_single += 1
        if self._n_single - self._faded_at >= self._patience:
            self._fade()
        if abs(error) <= _OUTLIER:
            return
        self._single = self._n_learned, error
        at, width, jump = self._other
        if jump * error > 0 and self._n_learned - at < _NEAR:
            self._pace.forget(self, width)
            self.undo(width, jump)
            self._other = -_NEAR, 0, 0.0

    def _fade(self) -> None:
        """Let entries that were corrected upward and not used since follow the measurement again.

        Another program makes single passes take longer, which is learned twice in a row by chance.
        A width that seems expensive has no passes, and would seem so for ever.
        """
        pace = self.base[1] / self._measured[1]
        for n in range(2, len(self.base)):
            usual = pace * self._measured[n]
            if self.base[n] > usual and self._used_at[n] <= self._faded_at:
                self.base[n] = usual * (self.base[n] / usual) ** _FADED
        self._faded_at = self._n_single

    def _shows_machine(self, n: int, n_passes: int) -> bool:
        """Return whether an error of a pass may be that of the machine, and not of the entry."""
        return self._is_trusted or n >= len(self.base) or self._n_passes[n] >= n_passes

    def _unpaced(self, n: int, n_past: int) -> float:
        """Return the seconds of a pass at the machine speed of the measurement."""
        return self.seconds(n, n_past) / self._pace.factor

    def _depth_of(self, n: int) -> float:
        return self.depth[n] if n < len(self.depth) else n * self._wide_depth

    def _set_depth(self, n: int, depth: float) -> None:
        """Set the depth cost of width `n` and scale the values derived from it."""
        before = self._depth_of(n)
        if before > 0:
            self._shift(self.depth, n, math.log(depth / before))
            if self._corrected_depth is not None:
                self._corrected_depth.add(min(n, len(self.depth)))
        elif depth > 0:
            self.depth = [depth * width / n for width in range(len(self.depth))]
            self._wide_depth = depth / n

    def _shift(self, entries: list[float], n: int, size: float) -> None:
        """Multiply entry `n` by `exp(size)`, and scale the entries derived from it.

        The exponent falls linearly to 0 at the next known width on each side. Beyond the last known
        width it stays the same.
        """
        anchors = self._anchors
        if entries is self.depth and self._corrected_depth is not None:
            anchors = self._corrected_depth
        if n >= len(self.base):
            if entries is self.base:
                self._wide_row_s *= math.exp(size)
            else:
                self._wide_depth *= math.exp(size)
            return
        below = max((width for width in anchors if width < n), default=0)
        above = min((width for width in anchors if width > n), default=0)
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
        self._shift(self.base, n, -size)
        self._limit()
        if size > 0:
            self._patience = max(_FADE_EVERY, self._patience // 4)
        self.set_caps()

    def set_caps(self) -> None:
        """Set upper bounds of never used entries, from the used entries and from prefill.

        A pass costs at most slightly more than a wider one, and at most as much as several narrower
        ones with the same number of tokens.
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
    """Python's time around a pass, in seconds."""

    seconds: float

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def learn(self, seconds: float) -> None:
        """Update the average with one time.

        A single long time is limited, because another program causes it.
        """
        seconds = max(seconds, 0.0)
        most = 4 * self.seconds if self.seconds else seconds
        self.seconds += (
            _PACE_STEP * (min(seconds, most) - self.seconds) if self.seconds else seconds
        )


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


# Weight of a common pass's log error in the update of its factor, and in its first value.
_STEP, _FIRST_STEP = 0.2, 0.7
# Weight of a round in the share of drafting sequences, and of a round without drafts.
_SHARE_STEP, _RECOVERY = 0.2, 0.02
# Number of further tokens of draft models that a decision looks ahead.
_AHEAD = 8
# Limit of one error of a common pass, or of one that reads, as a natural logarithm: other programs
# make some slow.
_CLIP = 0.7


Times = ParamSpec("Times")


class SharedPasses:
    """The sequences that share passes with one sequence, itself included.

    This class is the batch of a single sequence: its prices are those of its own passes.

    Attributes:
        n: Number of sequences that run.
        is_alone: There is no other request, so measured times are those of this sequence.
    """

    n: int = 1
    is_alone: bool = True

    def learn(
        self, update: Callable[Times, object], *args: Times.args, **kwargs: Times.kwargs
    ) -> None:
        """Call `update` with times of this sequence; not where they are also those of others."""
        update(*args, **kwargs)

    def seconds(self, costs: CostModel, n: int, n_past: int) -> float:
        """Return the seconds of a pass over `n` tokens of each sequence."""
        return costs.seconds(n, n_past)

    def passes_s(self, costs: CostModel, first: int, n: int, n_past: int) -> list[float]:
        """Return the seconds of passes over `first`, `first` + 1, ... tokens, `n` values."""
        return costs.passes_s(first, n, n_past)

    def drafts_on(self, reaches: Sequence[float], chance: float) -> bool | None:
        """Return whether the requests of the batch draft another token; None if each decides.

        Args:
            chance: Mean acceptance rate of further tokens.
        """
        del reaches, chance
        return None

    def agreed(self, reaches: Sequence[float], n: int) -> int:
        """Return the draft length of this round.

        Args:
            n: The best length for this sequence.
        """
        del reaches
        return n


ALONE = SharedPasses()


@dataclass
class Batches:
    """The batches of one request, which change as others come and go.

    Attributes:
        target: For passes of the target.
        draft: For passes of the draft model.
    """

    target: SharedPasses = ALONE
    draft: SharedPasses = ALONE


class BatchCosts:
    """Costs of common passes of one model, learned during use.

    Attributes:
        widest: Largest number of rows of a pass; more sequences are decoded in several passes.
        drafting_share: Recent share of the sequences that had drafts. Sequences without drafts wait
            for the further rows of the others, so these rows must pay for all.
    """

    drafting_share: float
    widest: int

    def __init__(self, widest: int, most: int = 0) -> None:
        """Begin without measured passes.

        Args:
            widest: Largest number of rows of a pass.
            most: Number of sequences up to which a pass can be filled; 0 for none.
        """
        self.widest, self._most = widest, most
        self.drafting_share = 1.0
        # Natural logarithm of the factor for a number of rows of all sequences, and of that of
        # passes that read, by the bits of the number of tokens.
        self._factors: dict[int, float] = {}
        self._reading: dict[int, float] = {}

    def seconds(self, costs: CostModel, n: int, rows: int, n_past: int) -> float:
        """Return the seconds to decode `rows` tokens of each of `n` sequences.

        It is infinite if the rows of one sequence do not fit into a pass.
        """
        if rows > self.widest:
            return math.inf
        at_once = self.widest // rows
        full, rest = divmod(n, at_once)
        whole = full * self._pass_s(costs, at_once, rows, n_past) if full else 0.0
        if not rest:
            return whole
        return whole + self._pass_s(costs, self.best_n(costs, rest, rows, n_past), rows, n_past)

    def best_n(self, costs: CostModel, n: int, rows: int, n_past: int) -> int:
        """Return with how many sequences a pass over `n` of them is fastest.

        The rest are filled. Kernels work on blocks of rows, so that 4 rows can cost less than 3.
        """
        most = min(self._most, self.widest // rows, n + n // 2)
        if n < 2 or most <= n:
            return n
        return min(range(n, most + 1), key=lambda m: self._pass_s(costs, m, rows, n_past))

    def learn(self, costs: CostModel, n: int, rows: int, n_past: int, seconds: float) -> None:
        """Update the factor with the time of one pass; a sequence alone has factor 1."""
        if n < 2 or seconds <= 0:
            return
        error = math.log(seconds / self._pass_s(costs, n, rows, n_past))
        _learn(self._factors, n * rows, error)

    def reading_s(self, costs: CostModel, n: int, n_past: int) -> float:
        """Return the seconds of a pass that reads `n` tokens of one prompt.

        It computes no rows of logits, which the table of one sequence contains.
        """
        return math.exp(_known(self._reading, n.bit_length())) * costs.seconds(n, n_past)

    def learn_reading(self, costs: CostModel, n: int, n_past: int, seconds: float) -> None:
        """Update the factor of passes that read with the time of one."""
        if n > 0 and seconds > 0:
            error = math.log(seconds / self.reading_s(costs, n, n_past))
            _learn(self._reading, n.bit_length(), error)

    def drafted(self, n_with: int, n: int) -> None:
        """Update the share of drafting sequences after a round; without drafts it recovers slowly.

        Args:
            n_with: Number of sequences with drafts.
            n: Number of sequences.
        """
        step, share = (_SHARE_STEP, n_with / n) if n_with else (_RECOVERY, 1.0)
        self.drafting_share += step * (share - self.drafting_share)

    def _pass_s(self, costs: CostModel, n: int, rows: int, n_past: int) -> float:
        seconds = costs.seconds(n * rows, n_past)
        if n < 2:
            return seconds
        cache_s = max(0.0, costs.seconds(1, n_past) - costs.seconds(1, 0))
        return math.exp(_known(self._factors, n * rows)) * (seconds + (n - 1) * cache_s)


def _known(factors: Mapping[int, float], key: int) -> float:
    """Return the logarithm of a factor; the median of the known ones if none was made so far."""
    if not factors:
        return 0.0
    known = factors.get(key)
    return statistics.median(factors.values()) if known is None else known


def _learn(factors: dict[int, float], key: int, error: float) -> None:
    """Update the logarithm of a factor with the log error of one pass."""
    step = _STEP if key in factors else _FIRST_STEP
    factors[key] = _known(factors, key) + step * max(-_CLIP, min(_CLIP, error))


class DraftRequest(NamedTuple):
    """What one sequence can decode in the next common pass.

    Attributes:
        reaches: Reach of each of its draft tokens.
        n_pending: Number of its tokens that must be decoded.
        chance: Mean acceptance rate of further tokens that its draft model can propose; 0 for none.
    """

    reaches: Sequence[float]
    n_pending: int = 1
    chance: float = 0.0

    @property
    def next_reach(self) -> float:
        """Expected reach of the next token of its draft model."""
        return self.chance * (self.reaches[-1] if self.reaches else 1.0)

    def tokens(self, n_rows: int) -> NDArray[np.float64]:
        """Return the expected tokens that each of `n_rows` rows emits, shape `(n_rows,)`."""
        emitted, rows = np.zeros(n_rows), self.reaches[: n_rows - self.n_pending]
        emitted[self.n_pending - 1] = 1.0
        emitted[self.n_pending : self.n_pending + len(rows)] = rows
        return emitted


def common_rows(
    requests: Sequence[DraftRequest], pass_s: Callable[[int], float], rate: float
) -> int:
    """Return the best number of rows of each sequence.

    Args:
        pass_s: Returns the seconds of a pass over that many rows of each sequence.
        rate: Tokens per second of all sequences that can be reached, the price of a second.
    """
    least = max(one.n_pending for one in requests)
    most = max(one.n_pending + len(one.reaches) for one in requests)
    tokens = np.cumsum(np.sum([one.tokens(most) for one in requests], axis=0))[least - 1 :]
    passes_s = np.array([pass_s(rows) for rows in range(least, most + 1)])
    return least + int(np.argmax(tokens - rate * passes_s))


def best_drafting(
    requests: Sequence[DraftRequest],
    pass_s: Callable[[int], float],
    draft_s: Callable[[int], float],
    rate: float,
) -> list[int]:
    """Return the sequences whose draft models propose another token, the best choice for all.

    Sequences that go on propose equally many tokens in common passes. Those whose next token is the
    likeliest to be right come first.

    Args:
        pass_s: Returns the seconds of a pass over that many rows of each sequence.
        draft_s: Returns the seconds of a pass of the draft model over that many sequences.
        rate: Tokens per second of all sequences that can be reached, the price of a second.
    """
    able = [i for i, one in enumerate(requests) if one.chance]
    order = sorted(able, key=lambda i: -requests[i].next_reach)
    least = max(one.n_pending for one in requests)
    ready = max(one.n_pending + len(one.reaches) for one in requests)
    rows = range(least, ready + _AHEAD + 1)
    passes_s = rate * np.array([pass_s(width) for width in rows])
    # expected tokens of each row: now, and after 1, 2, ... further tokens of draft models
    emitted = np.sum([one.tokens(rows[-1]) for one in requests], axis=0)
    further = np.tile(emitted, (_AHEAD, 1))
    best, n_best = (np.cumsum(emitted)[least - 1 : ready] - passes_s[: ready - least + 1]).max(), 0
    for n, one in enumerate((requests[i] for i in order), 1):
        first = one.n_pending + len(one.reaches)
        reaches = one.next_reach * one.chance ** np.arange(_AHEAD)
        further[:, first : first + _AHEAD] += np.tri(_AHEAD) * reaches
        values = (np.cumsum(further, axis=1)[:, least - 1 :] - passes_s).max(axis=1)
        value = (values - rate * draft_s(n) * np.arange(1, _AHEAD + 1)).max()
        if value > best:
            best, n_best = value, n
    return order[:n_best]
