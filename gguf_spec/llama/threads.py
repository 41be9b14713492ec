"""Adaptive thread count: all cores on an idle machine, fewer while other programs use some.

The threads of a pass synchronise many times. If another program uses one of their cores, all
threads wait for the thread on that core, and a pass with one thread less is faster. The governor
compares thread counts on the passes themselves: it times a few passes with another count and keeps
the faster count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cache
from math import sqrt
from statistics import fmean, pstdev
from typing import NamedTuple

# growth factor of a best time per pass of its kind, so that best times follow slow changes
_FORGETTING = 1.003
# passes in the running estimate of the slowness
_WINDOW = 8
# passes between two trials
_FEWEST = 4
# slowness, as a multiple of the best time, from which fewer threads may be faster
_SLOW = 1.25
# slowness, as a multiple of the best time, from which half the threads are tried first
_VERY_SLOW = 2.5
# largest slowness of one pass, as a multiple of the best time; limits the weight of an outlier
_CLIP = 20.0
# least passes of a successful trial with more threads; a faster trial loses no time
_PASSES = 8
# least passes of a successful trial with fewer threads; their times vary less
_PASSES_FEWER = 3
# largest number of passes of a trial
_MOST_PASSES = 12
# fraction of the time that another count must save
_GAIN = 0.05
# longest pass of a trial, as a multiple of the recent mean; excludes prefill passes
_LONG = 2.0
# fraction of the time for trials: on an idle machine with all threads, and otherwise
_IDLE_SHARE, _SHARE = 0.004, 0.02
# price of a failed trial, in passes: initial, lowest and highest value
_PRICE, _LEAST_PRICE, _HIGHEST_PRICE = 0.6, 0.2, 20.0
# largest budget, in prices of the most expensive trial
_CAP = 2.0
# passes; a count that is replaced sooner was a wrong choice, and its price rises
_HASTY = 32


class PassKind(NamedTuple):
    """A class of passes that take equally long on an idle machine.

    Attributes:
        owner: Id of the model.
        n_rows: Rows of logits that the pass computes.
        depth: Bit length of the number of cached tokens.
    """

    owner: Hashable
    n_tokens: int
    n_rows: int
    depth: int


class ThreadGovernor:
    """Chooses the thread count of the next pass from the times of previous passes.

    Call `choose` before a pass and `observe` after it. A budget in seconds limits the trials: it
    receives a small fraction of the time of all passes, and the losses of trials are subtracted.
    """

    most: int
    threads: int

    def __init__(self, most: int) -> None:
        """Start with `most` threads, the upper limit."""
        self.most, self.threads = most, most
        # seconds
        self._best: dict[tuple[PassKind, int], float] = {}
        # seconds of passes, divided by the best time of their kind
        self._slowness: deque[float] = deque(maxlen=_WINDOW)
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        # Current slowness of the machine; 1 is the best seen. The slowest recent pass is excluded.
        self._level = 1.0
        self._mean_s = 0.0  # of the recent passes
        self._budget_s = 0.0
        self._n_passes = 0  # with the current count
        self._n_waited = 0  # passes since the last trial
        self._turn = 0  # index of the next candidate
        # price of a failed trial by thread count, in passes
        self._price: dict[int, float] = {}
        self._trial: _Trial | None = None

    def choose(self, kind: PassKind) -> int:
        if self._trial is None and self.most > 1:
            self._trial = self._new_trial(kind)
        trial = self._trial
        return trial.threads if trial and self._can_compare(kind) else self.threads

    def observe(self, kind: PassKind, threads: int, seconds: float) -> None:
        """Record the time of a pass.

        Args:
            threads: The count that `choose` returned.
        """
        best = min(self._best.get((kind, threads), seconds), seconds)
        expected_s = self._expected_s(kind)
        slowness = min(seconds / best, _CLIP) if best > 0 else 1.0
        # read once: models in other threads share this object
        trial = self._trial
        if trial and threads == trial.threads and expected_s is not None:
            trial.seconds.append(seconds)
            trial.slowness.append(slowness)
            trial.expected_s += expected_s
            self._judge(trial)
        elif threads == self.threads:
            self._n_passes += 1
            self._n_waited += 1
            self._slowness.append(slowness)
            self._seconds.append(seconds)
            self._summarise()
            is_calm = threads == self.most and self._level <= _SLOW
            share = _IDLE_SHARE if is_calm else _SHARE
            most_s = _CAP * max([_PRICE, *self._price.values()]) * self._mean_s
            self._budget_s = min(self._budget_s + share * seconds, most_s)
        # Last, so that a known best time implies recent passes, even after Ctrl-C in between.
        self._best[kind, threads] = best * _FORGETTING

    def forget(self, owner: Hashable) -> None:
        for key in [key for key in [*self._best] if key[0].owner == owner]:
            self._best.pop(key, None)

    # ---- the decision

    def _summarise(self) -> None:
        """Compute level and mean of the recent passes, of which there is at least one."""
        slowness, n = self._slowness, len(self._slowness)
        self._level = (sum(slowness) - max(slowness)) / (n - 1) if n > 1 else slowness[0]
        self._mean_s = sum(self._seconds) / len(self._seconds)

    def _expected_s(self, kind: PassKind) -> float | None:
        """Return the expected seconds of a pass with the current count, if it was timed."""
        best = self._best.get((kind, self.threads))
        return None if best is None else best * self._level

    def _can_compare(self, kind: PassKind) -> bool:
        """Return whether a pass of this kind can be a trial: its time is known and not long."""
        expected_s = self._expected_s(kind)
        return expected_s is not None and expected_s <= _LONG * self._mean_s

    def _new_trial(self, kind: PassKind) -> _Trial | None:
        if self._n_waited < _FEWEST or not self._can_compare(kind):
            return None
        counts = _candidates(self.threads, self.most, self._level > _VERY_SLOW)
        threads = counts[self._turn % len(counts)]
        is_slow = self._level > _SLOW
        price_s = 0.0 if is_slow else self._price.get(threads, _PRICE) * self._mean_s
        if self._budget_s < price_s:
            return None
        self._turn += 1
        self._n_waited = 0
        return _Trial(threads)

    def _judge(self, trial: _Trial) -> None:
        """End a trial as soon as its result is clear."""
        enough_s, noise_s, n = _GAIN * trial.expected_s, 0.0, len(trial.seconds)
        gain_s = trial.expected_s - sum(trial.seconds)
        if n < _MOST_PASSES:  # the uncertainty of the gain, in seconds
            slowness = [*self._slowness]
            noise_s = pstdev(slowness) / fmean(slowness) * trial.expected_s / sqrt(n)
        if gain_s < (-noise_s if n < _FEWEST else 0.0) or (
            n >= _MOST_PASSES and gain_s <= enough_s
        ):
            loss_s = max(0.0, -gain_s)
            price = (self._price.get(trial.threads, _PRICE) + loss_s / self._mean_s) / 2
            self._price[trial.threads] = min(max(price, _LEAST_PRICE), _HIGHEST_PRICE)
            self._budget_s -= loss_s
            self._trial = None
        elif (
            n >= (_PASSES if trial.threads > self.threads else _PASSES_FEWER)
            and gain_s > enough_s + noise_s
        ):
            if self._n_passes < _HASTY:
                hasty = min(2 * self._price.get(self.threads, _PRICE), _HIGHEST_PRICE)
                self._price[self.threads] = hasty
            self.threads, self._trial = trial.threads, None
            # replaced, so that the deques are never empty
            self._slowness, self._seconds = (
                deque(some, maxlen=_WINDOW) for some in (trial.slowness, trial.seconds)
            )
            self._summarise()
            self._budget_s, self._n_passes, self._turn = 0.0, 0, 0


@cache
def _candidates(n: int, most: int, is_very_slow: bool) -> list[int]:
    """Return the counts to try instead of `n`."""
    # all threads come first, because most programs that end leave an idle machine
    more = (most, (n + most + 1) // 2, n + 1)
    fewer = [n // 2, n // 4, n * 3 // 4]
    fewer = [*fewer, n - 1] if is_very_slow else [n - 1, *fewer]
    return [*dict.fromkeys(i for i in (*more, *fewer) if 0 < i <= most and i != n)]


@dataclass
class _Trial:
    """A few passes with another thread count.

    Attributes:
        seconds: Times of its passes.
        slowness: Times of its passes, divided by the best time of their kind.
        expected_s: Expected total time with the current count, in seconds.
    """

    threads: int
    seconds: list[float] = field(default_factory=list)
    slowness: list[float] = field(default_factory=list)
    expected_s: float = 0.0


# The governor of this process by its number of threads. All models share it, because they use the
# same cores.
shared_governor: Callable[[int], ThreadGovernor] = cache(ThreadGovernor)
