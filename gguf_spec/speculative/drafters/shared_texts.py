"""Answers of one process that the drafts of all its requests may come from."""

from __future__ import annotations

from collections.abc import Sequence

from .suffix_automaton import SuffixAutomaton

# Most tokens of all texts, and the pages that they are in. A token takes about 1 KiB.
_MOST, _N_PAGES = 32_768, 8


class SharedTexts:
    """Earlier answers, in pages; the least recently used page makes room for new ones.

    An automaton cannot remove a text, so a page does so as a whole. One thread at a time uses them.

    Attributes:
        pages: The pages, the one that grows last.
    """

    def __init__(self, most: int = _MOST, n_pages: int = _N_PAGES) -> None:
        """Begin without texts.

        Args:
            most: Most tokens of all texts.
            n_pages: Most pages.
        """
        self._of_page, self._n_pages = most // n_pages, n_pages
        self.pages = [SuffixAutomaton()]
        self._used_at: dict[SuffixAutomaton, int] = {}
        self._n_used = 0

    @property
    def n_tokens(self) -> int:
        """Number of tokens of all texts."""
        return sum(page.n_tokens for page in self.pages)

    def add(self, tokens: Sequence[int]) -> None:
        """Add an answer, unless a page has all of it."""
        for page in self.pages:
            if _has(page, tokens):
                self.use(page)
                return
        while tokens:
            page = self.pages[-1]
            n_free = self._of_page - page.n_tokens
            if n_free > 0:
                page.extend(tokens[:n_free])
                self.use(page)
                tokens = tokens[n_free:]
            else:
                self._turn()

    def use(self, page: SuffixAutomaton) -> None:
        """Count a use of a page."""
        self._n_used += 1
        self._used_at[page] = self._n_used

    def _turn(self) -> None:
        """Begin a page, and drop the least recently used one if there are too many."""
        if len(self.pages) == self._n_pages:
            oldest = min(self.pages, key=lambda page: self._used_at.get(page, 0))
            self.pages.remove(oldest)
            self._used_at.pop(oldest, None)
        self.pages.append(SuffixAutomaton())


def _has(page: SuffixAutomaton, tokens: Sequence[int]) -> bool:
    """Return whether a page contains a text."""
    state, length = 0, 0
    for n, token in enumerate(tokens, 1):
        state, length = page.step(state, length, token)
        if length < n:
            return False
    return True
