"""Token bytes to text that can be shown: whole characters only, and never a part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Literal


class TextStream:
    """Turns pieces (bytes) into text as soon as it is certain.

    A stop string ends the text at the first place where one of them is complete; of several that end there the longest counts. So the
    text does not depend on how it was cut into pieces. Text that may yet become a stop string is held back.
    """

    def __init__(
        self, stop: Sequence[str] = (), errors: Literal["replace", "ignore"] = "replace"
    ) -> None:
        """Begin a text.

        Args:
            stop: Strings that end it.
            errors: What becomes of bytes that are not UTF-8: a replacement character, or nothing.
        """
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors=errors)
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False

    def push(self, piece: bytes) -> str:
        """Return the text that `piece` makes certain; sets `stopped` when a stop string is complete."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(piece)
        found = [(at + len(s), at) for s in self._stop if (at := self._held.find(s)) >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)[1]], ""
            return text
        n_safe = len(self._held) - self._n_open()
        text, self._held = self._held[:n_safe], self._held[n_safe:]
        return text

    def finish(self) -> str:
        """Return what was held back for a stop string that did not come. Half a character at the end is left out."""
        text, self._held = self._held, ""
        return text

    def _n_open(self) -> int:
        """Return the length of the longest end of the held text that begins a stop string."""
        return max(
            (n for s in self._stop for n in range(1, len(s)) if self._held.endswith(s[:n])),
            default=0,
        )
