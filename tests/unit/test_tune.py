"""Thorough measurement, on fakes with a table of costs, and its results."""

import json
import math

import numpy as np
import pytest

from gguf_spec import Sampling, Speculation
from gguf_spec import tune as module
from gguf_spec.errors import BusyError, ClosedError, UnsupportedModelError
from gguf_spec.runtime import profile_files
from gguf_spec.runtime.profile_files import read_profile
from gguf_spec.speculative import profiler
from gguf_spec.speculative.drafters import N_CONFIDENCE_BUCKETS
from gguf_spec.speculative.profile import DEFAULT_PROFILE, Profile
from gguf_spec.speculative.profiler import measure
from gguf_spec.tune import Tuning, tune
from tests.support.fakes import Clock, FakeModel, fake_llm, random_table

V = 6
TABLES = [random_table(np.random.default_rng(seed), V) for seed in (5, 6)]


def stairs(n, n_past):
    """Passes cost as multiples of four tokens; each row reads the whole cache."""
    return 0.06 * math.ceil(n / 4) + n * 2e-6 * n_past


def flat(n, n_past):
    return 0.008 + n * 1e-6 * n_past


@pytest.fixture
def pair():
    """A target and a draft that agree except for the noise of the sampler, with one clock."""
    clock = Clock()
    return FakeModel(TABLES[0], n_ctx=2048, cost=stairs, clock=clock), FakeModel(
        TABLES[0], n_ctx=2048, cost=flat, clock=clock
    )


def measured(target, draft, **options):
    return measure(target, draft, clock=target.clock.perf_counter, **options)


def profile(target, draft=None, right=0.0, **others):
    """A profile with these seconds, whose draft was right so often in 100 places."""
    places = ((100 * right, 100.0 if draft else 0.0), *((0.0, 0.0),) * (N_CONFIDENCE_BUCKETS - 1))
    return Profile(
        target, {1: 1e-6}, draft or {}, {1: 1e-7} if draft else {}, {2: 0.0}, places, 1.5, **others
    )


def tuning(target, draft=None, right=0.0, **others):
    return Tuning("a", "b" if draft else None, profile(target, draft, right, **others))


def test_everything_is_measured(pair):
    steps = []
    got = measured(*pair, thorough=True, on_step=lambda done, total: steps.append((done, total)))
    assert set(got.target) == set(got.draft) == {1, *profiler.WIDTHS}
    assert set(got.noise) == set(profiler.WIDTHS)
    assert got.target_depth == pytest.approx({1: 2e-6, 8: 16e-6}, rel=0.1)
    assert got.draft_depth == pytest.approx({1: 1e-6, 8: 8e-6}, rel=0.1)
    for n in got.target:
        assert got.target[n] == pytest.approx(stairs(n, 0), rel=0.01)
        assert got.draft[n] == pytest.approx(flat(n, 0), rel=0.05)
    assert got.agreement > 0.95, "the draft reads its rows a little colder"
    assert sum(n for _, n in got.right) == 129
    assert max(got.noise.values()) == 0
    assert steps == [(i, len(steps)) for i in range(1, len(steps) + 1)]
    assert (pair[0].n_past, pair[1].n_past) == (0, 0)
    assert got == Profile.from_dict(json.loads(json.dumps(got.to_dict())))


@pytest.mark.parametrize("n_ctx", [2, 5, 40, 200])
@pytest.mark.parametrize("thorough", [True, False])
def test_a_small_context_is_enough(pair, n_ctx, thorough):
    for model in pair:
        model.n_ctx = n_ctx
    steps = []
    got = measured(*pair, thorough=thorough, on_step=lambda *step: steps.append(step))
    assert got.target[1] == pytest.approx(0.06, rel=0.1)
    assert all(n < n_ctx for n in got.target if n > 1)
    assert not thorough or steps[-1][0] == steps[-1][1]


def test_passes_of_one_width_are_spread_over_time(pair):
    """If another program uses the processor for a while, no width may be slow in all its passes."""
    target, _ = pair
    busy = range(200, 206)
    target.cost = lambda n, n_past: stairs(n, n_past) * (10 if len(target.passes) in busy else 1)
    got = measured(target, None, thorough=True)
    for n in got.target:
        assert got.target[n] == pytest.approx(stairs(n, 0), rel=0.01)


def test_a_draft_that_disagrees(pair):
    target, draft = pair
    draft.table = FakeModel(TABLES[1]).table
    assert 0 < measured(target, draft, thorough=True).agreement < 0.8


def test_a_draft_that_does_not_have_all_tokens(pair):
    target, draft = pair
    draft.table, draft.n_vocab = draft.table[:3, :3, :3], 3
    assert set(measured(target, draft, thorough=True).draft) == {1, *profiler.WIDTHS}


def test_drafting_pays_where_rows_are_free():
    one = tuning({1: 0.1, 33: 0.1}, {1: 1e-6, 33: 1e-6}, 0.5)
    assert [one.profile.speedup(k, 0.5) for k in (1, 2, 3)] == pytest.approx(
        [1.5, 1.75, 1.875], rel=1e-3
    )
    assert one.profile.speedup(3, 1.0) == pytest.approx(4, rel=1e-3)
    assert one.profile.best(0.5)[0] == pytest.approx(2, rel=1e-3)
    assert one.pays
    assert one.profile.needed == pytest.approx(0.05, abs=0.005)


def test_the_announced_time_is_that_of_the_measurement():
    """Rounds drawn one by one, each with the passes that the engine would do."""
    one = tuning(
        {1: 0.06, 4: 0.07, 8: 0.12, 33: 0.5},
        {1: 0.008, 2: 0.009, 33: 0.02},
        0.7,
        token_s=0.001,
        proposal_s=0.002,
    )
    rng, k, seconds, tokens, pending = np.random.default_rng(1), 3, 0.0, 0, 1
    for _ in range(20_000):
        n = next((i for i in range(k) if rng.random() >= 0.7), k)
        seconds += (
            one.draft_s(pending)
            + (k - 1) * one.draft_s(1)
            + k * 0.002
            + one.target_s(k + 1)
            + (n + 1) * 0.001
        )
        tokens, pending = tokens + n + 1, 2 if n == k else 1
    assert one.profile.speedup(k, 0.7) == pytest.approx(tokens * 0.061 / seconds, rel=0.02)
    assert one.profile.best(0.7) == max((one.profile.speedup(k, 0.7), k) for k in range(1, 65))


def test_the_shorter_of_two_drafts_that_are_as_good():
    assert tuning({1: 0.1, 33: 0.1}, {1: 1e-9}, 0.0).profile.best(0.0) == (pytest.approx(1.0), 1)


def test_the_sentence_where_it_pays():
    one = tuning({1: 0.059, 2: 0.06, 4: 0.112, 8: 0.159, 33: 0.6}, {1: 0.0075, 33: 0.02}, 0.62)
    assert one.sentence == (
        "A token of the target takes 59 ms; checking 4 takes as long as 1.9, 8 as long as 2.7. A token of the draft takes 7.5 ms. "
        "At the measured 62% agreement drafting 1 token a round should be 1.4 times as fast as plain decoding."
    )
    assert (
        "drafting 3 tokens a round"
        in tuning({1: 0.059, 4: 0.06, 33: 0.6}, {1: 0.0005}, 0.62).sentence
    )


def test_the_sentence_where_it_does_not():
    one = tuning({1: 0.0006, 2: 0.0009, 4: 0.0012, 33: 0.01}, {1: 0.0002, 33: 0.001}, 0.41)
    assert not one.pays
    assert one.sentence.startswith(
        "A token of the target takes 0.60 ms; checking 4 takes as long as 2.0, "
    )
    assert (
        "Drafting with the model brings no gain here: at the measured 41% agreement" in one.sentence
    )
    assert one.profile.best(one.profile.needed)[0] == pytest.approx(1.05, abs=0.01)
    assert one.sentence.endswith(
        f" times as fast as plain decoding, and {one.profile.needed:.0%} would be enough."
    )
    never = tuning({1: 0.001, 33: 0.033}, {1: 0.001}, 0.41)
    assert never.profile.needed is None
    assert never.sentence.endswith(" and not even 100% would be enough.")


def test_costs_that_cannot_be_are_not_shown():
    """Seen on a busy machine: "checking 4 takes as long as 0.2, 8 as long as 9.1"."""
    one = tuning({1: 0.103, 4: 0.02, 8: 0.94, 33: 2.0}, {1: 0.001, 33: 0.02}, 0.5)
    assert one.sentence.startswith("The measured costs cannot be: several tokens took less time")
    assert "0.2" not in one.sentence and "run `gguf-spec tune`" in one.sentence


def test_the_sentence_without_a_draft():
    one = tuning({1: 0.06, 2: 0.072, 33: 2.0})
    assert not one.pays
    assert one.sentence.endswith(
        "8 as long as 7.4. Drafts from the text bring a gain if more than 26% of them are right."
    )
    assert tuning({1: 0.06, 33: 1.98}).sentence.endswith(
        "Drafts from the text would bring no gain even if they were always right."
    )


@pytest.mark.parametrize("draft", [None, {1: 0.01, 33: 0.1}])
def test_the_result_can_be_written_as_json(draft):
    one = tuning({1: 0.06, 33: 0.5}, draft, 0.5)
    data = json.loads(json.dumps(one.to_dict(), allow_nan=False))
    assert data["sentence"] == one.sentence
    assert (data["target"], data["draft"], data["kept"]) == ("a", one.draft, True)
    assert data["profile"]["target"] == {"1": 0.06, "33": 0.5}
    assert (data["speedup"], data["best_k"]) == (one.profile.best(0.5) if draft else (None, None))
    assert data["agreement"] == (0.5 if draft else None)


@pytest.fixture
def kept(monkeypatch):
    """The stored result, in place of a file."""
    seen = []
    monkeypatch.setattr(module, "write_profile", lambda *args: seen.append(args) or True)
    return seen


@pytest.mark.parametrize("with_draft", [True, False])
def test_tune_stores_the_result_and_uses_it(pair, kept, with_draft):
    target, draft = pair[0], pair[1] if with_draft else None
    with fake_llm(target, draft, Speculation(3), clock=target.clock) as llm:
        assert llm.profile is DEFAULT_PROFILE
        steps = []
        got = tune(llm, progress=steps.append)
        assert llm.profile is got.profile
        assert kept == [(target, draft, got.profile)]
        assert (got.target, got.draft, got.kept) == (
            "fake",
            "fake.gguf" if with_draft else None,
            True,
        )
        assert bool(got.profile.draft) is with_draft
        assert steps[-1].share == 1
        assert {(one.stage, one.unit) for one in steps} == {("tune", "passes")}
        assert llm.generate("ab", Sampling(max_tokens=9, ignore_eos=True)).stats.n_generated == 9, (
            "the caches are as they were"
        )
        with llm.stream("ab"), pytest.raises(BusyError):
            tune(llm)
    with pytest.raises(ClosedError):
        tune(llm)


def test_a_profile_that_cannot_be_written(pair, monkeypatch):
    monkeypatch.setattr(module, "write_profile", lambda *args: False)
    with fake_llm(*pair, Speculation(3), clock=pair[0].clock) as llm:
        assert tune(llm).kept is False
        assert llm.profile.target[1] == pytest.approx(0.06, rel=0.01)


def test_a_model_without_rollback_is_refused(pair, kept):
    pair[0].why_plain = "it cannot go back"
    with (
        fake_llm(*pair, Speculation(0), clock=pair[0].clock) as llm,
        pytest.raises(UnsupportedModelError, match="nothing to tune"),
    ):
        tune(llm)
    assert not kept


@pytest.mark.full
def test_the_bundled_pair_and_the_next_load(monkeypatch, tmp_path):
    import gguf_spec

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(profiler, "STEADY", float("inf"))  # whatever else runs
    options = {"threads": 1, "extra_bufts": True}
    with gguf_spec.load("tales", speculation=Speculation(0), **options) as llm:
        got = tune(llm)
        with llm.models() as models:
            assert read_profile(*models) == got.profile
            assert read_profile(models[0], None) is None, "another pair"
    assert got.kept
    assert 0.2 < got.profile.agreement < 1
    assert got.profile.token_s > 0
    assert got.profile.proposal_s > 0
    monkeypatch.setattr(profile_files, "measure", None)
    with gguf_spec.load("tales", **options) as llm:
        assert llm.profile == got.profile


def test_a_forecast_gain_is_never_more_than_the_tokens_of_a_round():
    """A table whose wide passes were measured too cheap."""
    assert profile({1: 0.1, 5: 0.001}).speedup(4, 0.5) == pytest.approx(
        sum(0.5**i for i in range(5))
    )
