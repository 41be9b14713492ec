"""Whether the first tokens of many generations come as often as the target's own probabilities say (chi-square)."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ._filters import make_filters
from ._language_model import row_afresh
from ._llm import LLM
from ._rng import SeededRng
from ._sampling import Sampler
from ._types import Accept, Sampling, Speculation

_SAMPLING = Sampling(temperature=1.0, top_k=4, top_p=1.0, repeat_penalty=1.2, ignore_eos=True)
LAW_TOKENS, _K = 3, 3  # tokens that are looked at, and drafted in a round
_FEWEST_DRAWS = 50
_ALARM = 1e-5  # chance that a right sampler fails the chi-square of one rule


@dataclass(frozen=True)
class Law:
    """The first tokens of many generations against the target's exact probabilities.

    Attributes:
        accept: The rule.
        n_draws: Generations.
        n_cells: Outcomes told apart.
        chi_square: Sum of (seen - expected)^2 / expected; None where tokens came that the target never says.
        p_value: Chance of so large a one, or a larger, from a right sampler.
    """

    accept: str
    n_draws: int
    n_cells: int
    chi_square: float | None
    p_value: float

    @property
    def ok(self) -> bool:
        """Whether chance explains it."""
        return self.p_value >= _ALARM


def drawn(llm: LLM, prompt: str, accept: Accept, n_draws: int, seed: int, until: float, on_draw: Callable[[], object]) -> Law:
    """Draw first tokens under a rule, fewer when it takes too long, and compare them with the exact law."""
    ids = llm.tokenize(prompt)
    exact = _exact_law(llm, ids)
    seen: Counter[tuple[int, ...]] = Counter()
    speculation, sampling = Speculation(_K, accept, drafter="model", adaptive=False), replace(_SAMPLING, max_tokens=LAW_TOKENS + 1)
    for i in range(n_draws):
        if i >= _FEWEST_DRAWS and time.perf_counter() > until:
            break
        seen[llm.generate_tokens(ids, replace(sampling, seed=(seed + i) % 2**64), speculation=speculation).tokens[:LAW_TOKENS]] += 1
        on_draw()
    return chi_square(accept, seen, exact)


def _exact_law(llm: LLM, ids: Sequence[int]) -> dict[tuple[int, ...], float]:
    """Return the target's own law of the first tokens, by the chain rule from its rows."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    with llm.models() as (target, _):
        sampler = Sampler(_SAMPLING, SeededRng(0), make_filters(target, _SAMPLING, len(ids)))
        for _ in range(LAW_TOKENS):
            longer: dict[tuple[int, ...], float] = {}
            for tokens, weight in law.items():
                history = [*ids, *tokens]
                one = sampler.distribution(row_afresh(target, history), history)
                longer |= {(*tokens, int(t)): weight * p for t, p in zip(one.ids, one.probs, strict=True)}
            law = longer
    return law


def chi_square(accept: str, seen: Counter[tuple[int, ...]], exact: dict[tuple[int, ...], float]) -> Law:
    """Compare counts with a law. Outcomes expected less than five times are pooled; one that the law does not know has no chance at all."""
    n = seen.total()
    cells = [(seen[outcome], p * n) for outcome, p in exact.items() if p * n >= 5]
    rare = [(seen[outcome], p * n) for outcome, p in exact.items() if p * n < 5]
    if rare:
        cells.append((sum(c for c, _ in rare), sum(e for _, e in rare)))
    statistic = float(sum((count - expected) ** 2 / expected for count, expected in cells))
    if sum(count for count, _ in cells) < n:
        return Law(accept, n, len(cells), None, 0.0)
    return Law(accept, n, len(cells), statistic, _chance_of_more(statistic, len(cells) - 1))


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
