"""The new text of `gguf-spec edit` at a terminal, with a status line below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .render import CONTROL, speed

if TYPE_CHECKING:
    from .. import Stats


# Speed-up from which drafts are mentioned.
_WORTH_SAYING = 1.1


class EditScreen:
    """Shows a text while it is written, on stderr, if that is a terminal."""

    def __init__(self, n_expected: int, *, quiet: bool) -> None:
        """Create the screen.

        Args:
            n_expected: Length of the old text in tokens.
            quiet: Whether to show nothing.
        """
        from rich.console import Console

        self._out = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._n_expected, self._rest = n_expected, ""
        self._is_shown = self._out.is_terminal and not self._out.is_dumb_terminal and not quiet
        self._quiet = quiet

    def __enter__(self) -> EditScreen:
        from rich.live import Live

        self._live = Live(console=self._out, transient=True, refresh_per_second=12)
        if self._is_shown:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            self._line(self._rest)
            self._live.update("")
            self._live.stop()

    def show(self, text: str, stats: Stats) -> None:
        """Show new text and the status line."""
        from rich.console import Group
        from rich.text import Text

        if not self._is_shown:
            return
        *lines, self._rest = (self._rest + text.translate(CONTROL)).split("\n")
        for line in lines:
            self._line(line)
        status = f"{stats.n_generated:,} of about {self._n_expected:,} tokens, {speed(stats)}"
        self._live.update(Group(Text(self._rest), Text(status, style="dim")))

    def _line(self, text: str) -> None:
        from rich.text import Text

        if text:
            self._live.console.print(Text(text, style="dim"))
        else:
            self._live.console.print()

    def summary(self, stats: Stats, plain: Stats | None) -> None:
        """Show length and speed of the complete text; drafts are mentioned only where they pay.

        Args:
            stats: Statistics of the text.
            plain: Those of plain decoding, measured in this process, if drafts were used.
        """
        if self._quiet or not self._out.is_terminal:
            return
        text = f"{stats.n_generated:,} tokens, {speed(stats)}"
        if plain and plain.tokens_per_s:
            gain = min(stats.tokens_per_s / plain.tokens_per_s, stats.tokens_per_round)
            if gain >= _WORTH_SAYING:
                text += f", {gain:.1f} times plain decoding ({speed(plain)})"
        self._out.print(text, style="dim")
