"""`gguf-spec verify`: check that speculation does not change the text of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .command import Command, as_called, file_option, flag, json_option, option
from .options import check_above_0, is_given, load_models, model_options, own, read_text
from .output import CountedLines, counted, fitted, print_json

if TYPE_CHECKING:
    from .. import LLM
    from ..verify import Difference, Report

_SHOWN = 20  # maximum number of differences in the output
_LONG_COUNT = 4  # default number of prompts with --long


@click.command(cls=Command)
@model_options
@file_option("-f --prompts", "File with one prompt per line.  [default: 10 bundled prompts]")
@option("-c --count", "Number of prompts; at most 50 of the bundled ones.", type=int)
@flag("--long", "Put 1,500 tokens before each prompt; the default of -c is then 4.")
@flag(
    "--quick",
    "Check a part of it, in about a minute with a 1.5B model; the report names what is left out.",
)
@flag(
    "--under-load",
    "Instead run all texts together, 8 at once or as many as fit into memory, and compare "
    "each with the text of the same request alone.",
)
@option(
    "-n --max-tokens", "Length of a text in tokens.  [default: 64, or 300 with --long]", type=int
)
@option("--draws", "Number of generations for each chi-square test.", default=1000)
@option("--seed", "Seed of the first text.", default=1)
@option(
    "--minutes", "Time limit in minutes; no further prompt or check starts after it.", default=10.0
)
@json_option("instead of the table")
def verify(**options: Any) -> int:
    """Compare speculation with plain decoding on these models and this machine.

    Continues each prompt without drafts, with drafts of 1, 3 and 7 tokens, with drafts from text
    and model, and with the default settings. Each of these runs with greedy decoding, with sampling
    and with penalties. With the same seed, all must give the same text. Without a draft model all
    drafts come from the text.

    Compares the logits of passes over several tokens with those of single tokens, and checks the
    contents of both caches. Also checks warm caches, restored sessions, long prompts, grammars,
    JSON schemas, log-probabilities and stop strings.

    For each acceptance rule and each kind of draft, the first tokens of many generations must
    follow the probabilities of llama.cpp's own samplers.

    With --under-load, none of this: requests with different drafts share the passes of the model,
    and each must give the text that it gives alone without drafts.

    Exits with 1 if anything differs beyond the rounding noise of this machine, or if that noise is
    larger than rounding can explain.

    \b
    Examples:
      gguf-spec verify
      gguf-spec verify -m target.gguf -d draft.gguf --count 10
      gguf-spec verify -m target.gguf --quick
      gguf-spec verify --long
      gguf-spec verify --under-load
      gguf-spec verify -m target.gguf -d draft.gguf --prompts my-prompts.txt --json
    """
    if options["quick"] and options["under_load"]:
        raise click.UsageError("--quick cannot be combined with --under-load.")
    check_above_0(options, "count", "max_tokens", "draws", "minutes")
    prompts = None
    if options["prompts"] is not None:
        prompts = [line for line in read_text(options["prompts"]).splitlines() if line.strip()]
    if not (is_given("model") or options["as_json"]):
        click.echo("Note: this checks a bundled test model; -m NAME checks another.", err=True)
    with _load(options) as llm:
        from ..verify import PROMPTS, bundled_prompts
        from ..verify import verify as run

        few = _LONG_COUNT if options["long"] else PROMPTS if prompts is None else None
        prompts = (bundled_prompts() if prompts is None else prompts)[: options["count"] or few]
        with counted("verifying", "generations") as progress:
            on_part = progress.part if isinstance(progress, CountedLines) else lambda _: None
            report = run(
                llm,
                prompts,
                n_tokens=options["max_tokens"],
                long=options["long"],
                under_load=options["under_load"],
                n_draws=options["draws"],
                seed=options["seed"],
                limit_s=60 * options["minutes"],
                quick=options["quick"],
                progress=progress,
                on_part=on_part,
            )
    if options["as_json"]:
        print_json(report.to_dict(), allow_nan=True)
    else:
        _show(report, prompts, options["quick"])
    return 0 if report.ok else 1


def _load(options: dict[str, Any]) -> LLM:
    """Load the models; under load for as many requests at once as fit into memory, at most 8."""
    from .. import Speculation
    from ..errors import NotEnoughMemoryError

    if not options["under_load"]:
        return own(load_models(options, Speculation()))
    from ..verify import PARALLEL

    n = PARALLEL
    while True:
        try:
            return own(load_models(options | {"parallel": n}, Speculation()))
        except NotEnoughMemoryError:
            if n == 2:
                raise
            n //= 2


def _show(report: Report, prompts: list[str], quick: bool) -> None:
    """Print the report: the summary, the differences, and the tables."""
    noise = "none: the passes in use give the logits of single-token passes"
    if report.noise:
        noise = f"up to {report.noise:.2g} logits"
    some = ""
    if report.n_prompts < len(prompts):
        some = f" of {len(prompts)}" + ("" if quick else ": the time limit ended it (--minutes)")
    lines = [report.sentence]
    lines += [_line(d, prompts[d.prompt]) for d in report.differences[:_SHOWN]]
    if len(report.differences) > _SHOWN:
        lines.append(f"... and {len(report.differences) - _SHOWN} more")
    lines += list(dict.fromkeys(report.cache_faults))[:_SHOWN]
    lines += [
        "",
        f"{report.target} with {report.draft or 'no draft'}, {report.n_tokens} tokens a text, "
        + (f"{report.n_parallel} requests at once, " if report.n_parallel > 1 else "")
        + f"{report.total_s:.0f} s",
        f"prompts        {report.n_prompts}{some}",
        f"rounding noise {noise}",
        "",
    ]
    texts = [
        f"{'texts':<12}{'drafter':<16}{'compared':>9}{'identical':>11}{'near ties':>11}"
        f"{'different':>11}{'accepted':>10}",
    ]
    for c in report.comparisons:
        texts.append(
            f"{c.sampling:<12}{c.drafter:<16}{c.n_texts:>9}{c.n_identical:>11}"
            f"{c.n_near_ties:>11}{c.n_different:>11}{c.acceptance:>10.0%}"
        )
    checks = [f"{'checks':<28}{'compared':>9}   result"]
    checks += [
        f"{check.name:<28}{check.n_cases:>9}   "
        f"{check.found if check.ok else 'WRONG: ' + check.faults[0]}"
        for check in report.checks
    ]
    lines += [*fitted(texts), "", *fitted(checks)]
    laws = [
        f"{'first tokens':<28}{'drawn':>9}{'drafted':>9}{'outcomes':>11}"
        f"{'chi-square':>12}{'p':>10}",
    ]
    for test in report.laws:
        statistic = "-" if test.chi_square is None else f"{test.chi_square:.1f}"
        laws.append(
            f"{test.accept:<28}{test.n_draws:>9}{test.n_drafted:>9}"
            f"{test.n_cells:>11}{statistic:>12}{test.p_value:>10.2g}"
        )
    if report.laws:
        lines += ["", *fitted(laws)]
    if report.left_out:
        lines += ["", f"left out: {', '.join(report.left_out)}"]
    click.echo(as_called("\n".join(lines)))


def _line(d: Difference, prompt: str) -> str:
    gap = "far apart" if d.gap is None else f"{d.gap:.4f} logits apart"
    start = prompt if len(prompt) <= 40 else prompt[:37] + "..."
    return (
        f"{d.sampling}, {d.drafter}, prompt {d.prompt + 1} {start!r}: "
        f"another token after {d.position}, {gap}{', a near tie' if d.near_tie else ''}"
    )
