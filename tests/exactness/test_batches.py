"""Requests in a batch give the texts of separate requests, with any options and neighbours."""

from dataclasses import replace

import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.llama.context import Context
from gguf_spec.quantize import quantize
from tests.gguf.test_near_ties import TALES
from tests.support.batch_requests import (
    N_CTX,
    OPTIONS,
    Neighbours,
    counted,
    outcome,
    random_requests,
    rows_of_nan,
    seeded,
    together,
)

DRAFT = TALES / "tales-draft-Q4_0.gguf"


@pytest.fixture(scope="module")
def alone():
    with gguf_spec.load("tales", threads=1, n_ctx=N_CTX) as llm:
        yield llm


@pytest.fixture(scope="module")
def llm():
    with gguf_spec.load("tales", threads=1, n_ctx=N_CTX, parallel=8) as one:
        yield one


@pytest.mark.full
@pytest.mark.parametrize("n", [24, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.failing_drafts
def test_texts_of_a_batch_are_those_of_separate_requests(alone, llm, monkeypatch, n):
    """Each option occurs, together with requests that fail, are closed, or fill their context."""
    requests = random_requests(seeded(n), n)
    expected = [outcome(alone, request) for request in requests]
    neighbours = Neighbours(llm)
    rows_of_nan(monkeypatch, llm)
    others = [*neighbours.all, *neighbours.more] * (n // 24)
    found = together(llm, requests, others)
    for request, right, one in zip(requests, expected, found, strict=True):
        assert one == right, request
    assert neighbours.n_ended == len(others)
    n_passes, n_rows = counted(llm)
    assert n_rows > 2 * n_passes, "hardly a pass was common"
    llm.snapshot()  # has the turn once all have ended
    assert llm.engine.queue.n_running == llm.engine.queue.n_waiting == 0


def test_every_option_comes(llm):
    requests = random_requests(seeded(24), 24)
    assert len({one["speculation"] for one in requests}) > 8
    assert all(
        any(getattr(one["sampling"], name) == value for one in requests)
        for options in OPTIONS
        for name, value in options.items()
    )


@pytest.mark.full
def test_a_warm_cache_and_a_copied_one_give_the_same_texts(alone, llm):
    """Long common beginnings, whose caches are copied from a slot in use."""
    start = "Once upon a time there was a fox who met a king, and the king said to the fox. " * 6
    requests = [
        {"prompt": start + str(i % 5), "sampling": Sampling(seed=i, max_tokens=24)}
        for i in range(16)
    ]
    expected = [outcome(alone, request) for request in requests]
    for _ in range(2):
        assert together(llm, requests) == expected


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    file = tmp_path_factory.mktemp("k") / "Q4_K_M.gguf"
    quantize(TALES / "tales-target-Q8_0.gguf", file, "Q4_K_M")
    return file


@pytest.mark.full
@pytest.mark.parametrize("n_drafts", [1, 0])
def test_no_common_pass_is_wider_than_the_exact_ones(quantized, monkeypatch, n_drafts):
    """A K-quant file with a profile in which passes of up to three rows are exact."""
    draft = DRAFT if n_drafts else "none"
    requests = random_requests(seeded(5), 15, draft=bool(n_drafts))
    options = {"threads": 1, "n_ctx": N_CTX}
    with gguf_spec.load(quantized, draft, **options) as one:
        one.use_profile(replace(one.profile, exact_width=3))
        expected = []
        for request in requests:
            one.forget()
            expected.append(outcome(one, request))
    widths = {}
    decode = Context.decode_sequences

    def counting(self, parts, *more):
        if any(part.n_rows for part in parts):
            widths.setdefault(self.weights.path, []).append(sum(len(part.tokens) for part in parts))
        return decode(self, parts, *more)

    monkeypatch.setattr(Context, "decode_sequences", counting)
    with gguf_spec.load(quantized, draft, parallel=8, **options) as llm:
        assert together(llm, requests[:2])
        llm.use_profile(replace(llm.profile, exact_width=3))
        llm.forget()
        widths.clear()
        found = together(llm, requests)
        assert llm.logit_noise(0) == 0
    assert max(widths[quantized]) == 3
    assert widths[quantized].count(3) > 20
    for request, right, one in zip(requests, expected, found, strict=True):
        assert one == right, request


@pytest.mark.full
@pytest.mark.parametrize("draft", [DRAFT, "none"])
def test_the_exact_width_is_measured_before_passes_are_common(quantized, draft, stock_kernels):
    """Also where no request drafts: common passes have several rows."""
    with gguf_spec.load(quantized, draft, threads=1, n_ctx=N_CTX) as one:
        one.generate("a", Sampling(max_tokens=2, seed=1), speculation=Speculation(2))
        width = one.profile.exact_width
    with gguf_spec.load(quantized, draft, threads=1, n_ctx=N_CTX, parallel=4) as llm:
        assert llm.profile.exact_width == width < 65
        assert llm.generate_many(["a", "b"], Sampling(max_tokens=2, seed=1))
        assert llm.engine.queue.scheduler.target.context.widest == width


@pytest.mark.few(1)
@pytest.mark.parametrize("animal", ["mamba", "lfm2"])
def test_models_that_cannot_roll_back(gguf_dir, animal):
    requests = [
        {"prompt": prompt, "sampling": Sampling(seed=i, max_tokens=20 + i, ignore_eos=True)}
        for i, prompt in enumerate(["the and", "of the in", "a", "the and of a", "in"] * 3)
    ]
    options = {"threads": 1, "n_ctx": 128}
    with gguf_spec.load(gguf_dir / f"{animal}.gguf", "none", **options) as one:
        expected = [outcome(one, request) for request in requests]
    with gguf_spec.load(gguf_dir / f"{animal}.gguf", "none", parallel=4, **options) as llm:
        assert together(llm, requests, n=4) == expected
        n_passes, n_rows = counted(llm)
        assert n_rows > 1.5 * n_passes
