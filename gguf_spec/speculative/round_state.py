"""State of the current round of a draft controller."""

from __future__ import annotations

from dataclasses import dataclass, field

from .draft_length import Prices
from .drafters import Proposal


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
        n_checked: Number of rows that are checked beside those of the pending tokens.
        from_branches: Expected number of tokens from branches.
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
    n_checked: int = 0
    from_branches: float = 0.0
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
        return self.n_pending + self.n_checked

    @property
    def reaches(self) -> list[float]:
        """Reach of each draft token."""
        return [step.reach for step in self.steps]

    @property
    def expected(self) -> float:
        """Expected number of emitted tokens."""
        return 1 + sum(self.reaches[: self.n_kept]) + self.from_branches

    @property
    def plain_s(self) -> float:
        """Seconds of a token in plain decoding."""
        return self.prices.pass_s[0] + self.prices.token_s

    @property
    def gain_s(self) -> float:
        """Expected seconds that the draft saves over plain decoding of the same tokens."""
        passed_s = self.prices.pass_s[self.n_checked]
        return self.expected * self.prices.pass_s[0] - self.draft_s - passed_s

    @property
    def explores(self) -> bool:
        """Whether optimistic costs are used for unconfirmed widths."""
        return self.hopeful is not self.prices
