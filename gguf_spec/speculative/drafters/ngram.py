"""Drafts from the text itself: what followed its end before, and what a draft went on with after its wrong token."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from ...arrays import Logits
from .base import Proposal
from .suffix_automaton import SuffixAutomaton

_LENGTHS = (2, 3, 4, 6, 9, 16, 32)  # of matches, that are told apart
_SHARES = 4  # how much of what followed was the same token


class NgramDrafter:
    """Proposes what followed the longest end of the text that it has held before, prompt included.

    Source: Oliaro et al. 2024, arXiv:2411.04975 (SuffixDecoding), for the longest match first and for lengths that follow the match.
    """

    name = "ngram"
    priors = tuple(
        length * share
        for length in (0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 0.98)
        for share in (0.5, 0.8, 0.9, 1.0)
    )

    def __init__(self, reference: SuffixAutomaton | None = None) -> None:
        """Make a drafter that knows no text yet; `reference` is one beside the request's own, which is not changed."""
        self._own = SuffixAutomaton()
        self._reference, self._in_reference, self._n_followed = reference, (0, 0), 0
        self._cursors: list[
            tuple[SuffixAutomaton, int, int]
        ] = []  # the texts, with the longest end known to each: its state, how many tokens it has

    def begin(self, tokens: Sequence[int]) -> None:
        """Begin a draft that follows `tokens`; those not seen yet become part of the text."""
        new = tokens[self._own.n_tokens :]
        self._own.extend(new)
        state = self._own.state
        self._cursors = [(self._own, state, self._own.length(state))]
        if self._reference:
            for token in new:
                self._in_reference = self._reference.step(*self._in_reference, token)
            self._cursors.append((self._reference, *self._in_reference))

    def propose(self) -> Proposal | None:
        """Return what followed most often after the longest match."""
        best: Proposal | None = None
        longest = 0
        for text, matched, n_matched in self._cursors:
            state, length = matched, n_matched
            while state > 0 and length > longest:
                followed = text.follow(state)
                if followed:
                    best, longest = (
                        Proposal(followed[0], (self.name, _bucket(length, *followed[1:]))),
                        length,
                    )
                    break
                state = text.shorter(state)
                length = text.length(state)
        return best

    def follow(self, token: int) -> None:
        """Go on after `token`."""
        self._cursors = [
            (text, *text.step(state, length, token)) for text, state, length in self._cursors
        ]

    def learn(self, _start: int, _tokens: Sequence[int], _rows: Logits, /) -> None:
        """Do nothing: what was said is read when the next draft begins."""


def _bucket(length: int, most: int, total: int) -> int:
    share = 1 + (total > 1) * 2 if most == total else int(2 * most > total) * 2
    return _SHARES * bisect_right(_LENGTHS, length) + share


class RetryDrafter:
    """Proposes the rest of the last draft again, behind the token that stands where it went wrong."""

    name = "retry"
    priors = (
        0.3,
        0.3,
        0.6,
        0.8,
    )  # the wrong token was one too many; it was another; one, and three and more of the rest came true

    def __init__(self) -> None:
        self._drafted: list[int] = []
        self._rest: list[int] = []
        self._skipped = False
        self._start = self._n_true = self._at = (
            0  # where the rest begins, how much of it came true, how far this draft is in it
        )

    def begin(self, tokens: Sequence[int]) -> None:
        """Begin a draft that follows `tokens`: go on with the rest while what was said since agrees with it."""
        self._drafted = []
        said = len(tokens) - self._start
        if self._rest and list(tokens[self._start :]) != self._rest[:said]:
            self._rest = []
        self._n_true = self._at = said

    def propose(self) -> Proposal | None:
        """Return the next token of the rest."""
        if not 0 <= self._at < len(self._rest):
            return None
        bucket = 0 if self._skipped else 1
        if self._at:
            bucket = 2 if self._at < 3 else 3
        return Proposal(self._rest[self._at], (self.name, bucket))

    def follow(self, token: int) -> None:
        """Go on after `token`; the rest is of no use behind another."""
        self._drafted.append(token)
        self._at = (
            self._at + 1
            if 0 <= self._at < len(self._rest) and self._rest[self._at] == token
            else len(self._rest)
        )

    def learn(self, start: int, tokens: Sequence[int], _rows: Logits, /) -> None:
        """Keep what the draft went on with after its first wrong token."""
        wrong = len(tokens) - 1
        if wrong >= len(self._drafted) or self._drafted[wrong] == tokens[wrong]:
            return
        rest = self._drafted[wrong + 1 :]
        self._skipped = tokens[wrong] in rest
        self._rest = rest[rest.index(tokens[wrong]) + 1 :] if self._skipped else rest
        self._start = start + len(tokens)
