"""The round and the loop around it. Exactness lives here: what is emitted follows the target's law, whatever the drafter says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ._accept import Accept, rejection
from ._drafters import Drafter
from ._sampling import Distribution, Logits, Sampler

_READ_AT_ONCE = 512  # prompt tokens between two looks at `cancelled`


class Target(Protocol):
    """What the loop needs of the target; `gguf_spec._model.Model` has it."""

    n_ctx: int

    @property
    def n_past(self) -> int: ...

    def read(self, tokens: Sequence[int]) -> None: ...

    def logits(self, tokens: Sequence[int], n_rows: int) -> Logits: ...

    def rollback(self, to: int) -> None: ...


@dataclass(frozen=True)
class Round:
    """What one round brought.

    Attributes:
        tokens: The new token ids, 1 to `n_drafted + 1`.
        n_drafted: How many were drafted.
        n_accepted: How many of `tokens`, from the first on, are the draft's.
        ended: The last of `tokens` ends the generation.
    """

    tokens: list[int]
    n_drafted: int
    n_accepted: int
    ended: bool = False


def run_round(target: Target, drafter: Drafter, tokens: Sequence[int], sampler: Sampler, k: int, accept: Accept = rejection) -> Round:
    """Draft up to `k` tokens, check them in one target pass, return the 1 to k+1 new ones."""
    draft = drafter.draft(tokens, k)
    pending = tokens[target.n_past :]
    logits = target.logits([*pending, *draft.tokens], len(draft.tokens) + 1)

    def law(i: int) -> Distribution:
        return sampler.distribution(logits[i], [*tokens, *draft.tokens[:i]])

    new = accept(draft, law, sampler)
    keep = len(tokens) + len(new) - 1  # the newest token is in no cache
    target.rollback(keep)
    drafter.rollback(keep)
    return Round(new, n_drafted=len(draft.tokens), n_accepted=len(new) - 1)


def read_prompt(target: Target, drafter: Drafter, prompt: Sequence[int], k: int, cancelled: Callable[[], bool]) -> None:
    """Empty both caches and read all of the prompt but its last token, which the first round decodes.

    Both begin at nothing: a cache left by another request was filled in batches of other sizes, whose rounding could tip a near tie.
    """
    target.rollback(0)
    drafter.rollback(0)
    for end in range(_READ_AT_ONCE, len(prompt) - 1 + _READ_AT_ONCE, _READ_AT_ONCE):
        if cancelled():
            return
        part = prompt[: min(end, len(prompt) - 1)]
        target.read(part[target.n_past :])
        if k:
            drafter.read(part)


def rounds(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    sampler: Sampler,
    k: int,
    n_max: int | None,
    is_end: Callable[[int], bool],
    cancelled: Callable[[], bool],
) -> Iterator[Round]:
    """Yield round after round, until an end token, `n_max` tokens, a full context, or `cancelled()`; the prompt is already read.

    After each round `target.n_past` is one less than the tokens so far, and the cache holds just those.
    """
    tokens = [*prompt]
    n_left = min(n_max or target.n_ctx, target.n_ctx - len(prompt))
    while n_left > 0 and not cancelled():
        one = run_round(target, drafter, tokens, sampler, min(k, n_left - 1))
        end = next((i for i, token in enumerate(one.tokens) if is_end(token)), None)
        if end is not None:  # what the burst holds after it was never said
            one = Round(one.tokens[: end + 1], one.n_drafted, min(one.n_accepted, end + 1), ended=True)
        tokens += one.tokens
        n_left -= len(one.tokens)
        target.rollback(len(tokens) - 1)
        drafter.rollback(len(tokens) - 1)
        yield one
        if one.ended:
            return
