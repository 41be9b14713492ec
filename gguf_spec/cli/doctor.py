"""`gguf-spec doctor` and `gguf-spec tune`: check the machine and the models, and measure them."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import GgufSpecError
from .command import Command, as_called, flag, json_option
from .download import at_terminal
from .error_text import in_command
from .options import load_arguments, load_models, model_options, own, with_measured_model
from .output import columns_of, counted, fitted, print_json

if TYPE_CHECKING:
    from ..doctor import Check
    from ..tune import Tuning

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
_INDENT = 19  # width of the columns for status and name, in characters


@click.command(cls=Command)
@partial(model_options, measured=True, download=False)
@flag("--online", "Check whether the hub responds; without this option no request is made.")
@flag(
    "--read-all",
    "Read the files of the models completely, and compare their sha256 where it is known.",
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
      gguf-spec doctor -m target.gguf --read-all
    """
    from ..doctor import context_options, drivers
    from ..doctor import doctor as run

    given = load_arguments(options | {"chat_template_file": None}, options["draft"])
    how, of_draft = context_options(**given)
    if not drivers(how):  # the default model depends on llama.cpp
        options = with_measured_model(options)
    diagnosis = run(
        options["model"],
        options["draft"],
        how,
        draft_options=of_draft,
        reference=options["draft_text"],
        models_file=options["models_file"],
        online=options["online"],
        mmproj=options["mmproj"],
        reads_all=options["read_all"],
    )
    checks = (
        replace(check, found=in_command(check.found), todo=in_command(check.todo))
        for check in diagnosis.checks
    )
    diagnosis = replace(diagnosis, checks=tuple(checks))
    if options["as_json"]:
        print_json(diagnosis.to_dict())
        return 0 if diagnosis.ok else 1
    lines = [line for check in diagnosis.checks for line in _lines(check)]
    if tuning := diagnosis.tuning:
        lines += ["", *(cost_lines(tuning) if options["verbose"] else wrapped(tuning.sentence))]
    click.echo(as_called("\n".join([*wrapped(diagnosis.sentence), "", *lines])))
    return 0 if diagnosis.ok else 1


def _lines(check: Check) -> list[str]:
    first, *rest = wrapped(check.found, _INDENT)
    status = click.style(f"{check.status:<6}", fg=_COLOURS[check.status])
    lines = [f"{status}{check.name:<{_INDENT - 6}}{first}", *rest]
    if check.todo:
        first, *rest = wrapped(f"-> {check.todo}", _INDENT)
        lines += [" " * _INDENT + first, *rest]
    return lines


# Widths of the passes in the table, in tokens; --json has all widths.
_SHOWN = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 33)


@click.command(cls=Command)
@partial(model_options, measured=True)
@json_option("instead of the table")
def tune(**options: Any) -> None:
    """Measure the cost of these models on this machine, and save the result.

    Times passes of both models over 1 to 33 tokens, at the start of a context and far into one, and
    measures the agreement of the draft with the target. Without it the first answers show them;
    this command takes longer and is more exact. Run it when the machine is idle.

    \b
    Examples:
      gguf-spec tune
      gguf-spec tune -m target.gguf -d draft.gguf
      gguf-spec tune -m target.gguf -d draft.gguf --threads 4 --json
    """
    from .. import Speculation
    from ..tune import tune as run

    # Without speculation, so that the load measures nothing.
    with (
        own(load_models(with_measured_model(options), Speculation(0), options["draft"])) as llm,
        counted("measuring", "passes") as progress,
    ):
        tuning = run(llm, progress=progress)
    if not tuning.kept:
        note = "Note: the result cannot be saved; `gguf-spec doctor` shows the reason."
        click.echo(as_called(note), err=True)
    if options["as_json"]:
        print_json(tuning.to_dict())
    else:
        click.echo(as_called("\n".join(cost_lines(tuning))))


def cost_lines(tuning: Tuning) -> list[str]:
    """Return the lines of the summary, the cost table and the other measurements."""
    profile = tuning.profile
    target, draft = _column(profile.target), _column(profile.draft)
    widths = [n for n in _SHOWN if n in profile.target]
    names = f"{tuning.target} with {tuning.draft}" if tuning.draft else tuning.target
    head = f"{'tokens in a pass':>16}{'target ms':>12}{'a token':>10}"
    head += f"{'draft ms':>12}" if draft else ""
    measured = f"{names}, measured in {profile.seconds:.1f} s"
    lines = [*wrapped(tuning.sentence), "", *wrapped(measured), ""]
    each = _column({n: s / n for n, s in profile.target.items()}, of=profile.target[1])
    gap = "-" if draft else ""
    rows = (f"{n:>16}{target[n]:>12}{each[n]:>10}{draft.get(n, gap):>12}" for n in widths)
    lines += fitted([head, *map(str.rstrip, rows)])
    noise = "none: passes of all widths give the same logits"
    if any(profile.noise.values()):
        noise = f"up to {max(profile.noise.values()):.2g} logits in wider passes"
    facts = {
        "context": f"1,000 tokens add {_context_cost(tuning.target_depth_s)}",
        "draft context": f"1,000 tokens add {_context_cost(tuning.draft_depth_s)}",
        "exact passes": in_command(profile.exact_passes),
        "rounding noise": noise,
        "draft": f"right in {sum(h for h, _ in profile.right):.0f} "
        f"of {sum(n for _, n in profile.right):.0f} places ({profile.agreement:.0%})",
        "Python": f"{profile.token_s * 1000:.2f} ms a token, "
        f"{profile.proposal_s * 1000:.2f} ms a draft token",
    }
    if not tuning.draft:
        del facts["draft"], facts["draft context"]
        facts["Python"] = facts["Python"].split(",")[0]
    return [*lines, "", *(line for one in facts.items() for line in _fact(*one))]


def _fact(name: str, fact: str) -> list[str]:
    first, *rest = wrapped(fact, 16)
    return [f"{name:<16}{first}", *rest]


def _context_cost(depth_s: Callable[[int], float]) -> str:
    """Return the time that 1,000 cached tokens add to passes of 1 and of 8 rows."""
    from ..tune import milliseconds

    of_one, of_eight = (milliseconds(depth_s(n_rows) * 1000) for n_rows in (1, 8))
    return f"{of_one} (1 row), {of_eight} (8 rows)"


def _column(seconds: Mapping[int, float], of: float | None = None) -> dict[int, str]:
    """Format times in milliseconds.

    Args:
        seconds: Width of a pass in tokens -> time in seconds.
        of: Time that determines the number of digits; None takes the time of one token.
    """
    first = of or seconds.get(1, 0.0)
    digits = 0 if first >= 0.1 else 1 if first >= 0.01 else 2
    return {n: f"{s * 1000:,.{digits}f}" for n, s in seconds.items()}


def wrapped(text: str, indent: int = 0) -> list[str]:
    """Wrap a text to the width of the terminal.

    Without a terminal, the text stays in one line.
    """
    if (columns := columns_of()) is None:
        return [text]
    width = max(40, columns)
    first, *rest = textwrap.wrap(
        as_called(text), width - indent, break_long_words=False, break_on_hyphens=False
    ) or [""]
    return [first, *(" " * indent + line for line in rest)]


@click.command(cls=Command)
@flag("-y --yes", "Remove it without a question.")
def uninstall(yes: bool) -> int:
    """Remove what this program has written: models, chats, settings, measurements.

    Files that you named are not touched, nor models of the hub, Ollama or LM Studio. The program
    itself stays; the last line says how to remove it.

    \b
    Examples:
      gguf-spec uninstall
      gguf-spec uninstall --yes
    """
    from ..doctor import own_folders
    from ..models import find, format_bytes, list_models
    from ..server import running_servers

    if servers := running_servers():
        fact = f"a server of yours runs at {servers[0].url}."
        raise GgufSpecError(fact, f"end it first: kill {servers[0].pid}.")
    found = own_folders()
    for contents, folder, n_bytes in found:
        click.echo(f"{folder}: {contents}, {format_bytes(n_bytes)}")
    own = {folder for _, folder, _ in found}
    files = {one.name: find(one) for one in list_models() if one.repo}
    kept = [name for name, file in files.items() if file and own.isdisjoint(file.parents)]
    if kept:
        text = f"The hub's cache keeps {', '.join(kept)}; gguf-spec models remove NAME removes one."
        click.echo(as_called(text))
    if found and not (yes or (at_terminal() and click.confirm("Remove these folders?"))):
        click.echo("Nothing was removed. --yes removes them without a question.", err=True)
        return 1
    for _, folder, _ in found:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise click.FileError(str(folder), error.strerror) from None
    click.echo("Removed." if found else "There is nothing to remove.")
    package = Path(__file__).parents[1]
    is_clone = (package.parent / "scripts" / "run").exists()
    last = f"remove {package.parent}" if is_clone else "pip uninstall gguf-spec"
    click.echo(f"The program itself: {last}")
    return 0
