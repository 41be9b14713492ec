"""Search budget: rounds that do not look for drafts, because looking costs more than it finds.

Looking for a draft takes Python some tenths of a millisecond a round. That is nothing beside the
pass of a large model, and a quarter of a pass of a very small one. A request may spend on searches
a small share of its time, and what the drafts save that they found. So with a large model each
round looks for a draft, and with a small one too while the text offers drafts that pay. Otherwise
some rounds decode plainly, and searches in vain cost little.
"""

from __future__ import annotations

# Share of the generation time for searches.
_SHARE = 0.01
# Budget at the start of a request, and the largest one, in searches.
_FIRST, _MOST = 3, 32


class SearchBudget:
    """Seconds that one request may spend on looking for drafts."""

    def __init__(self) -> None:
        # None before the first round: then the cost of a search is not known.
        self._left_s: float | None = None

    def allows(self, search_s: float, plain_s: float) -> bool:
        """Return whether this round looks for a draft; called once for each round.

        Args:
            search_s: Seconds of a search.
            plain_s: Seconds of a token in plain decoding.
        """
        before = _FIRST * search_s if self._left_s is None else self._left_s
        self._left_s = min(before + _SHARE * plain_s, _MOST * search_s)
        return self._left_s >= search_s

    def charge(self, search_s: float, gain_s: float) -> None:
        """Count a search.

        Args:
            search_s: Seconds that it took.
            gain_s: Seconds that its draft is expected to save; 0 or less without one.
        """
        self._left_s = (self._left_s or 0.0) + max(gain_s, 0.0) - search_s
