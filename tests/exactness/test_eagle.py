"""The same text with EAGLE-3 heads as without, and what they bring."""

from dataclasses import replace

import pytest

import gguf_spec
from gguf_spec import Speculation, doctor, models
from gguf_spec.errors import NoSpeculationError
from gguf_spec.gguf.architectures import LAST_ROWS, LAYER_INPUTS
from gguf_spec.llama.head import EagleHead
from gguf_spec.llama.options import ContextOptions
from gguf_spec.llama.own_kernels import extra_bufts_work
from gguf_spec.options import HEADS
from gguf_spec.runtime import plan as plan_module
from tests.exactness.with_heads import (
    GREEDY,
    PROMPTS,
    SAMPLED,
    check_cancelled_requests,
    check_costs_decide,
    check_memory_stays_flat,
    check_restored_chat,
    check_the_same_texts,
    memory_bytes,
    saved_chat,
    share_accepted,
    texts,
    tokens,
)
from tests.support import eagle, families, tiny

FIXED = Speculation(k=3, drafter="eagle3", adaptive=False)
KNOWN = [*range(26, 90)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eagle")
    target = families.family("llama")
    tiny.write(folder / "llama.gguf", target)
    tiny.write(folder / "qwen2.gguf", families.family("qwen2"))
    heads = {
        "guesser": eagle.guesser(target), "table": eagle.guesser(target, KNOWN), "random": eagle.head(width=48),
        "borrows": eagle.head(own=False), "wide": eagle.head(n_target=96), "mad": eagle.head(known=[*KNOWN[1:], len(tiny.TOKENS)]),
    }  # fmt: skip
    for name, head in heads.items():
        tiny.write(folder / f"{name}.gguf", head)
    return folder


def loaded(folder, head="guesser", name="llama", **options):
    usual = {"threads": 1, "extra_bufts": False, "n_ctx": 256, "draft_texts": "off"}
    options = usual | options
    return gguf_spec.load(folder / f"{name}.gguf", folder / f"{head}.gguf", **options)


@pytest.mark.full
@pytest.mark.parametrize("head", ["guesser", "table"])
def test_a_good_head_drafts_well_and_changes_nothing(folder, head):
    """Chance would be one token in about 64."""
    with loaded(folder, head) as llm:
        assert llm.notes == ()
        assert llm.draft_name == f"{head}.gguf (prediction head)"
        llm.measure()
        assert llm.profile.agreement > 0.15
        plain = tokens(texts(llm, k=0))
        assert len({*plain}) > 4
        for k in (1, 2, 3, 5, 8, 16):
            results = texts(llm, k=k, drafter="eagle3", adaptive=False)
            assert tokens(results) == plain, k
            assert {name for one in results for name in one.stats.drafters} == {"eagle3"}
            assert not any(one.stats.n_near_ties for one in results)
            assert k > 1 or share_accepted(results) > 0.3
        for drafter in ("hybrid", "auto", "model"):
            assert tokens(texts(llm, k=4, drafter=drafter, adaptive=False)) == plain
        assert tokens(texts(llm)) == plain
        with llm.models() as (_, loaded_head):
            assert isinstance(loaded_head, EagleHead)
    with gguf_spec.load(
        folder / "llama.gguf", None, threads=1, extra_bufts=False, n_ctx=256
    ) as llm:
        assert tokens(texts(llm)) == plain


@pytest.mark.full
@pytest.mark.parametrize("head", ["random", "borrows"])
def test_bad_heads_change_nothing(folder, head):
    with loaded(folder, head) as llm:
        check_the_same_texts(llm, "eagle3", (1, 2, 5))


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(({*families.NAMES} & LAYER_INPUTS) - {"llama"}))
def test_the_same_text_for_each_architecture(tmp_path, name):
    last = 3 if name.startswith("nemotron") else 2
    families.write_family(tmp_path, name)
    layers = (0, 1, last) if name in LAST_ROWS else (0, 1, 1)
    tiny.write(tmp_path / "head.gguf", eagle.head(layers=layers))
    with loaded(tmp_path, "head", name) as llm:
        assert llm.notes == ()
        plain = tokens(texts(llm, k=0))
        results = texts(llm, k=3, drafter="eagle3", adaptive=False)
        assert tokens(results) == plain
        assert sum(one.stats.n_drafted for one in results) > 100
        assert not any(one.stats.why_none for one in results)


@pytest.mark.full
@pytest.mark.parametrize("accept", ["rejection", "block"])
def test_rules_that_draw_from_the_draft(folder, accept):
    with loaded(folder, "table") as llm:
        results = texts(llm, k=1, drafter="eagle3", adaptive=False, accept=accept)
        assert share_accepted(results) > 0.1
        greedy = tokens(texts(llm, k=0))[: len(PROMPTS)]
        assert tokens(results)[: len(PROMPTS)] == greedy


@pytest.mark.full
def test_conversations_and_sessions(folder, tmp_path):
    with loaded(folder, speculation=FIXED) as llm:
        expected = saved_chat(llm, tmp_path / "session")
    for speculation in (FIXED, Speculation(k=0)):
        with loaded(folder, speculation=speculation) as llm:
            check_restored_chat(llm, tmp_path / "session", expected, 5)


@pytest.mark.full
def test_edited_prompts(folder):
    """Repeated, continued and edited questions give the answers of a new model."""
    prompts = [[40, 41, 42, 43, 44, 45] * 4] * 2
    prompts += [[*prompts[0], 60, 61], [*prompts[0][:18], 70, 71], [50], [50, 51]]
    with loaded(folder) as llm:
        kept = [
            llm.generate_tokens(prompt, one, speculation=FIXED).tokens
            for prompt in prompts
            for one in (GREEDY, SAMPLED)
        ]
    new = []
    with gguf_spec.load(
        folder / "llama.gguf", None, threads=1, extra_bufts=False, n_ctx=256
    ) as llm:
        for prompt in prompts:
            for one in (GREEDY, SAMPLED):
                llm.forget()
                new.append(llm.generate_tokens(prompt, one).tokens)
    assert kept == new


@pytest.mark.full
def test_costs_decide_whether_the_head_drafts(folder, monkeypatch):
    with loaded(folder) as llm:
        check_costs_decide(llm, "eagle3", 50, monkeypatch)


@pytest.mark.full
def test_statistics_are_those_of_the_head(folder):
    """They are kept under its name, beside those of other drafters, and read again."""
    with loaded(folder) as llm:
        texts(llm, k=1, drafter="eagle3", adaptive=False)
    with loaded(folder) as llm:
        seen = llm.engine.pair.experiences["greedy"].chances.to_list()
        places = {name: sum(one[3] for one in seen if one[0] == name) for name in ("model", *HEADS)}
        assert places["model"] == places["mtp"]
        assert places["eagle3"] > places["mtp"] + 20


def test_heads_that_cannot_be_used(folder, monkeypatch):
    """A note gives the reason, or an error where the head is requested."""
    cases = [
        ("wide", "llama", {}, "is for rows of 96 values, and llama.gguf has rows of 64"),
        ("mad", "llama", {}, "names tokens that are not in its vocabulary"),
        ("guesser", "qwen2", {}, "gives no inputs of layers to a head for the architecture qwen2"),
        ("guesser", "llama", {"parallel": 2}, "not used with parallel requests"),
    ]
    for head, name, options, why in cases:
        with loaded(folder, head, name, **options) as llm:
            assert why in llm.notes[0]
            assert llm.notes[0].endswith(": drafts come from elsewhere.")
            assert not llm.draft_name
            assert llm.generate(PROMPTS[0], GREEDY).tokens
        with pytest.raises(NoSpeculationError, match=why):
            loaded(folder, head, name, speculation=FIXED, **options)
    monkeypatch.setattr(plan_module, "layer_functions", lambda: None)
    with loaded(folder) as llm:
        assert "has no functions for prediction heads" in llm.notes[0]
    monkeypatch.undo()
    monkeypatch.setattr(plan_module, "why_head_fails", lambda *_: "a test failed")
    with loaded(folder) as llm:
        assert llm.notes[0] == "a test failed: drafts come from elsewhere."


def test_a_kind_of_head_that_is_not_there(folder):
    with loaded(folder) as llm, pytest.raises(NoSpeculationError, match="the drafter mtp needs"):
        llm.generate("a", GREEDY, speculation=replace(FIXED, drafter="mtp"))
    with gguf_spec.load(folder / "llama.gguf", None, threads=1, n_ctx=256) as llm:
        with pytest.raises(NoSpeculationError, match="the drafter eagle3 needs") as caught:
            llm.generate("a", GREEDY, speculation=FIXED)
        assert "to the file of one" in caught.value.hint


def test_doctor_reports_that_the_head_drafts(folder):
    def checks(head, name="llama"):
        found = doctor.doctor(
            folder / f"{name}.gguf", folder / f"{head}.gguf", ContextOptions(256, 1)
        ).checks
        return {one.name: one for one in found}

    found = checks("guesser")
    assert found["draft"].found == (
        "the prediction head in guesser.gguf drafts (eagle3), unless requests run in parallel"
    )
    assert found["loading"].status == "ok"
    assert found["rollback"].status == "ok"
    assert "gives no inputs of layers" in checks("guesser", "qwen2")["draft"].found


@pytest.mark.usefixtures("unmeasured")
def test_models_lists_heads_that_fit(folder):
    """They come after the models, and `auto` does not take one."""

    def listed(target):
        found = models.find_drafts(folder / target)
        return {one.name: one for one in found}, [one.name for one in found if one.fits]

    found, fitting = listed("llama.gguf")
    assert {"guesser.gguf", "table.gguf", "random.gguf", "borrows.gguf"} <= {*fitting}
    fits = found["guesser.gguf"]
    assert fits.head == "eagle3"
    assert "it is an EAGLE-3 head for models with rows of 64 values (it reads their layers 0, 1, 1)" in fits.why  # fmt: skip
    assert fits.why.endswith("to use it, name its file as the draft")
    assert found["wide.gguf"].why.endswith(
        ": wide.gguf is for rows of 96 values, and llama.gguf has rows of 64"
    )
    assert "names tokens that are not in its vocabulary" in found["mad.gguf"].why
    found, fitting = listed("qwen2.gguf")
    assert not any(found[one].head for one in fitting)
    assert "for the architecture qwen2" in found["guesser.gguf"].why
    with gguf_spec.load(folder / "llama.gguf", threads=1, extra_bufts=False, n_ctx=256) as llm:
        assert "prediction head" not in (llm.draft_name or "")


@pytest.mark.full
def test_a_head_that_was_measured_is_listed_with_its_gain(folder):
    options = ContextOptions(extra_bufts=extra_bufts_work())
    with gguf_spec.load(
        folder / "llama.gguf", folder / "table.gguf", extra_bufts=options.extra_bufts
    ) as llm:
        llm.measure()
    one = next(one for one in models.find_drafts(folder / "llama.gguf") if one.name == "table.gguf")
    assert one.measured
    assert "measured on this machine: " in one.why


def test_a_cancelled_request_leaves_a_usable_head(folder):
    with loaded(folder) as llm:
        check_cancelled_requests(llm, FIXED)


@pytest.mark.failing_drafts
def test_a_head_that_fails_is_switched_off(folder, monkeypatch):
    with loaded(folder) as llm:
        plain = llm.generate("a", GREEDY, speculation=Speculation(k=0)).tokens
        monkeypatch.setattr("gguf_spec.llama.native_head.NativeHead.encode", lambda *_: (-3, None))
        got = llm.generate("a", GREEDY, speculation=FIXED)
        assert got.tokens == plain
        assert got.stats.why_none.startswith("the eagle3 drafter failed and was switched off")
        monkeypatch.undo()
        assert llm.generate("a", GREEDY, speculation=FIXED).stats.n_drafted > 0


@pytest.mark.full
def test_memory_stays_flat(folder):
    with loaded(folder, "table") as llm:
        check_memory_stays_flat(llm, FIXED, 60, 300, 2 << 20)


@pytest.mark.full
def test_closing_frees_the_memory_of_a_head(folder):
    sizes = []
    for _ in range(12):
        with (
            loaded(folder, "random", speculation=Speculation(k=0)) as llm,
            llm.models() as (target, _),
        ):
            target.read([40] * 200)
        sizes.append(memory_bytes())
    assert sizes[-1] - sizes[5] < 4 << 20
