"""Cost model and acceptance statistics of a model pair on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .acceptance_rates import AcceptanceRates
from .cost_model import CostModel, Overhead
from .drafters import MODELS, N_CONFIDENCE_BUCKETS

# Name of the buckets of second guesses; the bucket number is the confidence of the first guess.
SECOND = "second"
# Factor on the counts of confidence buckets at each draft token.
_CONFIDENCE_MEMORY = 0.99
# Factor on the counts of the throughput at each round: an average over about thirty rounds.
_MEMORY = 0.97


@dataclass
class PairStatistics:
    """Costs and statistics of a pair on this machine, over all requests so far.

    Attributes:
        target: Cost model of the target.
        draft: Cost model of the draft model; None without one.
        chances: Acceptance rate of each bucket of proposals.
        answer: Usual length of an answer, in tokens.
        per_token: Python's time for each emitted token.
        per_proposal: Python's time for each token that the draft model proposes.
        per_search: Python's time for each round that looks for a draft.
        confidences: Number of proposals of the draft model in each confidence bucket.
        spare_s: Seconds available for probes of an unused draft model and for passes of untried
            widths.
        n_emitted: Tokens emitted in all requests.
    """

    target: CostModel
    draft: CostModel | None
    chances: AcceptanceRates
    answer: float = 128.0
    per_token: Overhead = field(default_factory=Overhead)
    per_proposal: Overhead = field(default_factory=Overhead)
    per_search: Overhead = field(default_factory=Overhead)
    confidences: list[float] = field(default_factory=lambda: [1.0] * N_CONFIDENCE_BUCKETS)
    spare_s: float = 0.0
    n_emitted: int = 0
    _tokens: float = 0.0
    _seconds: float = 0.0

    def recent(self, weight: float) -> tuple[float, float]:
        """Return tokens and seconds of recent rounds of all requests, times `weight`."""
        return weight * self._tokens, weight * self._seconds

    def verify_s(self, n: int, n_emitted: float, n_past: int) -> float:
        """Return the seconds to check `n - 1` draft tokens if `n_emitted` tokens are emitted."""
        return self.target.seconds(n, n_past) + n_emitted * self.per_token.seconds

    def drafted(self, confidence: int) -> None:
        """Count a proposal of the draft model by its confidence."""
        self.confidences = [_CONFIDENCE_MEMORY * count for count in self.confidences]
        self.confidences[confidence] += 1

    def answered(self, n_tokens: int, is_whole: bool) -> None:
        """Update the usual length of an answer.

        An answer that was cut off says only that its length is at least `n_tokens`.

        Args:
            n_tokens: Emitted tokens of a request.
            is_whole: The model ended the answer itself, or a stop string did.
        """
        if is_whole or n_tokens > self.answer:
            self.answer += (n_tokens - self.answer) / 5

    def round_is_done(self, n_tokens: int, seconds: float) -> None:
        """Count a round by its predicted time, which has less noise than the clock."""
        self._tokens = _MEMORY * self._tokens + n_tokens
        self._seconds = _MEMORY * self._seconds + seconds


@dataclass
class Forecast:
    """Predicted seconds of a generation, from the costs known when each round began.

    Attributes:
        rounds_s: Seconds of its rounds.
        plain_s: Seconds of the same tokens in plain decoding.
    """

    rounds_s: float = 0.0
    plain_s: float = 0.0


def expectations(priors: Sequence[float]) -> dict[str, list[float]]:
    """Return the prior acceptance rates of first and second guesses.

    Args:
        priors: Prior acceptance rate of the draft model for each confidence bucket.

    Returns:
        Name of the buckets -> prior of each; a second guess has a third of the remaining
            probability.
    """
    of_models = {name: list(priors) for name in MODELS}
    return {**of_models, SECOND: [(1 - prior) / 3 for prior in priors]}
