"""Measurements are stored, loaded, and repeated where the file is not valid."""

import json
from dataclasses import replace

import pytest

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.runtime import load as load_module
from gguf_spec.runtime import profile_files
from gguf_spec.speculative import profiler
from gguf_spec.speculative.profile import Profile


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(load_module, "extra_bufts_work", lambda: True)
    return tmp_path / "cache" / "gguf-spec"


@pytest.fixture
def measured(monkeypatch):
    """Count the measurements."""
    real, calls = profile_files.measure, []
    monkeypatch.setattr(
        profile_files, "measure", lambda *args, **kwargs: calls.append(1) or real(*args, **kwargs)
    )
    return calls


def load(**options):
    return gguf_spec.load("tales", threads=1, n_ctx=256, draft_texts="off", **options)


@pytest.mark.full
def test_a_second_load_measures_nothing_and_has_the_same_profile(cache, measured, monkeypatch):
    monkeypatch.setattr(profile_files, "cores_are_shared", lambda _: False)
    monkeypatch.setattr(profiler, "_STEADY", 1e9)  # whatever else runs
    with load() as llm:
        first = llm.profile
    with load() as llm:
        assert llm.profile == first
    assert len(measured) == 1
    # on a busy machine the budget ends after the first widths, and implausible costs are left out
    assert 1 in first.target and len(first.target) > 3
    assert {2, 8} <= set(first.noise)
    assert first.draft
    assert sum(places for _, places in first.right) > 8


@pytest.mark.full
def test_doubtful_costs_are_checked_by_the_first_request_and_kept(cache, measured, monkeypatch):
    count = profile_files.measure
    monkeypatch.setattr(profile_files, "cores_are_shared", lambda _: False)
    monkeypatch.setattr(
        profile_files, "measure", lambda *args: replace(count(*args), steady=True, checked=False)
    )
    with load() as llm:
        assert not llm.profile.checked
        llm.generate("Once upon a time", Sampling(max_tokens=60, temperature=0))
        learned = llm._pair.experiences["greedy"].target
        assert learned.n_checks >= 1  # more beside other programs, whose costs contradict the first
        costs = list(learned.base)
    with load() as llm:
        assert llm.profile.checked
        # on a busy machine the budget ends after the first widths
        confirmed = {1, 2, 4} & llm.profile.target.keys()
        assert 1 in confirmed
        assert [llm.profile.target[n] for n in confirmed] == [costs[n] for n in confirmed]
        assert not llm._pair.experiences["greedy"].target.width_to_check(1, 33, 0.9, 0.0)
    assert len(measured) == 1


def test_plain_decoding_measures_nothing(cache, measured):
    with load(draft=None) as llm:
        llm.generate("Once", Sampling(max_tokens=4))
    assert measured == []
    assert not (cache / "profiles").exists()


@pytest.mark.full
def test_other_threads_and_another_draft_are_measured_apart(cache, measured):
    for options in ({}, {"draft": "ngram"}, {"kv_type": "q8_0"}):
        load(**options).close()
    assert len(measured) == len(list((cache / "profiles").iterdir())) == 3


@pytest.mark.full
def test_a_damaged_or_old_profile_is_measured_again(cache, measured):
    load().close()
    (path,) = (cache / "profiles").iterdir()
    whole = json.loads(path.read_text(encoding="utf-8"))
    for n, damage in enumerate(
        ["", "{", "[]", "null", '{"version": 0}', json.dumps(whole | {"target": {"1": -1}})], 2
    ):
        path.write_text(damage, encoding="utf-8")
        load().close()
        assert len(measured) == n, damage
        assert json.loads(path.read_text(encoding="utf-8")).keys() == whole.keys()


@pytest.mark.full
def test_a_profile_that_cannot_be_stored_is_still_used(cache, measured):
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("in the way", encoding="utf-8")
    with load() as llm:
        assert llm.generate("Once", Sampling(seed=1, max_tokens=8)).tokens
    assert cache.read_text(encoding="utf-8") == "in the way"


@pytest.mark.full
def test_learned_statistics_are_kept_and_damaged_ones_ignored(cache):
    with load() as llm:
        llm.generate("Once", Sampling(temperature=0.0, max_tokens=40))
        learned = llm._pair.experiences["greedy"].chances.to_list()
    (path,) = (cache / "experience").iterdir()
    with load() as llm:
        again = llm._pair.experiences["greedy"].chances.to_list()
    assert [hits / places for *_, hits, places in again] == pytest.approx(
        [hits / places for *_, hits, places in learned]
    )
    for damage in ("", "7", '{"version": 2, "greedy": {"answer": "x", "seen": [[1]]}}'):
        path.write_text(damage, encoding="utf-8")
        load().close()


def test_an_invalid_profile_is_ignored():
    with load() as llm:
        profile = llm.profile
    assert Profile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile
    for nonsense in (
        {"target": {}},
        {"target": {1: 0.0}},
        {"right": [[0, 1]]},
        {"target": "x"},
        {"target": {1: float("nan")}},
        {"target_depth": {1: -1.0}},
        {"draft_depth": {1: float("inf")}},
        {"exact_width": 0},
        {"guesses_depth": [False]},
        {"guesses_depth": [0, 1]},
        {"token_s": float("nan")},
        {"noise": {2: -0.1}},
        {"right": [[2.0, 1.0]] * len(profile.right)},
    ):
        with pytest.raises((KeyError, TypeError, ValueError)):
            Profile.from_dict(profile.to_dict() | nonsense)
    assert replace(profile, noise={}).logit_noise(4) == 0.0


@pytest.mark.full
def test_load_reports_that_it_measures_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("gguf_spec.speculative.profiler._STEADY", float("inf"))  # on a busy machine
    seen = []
    for _ in range(2):
        gguf_spec.load(
            "tales", threads=1, extra_bufts=True, on_measure=lambda: seen.append("measuring")
        ).close()
    assert seen == ["measuring"]
