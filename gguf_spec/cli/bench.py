"""`gguf-spec bench`: measure the speed of speculation and compare it with plain decoding."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from .command import Command, as_called, flag, json_option, option
from .doctor import wrapped
from .options import check_above_0, load_models, model_options, own, with_measured_model
from .output import columns_of, counted, fitted, print_json

if TYPE_CHECKING:
    from ..bench import Case, Report


# Fraction of the time limit for the useless draft; it has two of about thirty contenders.
_USELESS_SHARE = 0.15
_BAR = 40  # longest bar of a speedup, in characters
# Heads of the two tables, and formats of their rows: no line is wider than 80 columns.
_HEADS = (
    ("workload", "plain", "adaptive", "x plain", "best fixed", "fixed x plain", "of best"),
    ("workload", "spread", "predicted", "in all", "accepted", "1st token"),
)
_COLUMNS = ("{:<17}{:>8}{:>10}{:>9}{:>12}{:>15}{:>9}", "{:<17}{:>13}{:>11}{:>9}{:>10}{:>12}")


@click.command(cls=Command)
@partial(model_options, measured=True)
@option(
    "-w --workload",
    "story, repetitive, copy, chat, long, short, or a long workload. Repeatable.  "
    "[default: these six]",
    multiple=True,
)
@flag(
    "--long",
    "Run the long workloads: document, rewrite, json, turn20 and code, each -1k and -4k. "
    "Takes hours on a large model.",
)
@option(
    "--runs", "Runs of each setting on each workload.  [default: 3, or 1 with --quick]", type=int
)
@option(
    "-n --max-tokens",
    "Length of an answer in tokens.  [default: 128; chat 64, short 16; --quick 32]",
    type=int,
)
@flag("--quick", "Run few fixed settings, with short answers and greedy decoding only.")
@option("--useless", "Draft model with random weights, to measure the worst case.", metavar="FILE")
@option("--seed", "Seed of the first text.", default=1)
@option("--minutes", "Time limit in minutes; no further run starts after it.", type=float)
@json_option("with all runs instead of the tables")
def bench(**options: Any) -> None:
    """Compare the speed of adaptive drafting, plain decoding and fixed settings.

    The comparison is for these models on this machine. All settings run the same work with the
    same seeds, in turn. Each run is compared with the plain runs of its own round. Fixed settings
    that are much slower than the best one run only once. Do not use the machine for other work
    during the benchmark.

    Long workloads have prompts of 1,000 and 3,900 tokens of real text, which each setting reads.
    With them only a few fixed settings are tried.

    \b
    Examples:
      gguf-spec bench --quick
      gguf-spec bench -m target.gguf -d draft.gguf --minutes 30 --json > bench.json
      gguf-spec bench -m target.gguf -d draft.gguf --workload copy --workload story --runs 5
      gguf-spec bench -m target.gguf -d draft.gguf --workload document-4k --workload code-1k --quick
    """
    check_above_0(options, "runs", "max_tokens", "minutes")
    report = _run(with_measured_model(options))
    if options["as_json"]:
        print_json(report.to_dict(), allow_nan=True)
    else:
        _show(report, options["verbose"] > 0)


def _run(options: dict[str, Any]) -> Report:
    """Measure the models with the useless draft if one is given, then with their own draft."""
    from .. import Speculation
    from ..bench import bench as run
    from ..bench import choose_workloads
    from ..models import resolve

    # Raise errors in the options before a model is loaded.
    choose_workloads(options["workload"], options["long"])
    if options["useless"]:
        resolve(options["useless"])
    settings = {name: options[name] for name in ("quick", "long", "seed")}
    settings |= {"n_rounds": options["runs"], "n_tokens": options["max_tokens"]}
    limit_s = None if options["minutes"] is None else 60 * options["minutes"]
    started = time.monotonic()

    def timed(draft: str, what: str, limit_s: float | None, useless: bool = False) -> Report:
        with (
            own(load_models(options, Speculation(), draft)) as llm,
            counted(what, "runs") as progress,
        ):
            settings["limit_s"] = limit_s
            return run(llm, options["workload"], **settings, useless=useless, progress=progress)

    worst = None
    if options["useless"]:  # first, because it is short and reports an invalid file early
        share_s = None if limit_s is None else _USELESS_SHARE * limit_s
        worst = timed(options["useless"], "timing the useless draft", share_s, useless=True)
    left_s = None if limit_s is None else limit_s - (time.monotonic() - started)
    report = timed(options["draft"], "timing", left_s)
    return report.with_useless(worst) if worst else report


def impossible(case: Case) -> str:
    """Return a note where drafts cannot give the speed-up: each accepted token saves one pass."""
    most = max(run.n_tokens / max(1, run.n_tokens - run.n_accepted) for run in case.adaptive.runs)
    if case.adaptive.speedup.median <= 1.2 * most:
        return ""
    return f" (drafts give at most {most:.2f}: other programs ran)"


def _show(report: Report, tables: bool) -> None:
    """Print the report: the summary, a bar per case, and the tables if they are wanted."""
    m = report.machine
    draft = f"with {report.draft}" if report.draft else "drafting from the text alone"
    speedups = {case.name: case.adaptive.speedup.median for case in report.cases}
    bar = max(5, min(_BAR, (columns_of() or 80) - 26))
    unit = bar / max(speedups.values())
    lines = [*wrapped(report.sentence), ""]
    lines += [
        f"{case.name:<17}{'#' * round(unit * (x := speedups[case.name])):<{bar}} {x:.2f} x"
        f"{impossible(case)}"
        for case in report.cases
    ]
    if not report.is_complete:
        lines.append("The time limit ended the benchmark early (--minutes).")
    if not report.useless:
        lines.append("The worst case was not measured; --useless FILE measures it.")
    lines += [
        "",
        f"{report.target} {draft}, {report.total_s:.0f} s",
        f"{m.cpu}, {m.cores} core{'s' * (m.cores > 1)}, "
        f"{m.threads} thread{'s' * (m.threads > 1)}, rounds: {report.n_rounds}",
    ]
    if not tables:
        click.echo(as_called("\n".join(lines)))
        return
    rows: list[list[tuple[str, ...]]] = [[_HEADS[0]], [_HEADS[1]]]
    for case in report.cases:
        ours, best = case.adaptive, case.best_fixed
        speedup = ours.speedup
        speeds = (
            case.name,
            f"{case.plain.of('tokens_per_s').median:.1f}",
            f"{ours.of('tokens_per_s').median:.1f}",
            f"{speedup.median:.2f}",
            best.contender.name,
            f"{best.speedup.median:.2f}",
            f"{case.of_best.median:.2f}",
        )
        details = (
            case.name,
            f"{speedup.least:.2f}-{speedup.most:.2f}",
            f"{ours.of('predicted').median:.2f}",
            f"{ours.speedup_in_all.median:.2f}",
            f"{ours.acceptance:.0%}",
            f"{1000 * ours.of('ttft_s').median:,.0f} ms",
        )
        rows[0].append(speeds)
        rows[1].append(details)
    for columns, cells in zip(_COLUMNS, rows, strict=True):
        lines += ["", *fitted([columns.format(*row) for row in cells])]
    lines += ["", "Tokens a second over those of plain decoding:", "", *all_ratios(report)]
    click.echo(as_called("\n".join(lines)))


def all_ratios(report: Report) -> list[str]:
    rows: list[tuple[str, list[str]]] = [("setting", [case.name for case in report.cases])]
    contenders = (result.contender.name for case in report.cases for result in case.results)
    for name in dict.fromkeys(contenders):
        results = [case.result(name) for case in report.cases]
        rows.append((name, [f"{one.speedup.median:.2f}" if one else "-" for one in results]))
    widths = [max(7, len(case.name) + 2) for case in report.cases]
    return fitted([
        f"{name:<24}{''.join(f'{cell:>{n}}' for cell, n in zip(cells, widths, strict=True))}"
        for name, cells in rows
    ])  # fmt: skip
