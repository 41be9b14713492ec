"""Downloads on the command line: agreement to licences, progress, and one line about each model."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from .. import Progress
    from ..models import Entry, Pulled

_NO_MODEL = ("mtp", "ngram", "none")  # values of `draft` that are not models
# Kind of verification of a file -> text.
VERIFIED = {
    "sha256": "sha256 verified",
    "size and etag": "size and the hub's etag verified, as no sha256 is declared",
    "size": "size verified, no sha256 is known",
    "nothing": "not verified, neither size nor sha256 is known",
    "local": "not from the hub",
}


def at_terminal() -> bool:
    """Return whether a question can be asked: stdin and stderr are a terminal."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def download(
    entries: Sequence[Entry], *, force: bool = False, offline: bool = False, quiet: bool = False
) -> list[Pulled]:
    """Download models, with progress and one line about each on stderr.

    Args:
        entries: The models.
        force: Download them again.
        offline: Make no request; only verify the files on this disk.
        quiet: Show nothing.
    """
    from .. import models as store

    pulled = []
    for entry in entries:
        start = time.monotonic()
        with _progress(entry, quiet) as tell:
            pulled.append(store.pull(entry, force=force, offline=offline, progress=tell))
        if not quiet:
            click.echo(_line(pulled[-1], time.monotonic() - start), err=True)
    return pulled


def with_drafts(names: Sequence[str | Entry], draft: bool, models_file: Path | None) -> list[Entry]:
    """Return the entries of the names, each followed by its draft, without duplicates."""
    from ..models import resolve

    found: dict[str, Entry] = {}
    for name in names:
        entry = resolve(name, models_file)
        found[entry.name] = entry
        if draft and entry.draft and entry.draft not in _NO_MODEL:
            entry = resolve(entry.draft, models_file)
            found[entry.name] = entry
    return list(found.values())


def is_agreed(entries: Sequence[Entry], yes: bool) -> bool:
    """Show licences that are not permissive; ask for confirmation at a terminal.

    Returns:
        Whether the download may start.
    """
    bound = [entry for entry in entries if not (entry.path or entry.permissive)]
    for entry in bound:
        what = f"{entry.license}, which is not permissive" if entry.license else "unknown"
        where = (
            f"https://huggingface.co/{entry.repo}"
            if entry.repo
            else f"package {entry.pieces[0].package}"
        )
        click.echo(f"Note: the licence of {entry.name} is {what}: {where}", err=True)
    bound = [entry for entry in bound if entry.license]
    if not bound or yes or not at_terminal():
        return True
    return click.confirm(
        "Download it under this licence?"
        if len(bound) == 1
        else "Download them under these licences?",
        err=True,
    )


@contextlib.contextmanager
def _progress(entry: Entry, quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Yield a progress callback: a bar at a terminal, otherwise one line per stage."""
    if quiet:
        yield None
        return
    from rich.console import Console

    from ..models import format_bytes

    verbs = {
        "download": "downloading",
        "unpack": "unpacking",
        "checksum": "verifying",
        "wait": "another download is running: waiting for"
        if not entry.repo
        else "the hub is busy: waiting for",
    }
    console = Console(stderr=True)
    seen: dict[str, Any] = {}
    if not console.is_terminal:

        def write(now: Progress) -> None:
            if now.stage not in seen:
                of_size = f", {format_bytes(now.total)}" if now.total else ""
                click.echo(f"{verbs[now.stage]} {entry.name}{of_size}", err=True)
            seen[now.stage] = True

        yield write
        return
    with _bar(console) as bar:

        def draw(now: Progress) -> None:
            if now.stage not in seen:
                seen[now.stage] = bar.add_task(f"{verbs[now.stage]} {entry.name}", total=None)
            bar.update(seen[now.stage], completed=now.done, total=now.total)

        yield draw


def _bar(console: Console) -> Bar:
    """Return a progress bar of bytes with their speed."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar
    from rich.text import Text

    from ..models import format_bytes

    class Speed(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            text = "?" if speed is None else f"{format_bytes(speed)}/s"
            return Text(text, style="progress.data.speed")

    return Bar(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        Speed(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def _line(pulled: Pulled, seconds: float) -> str:
    """Return one line about a completed download."""
    from ..models import format_bytes

    came = (
        f"{format_bytes(pulled.loaded_bytes)} in {seconds:.1f} s"
        if pulled.loaded_bytes
        else "already on this disk"
    )
    return f"{pulled.name}: {came}, {VERIFIED[pulled.verified]}: {pulled.paths[0]}"
