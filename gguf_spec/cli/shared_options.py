"""Options that several commands have with the same meaning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..options import POOLING
from .parameters import Layers

Decorator = Callable[[Any], Any]

models_file_option: Decorator = click.option(
    "--models-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with more model names, in the format of models.yaml.",
)
yes_option: Decorator = click.option(
    "-y", "--yes", is_flag=True, help="Download a missing model without a question."
)
offline_option: Decorator = click.option(
    "--offline", is_flag=True, help="Do not offer to download a model."
)
threads_option: Decorator = click.option(
    "--threads", type=int, help="Number of threads.  [default: physical cores]"
)
gpu_layers_option: Decorator = click.option(
    "--gpu-layers",
    type=Layers(),
    default=-1,
    help="Layers to offload to the GPU; -1 for all, if llama.cpp has a GPU backend; auto for as "
    "many as fit.",
)
pooling_option: Decorator = click.option(
    "--pooling",
    type=click.Choice(POOLING),
    help="How embeddings are pooled; none gives a row for each token.  "
    "[default: as the file says, else mean]",
)
verbose_option: Decorator = click.option(
    "-v",
    "--verbose",
    count=True,
    help="Show llama.cpp's log; -vv also shows tracebacks of errors.",
)


def json_option(what: str = "") -> Decorator:
    """Return the option `--json`.

    Args:
        what: End of its help, such as "instead of the table"; empty where JSON replaces nothing.
    """
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        envvar="GGUF_SPEC_JSON",
        help=f"Print one JSON object {what}".rstrip() + ".",
    )


def output_options(command: Any) -> Any:
    """Add the options of commands that write a GGUF file."""
    command = click.option("-q", "--quiet", is_flag=True, help="Write only errors.")(command)
    return click.option("--force", is_flag=True, help="Replace OUT.gguf if it exists.")(command)
