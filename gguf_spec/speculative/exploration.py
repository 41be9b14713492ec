"""Exploration: rounds that measure the cost of an untried pass width, or of a single token.

Exploring costs time. It is paid from spare time, a small share of the generation time.
"""

from __future__ import annotations

from .draft_length import Prices, best_length, gain_of
from .pair_statistics import PairStatistics
from .round_state import RoundState

# Number of rounds after which one is decoded plainly, to measure the cost of a single token.
_PLAIN_EVERY = 64
# Smallest number of rounds between two that use optimistic costs.
_EXPLORE_EVERY = 16


class Exploration:
    """Decisions on the measuring rounds of one request.

    Attributes:
        known: Cost models and statistics over all requests; their spare time is spent.
    """

    def __init__(self, known: PairStatistics) -> None:
        self.known = known
        # Rounds since the last pass over one token.
        self._since_plain = 0
        # Rounds since the last round with optimistic costs.
        self._since_explored = 0
        # Spare time from which untried widths are tried, in seconds.
        self._explore_from_s = 0.0

    def is_due(self) -> bool:
        """Return whether this round uses optimistic costs; called once for each round."""
        self._since_explored += 1
        return self._since_explored > _EXPLORE_EVERY and self.known.spare_s > self._explore_from_s

    def length(self, one: RoundState, n: int, gain: float) -> int:
        """Return a draft length that tries an unconfirmed width if the spare time allows.

        Otherwise return `n`.

        Args:
            one: A round with optimistic costs, and its draft tokens.
            n: The best length by the expected costs.
            gain: Its gain over plain decoding, in tokens.
        """
        self._since_explored = 0
        reaches = one.reaches
        tried, _ = best_length(reaches, one.hopeful)
        if tried == n or self.known.target.is_confirmed(one.n_pending + tried):
            self.known.spare_s -= one.draft_s * (1 - n / max(1, len(reaches)))
            return n
        # Loss if the entry of the table is right.
        loss_s = (gain - gain_of(reaches, tried, one.prices)) / one.prices.rate
        if loss_s > self.known.spare_s:
            self._explore_from_s = loss_s
            self.known.spare_s -= one.draft_s * (1 - n / max(1, len(reaches)))
            return n
        self._explore_from_s = 0.0
        one.explored_s = loss_s
        return tried

    def charge(self, one: RoundState, passed_s: float) -> None:
        """Subtract the measured loss of a pass that tried a width from the spare time.

        After a pass with a large error the next round explores again.
        """
        if one.explored_s is not None:
            self.known.spare_s -= max(
                0.0, one.explored_s + passed_s - one.prices.pass_s[one.n_kept]
            )
            if self.known.target.is_doubtful(one.n_rows):
                self._since_explored = _EXPLORE_EVERY

    def is_plain_due(self, prices: Prices) -> bool:
        """Return whether this round is decoded plainly to measure a single-token pass.

        While drafts are used, no other round measures it.
        """
        if self._since_plain < _PLAIN_EVERY:
            return False
        loss_s = prices.pass_s[0] - 1 / prices.rate
        if loss_s > self.known.spare_s:
            return False
        self.known.spare_s -= max(0.0, loss_s)
        return True

    def count(self, one: RoundState) -> None:
        """Count a round."""
        self._since_plain = 0 if one.n_rows == 1 else self._since_plain + 1
