"""The sampler `infill` against llama.cpp's own."""

import numpy as np
import pytest

import gguf_spec
from gguf_spec.llama import samplers
from gguf_spec.llama.bindings import C
from gguf_spec.options import InfillSampling, Sampling
from gguf_spec.sampling.chain import Sampler
from gguf_spec.sampling.filters import make_filters
from gguf_spec.sampling.infill import Infill
from gguf_spec.sampling.rng import SeededRng
from tests.support import tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tiny.write(tmp_path_factory.mktemp("infill") / "one.gguf", tiny.llama())
    with gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm:
        yield llm.vocabulary


def test_it_keeps_what_llama_cpp_keeps(model):
    rng, infill = np.random.default_rng(0), Infill(model)
    by_ends = 0
    for _ in range(400):
        n = int(rng.integers(1, 30))
        ids = rng.choice(model.n_vocab, n, replace=False)
        if rng.random() < 0.5:
            ids[0] = tiny.END
        logits = (rng.normal(size=len(ids)) * rng.choice([0.3, 2, 6])).astype(np.float32)
        native = samplers.FedSampler(model.native.vocab(C.llama_sampler_init_infill), [])
        left = samplers.apply(native.sampler, ids, logits.astype(np.float64))
        wanted = sorted(left["id"][left["logit"] > -np.inf].tolist())
        assert sorted(infill.kept(ids, logits.astype(np.float64)).tolist()) == wanted
        by_ends += wanted == [tiny.END]
    assert 20 < by_ends < 380


def test_it_is_the_last_filter(model):
    logits = np.full(model.n_vocab, -9.0, np.float32)
    logits[[40, 41, tiny.END]] = [2.0, 1.9, 1.0]

    def kept(kind, **options):
        s = kind(**options)
        return sorted(
            Sampler(s, SeededRng(0), make_filters(model, s, 0, "", None)).candidates(logits, []).ids
        )

    assert kept(Sampling, top_k=3, top_p=1.0) == sorted([40, 41, tiny.END])
    assert kept(InfillSampling, top_k=3, top_p=1.0) == [tiny.END]
    assert kept(InfillSampling, top_k=3, top_p=1.0, ignore_eos=True) == [40, 41]
    assert kept(InfillSampling, top_k=3, top_p=1.0, temperature=0.0) == [40]
