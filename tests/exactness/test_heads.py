"""The same text with prediction heads as without, and what they bring."""

from dataclasses import replace

import pytest

import gguf_spec
from gguf_spec import Speculation, doctor, models
from gguf_spec.errors import NoSpeculationError, UnsupportedModelError
from gguf_spec.gguf.validation import ModelFile
from gguf_spec.llama.head import Head
from gguf_spec.llama.options import ContextOptions
from gguf_spec.registry.resolve import resolve
from gguf_spec.runtime import plan as plan_module
from gguf_spec.runtime.load_options import LoadOptions
from gguf_spec.speculative.drafters import HeadDrafter
from tests.exactness.with_heads import (
    GREEDY,
    PROMPTS,
    SAMPLED,
    check_cancelled_requests,
    check_costs_decide,
    check_restored_chat,
    check_the_same_texts,
    saved_chat,
    share_accepted,
    texts,
    tokens,
)
from tests.support import families, heads, tiny

FIXED = Speculation(k=3, drafter="mtp", adaptive=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    model = heads.trained(folder)
    tiny.write(folder / "trained.gguf", model)
    tiny.write(folder / "alone.gguf", families.without_layers(model))
    tiny.write(folder / "plain.gguf", families.family("qwen35"))
    tiny.write(folder / "random.gguf", families.with_head(families.family("qwen35")))
    tiny.write(folder / "moe.gguf", families.with_head(families.family("qwen35moe")))
    tiny.write(folder / "next.gguf", families.with_head(families.family("qwen3next")))
    tiny.write(folder / "chain.gguf", families.with_head(families.family("step35"), 3))
    tiny.write(folder / "two.gguf", families.with_head(families.family("qwen35"), 2))
    tiny.write(folder / "other.gguf", families.family("llama"))
    tiny.write(folder / "gemma4.gguf", families.family("gemma4"))
    tiny.write(folder / "assistant.gguf", families.assistant())
    return folder


def loaded(folder, name="trained", draft="auto", **options):
    usual = {"threads": 1, "extra_bufts": False, "n_ctx": 256, "draft_texts": "off"}
    options = usual | options
    return gguf_spec.load(folder / f"{name}.gguf", draft, **options)


@pytest.mark.full
def test_a_trained_head_drafts_well_and_changes_nothing(folder):
    """Chance would be one token in about 64, the number of tokens of the model's texts."""
    with loaded(folder) as llm:
        assert llm.notes == ()
        assert llm.draft_name == "trained.gguf (prediction head)"
        assert llm.profile.agreement > 0.25
        plain = tokens(texts(llm, k=0))
        assert len({*plain}) > 4
        for k, least in ((1, 0.4), (3, 0.25), (9, 0.1)):
            results = texts(llm, k=k, drafter="mtp", adaptive=False)
            assert tokens(results) == plain
            assert share_accepted(results) > least
            assert {name for one in results for name in one.stats.drafters} == {"mtp"}
            assert not any(one.stats.n_near_ties for one in results)
        for drafter in ("hybrid", "auto", "model"):
            assert tokens(texts(llm, k=4, drafter=drafter, adaptive=False)) == plain
        assert tokens(texts(llm)) == plain
        with llm.models() as (target, head):
            assert isinstance(head, Head)
            assert target.recurrent.counts.snapshots > 10
            assert head.recurrent is None


@pytest.mark.full
@pytest.mark.parametrize("name", ["random", "moe", "next", "chain"])
def test_untrained_heads_change_nothing(folder, name):
    with loaded(folder, name) as llm:
        assert llm.draft_name == f"{name}.gguf (prediction head)"
        check_the_same_texts(llm, "mtp", (2, 5))


def test_a_chain_drafts_as_many_tokens_as_it_has_heads(folder):
    with loaded(folder, "chain") as llm:
        with llm.stream("a", GREEDY, speculation=replace(FIXED, k=8)) as stream:
            assert {chunk.n_drafted for chunk in stream} <= {0, 1, 2, 3}
        assert stream.stats.n_drafted > 32


@pytest.mark.full
def test_a_head_in_a_file_of_its_own(folder):
    with loaded(folder) as llm:
        expected = texts(llm, k=3, drafter="mtp", adaptive=False)
    with loaded(folder, "plain", folder / "alone.gguf") as llm:
        assert llm.notes == ()
        assert llm.draft_name == "alone.gguf (prediction head)"
        results = texts(llm, k=3, drafter="mtp", adaptive=False)
        assert tokens(results) == tokens(expected)
        n_accepted = [sum(one.stats.n_accepted for one in got) for got in (results, expected)]
        assert abs(n_accepted[0] - n_accepted[1]) <= 0.1 * n_accepted[1]


@pytest.mark.full
def test_a_head_that_reads_the_cache_of_its_target(folder, tmp_path):
    with loaded(folder, "gemma4", folder / "assistant.gguf") as llm:
        assert llm.notes == ()
        assert llm.draft_name == "assistant.gguf (prediction head)"
        check_the_same_texts(llm, "mtp", (1, 2, 5))
        expected = saved_chat(llm, tmp_path / "session")
    with loaded(folder, "gemma4", folder / "assistant.gguf", speculation=FIXED) as llm:
        check_restored_chat(llm, tmp_path / "session", expected)
    with pytest.raises(UnsupportedModelError, match="without the layers of its model"):
        loaded(folder, "assistant", None)


@pytest.mark.full
def test_options_of_drafts_hold_for_a_head(folder, kernels):
    with loaded(folder, draft_kv_type="q8_0", draft_flash_attention="on", kv_type="f16") as llm:
        with llm.models() as (target, head):
            assert target.flash_attention == ("on" if kernels == "own" else "off")
            assert head.flash_attention == "on"
            assert head.options.kv_type == "q8_0"
        assert llm.generate("a", GREEDY, speculation=FIXED).stats.n_accepted > 0
    with pytest.raises(NoSpeculationError, match="no draft model is loaded"):
        loaded(folder, draft_lora=folder / "alone.gguf")


@pytest.mark.full
@pytest.mark.parametrize("accept", ["rejection", "block"])
def test_rules_that_draw_from_the_draft(folder, accept):
    with loaded(folder) as llm:
        results = texts(llm, k=3, drafter="mtp", adaptive=False, accept=accept)
        assert share_accepted(results) > 0.25
        greedy = tokens(texts(llm, k=0))[: len(PROMPTS)]
        assert tokens(results)[: len(PROMPTS)] == greedy


@pytest.mark.full
def test_conversations(folder):
    """Next turns, repeated and edited questions: the answers of new models, and the prefix is kept."""
    prompts = [[40, 41, 42, 43, 44, 45] * 4] * 2
    prompts += [[*prompts[0], 60, 61], [*prompts[0][:18], 70, 71], [50]]
    with loaded(folder) as llm:
        kept = []
        for prompt in prompts:
            got = llm.generate_tokens(prompt, GREEDY, speculation=FIXED)
            kept.append(got.tokens)
            turn = [*prompt, *got.tokens, 80, 81]
            kept.append(llm.generate_tokens(turn, SAMPLED, speculation=FIXED).tokens)
        with llm.models() as (_, head):
            assert head.n_past > 20
    new = []
    with loaded(folder, draft=None) as llm:
        for prompt, answer in zip(prompts, kept[::2], strict=True):
            for text, sampling in ((prompt, GREEDY), ([*prompt, *answer, 80, 81], SAMPLED)):
                llm.forget()
                new.append(llm.generate_tokens(text, sampling).tokens)
    assert kept == new


@pytest.mark.full
def test_a_head_reads_a_text_once(folder, monkeypatch):
    read, original = [], Head._pass
    monkeypatch.setattr(
        Head, "_pass", lambda self, first, ids, *rest: read.append(first) or original(self, first, ids, *rest)
    )  # fmt: skip
    question = [40 + i % 50 for i in range(120)]
    with loaded(folder) as llm:
        llm.generate_tokens(question, GREEDY, speculation=FIXED)
        read.clear()
        llm.generate_tokens([*question, 60, 61], GREEDY, speculation=FIXED)
    assert min(read) >= 119


def test_a_cancelled_request_leaves_a_usable_head(folder):
    with loaded(folder) as llm:
        check_cancelled_requests(llm, FIXED)


def test_sessions(folder, tmp_path):
    with loaded(folder, speculation=FIXED) as llm:
        expected = saved_chat(llm, tmp_path / "session")
    with loaded(folder, speculation=FIXED) as llm:
        check_restored_chat(llm, tmp_path / "session", expected, 5)


@pytest.mark.few(1)
@pytest.mark.parametrize("files", [("trained", "auto"), ("chain", "auto"), ("gemma4", "assistant")])
def test_a_kept_prefix_is_put_back_beside_a_head(folder, files, copies_pay):
    name, draft = files
    draft = draft if draft == "auto" else folder / f"{draft}.gguf"
    long, other = list(range(1, 60)) * 3, list(range(60, 1, -1)) * 3
    sampling = replace(SAMPLED, temperature=0)
    with loaded(folder, name, draft, prefix_memory="100MB") as llm:

        def answers(*prompts):
            """The answers to prompts in turns, plainly and with the head."""
            found = [
                llm.generate_tokens(prompt, sampling, speculation=way).tokens
                for prompt in prompts
                for way in (Speculation(k=0), FIXED)
            ]
            assert found[::2] == found[1::2]
            return found[::2]

        first, _ = answers(long, other)
        more = [*long, *first, 7]  # such a model goes on only with a whole text
        (later,) = answers(more)
        llm.forget()
        assert answers(more) == [later]
        kept = llm.prefix_memory
        assert kept.n_saved and kept.n_restored


@pytest.mark.full
def test_costs_decide_whether_the_head_drafts(folder, monkeypatch):
    with loaded(folder) as llm:
        check_costs_decide(llm, "mtp", 100, monkeypatch)


@pytest.mark.failing_drafts
def test_a_head_that_fails_is_switched_off(folder, monkeypatch):
    with loaded(folder) as llm:
        plain = llm.generate("a", GREEDY, speculation=Speculation(k=0)).tokens

        def fail(*_):
            raise ValueError("a fault")

        monkeypatch.setattr(Head, "_guess", fail)
        got = llm.generate("a", GREEDY, speculation=FIXED)
        assert got.tokens == plain
        assert got.stats.why_none.startswith("the mtp drafter failed and was switched off")
        monkeypatch.undo()
        assert llm.generate("a", GREEDY, speculation=FIXED).stats.n_accepted > 0


def test_a_requested_head_that_does_not_exist(folder):
    for name, why in (
        ("plain", "plain.gguf has no prediction head"),
        ("two", "two.gguf has 2"),
        ("other", "other.gguf has no prediction head"),
    ):
        with pytest.raises(NoSpeculationError, match=why):
            loaded(folder, name, "mtp")
        with pytest.raises(NoSpeculationError, match=why):
            loaded(folder, name, speculation=Speculation(drafter="mtp"))
    with pytest.raises(NoSpeculationError, match="parallel requests"):
        loaded(folder, draft="mtp", parallel=2)
    for draft in ("ngram", None):
        with loaded(folder, draft=draft) as llm, pytest.raises(NoSpeculationError, match="none is"):
            llm.generate("a", GREEDY, speculation=FIXED)


@pytest.mark.full
def test_heads_that_cannot_be_used_are_left_out_with_a_note(folder, monkeypatch):
    with loaded(folder, "two") as llm:
        assert "two.gguf has 2: drafts come from elsewhere." in llm.notes[0]
        assert llm.draft_name == "other.gguf"
        assert llm.generate(PROMPTS[0], GREEDY).tokens
    with loaded(folder, "chain", parallel=2) as llm:
        assert "not used with parallel requests" in llm.notes[0]
    with loaded(folder, "other", folder / "alone.gguf") as llm:
        assert "is for the architecture qwen35, and other.gguf is of llama" in llm.notes[0]
    monkeypatch.setattr(plan_module, "why_head_fails", lambda *_: "a test failed")
    with loaded(folder) as llm:
        assert llm.notes[0] == "a test failed: drafts come from elsewhere."
    monkeypatch.setattr(plan_module, "extensions", lambda: None)
    with loaded(folder) as llm:
        assert "has no functions for prediction heads" in llm.notes[0]


@pytest.mark.full
def test_a_head_that_does_not_fit_is_left_out(folder, monkeypatch):
    monkeypatch.setattr(plan_module, "has_room", lambda models: not models[0][1].head)
    with loaded(folder, "random") as llm:
        assert llm.notes[0] == (
            "the prediction head does not fit into memory: drafts come from the text."
        )
        assert not llm.draft_name
    with loaded(folder, "random", "mtp") as llm:
        assert llm.draft_name


def test_a_context_that_llama_cpp_refuses_is_noted(folder, monkeypatch):
    monkeypatch.setattr("gguf_spec.llama.native.Native.open_head", lambda *_: None)
    with loaded(folder) as llm:
        assert llm.notes[0].startswith("the prediction head is not used (")
        with llm.models() as (target, head):
            assert head is None
            assert target.hidden is None
        assert llm.generate(PROMPTS[0], GREEDY).tokens


def test_plain_decoding_loads_no_head(folder):
    for options in ({"draft": None}, {"draft": "ngram"}):
        with loaded(folder, **options) as llm, llm.models() as (target, head):
            assert not isinstance(head, Head)
            assert target.hidden is None


def test_a_file_with_only_a_head_is_not_a_model(folder):
    for target, draft in (("alone", None), ("other", folder / "alone.gguf")):
        if draft is None:
            with pytest.raises(UnsupportedModelError, match="without the layers of its model"):
                loaded(folder, target, draft)
        else:
            with loaded(folder, target, draft) as llm:
                assert not llm.draft_name


@pytest.mark.usefixtures("unmeasured")
def test_models_lists_a_head_among_the_drafts(folder):
    found = models.find_drafts(folder / "random.gguf")
    assert found[0].name == "mtp"
    assert found[0].fits
    listed = {one.path.name: one for one in found[1:] if one.path}
    alone = listed["alone.gguf"]
    assert (alone.head, alone.fits) == ("mtp", True)
    assert alone.why.startswith(
        "it is an MTP head for the architecture qwen35, and fits the target"
    )
    assert alone.why.endswith("to use it, name its file as the draft")
    assert listed["assistant.gguf"].why == (
        "it is an MTP head for the architecture gemma4: the prediction head assistant.gguf is for "
        "the architecture gemma4, and random.gguf is of qwen35"
    )
    others = {one.name: one for one in models.find_drafts(folder / "other.gguf")}
    assert not others["alone.gguf"].fits
    shared = {one.name: one for one in models.find_drafts(folder / "gemma4.gguf")}
    assert shared["assistant.gguf"].fits
    refused = models.find_drafts(folder / "two.gguf")
    assert [
        (one.fits, one.why.endswith("two.gguf has 2")) for one in refused if one.name == "mtp"
    ] == [(False, True)]
    assert not [one for one in models.find_drafts(folder / "plain.gguf") if one.name == "mtp"]


@pytest.mark.full
def test_doctor_reports_which_head_drafts(folder):
    def checks(name, draft="auto"):
        found = doctor.doctor(folder / f"{name}.gguf", draft, ContextOptions(256, 1)).checks
        return {one.name: one for one in found}

    for name, draft, file in (
        ("random", "auto", "random"),
        ("random", "mtp", "random"),
        ("plain", folder / "alone.gguf", "alone"),
    ):
        found = checks(name, draft)
        assert found["draft"].found == (
            f"the prediction head in {file}.gguf drafts (mtp), unless requests run in parallel"
        )
        assert found["loading"].status == "ok"
        assert found["rollback"].status == "ok"
    assert "plain.gguf has no prediction head" in checks("plain", "mtp")["draft"].found


@pytest.mark.parametrize(
    ("declared", "kind"), [(None, "own"), ("ngram", "own"), ("none", ""), ("other", "")]
)
def test_values_of_draft_in_models_yaml(folder, declared, kind):
    """`ngram` means that there is no draft model; the head in the file is none."""
    path = folder / "trained.gguf"
    entry, options = replace(resolve(path), draft=declared), ContextOptions(256, 1)
    planned = plan_module.plan(
        LoadOptions(entry=entry, file=ModelFile(path), target=options, of_draft=options.for_draft())
    )
    assert planned.head.kind == kind


def test_a_head_is_used_by_requests_that_ask_for_it(folder):
    with loaded(folder, speculation=Speculation(k=0)) as llm:
        assert llm.draft_name == "trained.gguf (prediction head)"
        assert not llm.generate("a", GREEDY).stats.n_drafted
        assert llm.generate("a", GREEDY, speculation=FIXED).stats.n_accepted > 0


def test_the_name_in_statistics():
    assert HeadDrafter.name == "mtp"


@pytest.mark.full
def test_a_measured_draft_model_that_is_faster_takes_the_place_of_a_head(tmp_path, monkeypatch):
    """Both were measured; where only one was, the head drafts."""
    tiny.write(tmp_path / "a.gguf", families.with_head(families.family("qwen35")))
    small = families.family("llama")
    small[1].pop("output.weight")
    tiny.write(tmp_path / "b.gguf", small)
    with loaded(tmp_path, "a") as llm:
        assert llm.draft_name == "a.gguf (prediction head)"
    with loaded(tmp_path, "a", tmp_path / "b.gguf") as llm:
        assert llm.draft_name == "b.gguf"
    gains = {"llama": 0.0, "qwen35": 0.0}

    def best(profile, _chance):
        return gains["llama" if min(profile.draft.values()) == llama else "qwen35"], 3

    with loaded(tmp_path, "a", tmp_path / "b.gguf") as llm:
        llama = min(llm.profile.draft.values())
    monkeypatch.setattr("gguf_spec.speculative.profile.Profile.best", best)
    for gains["llama"], gains["qwen35"], expected in (
        (1.5, 1.2, "b.gguf"),
        (1.2, 1.5, "a.gguf (prediction head)"),
    ):
        with loaded(tmp_path, "a") as llm:
            assert llm.draft_name == expected
        with loaded(tmp_path, "a", speculation=Speculation(drafter="mtp")) as llm:
            assert llm.draft_name == "a.gguf (prediction head)"
