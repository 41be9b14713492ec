"""Cost model and acceptance statistics of a model pair on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .acceptance_rates import AcceptanceRates
from .cost_model import CostModel, Overhead
from .drafters import N_CONFIDENCE_BUCKETS, ModelDrafter

SECOND = "second"  # name under which second guesses are counted, by the confidence of the first
_CONFIDENCE_MEMORY = 0.99  # factor on the counts of confidences at each token
_MEMORY = 0.97  # of the rate: it is that of some thirty rounds


@dataclass
class PairStatistics:
    """What is known of a pair on this machine, from all requests so far.

    Attributes:
        target: What a pass of the target costs.
        draft: What a pass of the draft model costs; None without one.
        chances: How often which proposals are right.
        answer: Tokens of a usual answer.
        per_token: Python's time for each token said.
        per_proposal: Python's time for each token that the draft model proposes.
        confidences: How often the draft model was how confident, as counts.
        spare_s: Time saved up for probes of an unused draft model and for passes of untried widths.
        n_said: Tokens said, of all requests.
    """

    target: CostModel
    draft: CostModel | None
    chances: AcceptanceRates
    answer: float = 128.0
    per_token: Overhead = field(default_factory=Overhead)
    per_proposal: Overhead = field(default_factory=Overhead)
    confidences: list[float] = field(default_factory=lambda: [1.0] * N_CONFIDENCE_BUCKETS)
    spare_s: float = 0.0
    n_said: int = 0
    _tokens: float = 0.0
    _seconds: float = 0.0

    def recent(self, weight: float) -> tuple[float, float]:
        """Return tokens and seconds of recent rounds of all requests, times `weight`."""
        return weight * self._tokens, weight * self._seconds

    def verify_s(self, n: int, n_said: float, n_past: int) -> float:
        """Return what it takes to check `n - 1` drafted tokens, where `n_said` tokens come out."""
        return self.target.seconds(n, n_past) + n_said * self.per_token.seconds

    def propose_s(self, n: int, n_past: int) -> float:
        """Return what a token of the draft model takes that has not read the last `n`."""
        assert self.draft
        return self.draft.seconds(n, n_past) + self.per_proposal.seconds

    def drafted(self, confidence: int) -> None:
        """Count a token of the draft model by its confidence."""
        self.confidences = [_CONFIDENCE_MEMORY * count for count in self.confidences]
        self.confidences[confidence] += 1

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


def expectations(priors: Sequence[float]) -> dict[str, list[float]]:
    """Return the first acceptance rates of a draft model's proposals and second guesses, from those for each confidence."""
    return {ModelDrafter.name: list(priors), SECOND: [(1 - prior) / 3 for prior in priors]}
