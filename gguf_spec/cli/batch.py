"""`gguf-spec batch`: answer a file of requests."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from ..options import SAMPLING, Sampling
from .command import CONTROL, Command, flag, option
from .options import (
    SAMPLING_PARAMETERS,
    at_once,
    is_given,
    load_models,
    model_options,
    sampling_options,
    server_option,
    speculation_options,
    table_option,
    think_option,
    to_sampling,
    to_speculation,
    with_file_values,
)
from .output import StatusLine

if TYPE_CHECKING:
    from ..batch import Batch, BatchProgress, LineDefaults
    from .options import AnyLLM

_MOST_NOTES = 20  # lines with an error that are named
# Options of the models that texts depend on, beside the file of the target.
_DECIDE = ("kv_type", "lora", "flash_attention")
# seconds; nobody reads the streams of a batch, so prompts are read in long pieces
_MAX_GAP_S = 60.0


@click.command(
    cls=Command, usual="model draft parallel system max_tokens temperature seed ctx quiet"
)
@click.argument("source", metavar="IN.jsonl", type=click.Path(path_type=Path, allow_dash=True))
@click.argument("target", metavar="OUT.jsonl", type=click.Path(path_type=Path, allow_dash=True))
@partial(model_options, chat=True)
@table_option("parallel")
@table_option("prefix_memory")
@table_option("draft_texts", default="disk")
@speculation_options
@sampling_options
@option(
    "--raw/--chat raw",
    "Continue the prompts of plain lines, or answer them with the chat template.  "
    "[default: by model]",
    default=None,
)
@option("-s --system", "System message of plain lines without one; implies --chat.")
@table_option("overflow")
@think_option
@server_option
@flag("-q --quiet", "Write only errors.")
def batch(source: Path, target: Path, quiet: bool, **options: Any) -> int:
    """Answer each line of IN.jsonl, in the same order, in OUT.jsonl.

    A line of IN.jsonl is a request in the format of OpenAI's batches, or a plain one with "prompt"
    or "messages", and optionally "id" and sampling fields. - is the standard input or output. If
    OUT.jsonl exists, its results are kept, and the batch continues behind them: after an
    interruption, repeat the command. With --seed, each line has its own seed, made from it and the
    number of the line.

    Both files can be .csv: IN.csv has the columns "prompt", perhaps "id" and options, and others;
    OUT.csv has them all, "text", "finish_reason" and "error", once all rows have a result. Until
    then results are in OUT.csv.jsonl.

    \b
    Examples:
      gguf-spec batch requests.jsonl results.jsonl
      gguf-spec batch requests.jsonl results.jsonl -m qwen2.5-1.5b --parallel 8 --seed 1
      echo '{"prompt": "Why is the sky blue?"}' | gguf-spec batch - -
    Every option can also be set as GGUF_SPEC_OPTION in the environment.
    """
    if options["system"] is not None and options["raw"]:
        raise click.UsageError("--system needs the chat template, which --raw does not use.")
    from ..batch import Batch

    given = sys.stdin.buffer if str(source) == "-" else source
    results: Path | BinaryIO = sys.stdout.buffer if str(target) == "-" else target
    sampling, speculation = to_sampling(options, overflow=True), to_speculation(options)
    options["max_gap"] = None if options["parallel"] == 1 else _MAX_GAP_S
    with Batch(given, results) as run, load_models(options, speculation) as llm:
        if options["verbose"]:
            click.echo(f"{llm.name}: {at_once(llm)}", err=True)
        return _run(run, llm, _defaults(llm, with_file_values(sampling, llm), options), quiet)


def _defaults(llm: AnyLLM, sampling: Sampling, options: dict[str, Any]) -> LineDefaults:
    from ..batch import LineDefaults

    given = [name for name in SAMPLING if is_given(SAMPLING_PARAMETERS.get(name, name))]
    raw, system = options["raw"], options["system"]
    is_chat = system is not None or raw is False or (raw is None and llm.prompt == "chat")
    others = {name: options[name] for name in _DECIDE} | {"chat": is_chat}
    think = options["think"]
    return LineDefaults(sampling, frozenset(given), is_chat, system or None, think, others)


def _run(run: Batch, llm: AnyLLM, defaults: LineDefaults, quiet: bool) -> int:
    line, n_noted = StatusLine(in_pipe=True), 0

    def note(number: int, fault: str) -> None:
        nonlocal n_noted
        n_noted += 1
        if n_noted <= _MOST_NOTES:
            line.remove()
            click.echo(f"Note: line {number:,}: {fault.translate(CONTROL)}", err=True)
        if n_noted == _MOST_NOTES:
            click.echo("Note: further lines with an error are not named here.", err=True)

    show = None if quiet else lambda now: line.show(state(now))
    try:
        with line:
            end = run.run(llm, defaults, on_progress=show, on_failed=None if quiet else note)
    except KeyboardInterrupt:
        message = f"Interrupted: {summary(run.progress)}\nRepeat the command to continue."
        click.echo(message, err=True)
        return 130
    if not quiet:
        click.echo(summary(end), err=True)
    return int(end.n_failed > 0)


def state(now: BatchProgress) -> str:
    total = "" if now.n_lines is None else f" of {now.n_lines:,}"
    left = f", {duration(now.seconds_left)} left" if now.seconds_left is not None else ""
    failed = f", {now.n_failed:,} failed" if now.n_failed else ""
    return f"{now.n_done:,}{total} lines{failed}, {now.tokens_per_s:,.1f} tok/s{left}"


def summary(end: BatchProgress) -> str:
    total = "" if end.n_lines in (None, end.n_done) else f" of {end.n_lines:,}"
    before = f" ({end.n_before:,} of them before)" if end.n_before else ""
    failed = f", {end.n_failed:,} of them an error" if end.n_failed else ""
    text = f"{end.n_done:,}{total} lines have a result{before}{failed}"
    if end.n_done == end.n_before:
        return f"{text}."
    in_time = f"{end.n_tokens:,} tokens in {duration(end.seconds)}"
    cut = f" {end.n_cut:,} were cut at -n or a full context." if end.n_cut else ""
    return f"{text}: {in_time}, {end.tokens_per_s:,.1f} tok/s.{cut}"


def duration(seconds: float) -> str:
    """Return a time such as `42 s`, `7 min` or `3 h 20 min`."""
    if seconds < 100:
        return f"{seconds:.{1 if seconds < 10 else 0}f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60:,} h {minutes % 60} min"
