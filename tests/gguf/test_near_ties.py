"""Rounding noise of the real llama.cpp: with float16 weights most machines show some, and texts do part at near ties."""

from pathlib import Path

import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec._llm import LLM
from gguf_spec.verify import verify
from tests.gguf import zoo

TALES = Path(gguf_spec.__file__).parent / "models" / "tales"


@pytest.fixture(scope="module")
def wobbly(tmp_path_factory):
    """The bundled target with float16 weights, and its draft."""
    path = zoo.as_float16(TALES / "tales-target-Q8_0.gguf", tmp_path_factory.mktemp("f16") / "target.gguf")
    with gguf_spec.load(path, TALES / "tales-draft-Q4_0.gguf", threads=1) as llm:
        if not llm.logit_noise(4):
            pytest.skip("this machine's float16 kernels give the same logits for any batch")
        yield llm


def test_the_noise_is_small_and_known_at_once(wobbly):
    assert 0 < wobbly.logit_noise(4) < 0.5
    assert wobbly.logit_noise(0) == 0.0
    assert wobbly.logit_noise(4) == wobbly.logit_noise(4)


def test_near_ties_are_counted(wobbly):
    sampling = Sampling(seed=3, max_tokens=None, temperature=1.0, top_k=0, top_p=1.0)
    stats = wobbly.generate("Once upon a time", sampling, speculation=Speculation(4, adaptive=False)).stats
    assert 0 < stats.n_near_ties < 0.1 * stats.n_generated
    assert wobbly.generate("Once upon a time", sampling, speculation=Speculation(0)).stats.n_near_ties == 0
    assert stats.n_decided_again == 0


def test_strict_decides_them_again(wobbly):
    sampling = Sampling(seed=3, max_tokens=None, temperature=1.0, top_k=0, top_p=1.0)
    stats = wobbly.generate("Once upon a time", sampling, speculation=Speculation(4, strict=True, adaptive=False)).stats
    assert 0 < stats.n_decided_again == stats.n_near_ties
    assert stats.to_dict()["n_decided_again"] == stats.n_decided_again


def test_differences_are_near_ties_and_told(wobbly, prompts, monkeypatch):
    some = [prompts[i] for i in (4, 9, 24, 43)]  # where texts parted on one machine
    report = verify(wobbly, some, n_tokens=60, n_draws=50)
    assert report.ok, report.sentence
    assert report.noise == max(wobbly.logit_noise(k) for k in (1, 3, 7, 32))
    if report.differences:
        assert all(d.near_tie and 0 <= d.gap < report.noise for d in report.differences)
        monkeypatch.setattr(LLM, "logit_noise", lambda self, *_: 0.0)
        assert not verify(wobbly, some, n_tokens=60, n_draws=50).ok


@pytest.mark.slow
def test_no_text_parts_untold(wobbly, prompts, capsys):
    """Over all prompts: where a text is not the plain one, a near tie was counted."""
    n_parted = n_ties = 0
    for i, prompt in enumerate(prompts):
        sampling = Sampling(seed=i, max_tokens=128, temperature=(0.0, 0.8, 1.0)[i % 3])
        plain = wobbly.generate(prompt, sampling, speculation=Speculation(0))
        burst = wobbly.generate(prompt, sampling, speculation=Speculation(4, adaptive=False))
        n_ties += burst.stats.n_near_ties
        n_parted += burst.tokens != plain.tokens
        assert burst.tokens == plain.tokens or burst.stats.n_near_ties
    with capsys.disabled():
        print(f"\nfloat16: {n_parted} of {len(prompts)} texts parted from the plain one, all at one of {n_ties} near ties")
