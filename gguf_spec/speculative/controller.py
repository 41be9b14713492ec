"""Draft controller: chooses the draft length and the drafter of each round.

A draft length of 0 is plain decoding. The decisions are pure functions of
`speculative.draft_length`. This module has the drafters, the clock and the statistics that they
use. Under the rule `coupled` no decision changes the text. Under `rejection` and `block` a drawn
token is always checked, so its value does not affect the decision.

Draft model: it reads a prompt only if it is expected to save more time than the prompt takes. It
proposes a token only while that is expected to pay. An unused draft model is probed on known text.
It may begin with the last part of a long text. If its proposals are then accepted less often than
usual, or the answer becomes long, it reads the whole text in pieces between the next rounds.

Exploration: some rounds measure the cost of an untried pass width. That costs time, which is paid
from spare time, a small share of the generation time.

Checks: where costs are guesses, or were measured beside other programs, some rounds show those of a
few widths. If passes of all widths are exact, such a round decodes known tokens again, in place of
a draft, within a tenth of the generation time. It emits its token as any other round.

Search budget: some rounds do not look for drafts, because looking costs more than it finds. It
takes Python some tenths of a millisecond a round. That is nothing beside the pass of a large model,
and a quarter of a pass of a very small one. A request may spend on searches a small share of its
time, and what the drafts save that they found. So with a large model each round looks for a draft,
and with a small one too while the text offers drafts that pay. Otherwise some rounds decode
plainly, and unsuccessful searches cost little.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits, row_bits
from ..options import K_MAX
from ..passes import LanguageModel
from ..sampling.chain import Distribution
from .acceptance import Draft
from .cost_model import Batches, CostModel
from .draft_length import (
    LEAST_REACH,
    Outlook,
    Prices,
    best_length,
    drafting_gain,
    gain_of,
    token_seconds,
)
from .drafters import (
    MODELS,
    N_CONFIDENCE_BUCKETS,
    NO_DRAFT,
    DraftTeam,
    ModelDrafter,
    Proposal,
    TokenDrafter,
)
from .pair_statistics import Forecast, PairStatistics, RequestAcceptance

# Smallest number of rounds between two that use optimistic costs.
_EXPLORE_EVERY = 16
# Most rounds without a search that are decided at once.
_MOST_WITHOUT = 32

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
# Number of emitted tokens after which reading the whole text instead is considered again, and the
# most tokens of it that are read before one pass of the target.
_RECONSIDERED, _PIECE = 32, 128

# Share of the generation time for probes of an unused draft model and for passes of untried widths.
_SPARE_SHARE = 0.007
# Share of the generation time for passes over known tokens that check the costs.
_CHECK_SHARE = 0.1
# Factor on the counts of a request's throughput at each round.
_RATE_MEMORY = 0.95
# Acceptance rate of tokens from the text, for a check of the costs without a draft model.
_TEXT_CHANCE = 0.5


@dataclass
class Step:
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
class RoundState:
    """Costs, draft and times of the current round.

    Attributes:
        start: Tokens of the text before the round.
        n_past: Tokens in the target's cache before the round.
        hopeful: Costs used for decisions: `prices`, or lower ones for unconfirmed widths in a round
            that explores.
        steps: The draft tokens.
        draft_s: Predicted seconds of drafting.
        search_s: Python's seconds to look for a draft; 0 if the round did not.
        n_kept: Number of draft tokens that are checked.
        is_skipped: The round does not look for a draft.
        is_forced: The draft is as long as possible at any cost.
        explored_s: Expected loss of a pass that tries a width, in seconds; None if no width is
            tried.
        again_s: Predicted seconds for known tokens that the pass decodes again.
        moved: The rows of these tokens had other bits.
        returned_s: Clock when the draft was ready, in seconds.
        busy_s: The target's busy time when the draft was ready, in seconds.
    """

    start: int
    n_past: int
    prices: Prices
    hopeful: Prices
    steps: list[Step] = field(default_factory=list)
    draft_s: float = 0.0
    search_s: float = 0.0
    n_kept: int = 0
    is_skipped: bool = False
    is_forced: bool = False
    explored_s: float | None = None
    again_s: float = 0.0
    moved: bool = False
    returned_s: float = 0.0
    busy_s: float = 0.0

    @property
    def n_pending(self) -> int:
        """Number of tokens of the text that the target's pass decodes."""
        return self.start - self.n_past

    @property
    def n_rows(self) -> int:
        """Number of rows of the target's pass."""
        return self.n_pending + self.n_kept

    @property
    def reaches(self) -> list[float]:
        """Reach of each draft token."""
        return [step.reach for step in self.steps]

    @property
    def expected(self) -> float:
        """Expected number of emitted tokens."""
        return 1 + sum(self.reaches[: self.n_kept])

    @property
    def plain_s(self) -> float:
        """Seconds of a token in plain decoding."""
        return self.prices.pass_s[0] + self.prices.token_s

    @property
    def gain_s(self) -> float:
        """Expected seconds that the draft saves over plain decoding of the same tokens."""
        passed_s = self.prices.pass_s[self.n_kept]
        return self.expected * self.prices.pass_s[0] - self.draft_s - passed_s

    @property
    def explores(self) -> bool:
        """Whether optimistic costs are used for unconfirmed widths."""
        return self.hopeful is not self.prices


class Exploration:
    """Decisions on the measuring rounds of one request.

    Attributes:
        known: Cost models and statistics over all requests; their spare time is spent.
    """

    def __init__(self, known: PairStatistics) -> None:
        self.known = known
        # Rounds since the last round with optimistic costs.
        self._since_explored = 0
        # Spare time from which untried widths are tried, in seconds.
        self._explore_from_s = 0.0

    def is_due(self) -> bool:
        """Return whether this round uses optimistic costs; called once for each round."""
        self._since_explored += 1
        return self._since_explored > _EXPLORE_EVERY and self.known.spare_s > self._explore_from_s

    def length(self, one: RoundState, n: int, gain: float) -> int:
        """Return a draft length that tries an unconfirmed width if the spare time allows.

        Otherwise return `n`.

        Args:
            one: A round with optimistic costs, and its draft tokens.
            n: The best length by the expected costs.
            gain: Its gain over plain decoding, in tokens.
        """
        self._since_explored = 0
        reaches = one.reaches
        tried, _ = best_length(reaches, one.hopeful)
        if tried != n and not self.known.target.is_confirmed(one.n_pending + tried):
            # Loss if the entry of the table is right.
            loss_s = (gain - gain_of(reaches, tried, one.prices)) / one.prices.rate
            if loss_s <= self.known.spare_s:
                self._explore_from_s, one.explored_s = 0.0, loss_s
                return tried
            self._explore_from_s = loss_s
        self.known.spare_s -= one.draft_s * (1 - n / max(1, len(reaches)))
        return n

    def charge(self, one: RoundState, passed_s: float) -> None:
        """Subtract the measured loss of a pass that tried a width from the spare time.

        After a pass with a large error the next round explores again.
        """
        if one.explored_s is not None:
            self.known.spare_s -= max(
                0.0, one.explored_s + passed_s - one.prices.pass_s[one.n_kept]
            )
            if self.known.target.is_doubtful(one.n_rows):
                self._since_explored = _EXPLORE_EVERY


class SearchBudget:
    """Searches for drafts that one request may make.

    The budget is a number of searches, because the seconds of one are known only after the first.

    Attributes:
        share: Share of the generation time for searches.
        first: Budget at the start of a request, in searches.
        most: Largest budget, in searches.
    """

    share: float = 0.01
    first: int = 3
    most: int = 32

    def __init__(self) -> None:
        self._n_left = float(self.first)

    def rounds_without(self, search_s: float, plain_s: float) -> int:
        """Return the number of rounds that look for no draft before the next that does.

        Args:
            search_s: Seconds of a search; 0 if none was timed.
            plain_s: Seconds of a token in plain decoding.
        """
        if not search_s:
            return 0
        share = self.share * plain_s / search_s
        n = min(max(0, math.ceil((1 - self._n_left) / share) - 1), _MOST_WITHOUT)
        self._n_left = min(self._n_left + max(n, 1) * share, self.most)
        return n

    def charge(self, search_s: float, gain_s: float) -> None:
        """Count a search.

        Args:
            search_s: Seconds that it took; 0 if it was not timed.
            gain_s: Seconds that its draft is expected to save; 0 or less without one.
        """
        if search_s:
            self._n_left += max(gain_s, 0.0) / search_s - 1


@dataclass
class DraftModelUse:
    """Decisions on the draft model of one request, with its costs.

    Attributes:
        model: The draft model's drafter.
        costs: Cost model of the draft model; updated.
        known: Cost models and statistics over all requests; updated.
        chances: Acceptance rates within the request; updated.
        n_left: Largest length of the answer, in tokens.
        fixed: Let the draft model propose at any cost.
        widest: Largest number of rows of a pass.
        batches: The requests that share passes with this one.
        clock: Returns the time in seconds.
        n_emitted: Number of tokens of the answer so far.
        since_used: Number of tokens since the draft model was used or probed.
        reconsider_at: Number of tokens of the answer at which reading the whole text is considered.
        is_rereading: It reads the whole text, in pieces, and proposes nothing until it has.
    """

    model: ModelDrafter
    costs: CostModel
    known: PairStatistics
    chances: RequestAcceptance
    n_left: int
    fixed: bool
    widest: int
    batches: Batches
    clock: Callable[[], float] = time.perf_counter
    n_emitted: int = 0
    since_used: int = 0
    reconsider_at: int = _RECONSIDERED
    is_rereading: bool = False
    # Frequency and acceptance rate of each confidence bucket in this round; None before a use.
    _table: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def begin_round(self) -> None:
        """Compute acceptance rates again when they are needed."""
        self._table = None

    def mean_chance(self) -> float:
        """Return the acceptance rate of a token whose confidence is not known."""
        shares, chances = self._confidences()
        return float(shares @ chances)

    # ---- proposals

    def next_pays(self, one: RoundState, reach: float, by_text: float, k: int) -> bool:
        """Return whether another token of the draft model pays, and beats the text's own token.

        Args:
            reach: Probability that all draft tokens so far are right.
            by_text: Acceptance rate of the text drafters' proposal for the position; 0 without one.
            k: Largest length of the draft, in tokens.
        """
        if self.is_rereading:
            return False
        mean = self.mean_chance()
        if one.is_forced:
            return by_text < mean
        n, n_past = len(one.steps), self.model.n_cached
        pending = one.start + n - self.model.n_past
        each_s = self._propose_s(1, n_past)
        is_far = pending > self.model.far_behind
        # A large unread part is read once, for the rest of the answer.
        first_s = each_s if is_far else self._propose_s(pending, n_past)
        alone = self.batches.target.is_alone
        worth, least_s = (mean, each_s) if alone else (mean - by_text, first_s)
        if reach * worth <= one.prices.rate * least_s:
            return False
        if is_far and (one.explores or self._reading_offset(one.start + n) is None):
            return False
        agreed = self.batches.target.drafts_on(one.reaches, mean)
        if agreed is not None:
            return agreed
        outlook = Outlook(*self._confidences(), first_s, each_s, by_text)
        return drafting_gain(one.reaches, k, outlook, one.hopeful) > 0

    def next_step(
        self, one: RoundState, tokens: Sequence[int], reach: float, text: Proposal | None
    ) -> Step | None:
        """Return the draft model's next token, or None.

        Args:
            tokens: The text before the round.
            reach: Probability that all draft tokens so far are right.
            text: Proposal of the text drafters for the same position.
        """
        so_far = [*tokens, *(step.proposal.token for step in one.steps)]
        if not self.fixed and len(so_far) - self.model.n_past > _PROBE:
            self._read(so_far[:-1], self._reading_offset(len(so_far)) or 0, lambda: False)
        n_past = self.model.n_cached
        n = len(so_far) - self.model.n_past
        one.draft_s += self._propose_s(n, n_past)
        started, busy_s = self.clock(), self.model.busy_s
        proposal = self.model.propose()
        passed_s = self.model.busy_s - busy_s
        if not proposal:
            return None
        python_s = self.clock() - started - passed_s
        self.batches.draft.learn(self.costs.learn, n, n_past, passed_s)
        self.batches.draft.learn(self.known.per_proposal.learn, python_s)
        self.since_used = 0
        return Step(proposal, reach * self.chances.of(proposal.kind), text)

    def is_far_behind(self, n_tokens: int) -> bool:
        """Return whether the model has to read much before it can draft."""
        return n_tokens - self.model.n_past > _LAST_PART

    def token_s(self) -> float:
        """Return the seconds of a proposal behind the text that the model has read."""
        return self._propose_s(1, self.model.n_cached)

    def _propose_s(self, n: int, n_past: int) -> float:
        """Return the seconds of a proposal if the draft model has `n` unread tokens."""
        pass_s = self.batches.draft.seconds(self.costs, n, n_past)
        return pass_s + self.known.per_proposal.seconds

    def _confidences(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return frequency and acceptance rate of each confidence bucket, shape `(n,)` each."""
        if self._table is None:
            counts = np.array(self.known.confidences)
            name, of = self.model.name, self.chances.of
            chances = np.array([of((name, i)) for i in range(N_CONFIDENCE_BUCKETS)])
            self._table = counts / counts.sum(), chances
        return self._table

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
        left = self._tokens_left()
        pass_s = self.batches.target.seconds(self.known.target, 1, n_tokens)
        plain_s = pass_s + self.known.per_token.seconds
        best_s, best = left * plain_s, None
        for offset, n_unread, n_cached, acceptance in self._ways_to_read(n_tokens):
            reading_s = self.costs.reading_s(n_unread, n_cached, self.model.reads_at_once)
            chance = acceptance * self.mean_chance()
            seconds = (
                left * self._token_s(chance, n_tokens, self._propose_s(1, n_cached + n_unread))
                + _READING_MARGIN * self.batches.draft.n * reading_s
            )
            if seconds < best_s:
                best_s, best = seconds, offset
        return best

    def _tokens_left(self) -> float:
        """Return the expected number of further tokens of the answer."""
        usual = max(self.known.answer - self.n_emitted, self.n_emitted, _PROBE)
        return min(self.n_left - self.n_emitted, usual)

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

    def read_whole(self, tokens: Sequence[int]) -> None:
        """Read a piece of the whole text in place of its last part, if that is expected to pay.

        Called once for each round, with the text before it.
        """
        is_part = self.model.n_past > self.model.n_cached and self.model.can_reread
        if is_part and not self.is_rereading and self.n_emitted >= self.reconsider_at:
            self.reconsider_at = self.n_emitted + _RECONSIDERED
            self.is_rereading = self.batches.draft.is_alone and self._whole_pays(len(tokens))
            if self.is_rereading:
                self.model.begin_at(0)
        if self.is_rereading:
            to = min(self.model.n_past + _PIECE, len(tokens) - 1)
            self._read(tokens[:to], 0, lambda: False)
            self.is_rereading = to < len(tokens) - 1

    def _whole_pays(self, n_tokens: int) -> bool:
        """Return whether reading the whole text saves more time than it takes.

        The proposals are then expected to be accepted as often as those for other texts are.
        """
        shares, chances = self._confidences()
        usual = sum(
            share * self.known.chances.of((self.model.name, i)) for i, share in enumerate(shares)
        )
        now = float(shares @ chances)
        whole = min(max(usual, now / _PART_ACCEPTANCE), _GOOD)
        left = self._tokens_left() - n_tokens / _PIECE  # in the meantime it proposes nothing
        saved_s = self._token_s(now, n_tokens, self.token_s()) - self._token_s(
            whole, n_tokens, self._propose_s(1, n_tokens)
        )
        reading_s = self.costs.reading_s(n_tokens, 0, self.model.reads_at_once)
        return left > 0 and left * saved_s > _READING_MARGIN * reading_s

    def _read(self, tokens: Sequence[int], offset: int, cancelled: Callable[[], bool]) -> None:
        """Read the text from `offset` on, and update the costs."""
        if offset > self.model.n_past:
            self.model.begin_at(offset)
        n_cached, busy_s = self.model.n_cached, self.model.busy_s
        self.model.read(tokens, cancelled)
        n_read, read_s = self.model.n_cached - n_cached, self.model.busy_s - busy_s
        self.batches.draft.learn(
            self.costs.learn_reading, n_read, n_cached, self.model.reads_at_once, read_s
        )

    def _token_s(self, chance: float, n_past: int, draft_s: float) -> float:
        """Return the seconds of a token at the best draft length, at one acceptance rate.

        The other requests count as drafting too: each of them decides by the same rule.
        """
        batch, n = self.batches.target, max(1, min(K_MAX + 1, self.widest))
        passes_s = batch.passes_s(self.known.target, 1, n, n_past)
        return token_seconds(chance, passes_s, draft_s, self.known.per_token.seconds)

    # ---- probing

    def probe(self, tokens: Sequence[int], rate: float) -> None:
        """Evaluate a draft model that was not used recently on known text, if spare time allows.

        Args:
            tokens: The text before the round.
            rate: Reachable throughput, in tokens per second.
        """
        if self.since_used < _PROBE or not self.batches.draft.is_alone:
            return
        if self.is_rereading or not self.model.can_review:
            return
        pending = len(tokens) - 1 - self.model.n_past
        # The draft model was used in a long round.
        if pending < _PROBE:
            return
        n_read = min(pending if pending < 4 * _PROBE else 2 * _PROBE, len(tokens) - 1)
        # Its cost may be wrong, and no use would correct it.
        can_help = self._token_s(_GOOD, len(tokens), draft_s=0.0) <= 1 / rate
        if self.known.spare_s < self._probe_s(n_read) or not can_help:
            return
        n_past, busy_s = self.model.n_cached, self.model.busy_s
        for kind, right in self.model.review(tokens, n_read, _PROBE):
            self.known.drafted(kind[1])
            self.chances.learn(kind, right)
        self.begin_round()
        passed_s = self.model.busy_s - busy_s
        self.costs.learn(n_read, n_past, passed_s)
        if self.model.n_past == len(tokens) - 1:
            # Two passes, because a large error counts only when it occurs twice.
            for _ in range(2):
                before_s = self.model.busy_s
                self.model.review(tokens, 1, 1)
                self.costs.learn(1, self.model.n_cached - 1, self.model.busy_s - before_s)
        self.known.spare_s -= self.model.busy_s - busy_s + _PROBE * self.known.per_proposal.seconds
        self.since_used = 0

    def _probe_s(self, n_read: int) -> float:
        """Return the spare time that a probe over `n_read` tokens needs, in seconds."""
        python_s = _PROBE * self.known.per_proposal.seconds
        return self.costs.seconds(n_read, self.model.n_cached) + python_s


class DraftController(DraftTeam):
    """Drafter of one request that drafts only while that is expected to save time.

    It takes each token from the best drafter. The draft model reads a prompt only if it is expected
    to be used.

    Attributes:
        target: The model whose passes are saved. Its position, busy time and limits are read, and
            it is rolled back before a pass that decodes known tokens again.
        known: Cost models and statistics over all requests; updated.
        fixed: Draft as many tokens as allowed at any cost, from the draft model if there is
            one.
        widest: Largest number of rows of a pass, pending tokens included. Plain decoding is
            possible with any value.
        batches: The requests that share passes with this one.
        on_inexact: Called if a pass that was to be exact was not.
        counts: Name of a drafter -> its draft tokens, and how many of them were accepted.
    """

    fixed: bool
    known: PairStatistics
    target: LanguageModel
    widest: int

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
        on_inexact: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(texts, model if known.draft else None)
        self.target, self.known = target, known
        self.fixed, self.widest = fixed, widest
        batches = batches or Batches()
        self.batches: Batches = batches
        self._on_inexact, self._clock = on_inexact, clock
        # Hashes of the last rows, one for each token of the answer, while costs are checked.
        self._seen: list[bytes] = []
        self._forecast = Forecast()
        self.counts: dict[str, tuple[int, int]] = {}
        self._chances = RequestAcceptance(known.chances, MODELS)
        # Expected tokens and seconds of recent rounds: the throughput.
        self._tokens = self._seconds = 0.0
        self._use: DraftModelUse | None = None
        if model and known.draft:
            self._use = DraftModelUse(
                model, known.draft, known, self._chances, n_left,
                fixed=fixed, widest=widest, batches=batches, clock=clock,
            )  # fmt: skip
        self._exploration, self._budget = Exploration(known), SearchBudget()
        # Rounds to come that look for no draft, and their tokens that are not counted yet.
        self._n_plain = self._n_uncounted = 0
        # State of the target before it read the prompt: cached tokens, and busy time in seconds.
        self._kept_at, self._kept_busy_s = 0, target.busy_s
        self._round = RoundState(0, 0, Prices(1.0, [0.0]), Prices(1.0, [0.0]))

    def continue_after(self, before: DraftController) -> None:
        """Continue the counts of another controller of the request, without its failed drafters."""
        self._forecast, self.counts = before.forecast, before.counts
        self.switch_off(before.failures)

    @property
    def forecast(self) -> Forecast:
        """Predicted seconds of the generation so far."""
        seconds = self._n_uncounted * self._round.plain_s
        return Forecast(self._forecast.rounds_s + seconds, self._forecast.plain_s + seconds)

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
        return (
            f"{self.model_use.mean_chance():.0%} of the draft tokens are expected to be accepted, "
            "too few for a gain (see `gguf-spec tune`)"
        )

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
        n_read, read_s = self.target.n_past - self._kept_at, self.target.busy_s - self._kept_busy_s
        self.batches.target.learn(
            self.known.target.learn_reading,
            n_read,
            self._kept_at,
            self.target.reads_at_once,
            read_s,
        )
        for drafter in self.texts:
            self.attempt(drafter, drafter.begin, tokens)
        if use := self.model_use:
            self.attempt(use.model, use.read_prompt, tokens, cancelled)

    def draft(self, tokens: Sequence[int], k: int) -> Draft:
        """Propose as many tokens as pay, at most `k`."""
        if self._n_plain:
            self._n_plain -= 1
            return NO_DRAFT
        if self._n_uncounted:
            self._count(self._n_uncounted)
            self._n_uncounted = 0
        k = max(0, min(k, self.widest - (len(tokens) - self.target.n_past)))
        if not k or self.fixed:
            return self._search(tokens, k, self.fixed)
        if width := self._width_to_check(len(tokens), k):
            if self._repeats:
                return self._decode_again(len(tokens), width)
            draft = self._search(tokens, width - (len(tokens) - self.target.n_past), True)
            if self._round.n_rows != width:
                self.known.target.skip_check(width)
            return draft
        self._round = self._plain_round(len(tokens))
        n_plain = self._budget.rounds_without(self.known.per_search.seconds, self._round.plain_s)
        if n_plain:
            self._n_plain = n_plain - 1
            return NO_DRAFT
        busy_s = self.model.busy_s if self.model else 0.0
        started_s = self._clock()
        draft, one = self._search(tokens, k), self._round
        if (self.model.busy_s if self.model else 0.0) == busy_s:
            search_s = one.returned_s - started_s
            self.batches.target.learn(self.known.per_search.learn, search_s)
        one.search_s = self.known.per_search.seconds
        self._budget.charge(one.search_s, one.gain_s)
        return draft

    def learn(self, tokens: Sequence[int], rows: Logits) -> None:
        """Update costs and acceptance rates from the emitted tokens and the time of the pass."""
        one = self._round
        self._see(rows[: len(tokens)])
        if one.is_skipped:
            self._n_uncounted += len(tokens)
            return
        self._count(len(tokens))
        if not one.moved:
            self.batches.target.learn(self._learn_times, one, len(tokens))
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

    def _plain_round(self, start: int) -> RoundState:
        """Return a new round that does not look for a draft."""
        n_past, target = self.target.n_past, self.known.target
        pass_s = self.batches.target.seconds(target, start - n_past, n_past)
        prices = Prices(1.0, [pass_s], self.known.per_token.seconds)
        return RoundState(start, n_past, prices, prices, is_skipped=True)

    def _width_to_check(self, n_tokens: int, k: int) -> int:
        """Return the width of the pass of a round that checks the cost model, or 0 for none."""
        pending, use = n_tokens - self.target.n_past, self.model_use
        if not self._checks:
            return 0
        if self._repeats:
            # Where a text repeats, drafts from it are right as often as those of a good model.
            width = self.known.target.width_to_check(pending, self.widest, _GOOD, 0.0)
            can = width - pending <= len(self._seen)
            return width if can and self._again_s(width) <= self.known.check_s else 0
        if use and use.is_far_behind(n_tokens):
            return 0
        chance, draft_s = (use.mean_chance(), use.token_s()) if use else (_TEXT_CHANCE, 0.0)
        return self.known.target.width_to_check(pending, pending + k, chance, draft_s)

    @property
    def _checks(self) -> bool:
        """Whether passes check the costs; among others their times are not those of this text."""
        return self.known.target.is_checked and self.batches.target.is_alone

    @property
    def _repeats(self) -> bool:
        """Whether checks of costs decode known tokens again, and not drafts of any quality.

        Costs of a pair that were measured beside other programs are checked at once, with drafts of
        the model, whose passes are timed, too.
        """
        is_exact = self.target.exactness.promised and self.target.free_rollback >= K_MAX
        return is_exact and (self.known.target.is_guess or not self.model_use)

    def _see(self, rows: Logits) -> None:
        """Note the rows behind the tokens of a round, for passes that decode these again."""
        if self._checks and self._repeats and not self.fixed:
            self._seen = [*self._seen, *map(row_bits, rows)][-K_MAX:]
        else:
            self._seen = []

    def _again_s(self, width: int) -> float:
        """Return the seconds that known tokens add to a pass which has `width` tokens with them."""
        costs, n_past = self.known.target, self.target.n_past
        return max(0.0, costs.seconds(width, n_past) - costs.seconds(1, n_past))

    def _decode_again(self, n_tokens: int, width: int) -> Draft:
        """Begin a round without a draft, whose pass also decodes the known tokens before it.

        Unlike a draft it needs no proposals, and its rows show whether such passes are exact.
        """
        one = self._round = self._begin_round(n_tokens, 0)
        n = width - one.n_pending
        if n:
            one.again_s = self._again_s(width)
            self.target.rollback(one.n_past - n)
            one.n_past = self.target.n_past
        one.returned_s, one.busy_s = self._clock(), self.target.busy_s
        return Draft([], [], self._seen[-n:] if n else (), self._moved)

    def _moved(self) -> None:
        """Draft no more: a pass that was to give rows the bits of passes of their own did not."""
        self._round.moved = True
        self.widest = 1
        self._on_inexact()

    def _search(self, tokens: Sequence[int], k: int, is_forced: bool = False) -> Draft:
        """Begin a round and return its draft; it has `k` tokens, if there are any, if forced."""
        one = self._round = self._begin_round(len(tokens), k)
        one.is_forced = is_forced
        if use := self.model_use:
            use.begin_round()
            if not is_forced:
                self.attempt(use.model, use.read_whole, tokens)
                self.attempt(use.model, use.probe, tokens, one.prices.rate)
        if k:
            self._propose(tokens, k)
        one.n_kept = len(one.steps) if is_forced else self._length()
        kept = [step.proposal for step in one.steps[: one.n_kept]]
        q = [proposal.q or _certain(proposal.token) for proposal in kept]
        draft = Draft([proposal.token for proposal in kept], q)
        one.returned_s, one.busy_s = self._clock(), self.target.busy_s
        return draft

    def _begin_round(self, start: int, k: int) -> RoundState:
        """Return a new round with its expected and optimistic costs."""
        n_past, target, batch = self.target.n_past, self.known.target, self.batches.target
        pending, n = start - n_past, k + 1
        python_s, is_alone = self.known.per_token.seconds, batch.is_alone
        rate = max(
            self._tokens / self._seconds if self._seconds and is_alone else 0.0,
            1 / (batch.seconds(target, 1, n_past) + python_s),
        )
        passes_s = batch.passes_s(target, pending, n, n_past)
        prices = Prices(rate, passes_s, python_s, *self.replay(pending, k, n_past))
        explores = self._exploration.is_due() and k > 0 and not self.fixed and is_alone
        hopeful = (
            prices._replace(pass_s=target.hopeful_s(pending, n, n_past)) if explores else prices
        )
        return RoundState(start, n_past, prices, hopeful)

    def replay(self, pending: int, k: int, n_past: int) -> tuple[Sequence[float], int]:
        """Return the costs of decoding tokens again after a rejection, as in `Prices`."""
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
        while len(one.steps) < k and (one.is_forced or reach > LEAST_REACH):
            text, chance = self.best_text()
            step = None
            use = self.model_use
            if use and can_model and self.attempt(use.model, use.next_pays, one, reach, chance, k):
                step = self.attempt(use.model, use.next_step, one, tokens, reach, text)
                can_model = step is not None
            if not step and text:
                step = Step(text, reach * chance)
            if not step:
                return
            one.steps.append(step)
            reach = step.reach
            for drafter in self.active:
                self.attempt(drafter, drafter.follow, step.proposal.token)

    def best_text(self) -> tuple[Proposal | None, float]:
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

    def _learn_times(self, one: RoundState, n_tokens: int) -> None:
        passed_s = self.target.busy_s - one.busy_s
        self.known.target.learn(one.n_rows, one.n_past, passed_s)
        self._exploration.charge(one, passed_s)
        python_s = self._clock() - one.returned_s - passed_s
        self.known.per_token.learn(python_s / n_tokens)

    def _learn_step(self, step: Step, emitted: int) -> None:
        """Count one draft token whose preceding tokens were right, checked or not.

        It is right if it equals the emitted token.
        """
        right = step.proposal.token == emitted
        name, bucket = step.proposal.kind
        if name in MODELS:
            self.known.drafted(bucket)
        self._chances.learn(step.proposal.kind, right)
        if step.by_text:
            self._chances.learn(step.by_text.kind, step.by_text.token == emitted)

    def _count(self, n_tokens: int) -> None:
        """Add a round to throughput, forecast and counts.

        Its predicted time is used, because the clock has the noise of the machine.
        """
        one = self._round
        plain_s = seconds = n_tokens * one.plain_s
        if not one.is_skipped:
            passed_s = one.prices.pass_s[one.n_kept] + n_tokens * one.prices.token_s
            seconds = one.search_s + one.draft_s + passed_s + one.again_s
        self._tokens = _RATE_MEMORY * self._tokens + (1.0 if one.is_skipped else one.expected)
        self._seconds = _RATE_MEMORY * self._seconds + seconds
        self._forecast.rounds_s += seconds
        self._forecast.plain_s += plain_s
        self.known.n_emitted += n_tokens
        if self._use:
            self._use.n_emitted += n_tokens
            self._use.since_used += n_tokens
        self.known.spare_s += _SPARE_SHARE * seconds
        self.known.check_s += _CHECK_SHARE * seconds - one.again_s
        for i, step in enumerate(one.steps[: one.n_kept]):
            name = step.proposal.kind[0]
            drafted, accepted = self.counts.get(name, (0, 0))
            self.counts[name] = (drafted + 1, accepted + (i < n_tokens - 1))


def _certain(token: int) -> Distribution:
    return Distribution(np.array([token]), np.ones(1))
