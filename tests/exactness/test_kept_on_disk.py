"""Prompts that are kept on disk: after a restart each text has the bits that it has without one."""

import random
import shutil
import stat

import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.kept import kept_prompts, remove_kept
from gguf_spec.llama.sequence import CachedSequence
from gguf_spec.llama.state_pieces import JoinedState, end_of, take_apart
from gguf_spec.quantize import quantize
from gguf_spec.runtime import kept_prompts as of_runtime
from gguf_spec.system import piece_folder
from tests.gguf.test_near_ties import TALES
from tests.support import families

TARGET, DRAFT = TALES / "tales-target-Q8_0.gguf", TALES / "tales-draft-Q4_0.gguf"
N_CTX = 640
START = "The king had seven sons, and none of them would marry. "
TURNS = [
    "The eldest went into the forest, where an old woman sat by the fire. ",
    "She gave him a golden key and told him not to look back. ",
    "But the youngest had followed them, and hid behind a tree. ",
]


@pytest.fixture(autouse=True)
def room(monkeypatch):
    """Neither the memory nor the disk of this machine decides."""
    monkeypatch.setattr(of_runtime, "RESERVE", 0)
    monkeypatch.setattr(piece_folder, "_RESERVE", 0)


def load(keep, target=TARGET, draft=None, **options):
    options = {"threads": 1, "n_ctx": N_CTX, "prefix_memory": "64MB"} | options
    return gguf_spec.load(target, draft, keep=keep, **options)


def answer(llm, prompt, seed=1, **options):
    """Return all that must be the same, and how many tokens were not read."""
    sampling = Sampling(seed=seed, max_tokens=24, temperature=0.8, logprobs=2)
    found = llm.generate(prompt, sampling, **options)
    return (found.text, found.tokens, found.finish_reason, found.logprobs), found.stats.n_cached


def turns(llm, n=3):
    """Yield the prompts of a conversation: each is the last one with its answer and a new turn."""
    prompt = START * 6
    for i in range(n):
        said = yield prompt
        prompt += said + TURNS[i % len(TURNS)]


def conversation(opened, restart):
    """Return the answers of a chat, and the cached tokens; `restart` gives the LLM of each turn."""
    llm, found, talk = opened, [], turns(opened)
    prompt = next(talk)
    for i in range(3):
        one, n_cached = answer(llm, prompt, i)
        found.append((one, n_cached, len(llm.tokenize(prompt))))
        llm = restart(llm)
        prompt = talk.send(one[0]) if i < 2 else ""
    llm.close()
    return found


def files(folder):
    return sorted(one for one in folder.rglob("*") if one.is_file() and one.parent.name != "new")


@pytest.mark.parametrize("draft", [None, DRAFT])
def test_a_chat_of_which_each_turn_is_after_a_restart(tmp_path, draft):
    expected = conversation(load(None, draft=draft), lambda llm: llm)

    def restart(llm):
        llm.close()
        return load(tmp_path / "kept", draft=draft)

    found = conversation(load(tmp_path / "kept", draft=draft), restart)
    assert [one[0] for one in found] == [one[0] for one in expected]
    for (_, n_cached, n), (_, n_usual, _) in zip(found[1:], expected[1:], strict=True):
        assert n_usual - 1 <= n_cached < n, "only what is new is read"
        assert n_cached > 100
    assert {stat.S_IMODE(one.stat().st_mode) for one in files(tmp_path)} == {0o600}
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700


def kept_text(folder, **options):
    """Keep a text; return its answer."""
    with load(folder, **options) as llm:
        return answer(llm, START * 8)[0]


def n_used(folder, expected, **options):
    """Return how many tokens of the text are cached for another process; its answer must be equal."""
    with load(folder, **options) as llm:
        found, n_cached = answer(llm, START * 8)
    assert found == expected
    return n_cached


def test_the_longest_common_prefix(tmp_path):
    """A text that parts from a kept one inside of a block, and one that is a part of it."""
    kept_text(tmp_path)
    prompts = [START * 4 + "A fox came by. ", START * 2, START * 8, "A fox. " + START * 3]
    with load(None) as llm:
        expected = []
        for one in prompts:
            llm.forget()
            expected.append(answer(llm, one)[0])
        whole = llm.tokenize(START * 8)
        parts = [llm.tokenize(one) for one in prompts]
    for prompt, wanted, ids in zip(prompts, expected, parts, strict=True):
        with load(None) as fresh, load(shutil.copytree(tmp_path, tmp_path / str(len(ids)))) as llm:
            assert answer(fresh, prompt)[1] == 0
            found, n_cached = answer(llm, prompt)
        assert found == wanted
        same = next((i for i, (a, b) in enumerate(zip(ids[:-1], whole)) if a != b), len(ids) - 1)
        assert n_cached == (same if same >= 64 else 0)


@pytest.mark.parametrize("kind", ["exact", "grid"])
@pytest.mark.parametrize("n", [(1, 3), (3, 1)])
def test_another_number_of_requests_at_once(tmp_path, kind, n):
    target = TARGET
    if kind == "grid":
        quantize(TARGET, tmp_path / "Q4_K_M.gguf", "Q4_K_M")
        target = tmp_path / "Q4_K_M.gguf"
    options = {"target": target, "kernels": "auto"}
    expected = kept_text(tmp_path / "kept", parallel=n[0], **options)
    assert n_used(tmp_path / "kept", expected, parallel=n[1], **options) >= 64
    assert n_used(None, expected, parallel=n[1], **options) == 0


@pytest.mark.parametrize("options", [{"flash_attention": "off"}, {"kv_type": "q8_0"}, {"n_ctx": 512}])
def test_options_that_have_states_of_their_own(tmp_path, options):
    """Transposed values, quantised ones, and another length, which has the same states."""
    kept_text(tmp_path)
    with load(None, **options) as llm:
        expected = answer(llm, START * 8)[0]
    is_same = "n_ctx" in options
    assert (n_used(tmp_path, expected, **options) > 0) == is_same
    assert n_used(tmp_path, expected, **options) > 0


def test_other_files_of_the_same_name_and_size(tmp_path, gguf_dir):
    """The prompts of a model are not those of another one under its name."""
    words = "the and of a in on " * 20
    sampling = Sampling(temperature=0, max_tokens=9, ignore_eos=True, logprobs=1)
    for name in ("llama", "cousin", "llama"):
        shutil.copy(gguf_dir / f"{name}.gguf", tmp_path / "model.gguf")
        with load(None, tmp_path / "model.gguf", n_ctx=256) as llm:
            expected = llm.generate(words, sampling)
        with load(tmp_path / "kept", tmp_path / "model.gguf", n_ctx=256) as llm:
            found = llm.generate(words, sampling)
            again = llm.generate(words, sampling)
        assert (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)
        assert (again.tokens, again.logprobs) == (expected.tokens, expected.logprobs)
    assert found.stats.n_cached > 64, "the first model again"


# ---- models whose states belong to one place of a text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    for name in families.NAMES:
        families.write_family(folder, name)
    return folder


FEW = ("qwen3", "gemma3", "gpt-oss", "qwen35", "granitehybrid", "mamba2", "rwkv7")


@pytest.mark.parametrize("name", families.NAMES)
@pytest.mark.parametrize("parallel", [1, 3])
def test_a_state_is_that_of_its_pieces(folder, name, parallel):
    """For each architecture, and with pieces of the state of a shorter text."""
    text = "of the of the of the of Once upon a time and in or re and in"
    options = {"threads": 1, "extra_bufts": False, "n_ctx": 256, "parallel": parallel}
    sampling = Sampling(temperature=0, max_tokens=40, ignore_eos=True)
    with gguf_spec.load(folder / f"{name}.gguf", "none", **options) as llm:
        cut = []
        for one in (text, text + " of the of the"):
            llm.generate(one, sampling)
            cache = next(one.target for one in llm._pair.slots if one.target.n_past)
            assert isinstance(cache, CachedSequence)
            state = cache.state()
            cut.append((take_apart(cache, state), len(cache.cached)))
        (before, _), (now, n) = cut
        n_same = len(llm.tokenize(text))
        joined = JoinedState(cache, now.columns, n, now.end.tobytes())
        for part, start, stop in ((before, 0, 9), (before, 9, n_same), (now, n_same, n)):
            joined.put(start, stop, memoryview(part.piece(start, stop)), stop - start)
        assert np.array_equal(joined.data, state)
        assert bool(len(now.end)) == bool(cache.recurrent or cache.least_cut_of_state(10**6))
        if cache.recurrent:
            cache.recurrent.hold(lasting=True)
            assert end_of(cache.recurrent.kept[-1]) == now.end.tobytes()
        cache.context.close() if False else None


@pytest.mark.parametrize("name", FEW)
def test_a_chat_with_restarts_for_each_kind_of_layers(folder, tmp_path, name):
    """Text, log-probabilities, and what is read are those without a restart."""
    options = {"target": folder / f"{name}.gguf", "extra_bufts": False, "n_ctx": 1024}
    base = " ".join(["of the and in or re"] * 40)
    rng = random.Random(1)
    more = [" ".join(rng.choices(["of", "the", "and", "in", "or", "a"], k=30)) for _ in range(3)]
    found, prompts = [], []

    def ask(llm, prompt):
        sampling = Sampling(seed=7, max_tokens=20, temperature=0.8, logprobs=1, ignore_eos=True)
        one = llm.generate(prompt, sampling)
        return (one.tokens, one.logprobs, one.finish_reason), one.stats.n_cached

    with load(None, **options) as llm:
        prompt = llm.tokenize(base)
        for one in more:
            prompts.append(prompt)
            got = ask(llm, prompt)
            found.append(got)
            prompt = [*prompt, *got[0][0], *llm.tokenize(one)]
    for prompt, (wanted, n_usual) in zip(prompts, found, strict=True):
        with load(tmp_path, **options) as llm:
            got, n_cached = ask(llm, prompt)
            assert got == wanted
            assert n_cached >= n_usual - 1 or not n_usual
    with load(tmp_path, parallel=2, **options) as llm:
        got, n_cached = ask(llm, prompts[-1])
    assert got == found[-1][0]
    assert n_cached > 64
