"""The exact width by the types of the matrices, where a few rows would give a larger one by chance."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gguf_spec.gguf.validation import read_header
from gguf_spec.llama import own_kernels
from gguf_spec.llama.exactness import has_exact_attention, has_exact_products, most_exact_rows
from gguf_spec.llama.options import ContextOptions
from gguf_spec.llama.own_kernels import flash_on_cpu
from gguf_spec.options import K_MAX
from gguf_spec.speculative.profiler import measure
from tests.support import tiny
from tests.support.fakes import FakeModel, random_table

F32, F16, Q4_0, Q8_0, Q2_K, Q3_K, Q4_K, Q6_K, IQ4_XS = 0, 1, 2, 8, 10, 11, 12, 14, 23
LLAMAFILE = {"LLAMAFILE": "1"}
REMOTE = {"rpc": ("127.0.0.1:1",)}


def header(*types, output=F32):
    matrices = [
        SimpleNamespace(name=f"blk.{i}.ffn_up.weight", type=kind, shape=(256, 256))
        for i, kind in enumerate(types)
    ]
    matrices.append(SimpleNamespace(name="output.weight", type=output, shape=(256, 256)))
    return SimpleNamespace(
        tensors=[*matrices, SimpleNamespace(name="blk.0.norm.weight", type=Q4_K, shape=(256,))]
    )


@pytest.fixture
def use(monkeypatch):
    """Sets the kernels of this process; the own ones take attention with an f16 cache."""
    monkeypatch.setattr(own_kernels.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(own_kernels, "library_takes", lambda *size: size == (32, 32, 1))
    return lambda name: monkeypatch.setattr(own_kernels, "decided", [own_kernels.Kernels(name)])


@pytest.mark.parametrize(
    ("types", "options", "stock", "own"),
    [
        ([F32, F16, Q4_0, Q8_0], {}, None, None),
        ([Q8_0, Q4_K], {}, 3, None),
        ([Q8_0, Q2_K], {}, 3, None),
        ([Q4_K], {"extra_bufts": False}, 7, None),
        ([Q6_K], {}, 7, None),
        ([Q3_K], {}, 7, None),
        ([IQ4_XS], {}, 7, 7),
        ([Q4_K], REMOTE, 7, 7),
    ],
)
def test_the_types_of_the_matrices_decide(use, monkeypatch, types, options, stock, own):
    options = ContextOptions(**options)
    for name, most in (("", stock), ("avx2", own)):
        use(name)
        assert most_exact_rows(header(*types), options) == (most or K_MAX + 1)
        assert has_exact_products(header(*types), options) is (most is None)
    monkeypatch.setattr(own_kernels.platform, "machine", lambda: "aarch64")
    assert most_exact_rows(header(*types), options) == K_MAX + 1


def test_an_output_matrix_limits_rows_but_changes_no_cache(use):
    use("")
    one = header(Q4_0, output=Q6_K)
    assert most_exact_rows(one, ContextOptions()) == 7
    assert has_exact_products(one, ContextOptions())


@pytest.mark.parametrize(
    ("options", "stock", "own"),
    [
        ({}, "off", "on"),
        ({"kv_type": "q8_0"}, "on", "on"),
        ({"kv_type": "bf16"}, "off", "off"),
        ({"flash_attention": "on"}, "on", "on"),
        ({"flash_attention": "off"}, "off", "off"),
        (REMOTE, "off", "off"),
    ],
)
def test_flash_attention_is_on_with_the_own_kernel(use, tmp_path, options, stock, own):
    one, options = read_header(tiny.write(tmp_path / "a.gguf")), ContextOptions(**options)
    for name, flash in (("", stock), ("avx2", own)):
        use(name)
        assert flash_on_cpu(one, options) == flash


def test_attention_is_exact_with_the_own_kernel_in_any_build(use, tmp_path):
    one, options = read_header(tiny.write(tmp_path / "a.gguf")), ContextOptions()

    def exact(flash, features):
        return has_exact_attention(one, options, flash, features)

    use("avx2")
    assert exact("on", LLAMAFILE)
    use("")
    assert [exact("on", {}), exact("off", {}), exact("off", LLAMAFILE)] == [False, True, False]
    in_blocks = ContextOptions(kv_type="q8_0")
    assert has_exact_attention(one, in_blocks, "on", LLAMAFILE)


def test_a_profile_has_no_larger_exact_width():
    """The rows that were measured had the same bits by chance."""
    model = FakeModel(random_table(np.random.default_rng(1), 6), n_ctx=512)
    assert measure(model, None).exact_width == 65
    model.exactness = replace(model.exactness, most_rows=3)
    assert measure(model, None).exact_width == 3
