"""Level 1: accepting and the residual together give p, for any p and q: q min(1, p/q) + (1 - sum min(p, q)) residual == p."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.sampling.chain import Distribution
from gguf_spec.speculative.acceptance import residual


@st.composite
def distributions(draw, n=6):
    weights = draw(
        st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=n, max_size=n).filter(
            lambda w: sum(w) > 0
        )
    )
    probs = np.array(weights) / sum(weights)
    ids = np.flatnonzero(probs)
    return Distribution(ids, probs[ids])


def dense(distribution, n=6):
    row = np.zeros(n)
    row[distribution.ids] = distribution.probs
    return row


@given(distributions(), distributions())
def test_the_emitted_distribution_is_p(p, q):
    a, b = dense(p), dense(q)
    accepted = np.minimum(a, b)
    emitted = accepted + (1 - accepted.sum()) * dense(residual(p, q))
    assert np.abs(emitted - a).max() < 1e-12


@given(distributions())
def test_without_mass_the_residual_is_p(p):
    assert residual(p, p) == p


@given(distributions(), distributions())
def test_the_residual_is_a_distribution_of_tokens_of_p(p, q):
    rest = residual(p, q)
    assert abs(rest.probs.sum() - 1) < 1e-12
    assert (rest.probs > 0).all()
    assert set(rest.ids) <= set(p.ids)


def test_the_identity_fails_without_the_residual():
    p, q = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    accepted = np.minimum(p, q)
    assert np.abs(accepted + (1 - accepted.sum()) * p - p).max() > 0.1
