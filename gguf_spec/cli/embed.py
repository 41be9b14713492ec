"""`gguf-spec embed`: compute the embeddings of texts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..options import Speculation
from .command import Command, file_option, option
from .completion import model_names
from .options import (
    STDIN,
    ModelName,
    load_models,
    models_file_option,
    offline_option,
    own,
    read_text,
    table_option,
    verbose_option,
    yes_option,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@click.command(cls=Command)
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@option(
    "-m --model",
    "Model: a name (gguf-spec models list), a GGUF file, or OWNER/REPO[:QUANT].",
    required=True,
    shell_complete=model_names,
    type=ModelName(),
)
@file_option(
    "-f --file",
    "Embed each line of a file that is not empty. Repeatable.",
    multiple=True,
    metavar=None,
)
@table_option("pooling")
@option("--normalize/--no-normalize", "Scale each embedding to the length 1.", default=True)
@models_file_option
@yes_option
@offline_option
@table_option("n_ctx", help="Longest text in tokens.  [default: as trained, at most 4096]")
@table_option("threads")
@table_option(
    "flash_attention", help="Flash attention. auto uses it for long texts, to save memory."
)
@table_option("gpu_layers")
@table_option("device")
@table_option("lora", help="LoRA adapter; the default of SCALE is 1. Repeatable.")
@verbose_option
def embed(texts: tuple[str, ...], **options: Any) -> None:
    """Compute the embeddings of texts: one line of JSON each, an array of numbers.

    Without TEXT and --file each line of the standard input is a text.

    \b
    Examples:
      gguf-spec embed -m bge-small.gguf "How are embeddings made?"
      gguf-spec embed -m bge-small.gguf -f sentences.txt > vectors.jsonl
      cat sentences.txt | gguf-spec embed -m chat-model.gguf --pooling last
    """
    given = _texts(texts, options["file"])
    options["draft"] = "none"
    with own(load_models(options, Speculation(0))) as llm:
        for vector in llm.embed(given, normalize=options["normalize"]):
            click.echo(json.dumps(_numbers(vector), allow_nan=False))


def _texts(texts: tuple[str, ...], files: tuple[Path, ...]) -> list[str]:
    """Return the texts of the arguments, then those of files or else of the standard input.

    Raises:
        click.UsageError: No text is given.
        click.FileError: A file cannot be read.
    """
    lines = [line for file in files for line in read_text(file).splitlines()]
    if not (texts or files):
        if sys.stdin is None or sys.stdin.isatty():
            fact = "there is no text; write it as an argument, use --file FILE, or use a pipe."
            raise click.UsageError(fact)
        lines = read_text(STDIN).splitlines()
    found = [*texts, *(line for line in lines if line.strip())]
    if not found:
        raise click.UsageError("there is no text: all lines are empty.")
    return found


def _numbers(values: NDArray[np.float32]) -> Any:
    """Return the shortest numbers that are equal to the values in 32 bits."""
    if values.ndim > 1:
        return [_numbers(row) for row in values]
    return [float(text) for text in values.astype("U32")]
