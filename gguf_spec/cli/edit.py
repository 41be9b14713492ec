"""`gguf-spec edit`: change a text file as an instruction says."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..options import Sampling, Speculation
from . import ctrl_c
from .command import Command
from .edit_prompt import EditPrompt
from .edit_screen import EditScreen
from .options import json_option, load_models, model_options, offline_option, table_option
from .progress import PromptBar
from .render import CONTROL, answer_json, stats_lines
from .text_file import TextFile

if TYPE_CHECKING:
    from .. import LLM, Completion, Stats

_N_PLAIN = 8  # tokens of plain decoding that are timed for comparison


@click.command(
    cls=Command,
    usual=(
        "yes", "diff_only", "output", "model", "draft", "max_tokens", "temperature", "ctx",
        "stats", "as_json",
    ),
    own_defaults=("temperature", "draft", "max_tokens"),
    context_settings={"default_map": {"draft": "ngram"}},
)  # fmt: skip
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("instruction")
@click.option(
    "-y",
    "--yes",
    is_flag=True,
    help="Write the file, and download a missing model, without a question.",
)
@click.option("--diff", "diff_only", is_flag=True, help="Only show the changes; write nothing.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Write the new text to another file, or - for the standard output.",
)
@click.option(
    "-n",
    "--max-tokens",
    type=int,
    help="Maximum length of the new text in tokens.  [default: twice that of the file]",
)
@click.option(
    "-t",
    "--temperature",
    type=float,
    default=0.0,
    help="Sampling temperature; 0 always takes the most likely token.",
)
@table_option("seed")
@partial(model_options, chat=True, download=False)
@offline_option
@table_option("k")
@click.option("--stats", is_flag=True, help="Show speed and acceptance, on stderr.")
@json_option("instead of the changes")
def edit(file: Path, instruction: str, **options: Any) -> int:
    """Change a text file as an instruction says.

    The model writes the new text, and most of it is drafted from the old one, so that unchanged
    parts cost little time. Then the changes are shown, and a question asks whether to write them.
    Without a terminal nothing is written unless --yes or --output says so. The file is replaced at
    once or not at all.

    Small models make mistakes: read the changes.

    \b
    Examples:
      gguf-spec edit config.json "rename the key host to hostname"
      gguf-spec edit notes.md "correct the spelling" --diff
      gguf-spec edit letter.txt "make it friendlier" --output friendly.txt
    """
    _check(instruction, options)
    source = TextFile(file)
    sampling = Sampling(temperature=options["temperature"], seed=options["seed"])
    speculation = _speculation(options)
    with load_models(options, options["draft"] if speculation.k else "none", speculation) as llm:
        prompt = EditPrompt(llm, source.text, instruction, source.path.name)
        sampling = prompt.limited(sampling, options["max_tokens"])
        result = _write(llm, prompt, sampling, quiet=options["as_json"])
        if options["stats"]:
            click.echo(stats_lines(result.stats, result.seed), err=True)
        if result.finish_reason == "cancelled":
            click.echo("Nothing was written.", err=True)
            return 130
        new = prompt.text_of(result)
        facts = answer_json(llm, result, llm.speculation.k, False)
    return _finish(source, new, facts, options)


def _check(instruction: str, options: dict[str, Any]) -> None:
    """Check what needs no model."""
    from ..errors import InvalidOptionError

    if not instruction.strip():
        raise click.UsageError("INSTRUCTION is empty; say what to change.")
    if options["diff_only"] and (options["yes"] or options["output"]):
        raise click.UsageError("--diff writes nothing and cannot be combined with --yes, --output.")
    if options["max_tokens"] is not None and options["max_tokens"] < 1:
        raise InvalidOptionError("max_tokens", options["max_tokens"], "a whole number, 1 or more")


def _speculation(options: dict[str, Any]) -> Speculation:
    if options["draft"] == "none":
        return Speculation(k=0)
    return Speculation(k=options["k"])


def _write(llm: LLM, prompt: EditPrompt, sampling: Sampling, *, quiet: bool) -> Completion:
    """Generate the new text, and show it while it is written."""
    bar = PromptBar()
    screen = EditScreen(prompt.n_text, quiet=quiet)
    with (
        llm.stream(prompt.request, sampling, prefill=prompt.prefill, on_prompt=bar) as stream,
        ctrl_c.cancels(stream),
    ):
        try:
            with screen:
                for chunk in stream:
                    bar.remove()
                    screen.show(chunk.text, stream.stats)
        finally:
            bar.remove()
    result = stream.result
    screen.summary(result.stats, _plain(llm, prompt, result) if sys.stderr.isatty() else None)
    return result


def _plain(llm: LLM, prompt: EditPrompt, result: Completion) -> Stats | None:
    """Return the statistics of a few tokens of plain decoding behind the new text.

    They are measured in this process, now: what was measured before may be of a busier machine.
    Nothing is measured if no draft was accepted, or if the answer was short or stopped.
    """
    tokens = [*llm.tokenize(prompt.request, prefill=prompt.prefill), *result.tokens]
    is_worth = result.stats.n_accepted and result.stats.n_generated > 4 * _N_PLAIN
    if not is_worth or result.finish_reason != "stop" or len(tokens) + _N_PLAIN >= llm.n_ctx:
        return None
    sampling = Sampling(temperature=0, max_tokens=_N_PLAIN, ignore_eos=True)
    return llm.generate(tokens, sampling, speculation=Speculation(k=0)).stats


def _finish(source: TextFile, new: str, facts: dict[str, Any], options: dict[str, Any]) -> int:
    """Show the changes, and write the new text where it is wanted; return the exit code."""
    changes = _diff(source, new)
    output, is_written = options["output"], False
    if str(output) == "-":
        click.echo(source.encoded(new), nl=False)
        return 0
    if not options["as_json"]:
        _show(changes)
    if output is not None:
        source.write(new, output)
        is_written = True
    elif changes and not options["diff_only"] and _may_write(source, options):
        source.write(new)
        is_written = True
    if options["as_json"]:
        data = facts | {"text": new, "diff": "".join(changes), "written": is_written}
        click.echo(json.dumps(data, ensure_ascii=False, allow_nan=False))
    else:
        click.echo(_outcome(changes, is_written, output or source.path, options), err=True)
    return 0


def _may_write(source: TextFile, options: dict[str, Any]) -> bool:
    if options["yes"]:
        return True
    if options["as_json"] or not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return click.confirm(f"Write {source.path.name}?", err=True)


def _outcome(changes: list[str], is_written: bool, path: Path, options: dict[str, Any]) -> str:
    if is_written:
        return f"{path} was written."
    if not changes:
        return "The model changed nothing; nothing was written."
    if options["diff_only"] or (sys.stdin and sys.stdin.isatty()):
        return "Nothing was written."
    return "Nothing was written; --yes writes the changes."


def _diff(source: TextFile, new: str) -> list[str]:
    """Return the lines of a unified diff, each with its newline."""
    import difflib

    old_lines, new_lines = (text.splitlines(keepends=True) for text in (source.text, new))
    name = source.path.name
    lines: list[str] = []
    for line in difflib.unified_diff(old_lines, new_lines, f"a/{name}", f"b/{name}"):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return lines


_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def _show(changes: list[str]) -> None:
    """Print a diff; at a terminal in colours and without control characters."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    for line in changes:
        if is_terminal:
            text = line.translate(CONTROL)
            is_head = line.startswith(("---", "+++"))
            colour = None if is_head else _COLOURS.get(line[0])
            click.secho(text, nl=False, fg=colour, bold=is_head or None)
        else:
            click.echo(line, nl=False)
