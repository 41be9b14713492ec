"""Prompts that are kept on disk: after a restart each text has the bits that it has without one."""

import concurrent.futures
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
from gguf_spec.system.piece_folder import PieceFolder
from gguf_spec.vocabulary import common
from tests.gguf.test_lora import write as write_adapter
from tests.gguf.test_near_ties import TALES
from tests.support import families

TARGET, DRAFT = TALES / "tales-target-Q8_0.gguf", TALES / "tales-draft-Q4_0.gguf"
N_CTX = 640
START = "The king had seven sons, and none of them would marry. "
WHOLE = START * 14  # two blocks and a part of one
TURNS = [
    "The eldest went into the forest, where an old woman sat by the fire. ",
    "She gave him a golden key and told him not to look back. ",
    "But the youngest had followed them, and hid behind a tree. ",
]


@pytest.fixture(autouse=True)
def room(monkeypatch):
    """Neither the memory nor the disk of this machine decides."""
    monkeypatch.setattr(of_runtime, "RESERVE", 0)
    monkeypatch.setattr(PieceFolder, "reserve", 0)


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


@pytest.mark.parametrize("draft", [None, pytest.param(DRAFT, marks=pytest.mark.full)])
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
        return answer(llm, WHOLE)[0]


def n_used(folder, expected, **options):
    """Return how many tokens of the text are cached for another process; its answer must be equal."""
    with load(folder, **options) as llm:
        found, n_cached = answer(llm, WHOLE)
    assert found == expected
    return n_cached


def test_the_longest_common_prefix(tmp_path):
    """A text that parts from a kept one inside of a block, and one that is a part of it."""
    kept_text(tmp_path)
    prompts = [START * 8 + "A fox came by. ", START * 5, WHOLE, "A fox. " + START * 3]
    with load(None) as llm:
        expected = []
        for one in prompts:
            llm.forget()
            expected.append(answer(llm, one)[0])
        whole = llm.tokenize(WHOLE)
        parts = [llm.tokenize(one) for one in prompts]
    for prompt, wanted, ids in zip(prompts, expected, parts, strict=True):
        with load(None) as fresh, load(shutil.copytree(tmp_path, tmp_path / str(len(ids)))) as llm:
            assert answer(fresh, prompt)[1] == 0
            found, n_cached = answer(llm, prompt)
        assert found == wanted
        same = common(ids[:-1], whole)
        assert n_cached == (same if same >= 64 else 0)


@pytest.mark.full
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


@pytest.mark.parametrize(
    "options", [{"flash_attention": "off"}, {"kv_type": "q8_0"}, {"n_ctx": 512}]
)
def test_options_that_have_states_of_their_own(tmp_path, options):
    """Transposed values, quantised ones, and another length, which has the same states."""
    kept_text(tmp_path)
    with load(None, **options) as llm:
        expected = answer(llm, WHOLE)[0]
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


@pytest.mark.full
def test_one_byte_between_the_samples(tmp_path):
    """Sessions take samples of a file. Here all of it counts, and what was measured for it stays."""
    for name in ("kept", "a", "b"):
        (tmp_path / name).mkdir()
    data = bytearray(TARGET.read_bytes())
    (tmp_path / "a" / "model.gguf").write_bytes(data)
    at = len(data) // 2 + 100_000
    data[at] ^= 1
    (tmp_path / "b" / "model.gguf").write_bytes(data)
    expected = kept_text(tmp_path / "kept", target=tmp_path / "a" / "model.gguf")
    with load(tmp_path / "kept", tmp_path / "b" / "model.gguf") as llm:
        llm.engine.kept.disk.flush()
        assert answer(llm, WHOLE)[1] == 0
    copy = shutil.copy(tmp_path / "a" / "model.gguf", tmp_path / "copy.gguf")
    with load(tmp_path / "kept", copy) as llm:
        llm.engine.kept.disk.flush()
        assert answer(llm, WHOLE) == (expected, len(llm.tokenize(WHOLE)) - 1)


# ---- models whose states belong to one place of a text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    for name in families.NAMES:
        families.write_family(folder, name)
    return folder


FEW = ("qwen3", "gemma3", "gpt-oss", "qwen35", "granitehybrid", "mamba2", "rwkv7")


@pytest.mark.full
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
            cache = next(one.target for one in llm.engine.pair.slots if one.target.n_past)
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


@pytest.mark.full
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


# ---- bad files, and what others do to the folder


def damage(folder, how, rng):
    """Damage files of the folder; return whether all of them are."""
    all_ = files(folder)
    if how == "gone":
        shutil.rmtree(folder)
        return
    if how == "first gone":  # what follows it cannot be found
        removed = [one for one in all_ if one.stat().st_size]
        rng.choice(removed).unlink()
        return
    for one in all_ if how != "one bit" else [rng.choice(all_)]:
        data = bytearray(one.read_bytes())
        if how == "cut":
            del data[rng.randrange(len(data)) :]
        elif how == "zeros":
            data = bytearray(len(data))
        else:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        one.write_bytes(data)


@pytest.mark.full
@pytest.mark.parametrize("how", ["one bit", "bits", "cut", "zeros", "gone", "first gone"])
def test_damaged_files_are_read_again(tmp_path, how):
    """Whatever is damaged, the text is right, and it is kept again."""
    expected = kept_text(tmp_path / "kept")
    for seed in range(3):
        damage(tmp_path / "kept", how, random.Random(seed))
        n_cached = n_used(tmp_path / "kept", expected)
        assert n_cached < 64 or how in ("one bit", "first gone")
        assert n_used(tmp_path / "kept", expected) > 100, "it was kept again"


@pytest.mark.full
def test_damages_while_it_is_in_use(tmp_path):
    """Files go and change between two requests of one process."""
    prompts = [f"{START * 7}{one}" for one in TURNS]
    with load(None) as llm:
        expected = []
        for i, one in enumerate(prompts):
            llm.forget()
            expected.append(answer(llm, one, i)[0])
    for one in prompts:
        with load(tmp_path / "kept") as llm:
            answer(llm, one)
    for how in ("one bit", "gone", "bits", "cut"):
        with load(tmp_path / "kept", prefix_memory=0) as llm:
            for i, one in enumerate(prompts):
                if (tmp_path / "kept").exists():
                    damage(tmp_path / "kept", how, random.Random(i))
                assert answer(llm, one, i)[0] == expected[i]
                answer(llm, "Something else.")


def test_a_state_that_llama_cpp_refuses(tmp_path, monkeypatch):
    expected = kept_text(tmp_path)
    monkeypatch.setattr(CachedSequence, "restore", lambda self, *_: self.rollback(0))
    assert n_used(tmp_path, expected) == 0


def test_what_a_program_of_another_form_wrote(tmp_path, monkeypatch):
    """The hash is right, but what the file says of its state is not that of this one."""
    monkeypatch.setattr(of_runtime.Chain, "_write", _write_nonsense(of_runtime.Chain._write))
    expected = kept_text(tmp_path)
    monkeypatch.undo()
    assert n_used(tmp_path, expected) == 0


def _write_nonsense(write):
    def nonsense(chain, cut, *args):
        cut.columns = [cut.columns[0]._replace(width=4), *cut.columns[1:-1]]
        return write(chain, cut, *args)

    return nonsense


def test_a_disk_that_is_slower_than_reading(tmp_path, monkeypatch):
    """No piece is read after the time in which the text is read."""
    expected = kept_text(tmp_path)
    monkeypatch.setattr(of_runtime.Chain, "load", _late(of_runtime.Chain.load))
    assert n_used(tmp_path, expected) == 0


def _late(load_):
    return lambda chain, cache, tokens, use, until: load_(chain, cache, tokens, use, -1.0)


def test_little_memory(tmp_path, monkeypatch):
    expected = kept_text(tmp_path)
    monkeypatch.setattr(of_runtime, "RESERVE", 1 << 60)
    assert n_used(tmp_path, expected) == 0


def test_a_disk_that_is_full(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(PieceFolder, "reserve", 1 << 60)
    expected = kept_text(tmp_path)
    assert caplog.text.count("left on its disk") == 1
    monkeypatch.undo()
    assert n_used(tmp_path, expected) == 0


def test_a_folder_that_cannot_be_used(tmp_path, monkeypatch, caplog):
    """The model is loaded all the same."""
    (tmp_path / "file").touch()
    kept_text(tmp_path / "file" / "kept")
    assert caplog.text.count("prompts are not kept on disk") == 1
    with pytest.raises(gguf_spec.errors.InvalidOptionError, match="a file has this name"):
        load(tmp_path / "file")
    for wrong in ("256", "12XB", -1, 1.5, True, b"x"):
        with pytest.raises(gguf_spec.errors.InvalidOptionError, match="such as 20GB"):
            load(wrong)


def test_two_programs_at_once(tmp_path):
    """Both keep and find, and share what begins alike."""
    with load(tmp_path) as one, load(tmp_path, parallel=2) as other:
        first = answer(one, WHOLE)
        one.engine.kept.disk.flush()
        n_files = len(files(tmp_path))
        second = answer(other, WHOLE)
        assert second[0] == first[0]
        assert second[1] > 64
        other.engine.kept.disk.flush()
        assert len(files(tmp_path)) == n_files
        other.forget()
        assert not files(tmp_path)
        assert answer(one, WHOLE)[0] == first[0]


@pytest.mark.full
def test_an_end_at_each_file(tmp_path, monkeypatch):
    """A process that dies while it keeps: the next one has the same text, whatever is there."""
    expected, n_cached = kept_text(tmp_path / "whole"), []
    write = PieceFolder.write
    n_files = len(files(tmp_path / "whole"))
    for n in range(n_files + 1):
        left = iter(range(n))

        def dying(self, piece, about, data, left=left):
            if next(left, None) is None:
                raise OSError("the process ended here")
            return write(self, piece, about, data)

        with monkeypatch.context() as patch:
            patch.setattr(PieceFolder, "write", dying)
            kept_text(tmp_path / str(n))
        n_cached.append(n_used(tmp_path / str(n), expected))
    assert n_cached == sorted(n_cached)
    assert n_cached[0] == 0
    assert n_cached[-1] > 100


# ---- when it is kept, and what it costs


def test_off_by_default(tmp_path, monkeypatch):
    """No folder, no thread, no question to the disk."""
    monkeypatch.setattr(of_runtime.KeptPrompts, "__init__", None)
    monkeypatch.setenv("GGUF_SPEC_KEEP", str(tmp_path / "kept"))
    for keep in (None, 0, "0", ""):
        with load(keep) as llm:
            answer(llm, WHOLE)
            assert llm.engine.kept.disk is None
    assert not (tmp_path / "kept").exists()


def test_what_copies_for_longer_than_it_saves_is_kept_at_the_end_only(tmp_path, monkeypatch):
    expected = None
    with load(tmp_path) as llm:
        monkeypatch.setattr(type(llm.engine.kept), "pays", lambda *_, **__: False)
        expected = answer(llm, WHOLE)[0]
        llm.engine.kept.disk.flush()
        assert not files(tmp_path)
    monkeypatch.undo()
    assert files(tmp_path)
    assert n_used(tmp_path, expected) > 100


def test_only_what_is_new_is_written(tmp_path):
    kept_text(tmp_path)
    before = {one: one.stat().st_ino for one in files(tmp_path)}
    with load(tmp_path) as llm:
        answer(llm, WHOLE)
        answer(llm, START * 20)
    after = {one: one.stat().st_ino for one in files(tmp_path)}
    same = [one for one in before if after.get(one) == before[one]]
    assert len(same) >= len(before) - 1, "but for the end of the first text"


def test_a_cancelled_request_keeps_what_it_read(tmp_path):
    prompt = WHOLE
    with load(tmp_path) as llm:
        stream = llm.stream(prompt, Sampling(max_tokens=400))
        next(stream)
        stream.cancel()
        assert [*stream][-1].finish_reason == "cancelled"
        llm.engine.kept.disk.flush()
        assert files(tmp_path)


def test_what_is_forgotten_is_removed(tmp_path):
    other = tmp_path / "Q4_K_M.gguf"
    quantize(TARGET, other, "Q4_K_M")
    kept_text(tmp_path / "kept", target=other)
    of_other = {*files(tmp_path / "kept")}
    with load(tmp_path / "kept") as llm:
        answer(llm, WHOLE)
        llm.engine.kept.disk.flush()
        assert {*files(tmp_path / "kept")} > of_other
        llm.forget()
        assert {*files(tmp_path / "kept")} == of_other
        assert answer(llm, WHOLE)[1] == 0


def test_prompts_are_listed_and_removed(tmp_path):
    kept_text(tmp_path)
    with load(tmp_path) as llm:
        answer(llm, START * 6 + TURNS[1])
        n = len(llm.tokenize(WHOLE))
    found = kept_prompts(tmp_path)
    assert (found.n_prompts, len(found.prompts)) == (2, 2)
    newest, oldest = found.prompts
    assert oldest.title.startswith(START[:40])
    assert oldest.model == TARGET.name
    assert oldest.n_tokens >= n - 1
    assert 64 < newest.n_tokens < n
    assert newest.n_bytes < found.n_bytes < newest.n_bytes + oldest.n_bytes
    assert kept_prompts(tmp_path, 1).prompts == (newest,)
    assert remove_kept(tmp_path, [newest.id])[0] == 1
    assert [one.id for one in kept_prompts(tmp_path).prompts] == [oldest.id]
    with pytest.raises(gguf_spec.errors.InvalidOptionError, match="kept prompt"):
        remove_kept(tmp_path, [newest.id])
    with load(tmp_path) as llm:
        assert answer(llm, WHOLE)[1] == n - 1
    assert remove_kept(tmp_path)[1] > 0
    assert kept_prompts(tmp_path).n_prompts == len(files(tmp_path)) == 0


@pytest.mark.full
@pytest.mark.usefixtures("copies_pay")
@pytest.mark.parametrize("parallel", [1, 3])
def test_many_requests_with_restarts(tmp_path, parallel):
    """Requests of several texts, each as it is alone with an empty folder.

    Neither the time of a copy nor a disk that is slower than the requests decides what is kept.
    """
    rng, texts = random.Random(3), [START * 6, TURNS[0] * 5, TURNS[1] * 5]
    ways = [Speculation(0), Speculation(), Speculation(4, adaptive=False, drafter="model")]
    requests = [(texts[rng.randrange(3)] + rng.choice(TURNS), i) for i in range(24)]
    with load(None, draft=DRAFT) as llm:
        expected = []
        for prompt, i in requests:
            llm.forget()
            expected.append(answer(llm, prompt, i)[0])
    n_cached = 0
    for at in range(0, 24, 6):
        with load(tmp_path, draft=DRAFT, parallel=parallel, prefix_memory=0) as llm:
            for (prompt, i), wanted in zip(requests[at : at + 6], expected[at:], strict=False):
                found, n = answer(llm, prompt, i, speculation=ways[i % 3])
                assert found == wanted
                n_cached += n if at else 0
                llm.engine.kept.disk.flush()
    assert n_cached > 18 * 70


def adapter(path, seed):
    """Write an adapter for the model."""
    rng = np.random.default_rng(seed)
    shapes = {"blk.0.attn_q.weight": (256, 256), "blk.5.ffn_down.weight": (256, 704)}
    pairs = {
        name: [rng.normal(0, 0.05, one).astype(np.float32) for one in ((4, width), (height, 4))]
        for name, (height, width) in shapes.items()
    }
    return write_adapter(path, pairs)


@pytest.mark.slow
def test_two_hundred_requests_of_eight_clients_with_adapters_and_kinds_of_caches(tmp_path):
    """One folder for all of them; who serves eight at a time is started again with other options."""
    rng, keep = random.Random(7), tmp_path / "kept"
    one, other = adapter(tmp_path / "one.gguf", 1), adapter(tmp_path / "other.gguf", 2)
    configurations = [
        {}, {"kv_type": "q8_0"}, {"lora": one}, {"lora": [(one, 0.5)]}, {"lora": other},
        {"lora": [one, other], "kv_type": "q8_0"},
    ]  # fmt: skip
    texts = [START * 6, TURNS[0] * 5, TURNS[1] * 5, START * 6 + TURNS[0] * 3]
    ways = [Speculation(0), Speculation(), Speculation(4, adaptive=False, drafter="model")]
    starts = [(configurations[i % 6], rng.choice((1, 3, 8))) for i in range(25)]
    rng.shuffle(starts)
    prompts = [[rng.choice(texts) + rng.choice(TURNS) for _ in range(8)] for _ in starts]
    n_cached, seen = 0, {}
    for i, ((options, parallel), some) in enumerate(zip(starts, prompts, strict=True)):
        with load(None, draft=DRAFT, draft_texts="off", **options) as llm:
            expected = []
            for j, prompt in enumerate(some):
                llm.forget()
                expected.append(answer(llm, prompt, 8 * i + j)[0])
        shared = {"draft": DRAFT, "parallel": parallel, "prefix_memory": 0}
        with (
            load(keep, **shared, **options) as llm,
            concurrent.futures.ThreadPoolExecutor(8) as clients,
        ):
            found = clients.map(
                lambda job, llm=llm: answer(llm, job[1], job[0], speculation=ways[job[0] % 3]),
                [(8 * i + j, prompt) for j, prompt in enumerate(some)],
            )
            for (text, n), wanted in zip(found, expected, strict=True):
                assert text == wanted
                n_cached += n
        seen.setdefault(repr(options), set()).update(text[0] for text in expected)
    assert n_cached > 100 * 64
    assert not set.intersection(*seen.values())  # the options do change the texts
