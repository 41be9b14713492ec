"""Rounds that do not look for drafts."""

import numpy as np
import pytest

from gguf_spec.speculative.controller import SearchBudget


def searches(gains_s, search_s, plain_s=1.0, known=True):
    """For each round whether it looks; round i would find a draft that saves `gains_s[i]`."""
    budget, looked, n_without = SearchBudget(), [], 0
    for gain_s in gains_s:
        n_without = n_without or budget.rounds_without(
            search_s if known or any(looked) else 0.0, plain_s
        )
        looked.append(not n_without)
        n_without -= bool(n_without)
        if looked[-1]:
            budget.charge(search_s, gain_s)
    return np.array(looked)


@pytest.mark.parametrize("gain_s", [0.0, -0.2])
@pytest.mark.parametrize("search_s", [0.001, 0.005, 0.02, 0.1, 0.2, 0.31])
def test_searches_without_result_take_a_small_share_of_the_time(search_s, gain_s):
    n = 2000
    looked = searches([gain_s] * n, search_s)
    assert search_s * looked.sum() <= SearchBudget.share * n + (SearchBudget.first + 1) * search_s
    assert looked.sum() >= min(n, 0.9 * SearchBudget.share * n / search_s)


def test_a_large_model_looks_in_each_round():
    assert searches([0.0] * 1000, 0.0003, 0.070).all()


def test_a_cost_that_is_not_known_yet_allows_the_search():
    assert searches([0.0] * 10, 0.0).all()


def test_the_first_request_of_a_process_looks_as_often_as_the_next():
    """The cost of a search is known only after the first one."""
    gains = [0.0] * 200
    first, next_one = (searches(gains, 0.3, known=known) for known in (False, True))
    assert first[: SearchBudget.first].all() and next_one[: SearchBudget.first].all()
    assert abs(int(first.sum()) - int(next_one.sum())) <= 1


def test_while_drafts_pay_each_round_looks():
    looked = searches([0.0] * 500 + [0.4] * 100, 0.3)
    found = looked[500:].argmax()
    assert found <= 0.3 / SearchBudget.share
    assert looked[500 + found :].all()


def test_what_was_saved_long_ago_does_not_pay_for_searches():
    looked = searches([20.0] * 100 + [0.0] * 1000, 0.3)
    assert looked[100:].sum() <= SearchBudget.most + SearchBudget.share * 1000 / 0.3 + 1


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("chance", "gain_s", "least"), [(0.3, 3.0, 0.95), (0.7, 0.8, 0.98), (0.1, 10.0, 0.45)]
)
def test_where_rare_drafts_pay_for_all_searches_few_of_them_are_missed(chance, gain_s, least):
    """Mean of 40 sequences: which of the rounds look differs much where drafts are rare."""
    shares = []
    for seed in range(40):
        gains = np.where(np.random.default_rng(seed).random(4000) < chance, gain_s, 0.0)
        looked = searches(gains.tolist(), 0.3)
        shares.append((gains - 0.3)[looked].sum() / (gains - 0.3).sum())
    assert np.mean(shares) > least


@pytest.mark.parametrize(("chance", "gain_s"), [(0.05, 1.0), (0.3, 0.2), (0.2, 0.4)])
def test_where_drafts_do_not_pay_for_the_searches_little_is_lost(chance, gain_s):
    n = 4000
    gains = np.where(np.random.default_rng(1).random(n) < chance, gain_s, 0.0)
    looked = searches(gains.tolist(), 0.3)
    assert (gains - 0.3).sum() < -0.2 * n
    assert (gains - 0.3)[looked].sum() > -1.1 * SearchBudget.share * n - SearchBudget.first * 0.3
