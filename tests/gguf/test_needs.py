"""Estimates of memory against llama.cpp's own figures, and against the peak of a process."""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from gguf_spec.gguf.validation import read_header
from gguf_spec.llama.context import Context
from gguf_spec.llama.memory import cache_bytes, needs
from gguf_spec.llama.options import ContextOptions
from gguf_spec.registry.download import path as local
from gguf_spec.registry.resolve import resolve
from tests.support import children, tiny

MIB = 1 << 20
GROWN = Path.home() / ".cache" / "gguf-spec" / "grown"
LARGE, SMALL = (
    GROWN / "grown-1.7B-target-49152-Q4_0.gguf",
    GROWN / "grown-135M-draft-49152-Q4_0.gguf",
)
GROWN_HALF_BILLION = GROWN / "grown-0.5B-draft-151936-Q4_0.gguf"


@pytest.fixture(autouse=True)
def written(monkeypatch):
    """Files of zeros are taken: only sizes are looked at here."""
    monkeypatch.setattr("gguf_spec.llama.context.check_written", lambda _: None)


def said(capfd, path, **options):
    """Load a model and return the sizes of its buffers from llama.cpp's log, in MiB by kind."""
    capfd.readouterr()
    Context(path, ContextOptions(threads=1, verbose=True, **options)).sequences[0].close()
    found = {"KV": 0.0, "RS": 0.0, "compute": 0.0, "model": {}}
    for name, kind, n in re.findall(
        r"(\S+) (KV|RS|compute|model) buffer size = +([\d.]+) MiB", capfd.readouterr().err
    ):
        if kind == "model":
            found["model"][name] = found["model"].get(name, 0) + float(n)
        else:
            found[kind] += float(n)
    return found


def model(
    architecture,
    n_layer=2,
    n_embd=256,
    n_head=4,
    kv=(2, 2),
    head=64,
    n_ff=1024,
    extra=(),
    names=(),
    **said,
):
    """Return metadata and tensors of a model like llama, with other sizes and names; its weights are zero."""
    metadata = {
        "general.architecture": architecture, f"{architecture}.context_length": 8192, f"{architecture}.embedding_length": n_embd,
        f"{architecture}.block_count": n_layer, f"{architecture}.feed_forward_length": n_ff, f"{architecture}.attention.head_count": n_head,
        f"{architecture}.attention.head_count_kv": kv[0] if len(set(kv)) == 1 else list(kv), f"{architecture}.attention.key_length": head,
        f"{architecture}.attention.value_length": head, f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.dimension_count": head, **{f"{architecture}.{key}": value for key, value in said.items()},
    }  # fmt: skip
    shapes = {"token_embd.weight": (len(tiny.TOKENS), n_embd), "output_norm.weight": (n_embd,)}
    for i in range(n_layer):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (n_embd,), f"blk.{i}.ffn_norm.weight": (n_embd,), f"blk.{i}.attn_q.weight": (n_head * head, n_embd),
            f"blk.{i}.attn_k.weight": (kv[i] * head, n_embd), f"blk.{i}.attn_v.weight": (kv[i] * head, n_embd),
            f"blk.{i}.attn_output.weight": (n_embd, n_head * head), f"blk.{i}.ffn_gate.weight": (n_ff, n_embd),
            f"blk.{i}.ffn_up.weight": (n_ff, n_embd), f"blk.{i}.ffn_down.weight": (n_embd, n_ff),
            **{f"blk.{i}.{name}.weight": (size,) for name, size in names},
        }  # fmt: skip
    return metadata, {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


NORMS = (("attn_q_norm", 64), ("attn_k_norm", 64))
POST = (("post_attention_norm", 256), ("post_ffw_norm", 256))
KINDS = {
    "llama": lambda: model("llama"),
    "qwen3": lambda: model("qwen3", names=NORMS),
    "gemma3": lambda: model(
        "gemma3", n_layer=6, kv=(1,) * 6, names=NORMS + POST, **{"attention.sliding_window": 512}
    ),
    "deci": lambda: model("deci", kv=(4, 1)),
    "mamba": tiny.mamba,
    "lfm2": tiny.lfm2,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {"n_ctx": 1000},
        {"n_ctx": 3000, "kv_type": "q8_0"},
        {"n_ctx": 1024, "flash_attention": "off"},
    ],
)
def test_caches_are_as_llama_makes_them(tmp_path, capfd, kind, options):
    if kind == "lfm2" and "kv_type" in options:
        options = {**options, "kv_type": "bf16"}
    path = tiny.write(tmp_path / "model.gguf", KINDS[kind]())
    found = said(capfd, path, **options)
    wanted = cache_bytes(read_header(path), ContextOptions(**options), options["n_ctx"]) / MIB
    assert found["KV"] + found["RS"] > 0
    assert wanted == pytest.approx(found["KV"] + found["RS"], abs=0.011)


def test_weights_are_mapped_and_copied_as_llama_does(capfd):
    for name in ("tales", "tales-draft"):
        path = local(resolve(name))
        found = said(capfd, path, n_ctx=256)["model"]
        wanted = needs([(read_header(path), ContextOptions(n_ctx=256))])
        copies = sum(n for name, n in found.items() if not name.startswith("CPU_Mapped"))
        assert wanted.copies / MIB == pytest.approx(copies, abs=0.05)


PEAK = """
import json, sys
from pathlib import Path
import gguf_spec
from gguf_spec import Sampling
from gguf_spec.llama.backend import build_features
from gguf_spec.llama import own_kernels
from gguf_spec.llama.options import ContextOptions
from gguf_spec.gguf.validation import read_header
from gguf_spec.llama.memory import needs, read_files
from gguf_spec.registry.resolve import resolve
from gguf_spec.registry.download import path as local
import gguf_spec.runtime.llm
model, draft, options = json.loads(sys.argv[1])
how = ContextOptions(extra_bufts=options.get("extra_bufts", True), **{k: v for k, v in options.items() if k != "extra_bufts"})
files = [local(resolve(name)) for name in (model, draft) if name]
own_kernels.start()
# not the longer one that load takes where the memory is large
options["n_ctx"] = how.positions(read_header(files[0]).whole("context_length"))
wanted = needs(read_files([(read_header(file), how) for file in files]))
with gguf_spec.load(model, draft, threads=2, **options) as llm:
    words = "There was once a king who had three daughters, and all of them were fair, but the youngest was so fair that the sun itself. "
    tokens = (llm.tokenize(words) * 400)[: min(4000, llm.n_ctx - 40)]
    llm.generate_tokens(tokens, Sampling(max_tokens=32, temperature=0))
    peak = int(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
print(json.dumps([peak, wanted.total, wanted.weights, wanted.caches, wanted.compute, wanted.base]))
"""


def peak_and_needs(model, draft, tmp_path, **options):
    arguments = json.dumps([str(model), draft and str(draft), {"extra_bufts": True, **options}])
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    child = children.run(
        [sys.executable, "-c", PEAK, arguments],
        capture_output=True,
        text=True,
        env=environment,
        limit_s=600,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read there")
@pytest.mark.parametrize(
    ("draft", "options"),
    [
        ("tales-draft", {}),
        (None, {}),
        (None, {"n_ctx": 4096, "kv_type": "f32"}),
        (None, {"extra_bufts": False}),
    ],
)
def test_the_peak_of_the_bundled_pair(tmp_path, draft, options):
    peak, total, *parts = peak_and_needs("tales", draft, tmp_path, **options)
    assert total == pytest.approx(peak, rel=0.1), parts


@pytest.mark.slow
@pytest.mark.skipif(not LARGE.exists(), reason="scripts/models/grow_gguf.py makes these models")
@pytest.mark.parametrize(
    ("target", "draft", "options"),
    [
        (SMALL, None, {}), (SMALL, None, {"n_ctx": 16384}), (LARGE, None, {}), (LARGE, SMALL, {}), (LARGE, SMALL, {"n_ctx": 8192}),
        (LARGE, SMALL, {"n_ctx": 8192, "kv_type": "q8_0"}), (LARGE, SMALL, {"extra_bufts": False}), (GROWN_HALF_BILLION, None, {}),
    ],
)  # fmt: skip
def test_the_peak_of_models_of_real_size(tmp_path, target, draft, options):
    if missing := [path.name for path in (target, draft) if path and not path.exists()]:
        pytest.skip(f"scripts/models/grow_gguf.py makes {missing[0]}")
    peak, total, *parts = peak_and_needs(target, draft, tmp_path, **options)
    assert total == pytest.approx(peak, rel=0.1), parts
