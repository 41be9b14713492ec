"""The acceptance rules: which drafted tokens stay, and what comes after them. Each emits exactly the target's law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits
from ..results import TokenLogprob
from ..sampling.chain import Distribution, Sampler, logprob
from ..sampling.near_ties import is_near_tie


class Draft(NamedTuple):
    """What a drafter proposes.

    Attributes:
        tokens: Token ids, at most `k`.
        q: For each of them the law it was drawn from; empty where the rule is `coupled`, which never asks.
        branches: Second guesses: a place in `tokens`, and what may stand there instead. Only `coupled` looks at them.
    """

    tokens: list[int]
    q: list[Distribution]
    branches: Sequence[tuple[int, int]] = ()


class Rows:
    """What the target says of a draft: row `i` follows its first `i` tokens, 0 <= i <= len(drafted). Each is read only when asked for."""

    def __init__(
        self,
        logits: Logits,
        tokens: Sequence[int],
        drafted: Sequence[int],
        sampler: Sampler,
        branches: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Take `logits` of shape `(n, V)`, whose last rows are meant: those of the draft, then one after each branch; `tokens` are all before."""
        first = len(logits) - len(branches) - len(drafted) - 1
        self.logits, self._branch_logits = (
            logits[first : len(logits) - len(branches)],
            logits[len(logits) - len(branches) :],
        )
        self.sampler = sampler
        self._tokens, self._drafted, self._branches = tokens, drafted, branches

    def distribution(self, i: int) -> Distribution:
        """Return the target's law of the next token."""
        return self.sampler.distribution(self.logits[i], self.history(i))

    def token(self, i: int) -> int:
        """Return the target's own next token, by the noise of its position."""
        return self.sampler.token(self.logits[i], self.history(i))

    def branch_off(self, i: int, token: int) -> bool:
        """Go on behind `token` in place of the i-th drafted one, if that is a branch: row i + 1, which is then the last, follows it."""
        if (i, token) not in self._branches:
            return False
        at = self._branches.index((i, token))
        self.logits = np.concatenate([self.logits[: i + 1], self._branch_logits[at : at + 1]])
        self._drafted = [*self._drafted[:i], token]
        return True

    def is_near_tie(self, i: int, token: int, noise: float) -> bool:
        """Return whether the choice of `token` was closer than `noise`."""
        return is_near_tie(self.sampler, self.logits[i], self.history(i), token, noise)

    def logprob(self, i: int, token: int) -> TokenLogprob:
        """Return how likely the target finds `token`."""
        return logprob(self.logits[i], token, self.sampler.sampling.logprobs or 0)

    def history(self, i: int) -> list[int]:
        """Return all tokens before the next one."""
        return [*self._tokens, *self._drafted[:i]]


Accept = Callable[[Draft, Rows], list[int]]
"""A rule: the 1 to `len(draft.tokens) + 1` token ids a round emits: the first of the draft's, perhaps one of its branches, and one more."""


def coupled(draft: Draft, rows: Rows) -> list[int]:
    """Emit the target's own tokens, as far as they agree with the draft's, and one more.

    What is emitted never depends on the draft: it is what plain decoding with the same noise says. The draft agrees often because it used that noise.

    Source: Daliri, Musco, Suresh 2024, arXiv:2408.07978.
    """
    new: list[int] = []
    for i, drafted in enumerate(draft.tokens):
        new.append(rows.token(i))
        if new[i] != drafted:
            return [*new, rows.token(i + 1)] if rows.branch_off(i, new[i]) else new
    return [*new, rows.token(len(draft.tokens))]


def rejection(draft: Draft, rows: Rows) -> list[int]:
    """Keep each drafted token x with probability min(1, p(x) / q(x)); draw the first that is not kept from the residual of p and q.

    Source: Leviathan et al. 2022, arXiv:2211.17192, Algorithm 1.
    """
    sampler = rows.sampler
    for i, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        p = rows.distribution(i)
        if not sampler.rng.chance(min(1.0, p.prob(token) / q.prob(token))):
            return [*draft.tokens[:i], sampler.draw(residual(p, q))]
    return [*draft.tokens, sampler.draw(rows.distribution(len(draft.tokens)))]


def block(draft: Draft, rows: Rows) -> list[int]:
    """Verify the draft as a whole: keep the longest part that passes, then draw from the residual that belongs to its weight.

    Keeps at least as many tokens as `rejection` in expectation. Here `weight[i]` is the paper's p_i.

    Source: Sun et al. 2024, arXiv:2403.10444, Algorithm 2.
    """
    sampler, weight, laws = rows.sampler, [1.0], [rows.distribution(0)]
    for i, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        weight.append(min(1.0, weight[i] * laws[i].prob(token) / q.prob(token)))
        if (
            weight[-1] == 0
        ):  # nothing from here on can be kept, and the target may have no law after a token that it never says
            break
        laws.append(rows.distribution(i + 1))
    for i in range(len(laws) - 1, 0, -1):
        if i == len(draft.tokens):
            if sampler.rng.chance(weight[i]):
                return [*draft.tokens, sampler.draw(laws[i])]
            continue
        mass = float(_excess(laws[i], draft.q[i], weight[i]).sum())
        refused = mass + 1 - weight[i]
        if sampler.rng.chance(mass / refused if refused > 0 else 1.0):
            return [*draft.tokens[:i], sampler.draw(residual(laws[i], draft.q[i], weight[i]))]
    return [sampler.draw(residual(laws[0], draft.q[0]) if draft.tokens else laws[0])]


RULES: dict[str, Accept] = {"coupled": coupled, "rejection": rejection, "block": block}


def residual(p: Distribution, q: Distribution, weight: float = 1.0) -> Distribution:
    """Return the distribution to draw from after a rejection: norm(max(0, weight * p - q)).

    Where it has no mass (p and q equal up to rounding, so that hardly anything is ever rejected) it is p itself.

    Args:
        p: The target's law.
        q: The draft's law, which the rejected token was drawn from.
        weight: How much of p is still to be said, 1 but in block verification.

    Source: Leviathan et al. 2022, arXiv:2211.17192, Algorithm 1. Names follow the paper.
    """
    rest = _excess(p, q, weight)
    mass = rest.sum()
    if mass <= 0:
        return p
    alive = rest > 0
    return Distribution(p.ids[alive], rest[alive] / mass)


def _excess(p: Distribution, q: Distribution, weight: float) -> NDArray[np.float64]:
    """Return max(0, weight * p - q) for the ids of p."""
    if np.array_equal(p.ids, q.ids):  # no filter: spares a search for every token of the vocabulary
        q_of_p = q.probs
    else:
        at = np.searchsorted(q.ids, p.ids)
        at[at == len(q.ids)] = 0
        q_of_p = np.where(q.ids[at] == p.ids, q.probs[at], 0.0)
    return np.maximum(weight * p.probs - q_of_p, 0.0)
