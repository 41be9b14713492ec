"""Use of the draft model in one request: what it reads, when it proposes, and what that costs.

The draft model reads a prompt only if it is expected to save more time than the prompt takes. It
proposes a token only while that is expected to pay. An unused draft model is probed on known text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..options import K_MAX
from .batch_costs import Batches
from .cost_model import CostModel
from .draft_length import Outlook, drafting_gain, token_seconds
from .drafters import N_CONFIDENCE_BUCKETS, ModelDrafter, Proposal
from .pair_statistics import PairStatistics, RequestAcceptance
from .round_state import RoundState, Step

# Number of tokens that a probe evaluates. As many tokens before them are read for context.
_PROBE = 16
# Acceptance rate of a good draft model.
_GOOD = 0.9
# Required saving, as a multiple of the time to read the prompt: acceptance over the rest of the
# answer is uncertain.
_READING_MARGIN = 1.5
# Length of the last part that the draft model may read instead of a whole text, in tokens. Texts of
# at most twice this length are read from their start.
_LAST_PART = 128
# Acceptance rate after the last part alone, relative to that after the whole text; measured on
# prompts of 1,000 tokens.
_PART_ACCEPTANCE = 0.87


class DraftModelUse:
    """Decisions on the draft model of one request, with its costs.

    Attributes:
        model: The draft model's drafter.
        costs: Cost model of the draft model; updated.
        known: Cost models and statistics over all requests; updated.
        n_left: Largest length of the answer, in tokens.
        fixed: Let the draft model propose whatever it costs.
        widest: Largest number of rows of a pass.
    """

    def __init__(
        self,
        model: ModelDrafter,
        costs: CostModel,
        known: PairStatistics,
        chances: RequestAcceptance,
        n_left: int,
        fixed: bool,
        widest: int,
        batches: Batches,
        now: Callable[[], float],
    ) -> None:
        """Begin a request.

        Args:
            model: The draft model's drafter.
            costs: Cost model of the draft model.
            known: Cost models and statistics over all requests.
            chances: Acceptance rates within the request.
            n_left: Largest length of the answer, in tokens.
            fixed: Let the draft model propose whatever it costs.
            widest: Largest number of rows of a pass.
            batches: The requests that share passes with this one.
            now: Returns the clock, in seconds.
        """
        self.model, self.costs, self.known = model, costs, known
        self.n_left, self.fixed, self.widest = n_left, fixed, widest
        self._chances, self._batches, self._now = chances, batches, now
        self._n_emitted = 0
        # Tokens since the draft model was used or probed.
        self._since_used = 0

    def count(self, n_tokens: int) -> None:
        """Count the emitted tokens of a round."""
        self._n_emitted += n_tokens
        self._since_used += n_tokens

    def mean_chance(self) -> float:
        """Return the acceptance rate of a token whose confidence is not known."""
        shares, chances = self._confidences()
        return float(shares @ chances)

    # ---- proposals

    def next_step(
        self,
        one: RoundState,
        tokens: Sequence[int],
        reach: float,
        text: Proposal | None,
        by_text: float,
        k: int,
    ) -> tuple[Step | None, bool]:
        """Return the draft model's next token if it pays, and whether to try the model again.

        The second value holds for the rest of this draft.

        Args:
            one: The round.
            tokens: The text before the round.
            reach: Probability that all draft tokens so far are right.
            text: Proposal of the text drafters for the same position.
            by_text: Acceptance rate of that proposal; 0 without one.
            k: Largest length of the draft, in tokens.
        """
        if not self._model_pays(one, reach, by_text, k):
            return None, True
        step = self._step(one, tokens, reach, text)
        return step, step is not None

    def _model_pays(self, one: RoundState, reach: float, by_text: float, k: int) -> bool:
        """Return whether another token of the draft model pays, and beats the text's own token."""
        mean = self.mean_chance()
        if self.fixed:
            return by_text < mean
        n, n_past = len(one.steps), self.model.n_cached
        pending = one.start + n - self.model.n_past
        each_s = self._propose_s(1, n_past)
        is_far = pending > self.model.far_behind
        # A large unread part is read once, for the rest of the answer.
        first_s = each_s if is_far else self._propose_s(pending, n_past)
        if reach * (mean - by_text) <= one.prices.rate * first_s:
            return False
        if is_far and (one.explores or self._reading_offset(one.start + n) is None):
            return False
        outlook = Outlook(*self._confidences(), first_s, each_s)
        return drafting_gain(one.reaches, k, outlook, one.hopeful) > 0

    def _step(
        self, one: RoundState, tokens: Sequence[int], reach: float, text: Proposal | None
    ) -> Step | None:
        """Return the draft model's next token, or None."""
        so_far = [*tokens, *(step.proposal.token for step in one.steps)]
        if not self.fixed and len(so_far) - self.model.n_past > _PROBE:
            self._read(so_far[:-1], self._reading_offset(len(so_far)) or 0, lambda: False)
        n_past = self.model.n_cached
        n = len(so_far) - self.model.n_past
        one.draft_s += self._propose_s(n, n_past)
        started, busy_s = self._now(), self.model.busy_s
        proposal = self.model.propose()
        passed_s = self.model.busy_s - busy_s
        if not proposal:
            return None
        if self._batches.draft.is_alone:
            self.costs.learn(n, n_past, passed_s)
            self.known.per_proposal.learn(self._now() - started - passed_s)
        self._since_used = 0
        self.known.drafted(proposal.kind[1])
        return Step(proposal, reach * self._chances.of(proposal.kind), text)

    def _propose_s(self, n: int, n_past: int) -> float:
        """Return the seconds of a proposal if the draft model has `n` unread tokens."""
        pass_s = self._batches.draft.seconds(self.costs, n, n_past)
        return pass_s + self.known.per_proposal.seconds

    def _confidences(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return frequency and acceptance rate of each confidence bucket, shape `(n,)` each."""
        counts = np.array(self.known.confidences)
        return counts / counts.sum(), np.array(
            [self._chances.of((self.model.name, i)) for i in range(N_CONFIDENCE_BUCKETS)]
        )

    # ---- reading

    def read_prompt(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> None:
        """Read the prompt if the draft model is expected to be used."""
        offset = 0 if self.fixed else self._reading_offset(len(tokens))
        if offset is not None:
            self._read(tokens, offset, cancelled)

    def _reading_offset(self, n_tokens: int) -> int | None:
        """Return the position from which to read a text of `n_tokens` tokens.

        Return None if reading costs more than it saves. Each request of a batch waits until all of
        them have read.
        """
        usual = max(self.known.answer - self._n_emitted, self._n_emitted, _PROBE)
        left = min(self.n_left - self._n_emitted, usual)
        pass_s = self._batches.target.seconds(self.known.target, 1, n_tokens)
        plain_s = pass_s + self.known.per_token.seconds
        best_s, best = left * plain_s, None
        for offset, n_unread, n_cached, acceptance in self._ways_to_read(n_tokens):
            reading_s = self.costs.reading_s(n_unread, n_cached, self.model.reads_at_once)
            chance = acceptance * self.mean_chance()
            seconds = (
                left * self._token_s(chance, n_tokens, n_cached + n_unread)
                + _READING_MARGIN * self._batches.draft.n * reading_s
            )
            if seconds < best_s:
                best_s, best = seconds, offset
        return best

    def _ways_to_read(self, n_tokens: int) -> list[tuple[int, int, int, float]]:
        """Return the options to catch up with a text of `n_tokens` tokens.

        Returns:
            For each option: first position that the draft model has then read, tokens to read,
                tokens already cached, factor of the acceptance rate.
        """
        n_unread = n_tokens - self.model.n_past
        first = self.model.n_past - self.model.n_cached
        ways = [(first, n_unread, self.model.n_cached, 1.0)]
        if n_tokens > 2 * _LAST_PART and n_unread > _LAST_PART:
            ways.append((n_tokens - _LAST_PART, _LAST_PART, 0, _PART_ACCEPTANCE))
        return ways

    def _read(self, tokens: Sequence[int], offset: int, cancelled: Callable[[], bool]) -> None:
        """Read the text from `offset` on, and update the costs."""
        if offset > self.model.n_past:
            self.model.begin_at(offset)
        n_cached, busy_s = self.model.n_cached, self.model.busy_s
        self.model.read(tokens, cancelled)
        if self._batches.draft.is_alone:
            self.costs.learn_reading(
                self.model.n_cached - n_cached,
                n_cached,
                self.model.reads_at_once,
                self.model.busy_s - busy_s,
            )

    def _token_s(self, chance: float, n_past: int, n_draft_past: int) -> float:
        """Return the seconds of a token at the best draft length, at one acceptance rate.

        The other requests count as drafting too: each of them decides by the same rule.
        """
        batch, n = self._batches.target, max(1, min(K_MAX + 1, self.widest))
        passes_s = batch.passes_s(self.known.target, 1, n, n_past)
        return token_seconds(
            chance, passes_s, self._propose_s(1, n_draft_past), self.known.per_token.seconds
        )

    # ---- probing

    def probe(self, tokens: Sequence[int], rate: float) -> None:
        """Evaluate a draft model that was not used recently on known text, if spare time allows.

        Args:
            tokens: The text before the round.
            rate: Reachable throughput, in tokens per second.
        """
        if self._since_used < _PROBE or not self._batches.draft.is_alone:
            return
        if not self.model.can_review:
            return
        pending = len(tokens) - 1 - self.model.n_past
        # The draft model was used in a long round.
        if pending < _PROBE:
            return
        n_read = min(pending if pending < 4 * _PROBE else 2 * _PROBE, len(tokens) - 1)
        if self.known.spare_s < self._probe_s(n_read) or not self._can_help(len(tokens), rate):
            return
        n_past, busy_s = self.model.n_cached, self.model.busy_s
        for kind, right in self.model.review(tokens, n_read, _PROBE):
            self.known.drafted(kind[1])
            self._chances.learn(kind, right)
        passed_s = self.model.busy_s - busy_s
        self.costs.learn(n_read, n_past, passed_s)
        if not self.costs.is_confirmed(1) and self.model.n_past == len(tokens) - 1:
            # Two passes, because a large error counts only when it occurs twice.
            for _ in range(2):
                before_s = self.model.busy_s
                self.model.review(tokens, 1, 1)
                self.costs.learn(1, self.model.n_cached - 1, self.model.busy_s - before_s)
        self.known.spare_s -= self.model.busy_s - busy_s + _PROBE * self.known.per_proposal.seconds
        self._since_used = 0

    def _probe_s(self, n_read: int) -> float:
        """Return the spare time that a probe over `n_read` tokens needs, in seconds."""
        python_s = _PROBE * self.known.per_proposal.seconds
        return self.costs.seconds(n_read, self.model.n_cached) + python_s

    def _can_help(self, n_tokens: int, rate: float) -> bool:
        """Return whether a good draft model would be faster than the reachable throughput."""
        return self._token_s(_GOOD, n_tokens, self.model.n_cached) <= 1 / rate
