"""Drafts from what was read and written before: earlier texts, and what followed each few tokens.

A `DraftStore` outlives requests. Its texts are a window over the newest tokens, in which a match of
at least four tokens is found by a hash and a chain of earlier places. Its counts have, for each
context of one to three tokens, the tokens that followed it and how often. Both are arrays of fixed
items: 12 bytes for a token of a text, and 8 bytes for each token that followed a context. A full
window drops its oldest tokens, and a full group of counts its rarest entry. Nothing is exact about
a store: a lost or mistaken entry makes a draft worse, and no draft changes a text.

Source: Luo et al. 2024, arXiv:2408.08696 (Token Recycling), for candidates that follow one token.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...arrays import Logits
from ...options import IMAGE_IDS
from .base import Proposal

# Bytes of a store, unless its maker says otherwise.
LIMIT = 64_000_000
# Tokens of the shortest match in a text; shorter contexts are counted.
_LEAST = 4
# Earlier places that are compared for a match, and tokens of it that count.
_PLACES, _LONGEST = 8, 32
# Tokens of the pieces of a text that are added only if they are not there.
_PIECE = 32
# Bytes of a token of a text: the token, the place before with its hash, and the last such place.
_TOKEN_BYTES = 12
# An entry of the counts is a whole number: hash of the context, token, weight in sixteenths.
_TOKEN_BITS, _WEIGHT_BITS = 20, 16
_TOKENS, _WEIGHTS = (1 << _TOKEN_BITS) - 1, (1 << _WEIGHT_BITS) - 1
_HASHES, _HASH_AT = (1 << 28) - 1, _TOKEN_BITS + _WEIGHT_BITS
_ONE = 16
# Entries of a group, which is a place of the table, and groups at the start.
_WAYS, _FIRST_GROUPS = 4, 1 << 10
# Odd factors of the hashes of contexts of 0, 1, ... tokens, and of texts.
_FACTORS = (0, 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)
_MASK = (1 << 32) - 1
# Bucket edges of the length of a match; buckets of what the counts have.
_LENGTHS, _TENTHS = (5, 7, 10, 16), 10
# Weight that each context is short of, for 1, 2 and 3 tokens: what followed one token once is less
# sure than what followed three.
_DOUBTS = (2 * _ONE, _ONE // 2, _ONE // 4)


def _hashes(tokens: Sequence[int]) -> tuple[int, int, int]:
    """Return the hashes of the last one, two and three of three tokens."""
    a, b, c = tokens
    one = (c + 1) * _FACTORS[1] & _MASK
    two = ((one ^ one >> 15) + (b + 1) * _FACTORS[2]) * _FACTORS[1] & _MASK
    three = ((two ^ two >> 13) + (a + 1) * _FACTORS[3]) * _FACTORS[2] & _MASK
    return one ^ one >> 16, two ^ two >> 16, three ^ three >> 16


class Counts:
    """What followed contexts: a table of groups, whose entries are found by the context's hash."""

    def __init__(self, limit: int) -> None:
        """Make an empty table of at most `limit` bytes."""
        self.entries: array[int] = array("Q", bytes(8 * _WAYS * _FIRST_GROUPS))
        self.n: int = 0  # entries in use
        self._most = limit // 8

    def add(self, context: int, token: int, weight: int) -> None:
        """Count a token after a context; the weight is in sixteenths."""
        if token > _TOKENS:
            return
        hash_ = context & _HASHES
        entries = self.entries
        at = hash_ % (len(entries) // _WAYS) * _WAYS
        key = hash_ << _TOKEN_BITS | token
        group = entries[at : at + _WAYS]
        for i, entry in enumerate(group, at):
            if entry >> _WEIGHT_BITS == key:
                if entry & _WEIGHTS > _WEIGHTS - weight:
                    self._halve(hash_, at)
                entries[i] += weight
                return
        least = min(range(_WAYS), key=lambda i: group[i] & _WEIGHTS)
        left = group[least] & _WEIGHTS
        # What is replaced was the rarest one. One that was seen more often loses half first.
        if left > weight:
            entries[at + least] -= (left + 1) // 2
            return
        entries[at + least] = key << _WEIGHT_BITS | weight
        self.n += not left
        if 2 * self.n > len(entries) and 2 * len(entries) <= self._most:
            self._grow()

    def likeliest(self, context: int) -> tuple[int, int, int]:
        """Return the likeliest token behind a context, its weight, and that of all; 0 if none."""
        hash_ = context & _HASHES
        at = hash_ % (len(self.entries) // _WAYS) * _WAYS
        token, most, total = 0, 0, 0
        for entry in self.entries[at : at + _WAYS]:
            if entry >> _HASH_AT == hash_:
                weight = entry & _WEIGHTS
                total += weight
                if weight > most:
                    token, most = entry >> _WEIGHT_BITS & _TOKENS, weight
        return token, most, total

    def _halve(self, hash_: int, at: int) -> None:
        for i in range(at, at + _WAYS):
            entry = self.entries[i]
            if entry >> _HASH_AT == hash_:
                self.entries[i] = entry - (entry & _WEIGHTS) // 2

    def _grow(self) -> None:
        """Double the groups; the next bit of the hash divides each into two."""
        old = np.frombuffer(self.entries, dtype=np.uint64)
        n_groups = len(old) // _WAYS
        upper = (old >> np.uint64(_HASH_AT)) & np.uint64(n_groups) > 0
        zero = np.uint64(0)
        parts = (np.where(upper, zero, old), np.where(upper, old, zero))
        self.entries = array("Q", b"".join(one.tobytes() for one in parts))


class Texts:
    """A window over texts, and an index of its places by the hash of the last four tokens.

    A place is the number of tokens that were ever added before a token's end. Its index in the
    arrays is the rest of a division by their length.
    """

    def __init__(self, limit: int) -> None:
        """Make an empty window of at most `limit` bytes."""
        self._most = 1 << (max(limit // _TOKEN_BYTES, 1 << 10)).bit_length() - 1
        self._resize(1 << 10)
        self.n: int = 0  # tokens that were ever added

    def _resize(self, size: int) -> None:
        self.tokens: array[int] = array("i", bytes(4 * size))
        self._before: array[int] = array("I", bytes(4 * size))
        self._last: array[int] = array("I", bytes(4 * size))

    @property
    def n_tokens(self) -> int:
        return min(self.n, len(self.tokens))

    def newest(self) -> array[int]:
        """Return the tokens of the window, the oldest first."""
        size, start = len(self.tokens), self.n % len(self.tokens)
        return self.tokens[start:] + self.tokens[:start] if self.n > size else self.tokens[: self.n]

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens, and index them."""
        size = len(self.tokens)
        while self.n + len(tokens) > size and size < self._most:
            size *= 2
        if size > len(self.tokens):
            self.renew(self.newest(), size)
        new = np.asarray(tokens[-size:], dtype=np.int64)
        self._append(new)

    def renew(self, tokens: array[int], size: int = 0) -> None:
        """Begin a window with these tokens, for at least `size` of them."""
        size = min(max(size, 1 << 10, 1 << max(len(tokens) - 1, 1).bit_length()), self._most)
        self._resize(size)
        self.n = 0
        self._append(np.asarray(tokens[-size:], dtype=np.int64))

    def _append(self, new: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Append at most as many tokens as the window has."""
        if not len(new):
            return
        size, begin = len(self.tokens), self.n
        places = np.arange(begin + 1, begin + 1 + len(new))
        tokens = np.frombuffer(self.tokens, dtype=np.int32)
        n_known = min(_LEAST - 1, begin)
        known = tokens[np.arange(begin - n_known, begin) % size].astype(np.int64)
        tokens[(places - 1) % size] = new
        self.n = begin + len(new)
        run = np.concatenate([known, new])
        if len(run) < _LEAST:
            return
        n = len(run) - _LEAST + 1
        hashes = _text_hashes([run[i : i + n] for i in range(_LEAST)]) & (size - 1)
        ends = begin + len(new) - n + 1 + np.arange(n)
        before = np.frombuffer(self._before, dtype=np.uint32)
        last = np.frombuffer(self._last, dtype=np.uint32)
        order = np.argsort(hashes, kind="stable")
        found = hashes[order]
        is_first = np.concatenate([[True], found[1:] != found[:-1]])
        previous = np.concatenate([[0], ends[order][:-1]])
        before[(ends[order] - 1) % size] = np.where(is_first, last[found], previous) & _MASK
        is_last = np.concatenate([is_first[1:], [True]])
        last[found[is_last]] = ends[order][is_last] & _MASK

    def places(self, end: Sequence[int]) -> tuple[list[int], int]:
        """Return the places behind the longest matches of a text's end, and their length in tokens.

        Args:
            end: The last tokens of the text, as many as count; none match if there are fewer than
                four.
        """
        if len(end) < _LEAST:
            return [], 0
        tokens, size = self.tokens, len(self.tokens)
        oldest = max(self.n - size, 0)
        a, b, c, d = end[-_LEAST:]
        place = self._last[_text_hash(a, b, c, d) & (size - 1)]
        found, longest, most = list[int](), 0, len(end)
        for _ in range(_PLACES):
            if place <= oldest + _LEAST:  # it was overwritten, or there is none
                break
            length, at = 0, place - 1
            while length < most and at >= oldest and tokens[at % size] == end[-1 - length]:
                length += 1
                at -= 1
            if length > longest:
                found, longest = [], length
            if length == longest >= _LEAST:
                found.append(place)
            earlier = self._before[(place - 1) % size]
            if earlier >= place:
                break
            place = earlier
        return (found, longest) if longest >= _LEAST else ([], 0)

    def next(self, places: Sequence[int]) -> list[tuple[int, int]]:
        """Return each place with the token that follows it, without those at the end."""
        tokens, size, n = self.tokens, len(self.tokens), self.n
        return [(place, tokens[place % size]) for place in places if n - size < place < n]


def _text_hash(a: int, b: int, c: int, d: int) -> int:
    mixed = a * _FACTORS[1] + b * _FACTORS[2] + c * _FACTORS[3] + d * _FACTORS[4] & _MASK
    return mixed ^ mixed >> 15


def _text_hashes(runs: Sequence[np.ndarray[Any, np.dtype[np.int64]]]) -> Any:
    with np.errstate(over="ignore"):
        mixed = sum(
            run.astype(np.uint64) * np.uint64(factor)
            for run, factor in zip(runs, _FACTORS[1:], strict=True)
        ) & np.uint64(_MASK)
    return (mixed ^ mixed >> np.uint64(15)).astype(np.int64)


class DraftStore:
    """Texts and counts of one user and one target. One thread at a time uses it.

    Attributes:
        texts: Tokens of earlier requests and of files.
        counts: What followed contexts of one, two and three tokens in answers.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        """Make an empty store of at most `limit` bytes."""
        self._limit = limit
        self.clear()

    def clear(self) -> None:
        self.texts: Texts = Texts(self._limit // 2)
        self.counts: Counts = Counts(self._limit // 2)
        self.n_added: int = 0

    def add(self, tokens: Sequence[int]) -> None:
        """Add a text, without the pieces of it that are there."""
        new = list[int]()
        for at in range(0, len(tokens), _PIECE):
            piece = tokens[at : at + _PIECE]
            if len(piece) < _LEAST or self.texts.places(piece)[1] < len(piece):
                new += piece
        self.texts.extend(new)
        self.n_added += len(new)

    def count(self, before: Sequence[int], token: int, weight: int = _ONE) -> None:
        """Count a token behind the last three tokens of an answer."""
        for context in _hashes(before):
            self.counts.add(context, token, weight)

    def to_bytes(self) -> list[bytes]:
        """Return the tokens and the entries."""
        return [self.texts.newest().tobytes(), self.counts.entries.tobytes()]

    def restore(self, tokens: memoryview, entries: memoryview) -> None:
        """Take over the parts of `to_bytes`.

        Raises:
            ValueError: They have another form.
        """
        kept, counted = array("i"), array("Q")
        kept.frombytes(tokens)
        counted.frombytes(entries)
        n_groups = len(counted) // _WAYS
        if n_groups * _WAYS != len(counted) or n_groups & n_groups - 1 or n_groups < _FIRST_GROUPS:
            raise ValueError(len(counted))
        self.clear()
        self.texts.renew(kept)
        if 8 * len(counted) <= self._limit // 2:
            self.counts.entries = counted
            self.counts.n = int(np.count_nonzero(np.frombuffer(counted, dtype=np.uint64)))


class StoreDrafter:
    """Drafter that proposes what followed the text's end in a store, and counts the answer in it.

    A match of at least four tokens proposes what followed it in a text, a shorter context what the
    counts have. Of several candidates the one with the highest prior is proposed.
    """

    name = "store"
    # Prior of each bucket of matches in texts, a row for each length: one place; several that
    # differ; several that agree. Then of the counts: a bucket for each tenth of the token's share.
    # Measured on 40 answers of Qwen2.5-Coder-1.5B to questions of a chat, except for long matches.
    # fmt: off
    priors: tuple[float, ...] = (
        0.11, 0.06, 0.25,
        0.20, 0.12, 0.40,
        0.40, 0.25, 0.60,
        0.60, 0.40, 0.80,
        0.80, 0.60, 0.95,
        0.05, 0.07, 0.09, 0.11, 0.14, 0.23, 0.26, 0.53, 0.72, 0.92,
    )
    # fmt: on

    def __init__(self, store: DraftStore) -> None:
        self._store = store
        self._n_known = 0  # tokens of the text that were seen
        self._end: list[int] = []  # the last of them
        # Where the end of the text, or of the draft, is in the store, each place with the token
        # that follows it; and the length of the match.
        self._after: list[tuple[int, int]] = []
        self._length = 0
        self._of_text: tuple[list[int], int] = ([], 0)  # the places at the end of the text
        self._tail: list[int] = []  # `_end` and the draft
        self._has_begun = False

    def begin(self, tokens: Sequence[int]) -> None:
        """Begin a draft that follows `tokens`; those that are new to it are of the answer."""
        end, places, length = self._end, *self._of_text
        new = tokens[self._n_known :]
        if not self._has_begun:  # the prompt
            self._has_begun, end, new = True, [*tokens[-_LONGEST:]], ()
            places, length = self._store.texts.places(end)
        for token in new:
            if len(end) >= 3:
                self._store.count(end[-3:], token)
            end.append(token)
            after = self._store.texts.next(places)
            places, length = self._behind(end, after, length, token)
        del end[:-_LONGEST]
        self._n_known, self._end = len(tokens), end
        self._of_text, self._length = (places, length), length
        self._after = self._store.texts.next(places)
        self._tail = [*end]

    def _behind(
        self, end: Sequence[int], after: list[tuple[int, int]], length: int, token: int
    ) -> tuple[list[int], int]:
        """Return the places behind a match and a token, which is the last one of `end`.

        Args:
            after: The places of the match, each with the token that follows it.
        """
        places = [place + 1 for place, next_ in after if next_ == token]
        return (places, length + 1) if places else self._store.texts.places(end[-_LONGEST:])

    def propose(self) -> Proposal | None:
        best: Proposal | None = None
        after = [token for _, token in self._after]
        if after:
            token = max(after, key=after.count)  # of equally frequent ones that of the newest place
            n = after.count(token)
            share = 0 if len(after) == 1 else 2 if n == len(after) else 1
            bucket = 3 * bisect_right(_LENGTHS, self._length) + share
            best = Proposal(token, (self.name, bucket))
        end = self._tail[-3:]
        surest, counted = -1.0, 0
        for context, doubt in zip(_hashes(end) if len(end) == 3 else (), _DOUBTS, strict=False):
            token, most, total = self._store.counts.likeliest(context)
            if most and most / (total + doubt) > surest:
                surest, counted = most / (total + doubt), token
        bucket = 3 * (len(_LENGTHS) + 1) + int(_TENTHS * surest)
        if surest > 0 and (best is None or self.priors[bucket] > self.priors[best.kind[1]]):
            best = Proposal(counted, (self.name, bucket))
        return best if best and best.token < IMAGE_IDS else None

    def follow(self, token: int) -> None:
        self._tail.append(token)
        places, self._length = self._behind(self._tail, self._after, self._length, token)
        self._after = self._store.texts.next(places)

    def learn(self, _start: int, _tokens: Sequence[int], _rows: Logits, /) -> None:
        """Do nothing: the next draft counts the emitted tokens."""
