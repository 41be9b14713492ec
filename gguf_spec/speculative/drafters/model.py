"""Drafts of a draft model or of a prediction head of the target."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, ParamSpec, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ...arrays import Logits
from ...errors import (
    ClosedError,
    InvalidGrammarError,
    NoTokenLeftError,
    OffGrammarError,
    RollbackError,
)
from ...options import IMAGE_IDS, K_MAX
from ...passes import LanguageModel, PredictionHead
from ...sampling.chain import COLDEST, Distribution, Sampler, largest
from ...vocabulary import common
from ..prefix import read_on, retain_prefix
from ..translation import TranslatedModel
from .base import Kind, Proposal, TokenDrafter

P = ParamSpec("P")
T = TypeVar("T")
_LOG = logging.getLogger(__name__)
# Largest length of an error's text in a reason, in characters.
_LONGEST_REASON = 200
# Candidate temperatures of the draft, as multiples of the requested temperature.
_TEMPERATURES = np.array([0.05, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0, 1.15, 1.3])
# Candidates for reading a row, shape `(n, 2)`: temperature multiple, share of the logit correction.
CANDIDATES = np.array([(t, corrected) for corrected in (1.0, 0.0) for t in _TEMPERATURES])
# Index of the initial candidate: temperature multiple 0.9 with correction.
_AT_FIRST = 5
# Number of best tokens of a row that are considered. The target hardly ever emits a lower one.
_MOST = 64
# Number of observations of a token after which its correction is half of the observed difference.
_DOUBT = 3.0
# Factor on the statistics of a token each time that it is observed again.
_FORGET = 0.99
# Probability under one of the models from which a token has full weight.
_CLEAR = 0.02
# Largest correction from one observation, in logits.
_TOO_FAR = 3.0
# Bucket edges of the lead of the best token over the second, in logits.
_LEADS = (0.15, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.5, 7.5)
# Number of confidence buckets of the draft model.
N_CONFIDENCE_BUCKETS = len(_LEADS) + 1
# Fewest retained tokens, if the cache begins inside a text; with fewer the text is read from its
# start.
_LEAST_CONTEXT = 256


class DraftToken(NamedTuple):
    """Token chosen from a row.

    Attributes:
        confidence: Bucket from 0, lowest, to `N_CONFIDENCE_BUCKETS` - 1.
        q: The distribution it was drawn from, if the acceptance rule needs it.
    """

    token: int
    confidence: int
    q: Distribution | None = None


class DraftSampler(Protocol):
    """Protocol for the choice of a token from a row of the draft model."""

    @property
    def priors(self) -> Sequence[float]:
        """Prior acceptance rate of each confidence bucket."""

    def token(self, row: Logits, history: Sequence[int]) -> DraftToken:
        """Return the chosen token; raise NoTokenLeftError if the row has none to propose."""

    def review(self, row: Logits, history: Sequence[int], token: int) -> tuple[int, bool]:
        """Return a guess's confidence, and whether it is `token`; draw no random number."""

    def learn(self, start: int, tokens: Sequence[int], rows: Logits) -> None:
        """Observe the tokens after the first `start`, and the target's rows, shape `(n, V)`."""


class StochasticDraftSampler:
    """Sampler that draws from the draft's distribution, for the rules `rejection` and `block`.

    These rules need to know that distribution.
    """

    priors: tuple[float, ...] = tuple(np.linspace(0.5, 0.98, N_CONFIDENCE_BUCKETS).tolist())

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def token(self, row: Logits, history: Sequence[int]) -> DraftToken:
        distribution = self._sampler.distribution(row, history)
        token = self._sampler.draw(distribution)
        return DraftToken(token, _confidence_of_share(distribution.prob(token)), distribution)

    def review(self, row: Logits, history: Sequence[int], token: int) -> tuple[int, bool]:
        """Evaluate the likeliest token; it is right slightly less often than a drawn one."""
        distribution = self._sampler.distribution(row, history)
        best = int(np.argmax(distribution.probs))
        return _confidence_of_share(distribution.probs[best]), int(distribution.ids[best]) == token

    def learn(self, start: int, tokens: Sequence[int], rows: Logits) -> None:
        """Do nothing: a change of q would change the text."""


class DraftCorrection:
    """Online correction of a draft model towards its target, over all requests.

    It changes the acceptance rate, never the text.

    Attributes:
        bias: Correction of the draft's logits, shape `(V,)`: for each token approximately the
            recent mean log-probability difference, target minus draft.
        hits: Requested temperature -> number of right guesses of each candidate for reading a row.
        candidates: The candidates: temperature as a share of the target's, and share of the
            correction, shape `(n, 2)`.
        first: Index of the candidate in use before anything was learned.
    """

    candidates: NDArray[np.float64] = CANDIDATES
    first: int = _AT_FIRST

    def __init__(self, n_vocab: int) -> None:
        self.bias: NDArray[np.float32] = np.zeros(n_vocab, dtype=np.float32)
        self.hits: dict[float, NDArray[np.float64]] = {}
        self._sum, self._weight = np.zeros(n_vocab), np.zeros(n_vocab)

    def learn(
        self, ids: NDArray[np.int64], draft: NDArray[np.floating], target: NDArray[np.floating]
    ) -> None:
        """Update the correction at one position from the logits of some tokens, shape `(n,)`."""
        ours, theirs = _log_softmax(draft), _log_softmax(target)
        weight = np.minimum(1.0, np.exp(np.maximum(ours, theirs)) / _CLEAR)
        moved = np.clip(theirs - ours, -_TOO_FAR, _TOO_FAR)
        self._sum[ids] = _FORGET * self._sum[ids] + weight * moved
        self._weight[ids] = _FORGET * self._weight[ids] + weight
        self.bias[ids] = self._sum[ids] / (self._weight[ids] + _DOUBT)


class CoupledDraftSampler:
    """Sampler that predicts the target's token with the noise that the target will use.

    The emitted text never depends on the guess, so the guess can be tuned online. The target's rows
    give a correction of the draft's logits. The emitted tokens show which temperature is best and
    whether the correction helps. All candidates are evaluated on each row, and the one with the
    most hits so far is used. The confidence is the lead of the guess over the second-best token,
    noise included.
    """

    priors: tuple[float, ...] = (
        0.35,
        0.5,
        0.6,
        0.7,
        0.78,
        0.86,
        0.92,
        0.95,
        0.97,
        0.98,
        0.985,
        0.99,
        0.99,
    )

    def __init__(self, sampler: Sampler, calibration: DraftCorrection) -> None:
        self._sampler, self._calibration = sampler, calibration
        self._temperature = max(sampler.sampling.temperature, COLDEST)
        self._candidates = calibration.candidates
        first = np.zeros(len(self._candidates))
        first[calibration.first] = 0.5
        self._hits = calibration.hits.setdefault(round(self._temperature, 2), first)
        self._drafted: list[_DraftRow] = []
        self._row = np.empty_like(calibration.bias)

    def token(self, row: Logits, history: Sequence[int]) -> DraftToken:
        place = self._guess(row, history)
        self._drafted.append(place)
        return DraftToken(int(place.guesses[self._best]), place.confidence)

    def review(self, row: Logits, history: Sequence[int], token: int) -> tuple[int, bool]:
        """Evaluate the guess, and all candidates, against the emitted token."""
        place = self._guess(row, history)
        hit = bool(place.guesses[self._best] == token)
        self._hits += place.guesses == token
        return place.confidence, hit

    def learn(self, start: int, tokens: Sequence[int], rows: Logits) -> None:
        """Compare each row after right tokens with the target's row at the same position."""
        for place in self._drafted:
            i = place.position - start
            if not 0 <= i < len(tokens):
                continue
            self._hits += place.guesses == tokens[i]
            logits, theirs = place.logits, rows[i][place.seen]
            alive = np.isfinite(logits) & np.isfinite(theirs)
            if alive.any():
                self._calibration.learn(place.seen[alive], logits[alive], theirs[alive])
        self._drafted.clear()

    @property
    def _best(self) -> int:
        return int(np.argmax(self._hits))

    def _guess(self, row: Logits, history: Sequence[int]) -> _DraftRow:
        seen = largest(row, min(_MOST, len(row)))
        is_greedy = self._sampler.sampling.greedy
        found = self._best_of(row, history, seen) if is_greedy else self._drawn(row, history)
        guesses, lead = found
        return _DraftRow(len(history), guesses, bisect_right(_LEADS, lead), seen, row[seen])

    def _best_of(
        self, row: Logits, history: Sequence[int], seen: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], float]:
        """Return the likeliest token for all candidates, and its lead in logits.

        Tokens below those in `seen` are ignored.
        """
        shaped = self._sampler.shaped(row, history)
        ids = seen if shaped is row else largest(shaped, len(seen))
        logits = shaped[ids] + self._calibration.bias[ids]
        order = np.argsort(logits)
        second, best = order[-2:][0], order[-1]
        if not np.isfinite(logits[best]):
            raise NoTokenLeftError
        return ids[best].repeat(len(self._candidates)), float(logits[best] - logits[second])

    def _drawn(self, row: Logits, history: Sequence[int]) -> tuple[NDArray[np.int64], float]:
        """Return the token that each candidate draws, and the lead of the one in use."""
        bias, best = self._calibration.bias, self._best
        # The share of the correction is 0 or 1.
        share = np.float32(self._candidates[best, 1])
        ids, logits = self._sampler.candidates(
            np.add(row, bias[: len(row)], out=self._row[: len(row)]) if share else row, history
        )
        if len(ids) > _MOST:
            top = largest(logits, _MOST)
            ids, logits = ids[top], logits[top]
        if len(ids) == 1:
            return ids.repeat(len(self._candidates)), np.inf
        ways = logits - logits.max() + (self._candidates[:, 1:] - share) * bias[ids]
        scores = ways / (self._candidates[:, :1] * self._temperature) + self._sampler.rng.gumbel(
            ids, len(history)
        )
        behind, first = np.argpartition(scores[best], -2)[-2:]
        lead = (scores[best, first] - scores[best, behind]) * self._temperature
        return ids[np.argmax(scores, axis=1)], lead


class _DraftRow(NamedTuple):
    """The guess of each candidate at a position, and the likeliest tokens with their logits."""

    position: int
    guesses: NDArray[np.int64]
    confidence: int
    seen: NDArray[np.int64]
    logits: NDArray[np.floating]


def _confidence_of_share(share: float) -> int:
    return min(int(share * N_CONFIDENCE_BUCKETS), N_CONFIDENCE_BUCKETS - 1)


def _log_softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    return np.asarray(wide - np.log(np.exp(wide).sum()))


@dataclass
class FirstRead:
    """Part of a text that a draft model reads: all tokens from position `offset` on.

    The model's own positions begin there.

    Attributes:
        offset: That position.
        failed: The model failed in the last request, so its cache must not be used.
    """

    offset: int = 0
    failed: bool = False


class ModelDrafter:
    """Drafter that takes each token from a small model, through the same chain as the target's.

    After a round its cache is rolled back, never read again. A token is decoded once, and only when
    it is needed.

    Attributes:
        far_behind: Number of unread tokens above which reading serves the rest of the answer, not
            one round.
        can_review: Whether it can be judged on known text.
        can_reread: Whether it can read a text again from its start.
    """

    name = "model"
    far_behind = 2
    can_review = can_reread = True

    def __init__(
        self,
        model: LanguageModel,
        guess: DraftSampler,
        n_vocab: int,
        first: FirstRead | None = None,
    ) -> None:
        """Make a drafter.

        Args:
            model: The draft model. Its cache may hold tokens of earlier requests. Tokens that do
                not belong to the text must be rolled back first.
            n_vocab: V of the target; ids from there on are never proposed.
            first: Kept with the model across requests.
        """
        self._model, self._guess, self._n_vocab = model, guess, n_vocab
        self._first = first or FirstRead()
        self._history: list[int] = []
        # Length of the text before the draft, and whether the model can roll back to it.
        self._n_known = 0
        self._is_held = False

    @property
    def n_past(self) -> int:
        """Position in the text up to which the model has read, counted from the text's start."""
        return self._first.offset + self._model.n_past if self._model.n_past else 0

    @property
    def n_cached(self) -> int:
        return self._model.n_past

    @property
    def reads_at_once(self) -> int:
        return self._model.reads_at_once

    @property
    def busy_s(self) -> float:
        return self._model.busy_s

    def read(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> None:
        """Read the tokens that are not cached yet, pass by pass until `cancelled()`."""
        if len(tokens) > self._n_known > 0 and not self._is_held:
            # the rest belongs to a draft
            read_on(self._model, self._known(tokens[self._first.offset : self._n_known]), cancelled)
            self._model.hold()
            self._is_held = True
        read_on(self._model, self._known(tokens[self._first.offset :]), cancelled)
        if not self._n_known:
            # a prompt, which a later request may continue in another way
            self._model.hold(lasting=True)

    def begin_at(self, offset: int) -> None:
        """Empty the cache; the model then reads a text as if it began at this position."""
        self._model.rollback(0)
        self._first.offset = offset

    def keep(self, prompt: Sequence[int]) -> None:
        """Retain the longest cached prefix of `prompt`, or of the part that the model reads."""
        if self._first.failed:
            self.begin_at(0)
            self._first.failed = False
        if isinstance(self._model, TranslatedModel):
            self._model.recognise(prompt[self._first.offset :])
        offset, known = self._first.offset, self._known(prompt)
        n_same = common(self._model.cached, known[offset:])
        # The cache may also hold a text from its start that other code has read.
        if n_same < _LEAST_CONTEXT:
            offset = self._first.offset = 0
        retain_prefix(self._model, known[offset:])

    def begin(self, tokens: Sequence[int]) -> None:
        self._history = [*tokens]
        self._n_known, self._is_held = len(tokens), False

    def propose(self) -> Proposal | None:
        """Return the next token, after a pass over all unread tokens.

        None if no token can be proposed, or after a token that ends a generation.
        """
        pending = self._known(self._history[self._first.offset + self._model.n_past :])
        if not pending or self._model.is_end(self._history[-1]):
            return None
        if len(self._history) > self._n_known and not self._is_held:
            self._model.hold()
            self._is_held = True
        row = self._rows(pending, 1)[0]
        # The target handles these errors if they concern it. A token from the text may violate the
        # grammar, and the masks of other tokens take other work.
        try:
            token, confidence, q = self._guess.token(row, self._history)
        except (NoTokenLeftError, OffGrammarError, InvalidGrammarError):
            return None
        return Proposal(token, (self.name, confidence), q)

    def follow(self, token: int) -> None:
        self._history.append(token)

    def learn(self, start: int, tokens: Sequence[int], rows: Logits) -> None:
        self._guess.learn(start, tokens, rows[:, : self._model.n_vocab])

    def review(self, tokens: Sequence[int], n_read: int, n: int) -> list[tuple[Kind, bool]]:
        """Return for each of the last `n` tokens the bucket of a guess and whether it is right.

        This takes one pass. If more than `n_read` tokens are unread, only the `n_read` tokens
        before the last one are read, and they are rolled back afterwards.
        """
        n_past, start = self.n_past, len(tokens) - 1 - n_read
        if n_past > start:
            self.rollback(start)
            self._model.read(self._known(tokens[self.n_past : start]))
        elif n_past < start:
            self._model.hold()
        rows = self._rows(self._known(tokens[start:-1]), min(n, n_read))
        first = len(tokens) - len(rows)
        judged = [
            self._guess.review(row, tokens[: first + i], tokens[first + i])
            for i, row in enumerate(rows)
        ]
        # The unread tokens in between are missing in the cache.
        if n_past < start:
            self.rollback(n_past)
        return [((self.name, confidence), hit) for confidence, hit in judged]

    def rollback(self, to: int) -> None:
        offset = self._first.offset
        try:
            self._model.rollback(max(0, to - offset))
        except RollbackError:
            self._model.rollback(0)
            self._first.offset = 0
        if to <= offset:
            self._first.offset = 0

    def give_up(self) -> None:
        """Mark the model as failed: its cache is emptied before the next use."""
        self._first.failed = True

    def _rows(self, tokens: Sequence[int], n: int) -> Logits:
        """Return the last `n` rows of a pass; raise FloatingPointError if one is not finite."""
        rows = self._model.logits(tokens, n)[:, : self._n_vocab]
        # A row with a NaN has NaN as its maximum.
        if not np.isfinite(rows.max(axis=1)).all():
            raise FloatingPointError("its logits are not finite numbers")
        return rows

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """Replace ids that the draft does not have by its last token.

        Both are padding tokens that no text contains. Ids of images stay: the draft model skips
        them.
        """
        last = self._model.n_vocab - 1
        return [token if token >= IMAGE_IDS else min(token, last) for token in tokens]


class HeadDrafter(ModelDrafter):
    """Drafter that takes each token from a prediction head of the target, MTP or EAGLE-3.

    After a round the tokens of the draft are read again, with the target's rows, in the first pass
    of the next draft. So a head is always some tokens behind.
    """

    name: str

    name = "mtp"
    far_behind = K_MAX + 1
    can_reread = False  # the target sends the rows of a text once

    def __init__(
        self,
        head: PredictionHead,
        guess: DraftSampler,
        n_vocab: int,
        first: FirstRead | None = None,
    ) -> None:
        super().__init__(head, guess, n_vocab, first)
        self._head, self.name = head, name_of(head)
        self.can_review: bool = not head.shares_cache
        head.text, head.skipped = self._first, 0

    def propose(self) -> Proposal | None:
        """Return the next token; None, too, if no head predicts this position."""
        if not self._head.is_ready:
            return None
        if 1 < self._head.n_heads <= len(self._history) - self._n_known:
            return None
        return super().propose()

    def review(self, tokens: Sequence[int], n_read: int, n: int) -> list[tuple[Kind, bool]]:
        self._head.skipped = max(0, len(tokens) - 1 - n_read - self.n_past)
        try:
            return super().review(tokens, n_read, n)
        finally:
            self._head.skipped = 0


MODELS = (ModelDrafter.name, HeadDrafter.name, "eagle3")
"""Names of the drafters that take a token from a model, so that it costs a pass."""


def name_of(model: LanguageModel | None) -> str:
    return str(getattr(model, "drafter", ModelDrafter.name))


def drafter_of(
    model: LanguageModel, guess: DraftSampler, n_vocab: int, first: FirstRead | None = None
) -> ModelDrafter:
    if not needs_rows(model):
        return ModelDrafter(model, guess, n_vocab, first)
    return HeadDrafter(cast("PredictionHead", model), guess, n_vocab, first)


def needs_rows(draft: LanguageModel) -> bool:
    """Return whether a draft predicts from rows that the target sends for the same text."""
    return name_of(draft) != ModelDrafter.name


class DraftTeam:
    """Drafters of one request.

    Attributes:
        texts: Active drafters without drafting cost.
        model: The draft model's drafter; None without one, or if it is switched off.
        failures: Name of a drafter that was switched off -> reason, without a full stop.
    """

    texts: Sequence[TokenDrafter]

    def __init__(self, texts: Sequence[TokenDrafter], model: ModelDrafter | None) -> None:
        self.texts, self.model = texts, model
        self.failures: dict[str, str] = {}

    @property
    def active(self) -> list[TokenDrafter]:
        return [*self.texts, *([self.model] if self.model else [])]

    def attempt(
        self, drafter: TokenDrafter, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Return the result of a call in which only `drafter` can fail; then it is switched off.

        Raises:
            ClosedError: The models were closed.
        """
        try:
            return call(*args, **kwargs)
        except ClosedError:
            raise
        except Exception as error:
            self.switch_off({drafter.name: failure(drafter.name, error)})
            return None

    def switch_off(self, failures: Mapping[str, str]) -> None:
        self.failures |= failures
        self.texts = [one for one in self.texts if one.name not in failures]
        if self.model and self.model.name in failures:
            self.model.give_up()
            self.model = None


def failure(name: str, error: Exception) -> str:
    """Return a sentence on the failure of a drafter, without a full stop; it is logged once."""
    what = " ".join(str(error).split())[:_LONGEST_REASON].rstrip(".")
    reason = (
        f"the {name} drafter failed and was switched off "
        f"({type(error).__name__}{what and ': ' + what})"
    )
    _log(reason)
    return reason


@lru_cache(maxsize=64)
def _log(reason: str) -> None:
    _LOG.warning("%s.", reason[0].upper() + reason[1:])
