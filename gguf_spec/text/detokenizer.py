"""Incremental conversion of token bytes to text: whole characters, and no part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Literal


class TextStream:
    """Converts pieces (bytes) to text as soon as the text is final.

    The text ends at the first position at which a stop string is complete. If several end there,
    the longest counts. The text therefore does not depend on the boundaries of the pieces. Text
    that may be the start of a stop string is held back.

    Attributes:
        stop_string: The stop string that ended the text, or None.
    """

    def __init__(
        self, stop: Sequence[str] = (), errors: Literal["replace", "ignore"] = "replace"
    ) -> None:
        """Start a text.

        Args:
            stop: Strings that end it.
            errors: Treatment of bytes that are not UTF-8: `replace` inserts a replacement
                character, `ignore` drops them.
        """
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors=errors)
        self._stop = tuple(stop)
        self._held = ""
        self.stop_string: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self.stop_string is not None

    def push(self, piece: bytes) -> str:
        """Return the text that `piece` completes."""
        return self.add(self._decoder.decode(piece))

    def add(self, text: str) -> str:
        """Return the text that is final after `text`, which follows all pieces so far."""
        if self.stopped:
            return ""
        self._held += text
        found = [(at + len(s), at, s) for s in self._stop if (at := self._held.find(s)) >= 0]
        if found:
            _, at, self.stop_string = min(found)
            text, self._held = self._held[:at], ""
            return text
        n_safe = len(self._held) - self._n_open()
        text, self._held = self._held[:n_safe], self._held[n_safe:]
        return text

    def finish(self) -> str:
        """Return the text that was held back.

        An incomplete character at the end is dropped.
        """
        text, self._held = self._held, ""
        return text

    def _n_open(self) -> int:
        """Return the length of the longest suffix of the held text that starts a stop string."""
        return max(
            (n for s in self._stop for n in range(1, len(s)) if self._held.endswith(s[:n])),
            default=0,
        )
