"""Costs and draft lengths of common passes, against brute force and by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.speculative.cost_model import (
    ALONE,
    BatchCosts,
    DraftRequest,
    best_drafting,
    common_rows,
)

reaches = st.lists(st.floats(0.0, 1.0), max_size=8).map(lambda some: sorted(some, reverse=True))
requests = st.lists(st.builds(DraftRequest, reaches, st.integers(1, 4)), min_size=1, max_size=8)
prices = st.lists(st.floats(1e-4, 1.0), min_size=13, max_size=13)


class Straight:
    """A cost model whose passes take a fixed time and some for each token."""

    def seconds(self, n, n_past):
        return 0.01 + 0.001 * n + 1e-6 * n_past

    def passes_s(self, first, n, n_past):
        return [self.seconds(width, n_past) for width in range(first, first + n)]


def tokens(some, rows):
    """Return the expected tokens of a pass over `rows` tokens of each sequence, by brute force."""
    found = 0.0
    for one in some:
        found += 1
        for i in range(rows - one.n_pending):
            found += one.reaches[i] if i < len(one.reaches) else 0.0
    return found


@pytest.mark.full
@given(requests, prices, st.floats(0.1, 1000.0))
def test_the_common_number_of_rows_has_the_largest_value(some, seconds, rate):
    def value(rows):
        return tokens(some, rows) - rate * seconds[rows]

    found = common_rows(some, lambda rows: seconds[rows], rate)
    least = max(one.n_pending for one in some)
    most = max(one.n_pending + len(one.reaches) for one in some)
    assert least <= found <= most
    best = max(value(rows) for rows in range(least, most + 1))
    assert value(found) == pytest.approx(best, abs=1e-6)


def test_the_sequences_that_draft_on_are_the_best_choice_by_brute_force():
    """Some of the likeliest next tokens, so many further ones of each, and any number of rows."""
    rng, chosen = np.random.default_rng(0), set()
    for _ in range(200):
        some = [
            DraftRequest(
                sorted(rng.uniform(0, 1, rng.integers(0, 4)), reverse=True),
                int(rng.integers(1, 3)),
                float(rng.choice([0.0, rng.uniform(0.3, 0.95)])),
            )
            for _ in range(rng.integers(1, 5))
        ]
        seconds = np.cumsum(rng.uniform(0.0, 0.03, 40)) + 0.04
        draft_s, rate = rng.uniform(0.001, 0.02), rng.uniform(5, 80)

        def value(drafting, more, some=some, seconds=seconds, draft_s=draft_s, rate=rate):
            longer = [
                one._replace(reaches=[*one.reaches, *(one.next_reach * one.chance**i for i in range(more))])
                if i in drafting else one
                for i, one in enumerate(some)
            ]  # fmt: skip
            rows = common_rows(longer, lambda rows: seconds[rows], rate)
            drafted_s = more * draft_s * len(drafting) if drafting else 0.0
            return tokens(longer, rows) - rate * (seconds[rows] + drafted_s)

        able = [i for i, one in enumerate(some) if one.chance]
        order = sorted(able, key=lambda i: -some[i].next_reach)
        choices = [order[:n] for n in range(len(order) + 1)]
        best = [max(value(drafting, more) for more in range(1, 9)) for drafting in choices]
        found = best_drafting(some, seconds.__getitem__, draft_s.__mul__, rate)
        assert best[len(found)] == pytest.approx(max(best))
        assert found == order[: len(found)]
        chosen.add((len(found), len(order)))
    assert {(0, 2), (1, 2), (2, 2)} <= chosen


@given(requests, st.integers(1, 12))
def test_rows_that_do_not_fit_are_never_chosen(some, widest):
    least = max(one.n_pending for one in some)
    found = common_rows(some, lambda rows: 1.0 if rows <= widest else math.inf, 1.0)
    assert found <= max(least, widest)


def test_many_sequences_draft_less_than_one():
    """A row of each sequence costs more with more sequences."""
    certain = DraftRequest([0.8, 0.6, 0.4, 0.2])
    lengths = [
        common_rows(
            [certain] * n, lambda rows, n=n: 0.01 + 0.004 * n * rows, n / (0.01 + 0.004 * n)
        )
        for n in (1, 4, 32)
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1] == 1


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 65))
def test_groups_are_as_large_as_the_widest_pass_allows(n, rows, widest):
    costs, base = BatchCosts(widest), Straight()
    if rows > widest:
        assert costs.seconds(base, n, rows, 0) == math.inf
        return
    left, seconds = n, 0.0
    while left:
        some = min(left, widest // rows)
        seconds += base.seconds(some * rows, 0)
        left -= some
    assert costs.seconds(base, n, rows, 0) == pytest.approx(seconds)


def test_a_factor_is_learned_quickly_then_slowly_and_clipped():
    costs, base = BatchCosts(64), Straight()
    alone = base.seconds(8, 0)
    costs.learn(base, 4, 2, 0, 1.5 * alone)
    first = 0.7 * math.log(1.5)
    assert costs.seconds(base, 4, 2, 0) == pytest.approx(math.exp(first) * alone)
    costs.learn(base, 4, 2, 0, 1.5 * alone)
    second = first + 0.2 * (math.log(1.5) - first)
    assert costs.seconds(base, 4, 2, 0) == pytest.approx(math.exp(second) * alone)
    costs.learn(base, 4, 2, 0, 1e6)
    assert costs.seconds(base, 4, 2, 0) == pytest.approx(math.exp(second + 0.2 * 0.7) * alone)
    for _ in range(100):
        costs.learn(base, 4, 2, 0, 2 * alone)
    assert costs.seconds(base, 4, 2, 0) == pytest.approx(2 * alone)


def test_each_further_sequence_costs_the_reading_of_its_cache():
    costs, base = BatchCosts(64), Straight()
    of_cache = base.seconds(1, 500) - base.seconds(1, 0)
    expected = base.seconds(8, 500) + 3 * of_cache
    assert costs.seconds(base, 4, 2, 500) == pytest.approx(expected)


def test_a_single_sequence_has_no_factor():
    costs, base = BatchCosts(64), Straight()
    costs.learn(base, 1, 3, 0, 9.0)
    costs.learn(base, 4, 3, 0, 0.0)
    assert costs.seconds(base, 1, 3, 7) == base.seconds(3, 7)
    costs.learn(base, 4, 3, 0, 9.0)
    assert costs.seconds(base, 1, 3, 7) == base.seconds(3, 7)


def test_passes_with_as_many_rows_have_one_factor_and_unknown_ones_the_median():
    costs, base = BatchCosts(64), Straight()
    factors = {2: 1.2, 6: 1.5, 16: 1.9}
    for rows, factor in factors.items():
        for _ in range(60):
            costs.learn(base, 2, rows // 2, 0, factor * base.seconds(rows, 0))

    def factor(n, rows):
        return costs.seconds(base, n, rows, 0) / base.seconds(n * rows, 0)

    known = [factor(*one) for one in ((2, 1), (3, 2), (6, 1), (4, 4), (8, 2))]
    assert known == pytest.approx([1.2, 1.5, 1.5, 1.9, 1.9], rel=1e-3)
    assert [factor(*one) for one in ((3, 1), (8, 3))] == pytest.approx([1.5, 1.5], rel=1e-3)


def test_a_single_sequence_costs_what_the_cost_model_gives():
    base = Straight()
    assert (ALONE.n, ALONE.is_alone, ALONE.agreed([0.9], 5)) == (1, True, 5)
    assert ALONE.drafts_on([0.9], 0.8) is None
    assert ALONE.seconds(base, 3, 10) == base.seconds(3, 10)
    assert ALONE.passes_s(base, 2, 3, 10) == base.passes_s(2, 3, 10)
