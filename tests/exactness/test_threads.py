"""The thread count changes no logit where the governor may change it: on a CPU, without llama.cpp's flash attention."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gguf_spec
from gguf_spec.llama import context as context_module
from gguf_spec.llama import own_kernels
from gguf_spec.llama.backend import offloads
from gguf_spec.llama.context import Context
from gguf_spec.llama.options import ContextOptions
from gguf_spec.llama.threads import ThreadGovernor

pytestmark = pytest.mark.skipif(offloads(), reason="the governor is off in GPU builds")

FOLDER = Path(gguf_spec.__file__).parent / "data" / "tales"
FILES = ["tales-target-Q8_0.gguf", "tales-draft-Q4_0.gguf"]
OFF = ContextOptions(n_ctx=512, flash_attention="off")
TEXT = [3 + i * 37 % 900 for i in range(400)]


class Alternating(ThreadGovernor):
    """Uses one thread and all threads in turn."""

    def __init__(self, most):
        super().__init__(most)
        self.used = []

    def choose(self, kind):
        self.used.append(1 + len(self.used) % self.most)
        return self.used[-1]


def rows_of(model):
    """The logits of passes of several widths, behind short and long texts."""
    found = []
    for depth in (0, 20, 300):
        model.rollback(0)
        model.read(TEXT[:depth])
        for width in (1, 2, 4, 8):
            model.rollback(depth)
            found.append(model.logits(TEXT[depth : depth + width], width).copy())
    model.close()
    return found


def assert_equal(some, others):
    for a, b in zip(some, others, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("file", FILES)
def test_one_and_two_threads_give_the_same_bits(file):
    one, two = (
        rows_of(
            Context(
                FOLDER / file, ContextOptions(n_ctx=512, flash_attention="off", threads=n)
            ).sequences[0]
        )
        for n in (1, 2)
    )
    assert_equal(one, two)


@pytest.mark.full
@pytest.mark.parametrize("flash_attention", ["off", "on"])
@pytest.mark.parametrize("file", FILES)
def test_the_count_may_change_between_passes(file, flash_attention, monkeypatch):
    """With flash attention, too, where the own kernels compute it."""
    if flash_attention == "on" and not own_kernels.start().name:
        pytest.skip(own_kernels.start().reason)
    options = ContextOptions(n_ctx=512, flash_attention=flash_attention)
    governor = Alternating(2)
    monkeypatch.setattr(context_module, "shared_governor", lambda most: governor)
    followed = Context(FOLDER / file, options).sequences[0]
    assert followed.context.follows_machine
    rows = rows_of(followed)
    assert set(governor.used) == {1, 2}
    assert governor._best == {}, "a closed model is forgotten"
    assert_equal(
        rows,
        rows_of(Context(FOLDER / file, replace(options, threads=1)).sequences[0]),
    )


@pytest.mark.parametrize(
    "options",
    [ContextOptions(threads=1, flash_attention="off"), ContextOptions(flash_attention="on")],
)
def test_a_count_of_the_user_and_flash_attention_switch_it_off(options, monkeypatch, stock_kernels):
    monkeypatch.setattr(
        context_module, "shared_governor", lambda most: pytest.fail("not to be used")
    )
    model = Context(FOLDER / FILES[0], options).sequences[0]
    assert not model.context.follows_machine
    model.read(TEXT[:40])
    model.close()


def test_models_share_one_governor():
    target, draft = (Context(FOLDER / file, OFF).sequences[0] for file in FILES)
    assert target.context._governor is draft.context._governor
    for model in (target, draft):
        model.close()
