"""Suffix automaton: counts of the tokens that followed the longest earlier match of a text's end.

The time for each token is constant.
"""

from __future__ import annotations

from collections.abc import Iterable

# Number of contexts, from the longest on, that count each new token.
_CONTEXTS = 4


class SuffixAutomaton:
    """All substrings of a growing text, with counts of the tokens that followed them.

    Each state stands for substrings that end at the same positions. `state` is that of the longest
    suffix of the text that occurred before, and `length` gives the length of a state in tokens.

    Source: Blumer et al. 1985, The smallest automaton recognizing the subwords of a text.
    """

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link, self._length = [-1], [0]
        self._counts: list[dict[int, int]] = [{}]
        self._last = 0
        self.n_tokens = 0

    @property
    def state(self) -> int:
        """State of the longest suffix of the text that occurred before."""
        return max(self._link[self._last], 0)

    def length(self, state: int) -> int:
        """Return the length of the longest substring of a state, in tokens."""
        return self._length[state]

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text, in constant time for each on average."""
        for token in tokens:
            self._count(token)
            self._append(token)
            self.n_tokens += 1

    def follow(self, state: int) -> tuple[int, int, int] | None:
        """Return the token that followed `state` most often, its count, and the total count.

        Of equally frequent tokens the one counted last is returned. Return None if no token
        followed.
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
        """Return the longest suffix of `state` + `token` that occurred, and its length.

        Args:
            state: State of the match so far.
            length: Length of the match so far, in tokens.
            token: The next token.
        """
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
