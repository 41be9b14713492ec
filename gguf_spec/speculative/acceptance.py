"""Acceptance rules: they decide which draft tokens are kept and which token follows them.

Exactness. Every rule emits the target's distribution p, for any draft distribution q:

- `coupled`: the token at a position is the Gumbel-max sample of p with the noise of that position.
  It does not depend on the draft, which only decides how many rows of the pass are used.
- `rejection`: x is emitted with probability q(x) min(1, p(x) / q(x)) + max(0, p(x) - q(x)) = p(x).
  The second term is the residual times the probability of a rejection.
- `block`: a prefix of weight w is kept with probability w. A next token x adds q(x) w' if kept,
  with w' = min(1, w p(x) / q(x)), and max(0, w p(x) - q(x)) from the residual; the sum is w p(x).
- All rules: every row used follows emitted tokens only. For `rejection` and `block`, draft tokens
  must be drawn from q, and their values must not decide whether they are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits
from ..results import TokenLogprob
from ..sampling.chain import Distribution, Sampler, logprob
from ..sampling.near_ties import is_near_tie


@dataclass(frozen=True)
class Draft:
    """Proposal of a drafter: a sequence of tokens.

    Attributes:
        tokens: Token ids, at most `k`.
        q: The distribution that each token was drawn from. The rule `coupled` ignores it, so it may
            then be empty.
        again: Hashes of the rows behind the last known tokens. The pass decodes these tokens again
            before the newest one, which times such a pass.
        moved: Called if their rows have other bits now, so that passes are not exact.
    """

    tokens: list[int]
    q: list[Distribution]
    again: Sequence[bytes] = ()
    moved: Callable[[], object] = lambda: None


class Rows:
    """Target rows for a draft; row `i` follows its first `i` tokens, 0 <= i <= len(drafted).

    Distributions and tokens are computed on request.
    """

    def __init__(
        self,
        logits: Logits,
        tokens: Sequence[int],
        drafted: Sequence[int],
        sampler: Sampler,
    ) -> None:
        """Select the rows of a draft: the last ones of a pass, shape `(n, V)`.

        Args:
            tokens: All token ids before the draft.
            sampler: The target's chain.
        """
        self.logits: NDArray[np.float32] = logits[len(logits) - len(drafted) - 1 :]
        self.sampler = sampler
        self._tokens, self._drafted = tokens, drafted

    def distribution(self, i: int) -> Distribution:
        return self.sampler.distribution(self.logits[i], self.history(i))

    def token(self, i: int) -> int:
        """Return the target's own next token, drawn with the noise of its position."""
        return self.sampler.token(self.logits[i], self.history(i))

    def is_near_tie(self, i: int, token: int, noise: float) -> bool:
        """Return whether the choice of `token` was closer than `noise`, in logits."""
        return is_near_tie(self.sampler, self.logits[i], self.history(i), token, noise)

    def logprob(self, i: int, token: int) -> TokenLogprob:
        return logprob(self.logits[i], token, self.sampler.sampling.logprobs or 0)

    def history(self, i: int) -> list[int]:
        """Return all tokens before the next one, those of the draft included."""
        return [*self._tokens, *self._drafted[:i]]


Accept = Callable[[Draft, Rows], list[int]]
"""A rule: the 1 to `len(draft.tokens) + 1` token ids a round emits: \
the first of the draft's, and one more."""


def coupled(draft: Draft, rows: Rows) -> list[int]:
    """Emit the target's own tokens while they agree with the draft, and one more.

    The emitted tokens do not depend on the draft. They equal those of plain decoding with the same
    noise. The draft often agrees because it uses that noise too.

    Source: Daliri, Musco, Suresh 2024, arXiv:2408.07978.
    """
    new: list[int] = []
    for i, drafted in enumerate(draft.tokens):
        new.append(rows.token(i))
        if new[i] != drafted:
            return new
    return [*new, rows.token(len(draft.tokens))]


def rejection(draft: Draft, rows: Rows) -> list[int]:
    """Keep each draft token x with probability min(1, p(x) / q(x)).

    The first rejected token is replaced by a draw from the residual of p and q.

    Source: Leviathan et al. 2022, arXiv:2211.17192, Algorithm 1.
    """
    sampler = rows.sampler
    for i, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        p = rows.distribution(i)
        if not sampler.rng.chance(min(1.0, p.prob(token) / q.prob(token))):
            return [*draft.tokens[:i], sampler.draw(residual(p, q))]
    return [*draft.tokens, sampler.draw(rows.distribution(len(draft.tokens)))]


def block(draft: Draft, rows: Rows) -> list[int]:
    """Verify the draft as a whole: keep the longest accepted prefix, then draw from its residual.

    In expectation this keeps at least as many tokens as `rejection`. `weight[i]` is the paper's
    p_i.

    Source: Sun et al. 2024, arXiv:2403.10444, Algorithm 2.
    """
    sampler, weight, targets = rows.sampler, [1.0], [rows.distribution(0)]
    for i, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        weight.append(min(1.0, weight[i] * targets[i].prob(token) / q.prob(token)))
        # No longer prefix can be kept. The target may have no distribution after a token of
        # probability 0.
        if weight[-1] == 0:
            break
        targets.append(rows.distribution(i + 1))
    for i in range(len(targets) - 1, 0, -1):
        if i == len(draft.tokens):
            if sampler.rng.chance(weight[i]):
                return [*draft.tokens, sampler.draw(targets[i])]
            continue
        mass = float(_excess(targets[i], draft.q[i], weight[i]).sum())
        refused = mass + 1 - weight[i]
        if sampler.rng.chance(mass / refused if refused > 0 else 1.0):
            return [*draft.tokens[:i], sampler.draw(residual(targets[i], draft.q[i], weight[i]))]
    return [sampler.draw(residual(targets[0], draft.q[0]) if draft.tokens else targets[0])]


RULES: dict[str, Accept] = {"coupled": coupled, "rejection": rejection, "block": block}


def residual(p: Distribution, q: Distribution, weight: float = 1.0) -> Distribution:
    """Return the distribution to draw from after a rejection: norm(max(0, weight * p - q)).

    Return p itself if the residual has no mass. Then p and q are equal up to rounding, and a
    rejection is almost impossible.

    Args:
        weight: Weight of the prefix in block verification; 1 for `rejection`.

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
    # No filter was active: this avoids a search for every token of the vocabulary.
    if np.array_equal(p.ids, q.ids):
        q_of_p = q.probs
    else:
        at = np.searchsorted(q.ids, p.ids)
        at[at == len(q.ids)] = 0
        q_of_p = np.where(q.ids[at] == p.ids, q.probs[at], 0.0)
    return np.maximum(weight * p.probs - q_of_p, 0.0)
