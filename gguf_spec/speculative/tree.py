"""Draft trees: alternative tokens beside the tokens of a draft, checked in the same pass.

A branch is an alternative token at one position of the draft; the draft itself is the trunk. The
pass has one row more for each branch, in a sequence of its own. If the target rejects the trunk at
that position and emits the branch instead, the row after the branch gives one more token.

Exactness. Only the rule `coupled` allows branches. There the token at a position is a function of
the seed, the position and the tokens before it. The row after a branch is used only after the
target has emitted that branch, so it follows emitted tokens, as any other row does. Branches
therefore decide only how many tokens a pass gives.

The caches keep the trunk. An accepted branch and the token after it are in no cache after the
round; the next round decodes both. The cache then has the order of plain decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..arrays import Logits
from ..options import BRANCHES_MAX, Speculation
from ..sampling.chain import Sampler
from .acceptance import Accept, Draft, Rows
from .draft_length import Prices
from .drafters import Kind, Proposal
from .interfaces import LanguageModel
from .pair_statistics import SECOND
from .round_state import RoundState

# Share of the expected benefit of branches that counts: the acceptance rates of second guesses come
# from few observations. With the whole benefit greedy decoding lost up to 2 % in simulations.
_CREDIT = 0.7


class TreeRows(Rows):
    """Target rows for a draft with branches."""

    def __init__(
        self,
        logits: Logits,
        tokens: Sequence[int],
        drafted: Sequence[int],
        sampler: Sampler,
        branches: Sequence[tuple[int, int]],
    ) -> None:
        """Select the rows from the logits of a pass.

        Args:
            logits: Shape `(n, V)`: the rows of the trunk, then one row for each branch.
            tokens: All token ids before the draft.
            drafted: Token ids of the trunk.
            sampler: The target's chain.
            branches: As in `TreeDraft`.
        """
        n = len(logits) - len(branches)
        super().__init__(logits[:n], tokens, drafted, sampler)
        self._branches, self._branch_logits = branches, logits[n:]

    def branch_off(self, i: int, token: int) -> bool:
        """Replace the i-th draft token by `token` if that is a branch, and return whether it is.

        Row i + 1 then follows the branch and is the last row.
        """
        if (i, token) not in self._branches:
            return False
        at = self._branches.index((i, token))
        self.logits = np.concatenate([self.logits[: i + 1], self._branch_logits[at : at + 1]])
        self._drafted = [*self._drafted[:i], token]
        return True


@dataclass(frozen=True)
class TreeDraft(Draft):
    """Proposal with branches; `tokens` is the trunk.

    Attributes:
        branches: An index into `tokens`, and an alternative token at that index.
    """

    branches: Sequence[tuple[int, int]] = ()

    @property
    def n_drafted(self) -> int:
        """Number of tokens that are checked, branches included."""
        return len(self.tokens) + len(self.branches)

    def check(
        self, target: LanguageModel, tokens: Sequence[int], sampler: Sampler, accept: Accept
    ) -> tuple[list[int], Rows]:
        """Check the trunk; after a rejection continue from the branch that the target emitted."""
        pending = [*tokens[target.n_past :], *self.tokens]
        first = len(pending) - len(self.tokens)
        beside = [(first + i, token) for i, token in self.branches]
        logits = target.logits(pending, len(self.tokens) + 1, beside)
        rows = TreeRows(logits, tokens, self.tokens, sampler, self.branches)
        new = accept(self, rows)
        last = len(new) - 1
        if rows.branch_off(last, new[last]):
            new.append(rows.token(last + 1))
        return new, rows

    def n_cached(self, new: Sequence[int]) -> int:
        """Return how many of the emitted tokens the pass left in the caches: those of the trunk."""
        of_trunk = zip(self.tokens, new[:-1], strict=False)
        return next((i for i, (a, b) in enumerate(of_trunk) if a != b), len(new) - 1)


class Second(NamedTuple):
    """Second guess of the draft model beside a draft token.

    Attributes:
        chance: Probability that it brings one more token: all draft tokens before it are right, and
            so is it.
        at: Index of the draft token.
        token: Its id.
    """

    chance: float
    at: int
    token: int


class Tree:
    """Choice of the branches of each draft of a request.

    Attributes:
        fixed: Check as many branches as allowed whatever they cost.
        n_more: Number of rows beyond the `k` draft tokens that branches may take. If it is 0, no
            pass has more than `k` + 1 rows.
    """

    def __init__(self, fixed: bool = False, n_more: int = BRANCHES_MAX) -> None:
        self.fixed, self.n_more = fixed, n_more

    @staticmethod
    def of(speculation: Speculation) -> Tree | None:
        """Return the choice that the options ask for; None for drafts without branches.

        By default only adaptive drafts have branches, and those count towards `k`.
        """
        if speculation.tree:
            return Tree(fixed=not speculation.adaptive)
        by_default = speculation.tree is None and speculation.adaptive
        return Tree(n_more=0) if by_default and speculation.accept == "coupled" else None

    def most_drafted(self, k: int, n_pending: int) -> int:
        """Return the largest length of a draft.

        After an accepted branch two tokens are pending; the second takes the row of a draft token.
        """
        return k if self.n_more else k + 1 - n_pending

    def grow(
        self, one: RoundState, most: int, rate: Callable[[Kind], float]
    ) -> list[tuple[int, int]]:
        """Set the number of draft tokens to check, and return the branches beside them.

        A round that tries a width has no branches, because they would change the width.

        Args:
            one: A round with its draft tokens; `n_kept` of them are checked without branches.
            most: Largest number of draft tokens and branches.
            rate: Returns the acceptance rate of a bucket.
        """
        if one.explored_s is not None:
            return []
        proposals = [step.proposal for step in one.steps]
        n, seconds = self.choose(proposals, one.reaches, one.n_kept, most, one.prices, rate)
        one.n_kept, one.from_branches = n, sum(second.chance for second in seconds)
        return [(second.at, second.token) for second in seconds]

    def choose(
        self,
        proposals: Sequence[Proposal],
        reaches: Sequence[float],
        n: int,
        most: int,
        prices: Prices,
        rate: Callable[[Kind], float],
    ) -> tuple[int, list[Second]]:
        """Return the number of draft tokens to check, and the second guesses to check.

        Args:
            proposals: The draft tokens.
            reaches: Probability that each draft token and all before it are right.
            n: Number of draft tokens to check without branches.
            most: Largest number of draft tokens and branches.
            prices: Costs of the round.
            rate: Returns the acceptance rate of a bucket.
        """
        seconds = [
            Second(before * rate((SECOND, one.kind[1])), i, one.second)
            for i, (one, before) in enumerate(zip(proposals, [1.0, *reaches], strict=False))
            if one.second is not None and one.second != one.token
        ]
        if self.fixed:
            n_branches = max(0, min(BRANCHES_MAX, most - n))
        else:
            chances = [0.0] * len(proposals)
            for second in seconds:
                chances[second.at] = _CREDIT * second.chance
            n, n_branches = best_tree(reaches, chances, most, prices)
        return n, sorted((one for one in seconds if one.at < n), reverse=True)[:n_branches]


def best_tree(
    reaches: Sequence[float], chances: Sequence[float], most: int, prices: Prices
) -> tuple[int, int]:
    """Return the numbers of draft tokens and of branches with the largest gain.

    A draft token and a branch cost one row each, so both compete for the same rows. A branch that
    is right is decoded again in the next round. That row is charged at the mean cost of the
    branches' rows in this one.

    Args:
        reaches: Reach of each draft token.
        chances: Probability that the branch at each draft token brings one more token, 0 without a
            branch.
        most: Largest number of draft tokens and branches.
        prices: Costs of the round.
    """
    best, most_gain, value = (0, 0), 0.0, 0.0
    for n in range(min(len(reaches), most) + 1):
        value += reaches[n - 1] * prices.worth if n else 0.0
        found = sorted((chance for chance in chances[:n] if chance > 0), reverse=True)
        right = 0.0
        for m in range(min(len(found), BRANCHES_MAX, most - n) + 1):
            right += found[m - 1] if m else 0.0
            again = max(0.0, prices.extra(n + m, n)) / max(1, m)
            gain = value + right * (prices.worth - again) - prices.extra(n + m)
            if gain > most_gain:
                best, most_gain = (n, m), gain
    return best
