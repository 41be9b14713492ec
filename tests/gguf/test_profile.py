"""Measurements are stored, loaded, and repeated where the file is not valid."""

import json
from dataclasses import replace

import pytest

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.llama import attention
from gguf_spec.llama.context import Context
from gguf_spec.runtime import load as load_module
from gguf_spec.runtime import profile_files
from gguf_spec.speculative import controller, profiler
from gguf_spec.speculative.cost_model import CostModel
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
    monkeypatch.setattr(profiler, "STEADY", 1e9)  # whatever else runs
    with load() as llm:
        llm.measure()
        first = llm.profile
    with load() as llm:
        llm.measure()
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
    monkeypatch.setattr(
        profile_files, "measure", lambda *args: replace(count(*args), steady=True, checked=False)
    )
    with load() as llm:
        llm.measure()
        assert not llm.profile.checked
        llm.generate("Once upon a time", Sampling(max_tokens=60, temperature=0))
        learned = llm.engine.pair.experiences["greedy"].target
        assert learned.n_checks >= 1  # more beside other programs, whose costs contradict the first
        costs = list(learned.base)
    with load() as llm:
        assert llm.profile.checked
        # on a busy machine the budget ends after the first widths
        confirmed = {1, 2, 4} & llm.profile.target.keys()
        assert 1 in confirmed
        assert [llm.profile.target[n] for n in confirmed] == [costs[n] for n in confirmed]
        assert not llm.engine.pair.experiences["greedy"].target.width_to_check(1, 33, 0.9, 0.0)
    assert len(measured) == 1


def test_plain_decoding_measures_nothing_unless_it_is_asked_to(cache, measured):
    with load(draft=None) as llm:
        llm.generate("Once", Sampling(max_tokens=4))
    assert measured == []
    assert not (cache / "profiles").exists()
    with load(draft=None) as llm:
        llm.measure()  # as `verify` and `bench` do, which then draft from the text
        assert measured == [1]
        assert llm.profile.is_whole


@pytest.mark.full
def test_other_threads_and_another_draft_are_measured_apart(cache, measured):
    for options in ({}, {"draft": "ngram"}, {"kv_type": "q8_0"}):
        with load(**options) as llm:
            llm.measure()
    assert len(measured) == len(list((cache / "profiles").iterdir())) == 3


@pytest.mark.full
def test_a_damaged_or_old_profile_is_measured_again(cache, measured):
    with load() as llm:
        llm.measure()
    (path,) = (cache / "profiles").iterdir()
    whole = json.loads(path.read_text(encoding="utf-8"))
    for n, damage in enumerate(
        ["", "{", "[]", "null", '{"version": 0}', json.dumps(whole | {"target": {"1": -1}})], 2
    ):
        path.write_text(damage, encoding="utf-8")
        with load() as llm:
            llm.measure()
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
        learned = llm.engine.pair.experiences["greedy"].chances.to_list()
    (path,) = (cache / "experience").iterdir()
    with load() as llm:
        again = llm.engine.pair.experiences["greedy"].chances.to_list()
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
    """Where the kernels promise nothing, such as on a GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(profile_files, "can_learn", lambda _: False)
    monkeypatch.setattr("gguf_spec.speculative.profiler.STEADY", float("inf"))  # on a busy machine
    seen = []
    for _ in range(2):
        gguf_spec.load(
            "tales", threads=1, extra_bufts=True, on_measure=lambda: seen.append("measuring")
        ).close()
    assert seen == ["measuring"]


# ---- the first answers of a model that was never measured


@pytest.fixture
def passes(monkeypatch):
    """Widths of all passes of the target, in order; those that read a prompt are negative."""
    widths, real = [], Context.decode_one

    def decode(self, part):
        if "target" in part.sequence.path.name:
            widths.append(len(part.tokens) * (1 if part.n_rows else -1))
        return real(self, part)

    monkeypatch.setattr(Context, "decode_one", decode)
    return widths


@pytest.fixture
def soon(monkeypatch):
    """Checks of costs wait for no time and end at no cost: which ones there are depends on no clock."""
    monkeypatch.setattr(controller, "_CHECK_SHARE", 1e6)
    monkeypatch.setattr(CostModel, "_cannot_pay", lambda *_: False)
    monkeypatch.setattr(controller.SearchBudget, "rounds_without", lambda *_: 0)
    monkeypatch.setattr(CostModel, "is_doubtful", lambda *_: False)
    monkeypatch.setattr(Profile, "disturbed", "")


def record(cache):
    (path,) = (cache / "profiles").iterdir()
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("draft", ["auto", "ngram"])
def test_no_pass_is_made_before_the_first_token_that_it_does_not_need(
    cache, measured, passes, monkeypatch, draft
):
    monkeypatch.setattr(attention, "_measure", lambda *_: pytest.fail("attention was measured"))
    with load(draft=draft) as llm:
        assert passes == []
        prompt = llm.tokenize("Once upon a time there was a king who had three")
        with llm.stream_tokens(prompt, Sampling(max_tokens=9, seed=1)) as stream:
            next(iter(stream))
        read = len(prompt) - 1
        assert [n for n in passes if n < 0] == [-read]
        assert len([n for n in passes if n > 0]) == 1
    assert measured == []


@pytest.mark.full
@pytest.mark.parametrize("draft", ["auto", "ngram"])
def test_the_record_grows_over_requests_and_processes(cache, measured, passes, soon, draft):
    ways = [Sampling(max_tokens=n, seed=1) for n in (1, 3, 8, 12, 40, 40)]
    untimed = []
    for sampling in ways:
        passes.clear()
        with load(draft=draft) as llm:
            before = llm.profile.guessed
            llm.generate("One", sampling)
        one = record(cache)
        untimed.append(set(one["guessed"]))
        assert one["seconds"] == 0
        assert untimed[-1] <= set(before)
        checked = {2, 4, 8, 16} & (set(before) - untimed[-1])
        assert checked <= set(passes), "by a pass of that width"
    assert untimed[0] >= {2, 4, 8, 16}
    assert 1 not in untimed[0]
    assert not untimed[-1] & {1, 2, 4, 8, 16}
    assert len({*map(len, untimed)}) > 2, "not all at once"
    assert one["checked"]
    assert measured == []


@pytest.mark.full
def test_texts_do_not_depend_on_what_was_measured(cache, soon):
    ways = [Sampling(max_tokens=60, seed=3, temperature=t) for t in (0.0, 0.8, 1.2)]
    with load(draft=None) as llm:
        plain = [llm.generate("Once upon a time", one, k=0).tokens for one in ways]
    for draft in ("auto", "ngram"):
        for _ in range(2):
            with load(draft=draft) as llm:
                assert [llm.generate("Once upon a time", one).tokens for one in ways] == plain


@pytest.mark.full
def test_a_damaged_partial_record_begins_again(cache, measured, soon):
    with load(draft="ngram") as llm:
        llm.generate("One", Sampling(max_tokens=8, seed=1))
    (path,) = (cache / "profiles").iterdir()
    whole = json.loads(path.read_text(encoding="utf-8"))
    damages = ["", "{", json.dumps(whole | {"guessed": [7]}), json.dumps(whole | {"guessed": 3})]
    for damage in [*damages, json.dumps(whole | {"guessed": ["2"]})]:
        path.write_text(damage, encoding="utf-8")
        with load(draft="ngram") as llm:
            assert llm.profile.guessed == tuple(profiler.USUAL), damage
            llm.generate("One", Sampling(max_tokens=8, seed=1))
        assert set(record(cache)["guessed"]) == set(whole["guessed"]), damage
    assert measured == []


def test_an_answer_beside_other_programs_is_no_record(cache):
    """A pass over several tokens cannot be faster than one over a single token: the first load without them begins again."""
    load(draft="ngram").close()
    assert not (cache / "profiles").exists(), "nothing was learned"
    with load(draft="ngram") as llm:
        llm.generate("One", Sampling(max_tokens=2, seed=1))
    (path,) = (cache / "profiles").iterdir()
    one = json.loads(path.read_text(encoding="utf-8"))
    one |= {"target": one["target"] | {"2": one["target"]["1"] / 9}, "guessed": [16, 33, 65]}
    path.write_text(json.dumps(one | {"checked": True}), encoding="utf-8")
    with load(draft="ngram") as llm:
        assert llm.profile.guessed == tuple(profiler.USUAL)
        assert not llm.profile.checked


@pytest.mark.full
def test_costs_that_are_wanted_whole_are_measured(cache, measured):
    """By `LLM.measure`, which `bench` and `verify` call."""
    with load(draft="ngram") as llm:
        llm.generate("One", Sampling(max_tokens=8, seed=1))
        assert not llm.profile.is_whole
        for _ in range(2):
            llm.measure()
            assert llm.profile.is_whole
        assert llm.generate("One", Sampling(max_tokens=8, seed=1)).tokens
    assert record(cache)["seconds"] > 0
    assert len(measured) == 1


@pytest.mark.full
def test_several_requests_at_once_have_measured_costs(cache, measured, monkeypatch):
    """Their number and their turns follow these; shared passes would never show them."""
    monkeypatch.setattr(profiler, "STEADY", 1e9)  # whatever else runs
    with load(draft="ngram") as llm:
        llm.generate("One", Sampling(max_tokens=8, seed=1))
    assert (measured, record(cache)["seconds"]) == ([], 0)
    for _ in range(2):
        with load(draft="ngram", parallel=2) as llm:
            assert llm.profile.is_whole
            assert not llm.profile.guessed
        assert len(measured) == 1
    with load(draft="ngram") as llm:
        assert llm.profile.is_whole, "one request at a time has them, too"
