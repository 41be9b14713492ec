"""Figures of `bench` from given numbers, and the workload of copying."""

import json
from types import SimpleNamespace

import pytest

from gguf_spec import bench as module
from gguf_spec.bench import (
    ADAPTIVE,
    PLAIN,
    USELESS,
    WORKLOADS,
    Case,
    Contender,
    Machine,
    Report,
    Result,
    Run,
    Spread,
    bench,
    ratios,
    workloads,
)
from gguf_spec.bench.workloads import _BARGAIN, LONG_WORKLOADS, Conversation, choose_workloads
from gguf_spec.cli.bench import impossible
from gguf_spec.errors import InvalidOptionError
from gguf_spec.options import Sampling, Speculation

FIXED = [
    f"{drafter} {k}" for drafter in ("model", "ngram", "hybrid") for k in (1, 2, 3, 4, 6, 8, 12, 16)
]
ADAPTIVES = [ADAPTIVE, f"{ADAPTIVE} model", f"{ADAPTIVE} ngram", f"{ADAPTIVE} hybrid"]


def run(round_, speed, prompt_s=0.0, n_same=1, **more):
    """A run of 100 tokens."""
    values = {
        "ttft_s": 0.1,
        "n_drafted": 50,
        "n_accepted": 30,
        "forecast_s": 2.0,
        "plain_s": 3.0,
        "n_texts": 1,
    } | more
    return Run(
        round=round_,
        n_tokens=100,
        decode_s=100 / speed,
        total_s=100 / speed + prompt_s,
        n_same=n_same,
        **values,
    )


def result(name, speeds, plain, fixed=True, prompt_s=0.0, **more):
    runs = tuple(run(i, speed, prompt_s, **more) for i, speed in enumerate(speeds))
    plain_runs = tuple(run(i, speed, prompt_s) for i, speed in enumerate(plain))
    spreads = [ratios(runs, plain_runs, what) for what in ("tokens_per_s", "tokens_per_s_in_all")]
    return Result(Contender(name, Speculation(), fixed), runs, *spreads)


def case(workload="story", temperature=0.0, plain=(10, 10, 10), ours=(12, 12, 12), **more):
    fixed = {"model 2": (11, 15, 15), "ngram 8": (5,)}
    others = [result(name, speeds, plain) for name, speeds in fixed.items()]
    return Case(
        workload,
        temperature,
        (result(PLAIN, plain, plain), result(ADAPTIVE, ours, plain, fixed=False, **more), *others),
    )


def report(*cases, **more):
    values = {
        "target": "t.gguf",
        "draft": "d.gguf",
        "machine": Machine("A <fast> & good CPU", 2, 1),
        "n_rounds": 3,
    } | more
    return Report(cases=cases, is_complete=True, total_s=1.0, **values)


# ---- arithmetic


def test_ratios_are_taken_round_by_round():
    slower_and_slower = [run(0, 10), run(1, 5), run(2, 2)]
    twice_as_fast = [run(0, 20), run(1, 10), run(2, 4)]
    assert ratios(twice_as_fast, slower_and_slower, "tokens_per_s") == Spread(2.0, 2.0, 2.0)
    assert ratios([run(0, 20), run(1, 5), run(2, 6)], slower_and_slower, "tokens_per_s") == Spread(
        2.0, 1.0, 3.0
    )


def test_a_round_that_the_other_missed_does_not_count():
    assert ratios([run(0, 30), run(1, 99)], [run(0, 10)], "tokens_per_s") == Spread(3.0, 3.0, 3.0)


def test_the_prompt_counts_in_all():
    one = run(0, 10, prompt_s=10.0)
    assert (one.tokens_per_s, one.tokens_per_s_in_all) == (10.0, 5.0)
    fast = run(0, 100, prompt_s=10.0)
    assert ratios([fast], [one], "tokens_per_s_in_all").median == pytest.approx(20 / 11)


def test_rates_of_a_result():
    one = result("x", (10, 30, 20), (10, 10, 10))
    assert one.of("tokens_per_s") == Spread(20, 10, 30)
    assert one.speedup == Spread(2.0, 1.0, 3.0)
    assert one.acceptance == 0.6
    assert one.of("predicted").median == 1.5


def test_the_best_fixed_setting_and_what_is_lost_against_it():
    one = case(ours=(12, 12, 12))
    assert one.best_fixed.contender.name == "model 2"
    assert one.of_best == Spread(0.8, 0.8, pytest.approx(12 / 11))


def test_plain_decoding_is_a_fixed_setting_too():
    plain = (20, 20, 20)
    one = case(plain=plain)
    assert one.best_fixed is one.plain
    assert one.of_best.median == 0.6


def test_where_nothing_is_predicted_nothing_is_gained():
    assert run(0, 10, forecast_s=0.0, plain_s=0.0).predicted == 1.0


def test_a_speed_up_that_drafts_cannot_give_is_marked():
    """Seen beside other programs: 42.29 x, where 9 of 10 tokens were drafted at most."""
    assert impossible(case()) == ""
    assert "drafts give at most" in impossible(case(ours=(420, 420, 420)))


def test_the_sentence():
    two = report(case(ours=(20, 20, 20)), case("copy", 0.8, ours=(5, 5, 5)))
    assert two.speedup == pytest.approx(1.0)
    assert two.sentence.startswith(
        "Adaptive is 1.00 times plain over two workloads (worst 0.50), and 0.67 of the best fixed setting; reading the"
    )
    assert two.texts_equal
    assert "on the workload story, and 0.80 of" in report(case()).sentence
    assert (
        "on the workload story (worst 1.20), and" in report(case(), case(temperature=0.8)).sentence
    )


def test_different_texts_are_reported():
    other = report(case(n_same=0))
    assert (other.n_texts, other.n_same, other.texts_equal) == (7, 4, False)
    assert "3 of 7 texts are not those of plain decoding" in other.sentence
    assert report(case(), disturbed="Other programs ran.").sentence.endswith(" Other programs ran.")


def test_a_useless_draft_is_added():
    whole = report(case(), case("copy"))
    plain = (10, 10, 10)
    useless = Case(
        "story", 0.0, (result(PLAIN, plain, plain), result(USELESS, (9, 9, 9), plain, fixed=False))
    )
    both = whole.with_useless(report(useless, draft="noise.gguf", n_rounds=3))
    assert (both.useless, both.total_s) == ("noise.gguf", 2.0)
    assert both.cases[0].result(USELESS).speedup.median == 0.9
    assert both.cases[1].result(USELESS) is None
    assert both.speedup == whole.speedup
    assert both.sentence.endswith("With a useless draft it is 0.90 times plain (worst 0.90).")


def test_the_report_can_be_written_as_json():
    read = json.loads(json.dumps(report(case(), case(temperature=0.8)).to_dict(), allow_nan=False))
    assert [one["name"] for one in read["cases"]] == ["story", "story 0.8"]
    first = read["cases"][0]
    assert (first["best_fixed"], first["of_best"]["median"]) == ("model 2", 0.8)
    assert first["results"][1]["name"] == ADAPTIVE
    assert first["results"][1]["speedup"] == {"median": 1.2, "least": 1.2, "most": 1.2}
    assert first["results"][1]["speculation"]["adaptive"]
    assert len(first["results"][1]["runs"]) == 3
    assert read["machine"] == {"cpu": "A <fast> & good CPU", "cores": 2, "threads": 1}


def test_the_sentence_counts_many_workloads():
    assert "over 16 workloads (worst 1.20)" in report(*(case(f"w{i}") for i in range(16))).sentence


# ---- who runs when


@pytest.fixture
def runs(monkeypatch):
    """Runs as (round, case, settings of the contender); only the n-gram drafters are slow."""
    seen = []

    def fake(_llm, work, speculation, round_):
        seen.append((round_, work.workload, work.samplings[0].temperature, speculation))
        return run(
            round_, 4.0 if speculation.drafter == "ngram" and not speculation.adaptive else 10.0
        )

    monkeypatch.setattr(module, "_run", fake)
    return seen


def test_contenders_alternate_and_slow_ones_run_once(tales, runs):
    steps = []
    found = bench(tales, ["story"], n_rounds=3, progress=steps.append)
    first = [one[3] for one in runs if one[:3] == (0, "story", 0.0)]
    assert [s.k for s in first[:5]] == [0, 64, 64, 64, 64]
    assert [s.drafter for s in first[1:5]] == ["auto", "model", "ngram", "hybrid"]
    assert all(s.adaptive for s in first[1:5]) and not any(s.adaptive for s in first[5:])
    assert [one[0] for one in runs] == sorted(one[0] for one in runs)
    per_round = [sum(one[0] == round_ for one in runs) for round_ in range(3)]
    assert per_round == [2 * 29, 2 * 21, 2 * 21]
    assert steps[-1] == ("bench", 2 * 71, 2 * 71, "runs")
    assert [s.done for s in steps] == list(range(1, 143))
    assert [one.name for one in found.cases] == ["story", "story 0.8"]
    assert [one.contender.name for one in found.cases[0].results] == [PLAIN, *ADAPTIVES, *FIXED]
    assert [
        len(found.cases[0].result(name).runs) for name in (PLAIN, ADAPTIVE, "model 4", "ngram 4")
    ] == [3, 3, 3, 1]
    assert found.is_complete


def test_quick(tales, runs):
    found = bench(tales, quick=True)
    assert [one.name for one in found.cases] == [workload.name for workload in WORKLOADS]
    assert len(runs) == 6 * (1 + 4 + 6)
    assert {one[3].k for one in runs} == {0, 64, 2, 4, 8}


def test_the_useless_draft_is_timed_against_plain_decoding_only(tales, runs):
    found = bench(tales, ["story", "copy"], n_rounds=2, useless=True)
    assert len(runs) == 3 * 2 * 2
    assert [one.contender.name for one in found.cases[0].results] == [PLAIN, USELESS]


def test_when_the_time_is_up_one_pair_has_run(tales, runs):
    found = bench(tales, limit_s=0.0)
    assert [one[3].k for one in runs] == [0, 64]
    assert not found.is_complete
    assert [one.contender.name for one in found.cases[0].results] == [PLAIN, ADAPTIVE]
    assert (len(found.cases), found.speedup, found.of_best) == (1, 1.0, 1.0)


def test_without_a_draft_model_only_the_text_drafts(tales, runs, monkeypatch):
    monkeypatch.setattr(tales, "draft_name", None)
    found = bench(tales, ["copy"], n_rounds=1)
    assert {one[3].drafter for one in runs} == {"auto", "ngram"}
    assert [one.contender.name for one in found.cases[0].results][:3] == [
        PLAIN,
        ADAPTIVE,
        "ngram 1",
    ]


# ---- the bundled pair


@pytest.mark.full
def test_each_run_begins_with_the_initial_statistics(tales, monkeypatch):
    calibration, seen, real = tales.engine.pair.calibration, [], module._run

    def spy(*args):
        seen.append(
            (
                tales.engine.pair.experiences,
                tales.engine.pair.experiences["greedy"].target.seconds(4, 0),
            )
        )
        return real(*args)

    monkeypatch.setattr(module, "_run", spy)
    bench(tales, ["short"], n_rounds=1, n_tokens=4, quick=True)
    assert len({id(one) for one, _ in seen}) == len(seen) == 11
    assert len({seconds for _, seconds in seen}) == 1
    assert tales.engine.pair.calibration is not calibration


@pytest.mark.full
def test_all_settings_give_the_same_complete_text(tales):
    found = bench(tales, ["chat", "story"], n_rounds=1, n_tokens=6, quick=True)
    assert found.texts_equal
    assert found.n_texts == 10 * (1 + 3)
    for one in found.cases:
        n = 6 * 3  # three turns; three stories
        assert {r.n_tokens for result in one.results for r in result.runs} == {n}
        assert all(
            0 < r.ttft_s < r.total_s and r.decode_s < r.total_s
            for result in one.results
            for r in result.runs
        )


@pytest.mark.parametrize("at", range(2))
def test_the_bundled_pair_copies_what_it_should(tales, at):
    (copy,) = [workload for workload in WORKLOADS if workload.name == "copy"]
    prompt, unit = copy.prompts(tales)[at], _BARGAIN[at]
    said = tales.generate(
        prompt, Sampling(temperature=0.0, max_tokens=copy.n_tokens, ignore_eos=True)
    ).text
    assert (unit * 10).startswith(said)
    assert len(said) > 2 * len(unit)


@pytest.mark.full
def test_repetitive_texts_repeat(tales):
    (repetitive,) = [workload for workload in WORKLOADS if workload.name == "repetitive"]
    for prompt in repetitive.prompts(tales):
        said = tales.generate(
            prompt,
            Sampling(temperature=0.0, max_tokens=repetitive.n_tokens, ignore_eos=True),
            speculation=Speculation(0),
        ).tokens
        assert len(set(said)) < 15


# ---- workloads


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_every_workload_fits_and_has_both_forms(tales, workload):
    prompts = workload.prompts(tales)
    assert all(len(tales.tokenize(prompt)) + workload.n_tokens < tales.n_ctx for prompt in prompts)
    assert [one.turns for one in workload.conversations(tales)] == [
        (prompt, *turns[1:]) for prompt, turns in zip(prompts, workload.texts, strict=True)
    ]
    assert workload.about.endswith(".")
    assert workload.questions
    chat = SimpleNamespace(prompt="chat", n_ctx=tales.n_ctx, tokenize=tales.tokenize)
    assert all(
        got.turns[0].endswith(turns[0]) and got.turns[1:] == turns[1:]
        for got, turns in zip(workload.conversations(chat), workload.questions, strict=True)
    )


def test_the_long_prompt_fills_the_context(tales):
    (long,) = [workload for workload in WORKLOADS if workload.name == "long"]
    for n_ctx, least, most in ((4096, 3450, 3550), (2048, 1700, 1950), (512, 200, 384)):
        (prompt,) = long.prompts(SimpleNamespace(n_ctx=n_ctx, tokenize=tales.tokenize))
        assert least < len(tales.tokenize(prompt)) < most
        sentences = prompt.replace("\n\n", " ").split(". ")
        assert len(set(sentences)) == len(sentences) > 10


def test_a_too_small_context_is_reported(tales):
    with pytest.raises(
        InvalidOptionError,
        match=r"the workload long needs about 3,\d\d\d tokens but the context holds 2,048",
    ):
        bench(tales, ["long"], n_tokens=3000)
    with pytest.raises(InvalidOptionError, match="the workload chat needs"):
        bench(tales, ["chat"], n_tokens=800)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["text", "chat"])
@pytest.mark.parametrize("workload", LONG_WORKLOADS, ids=lambda workload: workload.name)
def test_a_long_workload_has_the_tokens_it_names(tales, workload, kind):
    llm = SimpleNamespace(prompt=kind, n_ctx=4096, tokenize=tales.tokenize)
    (one,) = workload.conversations(llm)
    (turn,) = one.turns
    messages = [*one.history, {"role": "user", "content": turn}]
    n_tokens = len(tales.tokenize(turn if kind == "text" else messages, prefill=one.prefill))
    assert (
        workload.n_prompt - 100
        < n_tokens
        <= workload.n_prompt
        == {"1k": 1000, "4k": 3900}[workload.name[-2:]]
    )
    assert n_tokens + workload.n_tokens <= llm.n_ctx
    assert kind == "text" or len(one.history) == (38 if workload.name.startswith("turn20") else 0)
    assert workload.prompts(llm) == (
        [turn] if kind == "text" else workload.prompts(tales_as_text(llm))
    )
    assert workload.about.endswith(".")


def tales_as_text(llm):
    return SimpleNamespace(prompt="text", n_ctx=llm.n_ctx, tokenize=llm.tokenize)


@pytest.mark.few(4)
@pytest.mark.parametrize("workload", LONG_WORKLOADS, ids=lambda workload: workload.name)
def test_a_long_workload_that_does_not_fit_is_an_error(tales, workload):
    needed = workload.n_prompt + 128
    llm = SimpleNamespace(prompt="text", n_ctx=needed - 1, tokenize=tales.tokenize)
    with pytest.raises(
        InvalidOptionError,
        match=f"the workload {workload.name} needs {needed:,} tokens but the context holds {needed - 1:,}",
    ):
        workload.conversations(llm)
    with pytest.raises(InvalidOptionError, match=r"^the workload .* needs"):
        workload.prompts(llm)
    llm.n_ctx = needed
    assert workload.prompts(llm)


def test_long_workloads_run_only_when_they_are_named(tales):
    assert choose_workloads(None) == list(WORKLOADS)
    assert choose_workloads((), long=True) == list(LONG_WORKLOADS)
    assert [one.name for one in choose_workloads(["code-1k", "story"])] == ["story", "code-1k"]
    assert [one.name for one in choose_workloads(["story"], long=True)] == [
        "story",
        *(one.name for one in LONG_WORKLOADS),
    ]
    with pytest.raises(
        InvalidOptionError,
        match="the workload document-4k needs 4,028 tokens but the context holds 2,048",
    ):
        bench(tales, long=True)


def test_a_long_workload_has_few_fixed_settings(tales, runs):
    found = bench(tales, ["json-1k", "rewrite-1k"], n_rounds=1)
    assert [one.name for one in found.cases] == ["rewrite-1k", "json-1k"]
    assert {one[3].k for one in runs} == {0, 64, 2, 4, 8}


def test_records_do_not_repeat():
    records = [workloads._record(i, "active") for i in range(200)]
    assert len({record.partition(",")[2] for record in records}) == 200
    assert json.loads(records[3])["status"] == "active"


@pytest.mark.full
def test_texts_that_are_changed_begin_with_the_change(tales):
    llm = SimpleNamespace(prompt="text", n_ctx=2048, tokenize=tales.tokenize)
    prompts = {one.name: one.prompts(llm)[0] for one in LONG_WORKLOADS if one.n_prompt == 1000}
    assert prompts["rewrite-1k"].endswith(
        "she had lived in a sadly extravagant manner, and her subjects could spare her without the slightest inconvenience."
    )
    assert "It was high time this queen" in prompts["rewrite-1k"]
    assert prompts["json-1k"].count('"archived"}') == 2
    assert prompts["code-1k"].count("LoadedModel:") == 1
    chat = SimpleNamespace(prompt="chat", n_ctx=2048, tokenize=tales.tokenize)
    prefills = {
        one.name: one.conversations(chat)[0].prefill
        for one in LONG_WORKLOADS
        if one.n_prompt == 1000
    }
    assert [name for name, prefill in prefills.items() if prefill] == [
        "rewrite-1k",
        "json-1k",
        "code-1k",
    ]
    assert all(
        prompts[name].endswith(prefill.removeprefix("```python\n"))
        for name, prefill in prefills.items()
    )


def test_a_conversation_continues_with_the_answers():
    asked = []

    def generate(prompt, sampling, *, speculation, prefill):
        asked.append(prompt if isinstance(prompt, str) else [dict(message) for message in prompt])
        return SimpleNamespace(text=f"<{len(asked)}>")

    text = SimpleNamespace(prompt="text", generate=generate, forget=lambda: None)
    assert [
        answer.text for answer in module.converse(text, Conversation(("a", "b", "c")), None, None)
    ] == ["<1>", "<2>", "<3>"]
    assert asked == ["a", "a<1>b", "a<1>b<2>c"]
    asked.clear()
    chat, before = (
        SimpleNamespace(prompt="chat", generate=generate, forget=lambda: None),
        ({"role": "user", "content": "0"},),
    )
    list(module.converse(chat, Conversation(("a", "b"), before, "So: "), None, None))
    assert asked[1] == [
        *before, {"role": "user", "content": "a"}, {"role": "assistant", "content": "So: <1>"}, {"role": "user", "content": "b"},
    ]  # fmt: skip


# ---- nonsense


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [(["gone"], {}, "names is 'gone' but must be one of story, "), (None, {"n_rounds": 0}, "n_rounds"), (None, {"n_tokens": 0}, "n_tokens"),
     (None, {"seed": -1}, "seed")],
)  # fmt: skip
def test_nonsense(tales, names, options, said):
    with pytest.raises(InvalidOptionError, match=said):
        bench(tales, names, **options)


def test_a_model_that_cannot_go_back(tales, monkeypatch):
    with tales.models() as (target, _):
        monkeypatch.setattr(target.context, "why_untrusted", "it cannot")
    with pytest.raises(InvalidOptionError, match="it cannot"):
        bench(tales)
