"""Damaged files, each loaded in a process of its own: refused by a typed error, or loaded, but never the end of the process."""

import os
import sys
from ast import literal_eval
from pathlib import Path

import numpy as np
import pytest

from gguf_spec.registry.resolve import resolve
from tests.support import children, tiny
from tests.support.pace import limit_s

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "checks"))
import mutate_gguf

SCRIPTS = Path(mutate_gguf.__file__).parent
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks")
I8, I32, F16 = np.int8, np.int32, np.float16


def named(architecture, **metadata):
    """Return the tiny llama under another name of its architecture, which has the same tensors, with other metadata and tensors."""
    old, tensors = tiny.llama()
    values = {key.replace("llama.", f"{architecture}."): value for key, value in old.items()} | {
        "general.architecture": architecture
    }
    return values | {
        f"{architecture}.{key.replace('__', '.')}": value for key, value in metadata.items()
    }, tensors


def heads(n, n_kv, n_key=32, n_value=32, **metadata):
    """Return a llama whose tensors all agree on odd heads."""
    values, tensors = named(
        "llama",
        attention__head_count=n,
        attention__head_count_kv=n_kv,
        attention__key_length=n_key,
        **metadata,
    )
    rng = np.random.default_rng(0)
    shapes = {
        "attn_q": (n * n_key, 64),
        "attn_k": (n_kv * n_key, 64),
        "attn_v": (n_kv * n_value, 64),
        "attn_output": (64, n * n_key),
    }
    more = {
        f"blk.0.{name}.weight": rng.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    return values | {
        "llama.attention.value_length": n_value,
        "llama.rope.dimension_count": n_key,
    }, tensors | more


def turning_nothing():
    metadata, tensors = tiny.lfm2()
    return metadata | {"lfm2.rope.dimension_count": 0}, tensors


def cast(name, kind, of=None):
    metadata, tensors = of or tiny.llama()
    return metadata, tensors | {name: tensors[name].astype(kind)}


SPM = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "▁the",
    "e",
    "▁a",
    "t",
    "h",
]
RWKV = [
    "<s>",
    *(
        f"\\x{byte:02x}" if byte < 32 or byte in (39, 92) or byte > 126 else chr(byte)
        for byte in range(256)
    ),
    "the",
    "\\n\\n",
]


def spoken(kind, tokens):
    """Return a llama with another kind of tokenizer."""
    metadata, tensors = tiny.llama(n_vocab=len(tokens))
    scores = [-float(i) for i in range(len(tokens))]
    more = {
        f"tokenizer.ggml.{key}": None
        for key in ("merges", "pre", "token_type", "bos_token_id", "eos_token_id")
    }
    return (
        metadata,
        tensors,
        more
        | {
            "tokenizer.ggml.model": kind,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": scores,
        },
    )


# Fault that ended the process when it was found, and its error message now.
KILLERS = {
    "experts, how many of them used is not said": (
        named("llama", expert_count=3),
        "expert_used_count is 0 of 3",
    ),
    "experts used a layer": (named("llama", expert_used_count=[2]), "expert_used_count is 2 of 0"),
    "groups that do not divide the experts": (
        named("llama", expert_count=8, expert_used_count=2, expert_group_count=3),
        "expert_group_count is 3",
    ),
    "all groups used": (
        named(
            "llama",
            expert_count=8,
            expert_used_count=2,
            expert_group_count=2,
            expert_group_used_count=2,
        ),
        "2 of them used",
    ),
    "heads that cannot share": (heads(3, 2), "3 heads share 2"),
    "odd heads": (heads(2, 1, 33, 33), "33 of a head's 33"),
    "keys and values of other lengths": (heads(2, 1, 32, 16), "heads have 32, 16 and 32"),
    "half of a head turned": (named("qwen2", rope__dimension_count=16), "heads have 32, 32 and 16"),
    "no number of a head turned, for ever": (turning_nothing(), "0 of a head's 32"),
    "embeddings of whole numbers": (
        cast("token_embd.weight", I32),
        "'token_embd.weight' contains integers",
    ),
    "weights of whole numbers": (
        cast("blk.0.attn_q.weight", I32),
        "'blk.0.attn_q.weight' contains integers",
    ),
    "weights of bytes": (cast("output.weight", I8), "'output.weight' is of the type 24"),
    "a norm in half precision": (
        cast("output_norm.weight", F16),
        "'output_norm.weight' is of the type 1",
    ),
    "a bias in half precision": (
        cast("blk.0.ssm_dt.bias", F16, tiny.mamba()),
        "'blk.0.ssm_dt.bias' is of the type 1",
    ),
    "a convolution in half precision": (
        cast("blk.0.ssm_conv1d.weight", F16, tiny.mamba()),
        "'blk.0.ssm_conv1d.weight' is of the type 1",
    ),
    "states in half precision": (
        cast("blk.0.ssm_a", F16, tiny.mamba()),
        "'blk.0.ssm_a' is of the type 1",
    ),
    "a short convolution in half precision": (
        cast("blk.0.shortconv.conv.weight", F16, tiny.lfm2()),
        "'blk.0.shortconv.conv.weight' is of the type 1",
    ),
    "SentencePiece without a byte": (
        spoken("llama", [t for t in SPM if t != "<0xC3>"]),
        "no token stands for the byte 195",
    ),
    "RWKV without a byte": (
        spoken("rwkv", [t for t in RWKV if t != "t"]),
        "no token stands for the byte 116",
    ),
    "a tokenizer of embedding models": (spoken("bert", SPM), "the tokenizer of an embedding model"),
}
FINE = {
    "SentencePiece": spoken("llama", SPM),
    "RWKV's": spoken("rwkv", RWKV),
    "two heads share one": heads(2, 1),
    "one head": heads(1, 1, 64, 64),
    "all but the norms in half precision": cast("blk.0.attn_q.weight", F16),
    "qwen2": named("qwen2"),
}


def outcome(tmp_path, model):
    metadata, tensors, *more = model
    path = tiny.write(tmp_path / "odd.gguf", (metadata, tensors), metadata=more[0] if more else {})
    code = "import mutate_gguf, sys; from pathlib import Path; print(mutate_gguf.load(Path(sys.argv[1])))"
    child = children.run(
        [sys.executable, "-c", code, path],
        capture_output=True,
        text=True,
        check=False,
        limit_s=60,
        env=environment(),
    )
    assert child.returncode == 0, child.stderr[-500:]
    return child.stdout


def environment():
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(
            [str(SCRIPTS), str(SCRIPTS.parents[1]), os.environ.get("PYTHONPATH", "")]
        ),
        "GGML_NO_BACKTRACE": "1",
    }


@pytest.mark.full
@pytest.mark.parametrize(("model", "said"), KILLERS.values(), ids=KILLERS)
def test_what_would_end_the_process_is_refused(tmp_path, model, said):
    assert said in outcome(tmp_path, model)


@pytest.mark.full
@pytest.mark.parametrize("model", FINE.values(), ids=FINE)
def test_what_is_near_that_and_good_is_loaded(tmp_path, model):
    assert outcome(tmp_path, model) == "loaded\n"


def test_a_file_aligned_to_less_than_llama_cpp_maps(tmp_path):
    file = mutate_gguf.File.read(tiny.write(tmp_path / "good.gguf"))
    for name, other in mutate_gguf.of_file(file):
        if name.startswith("aligned to"):
            (tmp_path / "odd.gguf").write_bytes(other.pack())
            n = int(name.rpartition(" ")[2])
            assert mutate_gguf.apart(lambda: mutate_gguf.load(tmp_path / "odd.gguf"))[0].startswith(
                "loaded" if n >= 32 else "NotAModelError: odd.gguf is a"
            )


def run(*arguments):
    child = children.run(
        [sys.executable, SCRIPTS / "mutate_gguf.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        limit_s=900,
    )
    assert (child.returncode, child.stderr) == (0, "")
    print(child.stdout)
    return child.stdout


def test_a_file_taken_apart_and_put_together_is_the_same(gguf_dir):
    for path in gguf_dir.glob("*.gguf"):
        assert mutate_gguf.File.read(path).pack().rstrip(b"\0") == path.read_bytes().rstrip(b"\0")


@pytest.mark.slow
def test_ten_thousand_damaged_headers(gguf_dir):
    files = [resolve("tales").path, resolve("tales-draft").path, *sorted(gguf_dir.glob("*.gguf"))]
    figures = literal_eval(run("headers", "-n", 10_000, "--seed", 5, *files))
    assert sum(figures["outcomes"].values()) == 10_000
    assert set(figures["outcomes"]) <= {"read", "NotAModelError", "UnsupportedModelError"}
    assert figures["slowest_s"] < limit_s(1)
    assert figures["more_memory_mib"] < 256


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mamba", "lfm2"])
def test_damaged_files_do_not_end_the_process(gguf_dir, name):
    out = run("load", "-n", 300, "--seed", 5, gguf_dir / f"{name}.gguf")
    assert "died" not in out
    assert "untyped" not in out
    assert "'loaded': " in out
