"""Options that several commands have with the same meaning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Any], Any]

models_file_option: Decorator = click.option(
    "--models-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with more model names, in the format of models.yaml.",
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
