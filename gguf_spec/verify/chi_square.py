"""Chi-square tests of first-token frequencies against the target's exact probabilities.

The probabilities come from llama.cpp's sampler chain, applied to newly computed rows. They do not
depend on this package's own chain.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..llama.samplers import distribution
from ..options import K_MAX, Sampling, Speculation
from ..runtime.llm import LLM
from ..speculative.interfaces import decode_last
from ..speculative.pair import Snapshot
from ..speculative.profile import Profile

_FILTERED = Sampling(
    temperature=0.9,
    top_k=5,
    top_p=0.98,
    min_p=0.01,
    repeat_penalty=1.2,
    frequency_penalty=0.1,
    presence_penalty=0.1,
    ignore_eos=True,
)
# Used if passes are not exact: a logit shift may change the tokens that a filter removes.
_UNFILTERED = replace(_FILTERED, top_k=0, top_p=1.0, min_p=0.0)
LAW_TOKENS, _K = 3, 3  # number of compared first tokens, and draft length
# Values of max_tokens. Adaptive drafting needs more, because it does not start for few tokens.
_TOKENS, _ADAPTIVE_TOKENS = (LAW_TOKENS + 1, 32)
_TOLD_APART = 5  # most likely tokens with an outcome of their own; all others share one
_REPEATED = 8  # generated tokens that occur twice in the prompt, for n-gram drafts
# Initial rank of a token that a bias raises to about rank 2, and the bias above rank 2, in logits.
_RAISED, _OVER_PENALTIES = (12, 1.0)
_FEWEST_DRAWS = 50  # minimum number of generations per test, regardless of the time limit
_ALARM = 1e-5  # significance level: probability that a correct sampler fails one test

WAYS = {
    "coupled": Speculation(_K, "coupled", drafter="model", adaptive=False),
    "rejection": Speculation(_K, "rejection", drafter="model", adaptive=False),
    "block": Speculation(_K, "block", drafter="model", adaptive=False),
    "rejection, n-gram": Speculation(_K, "rejection", drafter="ngram", adaptive=False),
    "block, n-gram": Speculation(_K, "block", drafter="ngram", adaptive=False),
    "rejection, adaptive": Speculation(_K, "rejection"),
    "block, adaptive": Speculation(_K, "block"),
}
"""Tested draft settings: a rule, and the drafter unless it is the draft model at a fixed
length. The settings with a named drafter run half as many generations.
"""


def n_draws_of(way: str, n_draws: int) -> int:
    """Return the number of generations for one of the `WAYS`."""
    return n_draws if way == WAYS[way].accept else (n_draws + 1) // 2


@dataclass(frozen=True)
class ChiSquareTest:
    """Frequencies of first tokens compared with the target's exact probabilities.

    Attributes:
        accept: Rule and drafter: a key of `WAYS`.
        n_draws: Number of generations.
        n_cells: Number of distinct outcomes.
        chi_square: Sum of (observed - expected)^2 / expected; None if a token with probability 0
            occurred.
        p_value: Probability that a correct sampler gives this value or a larger one.
        n_drafted: Number of draft tokens.
    """

    accept: str
    n_draws: int
    n_cells: int
    chi_square: float | None
    p_value: float
    n_drafted: int = 0

    @property
    def ok(self) -> bool:
        """Whether the deviation is explained by chance."""
        return self.p_value >= _ALARM


class Reference:
    """A prompt, options, and the exact distribution of the next tokens, shared by all rules."""

    def __init__(self, llm: LLM, prompt: str, exact: bool) -> None:
        """Compute the distribution.

        Args:
            llm: The models.
            prompt: A text to continue. It is used twice. Between the two copies is a token that a
                bias makes likely, with a likely continuation, which n-gram drafts then propose.
            exact: Whether rows are bit-identical in verification passes, so that filters remove the
                same tokens.
        """
        ids = llm.tokenize(prompt)
        with llm.models() as (target, _):
            row, ends = decode_last(target, ids), target.ends
            best = [
                token
                for token in np.argsort(-row)[: _RAISED + len(ends)].tolist()
                if token not in ends
            ]
            raised = best[:_RAISED][-1]
        more = [*ids, raised]
        more += llm.generate_tokens(
            more, Sampling(temperature=0.0, max_tokens=_REPEATED), speculation=Speculation(0)
        ).tokens
        self.ids = [*more, *ids] if len(more) + len(ids) + _ADAPTIVE_TOKENS < llm.n_ctx else ids
        with llm.models() as (target, _):
            row = decode_last(target, self.ids)
            bias = {raised: float(np.partition(row, -2)[-2] - row[raised]) + _OVER_PENALTIES}
            self.sampling = replace(
                _FILTERED if exact else _UNFILTERED, logit_bias=bias, max_tokens=_TOKENS
            )
            self.distribution: dict[tuple[int | None, ...], float] = {(): 1.0}
            for _ in range(LAW_TOKENS):
                longer: dict[tuple[int | None, ...], float] = {}
                for tokens, weight in self.distribution.items():
                    if None in tokens:
                        longer[tokens] = weight
                        continue
                    history = [*self.ids, *(token for token in tokens if token is not None)]
                    one = distribution(
                        decode_last(target, history), history, self.sampling, target.ends
                    )
                    longer |= {
                        (*tokens, token): weight * p for token, p in _told_apart(one).items()
                    }
                self.distribution = longer

    def outcome(self, tokens: Sequence[int]) -> tuple[int | None, ...]:
        """Return the outcome to which these first tokens belong."""
        known: tuple[int | None, ...] = ()
        for token in tokens[:LAW_TOKENS]:
            if (*known, None) in self.distribution and not any(
                one[: len(known) + 1] == (*known, token) for one in self.distribution
            ):
                return (*known, None)
            known = (*known, token)
        return known


def _told_apart(one: Mapping[int, float]) -> dict[int | None, float]:
    """Return the most likely tokens with their probabilities, and all others combined as None."""
    best = sorted(one, key=lambda token: -one[token])
    apart: dict[int | None, float] = {token: one[token] for token in best[:_TOLD_APART]}
    return apart | (
        {None: sum(one[token] for token in best[_TOLD_APART:])} if len(best) > _TOLD_APART else {}
    )


def drawn(
    llm: LLM,
    reference: Reference,
    way: str,
    n_draws: int,
    seed: int,
    until: float,
    on_draw: Callable[[], object],
) -> ChiSquareTest:
    """Sample first tokens in one of the `WAYS` and test them against the exact distribution.

    Fewer generations run if `until` has passed.
    """
    seen: Counter[tuple[int | None, ...]] = Counter()
    sampling, n_drafted, known = reference.sampling, 0, llm.snapshot()
    cheap = Snapshot(_cheap_drafts(llm.profile).experiences())
    if WAYS[way].adaptive:
        sampling = replace(sampling, max_tokens=_ADAPTIVE_TOKENS)
    try:
        for i in range(n_draws_of(way, n_draws)):
            if i >= _FEWEST_DRAWS and time.perf_counter() > until:
                break
            emitted: list[int] = []
            if WAYS[way].adaptive:
                llm.restore(cheap)

            def is_enough(token: int, emitted: list[int] = emitted) -> bool:
                emitted.append(token)
                return len(emitted) >= LAW_TOKENS

            one = llm.generate_tokens(
                reference.ids,
                replace(sampling, seed=(seed + i) % 2**64),
                on_token=is_enough,
                speculation=WAYS[way],
            )
            seen[reference.outcome(one.tokens)] += 1
            n_drafted += one.stats.n_drafted
            on_draw()
    finally:
        llm.restore(known)
    return replace(chi_square(way, seen, reference.distribution), n_drafted=n_drafted)


def _cheap_drafts(profile: Profile) -> Profile:
    """Return a profile in which drafting is fast, so that adaptive drafting drafts tokens.

    The actual costs on this machine must not affect the probabilities.
    """
    pass_s = profile.target[1]
    free = {1: pass_s / 1000, K_MAX + 1: pass_s / 1000}
    return replace(
        profile,
        target={1: pass_s, K_MAX + 1: pass_s},
        target_depth={},
        draft=free,
        draft_depth={},
        token_s=0.0,
        proposal_s=0.0,
    )


def chi_square(
    accept: str,
    seen: Counter[tuple[int | None, ...]],
    exact: Mapping[tuple[int | None, ...], float],
) -> ChiSquareTest:
    """Compare counts with an exact distribution.

    Outcomes expected less than five times are pooled. If an outcome outside the distribution
    occurred, the p-value is 0.
    """
    n = seen.total()
    cells = [(seen[outcome], p * n) for outcome, p in exact.items() if p * n >= 5]
    rare = [(seen[outcome], p * n) for outcome, p in exact.items() if p * n < 5]
    if rare:
        cells.append((sum(c for c, _ in rare), sum(e for _, e in rare)))
    statistic = float(sum((count - expected) ** 2 / expected for count, expected in cells))
    if sum(count for count, _ in cells) < n:
        return ChiSquareTest(accept, n, len(cells), None, 0.0)
    return ChiSquareTest(
        accept, n, len(cells), statistic, _chance_of_more(statistic, len(cells) - 1)
    )


def _chance_of_more(statistic: float, n_free: int) -> float:
    """Return the upper tail of the chi-square distribution.

    It is the regularised gamma function Q(n / 2, x / 2), computed by its recurrence.
    """
    if n_free < 1 or statistic <= 0:
        return 1.0
    x, a = statistic / 2, 0.5 if n_free % 2 else 1.0
    tail = math.erfc(math.sqrt(x)) if n_free % 2 else math.exp(-x)
    while a < n_free / 2:
        tail += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
        a += 1
    return min(1.0, tail)
