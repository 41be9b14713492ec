"""Acceptance rates by kind of proposal."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.speculative.pair_statistics import AcceptanceRates, RequestAcceptance, fitted

BELIEFS = {"ngram": (0.2, 0.9), "model": (0.5,)}


def test_without_observations_the_estimate_is_the_prior():
    chances = AcceptanceRates(BELIEFS)
    assert chances.of(("ngram", 0)) == pytest.approx(0.2)
    assert chances.of(("ngram", 1)) == pytest.approx(0.9)
    assert chances.of(("model", 0)) == 0.5
    with pytest.raises(KeyError):
        chances.of(("ngram", 2))


def test_kinds_are_counted_apart():
    chances = AcceptanceRates(BELIEFS)
    for _ in range(20):
        chances.learn(("ngram", 0), True)
    assert chances.of(("ngram", 0)) > 0.9
    assert chances.of(("ngram", 1)) == pytest.approx(0.9)
    assert chances.of(("model", 0)) == 0.5


@pytest.mark.parametrize("true", [0.0, 0.3, 0.95])
def test_observations_outweigh_the_prior(true):
    rng, chances = np.random.default_rng(1), AcceptanceRates(BELIEFS)
    found = []
    for _ in range(2000):
        chances.learn(("ngram", 1), bool(rng.random() < true))
        found.append(chances.of(("ngram", 1)))
    assert np.mean(found[100:]) == pytest.approx(true, abs=0.02)


def test_a_change_is_noticed_in_time():
    chances = AcceptanceRates(BELIEFS)
    for _ in range(1000):
        chances.learn(("model", 0), False)
    assert chances.of(("model", 0)) < 0.01
    for _ in range(400):
        chances.learn(("model", 0), True)
    assert 0.6 < chances.of(("model", 0)) < 0.9


def test_a_request_weighs_its_own_first_positions_more_than_those_of_others():
    """A hard text changes all buckets after a few positions; the next request begins with the usual rates."""
    known = AcceptanceRates(BELIEFS)
    for _ in range(300):
        known.learn(("ngram", 0), True)
        known.learn(("ngram", 1), True)
    hard = RequestAcceptance(known)
    for _ in range(8):
        hard.learn(("ngram", 0), False)
    assert hard.of(("ngram", 1)) < 0.96 < 0.98 < RequestAcceptance(known).of(("ngram", 1))
    assert hard.of(("model", 0)) == 0.5  # another drafter


def test_the_rates_of_a_firm_drafter_change_less():
    known = AcceptanceRates(BELIEFS)
    soft, firm = RequestAcceptance(known), RequestAcceptance(AcceptanceRates(BELIEFS), {"model"})
    for _ in range(5):
        soft.learn(("model", 0), True)
        firm.learn(("model", 0), True)
    assert 0.5 < firm.of(("model", 0)) < soft.of(("model", 0)) < 1


@given(
    st.lists(
        st.tuples(st.sampled_from([("ngram", 0), ("ngram", 1), ("model", 0)]), st.booleans()),
        max_size=200,
    )
)
def test_rates_of_a_request_stay_between_0_and_1(seen):
    one = RequestAcceptance(AcceptanceRates({"ngram": (0.0, 1.0), "model": (0.5,)}))
    for kind, hit in seen:
        one.learn(kind, hit)
    assert all(0 <= one.of(kind) <= 1 for kind in (("ngram", 0), ("ngram", 1), ("model", 0)))


def test_few_positions_show_the_rates_of_a_pair():
    """0 of 17 accepted in one bucket lowers the estimates of the others. Without a position nothing changes."""
    priors = [0.4, 0.7, 0.9]
    assert fitted(priors, [(0, 0)] * 3) == pytest.approx(priors)
    useless = fitted(priors, [(0.0, 17.0), (0.0, 0.0), (0.0, 0.0)])
    assert useless[0] < 0.1
    assert useless[1] < 0.35
    good = fitted(priors, [(20.0, 20.0), (20.0, 20.0), (24.0, 24.0)])
    assert all(0.9 < rate <= 1 for rate in good)


def test_a_chance_is_never_below_0_or_above_1():
    chances = AcceptanceRates({"x": (0.0, 1.0)})
    for kind in (("x", 0), ("x", 1)):
        for hit in (True, False) * 50:
            chances.learn(kind, hit)
            assert 0 <= chances.of(kind) <= 1


def test_counts_can_be_stored_and_weigh_less_in_a_later_run():
    before = AcceptanceRates(BELIEFS)
    for _ in range(500):
        before.learn(("ngram", 0), True)
    after = AcceptanceRates(BELIEFS)
    after.recall(before.to_list())
    assert after.of(("ngram", 0)) == pytest.approx(before.of(("ngram", 0)))
    assert after.of(("model", 0)) == 0.5
    for one in (before, after):
        for _ in range(15):
            one.learn(("ngram", 0), False)
    assert after.of(("ngram", 0)) < before.of(("ngram", 0)) - 0.1


def test_unknown_kinds_are_skipped_and_invalid_data_is_refused():
    chances = AcceptanceRates(BELIEFS)
    chances.recall([("gone", 0, 5.0, 9.0), ("ngram", 9, 1.0, 2.0), ("model", 0, 0.0, 0.0)])
    assert chances.of(("model", 0)) == 0.5
    for nonsense in (
        [("model", 0, 9.0, 5.0)],
        [("model", 0, -1.0, 5.0)],
        [("model", 0, "x", 5.0)],
        [3],
        [("model", 0)],
        5,
    ):
        with pytest.raises((TypeError, ValueError)):
            chances.recall(nonsense)
        assert chances.of(("model", 0)) == 0.5
