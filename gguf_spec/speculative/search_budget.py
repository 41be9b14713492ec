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
    """Searches for drafts that one request may make.

    The budget is a number of searches, because the seconds of one are known only after the first.
    """

    def __init__(self) -> None:
        self._n_left = float(_FIRST)

    def allows(self, search_s: float, plain_s: float) -> bool:
        """Return whether this round looks for a draft; called once for each round.

        Args:
            search_s: Seconds of a search; 0 if none was timed.
            plain_s: Seconds of a token in plain decoding.
        """
        if not search_s:
            return True
        self._n_left = min(self._n_left + _SHARE * plain_s / search_s, _MOST)
        return self._n_left >= 1

    def charge(self, search_s: float, gain_s: float) -> None:
        """Count a search.

        Args:
            search_s: Seconds that it took; 0 if it was not timed.
            gain_s: Seconds that its draft is expected to save; 0 or less without one.
        """
        if search_s:
            self._n_left += max(gain_s, 0.0) / search_s - 1
