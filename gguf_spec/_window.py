"""The window: how many tokens to draft, and from whom. 0 is an answer too.

A round over n drafted tokens takes V(n + 1) and what drafting takes, and brings 1 + c1 + c1 c2 + ... tokens, where ci is the chance of
the i-th token. The window goes for the most tokens per second. A ratio is largest where tokens - rate * seconds is, if `rate` is what
can be had: so seconds are paid for at the rate of late.

Source: Dinkelbach 1967, On nonlinear fractional programming; Leviathan et al. 2022, arXiv:2211.17192, section 3, for the expected tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ._accept import Draft
from ._chances import Kind
from ._drafters import ModelDrafter, Proposal, TokenDrafter
from ._experience import AFTER_ALL, AFTER_WRONG, EVER, NEXT, SECOND, Experience, Forecast
from ._language_model import LanguageModel
from ._sampling import Distribution, Logits
from ._types import BRANCHES_MAX, K_MAX

_PROBE_SHARE = 0.007  # of the time, for asking a draft model that is not used whether it would be right by now
_PROBE = 16  # tokens it is asked about, after as many to find its feet
_GOOD = 0.9  # a chance that a good draft may have
_SLIGHT = 0.02  # a chance that is not worth a look
_WORTH = 2.5  # times the time to read what is unread must be saved by it: the chances of the rest of an answer are not known well
_FAR_BEHIND = 2  # unread tokens; more are read for the rest of the answer, not for one round
_BIAS_STEP, _BIAS_FADES = 0.1, 0.99  # of what is known of how hopeful the window is; it fades, so that it tries again


@dataclass
class _Step:
    """One token of a draft: the proposal, the chance that it and all before stay, and by what the model's was expected."""

    proposal: Proposal
    reach: float
    expected_by: Kind | None


@dataclass
class Window:
    """Drafts as far as it pays, token by token, from whoever is best; reads the draft model's prompt only when it is going to be used.

    Attributes:
        target: Whose passes are saved; only its position is looked at.
        texts: Drafters that cost nothing.
        model: The draft model's drafter.
        known: What is known of costs and chances; it learns.
        n_left: Tokens that the answer may have at most.
        fixed: Draft as many as there may be, whatever it costs; from the model where there is one.
        tree: Check second guesses too.
        forecast: What it all should have taken.
        counts: Drafted and accepted tokens of each drafter.
    """

    target: LanguageModel
    texts: Sequence[TokenDrafter]
    model: ModelDrafter | None
    known: Experience
    n_left: int
    fixed: bool = False
    tree: bool = False
    forecast: Forecast = field(default_factory=Forecast)
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._all: list[TokenDrafter] = [*self.texts, *([self.model] if self.model else [])]
        self._steps: list[_Step] = []
        self._n_said, self._start, self._n_drafted = 0, 0, 0
        self._before = EVER
        self._draft_s = 0.0  # what this round's drafting should take
        self._hoped: float | None = None  # how many tokens it should bring more than it costs, by the model
        self._since_model = 0
        self._returned = 0.0

    @property
    def why_none(self) -> str:
        """Why nothing was drafted so far; empty where something was."""
        if self.counts:
            return ""
        if not self.model:
            return "no draft model, and the text did not repeat itself where that pays"
        return f"{self.known.chances.of((NEXT, EVER)):.0%} of the draft's tokens are expected to be right, too few to pay here (gguf-spec tune)"

    # ---- what the engine calls

    def keep(self, prompt: Sequence[int]) -> None:
        """Let the model keep what it has read of a prompt."""
        if self.model:
            self.model.keep(prompt)

    def read(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> None:
        """Let the texts take in the prompt, and the model read it, if it is going to be used."""
        for drafter in self.texts:
            drafter.begin(tokens)
        if self.model and (self.fixed or self._is_worth_reading(len(tokens))):
            self.model.read(tokens, cancelled)

    def draft(self, tokens: Sequence[int], k: int) -> Draft:
        """Propose as many tokens as pay, at most `k`."""
        self._start, self._steps, self._draft_s, self._hoped = len(tokens), [], 0.0, None
        n_past = self._n_past = self.target.n_past
        pending = len(tokens) - n_past
        self._pass_s = [self.known.target.seconds(pending + n, n_past) for n in range(k + 1 + self.tree * BRANCHES_MAX)]
        self._rate = self.known.rate(n_past)
        if not self.fixed:
            self._probe(tokens)
        if k:
            self._propose(tokens, k)
        self._n_drafted = len(self._steps) if self.fixed else self._cut()
        kept = [step.proposal for step in self._steps[: self._n_drafted]]
        branches = self._branches() if self.tree else []
        self._n_extra = len(branches)
        self._returned, self._busy_s = time.perf_counter(), self.target.busy_s
        return Draft([one.token for one in kept], [one.q or _surely(one.token) for one in kept], branches)

    def learn(self, tokens: Sequence[int], rows: Logits) -> None:
        """Take note of what was said, and of what the pass took."""
        n_past, n = self._n_past, self._n_drafted
        self._book(len(tokens))
        passed_s = self.target.busy_s - self._busy_s
        self.known.target.learn(self._start - n_past + n + self._n_extra, n_past, passed_s)
        self.known.per_token.learn((time.perf_counter() - self._returned - passed_s) / len(tokens))
        chances = self.known.chances
        self._before = EVER if not n else AFTER_WRONG if len(tokens) <= n else AFTER_ALL
        for step, said in zip(self._steps, tokens, strict=False):
            right = step.proposal.token == said
            chances.learn(step.proposal.kind, right)
            if step.expected_by:
                for kind in {step.expected_by, (NEXT, EVER)}:
                    chances.learn(kind, right)
                chances.learn((SECOND, step.proposal.kind[1]), step.proposal.second == said)
            if not right:
                break
        for drafter in self._all:
            drafter.learn(self._start, tokens, rows)

    def rollback(self, to: int) -> None:
        """Forget what the model read beyond the first `to` tokens."""
        if self.model:
            self.model.rollback(to)

    # ---- drafting

    def _propose(self, tokens: Sequence[int], k: int) -> None:
        """Take one token after the other, as long as one may pay."""
        for drafter in self._all:
            drafter.begin(tokens)
        reach, can_model = 1.0, self.model is not None
        while len(self._steps) < k and (self.fixed or reach > _SLIGHT):
            text, chance = self._best_text()
            step = None
            if can_model and self._model_pays(reach, reach * chance, len(tokens) + len(self._steps), k):
                step = self._from_model(reach)
                can_model = step is not None
            if not step and text:
                step = _Step(text, reach * chance, None)
                self._before = EVER
            if not step:
                return
            self._steps.append(step)
            reach = step.reach
            for drafter in self._all:
                drafter.follow(step.proposal.token)

    def _best_text(self) -> tuple[Proposal | None, float]:
        """Return the proposal that costs nothing and is the likeliest to be right, and its chance."""
        best, most = None, 0.0
        for drafter in self.texts:
            proposal = drafter.propose()
            if proposal and (chance := self.known.chances.of(proposal.kind)) > most:
                best, most = proposal, chance
        return best, most

    def _from_model(self, reach: float) -> _Step | None:
        """Return the model's next token."""
        assert self.model
        assert self.known.draft
        n_past, expected_by = self.model.n_past, (NEXT, self._before)
        n = self._start + len(self._steps) - n_past
        self._draft_s += self.known.propose_s(n, n_past)
        started, busy_s = time.perf_counter(), self.model.busy_s
        proposal = self.model.propose()
        passed_s = self.model.busy_s - busy_s
        if not proposal:
            return None
        self.known.draft.learn(n, n_past, passed_s)
        self.known.per_proposal.learn(time.perf_counter() - started - passed_s)
        self._since_model = 0
        self._before = proposal.kind[1]
        return _Step(proposal, reach * self.known.chances.of(proposal.kind), expected_by)

    def _model_pays(self, reach: float, by_text: float, n_tokens: int, k: int) -> bool:
        """Return whether another token of the model, or several more, bring more than they cost, and more than the text's own."""
        assert self.model
        assert self.known.draft
        chances, n_past = self.known.chances, self.model.n_past
        pending = n_tokens - n_past
        likely = reach * chances.of((NEXT, self._before))
        each = self._rate * self.known.propose_s(1, n_past)
        first = each if pending > _FAR_BEHIND else self._rate * self.known.propose_s(pending, n_past)  # what is far behind is read once for all
        if self.fixed:
            return by_text < likely
        if by_text >= likely - first:
            return False
        if pending > _FAR_BEHIND and not self._is_worth_reading(n_tokens):
            return False
        m, ever = len(self._steps), chances.of((NEXT, EVER))
        worth = 1 - self._rate * self.known.per_token.seconds  # of a token said
        gain, here, best = -first, self._rate * self._pass_s[m], -np.inf
        for n in range(m + 1, k + 1):
            gain += likely * worth
            best = max(best, gain - self._rate * self._pass_s[n] + here)
            gain -= each
            likely *= ever
            if likely < each:
                break
        if m or self._hoped is not None:
            return best > 0
        if best - self.known.bias <= 0:
            self.known.bias *= _BIAS_FADES
            return False
        self._hoped = best
        return True

    def _cut(self) -> int:
        """Return how many of the tokens are worth checking. One that was drawn stays: what it is must not decide whether it counts."""
        value, best, most, least = 0.0, 0, 0.0, 0
        worth = 1 - self._rate * self.known.per_token.seconds
        for n, step in enumerate(self._steps, 1):
            value += step.reach * worth
            if step.proposal.q:
                least = n
            if (gain := value - self._rate * (self._pass_s[n] - self._pass_s[0])) > most:
                best, most = n, gain
        if self._hoped is not None:
            self.known.bias += _BIAS_STEP * (self._hoped - (most - self._rate * self._draft_s) - self.known.bias)
        return max(best, least)

    def _branches(self) -> list[tuple[int, int]]:
        """Return second guesses for the places where they are likeliest to be right, as many as bring more than they cost.

        One that is right brings one token more: what follows it is known too.
        """
        n, before, found = self._n_drafted, 1.0, []
        for i, step in enumerate(self._steps[:n]):
            second = step.proposal.second
            if second is not None and second != step.proposal.token:
                found.append((before * self.known.chances.of((SECOND, step.proposal.kind[1])), i, second))
            before = step.reach
        room = min(BRANCHES_MAX, K_MAX - n, self.target.n_ctx - self._start - n)
        found = sorted(found, reverse=True)[: max(0, room)]
        gain, most, best = 0.0, 0.0, 0
        for extra, (chance, _, _) in enumerate(found, 1):
            gain += chance
            if self.fixed or gain - self._rate * (self._pass_s[n + extra] - self._pass_s[n]) > most:
                most, best = gain - self._rate * (self._pass_s[n + extra] - self._pass_s[n]), extra
        return [(i, second) for _, i, second in found[:best]]

    def _is_worth_reading(self, n_tokens: int) -> bool:
        """Return whether what the model saves over the rest of the answer is more than it takes to read what it has not read."""
        assert self.model
        assert self.known.draft
        ever, plain = self.known.chances.of((NEXT, EVER)), self.known.verify_s(1, 1, n_tokens)
        usual = max(self.known.answer - self._n_said, self._n_said, _PROBE)
        left = min(self.n_left - self._n_said, usual)
        reading_s = self.known.draft.seconds(n_tokens - self.model.n_past, self.model.n_past)
        return left * (plain - self._token_s(ever, n_tokens)) > _WORTH * reading_s

    def _token_s(self, chance: float, n_past: int) -> float:
        """Return what a token takes when all that the model proposes has the same chance, at the best draft length."""
        one, best, brings, reach = self.known.propose_s(1, n_past), self.known.verify_s(1, 1, n_past), 1.0, 1.0
        for k in range(1, K_MAX + 1):
            reach *= chance
            brings += reach
            best = min(best, (self.known.verify_s(k + 1, brings, n_past) + k * one) / (brings - max(0.0, self.known.bias)))
            if reach < _SLIGHT:
                break
        return best

    def _probe(self, tokens: Sequence[int]) -> None:
        """Ask a model that was not used for a while what it would have said, when the time saved up for that is enough."""
        if not self.model or self._since_model < _PROBE:
            return
        assert self.known.draft
        pending = len(tokens) - 1 - self.model.n_past
        if pending < _PROBE:  # it was used, in a long round
            return
        n_read = min(pending if pending < 4 * _PROBE else 2 * _PROBE, len(tokens) - 1)
        asking_s = self.known.draft.seconds(n_read, self.model.n_past) + _PROBE * self.known.per_proposal.seconds
        if self.known.to_ask_s < asking_s:
            return
        if self._token_s(_GOOD, len(tokens)) > 1 / self._rate:  # it would not help if it were right
            return
        self.known.to_ask_s -= asking_s
        chances, before = self.known.chances, EVER
        for kind, right in self.model.review(tokens, n_read, _PROBE):
            chances.learn(kind, right)
            chances.learn((NEXT, EVER), right)
            if before != EVER:
                chances.learn((NEXT, before), right)
            before = kind[1] if right else AFTER_WRONG
        self._since_model = 0

    def _book(self, n_tokens: int) -> None:
        """Add a round to what is known of rates and to the forecast."""
        python_s = self.known.per_token.seconds
        seconds = self._draft_s + self._pass_s[self._n_drafted + self._n_extra] + n_tokens * python_s
        self.known.round_is_done(n_tokens, seconds)
        self.forecast.rounds_s += seconds
        self.forecast.plain_s += n_tokens * (self._pass_s[0] + python_s)
        self._n_said += n_tokens
        self.known.n_said += n_tokens
        self._since_model += n_tokens
        self.known.to_ask_s += _PROBE_SHARE * seconds
        for i, step in enumerate(self._steps[: self._n_drafted]):
            name = step.proposal.kind[0]
            drafted, accepted = self.counts.get(name, (0, 0))
            self.counts[name] = (drafted + 1, accepted + (i < n_tokens - 1))


def _surely(token: int) -> Distribution:
    return Distribution(np.array([token]), np.ones(1))
