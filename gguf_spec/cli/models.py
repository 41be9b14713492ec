"""`gguf-spec models`: list, show, download and remove models with names."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .command import CommandGroup
from .completion import model_names
from .model_table import table
from .render import CONTROL

if TYPE_CHECKING:
    from .. import Progress
    from ..models import Entry, Pulled

F = TypeVar("F", bound=Callable[..., Any])

_NO_MODEL = ("ngram", "none")  # values of `draft` that are not models
# Kind of verification of a file -> text.
_VERIFIED = {
    "sha256": "sha256 verified",
    "size and etag": "size and the hub's etag verified, as no sha256 is declared",
    "size": "size verified, no sha256 is known",
    "nothing": "not verified, neither size nor sha256 is known",
    "local": "not from the hub",
}


@click.group(cls=CommandGroup, short_help="List, download and remove models.")
def models() -> None:
    """List, download and remove models that have names.

    \b
    Examples:
      gguf-spec models list
      gguf-spec models pull smollm2
      gguf-spec generate -m smollm2 "Why is the sky blue?"
      gguf-spec models remove smollm2
    """


def _options(command: F) -> F:
    """Add the options that all commands of this group share."""
    for option in (
        click.option(
            "--json",
            "as_json",
            is_flag=True,
            envvar="GGUF_SPEC_JSON",
            help="Print one JSON object.",
        ),
        click.option(
            "--models-file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="File with more model names, in the format of models.yaml.",
        ),
    ):
        command = option(command)
    return command


@models.command("list", short_help="List the models that have names.")
@click.option("--cached", is_flag=True, help="List only models on this disk.")
@_options
def list_(cached: bool, models_file: Path | None, as_json: bool) -> int:
    """List the models that have names, first those on this disk.

    \b
    Examples:
      gguf-spec models list
      gguf-spec models list --cached --json
    """
    from ..models import find, list_models

    found = [(entry, find(entry)) for entry in list_models(models_file)]
    found = [(entry, path) for entry, path in found if path or not cached]
    if as_json:
        _print({"models": [_facts(entry, path) for entry, path in found]})
        return 0
    click.echo("\n".join(table(found)))
    return 0


@models.command(short_help="Show what is known of a model.")
@click.argument("name", shell_complete=model_names)
@_options
def show(name: str, models_file: Path | None, as_json: bool) -> int:
    """Show the known facts of a model and the path of its file.

    \b
    Examples:
      gguf-spec models show smollm2
      gguf-spec models show hf:OWNER/REPO/FILE.gguf --json
    """
    from ..models import find, format_bytes, resolve, verified

    entry = resolve(name, models_file)
    path = find(entry)
    if as_json:
        _print(_facts(entry, path))
        return 0
    known = verified(entry)
    disk = f"{path}, {_VERIFIED[known] if known else 'not verified'}" if path else "no"
    lines: list[tuple[str, object]] = [("name", entry.name), ("aliases", ", ".join(entry.aliases))]
    lines += [("repository", entry.repo), ("revision", entry.revision)]
    for part in entry.parts:
        of_size = format_bytes(part.size_bytes) if part.size_bytes else "size not known"
        lines.append(("file", f"{part.file}, {of_size}"))
    lines += [("sha256", part.sha256 or "not declared") for part in entry.parts]
    lines += [
        ("licence", entry.license),
        ("context", entry.context),
        ("tokenizer", entry.tokenizer),
        ("chat", entry.chat),
        ("draft", entry.draft),
        ("prompt", entry.prompt),
        ("sampling", ", ".join(f"{key} {value}" for key, value in entry.sampling.items())),
        ("note", entry.note),
        ("on disk", disk),
    ]
    click.echo(
        "\n".join(
            f"{what:<12}{value}" for what, value in lines if value not in (None, "")
        ).translate(CONTROL)
    )
    return 0


@models.command(short_help="Download models and their drafts.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=model_names)
@click.option("--draft/--no-draft", default=True, help="Also download the draft of each model.")
@click.option("--force", is_flag=True, help="Download the files again.")
@click.option(
    "--offline", is_flag=True, help="Make no request; only verify the files on this disk."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@_options
def pull(
    names: tuple[str, ...],
    draft: bool,
    yes: bool,
    models_file: Path | None,
    as_json: bool,
    **options: bool,
) -> int:
    """Download models and their drafts, and verify them.

    NAME is the name of a model or hf:OWNER/REPO/FILE[@REVISION]. Files that are already on this
    disk are not downloaded again. Afterwards no network is required. HF_HOME sets the folder for
    the files, HF_TOKEN gives access to gated models, HF_ENDPOINT selects another hub.

    \b
    Examples:
      gguf-spec models pull smollm2
      gguf-spec models pull qwen2.5-1.5b qwen2.5-3b --no-draft
      gguf-spec models pull hf:OWNER/REPO/FILE.gguf@REVISION
    """
    from .. import models as store

    entries = _with_drafts(names, draft, models_file)
    missing = [entry for entry in entries if options["force"] or not store.find(entry)]
    if not options["offline"]:
        if not _is_agreed(missing, yes or as_json):
            click.echo("Nothing was downloaded.", err=True)
            return 1
        if len(missing) > 1:
            store.check_room(missing)  # before the first download, for all of them
    pulled = []
    for entry in entries:
        start = time.monotonic()
        with _progress(entry, options["quiet"]) as tell:
            pulled.append(
                store.pull(entry, force=options["force"], offline=options["offline"], progress=tell)
            )
        if not options["quiet"]:
            click.echo(_line(pulled[-1], time.monotonic() - start), err=True)
    if as_json:
        _print({"models": [_result(one) for one in pulled]})
    return 0


def _with_drafts(names: Sequence[str], draft: bool, models_file: Path | None) -> list[Entry]:
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


def _is_agreed(entries: Sequence[Entry], yes: bool) -> bool:
    """Show licences that are not permissive; ask for confirmation at a terminal.

    Returns:
        Whether the download may start.
    """
    bound = [entry for entry in entries if entry.repo and not entry.permissive]
    for entry in bound:
        what = f"{entry.license}, which is not permissive" if entry.license else "unknown"
        click.echo(
            f"Note: the licence of {entry.name} is {what}: https://huggingface.co/{entry.repo}",
            err=True,
        )
    bound = [entry for entry in bound if entry.license]
    if not bound or yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
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

    verbs = {
        "download": "downloading",
        "checksum": "verifying",
        "wait": "the hub is busy: waiting for",
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
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        Speed(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, transient=True) as bar:

        def draw(now: Progress) -> None:
            if now.stage not in seen:
                seen[now.stage] = bar.add_task(f"{verbs[now.stage]} {entry.name}", total=None)
            bar.update(seen[now.stage], completed=now.done, total=now.total)

        yield draw


def _line(pulled: Pulled, seconds: float) -> str:
    """Return one line about a completed download."""
    from ..models import format_bytes

    came = (
        f"{format_bytes(pulled.loaded_bytes)} in {seconds:.1f} s"
        if pulled.loaded_bytes
        else "already on this disk"
    )
    return f"{pulled.name}: {came}, {_VERIFIED[pulled.verified]}: {pulled.paths[0]}"


@models.command(short_help="Print the path of a model.")
@click.argument("name", shell_complete=model_names)
@_options
def path(name: str, models_file: Path | None, as_json: bool) -> int:
    """Print the path of a model; exit with 1 if it is not on this disk.

    \b
    Examples:
      gguf-spec models path smollm2
      llama-cli -m "$(gguf-spec models path smollm2)"
    """
    from .. import models as store

    entry = store.resolve(name, models_file)
    found = store.path(entry)
    if as_json:
        _print({"name": entry.name, "path": str(found)})
    else:
        click.echo(found)
    return 0


@models.command(short_help="Remove downloaded models.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=model_names)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@_options
def remove(names: tuple[str, ...], yes: bool, models_file: Path | None, as_json: bool) -> int:
    """Remove downloaded models from this disk. Bundled models and your own files are kept.

    \b
    Examples:
      gguf-spec models remove smollm2
      gguf-spec models remove qwen2.5-3b qwen2.5-0.5b --yes
    """
    from .. import models as store
    from ..errors import NotDownloadedError, StoreError

    removed = []
    may_ask = not (yes or as_json) and sys.stdin.isatty() and sys.stderr.isatty()
    for name in names:
        entry = store.resolve(name, models_file)
        where = store.find(entry)
        if (
            may_ask
            and where
            and not entry.path
            and not click.confirm(f"Remove {entry.name}, {where}?", err=True)
        ):
            continue
        try:
            freed = store.remove(entry)
        except NotDownloadedError:
            raise StoreError(
                entry.name,
                f"{entry.name} is not on this disk, so there is nothing to remove.",
                "gguf-spec models list --cached shows the models on this disk.",
            ) from None
        removed.append({"name": entry.name, "freed_bytes": freed})
        if not as_json:
            left = (
                f"{store.format_bytes(freed)} were freed"
                if freed
                else "no space was freed, because another revision has the same file"
            )
            click.echo(f"{entry.name}: removed, {left}")
    if as_json:
        _print({"models": removed})
    return 0


def _facts(entry: Entry, path: Path | None) -> dict[str, Any]:
    """Return the known facts of a model, for --json."""
    from ..models import verified

    return {
        "name": entry.name,
        "aliases": list(entry.aliases),
        "repo": entry.repo,
        "revision": entry.revision,
        "files": [
            {"file": part.file, "size_bytes": part.size_bytes, "sha256": part.sha256}
            for part in entry.parts
        ],
        "size_bytes": entry.size_bytes,
        "license": entry.license,
        "permissive": entry.permissive,
        "context": entry.context,
        "tokenizer": entry.tokenizer,
        "chat": entry.chat,
        "draft": entry.draft,
        "prompt": entry.prompt,
        "sampling": dict(entry.sampling),
        "note": entry.note,
        "path": None if path is None else str(path),
        "verified": verified(entry),
    }


def _result(pulled: Pulled) -> dict[str, Any]:
    paths = [str(path) for path in pulled.paths]
    return {
        "name": pulled.name,
        "paths": paths,
        "n_bytes": pulled.n_bytes,
        "loaded_bytes": pulled.loaded_bytes,
        "verified": pulled.verified,
    }


def _print(data: dict[str, Any]) -> None:
    click.echo(json.dumps(data, ensure_ascii=False, allow_nan=False))
