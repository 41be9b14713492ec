"""`verify` passes on the bundled pair; each planted bug is caught and reported."""

import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.cli import cli
from gguf_spec.errors import EmptyPromptError, InvalidOptionError
from gguf_spec.llama import own_kernels
from gguf_spec.llama.sequence import CachedSequence
from gguf_spec.results import Stats
from gguf_spec.speculative.acceptance import RULES, Rows
from gguf_spec.speculative.engine import RoundRule
from gguf_spec.verify import Comparison, Difference, Report, bundled_prompts, verify
from gguf_spec.verify.checks import (
    SAMPLINGS,
    TESTED_RULES,
    TEXT_WAYS,
    WAYS,
    ChiSquareTest,
    RequestChecks,
    TextChecks,
    chance_of_more,
    check_rows,
    chi_square,
    how_far,
    rules_of,
)
from tests.exactness.planted_bugs import BUGS, accept_always, keep_checks, rows_scaled


def kernels_row():
    return ["kernels"] if own_kernels.in_use().name else []


@pytest.mark.full
def test_it_passes_on_the_bundled_pair(tales, prompts):
    steps = []
    report = verify(
        tales,
        prompts[:3],
        n_tokens=24,
        n_draws=300,
        progress=steps.append,
    )
    assert report.ok, report.sentence
    assert (
        report.sentence
        == "Speculation does not change this model's output (45 of 45 texts identical)."
    )
    assert [
        (c.n_texts, c.n_identical, c.n_near_ties, c.n_different) for c in report.comparisons
    ] == [(3, 3, 0, 0)] * 15
    assert all(
        c.acceptance > 0.1 for c in report.comparisons if c.drafter != "auto"
    )  # which may draft nothing
    assert [distribution.accept for distribution in report.laws] == [*TESTED_RULES]
    assert [distribution.accept for distribution in report.laws][:3] == [
        "coupled",
        "rejection",
        "block",
    ]
    assert [distribution.n_draws for distribution in report.laws] == [300] * 3 + [150] * 4
    assert all(
        distribution.n_cells > 5 and distribution.n_drafted >= distribution.n_draws
        for distribution in report.laws
    )
    n_steps = 3 * 18 + 3 * 300 + 4 * 150 + 7
    assert steps == [("verify", i, n_steps, "generations") for i in range(1, n_steps + 1)]
    names = [
        "rows",
        "near ties",
        *kernels_row(),
        "warm caches",
        "sessions",
        "long prompts",
        "grammars",
        "JSON schemas",
        "log-probabilities",
        "stop strings",
    ]
    assert [check.name for check in report.checks] == names
    assert all(check.ok and check.n_cases for check in report.checks)
    assert "same bits in passes of up to 33" in report.checks[0].found


PARTS = {  # the check of single features that says it
    "a cache that is used again changes the text": "warm caches",
    "a restored session changes the text": "sessions",
    "texts within grammars differ": "grammars",
    "log-probabilities differ": "log-probabilities",
    "stop strings end texts elsewhere": "stop strings",
}


@pytest.mark.full
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(tales, prompts, monkeypatch, bug):
    """By the check that is made for it; all checks run in `test_a_planted_bug_ends_the_command_with_1`."""
    # the mistakes are in the rule in NumPy; those of the library are in kernels/test_sampling.py
    monkeypatch.setattr(CachedSequence, "kernels", None)
    bug(monkeypatch)
    distribution = BUGS[bug].removeprefix("first tokens under ").removesuffix(" do not follow")
    keep_checks(monkeypatch, {PARTS.get(BUGS[bug])}, {distribution})
    report = verify(tales, prompts[:2], n_tokens=24)
    monkeypatch.undo()
    assert not report.ok
    assert report.sentence.startswith("Speculation changes this model's output: ")
    assert BUGS[bug] in report.sentence


@pytest.mark.full
def test_a_planted_bug_ends_the_command_with_1(monkeypatch):
    accept_always(monkeypatch)
    args = ["verify", "--count", "1", "-n", "16", "--draws", "60", "--threads", "1"]
    run = CliRunner().invoke(cli, args, standalone_mode=False)
    assert run.return_value == 1
    first = run.stdout.splitlines()[0]
    wrong = r"Speculation changes this model's output: [0-9]+ of 15 texts differ; first tokens under coupled do not follow"
    assert re.match(wrong, first)
    assert "another token after" in run.stdout
    keep_checks(monkeypatch, (), {"coupled"})
    run = CliRunner().invoke(cli, [*args, "--json"], standalone_mode=False)
    assert run.return_value == 1
    report = json.loads(run.stdout)
    assert not report["ok"]
    assert re.match(
        wrong, report["sentence"]
    )  # how far `auto` drafts, and so how often it errs, is the clock's affair
    assert not any(d["near_tie"] for d in report["differences"])


@pytest.mark.full
def test_the_command_passes(tmp_path, monkeypatch):
    keep_checks(monkeypatch, {"grammars", "stop strings"}, {"coupled", "block"})
    file = tmp_path / "prompts.txt"
    file.write_text("Once upon a time\n\nThe old king\n", encoding="utf-8")
    run = CliRunner().invoke(
        cli,
        ["verify", "-f", str(file), "-n", "16", "--draws", "60", "--threads", "1", "--json"],
        standalone_mode=False,
    )
    assert run.return_value == 0
    report = json.loads(run.stdout)
    assert report["ok"]
    assert report["n_prompts"] == 2
    assert all(
        distribution["ok"] and distribution["p_value"] > 1e-5 for distribution in report["laws"]
    )
    lines = run.stderr.splitlines()  # one for each part, as stderr is no terminal
    parts = ("rows of passes", "first tokens under coupled", "first tokens under block", "grammars")
    for part in (*parts, "stop strings", "prompt 2 of 2"):
        assert any(line.startswith(f"verifying: {part} done") for line in lines)


@pytest.mark.full
def test_a_quick_run_says_what_it_leaves_out(tales, prompts):
    ended = []
    report = verify(tales, prompts, quick=True, limit_s=0.0, on_part=ended.append)
    laws = [f"first tokens under {one}" for one in rules_of(tales)]
    assert report.ok and report.n_tokens == 24 and report.n_prompts == 1
    n_laws = len(report.laws)
    assert 0 < n_laws < len(laws) and {one.n_draws for one in report.laws} == {50}
    assert ended == ["rows of passes", *laws[:n_laws], "prompt 1 of 1"]
    omitted = [one.name for one in report.checks if one.found.startswith("omitted")]
    left = f"{len(prompts) - 1} of {len(prompts)} prompts"
    assert report.left_out == (*laws[n_laws:], *omitted, left) and omitted


@pytest.mark.full
def test_it_stops_when_the_time_is_up(tales, prompts):
    report = verify(tales, prompts, n_tokens=8, n_draws=100_000, limit_s=0.0)
    assert report.n_prompts == 1
    assert [distribution.n_draws for distribution in report.laws] == [50] * 7
    names = [check.name for check in report.checks if check.n_cases]
    assert names == ["rows", "near ties", *kernels_row()]
    omitted = [check for check in report.checks if not check.n_cases]
    assert len(omitted) == 7
    assert {check.found for check in omitted} == {"omitted: the time limit ended it"}
    assert report.ok


@pytest.mark.full
@pytest.mark.parametrize("flash_attention", ["off", "on"])
def test_a_broken_batch_path_is_not_taken_for_rounding_noise(monkeypatch, prompts, flash_attention):
    """The bug is also present when the profile is measured: no pass is exact, and nearly all tokens are near ties."""
    monkeypatch.setattr("gguf_spec.runtime.profile_files.write_profile", lambda *_: True)
    rows_scaled(monkeypatch)
    with gguf_spec.load("tales", threads=1, n_ctx=1024, flash_attention=flash_attention) as llm:
        llm.measure()
        assert llm.profile.exact_width == 1
        report = verify(llm, prompts[:1], n_tokens=24, n_draws=50, limit_s=0.0)
    assert not report.ok
    assert "rows of passes over several tokens are not those of single tokens" in report.sentence
    assert "there are too many near ties" in report.sentence


@pytest.mark.full
def test_rounding_noise_is_not_taken_for_a_broken_batch_path(prompts, stock_kernels):
    """Flash attention over a long cache rounds otherwise for a single token, on any processor."""
    with gguf_spec.load("tales", threads=2, n_ctx=1024, flash_attention="on") as llm:
        check = check_rows(llm, WAYS.values())
        assert check.ok, check.faults
        assert "of the logits' spread apart" in check.found
        for wrong in (1 / 40, 40):
            profile = llm.profile
            llm.engine.pair.profile = replace(
                profile, noise={width: noise * wrong for width, noise in profile.noise.items()}
            )
            assert "profile allows" in check_rows(llm, WAYS.values()).faults[0]
            llm.engine.pair.profile = profile


def test_how_far_rows_are_apart():
    right = np.array([3.0, 1.0, -1.0, -np.inf], dtype=np.float32)
    assert how_far(right, right) == (0.0, 0.0)
    assert how_far(right + 1, right) == (0.0, 0.0), "a row that moves as a whole"
    logits, share = how_far(np.array([3.0, 1.0, -0.5, -np.inf], dtype=np.float32), right)
    assert (logits, share) == (0.5, pytest.approx(0.5 / np.std([3, 1, -1])))
    assert how_far(np.array([3.0, np.nan, -1.0, 0.0], dtype=np.float32), right) == (np.inf, np.inf)


@pytest.mark.full
@pytest.mark.parametrize("sure", [True, False], ids=["steady", "beside other programs"])
def test_without_a_draft_model_drafts_come_from_the_text(sure):
    from gguf_spec import load

    with load("tales", "none", threads=1) as llm:
        llm.measure()
        guessed = () if sure else tuple(llm.profile.target)
        llm.use_profile(replace(llm.profile, checked=sure, guessed=guessed))
        report = verify(llm, ["The fox"], n_tokens=24, n_draws=20)
    assert report.ok
    assert {one.drafter for one in report.comparisons} == {*TEXT_WAYS}
    assert all(one.n_identical == 1 for one in report.comparisons)
    assert [one.accept for one in report.laws] == [
        "rejection, n-gram", "block, n-gram", "rejection, adaptive", "block, adaptive",
    ]  # fmt: skip
    assert all(law.n_drafted for law in report.laws)


def test_no_prompts(tales):
    with pytest.raises(InvalidOptionError, match="prompts"):
        verify(tales, [])


@pytest.mark.parametrize(
    ("prompts", "options", "said"),
    [("Hi", {}, "a list"), (["Hi"], {"n_draws": 0}, "n_draws"), (["Hi"], {"seed": -1}, "seed")],
)
def test_nonsense(tales, prompts, options, said):
    with pytest.raises(InvalidOptionError, match=said):
        verify(tales, prompts, **options)


def test_an_empty_prompt(tales):
    with pytest.raises(EmptyPromptError):
        verify(tales, ["Once", ""])


@pytest.mark.full
def test_the_largest_seed(tales, monkeypatch):
    keep_checks(monkeypatch, {"sessions", "stop strings"}, {"coupled", "block"})
    assert verify(tales, ["Once", "Twice"], n_tokens=4, n_draws=50, seed=2**64 - 1).ok


def test_an_end_at_a_near_tie_is_one(tales):
    """One text ended where the other continued: the gap of that decision counts."""
    texts = TextChecks(tales, 20, 1e9)
    sampling = SAMPLINGS["greedy"]
    ids = tales.tokenize("Once upon a time")
    plain = tales.generate_tokens(ids, Sampling(temperature=0.0, max_tokens=8)).tokens
    gap, near_tie = texts.gap(ids, plain, plain[:5], 5, sampling)
    assert near_tie
    assert gap >= 0


def test_log_probabilities_without_alternatives(tales, monkeypatch):
    """Log-probabilities without alternatives can be compared."""
    logprob = Rows.logprob
    monkeypatch.setattr(
        Rows, "logprob", lambda self, i, token: replace(logprob(self, i, token), top=())
    )
    requests = RequestChecks(TextChecks(tales, 8, 0.0), "Once upon a time", 1)
    assert not requests.parts["log-probabilities"]().faults  # plain decoding has none either


def test_the_bundled_prompts():
    assert len(set(bundled_prompts())) == 50


@pytest.mark.parametrize(
    ("statistic", "n_free", "p"),
    [(18.307, 10, 0.05), (40.0, 10, 1.694e-5), (135.807, 100, 0.01), (3.8415, 1, 0.05)],
)
def test_the_tail_of_chi_square(statistic, n_free, p):
    assert chance_of_more(statistic, n_free) == pytest.approx(p, rel=1e-3)


def test_the_chi_square_of_a_right_sampler_is_uniform():
    rng, distribution = (
        np.random.default_rng(1),
        {(i,): p for i, p in enumerate([0.5, 0.2, 0.2, 0.07, 0.03])},
    )
    p_values = []
    for _ in range(300):
        seen = Counter(
            {(i,): int(n) for i, n in enumerate(rng.multinomial(400, list(distribution.values())))}
        )
        p_values.append(chi_square("x", seen, distribution).p_value)
    assert 0.42 < np.mean(p_values) < 0.58
    assert 3 <= sum(p < 0.05 for p in p_values) <= 30


def test_a_token_outside_of_the_distribution_has_probability_zero():
    distribution = chi_square("x", Counter({(0,): 99, (7,): 1}), {(0,): 1.0})
    assert (distribution.chi_square, distribution.p_value, distribution.ok) == (None, 0.0, False)


def report(differences=(), laws=(), faults=()):
    n = len(differences)
    comparison = Comparison(
        "greedy",
        "model, k = 1",
        5,
        5 - n,
        sum(d.near_tie for d in differences),
        sum(not d.near_tie for d in differences),
        0.5,
    )
    return Report(
        "t", "d", 5, 8, 0.1, (comparison,), tuple(differences), tuple(faults), tuple(laws), 1.0
    )


def test_near_ties_are_reported_but_do_not_fail():
    near = Difference("greedy", "model, k = 1", 0, 3, 0.01, True)
    assert report([near]).ok
    assert "4 of 5 texts identical, 1 differ at a near tie" in report([near]).sentence
    far = Difference("greedy", "model, k = 1", 0, 3, 2.0, False)
    assert not report([near, far]).ok
    assert (
        report([near, far]).sentence
        == "Speculation changes this model's output: 1 of 5 texts differ."
    )


def test_the_report_can_be_written_as_json():
    read = json.loads(
        json.dumps(
            report(
                [Difference("g", "d", 0, 1, None, False)],
                [ChiSquareTest("block", 9, 2, None, 0.0)],
                ["x"],
            ).to_dict(),
            allow_nan=False,
        )
    )
    assert read["laws"] == [
        {
            "accept": "block",
            "n_draws": 9,
            "n_cells": 2,
            "chi_square": None,
            "p_value": 0.0,
            "n_drafted": 0,
            "ok": False,
        }
    ]


def test_the_default_rule_is_the_one_that_is_verified():
    assert RoundRule().accept is RULES["coupled"]


@pytest.mark.parametrize(
    ("noise", "n_near_ties", "ok"),
    [(0.1, 40, True), (0.1, 41, False), (0.0, 0, True), (0.0, 1, False)],
)
def test_near_ties_have_a_ceiling(tales, noise, n_near_ties, ok):
    texts = TextChecks(tales, 8, noise)
    texts._stats["greedy", "auto"] += [
        Stats(n_generated=60),
        Stats(n_generated=40, n_near_ties=n_near_ties),
    ]
    assert texts.near_ties().ok == ok
