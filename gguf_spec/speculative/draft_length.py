"""How many tokens to draft: pure functions of costs, acceptance rates and throughput. No model, no clock, no state.

Maximise tokens per second. By Dinkelbach's method this equals maximising `tokens - rate * seconds`, where `rate` is the throughput that can be
had; so all gains here are in tokens. Symbols: c_i is the chance that the i-th drafted token is right if those before it are, and the reach of
token i is c_1 ... c_i. A round over n drafted tokens emits 1 + reach_1 + ... + reach_n tokens on average.

Source: Dinkelbach 1967, On nonlinear fractional programming; Leviathan et al. 2022, arXiv:2211.17192, section 3, for the expected tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAST_REACH = 0.02  # a token that is right more rarely is not worth a look
_FORESIGHT = 24  # tokens


class Prices(NamedTuple):
    """What a round costs.

    Attributes:
        rate: Tokens per second that can be had: the price of a second.
        pass_s: Seconds of the target's pass over the pending tokens and n drafted ones, at index n.
        token_s: Seconds of Python for each emitted token.
    """

    rate: float
    pass_s: Sequence[float]
    token_s: float = 0.0

    @property
    def worth(self) -> float:
        """What an emitted token is worth, after Python's time for it."""
        return 1 - self.rate * self.token_s

    def extra(self, n: int, m: int = 0) -> float:
        """Return the price of a pass over `n` drafted tokens above that over `m`, in tokens."""
        return self.rate * (self.pass_s[n] - self.pass_s[m])


def gain_of(reaches: Sequence[float], n: int, prices: Prices) -> float:
    """Return by how many tokens checking the first `n` drafted tokens is better than checking none; drafting them is paid for already."""
    return sum(reaches[:n]) * prices.worth - prices.extra(n)


def best_length(reaches: Sequence[float], prices: Prices) -> tuple[int, float]:
    """Return how many drafted tokens to check, and the gain of that over checking none."""
    value, best, most = 0.0, 0, 0.0
    for n, reach in enumerate(reaches, 1):
        value += reach * prices.worth
        gain = value - prices.extra(n)
        if gain > most:
            best, most = n, gain
    return best, most


class Outlook(NamedTuple):
    """What the next tokens of the draft model promise. How confident it is shows only when a token is there; until then a mean counts.

    Attributes:
        shares: How often it is how confident, sum 1.
        chances: For each confidence the chance that the token is right.
        first_s: Seconds to draft the next token.
        each_s: Seconds to draft each token after it.
    """

    shares: NDArray[np.float64]
    chances: NDArray[np.float64]
    first_s: float
    each_s: float

    @property
    def mean(self) -> float:
        """Chance that a token is right whose confidence is not known."""
        return float(self.shares @ self.chances)


def drafting_gain(reaches: Sequence[float], k: int, outlook: Outlook, prices: Prices) -> float:
    """Return the expected gain of drafting at least one more token over stopping here.

    Once the next token's confidence is known, the best follows: check what was drafted before it, check it too, or draft more tokens, each of
    which is right with the mean chance.

    Args:
        reaches: Of the tokens drafted so far.
        k: Most tokens of a draft.
        outlook: Chances and costs of the tokens to come.
        prices: The costs of the pass.

    Returns:
        The gain; minus infinity where no more tokens are allowed.
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
    values = so_far + (np.outer(reach * outlook.chances, tokens) - costs).max(axis=1)
    return float(outlook.shares @ np.maximum(values, stop)) - prices.rate * outlook.first_s - stop


def best_branches(chances: Sequence[float], n: int, prices: Prices) -> int:
    """Return how many second guesses to check beside `n` drafted tokens: `chances`, highest first, are those that each brings a token more."""
    gain, most, best = 0.0, 0.0, 0
    for extra, chance in enumerate(chances, 1):
        gain += chance * prices.worth
        if gain - prices.extra(n + extra, n) > most:
            most, best = gain - prices.extra(n + extra, n), extra
    return best


def token_seconds(
    chance: float, pass_s: Sequence[float], draft_s: float, token_s: float = 0.0
) -> float:
    """Return the seconds of a token at the best fixed draft length, if each drafted token has the same chance.

    Args:
        chance: That each is right.
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
