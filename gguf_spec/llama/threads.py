"""How many threads decode: all cores while the machine is idle, fewer while other programs use some.

Threads of a pass wait for each other many times. If another program has one of their cores, all of them
wait for the thread that shares it, and one thread less is faster. The governor compares thread counts by
the passes themselves: it times a few passes with another count and keeps the faster one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from functools import cache
from math import sqrt
from statistics import fmean, pstdev
from typing import NamedTuple

_FORGETTING = (
    1.003  # growth of a best time with each pass of its kind, so that it follows slow changes
)
_WINDOW = 8  # passes that say how slow the machine is now
_FEWEST = 4  # passes between two trials
_SLOW = 1.25  # times the best: fewer threads may be faster
_VERY_SLOW = 2.5  # times the best
_CLIP = 20.0  # times the best, at most: the weight of one pass
_PASSES = 8  # that a trial needs to succeed: a trial that gains costs nothing
_PASSES_FEWER = 3  # the same with fewer threads, whose times vary less
_MOST_PASSES = 12  # of a trial
_GAIN = 0.05  # share of the time that another count must save
_LONG = 2.0  # times the recent mean: no trial in passes that take longer, such as those of a prompt
_IDLE_SHARE, _SHARE = (
    0.004,
    0.02,
)  # of the time, for trials: with all threads at their best, and else
_PRICE, _LEAST_PRICE, _HIGHEST_PRICE = 0.6, 0.2, 20.0  # of a failed trial, in passes
_CAP = 2.0  # trials that the budget can hold
_HASTY = 32  # passes: a count given up sooner should not have been taken


class PassKind(NamedTuple):
    """Passes that take equally long on an idle machine.

    Attributes:
        owner: Of the model.
        n_tokens: Tokens of the pass.
        n_rows: Rows of logits it computes.
        depth: Magnitude of the number of cached tokens.
    """

    owner: Hashable
    n_tokens: int
    n_rows: int
    depth: int


class ThreadGovernor:
    """Chooses the thread count of the next pass from the times of those before it.

    Call `choose` before a pass and `observe` after it. Trials are paid from a budget in seconds: a small
    share of the time of all passes, less what trials have lost.
    """

    def __init__(self, most: int) -> None:
        """Begin with `most` threads, which are never exceeded."""
        self.most, self.threads = most, most
        self._best: dict[tuple[PassKind, int], float] = {}  # seconds
        self._slowness: deque[float] = deque(
            maxlen=_WINDOW
        )  # seconds of passes over the best of their kind
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._budget_s = 0.0
        self._n_passes = 0  # with the count in use
        self._n_waited = 0  # passes since the last trial
        self._turn = 0  # which candidate is next
        self._price: dict[int, float] = {}  # of a failed trial of a count, in passes
        self._trial: _Trial | None = None

    def choose(self, kind: PassKind) -> int:
        """Return the thread count for a pass of this kind."""
        if self._trial is None and self.most > 1:
            self._trial = self._new_trial(kind)
        trial = self._trial
        return trial.threads if trial and self._can_compare(kind) else self.threads

    def observe(self, kind: PassKind, threads: int, seconds: float) -> None:
        """Take note of a pass: the count that `choose` returned, and how long it took."""
        best = min(self._best.get((kind, threads), seconds), seconds)
        expected_s = self._expected_s(kind)
        slowness = min(seconds / best, _CLIP) if best > 0 else 1.0
        trial = self._trial  # once: models in other threads share this object
        if trial and threads == trial.threads and expected_s is not None:
            trial.add(seconds, expected_s, slowness)
            self._judge(trial)
        elif threads == self.threads:
            self._n_passes += 1
            self._n_waited += 1
            self._slowness.append(slowness)
            self._seconds.append(seconds)
            is_calm = threads == self.most and not self._is_slow
            share = _IDLE_SHARE if is_calm else _SHARE
            most_s = _CAP * max([_PRICE, *self._price.values()]) * fmean(self._seconds)
            self._budget_s = min(self._budget_s + share * seconds, most_s)
        self._best[kind, threads] = (
            best * _FORGETTING
        )  # last: whoever finds a best time finds recent passes, too, even if Ctrl-C came in between

    def forget(self, owner: Hashable) -> None:
        """Forget the passes of a model."""
        for key in [key for key in [*self._best] if key[0].owner == owner]:
            self._best.pop(key, None)

    # ---- the decision

    @property
    def _level(self) -> float:
        """How slow the machine is now; 1 is the best seen. The slowest pass of the window does not count."""
        return (
            fmean(sorted(self._slowness)[: max(1, len(self._slowness) - 1)])
            if self._slowness
            else 1.0
        )

    @property
    def _is_slow(self) -> bool:
        return self._level > _SLOW

    def _expected_s(self, kind: PassKind) -> float | None:
        """Return how long a pass takes now with the count in use; None if such a pass was never timed."""
        best = self._best.get((kind, self.threads))
        return None if best is None else best * self._level

    def _can_compare(self, kind: PassKind) -> bool:
        """Whether a pass of this kind can be a trial: its usual time is known, and it is not a long one."""
        expected_s = self._expected_s(kind)
        return expected_s is not None and expected_s <= _LONG * fmean(self._seconds)

    def _new_trial(self, kind: PassKind) -> _Trial | None:
        if self._n_waited < _FEWEST or not self._can_compare(kind):
            return None
        counts = [*self._more(), *self._fewer()]
        threads = counts[self._turn % len(counts)]
        price_s = 0.0 if self._is_slow else self._price.get(threads, _PRICE) * fmean(self._seconds)
        if self._budget_s < price_s:
            return None
        self._turn += 1
        self._n_waited = 0
        return _Trial(threads)

    def _more(self) -> list[int]:
        """Return larger counts to try: all threads first, as most programs that go leave an idle machine."""
        return _distinct(
            (self.most, (self.threads + self.most + 1) // 2, self.threads + 1),
            self.threads,
            self.most,
        )

    def _fewer(self) -> list[int]:
        """Return smaller counts to try; if passes are very slow, half of them first."""
        n = self.threads
        counts = (
            (n // 2, n // 4, n * 3 // 4, n - 1)
            if self._level > _VERY_SLOW
            else (n - 1, n // 2, n // 4, n * 3 // 4)
        )
        return _distinct(counts, 0, n - 1)

    def _judge(self, trial: _Trial) -> None:
        """End a trial as soon as it is clear."""
        enough_s = _GAIN * trial.expected_s
        noise_s, n = self._noise(trial), trial.n_passes
        if trial.gain_s < (-noise_s if n < _FEWEST else 0.0) or (
            n >= _MOST_PASSES and trial.gain_s <= enough_s
        ):
            mean_s, loss_s = fmean(self._seconds), max(0.0, -trial.gain_s)
            price = (self._price.get(trial.threads, _PRICE) + loss_s / mean_s) / 2
            self._price[trial.threads] = min(max(price, _LEAST_PRICE), _HIGHEST_PRICE)
            self._budget_s -= loss_s
            self._trial = None
        elif (
            n >= (_PASSES if trial.threads > self.threads else _PASSES_FEWER)
            and trial.gain_s > enough_s + noise_s
        ):
            if self._n_passes < _HASTY:
                hasty = min(2 * self._price.get(self.threads, _PRICE), _HIGHEST_PRICE)
                self._price[self.threads] = hasty
            self.threads, self._trial = trial.threads, None
            self._slowness, self._seconds = (
                deque(trial.slowness, maxlen=_WINDOW),
                deque(trial.seconds, maxlen=_WINDOW),
            )  # never empty in between
            self._budget_s, self._n_passes, self._turn = 0.0, 0, 0

    def _noise(self, trial: _Trial) -> float:
        """Return how uncertain the gain of a trial is, in seconds; 0 once it had its passes."""
        if trial.n_passes >= _MOST_PASSES:
            return 0.0
        slowness = [*self._slowness]
        spread = pstdev(slowness) / fmean(slowness)
        return spread * trial.expected_s / sqrt(trial.n_passes)


class _Trial:
    """A few passes with another thread count.

    Attributes:
        threads: The count.
        seconds: What its passes took.
        slowness: The same over the best of their kind.
        expected_s: What they would have taken with the count in use.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.seconds: list[float] = []
        self.slowness: list[float] = []
        self.expected_s = 0.0

    def add(self, seconds: float, expected_s: float, slowness: float) -> None:
        self.seconds.append(seconds)
        self.slowness.append(slowness)
        self.expected_s += expected_s

    @property
    def n_passes(self) -> int:
        return len(self.seconds)

    @property
    def gain_s(self) -> float:
        """Seconds saved so far."""
        return self.expected_s - sum(self.seconds)


def _distinct(counts: tuple[int, ...], above: int, at_most: int) -> list[int]:
    """Return the counts that lie in a range, each once."""
    return list(dict.fromkeys(count for count in counts if above < count <= at_most))


@cache
def shared_governor(most: int) -> ThreadGovernor:
    """Return the governor of this process. All models share it, as they run on the same cores."""
    return ThreadGovernor(most)
