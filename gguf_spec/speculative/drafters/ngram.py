"""Drafts from the text: earlier continuations of its end, and the rest of a rejected draft.

A suffix automaton counts the tokens that followed the longest earlier match of a text's end; the
time for each token is constant.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Protocol

from ...arrays import Logits
from ...options import IMAGE_IDS
from .base import Proposal, TextDrafter
from .store import DraftStore, StoreDrafter

# Number of contexts, from the longest on, that count each new token.
_CONTEXTS = 4
# Bucket edges of the length of a match, in tokens.
_LENGTHS = (2, 3, 4, 6, 9, 16, 32)
# Number of buckets for the share of the most frequent next token.
_SHARES = 4


class SuffixAutomaton:
    """All substrings of a growing text, with counts of the tokens that followed them.

    Each state stands for substrings that end at the same positions. `state` is that of the longest
    suffix of the text that occurred before, and `length` gives the length of a state in tokens.

    Source: Blumer et al. 1985, The smallest automaton recognizing the subwords of a text.
    """

    n_tokens: int

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link, self._length = [-1], [0]
        self._counts: list[dict[int, int]] = [{}]
        self._last = 0
        self.n_tokens = 0

    @property
    def state(self) -> int:
        return max(self._link[self._last], 0)

    def length(self, state: int) -> int:
        return self._length[state]

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text, in constant time for each on average."""
        for token in tokens:
            self._count(token)
            self._append(token)
            self.n_tokens += 1

    def follow(self, state: int) -> tuple[int, int, int] | None:
        """Return the token that followed `state` most often, its count, and the total count.

        Of equally frequent tokens it is the one counted last. None if no token followed.
        """
        counts = self._counts[state] or self._known(state)
        if not counts:
            return None
        token, most, total = -1, 0, 0
        for other, n in counts.items():
            total += n
            if n >= most:
                token, most = other, n
        return token, most, total

    def shorter(self, state: int) -> int:
        """Return the state of the longest suffix of `state` with more occurrences; -1 if none."""
        return self._link[state]

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Return the longest suffix of a match and a token that occurred, and its length."""
        while state >= 0:
            after = self._next[state].get(token)
            if after is not None:
                return after, min(length, self._length[state]) + 1
            state = self._link[state]
        return 0, 0

    def _count(self, token: int) -> None:
        """Count `token` after the longest contexts that occurred before."""
        state = self.state
        for _ in range(_CONTEXTS):
            counts = self._counts[state]
            if not counts:
                counts.update(self._known(state))
            # The token counted last stands last.
            counts[token] = counts.pop(token, 0) + 1
            state = self._link[state]
            if state < 0:
                return

    def _known(self, state: int) -> dict[int, int]:
        """Return a count of 1 for each token that followed a state without counts.

        Such a state occurred once, or as a suffix of contexts that were counted instead.
        """
        return dict.fromkeys(self._next[state], 1)

    def _append(self, token: int) -> None:
        after, link, length = self._next, self._link, self._length
        new, at = len(after), self._last
        after.append({})
        self._counts.append({})
        length.append(length[at] + 1)
        link.append(0)
        while at >= 0 and token not in after[at]:
            after[at][token] = new
            at = link[at]
        if at >= 0:
            known = after[at][token]
            if length[known] > length[at] + 1:
                known = self._split(known, at, token)
            link[new] = known
        self._last = new

    def _split(self, state: int, at: int, token: int) -> int:
        """Move the short substrings of `state` to a new state, and return it.

        They now end at one more position than the long ones.
        """
        after, link, length = self._next, self._link, self._length
        clone = len(after)
        after.append(dict(after[state]))
        self._counts.append(dict(self._counts[state]))
        length.append(length[at] + 1)
        link.append(link[state])
        link[state] = clone
        while at >= 0 and after[at].get(token) == state:
            after[at][token] = clone
            at = link[at]
        return clone


class NgramDrafter:
    """Drafter that proposes the token that followed the longest earlier match of the text's end.

    The text includes the prompt.

    Source: Oliaro et al. 2024, arXiv:2411.04975 (SuffixDecoding), for the longest match first and
    for lengths that follow the match.
    """

    name = "ngram"
    # Prior of each bucket, a row for each match length. From 9 tokens on it is between a guess and
    # the rates of answers to prompts of 1,000 tokens (documents, code, JSON records, a chat) at
    # T = 0.8. Shorter matches are right less often in stories, so their priors are low.
    # fmt: off
    priors: tuple[float, ...] = (
        0.07, 0.12, 0.14, 0.15,
        0.15, 0.24, 0.27, 0.30,
        0.23, 0.36, 0.41, 0.45,
        0.30, 0.48, 0.54, 0.60,
        0.35, 0.56, 0.63, 0.70,
        0.43, 0.74, 0.71, 0.88,
        0.46, 0.79, 0.80, 0.92,
        0.50, 0.97, 0.88, 0.98,
    )
    # fmt: on

    def __init__(self, reference: SuffixAutomaton | None = None) -> None:
        """Make a drafter with an empty text, and a text beside it."""
        self._own = SuffixAutomaton()
        self._reference = reference
        # State and length of the longest match of the text's end in the text beside it.
        self._in_reference = (0, 0)
        # For each text: its automaton, the state of its longest match, and the match length in
        # tokens.
        self._cursors: list[tuple[SuffixAutomaton, int, int]] = []

    def begin(self, tokens: Sequence[int]) -> None:
        """Begin a draft that follows `tokens`; new tokens become part of the text."""
        new = tokens[self._own.n_tokens :]
        self._own.extend(new)
        state = self._own.state
        self._cursors = [(self._own, state, self._own.length(state))]
        if text := self._reference:
            for token in new:
                self._in_reference = text.step(*self._in_reference, token)
            self._cursors.append((text, *self._in_reference))

    def propose(self) -> Proposal | None:
        best: Proposal | None = None
        longest = 0
        for text, matched, n_matched in self._cursors:
            state, length = matched, n_matched
            while state > 0 and length > longest:
                followed = text.follow(state)
                if followed and followed[0] < IMAGE_IDS:  # an image is never a draft
                    kind = self.name, _bucket(length, *followed[1:])
                    best, longest = Proposal(followed[0], kind), length
                    break
                state = text.shorter(state)
                length = text.length(state)
        return best

    def follow(self, token: int) -> None:
        self._cursors = [
            (text, *text.step(state, length, token)) for text, state, length in self._cursors
        ]

    def learn(self, _start: int, _tokens: Sequence[int], _rows: Logits, /) -> None:
        """Do nothing: the next draft reads the emitted tokens."""


def _bucket(length: int, most: int, total: int) -> int:
    # 0: at most half of the next tokens were equal; 1: there was one; 2: more than half; 3: all,
    # at least two.
    share = 1 + (total > 1) * 2 if most == total else int(2 * most > total) * 2
    return _SHARES * bisect_right(_LENGTHS, length) + share


class RetryDrafter:
    """Drafter that proposes the rest of the last draft after the token that replaced its error."""

    name = "retry"
    # Prior of each bucket: first token of the rest after an inserted draft token; first token after
    # a replaced draft token; second and third token; later tokens.
    priors: tuple[float, ...] = (
        0.3,
        0.3,
        0.6,
        0.8,
    )

    def __init__(self) -> None:
        self._drafted: list[int] = []
        self._rest: list[int] = []
        self._skipped = False
        # Position where the rest begins; index in it of the next proposal.
        self._start = self._at = 0

    def begin(self, tokens: Sequence[int]) -> None:
        """Begin a draft; the rest stays while the tokens emitted since then agree with it."""
        self._drafted = []
        n_emitted = len(tokens) - self._start
        if self._rest and list(tokens[self._start :]) != self._rest[:n_emitted]:
            self._rest = []
        self._at = n_emitted

    def propose(self) -> Proposal | None:
        if not 0 <= self._at < len(self._rest):
            return None
        bucket = 0 if self._skipped else 1
        if self._at:
            bucket = 2 if self._at < 3 else 3
        return Proposal(self._rest[self._at], (self.name, bucket))

    def follow(self, token: int) -> None:
        """Append `token` to the draft; another token than that of the rest ends the proposals."""
        self._drafted.append(token)
        is_next = 0 <= self._at < len(self._rest) and self._rest[self._at] == token
        self._at = self._at + 1 if is_next else len(self._rest)

    def learn(self, start: int, tokens: Sequence[int], _rows: Logits, /) -> None:
        """Store the part of the draft after its first wrong token."""
        # Without a call of `begin` the next round has no draft.
        drafted, self._drafted = self._drafted, []
        wrong = len(tokens) - 1
        if wrong >= len(drafted) or drafted[wrong] == tokens[wrong]:
            return
        rest = drafted[wrong + 1 :]
        self._skipped = tokens[wrong] in rest
        self._rest = rest[rest.index(tokens[wrong]) + 1 :] if self._skipped else rest
        self._start = start + len(tokens)


class Sources(Protocol):
    """Texts beside the request's own; a `ModelPair` has them."""

    @property
    def reference(self) -> SuffixAutomaton | None:
        """A text from which drafts may come."""

    @property
    def store(self) -> DraftStore | None:
        """What was read and written before."""


def make(pair: Sources) -> list[TextDrafter]:
    """Return the drafters from the text, for a request of a model pair."""
    drafters: list[TextDrafter] = [NgramDrafter(pair.reference), RetryDrafter()]
    return [*drafters, StoreDrafter(pair.store)] if pair.store else drafters
