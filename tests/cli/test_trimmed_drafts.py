"""`models pull` trims drafts: what it says, what later loads take, and what goes with the draft."""

import json
import os
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from huggingface_hub import close_session

import gguf_spec
from gguf_spec import Sampling, Speculation, models
from gguf_spec.errors import OutputFileError
from gguf_spec.gguf.validation import ModelFile, read_header, trimmed
from gguf_spec.llama.own_kernels import extra_bufts_work
from gguf_spec.llama.weights import Tokenizer
from gguf_spec.runtime import trimmed_drafts
from gguf_spec.runtime.draft_texts import stored_tokens
from gguf_spec.system.files import cache_folder, files_below
from tests.support import tiny
from tests.support.hub import Hub

N = 20_000
TOKENS = [*tiny.TOKENS[:-3], *(f"Ġword{i}" for i in range(N - len(tiny.TOKENS))), *tiny.TOKENS[-3:]]
KEPT = 16384


def pair(folder, used=range(2000)):
    """Write a target and a draft with the same output, so that the draft is right often; others than `used` are never likely."""
    metadata, tensors = tiny.llama(n_vocab=N, n_layer=3, seed=5)
    unlikely = np.setdiff1d(np.arange(N), used)
    tensors["output.weight"][unlikely] = 0
    tensors["output.weight"][-3:] = 0
    tiny.write(folder / "big.gguf", (metadata, tensors), tokens=TOKENS)
    small = {
        name: one for name, one in tensors.items() if not name.startswith(("blk.1.", "blk.2."))
    }
    metadata = metadata | {"llama.block_count": 1}
    tiny.write(folder / "small.gguf", (metadata, small), tokens=TOKENS)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def hub(made):
    with Hub() as hub:
        for name in ("big", "small"):
            hub.add(f"{name}.gguf", (made / f"{name}.gguf").read_bytes())
        yield hub


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def settings(hub, home, tmp_path):
    names = hub.models_file(
        tmp_path / "names.yaml", big={"file": "big.gguf", "draft": "small"}, small="small.gguf"
    )
    extra_bufts_work()  # tests of this machine, which take seconds in a new cache
    tested = home / "cache" / "gguf-spec" / "probe"
    shutil.copytree(cache_folder() / "probe", tested, dirs_exist_ok=True)
    return hub.environment(home) | {"GGUF_SPEC_MODELS_FILE": str(names), "OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def timed(monkeypatch):
    """The share of the time that is measured, as a list with one item."""
    share = [0.7]
    real = trimmed_drafts.time_share

    def time_share(*args):
        assert real(*args) > 0
        return share[0]

    monkeypatch.setattr(trimmed_drafts, "time_share", time_share)
    return share


@pytest.fixture
def run(here, settings, tmp_path):
    def start(*args, command="models"):
        return here(command, *args, env=settings, cwd=tmp_path, text=True)

    yield start
    close_session()


def copies(home):
    """The files of copies."""
    there = files_below(home / "cache" / "gguf-spec" / "models")
    return [path for path in there if path.suffix == ".gguf"]


SAID = "draft small trimmed to 16,384 of 20,000 tokens: its pass takes 0.70 of the time, 100% of its proposals stay the same\n"


def test_pull_trims_and_loads_take_the_copy(run, home):
    result = run("pull", "big")
    assert result.returncode == 0
    assert result.stderr.endswith(SAID)
    (copy,) = copies(home)
    assert copy.name == "small-16384.gguf"
    table = trimmed(read_header(copy))
    assert (len(table.ids), table.size) == (KEPT, N)
    args = ("generate", "-m", "big", "-n", "24", "-t", "0", "--threads", "1", "--json", "a the")
    shown = [run(*args[1:], *how, command="generate") for how in ([], ["-d", "none"])]
    found, plain = (json.loads(one.stdout) for one in shown)
    assert found["text"] == plain["text"]
    assert found["draft"] == "small-16384.gguf"
    assert "small" not in shown[0].stderr  # nobody named a trimmed draft
    listed = json.loads(run("drafts", "big", "--json").stdout)["drafts"]
    (draft,) = (one for one in listed if one["name"] == "small")
    assert (draft["path"], draft["declared"]) == (str(copy), True)


def test_a_second_pull_says_it_again_and_measures_nothing(run, home, monkeypatch):
    run("pull", "big")
    (copy,) = copies(home)
    before = copy.stat().st_mtime_ns
    monkeypatch.setattr(trimmed_drafts, "_made", None)
    result = run("pull", "big", "--offline", "--json", "-q")
    (found,) = json.loads(result.stdout)["trimmed"]
    assert found == {
        "name": "small", "path": str(copy), "n_kept": KEPT, "n_vocab": N, "same": 1.0, "time": 0.7,
    }  # fmt: skip
    assert (result.stderr, copy.stat().st_mtime_ns) == ("", before)


def test_a_pass_that_is_hardly_shorter(run, home, timed):
    timed[0] = 0.96
    result = run("pull", "big")
    assert result.stderr.endswith(
        "draft small not trimmed: with 16,384 of 20,000 tokens its pass takes 0.96 of the time, 100% of its proposals stay the same\n"
    )
    assert copies(home) == []
    timed[0] = 0.7  # it is measured again when asked for
    assert "draft small not trimmed" in run("pull", "big").stderr
    assert run("pull", "big", "--force").stderr.endswith(SAID)


def test_proposals_that_would_be_lost(tmp_path, home, settings):
    """The likely tokens are the last ones, and no text has them."""
    draft = pair(tmp_path, range(N - 1000, N - 3)) / "small.gguf"
    with mock.patch.dict(os.environ, settings):
        found = models.trim_draft(draft)
    assert (found.path, found.time) == (None, None)
    assert found.same < 0.5
    assert found.sentence.startswith("draft small.gguf not trimmed: with 16,384 of 20,000 tokens ")
    assert copies(home) == []


def test_what_is_stored_of_a_target_counts(made, tmp_path, home, settings):
    """Answers of the target have the likely tokens, which no shipped text has."""
    folder = pair(tmp_path, range(N - 1000, N - 3))
    with mock.patch.dict(os.environ, settings):
        options = {"threads": 1, "draft_texts": "disk", "extra_bufts": False}
        with gguf_spec.load(folder / "big.gguf", "ngram", **options) as llm:
            for seed in range(8):
                sampling = Sampling(max_tokens=200, seed=seed, ignore_eos=True, temperature=1.5)
                llm.generate(f"{seed}", sampling, speculation=Speculation(0))
        stored = stored_tokens(ModelFile(folder / "big.gguf"))
        assert len(stored) > 1024
        assert stored_tokens(ModelFile(models.find("tales"))) == []
        draft = folder / "small.gguf"
        alone = models.trim_draft(draft)
        beside = models.trim_draft(draft, folder / "big.gguf", force=True)
        assert beside.same > alone.same + 0.1
        counts, pieces = trimmed_drafts._texts(
            mock.Mock(**{"weights.tokenize": lambda *_, **__: [0] * 200}), stored
        )
    assert sum(counts.values()) == 4 * 133 + len(stored) - 160
    assert pieces[-1] == stored[-40:]


def test_a_copy_goes_with_its_draft(run, home, made):
    run("pull", "big")
    (copy,) = copies(home)
    n_bytes = copy.stat().st_size + (made / "small.gguf").stat().st_size
    removed = json.loads(run("remove", "small", "--yes", "--json").stdout)["models"]
    assert removed == [{"name": "small", "freed_bytes": n_bytes}]
    assert not copy.parent.exists()


def test_no_trim_removes_the_copy_and_keeps_the_draft(run, home):
    run("pull", "big")
    result = run("pull", "big", "--no-trim", "--json", "-q")
    assert json.loads(result.stdout)["trimmed"] == []
    assert copies(home) == []
    assert run("path", "small").returncode == 0


def chosen(settings, **options):
    with (
        mock.patch.dict(os.environ, settings),
        mock.patch(
            "huggingface_hub.constants.HF_HUB_CACHE", str(Path(settings["HF_HOME"]) / "hub")
        ),
        gguf_spec.load(
            "big", threads=1, models_file=settings["GGUF_SPEC_MODELS_FILE"], **options
        ) as llm,
    ):
        return llm.draft_name


@pytest.mark.few(1)
@pytest.mark.parametrize("fault", ["torn", "shorter", "no record", "record"])
def test_a_copy_that_is_not_whole_is_not_used(run, home, settings, fault):
    run("pull", "big")
    (copy,) = copies(home)
    assert chosen(settings) == copy.name
    assert chosen(settings, draft="small") == copy.name
    record = copy.with_name("record.json")
    if fault == "torn":
        with copy.open("rb+") as file:
            file.seek(copy.stat().st_size // 2 - 4096)
            file.write(bytes(8192))
    elif fault == "shorter":
        os.truncate(copy, copy.stat().st_size - 100)
    elif fault == "record":
        record.write_text("{")
    else:
        record.unlink()
    assert chosen(settings) == "small.gguf"
    assert run("pull", "big").stderr.endswith(SAID)
    assert chosen(settings) == copy.name


def test_a_path_means_that_file(run, home, settings):
    run("pull", "big")
    with mock.patch.dict(os.environ, settings):
        whole = run("path", "small").stdout.strip()
    assert chosen(settings, draft=whole) == "small.gguf"


def test_a_copy_of_other_contents_is_not_used(run, home, settings):
    """Another file of the same size takes the place of the draft."""
    run("pull", "big")
    whole = Path(run("path", "small").stdout.strip())
    data = bytearray(whole.read_bytes())
    at = len(data) - 5000
    data[at : at + 4] = bytes([1, 2, 3, 4])
    real = whole.resolve()
    real.unlink()
    real.write_bytes(data)
    assert chosen(settings) == "small.gguf"


def test_a_disk_that_is_full(run, home, settings, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "small.gguf")

    monkeypatch.setattr("gguf_spec.gguf.trimming._write", full)
    result = run("pull", "big")
    assert result.returncode == 0
    assert result.stderr.endswith(
        "Note: the draft small is not trimmed: small.gguf cannot be written: No space left on device.\n"
    )
    assert copies(home) == []
    assert not [*(home / "cache").rglob("*.part")]
    assert chosen(settings) == "small.gguf"


def test_a_cache_that_cannot_be_written(run, home, settings, made):
    run("pull", "big", "--no-trim")
    place = home / "cache" / "gguf-spec" / "models"
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("a file")  # root may write into any folder
    result = run("pull", "big")
    assert result.returncode == 0
    assert "Note: the draft small is not trimmed: " in result.stderr
    with mock.patch.dict(os.environ, settings), pytest.raises(OutputFileError, match="cannot be"):
        models.trim_draft(made / "small.gguf")


def test_a_record_that_cannot_be_written(run, home, settings, monkeypatch):
    monkeypatch.setattr(trimmed_drafts, "write_json", lambda *_: False)
    assert "its record was not kept.\n" in run("pull", "big").stderr
    assert copies(home) == []


def test_a_killed_pull_leaves_nothing_that_is_used(run, home, settings, monkeypatch):
    """What is there when a process is killed before its record is written."""
    monkeypatch.setattr(trimmed_drafts, "write_json", lambda *_: True)
    run("pull", "big")
    (copy,) = copies(home)
    leftover = copy.with_name(".gguf-spec-0123456789ab-01234567.part")
    leftover.write_bytes(b"half")
    assert chosen(settings) == "small.gguf"
    monkeypatch.undo()
    with mock.patch.object(trimmed_drafts, "time_share", return_value=0.7):
        assert run("pull", "big").stderr.endswith(SAID)
    assert not leftover.exists()
    assert chosen(settings) == copy.name


def test_two_at_once(run, home, settings, made, monkeypatch):
    """The second one waits for the first, and takes what it made."""
    real, waits = trimmed_drafts.exclusive, []

    def exclusive(path, waiting):
        if not waits:
            waits.append(path)
            models.trim_draft(made / "small.gguf")  # the other process, while this one waits
        return real(path, waiting)

    monkeypatch.setattr(trimmed_drafts, "exclusive", exclusive)
    with mock.patch.dict(os.environ, settings):
        found = models.trim_draft(made / "small.gguf")
        (copy,) = copies(home)
        assert found.path == copy
    assert len(waits) == 1


def test_a_draft_with_adapters_is_whole(run, home, settings):
    from gguf_spec.runtime.draft_search import trimmed_or_whole

    run("pull", "big")
    whole = Path(run("path", "small").stdout.strip())
    with mock.patch.dict(os.environ, settings):
        for adapters, is_whole in ((), False), (("one",), True):
            load = mock.Mock(of_draft=mock.Mock(lora=adapters))
            file = trimmed_or_whole(load, ModelFile(whole))
            assert (file.path == whole) == is_whole


@pytest.mark.parametrize("name", ["tales-draft", "made"])
def test_a_draft_with_little_to_save(name, made, tmp_path, home, settings):
    """A small vocabulary; and one whose output is a small part of the weights."""
    path = models.find("tales-draft")
    if name == "made":
        metadata, tensors = tiny.llama(n_vocab=N, n_layer=1)
        more = {
            f"blk.{i}.{one.split('.', 2)[2]}": tensor
            for one, tensor in tensors.items()
            if "blk" in one
            for i in range(200)
        }
        path = tiny.write(
            tmp_path / "deep.gguf",
            (metadata | {"llama.block_count": 200}, tensors | more),
            tokens=TOKENS,
        )
    with mock.patch.dict(os.environ, settings):
        assert models.trim_draft(path) is None
    assert not (home / "cache" / "gguf-spec" / "models").exists()


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {}, {"top_k": 0, "top_p": 1.0, "temperature": 1.1}]
)
def test_the_text_is_the_plain_one(made, home, settings, options):
    with mock.patch.dict(os.environ, settings):
        copy = models.trim_draft(made / "small.gguf").path
        with (
            gguf_spec.load(made / "big.gguf", copy, threads=1) as llm,
            Tokenizer(ModelFile(made / "big.gguf")) as tokenizer,
        ):
            assert llm.notes == ("the draft small-16384.gguf knows 16,384 of the 20,000 tokens.",)
            rare = TOKENS[-10].replace("Ġ", " ")  # has no row
            assert tokenizer.tokenize(rare, special=False)
            sampling = Sampling(max_tokens=32, ignore_eos=True, seed=3, **options)
            plain = llm.generate(rare, sampling, speculation=Speculation(0))
            way = Speculation(4, drafter="model", adaptive=False)
            drafted = llm.generate(rare, sampling, speculation=way)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.n_drafted > 0
