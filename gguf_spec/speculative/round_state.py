"""One round of a draft controller: its state, and rounds that measure or do not look for drafts.

Exploration: some rounds measure the cost of an untried pass width, or of a single token. That costs
time, which is paid from spare time, a small share of the generation time.

Search budget: some rounds do not look for drafts, because looking costs more than it finds. It
takes Python some tenths of a millisecond a round. That is nothing beside the pass of a large model,
and a quarter of a pass of a very small one. A request may spend on searches a small share of its
time, and what the drafts save that they found. So with a large model each round looks for a draft,
and with a small one too while the text offers drafts that pay. Otherwise some rounds decode
plainly, and searches in vain cost little.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .draft_length import Prices, best_length, gain_of
from .drafters import Proposal
from .pair_statistics import PairStatistics

# Number of rounds after which one is decoded plainly, to measure the cost of a single token.
_PLAIN_EVERY = 64
# Smallest number of rounds between two that use optimistic costs.
_EXPLORE_EVERY = 16
# Share of the generation time for searches.
_SHARE = 0.01
# Budget at the start of a request, and the largest one, in searches.
_FIRST, _MOST = 3, 32


@dataclass
class Step:
    """One token of a draft.

    Attributes:
        proposal: The token, its bucket and distribution.
        reach: Probability that it and all draft tokens before it are right.
        by_text: Proposal of the text drafters for the same position; None if the token is theirs,
            or they had none.
    """

    proposal: Proposal
    reach: float
    by_text: Proposal | None = None


@dataclass
class RoundState:
    """Costs, draft and times of the current round.

    Attributes:
        start: Tokens of the text before the round.
        n_past: Tokens in the target's cache before the round.
        prices: Expected costs.
        hopeful: Costs used for decisions: `prices`, or lower ones for unconfirmed widths in a round
            that explores.
        steps: The draft tokens.
        draft_s: Predicted seconds of drafting.
        search_s: Python's seconds to look for a draft; 0 if the round did not.
        n_kept: Number of draft tokens that are checked.
        is_skipped: The round does not look for a draft.
        explored_s: Expected loss of a pass that tries a width, in seconds; None if no width is
            tried.
        returned_s: Clock when the draft was ready, in seconds.
        busy_s: The target's busy time when the draft was ready, in seconds.
    """

    start: int
    n_past: int
    prices: Prices
    hopeful: Prices
    steps: list[Step] = field(default_factory=list)
    draft_s: float = 0.0
    search_s: float = 0.0
    n_kept: int = 0
    is_skipped: bool = False
    explored_s: float | None = None
    returned_s: float = 0.0
    busy_s: float = 0.0

    @property
    def n_pending(self) -> int:
        """Number of tokens of the text that the target's pass decodes."""
        return self.start - self.n_past

    @property
    def n_rows(self) -> int:
        """Number of rows of the target's pass."""
        return self.n_pending + self.n_kept

    @property
    def reaches(self) -> list[float]:
        """Reach of each draft token."""
        return [step.reach for step in self.steps]

    @property
    def expected(self) -> float:
        """Expected number of emitted tokens."""
        return 1 + sum(self.reaches[: self.n_kept])

    @property
    def plain_s(self) -> float:
        """Seconds of a token in plain decoding."""
        return self.prices.pass_s[0] + self.prices.token_s

    @property
    def gain_s(self) -> float:
        """Expected seconds that the draft saves over plain decoding of the same tokens."""
        passed_s = self.prices.pass_s[self.n_kept]
        return self.expected * self.prices.pass_s[0] - self.draft_s - passed_s

    @property
    def explores(self) -> bool:
        """Whether optimistic costs are used for unconfirmed widths."""
        return self.hopeful is not self.prices


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


class SearchBudget:
    """Searches for drafts that one request may make.

    The budget is a number of searches, because the seconds of one are known only after the first.
    """

    def __init__(self) -> None:
        self._n_left = float(_FIRST)

    def allows(self, search_s: float, plain_s: float) -> bool:
        """Return whether this round looks for a draft; called once for each round.

        Args:
            search_s: Seconds of a search; 0 if none was timed.
            plain_s: Seconds of a token in plain decoding.
        """
        if not search_s:
            return True
        self._n_left = min(self._n_left + _SHARE * plain_s / search_s, _MOST)
        return self._n_left >= 1

    def charge(self, search_s: float, gain_s: float) -> None:
        """Count a search.

        Args:
            search_s: Seconds that it took; 0 if it was not timed.
            gain_s: Seconds that its draft is expected to save; 0 or less without one.
        """
        if search_s:
            self._n_left += max(gain_s, 0.0) / search_s - 1
