"""A small model as drafter, and the check that it speaks the target's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._accept import Draft
from .._language_model import LanguageModel
from .._sampling import Logits
from ..errors import NoTokenLeftError, VocabularyMismatchError
from ._guess import Guess

_MAX_SIZE_DIFFERENCE = 128
_FIRST_COMPARED_TOKEN = 5


class ModelDrafter:
    """Takes each drafted token from a small model, through the same chain as the target's.

    Its cache is trimmed after a round, never replayed: a token is decoded once.
    """

    def __init__(self, model: LanguageModel, guess: Guess, n_vocab: int) -> None:
        """Make a drafter.

        Args:
            model: The draft model; it may have a cache from before, of other tokens only if that was rolled back.
            guess: How a token is taken from a row.
            n_vocab: V of the target; ids from there on are never proposed.
        """
        self._model, self._guess, self._n_vocab = model, guess, n_vocab

    @property
    def busy_s(self) -> float:
        """Seconds inside the model."""
        return self._model.busy_s

    def read(self, tokens: Sequence[int]) -> None:
        """Read the tokens that are not in the cache yet."""
        self._model.read(self._known(tokens[self._model.n_past :]))

    def draft(self, tokens: Sequence[int], k: int) -> Draft:
        """Propose up to `k` tokens, one at a time; stop after one that ends a generation, or where there is none to propose."""
        draft = Draft([], [])
        history, pending = [*tokens], self._known(tokens[self._model.n_past :])
        while len(draft.tokens) < k and pending:
            row = self._model.logits(pending, 1)[0, : self._n_vocab]
            try:
                token, law = self._guess.token(row, history)
            except NoTokenLeftError:  # the target's affair, if it comes to that
                break
            draft.tokens.append(token)
            if law is not None:
                draft.q.append(law)
            if self._model.is_end(token):
                break
            history.append(token)
            pending = [token]
        return draft

    def learn(self, tokens: Sequence[int], rows: Logits) -> None:
        """Take note of what did follow, and of the target's rows."""
        self._guess.learn(tokens, rows[:, : self._model.n_vocab])

    def rollback(self, to: int) -> None:
        """Forget what was read beyond the first `to` tokens."""
        self._model.rollback(to)

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
    names = {"type": "tokenizer types", "add_bos": "whether a start token is added", "add_eos": "whether an end token is added"}
    for what, words in names.items():
        if a[what] != b[what]:
            raise _mismatch(what, words, a[what], b[what])
    for what, flag in (("bos", "add_bos"), ("eos", "add_eos")):
        if a[flag] and a[what] != b[what]:
            raise _mismatch(what, f"the {what} tokens", a[what], b[what])
    if abs(a["size"] - b["size"]) > _MAX_SIZE_DIFFERENCE:
        raise _mismatch("size", f"the vocabulary sizes, by more than {_MAX_SIZE_DIFFERENCE},", a["size"], b["size"])
    for token in range(_FIRST_COMPARED_TOKEN, min(a["size"], b["size"])):
        if target.token_text(token) != draft.token_text(token):
            raise _mismatch("token", f"the texts of token {token}", target.token_text(token), draft.token_text(token), token)


def _mismatch(what: str, words: str, a: object, b: object, token: int | None = None) -> VocabularyMismatchError:
    return VocabularyMismatchError(what, f"target and draft differ in {words}: {a!r} in the target, {b!r} in the draft.", a, b, token)
