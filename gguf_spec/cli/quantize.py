"""`gguf-spec models quantize`: write a model to a smaller file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..quantize import TYPES
from .command import Command
from .completion import model_names
from .options import json_option, models_file_option, output_options, table_option

if TYPE_CHECKING:
    from ..quantize import Quantized


@click.command(cls=Command, short_help="Write a model to a smaller file.")
@click.argument("model", shell_complete=model_names)
@click.argument("target", metavar="OUT.gguf", type=click.Path(path_type=Path))
@click.option("--type", "kind", required=True, metavar="TYPE", help=f"{', '.join(TYPES)}.")
@table_option("threads")
@output_options
@models_file_option
@json_option("instead of the line")
def quantize(model: str, target: Path, **options: Any) -> int:
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
    from ..models import path

    made = _run(path(model, options["models_file"]), target, options)
    if made.requantized and not options["quiet"]:
        click.echo(
            f"Note: {made.source.name} is already quantised, which lowers the quality; "
            "use a file in F32, F16 or BF16 if possible.",
            err=True,
        )
    if options["as_json"]:
        click.echo(json.dumps(made.to_dict(), ensure_ascii=False))
    elif not options["quiet"]:
        click.echo(_line(made))
    return 0


def _run(source: Path, target: Path, options: dict[str, Any]) -> Quantized:
    """Quantise the model, with a progress bar if stderr is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from ..quantize import quantize as run

    console = Console(stderr=True)
    columns = (
        TextColumn("quantising"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tensors"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=options["quiet"] or not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=None)
        return run(
            source,
            target,
            options["kind"],
            threads=options["threads"],
            force=options["force"],
            progress=lambda now: bar.update(task, completed=now.done, total=now.total),
        )


def _line(made: Quantized) -> str:
    from ..models import format_bytes

    others = (
        f", {made.n_fallback} of {made.n_tensors} tensors in a larger type, "
        "because blocks do not divide their rows"
        if made.n_fallback
        else ""
    )
    return (
        f"{made.target}: {made.type}, {format_bytes(made.target_bytes)} "
        f"instead of {format_bytes(made.source_bytes)}, "
        f"{made.target_bits:.2f} bits per weight instead of {made.source_bits:.2f}, "
        f"in {made.seconds:.1f} s{others}"
    )
