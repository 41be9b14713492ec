"""The table of `gguf-spec models list`: what is on this disk first, as wide as the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .render import CONTROL

if TYPE_CHECKING:
    from ..models import Entry

_HEAD = ("", "name", "size", "licence", "draft", "note")
_OPTIONAL = ("licence", "draft")  # columns that a narrow terminal leaves out, the first one first
_NOTE = 36  # width of the notes that is worth a column


def table(found: Sequence[tuple[Entry, Path | None]]) -> list[str]:
    """Return the lines of the table.

    At a terminal long notes are cut; in a pipe or a file they are complete.

    Args:
        found: Models, and their files if they are on this disk.
    """
    from ..models import format_bytes

    tick = _tick()
    rows = [
        (
            tick if path else "",
            entry.name,
            format_bytes(size) if (size := _size(entry, path)) else "?",
            entry.license or "?",
            entry.draft or "-",
            entry.note.translate(CONTROL),
        )
        for entry, path in sorted(found, key=lambda one: one[1] is None)
    ]
    width = shutil.get_terminal_size().columns - 1 if sys.stdout.isatty() else None
    lines = _lines([_HEAD, *rows], width)
    n_here = sum(path is not None for _, path in found)
    legend = f"{tick} on this disk: {n_here} of {len(found)}"
    if n_here < len(found):
        legend += "; gguf-spec pull NAME downloads the others"
    return [*lines, "", f"{legend}."]


def _size(entry: Entry, path: Path | None) -> int | None:
    """Return the size of a model in bytes, if it is known."""
    if entry.size_bytes or path is None:
        return entry.size_bytes
    try:
        return path.stat().st_size
    except OSError:
        return None


def _tick() -> str:
    """Return a tick, or a star where the output cannot show one."""
    try:
        "\N{CHECK MARK}".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "*"
    return "\N{CHECK MARK}"


def _lines(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Format rows; with a width, columns are left out and notes are cut to fit."""
    columns = list(range(len(_HEAD)))
    for name in ("", *_OPTIONAL):
        if name:
            columns.remove(_HEAD.index(name))
        widths = [max(len(row[i]) for row in rows) for i in columns[:-1]]
        if width is None or sum(widths) + 2 * len(widths) + _NOTE <= width:
            break
    lines = []
    for row in rows:
        cells = [f"{row[i]:<{n}}" for i, n in zip(columns, widths, strict=False)]
        line = "  ".join([*cells, row[columns[-1]]]).rstrip()
        if width is not None and len(line) > width:
            line = line[: max(0, width - 3)].rstrip() + "..."
        lines.append(line)
    return lines
