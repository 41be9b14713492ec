"""`gguf-spec doctor`: check the installation, the machine and the models."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ..load_options import PLACEMENT
from .command import Command
from .error_text import in_command
from .options import json_option, model_options
from .tune import cost_lines, wrapped

if TYPE_CHECKING:
    from ..doctor import Check

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
_INDENT = 19  # width of the columns for status and name, in characters


@click.command(cls=Command)
@partial(model_options, download=False)
@click.option(
    "--online",
    is_flag=True,
    help="Check whether the hub responds; without this option no request is made.",
)
@json_option("instead of the table")
def doctor(**options: Any) -> int:
    """Check this installation, this machine and the models; report problems and their fixes.

    Shows the measured cost of passes of the models, if there is one. Exits with 1 if a check fails.

    \b
    Examples:
      gguf-spec doctor
      gguf-spec doctor -m target.gguf -d draft.gguf --ctx 8192
      gguf-spec doctor --online --json
    """
    from ..doctor import ContextOptions, adapters, read_placement
    from ..doctor import doctor as run

    how = ContextOptions(
        options["ctx"],
        options["threads"],
        options["flash_attention"],
        options["kv_type"],
        options["gpu_layers"],
        options["extra_bufts"] is not False,
        options["verbose"] > 0,
        adapters(options["lora"]),
        rpc=options["rpc"],
        placement=read_placement(**{name: options[name] for name in PLACEMENT}),
    )
    of_draft = how.for_draft(
        options["draft_flash_attention"],
        options["draft_kv_type"],
        options["draft_gpu_layers"],
        adapters(options["draft_lora"], "draft_lora"),
        options["draft_threads"],
        options["draft_device"],
    )
    diagnosis = run(
        options["model"],
        options["draft"],
        how,
        draft_options=of_draft,
        reference=options["draft_text"],
        models_file=options["models_file"],
        online=options["online"],
        mmproj=options["mmproj"],
    )
    checks = (_in_command(check) for check in diagnosis.checks)
    diagnosis = replace(diagnosis, checks=tuple(checks))
    if options["as_json"]:
        click.echo(json.dumps(diagnosis.to_dict(), ensure_ascii=False, allow_nan=False))
        return 0 if diagnosis.ok else 1
    lines = [line for check in diagnosis.checks for line in _lines(check)]
    if diagnosis.tuning:
        lines += ["", *cost_lines(diagnosis.tuning)]
    click.echo("\n".join([*lines, "", *wrapped(diagnosis.sentence)]))
    return 0 if diagnosis.ok else 1


def _in_command(check: Check) -> Check:
    """Return a check whose texts have the options of this command."""
    return replace(check, found=in_command(check.found), todo=in_command(check.todo))


def _lines(check: Check) -> list[str]:
    """Return the lines of a check, followed by its fix, if any."""
    first, *rest = wrapped(check.found, _INDENT)
    status = click.style(f"{check.status:<6}", fg=_COLOURS[check.status])
    todo = (
        [
            f"{'':>{_INDENT}}{line}" if not i else line
            for i, line in enumerate(wrapped(f"-> {check.todo}", _INDENT))
        ]
        if check.todo
        else []
    )
    return [f"{status}{check.name:<{_INDENT - 6}}{first}", *rest, *todo]
