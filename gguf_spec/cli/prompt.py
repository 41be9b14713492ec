"""The prompt of a command: its argument, its files and the text of a pipe, joined."""

from __future__ import annotations

import select
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from .options import read_text

# Seconds without data from a pipe before a note says what the command waits for.
_PATIENCE_S = 3.0


def read_prompt(prompt: str | None, files: Sequence[Path]) -> str:
    """Return the prompt, the texts of the files and the text of the pipe, in this order.

    An empty line separates them. One newline at the end of a file or pipe is removed. If the prompt
    is `-`, the text of the pipe takes its place.

    Raises:
        click.UsageError: There is neither a prompt nor a file nor a pipe.
        click.FileError: A file cannot be read.
    """
    has_pipe = sys.stdin is not None and not sys.stdin.isatty()
    if prompt is None and not files and not has_pipe:
        raise click.UsageError(
            "there is no prompt; write it as an argument, use --file FILE, or use a pipe."
        )
    texts = [read_text(file).removesuffix("\n") for file in files]
    if prompt == "-":
        return _joined([_pipe() if sys.stdin else "", *texts])
    if has_pipe:
        _say_if_waiting(prompt is not None or bool(files))
        texts.append(_pipe())
    return _joined([prompt or "", *texts])


def _joined(texts: Sequence[str]) -> str:
    return "\n\n".join(text for text in texts if text)


def _pipe() -> str:
    return sys.stdin.buffer.read().decode("utf-8", errors="replace").removesuffix("\n")


def _say_if_waiting(has_prompt: bool) -> None:
    """Say that a pipe is read if nothing arrives in it, as from a program that never closes it."""
    if not has_prompt or sys.platform == "win32":  # there `select` cannot wait for a pipe
        return
    try:
        ready, _, _ = select.select([sys.stdin], [], [], _PATIENCE_S)
    except (OSError, ValueError):  # the stream has no file descriptor
        return
    if not ready:
        click.echo(
            "Note: waiting for the end of the standard input, which is added to the prompt; "
            "< /dev/null adds nothing.",
            err=True,
        )
