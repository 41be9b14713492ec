"""A suffix automaton: which tokens followed the longest ends of a text that it has held before, in constant time for each token."""

from __future__ import annotations

from collections.abc import Iterable

_CONTEXTS = (
    4  # of the contexts that end in one place, from the longest on, so many count what follows
)


class SuffixAutomaton:
    """All substrings of a text that grows, with counts of what followed them.

    Each state stands for substrings that end in the same places. `state` is the longest end of the text that occurred before, `length` how
    long it is.

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
        """The state of the longest end of the text that occurred before."""
        return max(self._link[self._last], 0)

    def length(self, state: int) -> int:
        """Return how long the longest substring of a state is."""
        return self._length[state]

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens at the end; each costs the same, on average over the text."""
        for token in tokens:
            self._count(token)
            self._append(token)
            self.n_tokens += 1

    def follow(self, state: int) -> tuple[int, int, int] | None:
        """Return the token that followed `state` most often, how often, and how often anything did; of equals the one counted last."""
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
        """Return the state of the longest end of `state` that occurred in more places; -1 after the empty one."""
        return self._link[state]

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Return the longest end of `state` + `token` that occurred, and its length, where `length` tokens were matched so far."""
        while state >= 0:
            after = self._next[state].get(token)
            if after is not None:
                return after, min(length, self._length[state]) + 1
            state = self._link[state]
        return 0, 0

    def _count(self, token: int) -> None:
        """Count `token` as what followed the longest contexts that occurred before."""
        state = self.state
        for _ in range(_CONTEXTS):
            counts = self._counts[state]
            if not counts:
                counts.update(self._known(state))
            counts[token] = counts.pop(token, 0) + 1  # the last counted stands last
            state = self._link[state]
            if state < 0:
                return

    def _known(self, state: int) -> dict[int, int]:
        """Return what followed a state that nothing was counted for: it occurred once, or as an end of contexts that were counted instead."""
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
        """Give the short substrings of `state`, which now end in one place more, a state of their own."""
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
