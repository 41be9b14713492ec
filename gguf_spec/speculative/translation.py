"""Draft models with other token ids: their translation, and a view with the ids of the target.

Only the proposals depend on it, so it never changes the text.

Source: Timor et al. 2025, arXiv:2502.05202 (token-level intersection), for drafts with another
vocabulary: the draft's distribution is limited to the tokens that both have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from ..arrays import Ids, Logits
from ..errors import RollbackError
from ..options import K_MAX
from ..passes import Exactness, LanguageModel
from ..vocabulary import common

# Length from which a stretch of text without spaces is closed at the next token, in bytes.
_LONGEST = 48
# Number of words whose draft tokens are kept.
_WORDS = 1 << 14
# Bytes that separate words.
_BLANKS = b" \t\r\n"


@dataclass(frozen=True)
class Translation:
    """Correspondence of the tokens of a target and of a draft.

    Attributes:
        pairs: Target id -> draft id of the tokens that both have.
        fixed: Returns the draft ids of a target token that is not translated by its text, such as
            a control token; None for a token that is.
        piece: Returns the bytes of a target token; empty for a token without text.
        spell: Returns the draft ids of a text.
        prefix: Draft ids before every text.
        note: How the vocabularies differ, as a sentence without a full stop.
    """

    pairs: Mapping[int, int]
    fixed: Callable[[int], tuple[int, ...] | None]
    piece: Callable[[int], bytes]
    spell: Callable[[bytes], tuple[int, ...]]
    prefix: tuple[int, ...] = ()
    note: str = ""

    @cached_property
    def target_ids(self) -> Ids:
        """Those of the pairs, shape `(n,)`."""
        return np.fromiter(self.pairs, np.int64, len(self.pairs))

    @cached_property
    def draft_ids(self) -> Ids:
        """Those of the pairs, shape `(n,)`."""
        return np.fromiter(self.pairs.values(), np.int64, len(self.pairs))


class _Stretch(NamedTuple):
    """Start of the stretch of text to which a target token belongs.

    Attributes:
        start: Index of the first target token of the stretch.
        n_before: Number of draft ids before the stretch.
        n_ids: Number of draft ids up to the end of the token.
    """

    start: int
    n_before: int
    n_ids: int


class TranslatedText:
    """A text as target ids and as draft ids.

    The text is cut into words, and each word is tokenised by itself, so a new token changes the
    draft ids of the last word only. A target token that begins with a space begins a word.

    Attributes:
        n_stable: Number of first draft ids that did not change since it was set.
    """

    n_stable: int

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self.tokens: list[int] = []
        self.ids: list[int] = [*translation.prefix]
        self.n_stable = 0
        self._places: list[_Stretch] = []
        self._word = b""

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._append(token)

    def cut(self, n: int) -> None:
        """Keep only the first `n` target tokens."""
        if n >= len(self.tokens):
            return
        if n == 0:
            self.tokens, self._places, self._word = [], [], b""
            self._replace(0, self._translation.prefix)
            return
        place = self._places[n - 1]
        word = self.tokens[place.start : n]
        del self.tokens[n:], self._places[n:]
        fixed = self._translation.fixed(word[0])
        self._word = b"" if fixed is not None else b"".join(map(self._translation.piece, word))
        self._replace(place.n_before, self._spelled() if fixed is None else fixed)

    def n_ids(self, n: int) -> int:
        """Return the approximate number of draft ids of the first `n` target tokens."""
        return min(self._places[n - 1].n_ids, len(self.ids)) if n else len(self._translation.prefix)

    def _append(self, token: int) -> None:
        fixed = self._translation.fixed(token)
        piece = b"" if fixed is not None else self._translation.piece(token)
        last, n = (self._places[-1] if self._places else None), len(self.tokens)
        self.tokens.append(token)
        goes_on = last is not None and self._word and fixed is None and not self._begins(piece)
        if last and goes_on:
            start, n_before, self._word = last.start, last.n_before, self._word + piece
        else:
            start, n_before, self._word = n, len(self.ids), piece
        self._replace(n_before, self._spelled() if fixed is None else fixed)
        self._places.append(_Stretch(start, n_before, len(self.ids)))

    def _begins(self, piece: bytes) -> bool:
        """Return whether a piece begins a new word."""
        if len(self._word) >= _LONGEST:
            return True
        return piece[:1] in (b" ", b"\n", b"\t", b"\r") and self._word[-1] not in _BLANKS

    def _spelled(self) -> tuple[int, ...]:
        return self._translation.spell(self._word) if self._word else ()

    def _replace(self, n_before: int, ids: Sequence[int]) -> None:
        same = n_before + common(self.ids[n_before:], [*ids])
        self.n_stable = min(self.n_stable, same)
        self.ids[n_before:] = ids


def by_words(spell: Callable[[bytes], Sequence[int]]) -> Callable[[bytes], tuple[int, ...]]:
    """Return `spell` with a memory of the last words."""
    return lru_cache(_WORDS)(lambda word: tuple(spell(word)))


def longest_pieces(by_bytes: Mapping[bytes, int]) -> Callable[[bytes], tuple[int, ...]]:
    """Return a function that covers a text with the longest tokens, from its start on.

    It takes the id of a token by its bytes. Bytes that no token covers are left out.
    """
    longest = max(map(len, by_bytes), default=0)

    def spell(text: bytes) -> tuple[int, ...]:
        ids, at = [], 0
        while at < len(text):
            for n in range(min(longest, len(text) - at), 0, -1):
                token = by_bytes.get(text[at : at + n])
                if token is not None:
                    ids.append(token)
                    at += n
                    break
            else:
                at += 1
        return tuple(ids)

    return by_words(spell)


class TranslatedModel:
    """A draft model that takes target tokens and returns rows over the target's tokens.

    It implements `LanguageModel`. Tokens that the draft does not have get the logit -inf. The draft
    model keeps its own tokens and positions. A view is made for each request; `recognise` finds out
    the cached tokens of the draft model.
    """

    cached_bytes: float
    depth_costs: Mapping[int, float]
    n_ctx: int
    n_vocab: int
    slow_first_pass: bool
    start: int
    weight_bytes: int

    def __init__(
        self, model: LanguageModel, target: LanguageModel, translation: Translation
    ) -> None:
        """Make a view of a draft model; only the vocabulary of the target is used."""
        self._model, self._target, self._translation = model, target, translation
        self._reading = TranslatedText(translation)
        # Number of first draft ids that are not in the cache, because the context is full.
        self._first = 0
        self._rows = np.empty((0, 0), np.float32)
        self.n_vocab, self.n_ctx, self.start = target.n_vocab, model.n_ctx, target.start
        self.weight_bytes, self.cached_bytes = model.weight_bytes, model.cached_bytes
        # rows of a draft need no exact bits
        self.exactness: Exactness = replace(model.exactness, grid=0)
        self.depth_costs, self.slow_first_pass = model.depth_costs, model.slow_first_pass

    @property
    def busy_s(self) -> float:
        return self._model.busy_s

    @property
    def n_read(self) -> int:
        return self.n_past

    @property
    def reads_at_once(self) -> int:
        return self._model.reads_at_once

    @property
    def free_rollback(self) -> int:
        return self.n_ctx

    @property
    def cached(self) -> list[int]:
        return self._reading.tokens

    @property
    def n_past(self) -> int:
        return len(self._reading.tokens)

    def is_end(self, token: int) -> bool:
        return self._target.is_end(token)

    def recognise(self, tokens: Sequence[int]) -> None:
        """Find the longest prefix of `tokens` in the draft model's cache."""
        reading = self._reading
        reading.cut(0)
        reading.extend(tokens)
        n, known = common(self._model.cached, reading.ids), self.n_past
        self._first, reading.n_stable = 0, n
        while known and reading.n_ids(known) > n:
            known -= 1
        reading.cut(known)

    def read(self, tokens: Sequence[int]) -> None:
        reading = self._reading
        reading.extend(tokens)
        done = self._synchronise(len(reading.ids))
        if done < len(reading.ids):
            self._model.read(reading.ids[done:])
        reading.n_stable = len(reading.ids)

    def logits(self, tokens: Sequence[int], n_rows: int) -> Logits:
        """Append target tokens and return the rows after each of the last `n_rows`.

        Where a target token ends inside a draft token, the row after the draft token before is
        returned.

        Returns:
            Logits over the target's tokens, shape `(n_rows, V)`. The next call overwrites them.
        """
        reading, n = self._reading, self.n_past + len(tokens)
        reading.extend(tokens)
        ids = reading.ids
        if not ids:
            return self._without_text(n_rows)
        last = len(ids) - 1
        places = [max(0, min(reading.n_ids(i) - 1, last)) for i in range(n - n_rows + 1, n)]
        places.append(last)
        done, at, found = self._synchronise(min(places)), min(places), list[Logits]()
        while done <= last:
            end = min(at + K_MAX + 1, len(ids))
            rows = self._model.logits(ids[done:end], end - at)
            # Indexing copies the rows, which the next pass overwrites.
            found.append(rows[[place - at for place in places if at <= place < end]])
            done = at = end
        reading.n_stable = len(ids)
        return self._translated(np.concatenate(found) if len(found) > 1 else found[0])

    def _without_text(self, n_rows: int) -> Logits:
        """Return rows for a text that the draft model has no token of."""
        self._model.rollback(0)
        rows = self._translated(self._model.logits([self._model.start % self._model.n_vocab], 1))
        self._model.rollback(0)
        return np.repeat(rows, n_rows, axis=0)

    def rollback(self, to: int) -> None:
        self._reading.cut(to)
        if to == 0:
            self._first = self._reading.n_stable = 0
            self._model.rollback(0)

    def hold(self, lasting: bool = False) -> None:
        """Do nothing: the draft model can roll back to any number of tokens."""

    def _synchronise(self, n: int) -> int:
        """Remove all but right draft ids from the cache, and those after the first `n`.

        Return the number of draft ids before the first one that is to be decoded.
        """
        reading, model = self._reading, self._model
        done = min(reading.n_stable, self._first + model.n_past, n)
        n_ids = len(reading.ids)
        room = model.n_ctx // 2
        is_short = self._first > 0 and n_ids - self._first < room // 2
        if done < self._first or is_short or n_ids - self._first > model.n_ctx:
            # A text that is longer than the context is read from its last part on.
            self._first = done = min(n, n_ids - room) if n_ids > model.n_ctx else 0
            model.rollback(0)
        try:
            model.rollback(done - self._first)
        except RollbackError:  # a part of its sliding windows is missing
            model.rollback(0)
            done = self._first
        return done

    def _translated(self, rows: Logits) -> Logits:
        n = len(rows)
        if len(self._rows) < n:
            self._rows = np.full((n, self.n_vocab), -np.inf, np.float32)
        translation = self._translation
        self._rows[:n, translation.target_ids] = rows[:, translation.draft_ids]
        return self._rows[:n]


def in_target_ids(
    draft: LanguageModel, target: LanguageModel, translation: Translation | None
) -> LanguageModel:
    """Return a draft model as a model with the ids of its target; itself if they are the same."""
    return TranslatedModel(draft, target, translation) if translation else draft
