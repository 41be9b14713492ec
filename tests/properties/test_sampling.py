"""The fast filters and the fast seeded choice give what the slower ones gave, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.errors import NoTokenLeftError
from gguf_spec.options import Sampling
from gguf_spec.sampling.chain import Sampler, descending
from gguf_spec.sampling.rng import SeededRng, all_ids, hash32, ids_of
from tests.properties.old_sampling import OldRng, OldSampler
from tests.support.sampled_rows import make_rows

KINDS = ("bell", "peaks", "sharp", "open", "ties", "flat", "huge", "bad")
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 1e-30, 0.01, 0.3, 1.0, 1.5, 4.0, 1e6]),
        "top_k": st.sampled_from([1, 7, 40, 3000, 10**6]),
        "top_p": st.one_of(
            st.sampled_from([1e-6, 0.5, 0.9, 0.95, 0.999, 1 - 1e-9]), st.floats(0.01, 1.0)
        ),
        "min_p": st.sampled_from([1e-9, 0.02, 0.3]),
        "top_n_sigma": st.sampled_from([0.5, 1.0, 3.0]),
        "repeat_penalty": st.sampled_from([0.5, 1.3]),
        "presence_penalty": st.sampled_from([-1.0, 0.7]),
        "logit_bias": st.sampled_from([{5: -np.inf}, {0: 9.0, 3: -np.inf}]),
    },
)


def make_row(kind, n_vocab, seed):
    return make_rows(np.random.default_rng(seed), 1, n_vocab, kind)[0]


def outcome(sampler, row, history):
    """Return candidates, probabilities and token of a row, or the error."""
    try:
        candidates, distribution = (
            sampler.candidates(row, history),
            sampler.distribution(row, history),
        )
    except NoTokenLeftError:
        return "no token left"
    token = sampler.token(row, history)
    return [(a.dtype, a.tobytes()) for a in (*candidates, *distribution)], token


@pytest.mark.full
@settings(deadline=None, max_examples=400)
@given(
    st.sampled_from(KINDS),
    st.sampled_from([9, 700, 2049, 40_000]),
    st.integers(0, 10**6),
    st.integers(0, 2**64 - 1),
    st.integers(0, 9),
    OPTIONS,
)
def test_fast_sampling_is_the_old_one(kind, n_vocab, row_seed, seed, position, options):
    row, history = make_row(kind, n_vocab, row_seed), list(range(position))
    options = Sampling(**{"top_k": 0, "top_p": 1.0, "temperature": 1.0} | options)
    before = row.copy()
    with np.errstate(invalid="ignore"):  # NaN, and infinity less infinity
        new, old = (
            outcome(kind(options, rng(seed)), row, history)
            for kind, rng in ((Sampler, SeededRng), (OldSampler, OldRng))
        )
    assert new == old
    assert row.tobytes() == before.tobytes()


@pytest.mark.full
@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(["bell", "peaks", "open", "sharp"]),
    st.integers(0, 10**6),
    st.integers(0, 2**64 - 1),
    st.integers(0, 10**9),
)
def test_the_choice_over_a_large_vocabulary_is_the_old_one(kind, row_seed, seed, first):
    row, ids = make_row(kind, 152_064, row_seed), all_ids(152_064)
    new, old = SeededRng(seed), OldRng(seed)
    for i, temperature in enumerate((0.3, 0.8, 1.0, 1.5)):
        assert new.pick(ids, row, temperature, first + i) == old.pick(
            ids, row, temperature, first + i
        )


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50),
)
def test_the_hash_can_be_inverted(a, b, ids):
    ids, a, b = np.array(ids, dtype=np.uint32), np.uint32(a), np.uint32(b)
    assert (ids_of(hash32(ids, a, b), a, b) == ids).all()


@pytest.mark.full
def test_an_unlikely_token_with_large_noise_is_found():
    """A token 13 nats down wins once in half a million places, and only by the inverted hash: here its hash value is 0."""
    rng, n_vocab, position = SeededRng(3), 152_064, 0
    while (
        not 5
        <= (lucky := int(ids_of(np.zeros(1, dtype=np.uint32), *rng.keys_at(position)[:2])[0]))
        < n_vocab
    ):
        position += 1
    row = np.full(n_vocab, -40.0, dtype=np.float32)
    row[:3], row[lucky] = 0.0, -13.0
    assert (
        lucky
        == SeededRng(3).pick(all_ids(n_vocab), row, 1.0, position)
        == OldRng(3).pick(all_ids(n_vocab), row, 1.0, position)
    )


@pytest.mark.parametrize("n", [3, 5000])
def test_descending_is_a_stable_sort(n):
    values = (
        np.round(np.random.default_rng(n).normal(size=n) * 50).astype(np.float32).astype(np.float64)
    )
    values[::7] = -0.0
    assert (descending(values) == np.argsort(-values, kind="stable")).all()
    for at, beside in (
        (-1, 1e-12),
        (0, -1e-12),
    ):  # no single-precision numbers: the last goes before its equals, the first behind them
        off = values.copy()
        off[at] += beside
        assert (descending(off) == np.argsort(-off, kind="stable")).all()


def test_descending_tells_neighbouring_numbers_apart():
    """In any order of the pair, of either sign, however large or small; and numbers that subtracting 1 would make equal."""
    few = np.random.default_rng(0).normal(size=900).astype(np.float32) * np.float32(
        10.0
    ) ** np.arange(-30, 30, dtype=np.float32).repeat(15)
    above = np.nextafter(few, np.float32(np.inf))
    for pair in ([few, above], [above, few]):
        values = np.concatenate(pair).astype(np.float64)
        assert (descending(values) == np.argsort(-values, kind="stable")).all()
