"""Costs and draft lengths of sequences that are decoded in common passes.

All sequences of a pass wait for it, so its whole time is the price of each of them. With N
sequences of r rows each, a pass emits on average

    sum over the sequences of 1 + R_1 + ... + R_(r-1) tokens in V(N, r) seconds,

where R_i is the reach of draft token i (`speculative.draft_length`). The common number of rows is
the one with the most tokens per second: rows of equal number cost least, because llama.cpp decodes
sequences with unequal numbers in several passes. With many sequences a row is dear and the best r
is 1; alone it is what one request would choose.

V(N, r) is the cost of N r rows of one sequence, and of reading the caches of the N - 1 others: a
pass over one token behind d cached ones takes V(1, d) - V(1, 0) longer than with an empty cache.
The sum is multiplied by a factor that is learned for each number of rows N r: errors of the table
of one sequence are the largest ones.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .cost_model import CostModel

# Weight of one pass's log error in the update of a factor, and in its first value.
_STEP, _FIRST_STEP = 0.2, 0.7
# Weight of a round in the share of drafting sequences, and of a round without drafts.
_SHARE_STEP, _RECOVERY = 0.2, 0.02
# Limit of one error, as a natural logarithm: other programs make single passes slow.
_CLIP = 0.7


class Batch:
    """The sequences that share passes with one sequence, itself included.

    This one is the batch of a sequence that has its passes to itself.

    Attributes:
        n: Number of sequences that run.
        is_alone: There is no other request, so measured times are those of this sequence.
    """

    n, is_alone = 1, True

    def seconds(self, costs: CostModel, n: int, n_past: int) -> float:
        """Return the seconds of a pass over `n` tokens of each sequence."""
        return costs.seconds(n, n_past)

    def passes_s(self, costs: CostModel, first: int, n: int, n_past: int) -> list[float]:
        """Return the seconds of passes over `first`, `first` + 1, ... tokens, `n` values."""
        return costs.passes_s(first, n, n_past)

    def agreed(self, reaches: Sequence[float], n: int) -> int:
        """Return the draft length of this round.

        Args:
            reaches: Reach of each token drafted.
            n: The best length for this sequence.
        """
        del reaches
        return n


ALONE = Batch()


@dataclass
class Batches:
    """The batches of one request, which change as others come and go.

    Attributes:
        target: For passes of the target.
        draft: For passes of the draft model.
    """

    target: Batch = ALONE
    draft: Batch = ALONE


class BatchCosts:
    """Costs of common passes of one model, learned during use.

    Attributes:
        widest: Largest number of rows of a pass; more sequences are decoded in several passes.
        drafting_share: Recent share of the sequences that had drafts. Sequences without drafts wait
            for the further rows of the others, so these rows must pay for all.
    """

    def __init__(self, widest: int, most: int = 0) -> None:
        """Begin without measured passes.

        Args:
            widest: Largest number of rows of a pass.
            most: Number of sequences up to which a pass can be filled; 0 for none.
        """
        self.widest, self._most = widest, most
        self.drafting_share = 1.0
        # Natural logarithm of the factor for a number of rows of all sequences.
        self._factors: dict[int, float] = {}

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
        step = _STEP if n * rows in self._factors else _FIRST_STEP
        factor = self._factor(n * rows) + step * max(-_CLIP, min(_CLIP, error))
        self._factors[n * rows] = factor

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
        return math.exp(self._factor(n * rows)) * (seconds + (n - 1) * cache_s)

    def _factor(self, rows: int) -> float:
        """Return the factor of a pass; the median of the known ones if none was made so far."""
        if not self._factors:
            return 0.0
        known = self._factors.get(rows)
        return statistics.median(self._factors.values()) if known is None else known


class Offer(NamedTuple):
    """What one sequence can decode in the next common pass.

    Attributes:
        reaches: Reach of each of its draft tokens.
        n_pending: Number of its tokens that must be decoded.
    """

    reaches: Sequence[float]
    n_pending: int = 1


def common_rows(offers: Sequence[Offer], pass_s: Callable[[int], float]) -> int:
    """Return the number of rows of each sequence with the most tokens per second.

    Args:
        offers: The sequences.
        pass_s: Returns the seconds of a pass over that many rows of each sequence.
    """
    least = max(one.n_pending for one in offers)
    most = max(one.n_pending + len(one.reaches) for one in offers)
    best, best_rate = least, 0.0
    for rows in range(least, most + 1):
        tokens = sum(1 + sum(one.reaches[: rows - one.n_pending]) for one in offers)
        rate = tokens / pass_s(rows)
        if rate > best_rate:
            best, best_rate = rows, rate
    return best
