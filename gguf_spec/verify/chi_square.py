"""Whether the first tokens of many generations come as often as the target's probabilities say (chi-square).

The probabilities are llama.cpp's: its sampler chain, applied to rows that are read afresh. Nothing of our own chain is in them.
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
_UNFILTERED = replace(
    _FILTERED, top_k=0, top_p=1.0, min_p=0.0
)  # where logits move, what a filter cuts off may change
LAW_TOKENS, _K = 3, 3  # tokens that are looked at, and drafted in a round
_TOKENS, _ADAPTIVE_TOKENS = (
    LAW_TOKENS + 1,
    32,
)  # that are asked for: for few tokens adaptive drafting does not begin
_TOLD_APART = 5  # likeliest tokens of a place; all others are one outcome
_REPEATED = 8  # tokens that are generated and stand twice in the prompt for n-gram drafts
_RAISED, _OVER_PENALTIES = (
    12,
    1.0,
)  # rank of a token that a bias raises to the second place, and logits above it
_FEWEST_DRAWS = 50
_ALARM = 1e-5  # chance that a right sampler fails the chi-square of one rule

WAYS = {
    "coupled": Speculation(_K, "coupled", drafter="model", adaptive=False),
    "rejection": Speculation(_K, "rejection", drafter="model", adaptive=False),
    "block": Speculation(_K, "block", drafter="model", adaptive=False),
    "rejection, n-gram": Speculation(_K, "rejection", drafter="ngram", adaptive=False),
    "block, n-gram": Speculation(_K, "block", drafter="ngram", adaptive=False),
    "rejection, adaptive": Speculation(_K, "rejection"),
    "block, adaptive": Speculation(_K, "block"),
}
"""What is drawn with: a rule, and what drafts where that is not the draft model at a fixed length. These are drawn from half as often."""


def n_draws_of(way: str, n_draws: int) -> int:
    """Return how often is drawn in one of the `WAYS`."""
    return n_draws if way == WAYS[way].accept else (n_draws + 1) // 2


@dataclass(frozen=True)
class ChiSquareTest:
    """The first tokens of many generations against the target's exact probabilities.

    Attributes:
        accept: The rule, and what drafted: a key of `WAYS`.
        n_draws: Generations.
        n_cells: Outcomes told apart.
        chi_square: Sum of (seen - expected)^2 / expected; None where tokens came that the target never says.
        p_value: Chance of so large a one, or a larger, from a right sampler.
        n_drafted: Tokens that were drafted.
    """

    accept: str
    n_draws: int
    n_cells: int
    chi_square: float | None
    p_value: float
    n_drafted: int = 0

    @property
    def ok(self) -> bool:
        """Whether chance explains it."""
        return self.p_value >= _ALARM


class Reference:
    """A prompt, options, and the exact distribution of the first tokens after it. They are the same for all rules."""

    def __init__(self, llm: LLM, prompt: str, exact: bool) -> None:
        """Compute the distribution.

        Args:
            llm: The models.
            prompt: A text to go on from. It is put twice, and between stands a token that a bias makes likely, with what may follow: n-gram drafts
                propose that.
            exact: Rows have the same bits in the passes that verify: filters cut off the same tokens.
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
        """Return the outcome that these first tokens count as."""
        known: tuple[int | None, ...] = ()
        for token in tokens[:LAW_TOKENS]:
            if (*known, None) in self.distribution and not any(
                one[: len(known) + 1] == (*known, token) for one in self.distribution
            ):
                return (*known, None)
            known = (*known, token)
        return known


def _told_apart(one: Mapping[int, float]) -> dict[int | None, float]:
    """Return the likeliest tokens with their probabilities, and all others as None."""
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
    """Draw first tokens in one of the `WAYS`, fewer when it takes too long, and compare them with the exact distribution."""
    seen: Counter[tuple[int | None, ...]] = Counter()
    sampling, n_drafted, experiences, cheap = (
        reference.sampling,
        0,
        llm._pair.experiences,
        _cheap_drafts(llm.profile),
    )
    if WAYS[way].adaptive:
        sampling = replace(sampling, max_tokens=_ADAPTIVE_TOKENS)
    try:
        for i in range(n_draws_of(way, n_draws)):
            if i >= _FEWEST_DRAWS and time.perf_counter() > until:
                break
            emitted: list[int] = []
            if WAYS[way].adaptive:
                llm._pair.experiences = cheap.experiences()

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
        llm._pair.experiences = experiences
    return replace(chi_square(way, seen, reference.distribution), n_drafted=n_drafted)


def _cheap_drafts(profile: Profile) -> Profile:
    """Return a profile by which drafting pays, so that adaptive drafts are made: what they cost here must not matter for the probabilities."""
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
    """Compare counts with a law. Outcomes expected less than five times are pooled; one that the law does not know has no chance at all."""
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
    """Return the upper tail of the chi-square distribution: the regularised gamma function Q(n / 2, x / 2) by its recurrence."""
    if n_free < 1 or statistic <= 0:
        return 1.0
    x, a = statistic / 2, 0.5 if n_free % 2 else 1.0
    tail = math.erfc(math.sqrt(x)) if n_free % 2 else math.exp(-x)
    while a < n_free / 2:
        tail += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
        a += 1
    return min(1.0, tail)
