"""How wide a pass can be exact: by the types of the matrices, where a few rows would show more by chance."""

from types import SimpleNamespace

import numpy as np
import pytest

from gguf_spec.llama import exact_kernels
from gguf_spec.llama.exact_kernels import most_exact_rows
from gguf_spec.speculative.profiler import measure
from tests.fakes import FakeModel, random_table

F32, F16, Q4_0, Q8_0, Q2_K, Q4_K, Q6_K = 0, 1, 2, 8, 10, 12, 14


def header(*types):
    matrices = [
        SimpleNamespace(name=f"blk.{i}.ffn_up.weight", type=kind, shape=(256, 256))
        for i, kind in enumerate(types)
    ]
    return SimpleNamespace(
        tensors=[*matrices, SimpleNamespace(name="blk.0.norm.weight", type=Q4_K, shape=(256,))]
    )


@pytest.mark.parametrize(
    ("types", "extra_bufts", "tiled", "most"),
    [
        ([F32, F16, Q4_0, Q8_0], True, True, None),
        ([Q8_0, Q4_K], True, True, 3),
        ([Q8_0, Q2_K], True, False, 3),
        ([Q4_K], False, True, 7),
        ([Q4_K], False, False, None),
        ([Q6_K], True, True, 7),
        ([Q6_K], True, False, None),
    ],
)
def test_the_types_of_the_matrices_decide(monkeypatch, types, extra_bufts, tiled, most):
    monkeypatch.setattr(exact_kernels, "_decided", [not tiled])
    monkeypatch.setattr(exact_kernels.platform, "machine", lambda: "x86_64")
    assert most_exact_rows(header(*types), extra_bufts) == most
    monkeypatch.setattr(exact_kernels.platform, "machine", lambda: "aarch64")
    assert most_exact_rows(header(*types), extra_bufts) is None


def test_a_profile_promises_no_more():
    """The rows that were measured had the same bits by chance."""
    model = FakeModel(random_table(np.random.default_rng(1), 6), n_ctx=512)
    assert measure(model, None).exact_width == 65
    model.most_exact_rows = 3
    assert measure(model, None).exact_width == 3
