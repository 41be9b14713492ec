"""Quantised files: their contents, and no leftovers after a failure."""

import os
import signal
import subprocess
import sys
import time

import gguf
import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation, quantize
from gguf_spec.errors import (
    InvalidOptionError,
    ModelNotFoundError,
    NotAModelError,
    QuantizeError,
    UnsupportedModelError,
)
from gguf_spec.gguf.validation import read_header
from gguf_spec.quantize import TYPES
from gguf_spec.system import subprogram
from tests.support import children, tiny

# How far the written numbers may be from those before, as a share of the largest in a block: half a step of each type, and a bit for its scale.
STEPS = {"F16": 2**-11, "BF16": 2**-8, "Q8_0": 0.005, "Q5_1": 0.04, "Q5_0": 0.07, "Q4_1": 0.07, "Q4_0": 0.135}  # fmt: skip

BITS = {
    "F16": 16, "BF16": 16, "Q8_0": 8.5, "Q6_K": 6.56, "Q5_K_M": 5.5, "Q5_K_S": 5.5, "Q5_1": 6, "Q5_0": 5.5, "Q4_K_M": 4.5, "Q4_K_S": 4.5, "Q4_1": 5,
    "Q4_0": 4.5, "IQ4_NL": 4.5, "IQ4_XS": 4.25, "Q3_K_L": 3.43, "Q3_K_M": 3.43, "Q3_K_S": 3.43, "Q2_K": 2.62,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.write(
        tmp_path_factory.mktemp("source") / "model.gguf", tiny.llama(seed=1, n_layer=2)
    )


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A model whose rows blocks of 256 divide."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "N_EMBD", 256)
        patch.setattr(tiny, "N_FF", 256)
        metadata, tensors = tiny.llama(seed=1)
    rng = np.random.default_rng(0)
    heads = {"q": (256, 256), "k": (128, 256), "v": (128, 256), "output": (256, 256)}
    tensors |= {
        f"blk.0.attn_{name}.weight": rng.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in heads.items()
    }
    metadata |= {"llama.rope.dimension_count": 128}
    return tiny.write(tmp_path_factory.mktemp("source") / "wide.gguf", (metadata, tensors))


def tensors(path):
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        for tensor in gguf.GGUFReader(path).tensors
    }


def fields(path):
    """Return the header by another reader, without counts and fields that must change."""
    changed = ("GGUF.", "general.file_type", "general.quantization_version")
    return {
        name: field.contents()
        for name, field in gguf.GGUFReader(path).fields.items()
        if not name.startswith(changed)
    }


@pytest.mark.full
@pytest.mark.parametrize("kind", STEPS)
def test_the_numbers_are_those_of_the_model_rounded(model, tmp_path, kind):
    made = quantize.quantize(model, tmp_path / "small.gguf", kind.lower(), threads=1)
    assert (made.type, made.requantized) == (kind, False)
    before, after = tensors(model), tensors(tmp_path / "small.gguf")
    assert before.keys() == after.keys()
    exact = 0
    for name, weights in before.items():
        if weights.ndim == 1:
            assert np.array_equal(weights, after[name])
            continue
        blocks, written = weights.reshape(-1, 32), after[name].reshape(-1, 32)
        spread = np.ptp(blocks, axis=1) if kind.endswith("_1") else np.abs(blocks).max(axis=1)
        assert (np.abs(blocks - written).max(axis=1) <= STEPS[kind] * spread).all()
        exact += np.array_equal(blocks, written)
    assert exact == 0


@pytest.mark.full
@pytest.mark.parametrize("kind", TYPES)
def test_every_type_loads_and_keeps_the_tokenizer(wide, tmp_path, kind):
    made = quantize.quantize(wide, tmp_path / "small.gguf", kind, threads=1)
    assert fields(tmp_path / "small.gguf") == fields(wide)
    assert (made.source_bytes, made.target_bytes) == (
        wide.stat().st_size,
        (tmp_path / "small.gguf").stat().st_size,
    )
    assert made.target_bytes < made.source_bytes
    assert (made.n_tensors, made.n_fallback) == (read_header(wide).n_tensors, 0)
    assert (
        BITS[kind] <= made.target_bits <= BITS[kind] + (0.05 if BITS[kind] > 8 else 1.5)
    )  # the output and some more take a larger type
    assert made.source_bits == 32
    with gguf_spec.load(tmp_path / "small.gguf", None, threads=1, extra_bufts=False) as llm:
        assert (
            len(llm.generate("The", Sampling(temperature=0, max_tokens=4, ignore_eos=True)).tokens)
            == 4
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.gguf"]


@pytest.mark.full
def test_bits_a_weight(model, tmp_path):
    made = quantize.quantize(model, tmp_path / "small.gguf", "Q4_0", threads=1)
    reader = gguf.GGUFReader(tmp_path / "small.gguf")
    assert made.target_bits == 8 * sum(int(t.n_bytes) for t in reader.tensors) / sum(
        int(t.n_elements) for t in reader.tensors
    )
    assert made.to_dict()["target"] == str(tmp_path / "small.gguf")


@pytest.mark.full
def test_rows_that_blocks_do_not_divide_take_another_type(model, tmp_path):
    made = quantize.quantize(model, tmp_path / "small.gguf", "Q4_K_M", threads=1)
    assert made.n_fallback > 0
    kinds = {
        tensor.tensor_type.name
        for tensor in gguf.GGUFReader(tmp_path / "small.gguf").tensors
        if len(tensor.shape) > 1
    }
    assert not kinds & {"Q4_K", "Q6_K"}


@pytest.mark.full
def test_a_lower_quant_of_the_target_drafts_for_it(model, tmp_path):
    quantize.quantize(model, tmp_path / "draft.gguf", "Q4_0", threads=1)
    texts = []
    for draft in (None, tmp_path / "draft.gguf"):
        speculation = Speculation(k=4 if draft else 0, adaptive=False)
        with gguf_spec.load(
            model, draft, threads=1, extra_bufts=False, speculation=speculation
        ) as llm:
            result = llm.generate(
                "Once upon the time",
                Sampling(temperature=0.8, seed=3, max_tokens=60, ignore_eos=True),
            )
            texts.append(result.tokens)
    assert texts[0] == texts[1]
    assert result.stats.n_accepted > 0


@pytest.mark.full
def test_quantised_already(model, tmp_path):
    quantize.quantize(model, tmp_path / "q8.gguf", "Q8_0", threads=1)
    made = quantize.quantize(tmp_path / "q8.gguf", tmp_path / "q4.gguf", "Q4_0", threads=1)
    assert (made.requantized, round(made.source_bits, 1)) == (True, 8.6)
    assert made.target_bits < made.source_bits


@pytest.mark.full
def test_progress_counts_tensors(model, tmp_path):
    seen = []
    made = quantize.quantize(
        model,
        tmp_path / "small.gguf",
        "Q8_0",
        threads=1,
        progress=seen.append,
    )
    assert seen == [("quantize", i, made.n_tensors, "tensors") for i in range(made.n_tensors + 1)]


@pytest.mark.full
def test_all_parts_of_a_split_model_become_one(tmp_path):
    metadata, weights = tiny.llama(seed=1)
    metadata |= tiny.vocabulary()
    names, kinds = list(weights), gguf.GGUFValueType
    for i, part in enumerate((names[:4], names[4:])):
        counts = {
            "no": (i, kinds.UINT16),
            "count": (2, kinds.UINT16),
            "tensors.count": (len(names), kinds.INT32),
        }
        split = {f"split.{name}": gguf.GGUFValue(*value) for name, value in counts.items()}
        said = metadata if i == 0 else dict.fromkeys(metadata)
        tiny.write(
            tmp_path / f"m-{i + 1:05}-of-00002.gguf",
            ({}, {name: weights[name] for name in part}),
            metadata=said | split,
        )
    first = tmp_path / "m-00001-of-00002.gguf"
    made = quantize.quantize(first, tmp_path / "one.gguf", "Q8_0", threads=1)
    assert made.n_tensors == len(names)
    assert made.source_bytes == sum(path.stat().st_size for path in tmp_path.glob("m-*"))
    assert not any(key.startswith("split.") for key in fields(tmp_path / "one.gguf"))
    with gguf_spec.load(tmp_path / "one.gguf", None, threads=1, extra_bufts=False) as llm:
        assert llm.generate("The", Sampling(temperature=0, max_tokens=3, ignore_eos=True)).tokens
    for target in (first, tmp_path / "m-00002-of-00002.gguf"):
        with pytest.raises(InvalidOptionError, match="is the model itself"):
            quantize.quantize(first, target, "Q8_0", force=True)


# ---- refusals


def test_an_unknown_type_gets_the_list(model, tmp_path):
    with pytest.raises(
        InvalidOptionError, match="type is 'Q9_9' but must be one of F16, BF16, Q8_0"
    ) as caught:
        quantize.quantize(model, tmp_path / "small.gguf", "Q9_9")
    assert all(name in str(caught.value) for name in TYPES)


@pytest.mark.parametrize("threads", [0, -1, 513, 1.5])
def test_threads_out_of_range(model, tmp_path, threads):
    with pytest.raises(InvalidOptionError, match="threads"):
        quantize.quantize(model, tmp_path / "small.gguf", "Q8_0", threads=threads)


@pytest.mark.full
def test_nothing_is_overwritten_without_force(model, tmp_path):
    target = tmp_path / "small.gguf"
    target.write_bytes(b"mine")
    with pytest.raises(InvalidOptionError, match=r"small\.gguf exists\.") as caught:
        quantize.quantize(model, target, "Q8_0", threads=1)
    assert caught.value.hint == "choose another name, or set force=True to replace the file."
    assert target.read_bytes() == b"mine"
    quantize.quantize(model, target, "Q8_0", threads=1, force=True)
    assert read_header(target).architecture == "llama"


def test_a_model_is_never_written_to_its_own_path(model, tmp_path):
    before = model.read_bytes()
    (tmp_path / "soft.gguf").symlink_to(model)
    own = tmp_path / "model.gguf"
    own.write_bytes(before)
    (tmp_path / "hard.gguf").hardlink_to(own)
    for source, target in (
        (model, model),
        (model, tmp_path / "soft.gguf"),
        (own, tmp_path / "hard.gguf"),
        (own, tmp_path / "x" / ".." / "model.gguf"),
    ):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(InvalidOptionError, match="is the model itself"):
            quantize.quantize(source, target, "Q8_0", force=True)
    assert model.read_bytes() == own.read_bytes() == before


def test_places_that_cannot_be_written(model, tmp_path):
    with pytest.raises(InvalidOptionError, match="is in a folder that does not exist"):
        quantize.quantize(model, tmp_path / "no" / "small.gguf", "Q8_0")
    with pytest.raises(InvalidOptionError, match="is not a file"):
        quantize.quantize(model, tmp_path, "Q8_0", force=True)
    with pytest.raises(QuantizeError, match=r"g\.gguf cannot be written: File name too long"):
        quantize.quantize(model, tmp_path / ("long" * 80 + "g.gguf"), "Q8_0")


def test_files_that_cannot_be_quantised(model, tmp_path, monkeypatch):
    with pytest.raises(ModelNotFoundError):
        quantize.quantize(tmp_path / "none.gguf", tmp_path / "small.gguf", "Q8_0")
    (tmp_path / "cut.gguf").write_bytes(model.read_bytes()[:-1000])
    with pytest.raises(NotAModelError, match="cut short"):
        quantize.quantize(tmp_path / "cut.gguf", tmp_path / "small.gguf", "Q8_0")
    tiny.write(tmp_path / "adapter.gguf", metadata={"general.type": "adapter"})
    with pytest.raises(UnsupportedModelError, match="'adapter'"):
        quantize.quantize(tmp_path / "adapter.gguf", tmp_path / "small.gguf", "Q8_0")
    monkeypatch.setattr(gguf.gguf_writer, "GGUF_DEFAULT_ALIGNMENT", 64)
    tiny.write(tmp_path / "aligned.gguf", metadata={"general.alignment": 64})
    with pytest.raises(QuantizeError, match="aligned to 64 bytes"):
        quantize.quantize(tmp_path / "aligned.gguf", tmp_path / "small.gguf", "Q8_0")
    assert not list(tmp_path.glob("small.gguf*"))


# ---- failures


def unfinished(folder):
    return list(folder.glob(".gguf-spec-*.part"))


def only(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.full
def test_an_error_of_llama_cpp_is_quoted(tmp_path):
    nan = tiny.write(
        tmp_path / "nan.gguf",
        tensors={"blk.0.ffn_up.weight": np.full((64, 64), np.nan, np.float32)},
    )
    (tmp_path / "small.gguf").write_bytes(b"mine")
    with pytest.raises(
        QuantizeError, match=r"llama\.cpp cannot quantise nan\.gguf: .*(data|valid)"
    ):
        quantize.quantize(nan, tmp_path / "small.gguf", "Q4_0", threads=1, force=True)
    assert only(tmp_path) == ["nan.gguf", "small.gguf"]
    assert (tmp_path / "small.gguf").read_bytes() == b"mine"


def test_a_quantiser_that_is_killed(model, tmp_path, monkeypatch):
    code = "import os, sys\nopen(sys.argv[1], 'wb').write(b'GGUF')\nos.write(2, b'ggml.c:1: GGML_ASSERT(x) failed\\n')\nos.abort()"
    monkeypatch.setattr(
        subprogram, "command", lambda _, source, part, *__: [sys.executable, "-c", code, str(part)]
    )
    with pytest.raises(QuantizeError, match=r"GGML_ASSERT\(x\) failed \(ended by signal 6\)"):
        quantize.quantize(model, tmp_path / "small.gguf", "Q4_0")
    assert only(tmp_path) == []


@pytest.mark.parametrize("wrong", ["half", "tokens", "tensors"])
def test_an_invalid_result_is_not_kept(model, tmp_path, monkeypatch, wrong):
    other = tmp_path / "other.bin"
    if wrong == "half":
        other.write_bytes(bytes(1000))
    elif wrong == "tokens":
        tiny.write(
            other, tiny.llama(n_layer=2), tokens=[*tiny.TOKENS[:40], "other", *tiny.TOKENS[41:]]
        )
    else:
        tiny.write(other, tiny.llama(n_layer=1))
    code = "import shutil, sys; shutil.copy(*sys.argv[1:])"
    monkeypatch.setattr(
        subprogram,
        "command",
        lambda _, source, part, *__: [sys.executable, "-c", code, str(other), str(part)],
    )
    said = {
        "half": "is incomplete",
        "tokens": "has another tokenizer than the model",
        "tensors": "has 12 tensors, not 21",
    }[wrong]
    with pytest.raises(QuantizeError, match=f"the quantised file small.gguf {said}"):
        quantize.quantize(model, tmp_path / "small.gguf", "Q4_0")
    assert only(tmp_path) == ["other.bin"]


@pytest.mark.full
def test_a_full_disk_is_reported_before_the_work(model, tmp_path, monkeypatch):
    free = type("Free", (), {"free": 1000})
    monkeypatch.setattr(quantize.shutil, "disk_usage", lambda path: free)
    with pytest.raises(
        QuantizeError, match=r"small\.gguf needs [\d,]+ bytes but 1,000 are free in"
    ) as caught:
        quantize.quantize(model, tmp_path / "small.gguf", "Q8_0", threads=1)
    said = int(str(caught.value).split("needs ")[1].split()[0].replace(",", ""))
    monkeypatch.undo()
    made = quantize.quantize(model, tmp_path / "small.gguf", "Q8_0", threads=1)
    assert abs(said - made.target_bytes) < 0.1 * made.target_bytes + 10_000
    assert only(tmp_path) == ["small.gguf"]


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="other systems limit files otherwise")
def test_a_disk_that_runs_full(model, tmp_path):
    """llama.cpp reports no error when a write fails; no incomplete file may be left."""
    code = (
        "import resource, sys\nfrom gguf_spec.errors import QuantizeError\nfrom gguf_spec.quantize import quantize\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n    quantize(sys.argv[1], sys.argv[2], 'F16', threads=1)\nexcept QuantizeError as error:\n    print(error)\n"
    )
    child = children.run(
        [sys.executable, "-c", code, model, tmp_path / "small.gguf"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (child.returncode, child.stderr) == (0, "")
    assert "is incomplete" in child.stdout or "cannot quantise" in child.stdout
    assert only(tmp_path) == []


SLOW = "import sys, time\nopen(sys.argv[1], 'wb').write(b'GGUF')\nprint('at 1 2', flush=True)\ntime.sleep(3600)"


def test_an_interrupted_progress_leaves_nothing(model, tmp_path, monkeypatch):
    monkeypatch.setattr(
        subprogram, "command", lambda _, source, part, *__: [sys.executable, "-c", SLOW, str(part)]
    )

    def interrupt(now):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # and not after the hour that the program sleeps
        quantize.quantize(model, tmp_path / "small.gguf", "Q4_0", progress=interrupt)
    assert only(tmp_path) == []


@pytest.mark.full
@pytest.mark.skipif(os.name == "nt", reason="no such signals there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_quantiser_ends_with_its_parent(tmp_path, number):
    """With the real quantiser, stopped in the middle by a model large enough for that."""
    big = tiny.write(tmp_path / "big.gguf", tensors=large())
    code = "import sys\nfrom gguf_spec.quantize import quantize\nquantize(*sys.argv[1:3], 'Q2_K', threads=1, progress=lambda now: print(now.done, now.total, flush=True))"
    parent = children.Child(
        [sys.executable, "-c", code, big, tmp_path / "small.gguf"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with parent:
        assert parent.stdout.readline() == b"0 12\n"
        assert unfinished(tmp_path)
        parent.send_signal(number)
        parent.wait(180)
    deadline = time.monotonic() + 180
    while unfinished(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert only(tmp_path) == ["big.gguf"]


def large():
    """Twenty million numbers, which take a while."""
    return {
        "blk.0.ffn_up.weight": np.random.default_rng(0)
        .normal(size=(20_000, 1024))
        .astype(np.float32)
    }


@pytest.mark.full
@pytest.mark.skipif(os.name == "nt", reason="no such signals there")
def test_the_caller_handles_ctrl_c(model, tmp_path):
    """A terminal signals the process group; the quantiser runs as long as its parent."""
    code = (
        "import signal, sys\nsignal.signal(signal.SIGINT, lambda *_: None)\nfrom gguf_spec.quantize import quantize\n"
        "quantize(*sys.argv[1:3], 'Q4_0', threads=1)\nsys.stdin.read()"  # Python no longer handles signals when it ends: not before the last one
    )
    command = [sys.executable, "-c", code, model, tmp_path / "small.gguf"]
    parent = children.Child(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    while not unfinished(tmp_path) and parent.poll() is None:
        time.sleep(0.005)
    for _ in range(10):
        time.sleep(0.02)
        os.killpg(parent.pid, signal.SIGINT)
    _, err = parent.communicate(timeout=180)
    assert (parent.returncode, err) == (0, b"")
    assert only(tmp_path) == ["small.gguf"]
