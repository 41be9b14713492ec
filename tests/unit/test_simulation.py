"""The draft controller against recorded texts and proposals of the bundled pair, in simulated time (`scripts/bench/simulate_controller.py`)."""

import importlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gguf_spec.speculative import controller

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "bench"


@pytest.fixture(scope="module")
def sim():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield importlib.import_module("simulate_controller")


@pytest.fixture(scope="module")
def batch(sim):
    del sim
    return importlib.import_module("simulate_batch")


def speeds(sim, costs, temperature, used, useless=False, n=96):
    """For each prompt the speed over plain decoding and over the best fixed setting in hindsight."""
    found = []
    for at in sim.case("story", temperature):
        known = sim.experience(
            costs,
            "sampled" if temperature else "greedy",
            sim.before(at) if used else (),
            n,
            useless,
        )
        seconds = sim.Run(sim.traces()[at], costs, known, n, useless=useless).seconds
        plain = n * sim.costing(sim.COSTS[costs][0])(1, 0)
        found.append(
            (plain / seconds, (plain if useless else sim.best_fixed(at, costs, n)[0]) / seconds)
        )
    return np.array(found)


@pytest.mark.full
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("costs", ["kernels", "avx2", "avx512"])
def test_an_unseen_prompt_is_nearly_as_fast_as_at_its_best_fixed_setting(sim, costs, temperature):
    over_best = speeds(sim, costs, temperature, used=True)[:, 1]
    assert over_best.mean() > 0.95
    assert over_best.min() > 0.88


@pytest.mark.full
@pytest.mark.parametrize("useless", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("costs", ["kernels", "avx2", "avx512"])
def test_a_fresh_profile_is_hardly_ever_slower_than_plain_decoding(
    sim, costs, temperature, useless
):
    over_plain = speeds(sim, costs, temperature, used=False, useless=useless)[:, 0]
    assert over_plain.mean() > 0.98
    assert over_plain.min() > 0.94


@pytest.mark.full
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("costs", ["kernels", "avx2", "avx512"])
def test_a_wrong_measurement_is_corrected_within_64_tokens(sim, costs, temperature):
    """The best fixed setting is chosen for each text afterwards, so exact costs do not always reach it."""
    found = np.array([sim.after_bad_measurement(costs, temperature, seed) for seed in range(8)])
    assert found[:, 1].min() > 0.94
    assert found[:, 2].mean() > 0.95


def test_text_that_repeats_is_drafted_in_wide_passes(sim):
    for at in sim.case("repetitive", 0.0):
        run = sim.Run(sim.traces()[at], "avx512", sim.experience("avx512", "greedy"))
        assert 96 * 0.040 / run.seconds > 3
        assert max(n for n, _ in run.target.widths) > 24


@pytest.mark.parametrize("widest", [1, 2, 3, 7])
@pytest.mark.parametrize("setting", [None, ("model", 8), ("ngram", 8)])
def test_no_pass_is_wider_than_allowed(sim, setting, widest):
    known = sim.experience("avx512", "greedy")
    run = sim.Run(sim.traces()[1], "avx512", known, setting=setting, widest=widest)
    widths = [n for n, _ in run.target.widths]
    assert max(widths) <= widest
    assert setting is None or max(widths) == widest


WRONG = [
    (which, n, factor)
    for which in ("target", "draft")
    for n in (1, 2, 4, 8, 16)
    for factor in (1 / 16, 1 / 4, 4, 16)
]


def seconds_after_300(sim, costs, profile):
    known, stories = profile.experiences()["greedy"], sim.case("story", 0.0)
    for at in stories[:3]:
        sim.Run(sim.traces()[at], costs, known, 100)
    return sum(sim.Run(sim.traces()[at], costs, known, 96).seconds for at in stories[3:])


@pytest.fixture(scope="module")
def right_s(sim):
    return {
        costs: seconds_after_300(sim, costs, sim.profile_of(costs))
        for costs in ("kernels", "avx512")
    }


@pytest.mark.full
@pytest.mark.parametrize("costs", ["kernels", "avx512"])
@pytest.mark.parametrize(("which", "n", "factor"), WRONG)
def test_a_wrong_entry_is_corrected_after_300_tokens(sim, right_s, costs, which, n, factor):
    right = sim.profile_of(costs)
    table = getattr(right, which)
    assert (
        seconds_after_300(sim, costs, replace(right, **{which: {**table, n: factor * table[n]}}))
        < 1.1 * right_s[costs]
    )


def test_exploring_and_probing_cost_less_than_one_percent(sim):
    """A draft model that is always wrong, and texts that do not repeat: all drafts are exploration."""
    known = sim.experience("kernels", "sampled", useless=True)
    runs = [
        sim.Run(sim.traces()[at], "kernels", known, 128, useless=True)
        for at in sim.case("story", 1.0)
    ]
    assert sum(run.seconds for run in runs) < 1.01 * len(runs) * 128 * 0.051


def run_together(batch, costs, kind, n, texts="story"):
    """Return a run of requests with different texts, and its speed over one after the other."""
    ats = batch.users((texts, kind), n)
    known, alone = (batch.known_before(costs, ats, "fresh", (texts, kind), 96) for _ in range(2))
    run = batch.Batch(ats, costs, known, 96)
    return run, batch.one_by_one(ats, costs, alone, 96) / run.seconds


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("costs", "temperature", "n", "least"),
    [("avx512", 0.8, 2, 1.3), ("blocks", 0.8, 4, 1.9), ("avx512", 0.8, 6, 2.0)],
)
def test_requests_at_once_draft_together(batch, costs, temperature, n, least):
    """Otherwise most passes of the draft model were for tokens that were then dropped."""
    run, speed = run_together(batch, costs, temperature, n)
    drafted = run.scheduler.draft.context.rows
    assert sum(n > 1 for n, _ in drafted) > 0.6 * len(drafted)
    assert speed > least


@pytest.mark.full
@pytest.mark.parametrize("texts", ["story", "repetitive", "mixed"])
def test_requests_at_once_are_hardly_slower_than_one_after_the_other(batch, texts):
    for n in (2, 4, 8):
        assert run_together(batch, "blocks", 0.0, n, texts)[1] > 0.99


def test_the_mechanisms_of_the_ablation_can_be_taken_out_and_come_back(sim):
    """Their functions are named in `scripts/bench/ablate_controller.py`."""
    del sim
    ablation = importlib.import_module("ablate_controller")
    owners = (ablation.C, ablation.U, ablation.M, ablation.R, ablation.cost_model, controller)
    before = [dict(vars(owner)) for owner in owners]
    for change in ablation.MECHANISMS.values():
        patch = ablation.Patch()
        change(patch)
        assert patch._before
        patch.undo()
    assert [dict(vars(owner)) for owner in owners] == before
