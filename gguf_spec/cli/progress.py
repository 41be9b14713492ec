"""Progress on stderr, at a terminal only: one line that is removed when the work is done."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

_PATIENCE_S = 2.0  # shorter waits show nothing
_BAR = 24  # characters
_MEASURING = "Measuring this machine once (about 2 s)"


class Line:
    """A line of a terminal that is written again and again, and removed at the end."""

    def __init__(self, out: TextIO | None) -> None:
        """Write to `out`; nothing if it is not a terminal, or one that cannot go back in its line."""
        self._out = out if out and out.isatty() and os.environ.get("TERM") != "dumb" else None
        self._n_shown = 0

    def show(self, text: str) -> None:
        """Show a text in place of the one before; it is cut to the width of the terminal."""
        if self._out:
            text = text[: shutil.get_terminal_size().columns - 1]
            self._out.write("\r" + text.ljust(self._n_shown))
            self._out.flush()
            self._n_shown = max(self._n_shown, len(text))

    def remove(self) -> None:
        """Remove the text."""
        if self._out and self._n_shown:
            self._out.write("\r" + " " * self._n_shown + "\r")
            self._out.flush()
            self._n_shown = 0


class PromptBar:
    """Shows how much of a prompt is read, as `on_prompt` of `LLM.stream`; nothing in the first two seconds.

    Call `remove` before text is written.
    """

    def __init__(
        self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin to wait; `clock` gives seconds."""
        self._line, self._clock = Line(out or sys.stderr), clock
        self._since = clock()

    def __call__(self, n_done: int, n_total: int) -> None:
        """Show a pass over the prompt."""
        if self._clock() - self._since >= _PATIENCE_S:
            n_full = _BAR * n_done // n_total
            bar = "#" * n_full + "." * (_BAR - n_full)
            self._line.show(
                f"Reading the prompt [{bar}] {n_done / n_total:4.0%} of {n_total:,} tokens"
            )

    def remove(self) -> None:
        """Remove the line; more than once does nothing."""
        self._line.remove()


class MeasuringNote:
    """Says that this machine is measured, as `on_measure` of `load`, until `remove` is called."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._line = Line(out or sys.stderr)

    def __call__(self) -> None:
        """Show the note."""
        self._line.show(_MEASURING)

    def remove(self) -> None:
        """Remove the note; more than once does nothing."""
        self._line.remove()
