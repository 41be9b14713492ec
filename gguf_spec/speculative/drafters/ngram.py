"""Drafts from the text: earlier continuations of its end, and the rest of a rejected draft."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from ...arrays import Logits
from ...options import IMAGE_IDS
from .base import Proposal
from .shared_texts import SharedTexts
from .suffix_automaton import SuffixAutomaton

# Bucket edges of the length of a match, in tokens.
_LENGTHS = (2, 3, 4, 6, 9, 16, 32)
# Number of buckets for the share of the most frequent next token.
_SHARES = 4


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
    priors = (
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

    def __init__(
        self, reference: SuffixAutomaton | None = None, shared: SharedTexts | None = None
    ) -> None:
        """Make a drafter with an empty text.

        Args:
            reference: A text beside the request's own; not changed.
            shared: Texts of other requests; None for none.
        """
        self._own = SuffixAutomaton()
        self._reference, self._shared = reference, shared
        # For each other text: the state and the length of the longest match of the text's end.
        self._in_others: dict[SuffixAutomaton, tuple[int, int]] = {}
        # For each text: its automaton, the state of its longest match, and the match length in
        # tokens.
        self._cursors: list[tuple[SuffixAutomaton, int, int]] = []

    def begin(self, tokens: Sequence[int]) -> None:
        """Begin a draft that follows `tokens`; new tokens become part of the text."""
        new = tokens[self._own.n_tokens :]
        self._own.extend(new)
        state = self._own.state
        self._cursors = [(self._own, state, self._own.length(state))]
        others = [
            *([self._reference] if self._reference else []),
            *(self._shared.pages if self._shared else []),
        ]
        matches = {}
        for text in others:
            match = self._in_others.get(text, (0, 0))
            for token in new:
                match = text.step(*match, token)
            matches[text] = match
            self._cursors.append((text, *match))
        self._in_others = matches

    def propose(self) -> Proposal | None:
        """Return the token that followed the longest match most often, or None."""
        best: Proposal | None = None
        source, longest = self._own, 0
        for text, matched, n_matched in self._cursors:
            state, length = matched, n_matched
            while state > 0 and length > longest:
                followed = text.follow(state)
                if followed and followed[0] < IMAGE_IDS:  # an image is never a draft
                    best, longest = (
                        Proposal(followed[0], (self.name, _bucket(length, *followed[1:]))),
                        length,
                    )
                    source = text
                    break
                state = text.shorter(state)
                length = text.length(state)
        if self._shared and source in self._shared.pages:
            self._shared.use(source)
        return best

    def follow(self, token: int) -> None:
        """Extend the matches by `token`."""
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
    priors = (
        0.3,
        0.3,
        0.6,
        0.8,
    )

    def __init__(self) -> None:
        self._drafted: list[int] = []
        self._rest: list[int] = []
        self._skipped = False
        # Position where the rest begins; number of its tokens that were right; index in it of the
        # next proposal.
        self._start = self._n_true = self._at = 0

    def begin(self, tokens: Sequence[int]) -> None:
        """Begin a draft that follows `tokens`.

        The rest is kept while the tokens emitted since then agree with it.
        """
        self._drafted = []
        n_emitted = len(tokens) - self._start
        if self._rest and list(tokens[self._start :]) != self._rest[:n_emitted]:
            self._rest = []
        self._n_true = self._at = n_emitted

    def propose(self) -> Proposal | None:
        """Return the next token of the rest, or None."""
        if not 0 <= self._at < len(self._rest):
            return None
        bucket = 0 if self._skipped else 1
        if self._at:
            bucket = 2 if self._at < 3 else 3
        return Proposal(self._rest[self._at], (self.name, bucket))

    def follow(self, token: int) -> None:
        """Append `token` to the draft; another token than that of the rest ends the proposals."""
        self._drafted.append(token)
        self._at = (
            self._at + 1
            if 0 <= self._at < len(self._rest) and self._rest[self._at] == token
            else len(self._rest)
        )

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
