"""The acceptance rule: which drafted tokens stay, and what comes after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ._sampling import Distribution, Sampler


class Draft(NamedTuple):
    """What a drafter proposes.

    Attributes:
        tokens: Token ids, at most `k`.
        q: For each of them the law it was drawn from.
    """

    tokens: list[int]
    q: list[Distribution]


def residual(p: Distribution, q: Distribution) -> Distribution:
    """Return the distribution to draw from after a rejection: norm(max(0, p - q)).

    Where it has no mass (p and q equal up to rounding, so that hardly anything is ever rejected) it is p itself.

    Args:
        p: The target's law.
        q: The draft's law, which the rejected token was drawn from.

    Source: Leviathan et al. 2022, arXiv:2211.17192, Algorithm 1. Names follow the paper.
    """
    if np.array_equal(p.ids, q.ids):  # no filter: spares a search for every token of the vocabulary
        q_of_p = q.probs
    else:
        at = np.searchsorted(q.ids, p.ids)
        at[at == len(q.ids)] = 0
        q_of_p = np.where(q.ids[at] == p.ids, q.probs[at], 0.0)
    rest = np.maximum(p.probs - q_of_p, 0.0)
    mass = rest.sum()
    if mass <= 0:
        return p
    alive = rest > 0
    return Distribution(p.ids[alive], rest[alive] / mass)


Accept = Callable[[Draft, Callable[[int], Distribution], Sampler], list[int]]


def rejection(draft: Draft, law: Callable[[int], Distribution], sampler: Sampler) -> list[int]:
    """Return the accepted tokens and one more: token-wise rejection sampling, which emits exactly the target's law.

    Args:
        draft: The proposal.
        law: `law(i)` is the target's law after the first `i` drafted tokens, 0 <= i <= len(draft.tokens); asked for lazily, in order.
        sampler: Where chances and draws come from.

    Returns:
        1 to `len(draft.tokens) + 1` token ids. The last one is the target's own: the correction of the first rejected token, or a bonus.

    Source: Leviathan et al. 2022, arXiv:2211.17192, Algorithm 1.
    """
    for i, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        p = law(i)
        if not sampler.rng.chance(min(1.0, p.prob(token) / q.prob(token))):
            return [*draft.tokens[:i], sampler.draw(residual(p, q))]
    return [*draft.tokens, sampler.draw(law(len(draft.tokens)))]
