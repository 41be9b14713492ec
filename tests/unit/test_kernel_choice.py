"""Whether weights are repacked, from measured costs, and what is kept of them."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from gguf_spec.gguf.header import Tensor
from gguf_spec.gguf.validation import Header
from gguf_spec.llama import kernel_choice
from gguf_spec.llama.kernel_choice import (
    KernelCosts,
    layer_weights,
    measure_kernels,
    repacking_pays,
    request_seconds,
)
from gguf_spec.llama.options import ContextOptions
from gguf_spec.llama.probe_model import AttentionShape, LayerWeights

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 256)
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
Q4_0, Q4_K, Q6_K, IQ4_XS = 2, 12, 14, 23


def header(kind=Q4_K, down=Q6_K, **of):
    of = {"block_count": 4, "embedding_length": 512, "feed_forward_length": 1024, "attention.head_count": 4, **of}  # fmt: skip
    tensors = tuple(
        Tensor(f"blk.{i}.{name}.weight", (512, 512), down if name == "ffn_down" else kind, 0, 1)
        for i in range(4)
        for name in MATRICES
    )
    values = {f"llama.{key}": value for key, value in of.items()}
    return Header(Path("a.gguf"), {"general.architecture": "llama", **values}, 1, 1000, tensors=tensors)  # fmt: skip


def line(first, row, prompt):
    """A pass of n tokens takes `first` + n `row`, and that of a prompt `prompt`."""
    return {n: first + n * row for n in WIDTHS[:-1]} | {256: prompt}


@pytest.fixture
def x86(monkeypatch):
    monkeypatch.setattr("gguf_spec.llama.exact_kernels.platform.machine", lambda: "x86_64")
    monkeypatch.setattr("gguf_spec.llama.exact_kernels.kernels_in_use", lambda: "tiled")
    monkeypatch.setattr(kernel_choice, "uses_gpu", lambda _: False)


def test_a_request_is_a_prompt_and_tokens_half_of_them_drafted():
    flat = dict.fromkeys(WIDTHS, 1.0)
    plain = 512 / 256 + 128 * 1.0
    assert request_seconds(flat, 1) == pytest.approx(plain)
    three = (1 + 0.2) / (1 + 0.75 + 0.75**2)
    assert request_seconds(flat, 3) == pytest.approx(2 + 64 + 64 * three)
    assert request_seconds(flat, 7) < request_seconds(flat, 3)
    steep = line(0.0, 1.0, 256.0)  # where a row costs as much as a pass, nothing is drafted
    assert request_seconds(steep, 7) == pytest.approx(512 + 128)


def test_plain_kernels_are_taken_where_they_are_clearly_faster():
    repacked, slower, faster = (line(1.0, 0.1, p) for p in (20.0, 22.0, 8.0))
    assert KernelCosts(repacked, slower).repacked_pays(7, 7)
    assert KernelCosts(repacked, repacked).repacked_pays(7, 7)
    assert not KernelCosts(repacked, faster).repacked_pays(7, 7)
    # 3 % faster in each pass is not enough, but plain kernels also verify 7 rows, not 3
    cheap_rows = line(1.0, 0.01, 1.0)
    a_little_faster = {n: 0.97 * seconds for n, seconds in cheap_rows.items()}
    assert KernelCosts(cheap_rows, a_little_faster).repacked_pays(7, 7)
    assert not KernelCosts(cheap_rows, a_little_faster).repacked_pays(3, 7)


@pytest.mark.usefixtures("x86")
def test_only_files_whose_repacked_rows_are_limited_are_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls, costs = [], KernelCosts(line(1.0, 0.1, 20.0), line(1.0, 0.1, 8.0))
    monkeypatch.setattr(kernel_choice, "_measure", lambda *given: calls.append(given) or costs)
    for one in (header(Q4_0, Q4_0), header(Q6_K, Q6_K), header(embedding_length=500), header(Q4_K, IQ4_XS)):  # fmt: skip
        assert measure_kernels(one, ContextOptions()) is None
        assert repacking_pays(one, ContextOptions())
    assert not calls
    assert repacking_pays(header(), ContextOptions()), "not measured yet"
    assert not calls, "a load measures nothing: a text must not depend on its moment"
    assert measure_kernels(header(), ContextOptions()) is False
    assert calls[0][1] == LayerWeights(
        512, 1024, dict.fromkeys(MATRICES, Q4_K) | {"ffn_down": Q6_K}
    )
    assert not repacking_pays(header(), ContextOptions())
    assert repacking_pays(header(), ContextOptions(threads=99)), "other threads, other costs"
    assert repacking_pays(header(embedding_length=1024), ContextOptions())
    monkeypatch.setattr(kernel_choice, "uses_gpu", lambda _: True)
    assert repacking_pays(header(), ContextOptions())
    assert measure_kernels(header(), ContextOptions()) is None


@pytest.mark.usefixtures("x86")
def test_what_is_damaged_counts_as_not_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    costs = KernelCosts(line(1.0, 0.1, 20.0), line(1.0, 0.1, 8.0))
    monkeypatch.setattr(kernel_choice, "_measure", lambda *_: costs)
    assert measure_kernels(header(), ContextOptions()) is False
    (file,) = (tmp_path / "gguf-spec" / "kernels").iterdir()
    assert KernelCosts.from_dict(json.loads(file.read_text())) == costs
    negative = dict.fromkeys(map(str, WIDTHS), -1.0)
    for spoilt in ("{}", "[]", '{"repacked": 3}', '{"repacked": [5], "plain": [5]}', json.dumps(costs.to_dict() | {"plain": {"1": 1.0}}),
                   json.dumps(costs.to_dict() | {"plain": negative})):  # fmt: skip
        file.write_text(spoilt)
        assert repacking_pays(header(), ContextOptions())


def test_a_measurement_that_fails_decides_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(kernel_choice, "_measure", fail)
    assert measure_kernels(header(), ContextOptions()) is None
    assert list(tmp_path.iterdir()) == []


def test_large_layers_are_reduced_and_others_are_unknown():
    assert layer_weights(header(embedding_length=8192, feed_forward_length=28672))[:2] == (4096, 8192)  # fmt: skip
    assert layer_weights(header(feed_forward_length=(1, 2))) is None
    assert layer_weights(header(block_count=0)) is None
    assert layer_weights(header(block_count=100)) is None, "no such layer"


def test_both_kinds_are_timed_on_real_models():
    """Of all types that a K-quant file mixes."""
    weights = LayerWeights(256, 512, dict(zip(MATRICES, (10, 11, 12, 13, 14, 12, 8), strict=True)))
    costs = kernel_choice._measure(AttentionShape(8, 2, 64, 64), weights, ContextOptions(threads=1))
    assert set(costs.repacked) == set(costs.plain) == set(WIDTHS)
    assert KernelCosts.from_dict(json.loads(json.dumps(costs.to_dict()))) == costs


def test_each_pass_of_both_models_is_timed():
    seen = []

    def model(name):
        return SimpleNamespace(logits=lambda ids, n: seen.append((name, len(ids))), rollback=lambda n: None)  # fmt: skip

    both = kernel_choice._passes([model("a"), model("b")])
    assert [set(times) for times in both] == [set(WIDTHS)] * 2
    assert seen == [(name, width) for _ in range(4) for width in WIDTHS for name in "ab"]
