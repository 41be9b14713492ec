"""A small model as drafter, and the check that it speaks the target's vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from ...arrays import Logits
from ...errors import NoTokenLeftError, OffGrammarError, VocabularyMismatchError
from ..acceptance_rates import Kind
from ..interfaces import LanguageModel, read_on, retain_prefix
from .base import Proposal
from .draft_sampler import DraftSampler

_MAX_SIZE_DIFFERENCE = 128
_FIRST_COMPARED_TOKEN = 5
_LEAST_CONTEXT = (
    256  # tokens; a model that began in the middle of a text and keeps fewer of them begins again
)


@dataclass
class FirstRead:
    """The part of a text that a draft model sees: all from position `offset` on. Its own positions begin there.

    Attributes:
        offset: That position.
        failed: The model failed in the last request: what its cache holds is not to be used.
    """

    offset: int = 0
    failed: bool = False


class ModelDrafter:
    """Takes each drafted token from a small model, through the same chain as the target's.

    Its cache is trimmed after a round, never replayed: a token is decoded once, and only when it is needed.
    """

    name = "model"

    def __init__(
        self,
        model: LanguageModel,
        guess: DraftSampler,
        n_vocab: int,
        first: FirstRead | None = None,
    ) -> None:
        """Make a drafter.

        Args:
            model: The draft model; it may have a cache from before, of other tokens only if that was rolled back.
            guess: How a token is taken from a row.
            n_vocab: V of the target; ids from there on are never proposed.
            first: The first token of a text that the model has read; kept with the model from request to request.
        """
        self._model, self._guess, self._n_vocab = model, guess, n_vocab
        self._first = first or FirstRead()
        self._history: list[int] = []

    @property
    def n_past(self) -> int:
        """Position in the text up to which the model has read; what lies before its first token counts."""
        return self._first.offset + self._model.n_past if self._model.n_past else 0

    @property
    def n_cached(self) -> int:
        """Tokens in the model's cache."""
        return self._model.n_past

    @property
    def reads_at_once(self) -> int:
        """Tokens of a prompt that are read in one pass."""
        return self._model.reads_at_once

    @property
    def busy_s(self) -> float:
        """Seconds inside the model."""
        return self._model.busy_s

    def read(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> None:
        """Read the tokens that are not in the cache yet, pass by pass until `cancelled()`."""
        read_on(self._model, self._known(tokens[self._offset() :]), cancelled)

    def begin_at(self, offset: int) -> None:
        """Empty the cache; the model is going to see a text from this position on, as if it began there."""
        self._model.rollback(0)
        self._first.offset = offset

    def keep(self, prompt: Sequence[int]) -> None:
        """Forget all that was read but the longest beginning of `prompt`, or of the part of it that the model has read."""
        if self._first.failed:
            self.begin_at(0)
            self._first.failed = False
        offset, known = self._offset(), self._known(prompt)
        n_same = sum(
            1
            for _ in takewhile(
                lambda pair: pair[0] == pair[1],
                zip(self._model.cached, known[offset:], strict=False),
            )
        )
        if (
            n_same < _LEAST_CONTEXT
        ):  # the cache may also hold a text from its start, from other hands
            offset = self._first.offset = 0
        retain_prefix(self._model, known[offset:])

    def begin(self, tokens: Sequence[int]) -> None:
        """Begin a draft that follows `tokens`."""
        self._history = [*tokens]

    def propose(self) -> Proposal | None:
        """Return the next token, after a pass over all that was not read yet; None where there is none, or after one that ends a generation."""
        pending = self._known(self._history[self._offset() + self._model.n_past :])
        if not pending or self._model.is_end(self._history[-1]):
            return None
        row = self._rows(pending, 1)[0]
        try:
            token, confidence, q, second = self._guess.token(row, self._history)
        except (
            NoTokenLeftError,
            OffGrammarError,
        ):  # the target's affair, if it comes to that; a token of the text may be off the grammar
            return None
        return Proposal(token, (self.name, confidence), q, second)

    def follow(self, token: int) -> None:
        """Go on after `token`."""
        self._history.append(token)

    def learn(self, start: int, tokens: Sequence[int], rows: Logits) -> None:
        """Take note of what did follow, and of the target's rows."""
        self._guess.learn(start, tokens, rows[:, : self._model.n_vocab])

    def review(self, tokens: Sequence[int], n_read: int, n: int) -> list[tuple[Kind, bool]]:
        """Return for each of the last `n` tokens how sure a proposal would have been, and whether it would have been right.

        One pass, over the `n_read` tokens before the last alone where more are unread; the cache stays whole.
        """
        n_past, start = self.n_past, len(tokens) - 1 - n_read
        if n_past > start:
            self.rollback(start)
        rows = self._rows(self._known(tokens[start:-1]), min(n, n_read))
        first = len(tokens) - len(rows)
        judged = [
            self._guess.review(row, tokens[: first + i], tokens[first + i])
            for i, row in enumerate(rows)
        ]
        if n_past < start:  # the tokens between were left out
            self.rollback(n_past)
        return [((self.name, confidence), hit) for confidence, hit in judged]

    def rollback(self, to: int) -> None:
        """Forget what was read beyond the first `to` tokens of the text."""
        offset = self._offset()
        self._model.rollback(max(0, to - offset))
        if to <= offset:
            self._first.offset = 0

    def give_up(self) -> None:
        """Note that the model failed: its cache is emptied before it is used again."""
        self._first.failed = True

    def _rows(self, tokens: Sequence[int], n: int) -> Logits:
        """Return the last `n` rows of a pass.

        Raises:
            FloatingPointError: One of them has no largest finite number.
        """
        rows = self._model.logits(tokens, n)[:, : self._n_vocab]
        if not np.isfinite(rows.max(axis=1)).all():  # NaN is the maximum of all rows that hold it
            raise FloatingPointError("its logits are not finite numbers")
        return rows

    def _offset(self) -> int:
        return self._first.offset

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """Put the draft's last token in place of those it does not have: both are padding that no text holds."""
        return [min(token, self._model.n_vocab - 1) for token in tokens]


def check_vocabulary(target: Any, draft: Any) -> None:
    """Check by llama.cpp's rule that two models share a vocabulary.

    The type, the tokens added at start and end, the size up to 128, and the text of every token from id 5 on must agree.

    Args:
        target: A `Model`.
        draft: A `Model`.

    Raises:
        VocabularyMismatchError: Says what differs, with both values.
    """
    a, b = target.vocabulary, draft.vocabulary
    names = {
        "type": "tokenizer types",
        "add_bos": "whether a start token is added",
        "add_eos": "whether an end token is added",
    }
    for what, words in names.items():
        if a[what] != b[what]:
            raise _mismatch(what, words, a[what], b[what])
    for what, flag in (("bos", "add_bos"), ("eos", "add_eos")):
        if a[flag] and a[what] != b[what]:
            raise _mismatch(what, f"the {what} tokens", a[what], b[what])
    if abs(a["size"] - b["size"]) > _MAX_SIZE_DIFFERENCE:
        raise _mismatch(
            "size",
            f"the vocabulary sizes, by more than {_MAX_SIZE_DIFFERENCE}",
            a["size"],
            b["size"],
        )
    for token in range(_FIRST_COMPARED_TOKEN, min(a["size"], b["size"])):
        if target.token_text(token) != draft.token_text(token):
            raise _mismatch(
                "token",
                f"the texts of token {token}",
                target.token_text(token),
                draft.token_text(token),
                token,
            )


def _mismatch(
    what: str, words: str, a: object, b: object, token: int | None = None
) -> VocabularyMismatchError:
    return VocabularyMismatchError(
        what,
        f"target and draft differ in {words}: {a!r} in the target, {b!r} in the draft.",
        a,
        b,
        token,
    )
