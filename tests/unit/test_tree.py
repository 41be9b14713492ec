"""The choice of branches against brute force, and by the cost tables of known machines."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.options import BRANCHES_MAX, Speculation
from gguf_spec.speculative.cost_model import interpolate
from gguf_spec.speculative.draft_length import Prices, best_length
from gguf_spec.speculative.drafters import Proposal
from gguf_spec.speculative.pair_statistics import SECOND
from gguf_spec.speculative.tree import Second, Tree, best_tree

shares = st.floats(0.0, 1.0)


@st.composite
def rounds_to_decide(draw, n_most=6):
    """Any staircase, also one that falls, and second guesses that are no likelier than a rejection allows."""
    chances = draw(st.lists(shares, max_size=n_most))
    reaches = np.cumprod(chances).tolist()
    seconds = [
        before * (1 - chance) * draw(shares)
        for before, chance in zip([1.0, *reaches], chances, strict=False)
    ]
    cost = Prices(
        draw(st.floats(0.5, 200.0)),
        draw(st.lists(st.floats(0.001, 1.0), min_size=n_most + 4, max_size=n_most + 4)),
        draw(st.floats(0.0, 0.002)),
    )
    return reaches, seconds, draw(st.integers(0, n_most + BRANCHES_MAX)), cost


def gain(reaches, seconds, chosen, n, cost):
    """Tokens of a round over those of plain decoding, minus what its time is worth; a right branch is decoded twice."""
    tokens = sum(reaches[:n]) + sum(seconds[i] for i in chosen)
    rows = n + len(chosen)
    row = cost.rate * (cost.pass_s[rows] - cost.pass_s[n]) / max(1, len(chosen))
    again = max(0.0, row) * sum(seconds[i] for i in chosen)
    return (
        tokens * (1 - cost.rate * cost.token_s)
        - again
        - cost.rate * (cost.pass_s[rows] - cost.pass_s[0])
    )


@settings(max_examples=400, deadline=None)
@given(rounds_to_decide())
def test_length_and_branches_are_the_best_of_all_pairs_of_length_and_set(round_):
    reaches, seconds, most, cost = round_
    ways = [
        (n, chosen)
        for n in range(len(reaches) + 1)
        for m in range(min(n, BRANCHES_MAX) + 1)
        for chosen in itertools.combinations([i for i in range(n) if seconds[i] > 0], m)
        if n + m <= most
    ]
    n, m = best_tree(reaches, seconds, most, cost)
    best = sorted(range(n), key=lambda i: -seconds[i])[:m]
    assert n + m <= most
    assert m <= min(n, BRANCHES_MAX)
    brute = max(gain(reaches, seconds, chosen, of, cost) for of, chosen in ways)
    assert gain(reaches, seconds, best, n, cost) == pytest.approx(brute, abs=1e-9)


@given(rounds_to_decide())
def test_without_second_guesses_the_length_is_that_of_a_draft_without_branches(round_):
    reaches, _, _, cost = round_
    assert best_tree(reaches, [0.0] * len(reaches), 99, cost) == (best_length(reaches, cost)[0], 0)


AMX = {1: 40, 2: 78, 3: 82, 4: 87, 5: 91, 6: 97, 8: 110, 12: 168, 16: 192, 32: 324}  # LLAMA_FACTS
FREE = {1: 40, 2: 78, 8: 84, 12: 168, 16: 192, 32: 324}  # 8 rows cost little more than 2
AVX512 = {1: 40, 2: 57.6, 3: 71.2, 4: 55.6, 5: 71.6, 6: 89.6, 8: 86.4, 12: 116.4, 16: 120.8}


def decided(table, tokens_per_s, chances, second):
    """Lengths and branches for draft tokens of these chances; a share of the rejections are the second guess."""
    reaches = np.cumprod(chances).tolist()
    seconds = [
        before * (1 - chance) * second
        for before, chance in zip([1.0, *reaches], chances, strict=False)
    ]
    cost = Prices(tokens_per_s, [interpolate(table, n) / 1000 for n in range(1, 14)])
    return best_tree(reaches, seconds, 12, cost)


def test_branches_are_taken_where_eight_rows_cost_little_more_than_two():
    assert decided(FREE, 35.0, [0.6] * 4, 0.5) == (4, 3)
    assert decided(FREE, 35.0, [0.97] * 4, 0.3)[1] == 0


def test_by_the_steeper_table_of_a_real_machine_only_a_likely_second_guess_pays():
    first_unsure = [0.7, 0.95, 0.95, 0.95]
    assert decided(AMX, 30.0, first_unsure, 0.9) == (4, 1)
    assert decided(AMX, 30.0, first_unsure, 0.5) == (4, 0)


def test_no_branches_where_the_next_row_is_a_step_of_the_stairs():
    assert decided(AVX512, 40.0, [0.7, 0.7, 0.7], 0.3) == (3, 0)


def test_a_branch_replaces_the_row_of_a_less_likely_draft_token():
    """Three rows cost as much as two, a fourth doubles the price: the second guess of an unsure token comes before a second token."""
    cost = Prices(1.0, [1.0, 1.5, 1.55, 3.0, 5.0, 7.0])
    assert best_tree([0.6, 0.06, 0.006], [0.3, 0.02, 0.0], 5, cost) == (1, 1)


def test_a_right_branch_is_charged_for_the_row_in_which_it_is_decoded_again():
    """It brings 0.2 tokens and its row costs 0.18: enough for one row, but not for a fifth of another."""
    cost = Prices(1.0, [1.0, 1.5, 1.68])
    assert best_tree([0.6], [0.2], 2, cost) == (1, 0)
    assert best_tree([0.6], [0.23], 2, cost) == (1, 1)


def proposals():
    return [Proposal(5, ("model", 0), None, 7), Proposal(6, ("model", 3), None, 6), Proposal(7, ("ngram", 2)), Proposal(8, ("model", 1), None, 9)]  # fmt: skip


@pytest.mark.parametrize(
    ("n", "most", "branches"),
    [(4, 9, [(0, 7), (3, 9)]), (4, 5, [(0, 7)]), (4, 4, []), (3, 9, [(0, 7)]), (0, 9, [])],
)
def test_a_fixed_tree_has_all_second_guesses_that_fit_the_likeliest_first(n, most, branches):
    rates = {(SECOND, 0): 0.3, (SECOND, 3): 0.1, (SECOND, 1): 0.2}
    chosen = Tree(fixed=True).choose(
        proposals(), [0.5, 0.4, 0.4, 0.2], n, most, Prices(1.0, [1.0] * 9), rates.__getitem__
    )
    assert (chosen[0], [one[1:] for one in chosen[1]]) == (n, branches)


def test_an_adaptive_tree_has_those_that_pay():
    rates = {(SECOND, 0): 0.3, (SECOND, 3): 0.1, (SECOND, 1): 0.2}
    cheap = Prices(1.0, [1.0 + 0.1 * n for n in range(9)])
    chosen = Tree().choose(proposals(), [0.5, 0.4, 0.4, 0.2], 4, 9, cheap, rates.__getitem__)
    assert chosen == (4, [Second(0.3, 0, 7)])


def test_the_options_decide_whether_there_are_branches():
    assert Tree.of(Speculation(tree=False)) is None
    fixed, adaptive = (Tree.of(Speculation(tree=True, adaptive=way)) for way in (False, True))
    assert (fixed.fixed, fixed.n_more) == (True, BRANCHES_MAX)
    assert (adaptive.fixed, adaptive.n_more) == (False, BRANCHES_MAX)
    auto = Tree.of(Speculation())
    assert (auto.fixed, auto.n_more) == (False, 0)
    for way in ({"adaptive": False}, {"accept": "block"}, {"accept": "rejection"}):
        assert Tree.of(Speculation(**way)) is None
