"""What is known of a pair on this machine: what passes cost, how often proposals are right, how fast it goes of late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ._chances import Chances
from ._costs import Costs, Overhead
from ._drafters import SURENESSES, ModelDrafter

NEXT = "next"  # kinds of chances: what the next token of the model will be worth, by how sure the last was, or by
AFTER_WRONG, AFTER_ALL, EVER = SURENESSES, SURENESSES + 1, SURENESSES + 2  # how the last round ended; the mean over all
SECOND = "second"  # and what its second guesses are worth, by how sure the first was
FIRM = {NEXT: 16.0}  # places by which what was hoped of a draft counts: a few wrong tokens must not put it off for long
_MEMORY = 0.97  # of the rate: it is that of some thirty rounds


@dataclass
class Experience:
    """What is known of a pair on this machine, from all requests so far.

    Attributes:
        target: What a pass of the target costs.
        draft: What a pass of the draft model costs; None without one.
        chances: How often which proposals are right.
        answer: Tokens of a usual answer.
        per_token: Python's time for each token said.
        per_proposal: Python's time for each token that the draft model proposes.
        bias: By how many tokens a round was worth less when its draft was there than was hoped when it began.
        to_ask_s: Time saved up for asking a draft model that is not used.
        n_said: Tokens said, of all requests.
    """

    target: Costs
    draft: Costs | None
    chances: Chances
    answer: float = 128.0
    per_token: Overhead = field(default_factory=Overhead)
    per_proposal: Overhead = field(default_factory=Overhead)
    bias: float = 0.0
    to_ask_s: float = 0.0
    n_said: int = 0
    _tokens: float = 0.0
    _seconds: float = 0.0

    def rate(self, n_past: int) -> float:
        """Return tokens per second of late, at least those of plain decoding."""
        return max(self._tokens / self._seconds if self._seconds else 0.0, 1 / self.verify_s(1, 1.0, n_past))

    def verify_s(self, n: int, n_said: float, n_past: int) -> float:
        """Return what it takes to check `n - 1` drafted tokens, where `n_said` tokens come out."""
        return self.target.seconds(n, n_past) + n_said * self.per_token.seconds

    def propose_s(self, n: int, n_past: int) -> float:
        """Return what a token of the draft model takes that has not read the last `n`."""
        assert self.draft
        return self.draft.seconds(n, n_past) + self.per_proposal.seconds

    def answered(self, n_tokens: int) -> None:
        """Take note of how long an answer was."""
        self.answer += (n_tokens - self.answer) / 5

    def round_is_done(self, n_tokens: int, seconds: float) -> None:
        """Take note of a round, by its predicted time: the clock's is as noisy as the machine."""
        self._tokens = _MEMORY * self._tokens + n_tokens
        self._seconds = _MEMORY * self._seconds + seconds


@dataclass
class Forecast:
    """What a generation was expected to take, in seconds, from the costs known when each round began.

    Attributes:
        rounds_s: Its rounds as they were.
        plain_s: The same tokens one at a time.
    """

    rounds_s: float = 0.0
    plain_s: float = 0.0


def expectations(sureness_beliefs: Sequence[float], likely: float) -> dict[str, list[float]]:
    """Return what to believe at first of a draft model's proposals and of those to come.

    Args:
        sureness_beliefs: For each sureness the chance to be right.
        likely: The chance of any proposal.
    """
    second = [(1 - belief) / 3 for belief in sureness_beliefs]
    return {ModelDrafter.name: list(sureness_beliefs), SECOND: second, NEXT: [likely] * (EVER + 1)}
