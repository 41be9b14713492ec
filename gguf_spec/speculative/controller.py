"""Draft controller: chooses the draft length and the drafter of each round.

A draft length of 0 is plain decoding. The decisions are pure functions of
`speculative.draft_length`; `speculative.draft_model_use` decides on the draft model,
`speculative.round_state` on rounds that measure and on those that do not look for drafts. This
module has the drafters, the clock and the statistics that they use. Under the rule `coupled` no
decision changes the text. Under `rejection` and `block` a drawn token is always checked,
so its value does not affect the decision.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from ..arrays import Logits
from ..options import K_MAX
from ..sampling.chain import Distribution
from .acceptance import Draft
from .batch_costs import Batches
from .draft_length import LEAST_REACH, Prices, best_length
from .draft_model_use import DraftModelUse
from .drafters import MODELS, DraftTeam, ModelDrafter, Proposal, TokenDrafter
from .interfaces import LanguageModel
from .pair_statistics import Forecast, PairStatistics, RequestAcceptance
from .round_state import Exploration, RoundState, SearchBudget, Step

# Share of the generation time for probes of an unused draft model and for passes of untried widths.
_SPARE_SHARE = 0.007
# Factor on the counts of a request's throughput at each round.
_RATE_MEMORY = 0.95
# Weight of the throughput of earlier requests at the start of a request.
_RATE_PRIOR = 0.25


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
        widest: Largest number of rows of a pass, pending tokens included. Plain decoding is
            possible with any value.
        batches: The requests that share passes with this one.
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
        widest: int = K_MAX + 1,
        batches: Batches | None = None,
    ) -> None:
        super().__init__(texts, model if known.draft else None)
        self.target, self.known = target, known
        self.n_left, self.fixed, self.widest = n_left, fixed, widest
        self.batches = batches = batches or Batches()
        self.forecast = Forecast()
        self.counts: dict[str, tuple[int, int]] = {}
        self._chances = RequestAcceptance(known.chances, MODELS)
        self._tokens, self._seconds = known.recent(_RATE_PRIOR)
        self._use = (
            DraftModelUse(
                model, known.draft, known, self._chances, n_left, fixed, widest, batches, _now
            )
            if model and known.draft
            else None
        )
        self._exploration, self._budget = Exploration(known), SearchBudget()
        # State of the target before it read the prompt: cached tokens, and busy time in seconds.
        self._kept_at, self._kept_busy_s = 0, target.busy_s
        self._round = RoundState(0, 0, Prices(1.0, [0.0]), Prices(1.0, [0.0]))
        # Mean acceptance rate of the draft model; None if it has to be computed again.
        self._mean_chance: float | None = None

    @property
    def model_use(self) -> DraftModelUse | None:
        """Decisions on the draft model; None without one, or if it is switched off."""
        return self._use if self.model else None

    @property
    def why_none(self) -> str:
        """Reason why nothing was drafted, or why a drafter is off; empty if all could draft."""
        if self.failures:
            return "; ".join(self.failures.values())
        if self.counts:
            return ""
        if self.widest < 2:
            return (
                "passes over several tokens are not exact on this build of llama.cpp "
                "(see `gguf-spec doctor`)"
            )
        if not self.model_use:
            return "there is no draft model, and no repetition of the text was worth drafting"
        if self._mean_chance is None:
            self._mean_chance = self.model_use.mean_chance()
        return (
            f"{self._mean_chance:.0%} of the draft tokens are expected to be accepted, "
            "too few for a gain (see `gguf-spec tune`)"
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
        if self.batches.target.is_alone:
            self.known.target.learn_reading(
                self.target.n_past - self._kept_at,
                self._kept_at,
                self.target.reads_at_once,
                self.target.busy_s - self._kept_busy_s,
            )
        for drafter in self.texts:
            self.attempt(drafter, drafter.begin, tokens)
        if use := self.model_use:
            self.attempt(use.model, use.read_prompt, tokens, cancelled)

    def draft(self, tokens: Sequence[int], k: int) -> Draft:
        """Propose as many tokens as pay, at most `k`."""
        k = max(0, min(k, self.widest - (len(tokens) - self.target.n_past)))
        if not k or self.fixed:
            return self._search(tokens, k)
        self._round = self._plain_round(len(tokens))
        if not self._budget.allows(self.known.per_search.seconds, self._round.plain_s):
            return Draft([], [])
        started_s, model_busy_s = time.perf_counter(), self._model_busy_s()
        draft, one = self._search(tokens, k), self._round
        if self.batches.target.is_alone and self._model_busy_s() == model_busy_s:
            self.known.per_search.learn(one.returned_s - started_s)
        one.search_s = self.known.per_search.seconds
        self._budget.charge(one.search_s, one.gain_s)
        return draft

    def learn(self, tokens: Sequence[int], rows: Logits) -> None:
        """Update costs and acceptance rates from the emitted tokens and the time of the pass."""
        one = self._round
        self._count(len(tokens))
        if one.is_skipped:
            return
        if self.batches.target.is_alone:
            passed_s = self.target.busy_s - one.busy_s
            self.known.target.learn(one.n_rows, one.n_past, passed_s)
            self._exploration.charge(one, passed_s)
            python_s = time.perf_counter() - one.returned_s - passed_s
            self.known.per_token.learn(python_s / len(tokens))
        for step, emitted in zip(one.steps, tokens, strict=False):
            self._learn_step(step, emitted)
            if step.proposal.token != emitted:
                break
        for drafter in self.active:
            self.attempt(drafter, drafter.learn, one.start, tokens, rows)

    def rollback(self, to: int) -> None:
        """Remove from the draft model's cache all tokens after the first `to`."""
        # A round that did not look for a draft left the draft model as it was.
        if self.model and not self._round.is_skipped:
            self.attempt(self.model, self.model.rollback, to)

    # ---- rounds

    def _model_busy_s(self) -> float:
        return self.model.busy_s if self.model else 0.0

    def _plain_round(self, start: int) -> RoundState:
        """Return a new round that does not look for a draft."""
        n_past, target = self.target.n_past, self.known.target
        pass_s = self.batches.target.seconds(target, start - n_past, n_past)
        prices = Prices(1.0, [pass_s], self.known.per_token.seconds)
        return RoundState(start, n_past, prices, prices, is_skipped=True)

    def _search(self, tokens: Sequence[int], k: int) -> Draft:
        """Begin a round and return its draft."""
        self._mean_chance = None
        one = self._round = self._begin_round(len(tokens), k)
        use = self.model_use
        if use and not self.fixed:
            self.attempt(use.model, use.probe, tokens, one.prices.rate)
        alone = self.batches.target.is_alone
        if k and (self.fixed or not alone or not self._exploration.is_plain_due(one.prices)):
            self._propose(tokens, k)
        one.n_kept = len(one.steps) if self.fixed else self._length()
        kept = [step.proposal for step in one.steps[: one.n_kept]]
        q = [proposal.q or _surely(proposal.token) for proposal in kept]
        draft = Draft([proposal.token for proposal in kept], q)
        one.returned_s, one.busy_s = time.perf_counter(), self.target.busy_s
        return draft

    def _begin_round(self, start: int, k: int) -> RoundState:
        """Return a new round with its expected and optimistic costs."""
        n_past, target, batch = self.target.n_past, self.known.target, self.batches.target
        pending, n = start - n_past, k + 1
        python_s = self.known.per_token.seconds
        rate = max(
            self._tokens / self._seconds if self._seconds and batch.is_alone else 0.0,
            1 / (batch.seconds(target, 1, n_past) + python_s),
        )
        passes_s = batch.passes_s(target, pending, n, n_past)
        prices = Prices(rate, passes_s, python_s, *self._replay(pending, k, n_past))
        explores = self._exploration.is_due() and k > 0 and not self.fixed and batch.is_alone
        hopeful = (
            prices._replace(pass_s=target.hopeful_s(pending, n, n_past)) if explores else prices
        )
        return RoundState(start, n_past, prices, hopeful)

    def _replay(self, pending: int, k: int, n_past: int) -> tuple[Sequence[float], int]:
        """Return the costs of decoding tokens again after a rejection, as of `Prices`."""
        free = self.target.free_rollback
        if free >= k:
            return (), 0
        batch, target = self.batches.target, self.known.target
        # The next pass has the pending tokens of this round, too, and the accepted ones.
        passes_s = batch.passes_s(target, pending + 1, k, n_past)
        alone_s = batch.seconds(target, 1, n_past)
        return [max(0.0, one - alone_s) for one in passes_s], free

    def _propose(self, tokens: Sequence[int], k: int) -> None:
        """Draft token by token while the next one may pay."""
        for drafter in self.active:
            self.attempt(drafter, drafter.begin, tokens)
        one, reach, can_model = self._round, 1.0, True
        while len(one.steps) < k and (self.fixed or reach > LEAST_REACH):
            text, chance = self._best_text()
            step = None
            use = self.model_use
            if use and can_model:
                step, can_model = self.attempt(
                    use.model, use.next_step, one, tokens, reach, text, chance, k
                ) or (None, False)
            if not step and text:
                step = Step(text, reach * chance)
            if not step:
                return
            one.steps.append(step)
            reach = step.reach
            for drafter in self.active:
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

    def _length(self) -> int:
        """Return the number of draft tokens to check, agreed with the requests beside this one."""
        n = self._cut()
        drawn = any(step.proposal.q for step in self._round.steps)
        return n if drawn else self.batches.target.agreed(self._round.reaches, n)

    def _cut(self) -> int:
        """Return the number of draft tokens to check.

        A drawn token is always checked: its value must not decide that.
        """
        one = self._round
        n, gain = best_length(one.reaches, one.prices)
        if one.explores:
            n = self._exploration.length(one, n, gain)
        drawn = max((i for i, step in enumerate(one.steps, 1) if step.proposal.q), default=0)
        return max(n, drawn)

    # ---- statistics

    def _learn_step(self, step: Step, emitted: int) -> None:
        """Count one draft token whose preceding tokens were right, checked or not.

        It is right if it equals the emitted token.
        """
        right = step.proposal.token == emitted
        self._chances.learn(step.proposal.kind, right)
        if step.by_text:
            self._chances.learn(step.by_text.kind, step.by_text.token == emitted)

    def _count(self, n_tokens: int) -> None:
        """Add a round to throughput, forecast and counts.

        Its predicted time is used, because the clock has the noise of the machine.
        """
        one = self._round
        python_s = self.known.per_token.seconds
        passed_s = one.prices.pass_s[one.n_kept]
        seconds = one.search_s + one.draft_s + passed_s + n_tokens * python_s
        self.known.round_is_done(n_tokens, seconds)
        self._tokens = _RATE_MEMORY * self._tokens + one.expected
        self._seconds = _RATE_MEMORY * self._seconds + seconds
        self.forecast.rounds_s += seconds
        self.forecast.plain_s += n_tokens * (one.prices.pass_s[0] + python_s)
        self.known.n_emitted += n_tokens
        if self._use:
            self._use.count(n_tokens)
        self._exploration.count(one)
        self.known.spare_s += _SPARE_SHARE * seconds
        for i, step in enumerate(one.steps[: one.n_kept]):
            name = step.proposal.kind[0]
            drafted, accepted = self.counts.get(name, (0, 0))
            self.counts[name] = (drafted + 1, accepted + (i < n_tokens - 1))


def _now() -> float:
    """Return the clock, in seconds."""
    return time.perf_counter()


def _surely(token: int) -> Distribution:
    return Distribution(np.array([token]), np.ones(1))
