"""Progress line on stderr, at a terminal only; it is removed when the work is done."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from .. import Progress

_PATIENCE_S = 2.0  # seconds before a bar appears
_BAR = 24  # width of the bar in characters
_MEASURING = "Measuring this machine once (about 2 s)"


class Line:
    """Line of a terminal that can be replaced and removed."""

    def __init__(self, out: TextIO | None) -> None:
        """Create a line on `out`; it shows nothing unless `out` is a terminal other than `dumb`.

        A dumb terminal cannot move the cursor to the start of the line.
        """
        self._out = out if out and out.isatty() and os.environ.get("TERM") != "dumb" else None
        self._n_shown = 0

    def show(self, text: str) -> None:
        """Replace the text of the line; it is cut to the width of the terminal."""
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


class LateBar:
    """Progress bar for a callback; it appears after two seconds.

    Call `remove` before text is written.
    """

    def __init__(
        self,
        title: str,
        amount: Callable[[Progress], str],
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the waiting time before the bar appears.

        Args:
            title: What is done.
            amount: Returns the text behind the percentage.
            out: Terminal; None takes stderr.
            clock: Returns a time in seconds.
        """
        self._title, self._amount = title, amount
        self._line, self._clock = Line(out or sys.stderr), clock
        self._since, self._shown = clock(), -1

    def __call__(self, now: Progress) -> None:
        """Show the progress."""
        percent = int(100 * now.share)
        if percent != self._shown and self._clock() - self._since >= _PATIENCE_S:
            self._shown = percent
            n_full = int(_BAR * now.share)
            bar = "#" * n_full + "." * (_BAR - n_full)
            self._line.show(f"{self._title} [{bar}] {percent / 100:4.0%} {self._amount(now)}")

    def remove(self) -> None:
        """Remove the line; further calls have no effect."""
        self._line.remove()


class PromptBar(LateBar):
    """Progress bar for the prefill, for `on_prompt` of `LLM.stream`."""

    def __init__(
        self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__("Reading the prompt", lambda now: f"of {now.total:,} tokens", out, clock)


class LoadBar(LateBar):
    """Progress bar for the loading of the weights, for `progress` of `load`."""

    def __init__(
        self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__("Loading", _size, out, clock)


def _size(now: Progress) -> str:
    from ..models import format_bytes

    return f"of {format_bytes(now.total or 0)}"


class MeasuringNote:
    """Note that this machine is being measured, for `on_measure` of `load`.

    It is shown until `remove` is called.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._line = Line(out or sys.stderr)

    def __call__(self) -> None:
        """Show the note."""
        self._line.show(_MEASURING)

    def remove(self) -> None:
        """Remove the note; further calls have no effect."""
        self._line.remove()


@contextmanager
def counted(title: str, unit: str) -> Iterator[Callable[[Progress], None]]:
    """Yield a progress callback that shows a bar with a count and the time left, at a terminal.

    Args:
        title: What is done.
        unit: What is counted, in the plural.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (
        TextColumn(title),
        BarColumn(),
        TextColumn(f"{{task.completed}} of {{task.total}} {unit}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", visible=False)  # until the total is known
        yield lambda now: bar.update(task, completed=now.done, total=now.total, visible=True)
