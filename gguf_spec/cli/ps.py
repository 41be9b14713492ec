"""`gguf-spec ps`: the models that running servers hold in memory."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from .command import Command
from .render import CONTROL

_HEAD = ("MODEL", "SIZE", "CONTEXT", "UNLOADED IN", "SERVER", "PID")


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def ps(as_json: bool) -> int:
    """Show the models that running servers of this user hold in memory.

    \b
    Examples:
      gguf-spec ps
      gguf-spec ps --json
    """
    from ..server import running_servers

    servers = running_servers()
    if as_json:
        click.echo(json.dumps([asdict(server) for server in servers], ensure_ascii=False))
        return 0
    if not servers:
        click.echo("No server is running. `gguf-spec serve` starts one.", err=True)
        return 0
    rows = [_HEAD]
    for server in servers:
        rows += [(*_cells(model), server.url, str(server.pid)) for model in server.models]
        if not server.models:
            rows.append(("(none)", "", "", "", server.url, str(server.pid)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(line.rstrip().translate(CONTROL))
    return 0


def _cells(model: dict[str, Any]) -> tuple[str, str, str, str]:
    from ..models import format_bytes

    left = "in use" if model["busy"] else _duration(model["seconds_left"])
    return model["name"], format_bytes(model["size"]), f"{model['context_length']:,}", left


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"
