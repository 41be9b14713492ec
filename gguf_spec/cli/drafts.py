"""`gguf-spec models drafts`: list possible draft models of a model."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .command import Command
from .completion import model_names
from .error_text import in_command
from .options import json_option, models_file_option
from .render import CONTROL

if TYPE_CHECKING:
    from ..models import Candidate


@click.command(cls=Command, short_help="Compare the possible drafts of a model.")
@click.argument("target", shell_complete=model_names)
@models_file_option
@json_option("instead of the table")
def drafts(target: str, models_file: Path | None, as_json: bool) -> int:
    """List possible draft models, best first, and the reasons against the others.

    A prediction head in the target's file is called mtp. Searches models.yaml, the folder of the
    target, and the caches of the hub, llama.cpp, LM Studio and Ollama. Reads only headers, no
    weights. `-d auto` takes the first draft that is on this disk, but no head in a file of its own:
    `-d FILE` takes one. The gain is measured if
    `gguf-spec tune` or a load has measured the pair; otherwise it is estimated from the file sizes.

    \b
    Examples:
      gguf-spec models drafts smollm2
      gguf-spec models drafts ./target.gguf --json
    """
    from .. import models

    entry = models.resolve(target, models_file)
    found = [
        replace(one, why=in_command(one.why)) for one in models.find_drafts(entry, models_file)
    ]
    if as_json:
        listed = [
            {
                "name": one.name,
                "path": str(one.path) if one.path else None,
                "fits": one.fits,
                "gain": round(one.gain, 3) or None,
                "measured": one.measured,
                "declared": one.declared,
                "why": one.why,
            }
            for one in found
        ]
        click.echo(
            json.dumps(
                {"target": entry.name, "path": str(models.path(entry)), "drafts": listed},
                ensure_ascii=False,
            )
        )
        return 0
    click.echo("\n".join(_table(entry.name, found)).translate(CONTROL))
    return 0


def _table(target: str, found: list[Candidate]) -> list[str]:
    fitting, refused = (
        [one for one in found if one.fits],
        [one for one in found if not one.fits and one.path],
    )
    n_absent = len(found) - len(fitting) - len(refused)
    width = max([7, *(len(one.name) for one in [*fitting, *refused])])
    lines = (
        [f"{'draft':{width}}  {'gain':>5}  why"]
        if fitting
        else [f"No model on this disk or in models.yaml can draft for {target}."]
    )
    lines += [f"{one.name:{width}}  {one.gain:>5.2f}  {one.why}" for one in fitting]
    heads = [one.path for one in fitting if one.head and one.name != "mtp"]
    if heads:
        lines += ["", f"To use a head in a file of its own: -d {shlex.quote(str(heads[0]))}"]
    if refused:
        lines += [
            "",
            f"{'refused':{width}}  why",
            *(f"{one.name:{width}}  {one.why}" for one in refused),
        ]
    if n_absent:
        lines += [
            "",
            f"{n_absent} more models in models.yaml are not on this disk and, by their entries, "
            "cannot draft for it (--json lists them).",
        ]
    return lines
