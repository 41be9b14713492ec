"""Speculative round and generation loop.

The emitted tokens follow the target's distribution for any drafter; `speculative.acceptance` has
the argument. `tokens` holds the prompt and all emitted tokens. Invariant after each round:

    target.cached == tokens[:target.n_past]
    target.n_past == len(tokens) - 1  # the next round decodes the newest token

A rollback of recurrent layers may drop more tokens (`llama.recurrent_state`). A round decodes all
tokens from `target.n_past` on, so it needs no case for this. A round rolls back once, after it is
cut at an end token.

No cached token of the drafter lies at or after position `len(tokens) - 1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from ..arrays import Logits, row_bits
from ..passes import LanguageModel
from ..results import TokenLogprob
from ..sampling.chain import Sampler
from .acceptance import Accept, Draft, Rows, coupled
from .prefix import read_on, retain_prefix

Choice = tuple[list[int], list[int], list[TokenLogprob]]
"""Tokens of a round, indices of those that are near ties, and log-probabilities if asked for."""
Choose = Callable[[Logits, Sequence[int], Sequence[int], bool], Choice | None]
"""(rows, text, draft, whether near ties are looked for) -> the choice by the rule `coupled`; \
None to leave it to the sampler."""


class Drafter(Protocol):
    """Source of drafts; like a model it gets all tokens, and reads those that are new to it."""

    def keep(self, prompt: Sequence[int]) -> None:
        """Retain the longest prefix of `prompt` that was read, at the start of a request."""

    def read(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> None:
        """Read the prompt if it is expected to be used, pass by pass until `cancelled()`."""

    def draft(self, tokens: Sequence[int], k: int, /) -> Draft:
        """Propose at most `k` tokens to follow `tokens`; fewer or none are allowed."""

    def learn(self, tokens: Sequence[int], rows: Logits, /) -> None:
        """Observe the emitted tokens that followed the start of the last draft.

        `rows` are the target's at these positions, shape `(n, V)`, n >= len(tokens).
        """

    def rollback(self, to: int) -> None:
        """Remove from the cache all tokens after the first `to`."""


class RoundRule(NamedTuple):
    """Settings that decide a round.

    Attributes:
        accept: Acceptance rule.
        noise: Largest logit difference that counts as a near tie, in logits; 0 disables the
            detection.
        strict: Decide a near tie again from a pass over one token.
        wide_past: The cache holds tokens from passes over several tokens, which plain decoding does
            not make.
        choose: Chooses as `accept` and the sampler do, in one step; None if they always do.
    """

    accept: Accept = coupled
    noise: float = 0.0
    strict: bool = False
    wide_past: bool = False
    choose: Choose | None = None

    def noise_of(self, n_tokens: int) -> float:
        """Return the noise of a pass, in logits; 0 where plain decoding makes the same pass."""
        return self.noise if n_tokens > 1 or self.wide_past else 0.0


class Round(NamedTuple):
    """Result of one round.

    Attributes:
        tokens: The new token ids, 1 to `n_drafted + 1`.
        n_accepted: Number of leading `tokens` that come from the draft.
        ended: The last of `tokens` ends the generation.
        near_ties: Indices into `tokens` of the tokens that were decided by less than the noise.
        decided_again: The last of `tokens` comes from a second pass, over one token.
        logprobs: Log-probability of each of `tokens` under the target; empty unless the sampling
            options request it.
        wide: The target's pass was over several tokens.
    """

    tokens: list[int]
    n_drafted: int
    n_accepted: int
    ended: bool = False
    near_ties: tuple[int, ...] = ()
    decided_again: bool = False
    logprobs: tuple[TokenLogprob, ...] = ()
    wide: bool = False


def run_round(
    target: LanguageModel,
    drafter: Drafter,
    tokens: Sequence[int],
    sampler: Sampler,
    k: int,
    rule: RoundRule,
    is_end: Callable[[int], bool] = lambda _: False,
) -> Round:
    """Draft up to `k` tokens, check them in one target pass, return the 1 to k+1 new ones.

    The tokens after one that is an end are dropped.
    """
    draft = drafter.draft(tokens, k)
    drafted, n_before = draft.tokens, len(tokens)
    n_drafted = len(drafted)
    pending = [*tokens[target.n_past :], *drafted]
    logits = target.logits(pending, n_drafted + 1 + len(draft.again))
    if draft.again:
        logits = _row_as_alone(target, tokens, draft, logits)
    wide, noise = len(pending) > 1, rule.noise_of(len(pending))
    choice = rule.choose(logits, tokens, drafted, noise > 0) if rule.choose else None
    if choice:
        new, near_ties, logprobs = choice
    else:
        rows = Rows(logits, tokens, drafted, sampler)
        new = rule.accept(draft, rows)
        near_ties = [i for i, token in enumerate(new) if rows.is_near_tie(i, token, noise)]
        named = [] if sampler.sampling.logprobs is None else new
        logprobs = [rows.logprob(i, token) for i, token in enumerate(named)]
    drafter.learn(new, logits)
    again = rule.strict and wide and bool(near_ties)
    if again:
        del new[near_ties[0] :], logprobs[near_ties[0] :], near_ties[1:]
        alone = row_alone(target, [*tokens, *new], sampler)
        new.append(alone.token(0))
        logprobs += [] if sampler.sampling.logprobs is None else [alone.logprob(0, new[-1])]
    n_accepted, ended = len(new) - 1, False
    for i, token in enumerate(new, 1):
        if is_end(token):
            del new[i:], logprobs[i:]
            near_ties = [tie for tie in near_ties if tie < i]
            n_accepted, ended = min(n_accepted, i), True
            break
    one = Round(new, n_drafted, n_accepted, ended, tuple(near_ties), again, tuple(logprobs), wide)
    keep = n_before + len(new) - 1
    target.rollback(keep)
    drafter.rollback(keep)
    return one


def _row_as_alone(
    target: LanguageModel, tokens: Sequence[int], draft: Draft, rows: Logits
) -> Logits:
    """Return the last row of a pass over known tokens and the newest one, shape `(1, V)`.

    If the rows of the known tokens have other bits than before, their cached values have, too: all
    of them are decoded in passes of their own.
    """
    n = len(draft.again)
    if all(row_bits(row) == bits for row, bits in zip(rows[:n], draft.again, strict=True)):
        return rows[n:]
    draft.moved()
    target.rollback(len(tokens) - 1 - n)
    for token in tokens[target.n_past :]:
        rows = target.logits([token], 1)
    return rows


def row_alone(target: LanguageModel, history: Sequence[int], sampler: Sampler) -> Rows:
    """Return the row after `history`, from a pass over its last token only."""
    target.rollback(len(history) - 1)
    target.read(history[target.n_past : -1])
    return Rows(target.logits(history[-1:], 1), history, [], sampler)


def read_prompt(
    target: LanguageModel,
    drafter: Drafter,
    prompt: Sequence[int],
    k: int,
    cancelled: Callable[[], bool],
    on_pass: Callable[[int, int], object] | None = None,
) -> None:
    """Read the prompt up to its last token, which the first round decodes.

    The caches keep the prefix that they share with the prompt. A later request that continues the
    prompt in another way finds it there. After each pass of the target `on_pass` is called, as by
    `read_on`.
    """
    retain_prefix(target, prompt[:-1])
    drafter.keep(prompt[:-1])
    read_on(target, prompt[:-1], cancelled, on_pass)
    target.hold(lasting=True)
    if k and not cancelled():
        drafter.read(prompt[:-1], cancelled)


def rounds(
    target: LanguageModel,
    drafter: Drafter,
    prompt: Sequence[int],
    sampler: Sampler,
    k: int,
    rule: RoundRule,
    n_max: int | None,
    is_end: Callable[[int], bool],
    cancelled: Callable[[], bool],
) -> Iterator[Round]:
    """Yield rounds until an end token, `n_max` tokens, a full context or `cancelled()`.

    The prompt must be read already. The invariant of the module holds at each yield.
    """
    tokens = [*prompt]
    # The cache comes from an earlier request and was not computed by prefill passes.
    if target.n_read < target.n_past:
        rule = rule._replace(wide_past=True)
    n_left = min(n_max or target.n_ctx, target.n_ctx - len(prompt))
    while n_left > 0 and not cancelled():
        one = run_round(
            target, drafter, tokens, sampler, k=min(k, n_left - 1), rule=rule, is_end=is_end
        )
        tokens += one.tokens
        n_left -= len(one.tokens)
        if one.wide and not rule.wide_past:
            rule = rule._replace(wide_past=True)
        yield one
        if one.ended:
            return
