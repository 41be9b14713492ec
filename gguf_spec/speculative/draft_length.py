"""Draft length: pure functions of costs, acceptance rates and throughput, without state.

The goal is maximum throughput, in tokens per second. By Dinkelbach's method this equals maximising
`tokens - rate * seconds`, where `rate` is the throughput that can be reached. All gains are
therefore in tokens. `speculative.cost_model` has the table of symbols.

A round over n draft tokens emits 1 + R_1 + ... + R_n tokens on average, where the reach R_i = c_1
... c_i is the probability that draft token i is accepted.

Source: Dinkelbach 1967, On nonlinear fractional programming; Leviathan et al. 2022,
arXiv:2211.17192, section 3, for the expected tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Smallest reach at which a further draft token is considered.
LEAST_REACH = 0.02
# Number of draft tokens that a decision looks ahead.
_FORESIGHT = 24


class Prices(NamedTuple):
    """Costs of a round.

    Attributes:
        rate: Reachable throughput in tokens per second, the price of a second.
        pass_s: Seconds of the target's pass over the pending tokens and n draft tokens, at index n.
        token_s: Seconds of Python for each emitted token.
        replay_s: Seconds to decode tokens again after a rollback that dropped too many, at index a
            for a accepted tokens; empty if that never happens.
        free_rollback: Most rejected tokens after which nothing is decoded again.
    """

    rate: float
    pass_s: Sequence[float]
    token_s: float = 0.0
    replay_s: Sequence[float] = ()
    free_rollback: int = 0

    @property
    def worth(self) -> float:
        """Value of an emitted token after Python's time for it, in tokens."""
        return 1 - self.rate * self.token_s

    def extra(self, n: int) -> float:
        """Return the extra cost of checking `n` draft tokens, in tokens."""
        return self.rate * (self.pass_s[n] - self.pass_s[0])

    def replays(self, reaches: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the expected cost of decoding tokens again, for each number of checked tokens.

        For reaches of the shape `(..., n)` it is the cost of checking the first 0, 1, ... n tokens,
        in tokens, shape `(..., n + 1)`.
        """
        n = reaches.shape[-1]
        costs = np.zeros((*reaches.shape[:-1], n + 1))
        if len(self.replay_s) and n > self.free_rollback:
            ones = np.ones((*reaches.shape[:-1], 1))
            # probability that exactly a tokens are accepted, a < n
            exactly = -np.diff(np.concatenate([ones, reaches], axis=-1))
            replayed = np.cumsum(exactly * np.asarray(self.replay_s[:n]), axis=-1)
            # of n checked tokens, rejections after n - free_rollback and more cost nothing
            costs[..., self.free_rollback + 1 :] = replayed[..., : n - self.free_rollback]
        return self.rate * costs


def gain_of(reaches: Sequence[float], n: int, prices: Prices) -> float:
    """Return the gain of checking the first `n` draft tokens over checking none, in tokens.

    The time of drafting them is spent already and does not count.
    """
    replayed = float(prices.replays(np.asarray(reaches[:n], dtype=float))[-1])
    return sum(reaches[:n]) * prices.worth - prices.extra(n) - replayed


def best_length(reaches: Sequence[float], prices: Prices) -> tuple[int, float]:
    """Return the best number of draft tokens to check, and its gain over checking none."""
    value, best, most = 0.0, 0, 0.0
    replayed = prices.replays(np.asarray(reaches, dtype=float)) if prices.replay_s else None
    for n, reach in enumerate(reaches, 1):
        value += reach * prices.worth
        gain = value - prices.extra(n) - (0.0 if replayed is None else replayed[n])
        if gain > most:
            best, most = n, gain
    return best, most


class Outlook(NamedTuple):
    """Expected quality and cost of the draft model's next tokens.

    The confidence of a token is known only once it is drafted. Until then its mean acceptance rate
    counts.

    Attributes:
        shares: Frequency of each confidence bucket, sum 1, shape `(n,)`.
        chances: Acceptance rate of each confidence bucket, shape `(n,)`.
        first_s: Seconds to draft the next token.
        each_s: Seconds to draft each token after it.
        by_text: Acceptance rate of the text's own next token, which costs nothing to draft; 0
            without one.
    """

    shares: NDArray[np.float64]
    chances: NDArray[np.float64]
    first_s: float
    each_s: float
    by_text: float = 0.0

    @property
    def mean(self) -> float:
        """Acceptance rate of a token whose confidence is not known."""
        return float(self.shares @ self.chances)


def drafting_gain(reaches: Sequence[float], k: int, outlook: Outlook, prices: Prices) -> float:
    """Return the expected gain, in tokens, of drafting at least one more token.

    The alternatives are to stop here, or to take the text's own token and then to draft more or
    none. The gain is minus infinity if no more than `k` tokens are allowed.

    Once the confidence of the next token is known, the best of three continuations is taken: check
    only the tokens drafted before it, check it too, or draft more tokens. The further tokens have
    the mean acceptance rate.
    """
    n = len(reaches)
    m = min(k - n, _FORESIGHT)
    if m < 1:
        return float("-inf")
    reach, so_far = (reaches[-1] if n else 1.0), sum(reaches) * prices.worth
    tokens = np.cumsum(outlook.mean ** np.arange(m)) * prices.worth
    passes = np.asarray(prices.pass_s[n + 1 : n + m + 1]) - prices.pass_s[0]
    costs = prices.rate * (outlook.each_s * np.arange(m) + passes)
    stop = best_length(reaches, prices)[1]
    # The last row is the text's own token, if there is one.
    chances = np.append(outlook.chances, outlook.by_text)
    gains = np.outer(reach * chances, tokens) - costs
    if prices.replay_s:
        ahead = reach * np.outer(chances, outlook.mean ** np.arange(m))
        so_far_reaches = np.broadcast_to(reaches, (len(ahead), n))
        gains -= prices.replays(np.concatenate([so_far_reaches, ahead], axis=1))[:, n + 1 :]
    values = so_far + gains.max(axis=1)
    drafted = float(outlook.shares @ np.maximum(values[:-1], stop))
    other = max(float(values[-1]), stop) if outlook.by_text else stop
    return drafted - prices.rate * outlook.first_s - other


def token_seconds(
    chance: float, pass_s: Sequence[float], draft_s: float, token_s: float = 0.0
) -> float:
    """Return the seconds of a token at the best fixed draft length, with one acceptance rate.

    Args:
        pass_s: Seconds of a pass over 1 + n tokens, at index n.
        draft_s: Seconds to draft a token.
        token_s: Seconds of Python for each emitted token.
    """
    best, emitted, reach = pass_s[0], 1.0, 1.0
    for k in range(1, len(pass_s)):
        reach *= chance
        emitted += reach
        best = min(best, (pass_s[k] + k * draft_s) / emitted)
        if reach < LEAST_REACH:
            break
    return best + token_s
