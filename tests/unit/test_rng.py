"""The noise of the rule `coupled`: seed, position and token decide it, and draws follow the distribution."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.sampling.rng import FEW, SeededRng, hash32
from tests.support.fakes import sampler

FILTERS = {
    "none": {},
    "temperature": {"temperature": 0.5},
    "top-k": {"top_k": 7},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.1},
    "typical-p": {"typical_p": 0.7},
    "top-n-sigma": {"top_n_sigma": 1.5},
    "penalties": {"repeat_penalty": 1.5, "presence_penalty": 0.5},
    "bias": {"logit_bias": {3: 2.0, 5: float("-inf")}},
    "all": {"temperature": 0.8, "top_k": 12, "top_p": 0.95, "min_p": 0.02},
}


def deviations(counts, probs, n):
    """Return by how many standard deviations chi-square exceeds its mean; cells with few expected are pooled."""
    rare = probs * n < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(probs[~rare], probs[rare].sum()) * n
    counts, expected = counts[expected > 0], expected[expected > 0]
    return (((counts - expected) ** 2 / expected).sum() - (len(counts) - 1)) / np.sqrt(
        2 * max(len(counts) - 1, 1)
    )


def drawn(chain, row, n, history_of):
    """Counts of the tokens drawn from one row at `n` places."""
    return np.bincount([chain.token(row, history_of(i)) for i in range(n)], minlength=len(row))


@pytest.mark.full
@pytest.mark.parametrize("options", FILTERS.values(), ids=FILTERS)
def test_marginals_over_positions_follow_the_distribution(options):
    row = np.random.default_rng(3).normal(size=40).astype(np.float32) * 1.5
    chain = sampler(SeededRng(5), **options)
    distribution = chain.distribution(row, [1, 2, 2])
    probs = np.zeros(40)
    probs[distribution.ids] = distribution.probs

    class Past(
        list
    ):  # a past of any length whose penalties are the same: only the position differs
        def __len__(self):
            return self.n

    def history(i):
        past = Past([1, 2, 2])
        past.n = i
        return past

    counts = drawn(chain, row, 10_000, history)
    assert counts[probs == 0].sum() == 0
    assert deviations(counts, probs, 10_000) < 4


@pytest.mark.full
def test_marginals_over_seeds_follow_the_distribution():
    row = np.random.default_rng(4).normal(size=40).astype(np.float32)
    distribution = sampler(None).distribution(row, [])
    counts = np.bincount(
        [sampler(SeededRng(seed)).token(row, [1] * 9) for seed in range(10_000)], minlength=40
    )
    assert deviations(counts, distribution.probs, 10_000) < 4


@pytest.mark.full
def test_marginals_over_a_vocabulary_that_is_searched_for_contenders():
    n_vocab = 4 * FEW
    row = np.random.default_rng(6).normal(size=n_vocab).astype(np.float32) * 2.5
    chain = sampler(SeededRng(7))
    distribution = chain.distribution(row, [])
    groups = np.random.default_rng(8).integers(
        0, 60, size=n_vocab
    )  # single tokens are too rare to count
    counts = np.bincount([groups[chain.token(row, range(i))] for i in range(4_000)], minlength=60)
    assert (
        deviations(counts, np.bincount(groups, weights=distribution.probs, minlength=60), 4_000) < 4
    )


@pytest.mark.full
def test_neighbouring_positions_are_independent():
    row = np.zeros(5, dtype=np.float32)
    chain = sampler(SeededRng(9))
    tokens = [chain.token(row, range(i)) for i in range(10_001)]
    pairs = np.bincount([5 * a + b for a, b in itertools.pairwise(tokens)], minlength=25)
    assert deviations(pairs, np.full(25, 1 / 25), 10_000) < 4


def test_the_noise_is_gumbel_and_ids_do_not_share_it():
    noise = SeededRng(1).gumbel(np.arange(200_000), 17)
    assert abs(noise.mean() - 0.5772) < 0.01
    assert abs(noise.var() - np.pi**2 / 6) < 0.02
    assert len(np.unique(noise)) == 200_000
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 0.01
    assert abs(np.corrcoef(noise, SeededRng(1).gumbel(np.arange(200_000), 18))[0, 1]) < 0.01
    assert abs(np.corrcoef(noise, SeededRng(2).gumbel(np.arange(200_000), 17))[0, 1]) < 0.01


def test_the_noise_of_an_id_does_not_depend_on_other_ids():
    rng = SeededRng(3)
    whole = rng.gumbel(np.arange(1000), 5)
    assert rng.gumbel(np.array([907, 4]), 5).tolist() == whole[[907, 4]].tolist()
    rng.choose(np.full(4, 0.25))
    rng.chance(0.5)
    assert rng.gumbel(np.arange(1000), 5).tolist() == whole.tolist()


def test_two_places_do_not_share_their_noise_shifted():
    """The first key only shifts the ids; without a second one, positions with adjacent keys would share their noise, shifted by one id."""
    ids, step = np.arange(1000, dtype=np.uint32), 0x9E3779B9
    here = hash32(ids, np.uint32(5), np.uint32(7))
    there = hash32(ids, np.uint32(5 + step), np.uint32(8))
    assert (here[1:] == there[:-1]).mean() < 0.01
    assert (
        here[1:] == hash32(ids, np.uint32(5 + step), np.uint32(7))[:-1]
    ).all()  # with the second key alike they have


def test_the_acceptance_draw_differs_by_position_and_seed():
    coins = [SeededRng(seed).coin(position) for seed in range(20) for position in range(200)]
    assert len(set(coins)) > 3990
    assert abs(np.mean(coins) - 0.5) < 0.02


def test_the_acceptance_draw_is_independent_of_the_noise():
    """`pick` hashes by four numbers of a position; XTC's coin is a fifth."""
    rng = SeededRng(3)
    bits = [rng.keys_at(position).tolist() for position in range(200)]
    assert not any(keys[4] in keys[:4] for keys in bits)
    for i, keys in enumerate(bits):
        drawn = np.random.RandomState(keys[4]).bytes(4)
        assert rng.coin(i) == int.from_bytes(drawn, "little") / 2**32


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 10**6),
    st.sampled_from([1e-30, 0.01, 0.5, 1.0, 3.0]),
    st.booleans(),
)
def test_the_contenders_hold_the_winner(seed, position, temperature, holes):
    """The quick way over a large vocabulary is the plain one: argmax of all."""
    ids = np.arange(3 * FEW)
    logits = np.random.default_rng(seed % 1000).normal(size=len(ids)).astype(np.float32) * 4
    if holes:
        logits[::3] = -np.inf
    rng = SeededRng(seed)
    plain = np.argmax(
        (logits.astype(np.float64) - logits.max()) / temperature + rng.gumbel(ids, position)
    )
    assert rng.pick(ids, logits, temperature, position) == plain


def test_the_contenders_are_few():
    ids, rng = np.arange(50_000), SeededRng(2)
    logits = np.random.default_rng(1).normal(size=50_000).astype(np.float32)
    assert np.mean([len(rng.contenders(ids, logits, 1.0, position)) for position in range(50)]) < 3


@pytest.mark.full
def test_coupled_draws_agree_more_often_than_independent_ones():
    rng, n = np.random.default_rng(0), 2_000
    chain, other = sampler(SeededRng(1)), sampler(SeededRng(2))
    target = rng.normal(size=30).astype(np.float32) * 1.5
    draft = target + rng.normal(size=30).astype(np.float32) * 0.3
    together = np.mean(
        [chain.token(target, range(i)) == chain.token(draft, range(i)) for i in range(n)]
    )
    apart = np.mean(
        [chain.token(target, range(i)) == other.token(draft, range(i)) for i in range(n)]
    )
    p, q = chain.distribution(target, []).probs, chain.distribution(draft, []).probs
    rejection = np.minimum(p, q).sum()
    assert together > apart + 0.3
    assert rejection - 0.15 < together <= rejection + 0.03
