"""How many requests run at once if the user gives no number: by memory and by measured costs.

V(N) is the time of a pass over one row of each of N sequences. N requests decode N / V(N) tokens
per second in all, and each of them 1 / V(N). N grows only while twice as many requests give a
quarter more tokens in all; beyond that each request becomes slower for little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..gguf.validation import ModelFile
from ..llama.backend import parallel_in_room
from ..llama.options import ContextOptions
from ..options import AUTO_PARALLEL_MAX, K_MAX, Speculation
from ..speculative.company import CompanyCosts
from ..speculative.cost_model import CostModel, Pace
from ..speculative.profile import ModelKey, Profile, read_profile

# Requests at once where no costs are measured.
_USUAL = 4
# Gain in tokens per second of all requests that twice as many must bring.
_LEAST_GAIN = 1.25
# Tokens; length of the texts for which the gain is compared.
_DEPTH = 512


class ParallelChoice(NamedTuple):
    """A number of requests that run at once.

    Attributes:
        n: The number.
        reason: Why it was chosen, as a part of a sentence; empty if the user gave it.
    """

    n: int
    reason: str = ""


def choose_parallel(
    models: Sequence[tuple[ModelFile, ContextOptions]], speculation: Speculation | None
) -> ParallelChoice:
    """Return how many requests run at once.

    Args:
        models: Files and options of the target, and of its draft if there is one.
        speculation: Draft options of the requests.
    """
    if speculation and (speculation.tree or speculation.strict):
        name = "tree" if speculation.tree else "strict"
        return ParallelChoice(1, f"{name} needs passes without other requests")
    room = parallel_in_room([(file.header, options) for file, options in models], AUTO_PARALLEL_MAX)
    if room is None:
        return ParallelChoice(1, "the free memory is unknown")
    keys = [ModelKey(*one) for one in models]
    profile = read_profile(keys[0], keys[1] if len(keys) > 1 else None)
    if not profile:
        n = min(_USUAL, room)
        return _by_memory(n) if n < _USUAL else ParallelChoice(n, "no costs were measured yet")
    rate = _rates(profile)
    n = _by_gain(rate, room)
    if n == room < AUTO_PARALLEL_MAX:
        return _by_memory(n)
    gain = f"{rate(n) / rate(1):.1f} times the tokens per second of one"
    if n == AUTO_PARALLEL_MAX:
        return ParallelChoice(n, f"as measured, they have {gain}")
    more = max(0.0, rate(min(2 * n, room)) / rate(n) - 1)
    has = f"they have {gain}" if n > 1 else "one is nearly as fast as several"
    return ParallelChoice(n, f"as measured, {has}, and {min(2 * n, room)} only {more:.0%} more")


def _by_memory(n: int) -> ParallelChoice:
    return ParallelChoice(n, "the caches of more would need over a quarter of the free memory")


def _rates(profile: Profile) -> Callable[[int], float]:
    """Return the function from a number of requests to their tokens per second in all."""
    costs = CostModel(profile.target, profile.target_depth, K_MAX + 1, Pace())
    company = CompanyCosts(profile.widest(exact=True), AUTO_PARALLEL_MAX)
    return lambda n: n / company.seconds(costs, n, 1, _DEPTH)


def _by_gain(rate: Callable[[int], float], most: int) -> int:
    """Return the largest number that each step from a smaller one is worth."""
    best, share = 1, math.log2(_LEAST_GAIN)
    for n in range(2, most + 1):
        if rate(n) >= rate(best) * (n / best) ** share:
            best = n
    return best
