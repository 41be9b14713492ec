"""The draft that is found among files on the disk, by their headers alone."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import gguf_spec
from gguf_spec.gguf import validation
from gguf_spec.gguf.validation import ModelFile, read_header
from gguf_spec.gguf.vocabulary import FileVocabulary
from gguf_spec.llama import context as context_module
from gguf_spec.llama import memory
from gguf_spec.llama.context import Context
from gguf_spec.llama.native import Native
from gguf_spec.llama.options import ContextOptions
from gguf_spec.registry import download
from gguf_spec.registry.resolve import resolve
from gguf_spec.runtime import draft_search
from gguf_spec.runtime.draft_search import candidates, choose
from gguf_spec.runtime.load_options import LoadOptions
from gguf_spec.runtime.profile_files import ModelKey, write_profile
from gguf_spec.speculative.drafters import N_CONFIDENCE_BUCKETS
from gguf_spec.speculative.profile import Profile
from gguf_spec.system.files import cache_file
from tests.support import tiny

OPTIONS = ContextOptions(threads=1)
OTHER_TOKENS = [*tiny.TOKENS[:40], "another", *tiny.TOKENS[41:]]


@pytest.fixture
def home(tmp_path, monkeypatch, set_hub):
    """An empty home folder."""
    for name in (
        "HF_HOME",
        "HF_HUB_CACHE",
        "LLAMA_CACHE",
        "OLLAMA_MODELS",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    set_hub(HF_HUB_CACHE=str(tmp_path / "home/.cache/huggingface/hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home/.cache"))
    return tmp_path / "home"


@pytest.fixture
def target(tmp_path):
    (tmp_path / "models").mkdir()
    return tiny.write(tmp_path / "models/target.gguf", tiny.llama(n_layer=40))


def put(path, *model, **changes):
    path.parent.mkdir(parents=True, exist_ok=True)
    return tiny.write(path, *model, **changes)


def to_load(target, options, name=None, overlay=None):
    """A target with its options, under its name in a models file."""
    return LoadOptions(
        entry=resolve(name, overlay) if name else resolve(target),
        file=ModelFile(target),
        target=options,
        of_draft=OPTIONS,
        models_file=overlay,
    )


def names(target):
    return {one.name: one for one in candidates(to_load(target, OPTIONS))}


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": None},
        {"tokenizer.ggml.pre": "smollm", "tokenizer.ggml.add_bos_token": None},
        {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True},
        {"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.eos_token_id": None},
        {"tokenizer.ggml.bos_token_id": 100_000},
        {"tokenizer.ggml.pre": "glm4", "tokenizer.ggml.bos_token_id": None},
        {"tokenizer.ggml.model": "t5"},
    ],
)
def test_the_header_gives_the_vocabulary_of_llama_cpp(tmp_path, metadata):
    tokens = [*tiny.TOKENS[:50], "", "zz\0b", *tiny.TOKENS[50:]]
    path = tiny.write(
        tmp_path / "a.gguf", tiny.llama(n_vocab=len(tokens)), tokens=tokens, metadata=metadata
    )
    model, of_file = (
        Context(path, replace(OPTIONS, extra_bufts=False)).weights,
        FileVocabulary(read_header(path)),
    )
    assert of_file.special_tokens == model.special_tokens
    assert [of_file.token_text(i) for i in range(len(tokens))] == [
        model.token_text(i) for i in range(len(tokens))
    ]
    model.close()


def test_so_it_does_for_the_bundled_pair():
    for name in ("tales", "tales-draft"):
        path = download.path(resolve(name))
        model, of_file = Context(path, OPTIONS).weights, FileVocabulary(read_header(path))
        assert of_file.special_tokens == model.special_tokens
        assert all(of_file.token_text(i) == model.token_text(i) for i in range(model.n_vocab))
        model.close()


def test_the_right_draft_among_ten_caches_with_decoys(home, target, monkeypatch):
    hub, lm, ollama = (
        home / ".cache/huggingface/hub",
        home / ".lmstudio/models",
        home / ".ollama/models/blobs",
    )
    right = put(hub / "models--a--right/snapshots/0/right.gguf", tiny.llama(n_layer=4))
    put(hub / "models--b--larger/snapshots/0/larger.gguf", tiny.llama(n_layer=60))
    put(hub / "models--c--words/snapshots/0/words.gguf", tiny.llama(), tokens=OTHER_TOKENS)
    cut = put(hub / "models--d--cut/snapshots/0/cut.gguf", tiny.llama(n_layer=4))
    os.truncate(cut, cut.stat().st_size - 1000)
    put(home / ".cache/llama.cpp/state.gguf", tiny.mamba())
    put(
        home / ".cache/llama.cpp/begins.gguf",
        tiny.llama(),
        metadata={"tokenizer.ggml.add_bos_token": True},
    )
    put(lm / "someone/slow.gguf", tiny.llama(n_layer=35))
    put(lm / "someone/adapter.gguf", metadata={"general.type": "adapter"})
    put(target.parent / "twin.gguf", tiny.llama(n_layer=40))
    ollama.mkdir(parents=True)
    (ollama / "sha256-0123").write_bytes(b"not a model")
    (home / ".cache/llama.cpp/empty.gguf").touch()
    monkeypatch.setattr(
        context_module.C,
        "llama_model_load_from_file",
        lambda *_: pytest.fail("weights were loaded"),
    )
    found, why = choose(to_load(target, OPTIONS))
    assert (found.path, found.name) == (right, "right.gguf")
    assert (
        why
        == "the draft is right.gguf: it has the same vocabulary and has 13% of the target's size."
    )
    others = names(target)
    # Those with other words or another start are translated, and never taken unasked.
    for name in ("words.gguf", "begins.gguf"):
        assert others[name].translated
        assert "it has another tokenizer, with 99% common tokens," in others[name].why
    assert "it is not smaller than the target" in others["larger.gguf"].why
    assert "it is not smaller than the target" in others["twin.gguf"].why
    assert "cut short" in others["cut.gguf"].why
    assert others["state.gguf"].why.startswith("it has the same vocabulary")
    assert "adapter" in others["adapter.gguf"].why
    assert "GGUF" in others["empty.gguf"].why
    assert others["slow.gguf"].fits
    assert 0 < others["slow.gguf"].gain < found.gain
    assert not any(
        others[name].fits
        for name in (
            "larger.gguf",
            "twin.gguf",
            "cut.gguf",
            "adapter.gguf",
        )
    )


def test_ollamas_blobs_have_no_names(home, target):
    blob = put(home / ".ollama/models/blobs/sha256-abc", tiny.llama(n_layer=4))
    assert choose(to_load(target, OPTIONS))[0].path == blob


def test_a_file_linked_to_from_two_places_is_one_candidate(home, target):
    real = put(home / ".cache/huggingface/hub/blobs/0.gguf", tiny.llama())
    (home / ".cache/huggingface/hub/link.gguf").symlink_to(real)
    (target.parent / "itself.gguf").symlink_to(target)
    (target.parent / "nowhere.gguf").symlink_to(home / "nothing.gguf")
    assert [
        one.path.resolve()
        for one in candidates(to_load(target, OPTIONS))
        if one.fits and not one.translated
    ] == [real]
    assert "itself.gguf" not in names(target)


def test_nothing_to_find(home, target):
    found, why = choose(to_load(target, OPTIONS))
    assert found is None
    assert (
        why
        == "no draft on this disk makes target.gguf faster: drafts come from the text only. To use one, set draft to a model."
    )


def test_drafts_of_models_yaml_are_first_and_marked(home, target, tmp_path):
    small, smaller = (
        put(tmp_path / "small.gguf", tiny.llama(n_layer=8)),
        put(tmp_path / "models/smaller.gguf", tiny.llama(n_layer=2)),
    )
    overlay = tmp_path / "more.yaml"
    overlay.write_text(
        f"models:\n  big: {{path: {target}, draft: small}}\n  small: {{path: {small}}}\n"
    )
    found, why = choose(to_load(target, OPTIONS, "big", overlay))
    assert (found.path, found.declared, why) == (small, True, "")
    small.unlink()
    found, why = choose(to_load(target, OPTIONS, "big", overlay))
    assert (found.path, found.declared) == (smaller, False)
    assert why


def test_what_is_not_on_the_disk_is_named(home, target, tmp_path):
    overlay = tmp_path / "more.yaml"
    pin = "0" * 40
    overlay.write_text(
        f"models:\n  big: {{path: {target}, draft: away, tokenizer: zoo}}\n"
        f"  away: {{repo: a/b, file: c.gguf, revision: '{pin}', size_bytes: 1000, sha256: null, license: mit, tokenizer: zoo}}\n"
    )
    found, why = choose(to_load(target, OPTIONS, "big", overlay))
    assert found is None
    assert why.endswith("To download one, use gguf_spec.pull('away').")


def test_costs_that_were_measured_count_more_than_sizes(home, target):
    plain = replace(OPTIONS, extra_bufts=False)  # as after a `tune` that found plain kernels faster
    light, heavy = (
        put(target.parent / "light.gguf", tiny.llama(n_layer=2)),
        put(target.parent / "heavy.gguf", tiny.llama(n_layer=20)),
    )
    assert choose(to_load(target, plain))[0].path == light

    def measured(draft, right):
        profile = Profile(
            {1: 0.1, 33: 0.11},
            {1: 0.0},
            {1: 0.001, 33: 0.01},
            {1: 0.0},
            {},
            ((right * 100.0, 100.0),) * N_CONFIDENCE_BUCKETS,
            1.0,
        )
        assert write_profile(
            ModelKey(ModelFile(target), plain), ModelKey(ModelFile(draft), OPTIONS), profile
        )

    measured(light, 0.05)
    measured(heavy, 0.9)
    found, why = choose(to_load(target, plain))
    assert found.path == heavy
    assert "measured on this machine" in why


@pytest.mark.parametrize(("places", "is_known"), [(0.0, False), (2.0, False), (3.0, True)])
def test_few_positions_of_answers_are_no_measurement_of_a_draft(home, target, places, is_known):
    """Of costs that answers showed: `right` counts what they drafted."""
    light = put(target.parent / "light.gguf", tiny.llama(n_layer=2))
    right = ((0.0, places),) * N_CONFIDENCE_BUCKETS
    profile = Profile({1: 0.1, 33: 0.3}, {}, {1: 0.01, 33: 0.1}, {}, {}, right, 0.0)
    assert write_profile(
        ModelKey(ModelFile(target), OPTIONS), ModelKey(ModelFile(light), OPTIONS), profile
    )
    assert names(target)["light.gguf"].measured is is_known
    found, _ = choose(to_load(target, OPTIONS))
    assert (found is None) is is_known, "it was never right"


def test_comparisons_are_cached_until_a_file_changes(home, target, monkeypatch):
    other = put(target.parent / "other.gguf", tiny.llama(), tokens=OTHER_TOKENS)
    assert names(target)["other.gguf"].translated
    compare = draft_search.check_vocabulary
    monkeypatch.setattr(draft_search, "check_vocabulary", lambda *_: pytest.fail("compared again"))
    assert names(target)["other.gguf"].translated
    monkeypatch.setattr(draft_search, "check_vocabulary", compare)
    put(other, tiny.llama())
    assert not names(target)["other.gguf"].translated


def test_a_load_counts_no_common_tokens_where_they_decide_nothing(home, target, monkeypatch):
    """It took a second of a first load: a draft with another tokenizer is chosen if it was measured or is declared."""
    count = draft_search.common_share
    put(target.parent / "other.gguf", tiny.llama(), tokens=OTHER_TOKENS)
    with monkeypatch.context() as patch:
        patch.setattr(draft_search, "common_share", lambda *_: pytest.fail("counted"))
        for _ in range(2):  # the second one finds the result in the cache
            assert choose(to_load(target, OPTIONS))[0] is None
    counted = []
    monkeypatch.setattr(draft_search, "common_share", lambda *a: counted.append(1) or count(*a))
    assert "common tokens" in names(target)["other.gguf"].why
    n_counted = len(counted)
    assert choose(to_load(target, OPTIONS))[0] is None
    assert len(counted) == n_counted
    overlay = target.parent / "more.yaml"
    other = target.parent / "other.gguf"
    overlay.write_text(f"models:\n  big: {{path: {target}, draft: it}}\n  it: {{path: {other}}}\n")
    other.touch()  # another file
    os.utime(other, (1, 1))
    found, _ = choose(to_load(target, OPTIONS, "big", overlay))
    assert (found.path, found.translated, len(counted)) == (other, True, n_counted + 1)


@pytest.mark.full
def test_loading_finds_the_draft_and_notes_it(home, target):
    put(target.parent / "right.gguf", tiny.llama(n_layer=4))
    with gguf_spec.load(target, threads=1, extra_bufts=False) as llm:
        assert llm.draft_name == "right.gguf"
        assert llm.notes[0].startswith("the draft is right.gguf: it has")
    with gguf_spec.load(target, "none", threads=1, extra_bufts=False) as llm:
        assert (llm.draft_name, llm.notes) == (None, ())
    assert cache_file("pairs", []).parent.exists()


# ---- each step of a load, once and in order


@pytest.fixture
def steps(monkeypatch):
    """List the headers that are read, the memory checks and the models that are loaded."""
    seen = []

    def listed(module, name, describe):
        original = getattr(module, name)

        def call(*args):
            if "attention.gguf" not in (step := describe(*args)):  # the probe is another model
                seen.append(step)
            return original(*args)

        monkeypatch.setattr(module, name, call)

    listed(validation, "_read", lambda path: f"header of {path.name}")
    listed(memory, "available_bytes", lambda: "memory")
    listed(Native, "load", lambda self, path, *_: f"load {Path(os.fsdecode(path)).name}")
    return seen


# the check, and the memory for kept prefixes
LOADED = ["memory", "memory", "load target.gguf", "load right.gguf"]


@pytest.mark.full
def test_a_pair_is_read_once_checked_once_and_then_loaded(home, target, steps):
    right = put(target.parent / "right.gguf", tiny.llama(n_layer=4))
    gguf_spec.load(target, right, threads=1, extra_bufts=False).close()
    assert steps == ["header of target.gguf", "header of right.gguf", *LOADED]


@pytest.mark.full
def test_so_is_a_draft_that_is_found(home, target, steps):
    put(target.parent / "right.gguf", tiny.llama(n_layer=4))
    put(target.parent / "another.gguf", tiny.llama(n_layer=2), tokens=OTHER_TOKENS)
    gguf_spec.load(target, threads=1, extra_bufts=False).close()
    headers, rest = steps[:-4], steps[-4:]
    assert headers[0] == "header of target.gguf"
    assert set(Counter(headers).values()) == {1}
    assert {"header of right.gguf", "header of another.gguf"} < set(headers)
    assert rest == LOADED


def test_a_declared_draft_that_does_not_fit_is_read_once(home, target, tmp_path, steps):
    wrong = put(tmp_path / "wrong.gguf", tiny.llama(n_layer=60))
    overlay = tmp_path / "more.yaml"
    overlay.write_text(
        f"models:\n  big: {{path: {target}, draft: wrong}}\n  wrong: {{path: {wrong}}}\n"
    )
    found, _ = choose(to_load(target, OPTIONS, "big", overlay))
    assert found is None
    assert steps.count("header of wrong.gguf") == 1


def test_a_pair_that_does_not_fit_is_refused_before_anything_is_loaded(
    home, target, steps, free_memory
):
    right = put(target.parent / "right.gguf", tiny.llama(n_layer=4))
    free_memory(1000)
    with pytest.raises(
        gguf_spec.errors.NotEnoughMemoryError, match=r"target\.gguf and right\.gguf"
    ):
        gguf_spec.load(target, right, threads=1, extra_bufts=False)
    assert steps == ["header of target.gguf", "header of right.gguf"]
