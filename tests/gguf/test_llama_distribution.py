"""`verify` compares with llama.cpp's own chain of samplers: it must be that, and our chain must give the same, biases and forbidden ends included."""

import numpy as np
import pytest

from gguf_spec.llama.samplers import distribution
from gguf_spec.sampling.chain import Filters
from tests.support.fakes import sampler

PENALTIES = {"repeat_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2}
OPTIONS = [
    {},
    {"temperature": 0.4},
    {"top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.1},
    {"top_n_sigma": 1.2},
    PENALTIES,
    {"penalty_last_n": 7, **PENALTIES},
    {"top_k": 5, "top_p": 0.98, "min_p": 0.01, "temperature": 0.9, **PENALTIES},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_our_chain_gives_the_distribution_of_llama_cpp_with_biases(options, ignore_eos):
    """Each filter would remove the raised token if the bias came later; the best token is forbidden."""
    ends = [3, 4]
    for seed in range(6):
        rng = np.random.default_rng(seed)
        logits = (rng.normal(size=300) * 2).astype(np.float32)
        logits[ends] += 3
        order = np.argsort(-logits)
        history = [*rng.integers(0, 300, size=30).tolist(), *order[:6].tolist()]
        bias = {
            int(order[150]): float(logits[order[0]] - logits[order[150]]),
            int(order[0]): -np.inf,
            int(order[2]): -1.0,
        }
        chain = sampler(
            None,
            filters=Filters(ends=np.array(ends)),
            ignore_eos=ignore_eos,
            logit_bias=bias,
            **options,
        )
        ids, probs = chain.distribution(logits, history)
        right = distribution(logits, history, chain.sampling, ends)
        assert right.keys() == {*ids.tolist()}
        assert [right[token] for token in ids.tolist()] == pytest.approx(probs.tolist(), abs=1e-5)
        assert int(order[150]) in right
        assert int(order[0]) not in right
        assert not (ignore_eos and right.keys() & {*ends})
