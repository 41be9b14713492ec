"""Narrow passes on a GPU are filled up, so that rows and texts do not depend on the passes.

The device is simulated: rows of llama.cpp get a noise that belongs to the kernels which CUDA would choose.
"""

import json
import random
import zlib

import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.llama import context as context_module
from gguf_spec.llama import own_kernels, probe
from gguf_spec.llama.context import Context
from gguf_spec.llama.native import Native
from gguf_spec.llama.options import ContextOptions
from tests.gguf.test_near_ties import TALES

N_CTX = 600
TARGET = TALES / "tales-target-Q8_0.gguf"


def kernel(*ends):
    """Return the function from a number of rows to its kernel; each of `ends` is the last number of one."""
    return lambda n: sum(n > end for end in ends)


ALL_DIFFERENT = kernel(1, 2, 3, 4, 8)
# kernels, and what is found: the fewest tokens of a pass, and the most of an exact one
DEVICES = {
    "one query head to a key-value head": (kernel(1, 4, 8), (2, 4)),
    "grouped queries": (kernel(1, 2, 4, 8), (3, 4)),
    "pairs alone": (ALL_DIFFERENT, (2, 2)),
}


class Device:
    """What a pass of llama.cpp computed last."""

    def __init__(self, monkeypatch, kernel_of, by_place=False):
        self.kernel_of, self.by_place, self.passes = kernel_of, by_place, []
        decode, rows = Context.decode_sequences, Native.rows
        monkeypatch.setattr(context_module, "uses_gpu", lambda options: not options.drafts)
        monkeypatch.setattr(
            Context, "decode_sequences", lambda context, parts: self.decode(decode, context, parts)
        )
        monkeypatch.setattr(Native, "rows", lambda native, *a: self.noisy(rows(native, *a), *a))

    def decode(self, decode, context, parts):
        (part,) = parts
        self.passes.append((len(part.tokens), part.n_rows))
        reach = -(-(part.n_past + len(part.tokens)) // 256)
        kernels = self.kernel_of(len(part.tokens)), self.kernel_of(part.n_rows), reach
        self.now = None if context.weights.options.drafts else kernels
        return decode(context, parts)

    def noisy(self, rows, first, n_rows, n_vocab):
        if self.now is None or not n_rows:
            return rows
        found = rows.copy()
        for i in range(n_rows):
            seed = zlib.crc32(repr((self.now, i * self.by_place)).encode())
            found[i] += 0.3 * np.random.default_rng(seed).standard_normal(n_vocab, np.float32)
        return found


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    if not own_kernels.start().name:
        pytest.skip("the noise is simulated on rows that have the same bits: those of own kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def open_model(**options):
    return Context(TARGET, ContextOptions(n_ctx=N_CTX, threads=1, **options)).sequences[0]


def walk(model, tokens, depth, width):
    """Return the rows after `depth` tokens, decoded `width()` at a time."""
    model.rollback(0)
    model.read(tokens[:depth])
    found = []
    while model.n_past < len(tokens):
        at = model.n_past
        part = tokens[at : at + width()]
        found += [row.copy() for row in model.logits(part, len(part))]
        assert model.cached == tokens[: at + len(part)]
    return np.stack(found)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", DEVICES)
def test_rows_do_not_depend_on_the_passes(monkeypatch, name):
    """Up to the last position of the context, and across the multiples of 256 where attention changes."""
    kernels, expected = DEVICES[name]
    Device(monkeypatch, kernels)
    model = open_model()
    try:
        assert (model.exactness.least_rows, model.exactness.most_rows) == expected
        tokens = [i * 7919 % model.n_vocab for i in range(1, N_CTX + 1)]
        alone, rng = walk(model, tokens, 480, lambda: 1), random.Random(name)
        for _ in range(3):
            rows = walk(model, tokens, 480, lambda: rng.randint(1, model.exactness.most_rows))
            assert np.array_equal(rows, alone)
        model.rollback(540)
        last_alone = model.logits(tokens[540 : 540 + expected[1]], 1)
        assert np.array_equal(last_alone[0], alone[540 + expected[1] - 1 - 480])
        assert not np.array_equal(walk(model, tokens, 480, lambda: 16), alone)
    finally:
        model.close()


def test_a_device_without_exact_passes_is_used_as_it_is(monkeypatch):
    """As where the rows of one pass have different bits."""
    device = Device(monkeypatch, ALL_DIFFERENT, by_place=True)
    model = open_model()
    try:
        assert (model.exactness.least_rows, model.exactness.attention) == (1, False)
        device.passes.clear()
        model.logits([5], 1)
        assert device.passes == [(1, 1)]
    finally:
        model.close()


@pytest.mark.parametrize("options", [{"drafts": True}, {"parallel": 2}])
def test_drafts_and_common_passes_are_not_filled(monkeypatch, options):
    Device(monkeypatch, kernel(1, 4, 8))
    monkeypatch.setattr(Context, "_has_equal_rows", None)
    model = open_model(**options)
    assert model.exactness.least_rows == 1
    model.close()


@pytest.mark.full
def test_the_comparison_runs_once(monkeypatch):
    device = Device(monkeypatch, kernel(1, 4, 8))
    open_model().close()
    device.passes.clear()
    model = open_model()
    assert (model.exactness.least_rows, model.exactness.most_rows, device.passes) == (2, 4, [])
    model.close()
    (file,) = {
        path for path in probe.result_file("rows").parent.iterdir() if "[" in path.read_text()
    }
    file.write_text(json.dumps([7, 9]))
    model = open_model()
    assert (model.exactness.least_rows, json.loads(file.read_text())) == (2, [2, 4])
    model.close()


@pytest.mark.full
@pytest.mark.parametrize("name", ["one query head to a key-value head", "grouped queries"])
def test_texts_are_those_of_plain_decoding(monkeypatch, name):
    """With drafts of any length, and after any earlier request."""
    kernels, (_, most) = DEVICES[name]
    Device(monkeypatch, kernels)
    prompts = [
        "The cat and the dog. The cat and the",
        "Once upon a time " * 12,
        "Once upon a time " * 30,
    ]
    ways = [
        Speculation(),
        Speculation(k=1),
        Speculation(k=7, adaptive=False),
        Speculation(drafter="ngram"),
    ]
    n_drafted = 0
    with gguf_spec.load("tales", threads=1, n_ctx=N_CTX) as llm:
        for temperature in (0.0, 0.8):
            sampling = Sampling(max_tokens=60, seed=3, temperature=temperature, ignore_eos=True)
            for prompt in prompts:
                llm.forget()
                plain = llm.generate(prompt, sampling, speculation=Speculation(0))
                for way in ways:
                    one = llm.generate(prompt, sampling, speculation=way)
                    assert (one.tokens, one.stats.n_near_ties) == (plain.tokens, 0), (prompt, way)
                    n_drafted += one.stats.n_drafted
        assert n_drafted > 100
        assert llm.profile.exact_width == most
        assert llm.logit_noise(7) == 0
