"""Draft controller: chooses the draft length and the drafter of each round.

A draft length of 0 is plain decoding. The decisions are pure functions of
`speculative.draft_length`. This module holds the drafters, the clock and the statistics that they
use. Under the rule `coupled` no decision changes the text. Under `rejection` and `block` a drawn
token is always checked, so its value does not affect the decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits
from ..options import K_MAX
from ..sampling.chain import Distribution
from .acceptance import Draft
from .acceptance_rates import RequestAcceptance
from .draft_length import (
    LEAST_REACH,
    Outlook,
    Prices,
    best_length,
    drafting_gain,
    gain_of,
    token_seconds,
)
from .drafters import N_CONFIDENCE_BUCKETS, DraftTeam, ModelDrafter, Proposal, TokenDrafter
from .interfaces import LanguageModel
from .pair_statistics import SECOND, Forecast, PairStatistics
from .tree import Tree, TreeDraft

# Share of the generation time for probes of an unused draft model and for passes of untried widths.
_SPARE_SHARE = 0.007
# Number of tokens that a probe evaluates. As many tokens before them are read for context.
_PROBE = 16
# Acceptance rate of a good draft model.
_GOOD = 0.9
# Required saving, as a multiple of the time to read the prompt: acceptance over the rest of the
# answer is uncertain.
_READING_MARGIN = 1.5
# Number of unread tokens above which reading serves the rest of the answer, not one round.
_FAR_BEHIND = 2
# Text length in tokens above which the draft model may read only the last part.
_LONG_PROMPT = 2048
# Length of the last part that the draft model may read of a longer text, in tokens.
_LAST_PART = 1024
# Number of rounds after which one is decoded plainly, to measure the cost of a single token.
_PLAIN_EVERY = 64
# Smallest number of rounds between two that use optimistic costs.
_EXPLORE_EVERY = 16
# Factor on the counts of a request's throughput at each round.
_RATE_MEMORY = 0.95
# Weight of the throughput of earlier requests at the start of a request.
_RATE_PRIOR = 0.25


@dataclass
class _Step:
    """One token of a draft.

    Attributes:
        proposal: The token, its bucket and distribution.
        reach: Probability that it and all draft tokens before it are right.
        by_text: Proposal of the text drafters for the same position; None if the token is theirs,
            or they had none.
    """

    proposal: Proposal
    reach: float
    by_text: Proposal | None = None


@dataclass
class _Round:
    """State of the current round.

    Attributes:
        start: Tokens of the text before the round.
        n_past: Tokens in the target's cache before the round.
        prices: Expected costs.
        hopeful: Costs used for decisions: `prices`, or lower ones for unconfirmed widths in a round
            that explores.
        steps: The draft tokens.
        draft_s: Predicted seconds of drafting.
        n_kept: Number of draft tokens that are checked.
        n_checked: Number of rows that are checked beside those of the pending tokens.
        explored_s: Expected loss of a pass that tries a width, in seconds; None if no width is
            tried.
        returned_s: Clock when the draft was ready, in seconds.
        busy_s: The target's busy time when the draft was ready, in seconds.
    """

    start: int
    n_past: int
    prices: Prices
    hopeful: Prices
    steps: list[_Step] = field(default_factory=list)
    draft_s: float = 0.0
    n_kept: int = 0
    n_checked: int = 0
    explored_s: float | None = None
    returned_s: float = 0.0
    busy_s: float = 0.0

    @property
    def n_rows(self) -> int:
        """Number of rows of the target's pass."""
        return self.start - self.n_past + self.n_checked

    @property
    def explores(self) -> bool:
        """Whether optimistic costs are used for unconfirmed widths."""
        return self.hopeful is not self.prices


class DraftController(DraftTeam):
    """Drafter of one request that drafts only while that is expected to save time.

    It takes each token from the best drafter. The draft model reads a prompt only if it is expected
    to be used.

    Attributes:
        target: The model whose passes are saved; only its position, busy time and limits are read.
        known: Cost models and statistics over all requests; updated.
        n_left: Largest length of the answer, in tokens.
        fixed: Draft as many tokens as allowed whatever they cost, from the draft model if there is
            one.
        tree: Choice of the branches; None for drafts without branches.
        widest: Largest number of rows of a pass, pending tokens and branches included. Plain
            decoding is possible with any value.
        forecast: Predicted seconds of the generation so far.
        counts: Name of a drafter -> its draft tokens, and how many of them were accepted.
    """

    def __init__(
        self,
        target: LanguageModel,
        texts: Sequence[TokenDrafter],
        model: ModelDrafter | None,
        known: PairStatistics,
        n_left: int,
        fixed: bool = False,
        tree: Tree | None = None,
        widest: int = K_MAX + 1,
    ) -> None:
        super().__init__(texts, model)
        self.target, self.known = target, known
        self.n_left, self.fixed, self.tree, self.widest = n_left, fixed, tree, widest
        self.forecast = Forecast()
        self.counts: dict[str, tuple[int, int]] = {}
        self._chances = RequestAcceptance(known.chances, {ModelDrafter.name, SECOND})
        self._tokens, self._seconds = known.recent(_RATE_PRIOR)
        self._n_emitted = 0
        # Tokens since the draft model was used or probed.
        self._since_model = 0
        # Rounds since the last pass over one token.
        self._since_plain = 0
        # Rounds since the last round with optimistic costs.
        self._since_explored = 0
        # Spare time from which untried widths are tried, in seconds.
        self._explore_from_s = 0.0
        # State of the target before it read the prompt: cached tokens, and busy time in seconds.
        self._kept_at, self._kept_busy_s = 0, target.busy_s
        self._round = _Round(0, 0, Prices(1.0, [0.0]), Prices(1.0, [0.0]))

    @property
    def why_none(self) -> str:
        """Reason why nothing was drafted, or why a drafter is off; empty if all could draft."""
        if self.failures:
            return "; ".join(self.failures.values())
        if self.counts:
            return ""
        if self.widest < 2:
            return "no pass over more than one token is allowed here"
        if not self.model:
            return "no draft model, and the text did not repeat itself where that pays"
        return (
            f"{self._mean_chance():.0%} of the draft's tokens are expected to be right, "
            "too few to pay here (gguf-spec tune)"
        )

    def go_on_from(self, before: DraftController) -> None:
        """Take over counts and failures from the controller of the request's first part."""
        self.forecast, self.counts = before.forecast, before.counts
        self.switch_off(before.failures)

    # ---- interface of the engine

    def keep(self, prompt: Sequence[int]) -> None:
        """Retain the prefix of a prompt that the draft model has read.

        This is called before the target reads its own part.
        """
        if self.model:
            self.attempt(self.model, self.model.keep, prompt)
        self._kept_at, self._kept_busy_s = self.target.n_past, self.target.busy_s

    def read(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> None:
        """Index the prompt, and let the draft model read it if it is expected to be used."""
        self.known.target.learn_reading(
            self.target.n_past - self._kept_at,
            self._kept_at,
            self.target.reads_at_once,
            self.target.busy_s - self._kept_busy_s,
        )
        for drafter in self.texts:
            self.attempt(drafter, drafter.begin, tokens)
        if self.model:
            self.attempt(self.model, self._read_prompt, tokens, cancelled)

    def draft(self, tokens: Sequence[int], k: int) -> Draft:
        """Propose as many tokens as pay, at most `k`."""
        pending = len(tokens) - self.target.n_past
        k = max(0, min(k, self.widest - pending))
        one = self._round = self._begin_round(len(tokens), k)
        if self.model and not self.fixed:
            self.attempt(self.model, self._probe, tokens)
        if k and not self._is_plain_due():
            self._propose(tokens, k)
        one.n_kept = len(one.steps) if self.fixed else self._cut()
        draft = self._with_branches(self.tree, k) if self.tree else self._without_branches()
        one.n_checked = draft.n_drafted
        one.returned_s, one.busy_s = time.perf_counter(), self.target.busy_s
        return draft

    def learn(self, tokens: Sequence[int], rows: Logits) -> None:
        """Update costs and acceptance rates from the emitted tokens and the time of the pass."""
        one = self._round
        self._count(len(tokens))
        passed_s = self.target.busy_s - one.busy_s
        self.known.target.learn(one.n_rows, one.n_past, passed_s)
        self._charge_exploring(passed_s)
        self.known.per_token.learn((time.perf_counter() - one.returned_s - passed_s) / len(tokens))
        for step, emitted in zip(one.steps, tokens, strict=False):
            self._learn_step(step, emitted)
            if step.proposal.token != emitted:
                break
        for drafter in self.everyone:
            self.attempt(drafter, drafter.learn, one.start, tokens, rows)

    def rollback(self, to: int) -> None:
        """Remove from the draft model's cache all tokens after the first `to`."""
        if self.model:
            self.attempt(self.model, self.model.rollback, to)

    # ---- rounds

    def _begin_round(self, start: int, k: int) -> _Round:
        """Return a new round with its expected and optimistic costs."""
        n_past, target = self.target.n_past, self.known.target
        pending, n = start - n_past, k + 1 + (self.tree.n_more if self.tree else 0)
        rate = max(
            self._tokens / self._seconds if self._seconds else 0.0,
            1 / self.known.verify_s(1, 1.0, n_past),
        )
        prices = Prices(rate, target.passes_s(pending, n, n_past), self.known.per_token.seconds)
        self._since_explored += 1
        explores = (
            not self.fixed
            and k > 0
            and self._since_explored > _EXPLORE_EVERY
            and self.known.spare_s > self._explore_from_s
        )
        hopeful = (
            prices._replace(pass_s=target.hopeful_s(pending, n, n_past)) if explores else prices
        )
        return _Round(start, n_past, prices, hopeful)

    def _propose(self, tokens: Sequence[int], k: int) -> None:
        """Draft token by token while the next one may pay."""
        for drafter in self.everyone:
            self.attempt(drafter, drafter.begin, tokens)
        one, reach, can_model = self._round, 1.0, True
        while len(one.steps) < k and (self.fixed or reach > LEAST_REACH):
            text, chance = self._best_text()
            step = None
            if self.model and can_model:
                step, can_model = self.attempt(
                    self.model, self._by_model, tokens, reach, text, chance, k
                ) or (None, False)
            if not step and text:
                step = _Step(text, reach * chance)
            if not step:
                return
            one.steps.append(step)
            reach = step.reach
            for drafter in self.everyone:
                self.attempt(drafter, drafter.follow, step.proposal.token)

    def _best_text(self) -> tuple[Proposal | None, float]:
        """Return the likeliest proposal of the text drafters, and its acceptance rate.

        Text drafters have no drafting cost.
        """
        best, most = None, 0.0
        for drafter in self.texts:
            proposal = self.attempt(drafter, drafter.propose)
            if proposal and (chance := self._chances.of(proposal.kind)) > most:
                best, most = proposal, chance
        return best, most

    def _by_model(
        self, tokens: Sequence[int], reach: float, text: Proposal | None, chance: float, k: int
    ) -> tuple[_Step | None, bool]:
        """Return the draft model's next token if it pays, and whether to try the model again.

        The second value holds for the rest of this draft.
        """
        if not self._model_pays(reach, chance, k):
            return None, True
        step = self._from_model(tokens, reach, text)
        return step, step is not None

    def _model_pays(self, reach: float, by_text: float, k: int) -> bool:
        """Return whether another token of the draft model pays, and beats the text's own token."""
        assert self.model
        one, mean = self._round, self._mean_chance()
        if self.fixed:
            return by_text < mean
        n, n_past = len(one.steps), self.model.n_cached
        pending = one.start + n - self.model.n_past
        each_s = self.known.propose_s(1, n_past)
        is_far = pending > _FAR_BEHIND
        # A large unread part is read once, for the rest of the answer.
        first_s = each_s if is_far else self.known.propose_s(pending, n_past)
        if reach * (mean - by_text) <= one.prices.rate * first_s:
            return False
        if is_far and (one.explores or self._reading_offset(one.start + n) is None):
            return False
        outlook = Outlook(*self._confidences(), first_s, each_s)
        return drafting_gain([step.reach for step in one.steps], k, outlook, one.hopeful) > 0

    def _confidences(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return frequency and acceptance rate of each confidence bucket, shape `(n,)` each."""
        counts = np.array(self.known.confidences)
        return counts / counts.sum(), np.array(
            [self._chances.of((ModelDrafter.name, i)) for i in range(N_CONFIDENCE_BUCKETS)]
        )

    def _mean_chance(self) -> float:
        """Return the acceptance rate of a draft-model token whose confidence is not known."""
        shares, chances = self._confidences()
        return float(shares @ chances)

    def _from_model(
        self, tokens: Sequence[int], reach: float, text: Proposal | None
    ) -> _Step | None:
        """Return the draft model's next token, or None."""
        assert self.model
        assert self.known.draft
        one = self._round
        so_far = [*tokens, *(step.proposal.token for step in one.steps)]
        if not self.fixed and len(so_far) - self.model.n_past > _PROBE:
            self._let_model_read(so_far[:-1], self._reading_offset(len(so_far)) or 0, lambda: False)
        n_past = self.model.n_cached
        n = len(so_far) - self.model.n_past
        one.draft_s += self.known.propose_s(n, n_past)
        started, busy_s = time.perf_counter(), self.model.busy_s
        proposal = self.model.propose()
        passed_s = self.model.busy_s - busy_s
        if not proposal:
            return None
        self.known.draft.learn(n, n_past, passed_s)
        self.known.per_proposal.learn(time.perf_counter() - started - passed_s)
        self._since_model = 0
        self.known.drafted(proposal.kind[1])
        return _Step(proposal, reach * self._chances.of(proposal.kind), text)

    def _cut(self) -> int:
        """Return the number of draft tokens to check.

        A drawn token is always checked: its value must not decide that.
        """
        one = self._round
        reaches = [step.reach for step in one.steps]
        n, gain = best_length(reaches, one.prices)
        if one.explores:
            n = self._explored(n, gain, reaches)
        drawn = max((i for i, step in enumerate(one.steps, 1) if step.proposal.q), default=0)
        return max(n, drawn)

    def _explored(self, n: int, gain: float, reaches: Sequence[float]) -> int:
        """Return a draft length that tries an unconfirmed width if the spare time allows.

        Otherwise return `n`, the best length by the expected costs.
        """
        one, self._since_explored = self._round, 0
        tried, _ = best_length(reaches, one.hopeful)
        if tried == n or self.known.target.is_confirmed(one.start - one.n_past + tried):
            self.known.spare_s -= one.draft_s * (1 - n / max(1, len(reaches)))
            return n
        # Loss if the entry of the table is right.
        loss_s = (gain - gain_of(reaches, tried, one.prices)) / one.prices.rate
        if loss_s > self.known.spare_s:
            self._explore_from_s = loss_s
            self.known.spare_s -= one.draft_s * (1 - n / max(1, len(reaches)))
            return n
        self._explore_from_s = 0.0
        one.explored_s = loss_s
        return tried

    def _charge_exploring(self, passed_s: float) -> None:
        """Subtract the measured loss of a pass that tried a width from the spare time.

        After a pass with a large error the next round explores again.
        """
        one = self._round
        if one.explored_s is not None:
            self.known.spare_s -= max(
                0.0, one.explored_s + passed_s - one.prices.pass_s[one.n_kept]
            )
            if self.known.target.is_doubtful(one.n_rows):
                self._since_explored = _EXPLORE_EVERY

    def _is_plain_due(self) -> bool:
        """Return whether this round is decoded plainly to measure a single-token pass.

        While drafts are used, no other round measures it.
        """
        if self.fixed or self._since_plain < _PLAIN_EVERY:
            return False
        loss_s = self._round.prices.pass_s[0] - 1 / self._round.prices.rate
        if loss_s > self.known.spare_s:
            return False
        self.known.spare_s -= max(0.0, loss_s)
        return True

    def _without_branches(self) -> Draft:
        """Return the draft tokens that are kept."""
        kept = [step.proposal for step in self._round.steps[: self._round.n_kept]]
        return Draft(
            [proposal.token for proposal in kept],
            [proposal.q or _surely(proposal.token) for proposal in kept],
        )

    def _with_branches(self, tree: Tree, k: int) -> Draft:
        """Return the draft tokens that are kept, with the branches that `tree` chooses.

        A round that tries a width has no branches, because they would change the width.
        """
        one = self._round
        if one.explored_s is not None:
            return self._without_branches()
        pending = one.start - one.n_past
        one.n_kept, branches = tree.choose(
            [step.proposal for step in one.steps],
            [step.reach for step in one.steps],
            one.n_kept,
            min(k + tree.n_more, K_MAX, self.target.n_ctx - one.start, self.widest - pending),
            one.prices,
            self._chances.of,
        )
        trunk = self._without_branches()
        return TreeDraft(trunk.tokens, trunk.q, branches)

    # ---- prefill of the draft model

    def _read_prompt(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> None:
        """Let the draft model read the prompt if it is expected to be used."""
        offset = 0 if self.fixed else self._reading_offset(len(tokens))
        if offset is not None:
            self._let_model_read(tokens, offset, cancelled)

    def _reading_offset(self, n_tokens: int) -> int | None:
        """Return the position from which the draft model should read a text of `n_tokens` tokens.

        Return None if reading costs more than it saves.
        """
        assert self.model
        assert self.known.draft
        usual = max(self.known.answer - self._n_emitted, self._n_emitted, _PROBE)
        left = min(self.n_left - self._n_emitted, usual)
        plain_s = self.known.verify_s(1, 1, n_tokens)
        best_s, best = left * plain_s, None
        for offset, n_unread, n_cached in self._ways_to_read(n_tokens):
            reading_s = self.known.draft.reading_s(n_unread, n_cached, self.model.reads_at_once)
            seconds = (
                left * self._token_s(self._mean_chance(), n_tokens, n_cached + n_unread)
                + _READING_MARGIN * reading_s
            )
            if seconds < best_s:
                best_s, best = seconds, offset
        return best

    def _ways_to_read(self, n_tokens: int) -> list[tuple[int, int, int]]:
        """Return the options of the draft model to catch up with a text of `n_tokens` tokens.

        Returns:
            For each option: first position that it has then read, tokens to read, tokens already
                cached.
        """
        assert self.model
        n_unread = n_tokens - self.model.n_past
        first = self.model.n_past - self.model.n_cached
        ways = [(first, n_unread, self.model.n_cached)]
        if n_tokens > _LONG_PROMPT and n_unread > _LAST_PART:
            ways.append((n_tokens - _LAST_PART, _LAST_PART, 0))
        return ways

    def _let_model_read(
        self, tokens: Sequence[int], offset: int, cancelled: Callable[[], bool]
    ) -> None:
        """Let the draft model read the text from `offset` on, and update its costs."""
        assert self.model
        assert self.known.draft
        if offset > self.model.n_past:
            self.model.begin_at(offset)
        n_cached, busy_s = self.model.n_cached, self.model.busy_s
        self.model.read(tokens, cancelled)
        self.known.draft.learn_reading(
            self.model.n_cached - n_cached,
            n_cached,
            self.model.reads_at_once,
            self.model.busy_s - busy_s,
        )

    # ---- expected benefit of the draft model

    def _token_s(self, chance: float, n_past: int, n_draft_past: int) -> float:
        """Return the seconds of a token at the best draft length, at one acceptance rate."""
        n = max(1, min(K_MAX + 1, self.widest))
        passes_s = self.known.target.passes_s(1, n, n_past)
        return token_seconds(
            chance, passes_s, self.known.propose_s(1, n_draft_past), self.known.per_token.seconds
        )

    def _probe(self, tokens: Sequence[int]) -> None:
        """Evaluate a draft model that was not used recently on known text, if spare time allows."""
        assert self.model
        assert self.known.draft
        if self._since_model < _PROBE:
            return
        pending = len(tokens) - 1 - self.model.n_past
        # The draft model was used in a long round.
        if pending < _PROBE:
            return
        n_read = min(pending if pending < 4 * _PROBE else 2 * _PROBE, len(tokens) - 1)
        if self.known.spare_s < self._least_probe_s(n_read, len(tokens)):
            return
        n_past, busy_s = self.model.n_cached, self.model.busy_s
        for kind, right in self.model.review(tokens, n_read, _PROBE):
            self.known.drafted(kind[1])
            self._chances.learn(kind, right)
        passed_s = self.model.busy_s - busy_s
        self.known.draft.learn(n_read, n_past, passed_s)
        if not self.known.draft.is_confirmed(1) and self.model.n_past == len(tokens) - 1:
            # Two passes, because a large error counts only when it occurs twice.
            for _ in range(2):
                before_s = self.model.busy_s
                self.model.review(tokens, 1, 1)
                self.known.draft.learn(1, self.model.n_cached - 1, self.model.busy_s - before_s)
        self.known.spare_s -= self.model.busy_s - busy_s + _PROBE * self.known.per_proposal.seconds
        self._since_model = 0

    def _least_probe_s(self, n_read: int, n_tokens: int) -> float:
        """Return the spare time that a probe needs, in seconds.

        It is infinite if even a good draft model would not help.
        """
        assert self.model
        assert self.known.draft
        n_past = self.model.n_cached
        if self._token_s(_GOOD, n_tokens, n_past) > 1 / self._round.prices.rate:
            return float("inf")
        return self.known.draft.seconds(n_read, n_past) + _PROBE * self.known.per_proposal.seconds

    # ---- statistics

    def _learn_step(self, step: _Step, emitted: int) -> None:
        """Count one draft token whose preceding tokens were right, checked or not.

        It is right if it equals the emitted token.
        """
        right = step.proposal.token == emitted
        self._chances.learn(step.proposal.kind, right)
        if step.proposal.kind[0] == ModelDrafter.name:
            self._chances.learn((SECOND, step.proposal.kind[1]), step.proposal.second == emitted)
        if step.by_text:
            self._chances.learn(step.by_text.kind, step.by_text.token == emitted)

    def _count(self, n_tokens: int) -> None:
        """Add a round to throughput, forecast and counts.

        Its predicted time is used, because the clock has the noise of the machine.
        """
        one = self._round
        python_s = self.known.per_token.seconds
        seconds = one.draft_s + one.prices.pass_s[one.n_checked] + n_tokens * python_s
        self.known.round_is_done(n_tokens, seconds)
        self._tokens = (
            _RATE_MEMORY * self._tokens + 1 + sum(step.reach for step in one.steps[: one.n_kept])
        )
        self._seconds = _RATE_MEMORY * self._seconds + seconds
        self.forecast.rounds_s += seconds
        self.forecast.plain_s += n_tokens * (one.prices.pass_s[0] + python_s)
        self._n_emitted += n_tokens
        self.known.n_said += n_tokens
        self._since_model += n_tokens
        self._since_plain = 0 if one.n_rows == 1 else self._since_plain + 1
        self.known.spare_s += _SPARE_SHARE * seconds
        for i, step in enumerate(one.steps[: one.n_kept]):
            name = step.proposal.kind[0]
            drafted, accepted = self.counts.get(name, (0, 0))
            self.counts[name] = (drafted + 1, accepted + (i < n_tokens - 1))


def _surely(token: int) -> Distribution:
    return Distribution(np.array([token]), np.ones(1))
