"""Draft-model drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from ...arrays import Logits
from ...errors import InvalidGrammarError, NoTokenLeftError, OffGrammarError, RollbackError
from ...options import IMAGE_IDS
from ..interfaces import LanguageModel, read_on, retain_prefix
from ..translated_model import TranslatedModel
from .base import Kind, Proposal
from .draft_sampler import DraftSampler

# Fewest retained tokens, if the cache begins inside a text; with fewer the text is read from its
# start.
_LEAST_CONTEXT = 256


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
    """

    name = "model"
    far_behind = 2
    can_review = True

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
            guess: Chooses a token from a row.
            n_vocab: V of the target; ids from there on are never proposed.
            first: The first token of a text that the model has read; kept with the model across
                requests.
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
        """Number of tokens in the model's cache."""
        return self._model.n_past

    @property
    def reads_at_once(self) -> int:
        """Prompt tokens decoded in one prefill pass."""
        return self._model.reads_at_once

    @property
    def busy_s(self) -> float:
        """Seconds spent inside the model."""
        return self._model.busy_s

    def read(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> None:
        """Read the tokens that are not cached yet, pass by pass until `cancelled()`."""
        if len(tokens) > self._n_known > 0 and not self._is_held:
            # the rest belongs to a draft
            read_on(self._model, self._known(tokens[self._offset() : self._n_known]), cancelled)
            self._model.hold()
            self._is_held = True
        read_on(self._model, self._known(tokens[self._offset() :]), cancelled)
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
            self._model.recognise(prompt[self._offset() :])
        offset, known = self._offset(), self._known(prompt)
        n_same = sum(
            1
            for _ in takewhile(
                lambda pair: pair[0] == pair[1],
                zip(self._model.cached, known[offset:], strict=False),
            )
        )
        # The cache may also hold a text from its start that other code has read.
        if n_same < _LEAST_CONTEXT:
            offset = self._first.offset = 0
        retain_prefix(self._model, known[offset:])

    def begin(self, tokens: Sequence[int]) -> None:
        """Begin a draft that follows `tokens`."""
        self._history = [*tokens]
        self._n_known, self._is_held = len(tokens), False

    def propose(self) -> Proposal | None:
        """Return the next token, after a pass over all unread tokens.

        Return None if no token can be proposed, or after a token that ends a generation.
        """
        pending = self._known(self._history[self._offset() + self._model.n_past :])
        if not pending or self._model.is_end(self._history[-1]):
            return None
        if len(self._history) > self._n_known and not self._is_held:
            self._model.hold()
            self._is_held = True
        row = self._rows(pending, 1)[0]
        # The target handles these errors if they concern it. A token from the text may violate the
        # grammar, and the masks of other tokens take other work.
        try:
            token, confidence, q, second = self._guess.token(row, self._history)
        except (NoTokenLeftError, OffGrammarError, InvalidGrammarError):
            return None
        return Proposal(token, (self.name, confidence), q, second)

    def follow(self, token: int) -> None:
        """Append `token` to the draft."""
        self._history.append(token)

    def learn(self, start: int, tokens: Sequence[int], rows: Logits) -> None:
        """Pass the emitted tokens and the target's rows to the draft sampler."""
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
        """Remove from the cache all tokens after the first `to` of the text."""
        offset = self._offset()
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
        """Return the last `n` rows of a pass.

        Raises:
            FloatingPointError: The maximum of a row is not a finite number.
        """
        rows = self._model.logits(tokens, n)[:, : self._n_vocab]
        # A row with a NaN has NaN as its maximum.
        if not np.isfinite(rows.max(axis=1)).all():
            raise FloatingPointError("its logits are not finite numbers")
        return rows

    def _offset(self) -> int:
        return self._first.offset

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """Replace ids that the draft does not have by its last token.

        Both are padding tokens that no text contains. Ids of images stay: the draft model skips
        them.
        """
        last = self._model.n_vocab - 1
        return [token if token >= IMAGE_IDS else min(token, last) for token in tokens]
