"""Files that cannot be used: each must be refused by a typed error with the real values, before anything runs. Files on which llama.cpp would end
the whole process are loaded in a child, so that a failure here stays one failure."""

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.doctor import doctor
from gguf_spec.errors import (
    InvalidOptionError,
    ModelNotFoundError,
    NoGenerationError,
    NotAModelError,
    NotEnoughMemoryError,
    NoTokenLeftError,
    PromptTooLongError,
    UnsupportedModelError,
)
from gguf_spec.gguf.adapters import read_projector
from gguf_spec.gguf.validation import ModelFile, check_written, read_header
from gguf_spec.llama.head import why_head_fails
from tests.support import children, eagle, families, projector_file, tiny


def load(path, draft=None, **options):
    return gguf_spec.load(path, draft, threads=1, extra_bufts=False, **options)


def refused(kind: type[Exception], path: Path, *said: str) -> Any:
    with pytest.raises(kind) as caught:
        load(path)
    for words in said:
        assert words in str(caught.value)
    assert caught.value.hint.endswith(".")
    assert "\n" not in str(caught.value)
    return caught.value


def test_missing_file(tmp_path):
    error = refused(ModelNotFoundError, tmp_path / "none.gguf", str(tmp_path / "none.gguf"))
    assert error.path == tmp_path / "none.gguf"


def test_missing_draft(gguf_dir):
    with pytest.raises(ModelNotFoundError, match=r"gone\.gguf"):
        load(gguf_dir / "llama.gguf", gguf_dir / "gone.gguf")


def test_a_name_nearly_right_is_suggested():
    with pytest.raises(ModelNotFoundError) as caught:
        load("talse")
    assert caught.value.hint == "did you mean tales?"


def test_directory(tmp_path):
    assert (
        "GGUF" in refused(NotAModelError, tmp_path, f"{tmp_path} is a directory that is empty").hint
    )


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04 a zip", b"<!DOCTYPE html>", b"\x93NUMPY", "text über alles".encode()]
)
def test_not_a_gguf(tmp_path, data):
    (tmp_path / "it.gguf").write_bytes(data)
    refused(NotAModelError, tmp_path / "it.gguf", "it.gguf is not a GGUF file")


@pytest.mark.parametrize("part", [0.0001, 0.01, 0.05, 0.5, 0.999])
def test_truncated(gguf_dir, tmp_path, part):
    data = (gguf_dir / "llama.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: max(8, int(len(data) * part))])
    refused(NotAModelError, tmp_path / "cut.gguf", "cut.gguf is ")


TOKENIZER = {
    "no tokenizer": {"tokenizer.ggml.model": None, "tokenizer.ggml.tokens": None},
    "no kind": {"tokenizer.ggml.model": None},
    "no_vocab": {"tokenizer.ggml.model": "no_vocab"},
    "no tokens": {"tokenizer.ggml.tokens": None},
    "empty": {"tokenizer.ggml.tokens": []},
}


@pytest.mark.parametrize("metadata", TOKENIZER.values(), ids=TOKENIZER)
def test_no_tokenizer(tmp_path, metadata):
    refused(
        UnsupportedModelError,
        tiny.write(tmp_path / "mute.gguf", metadata=metadata),
        "mute.gguf has no tokenizer",
    )


def renamed(architecture: str):
    metadata, tensors = tiny.llama()
    named = {key.replace("llama.", f"{architecture}."): value for key, value in metadata.items()}
    return named | {"general.architecture": architecture}, tensors


def test_unknown_architecture(tmp_path):
    path = tiny.write(tmp_path / "new.gguf", renamed("tomorrow9000"))
    assert (
        "upgrade llama-cpp-python"
        in refused(UnsupportedModelError, path, "new.gguf", "'tomorrow9000'").hint
    )


@pytest.mark.parametrize(
    "architecture",
    ["bert", "nomic-bert", "jina-bert-v2", "modern-bert", "gemma-embedding", "llama-embed"],
)
def test_embedding_model_by_architecture(tmp_path, architecture):
    path = tiny.write(tmp_path / "embed.gguf", renamed(architecture))
    assert ModelFile(path, may_embed=True).embeds_only
    with pytest.raises(NoGenerationError) as caught:
        _ = ModelFile(path).header
    assert f"embed.gguf is an embedding model ({architecture})" in str(caught.value)
    if architecture == "llama-embed":  # it has the tensors of a llama
        with load(path) as llm:
            assert llm.embed(["a", "abc"]).shape == (2, tiny.N_EMBD)
        return
    refused(UnsupportedModelError, path, "llama.cpp cannot load embed.gguf")


@pytest.mark.parametrize(
    "metadata",
    [{"llama.pooling_type": 1}, {"llama.pooling_type": 3}, {"llama.attention.causal": False}],
)
def test_embedding_model_by_its_numbers(tmp_path, metadata):
    path = tiny.write(tmp_path / "embed.gguf", metadata=metadata)
    with load(path) as llm, pytest.raises(NoGenerationError) as caught:
        llm.generate("a")
    assert "embed.gguf is an embedding model (llama)" in str(caught.value)
    with pytest.raises(NoGenerationError):  # nor as a draft
        load(tiny.write(tmp_path / "good.gguf"), path)


@pytest.mark.parametrize("architecture", ["t5", "t5encoder", "clip"])
def test_encoder(tmp_path, architecture):
    refused(
        UnsupportedModelError,
        tiny.write(tmp_path / "t5.gguf", renamed(architecture)),
        f"t5.gguf is an encoder ({architecture})",
    )


def test_diffusion_model(tmp_path):
    refused(
        UnsupportedModelError,
        tiny.write(tmp_path / "noise.gguf", renamed("llada")),
        "noise.gguf is a diffusion model (llada)",
    )


@pytest.mark.parametrize("kind", ["adapter", "mmproj", "imatrix"])
def test_no_model_at_all(tmp_path, kind):
    path = tiny.write(tmp_path / "part.gguf", metadata={"general.type": kind})
    refused(UnsupportedModelError, path, f"part.gguf is not a model but of type '{kind}'")


def test_a_file_with_only_a_vocabulary(tmp_path):
    refused(
        UnsupportedModelError,
        tiny.write(tmp_path / "v.gguf", (tiny.llama()[0], {})),
        "v.gguf has a vocabulary but no weights",
    )


def test_later_part_of_a_split_model(tmp_path):
    u16 = gguf.GGUFValueType.UINT16
    path = tiny.write(
        tmp_path / "p2.gguf",
        metadata={"split.no": gguf.GGUFValue(1, u16), "split.count": gguf.GGUFValue(3, u16)},
    )
    assert "-00001-of-" in refused(UnsupportedModelError, path, "part 2 of 3").hint


# What llama.cpp itself finds wrong, and says so.
REFUSED = {
    "a tensor is missing": ({}, {"output_norm.weight": None}, "output_norm.weight"),
    "a tensor too many": ({}, {"junk.weight": np.zeros(5, np.float32)}, "wrong number of tensors"),
    "a tensor of another shape": (
        {},
        {"token_embd.weight": np.zeros((10, 64), np.float32)},
        "token_embd.weight",
    ),
    "no heads": ({"llama.attention.head_count": 0}, {}, "attn_q"),
    "heads that do not divide the width": ({"llama.attention.head_count": 3}, {}, "n_rot"),
    "a width that is a lie": ({"llama.embedding_length": 63}, {}, "n_rot"),
    "a number that is text": ({"llama.block_count": "one"}, {}, "block_count"),
    "no context length": ({"llama.context_length": None}, {}, "context_length"),
    "no merges": ({"tokenizer.ggml.merges": None}, {}, "merges"),
    "token types too few": ({"tokenizer.ggml.token_type": [1, 1, 1]}, {}, "(3 < "),
    "an unknown tokenizer": ({"tokenizer.ggml.model": "klingon"}, {}, "'klingon'"),
    "an unknown pre-tokenizer": ({"tokenizer.ggml.pre": "klingon"}, {}, "'klingon'"),
    "a key without a name": ({"": 3}, {}, "is empty"),
    "a tensor with too long a name": (
        {},
        {"x" * 70: np.zeros(5, np.float32)},
        "too long: 70 >= 64",
    ),
    "an architecture that is a number": ({"general.architecture": 5}, {}, "general.architecture"),
}


@pytest.mark.parametrize(("metadata", "tensors", "said"), REFUSED.values(), ids=REFUSED)
def test_llama_cpp_finds_it_wrong(tmp_path, metadata, tensors, said):
    path = tiny.write(tmp_path / "odd.gguf", metadata=metadata, tensors=tensors)
    if "block_count" in said:
        refused(NotAModelError, path, "odd.gguf", said)
    else:
        refused(UnsupportedModelError, path, "llama.cpp cannot load odd.gguf", said)


TWICE = [*tiny.TOKENS]
TWICE[20] = TWICE[21]
FATAL = {
    "no layers": ({"llama.block_count": 0}, {}, "llama.block_count is 0"),
    "100,000 layers": ({"llama.block_count": 100_000}, {}, "llama.block_count is 100000"),
    "more layers to guess than layers": (
        {"llama.nextn_predict_layers": 5},
        {},
        "nextn_predict_layers is 5",
    ),
    "experts, none used": (
        {"llama.expert_count": 8, "llama.expert_used_count": 0},
        {},
        "expert_used_count is 0",
    ),
    "more experts used than there are": (
        {"llama.expert_used_count": 2},
        {},
        "expert_used_count is 2",
    ),
    "too many experts": (
        {"llama.expert_count": 5000, "llama.expert_used_count": 2},
        {},
        "expert_count is 5000",
    ),
    "groups of no experts": ({"llama.expert_group_count": 4}, {}, "expert_group_count is 4"),
    "unknown rope scaling": (
        {"llama.rope.scaling.type": "weird"},
        {},
        "rope.scaling.type is 'weird'",
    ),
    "epsilon below 0": ({"llama.attention.layer_norm_rms_epsilon": -1.0}, {}, "epsilon is -1.0"),
    "epsilon not a number": (
        {"llama.attention.layer_norm_rms_epsilon": float("nan")},
        {},
        "epsilon is nan",
    ),
    "a token twice": ({"tokenizer.ggml.tokens": TWICE}, {}, "1 of its 275 tokens occur twice"),
    "weights of doubles": (
        {},
        {"blk.0.attn_q.weight": np.zeros((64, 64), np.float64)},
        "blk.0.attn_q.weight",
    ),
    "weights of bytes": (
        {},
        {"token_embd.weight": np.zeros((len(tiny.TOKENS), 64), np.int8)},
        "token_embd.weight",
    ),
}
CHILD = """
import sys, gguf_spec
for path in sys.argv[1:]:
    try:
        gguf_spec.load(path, None, threads=1, extra_bufts=False).generate("The")
    except gguf_spec.errors.NotAModelError as error:
        print(error, flush=True)
"""


@pytest.mark.full
def test_llama_cpp_would_end_the_process(tmp_path):
    """As many lines as files show which one ended it."""
    paths = [
        tiny.write(tmp_path / f"{i}.gguf", metadata=metadata, tensors=tensors)
        for i, (metadata, tensors, _) in enumerate(FATAL.values())
    ]
    child = children.run(
        [sys.executable, "-c", CHILD, *paths], capture_output=True, text=True, check=False
    )
    lines = child.stdout.splitlines()
    assert (child.returncode, child.stderr, len(lines)) == (0, "", len(FATAL)), lines
    for (name, (_, _, said)), line in zip(FATAL.items(), lines, strict=True):
        assert said in line, name


HARMLESS = {
    "end token out of range": {"tokenizer.ggml.eos_token_id": 10**6},
    "start token out of range, and wanted": {
        "tokenizer.ggml.bos_token_id": 10**6,
        "tokenizer.ggml.add_bos_token": True,
    },
    "no merge at all": {"tokenizer.ggml.merges": []},
    "merges of strangers": {"tokenizer.ggml.merges": ["x y", "", "é"]},
    "token types of the future": {"tokenizer.ggml.token_type": [99] * len(tiny.TOKENS)},
    "a token of no letter": {"tokenizer.ggml.tokens": [*tiny.TOKENS[:20], "", *tiny.TOKENS[21:]]},
    "a template that is no string": {"tokenizer.chat_template": 3},
    "context length 0": {"llama.context_length": 0},
    "a context length without end": {"llama.context_length": 2**32 - 1},
}


@pytest.mark.parametrize("metadata", HARMLESS.values(), ids=HARMLESS)
def test_unusual_but_valid_files(tmp_path, metadata):
    with load(tiny.write(tmp_path / "odd.gguf", metadata=metadata)) as llm:
        assert len(llm.generate("Once upon", Sampling(temperature=0, max_tokens=4)).tokens) == 4


def test_weights_that_are_not_numbers(tmp_path):
    path = tiny.write(
        tmp_path / "nan.gguf",
        tensors={"output.weight": np.full((len(tiny.TOKENS), 64), np.nan, np.float32)},
    )
    with load(path) as llm:
        for temperature in (0.0, 0.8):
            with pytest.raises(NoTokenLeftError):
                llm.generate("Once", Sampling(temperature=temperature))


def test_a_context_larger_than_memory(gguf_dir):
    with pytest.raises(NotEnoughMemoryError) as caught:
        load(gguf_dir / "llama.gguf", n_ctx=2_000_000_000)
    assert "for a context of 2,000,000,000" in str(caught.value)
    assert caught.value.needed_bytes > caught.value.available_bytes
    assert "n_ctx" in caught.value.hint


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep to RLIMIT_AS")
def test_memory_that_the_system_refuses(gguf_dir):
    code = (
        "import resource, sys, gguf_spec\n"
        "import llama_cpp, numpy\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), resource.RLIM_INFINITY))\n"
        "try:\n    gguf_spec.load(sys.argv[1], None, threads=1, extra_bufts=False, n_ctx=4_000_000)\n"
        "except gguf_spec.errors.NotEnoughMemoryError as error:\n    print(error, error.hint)\n"
    )
    child = children.run(
        [sys.executable, "-c", code, gguf_dir / "llama.gguf"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (child.returncode, child.stderr) == (0, "")
    assert "a context of 4,000,000" in child.stdout
    assert "n_ctx" in child.stdout


def test_prompt_longer_than_the_context(gguf_dir):
    with load(gguf_dir / "llama.gguf", n_ctx=32) as llm:
        with pytest.raises(
            PromptTooLongError, match="has 40 tokens but the context holds 32"
        ) as caught:
            llm.generate("z" * 40)
        assert "n_ctx=64" in caught.value.hint
        assert len(llm.generate("z" * 31).tokens) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 0},
        {"threads": -1},
        {"n_ctx": 0},
        {"n_ctx": 2**31},
        {"kv_type": "q9"},
        {"flash_attention": "maybe"},
        {"gpu_layers": -2},
    ],
)
def test_options_out_of_range(gguf_dir, options):
    with pytest.raises(InvalidOptionError) as caught:
        gguf_spec.load(
            gguf_dir / "llama.gguf", None, **{"threads": 1, "extra_bufts": False} | options
        )
    assert str(next(iter(options.values()))) in str(caught.value)


def test_nothing_stays_open_after_a_refusal(gguf_dir, tmp_path):
    fd = Path("/proc/self/fd")
    if not fd.exists():
        pytest.skip("needs /proc")
    tiny.write(tmp_path / "odd.gguf", metadata={"tokenizer.ggml.pre": "klingon"})
    before = len(list(fd.iterdir()))
    for path in (tmp_path, tmp_path / "none", tmp_path / "odd.gguf"):
        with pytest.raises(gguf_spec.errors.ModelError):
            load(path)
        with pytest.raises(gguf_spec.errors.ModelError):
            load(gguf_dir / "llama.gguf", path)
    assert len(list(fd.iterdir())) == before


def zeroed(path, goal, begin, end):
    """A copy of a model with zeros from one byte to another, of the size that it had."""
    data = bytearray(path.read_bytes())
    data[begin:end] = bytes(end - begin)
    goal.write_bytes(data)
    return goal


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_a_file_whose_end_was_not_written(gguf_dir, tmp_path, share):
    source = gguf_dir / "llama.gguf"
    header = read_header(source)
    size = header.file_bytes
    begin = header.data_at + int((size - header.data_at) * share)
    path = zeroed(source, tmp_path / "half.gguf", begin, size)
    with pytest.raises(NotAModelError, match=r"half\.gguf has zeros in place of data"):
        gguf_spec.load(path, "none", n_ctx=64)
    found = [check for check in doctor(path, "none").checks if check.status == "fail"]
    assert "zeros" in found[0].found


def half_written(path, share=0.5):
    """Write zeros in place of the end of a file's data."""
    header = read_header(path)
    begin = header.data_at + int((header.file_bytes - header.data_at) * share)
    return zeroed(path, path, begin, header.file_bytes)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_a_projector_or_a_head_whose_end_was_not_written(tmp_path, share):
    """Between the matrices of a projector are its biases, and it names its norms in another way."""
    projector = half_written(projector_file.write(tmp_path / "mmproj.gguf"), share)
    with pytest.raises(NotAModelError, match=r"mmproj\.gguf has zeros in place of data"):
        read_projector(projector)
    for name, model in (
        ("own.gguf", families.with_head(families.family("qwen35"))),
        ("eagle.gguf", eagle.head()),
    ):
        tiny.write(tmp_path / name, model)
        assert "zeros" not in why_head_fails(ModelFile(tmp_path / name), None)
        half_written(tmp_path / name, share)
        assert f"{name} has zeros in place of data" in why_head_fails(ModelFile(tmp_path / name), None)  # fmt: skip


def test_tensors_that_are_zero_by_right(gguf_dir, tmp_path):
    """Rows of unused tokens, a whole matrix, and biases."""
    source = gguf_dir / "llama.gguf"
    header = read_header(source)
    for tensor in header.tensors:
        if len(tensor.shape) < 2:
            continue
        begin = header.data_at + tensor.offset
        for part in (0, tensor.n_bytes * 3 // 4):
            path = zeroed(source, tmp_path / "model.gguf", begin + part, begin + tensor.n_bytes)
            check_written(ModelFile(path).header)
