"""Translation between the token ids of a target and of a draft with other ids.

Only the proposals depend on it, so it never changes the text.

Source: Timor et al. 2025, arXiv:2502.05202 (token-level intersection), for drafts with another
vocabulary: the draft's distribution is limited to the tokens that both have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from ..arrays import Ids

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
        """Target ids of the pairs, shape `(n,)`."""
        return np.fromiter(self.pairs, np.int64, len(self.pairs))

    @cached_property
    def draft_ids(self) -> Ids:
        """Draft ids of the pairs, shape `(n,)`."""
        return np.fromiter(self.pairs.values(), np.int64, len(self.pairs))


class _Place(NamedTuple):
    """Start of the stretch of text to which a target token belongs.

    Attributes:
        start: Index of the first target token of the stretch.
        n_before: Number of draft ids before the stretch.
        n_ids: Number of draft ids up to the end of the token.
    """

    start: int
    n_before: int
    n_ids: int


class Reading:
    """A text as target ids and as draft ids.

    The text is cut into words, and each word is tokenised by itself, so a new token changes the
    draft ids of the last word only. A target token that begins with a space begins a word.

    Attributes:
        tokens: The target ids.
        ids: The draft ids.
        n_stable: Number of first draft ids that did not change since it was set.
    """

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self.tokens: list[int] = []
        self.ids: list[int] = [*translation.prefix]
        self.n_stable = 0
        self._places: list[_Place] = []
        self._word = b""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append target tokens to the text."""
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
        self._places.append(_Place(start, n_before, len(self.ids)))

    def _begins(self, piece: bytes) -> bool:
        """Return whether a piece begins a new word."""
        if len(self._word) >= _LONGEST:
            return True
        return piece[:1] in (b" ", b"\n", b"\t", b"\r") and self._word[-1] not in _BLANKS

    def _spelled(self) -> tuple[int, ...]:
        return self._translation.spell(self._word) if self._word else ()

    def _replace(self, n_before: int, ids: Sequence[int]) -> None:
        same = n_before
        while same < len(self.ids) and same - n_before < len(ids):
            if self.ids[same] != ids[same - n_before]:
                break
            same += 1
        self.n_stable = min(self.n_stable, same)
        self.ids[n_before:] = ids


def by_words(spell: Callable[[bytes], Sequence[int]]) -> Callable[[bytes], tuple[int, ...]]:
    """Return `spell` with a memory of the last words."""
    return lru_cache(_WORDS)(lambda word: tuple(spell(word)))


def longest_pieces(by_bytes: Mapping[bytes, int]) -> Callable[[bytes], tuple[int, ...]]:
    """Return a function that covers a text with the longest tokens, from its start on.

    Bytes that no token covers are left out.

    Args:
        by_bytes: Bytes of a token -> its id.
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
