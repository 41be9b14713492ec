"""Draft lengths against brute force: every length, every outcome of the next confidence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.speculative.draft_length import (
    Outlook,
    Prices,
    best_length,
    drafting_gain,
    gain_of,
    token_seconds,
)

shares = st.floats(0.0, 1.0)
seconds = st.floats(0.001, 1.0)


@st.composite
def prices(draw, n=12):
    """Costs with any steps, also falling ones."""
    return Prices(
        draw(st.floats(0.5, 200.0)),
        draw(st.lists(seconds, min_size=n + 1, max_size=n + 1)),
        draw(st.floats(0.0, 0.002)),
    )


def reaches_of(chances):
    return np.cumprod(chances).tolist()


@given(st.lists(shares, max_size=9), prices())
def test_the_best_length_is_that_of_all_lengths(chances, cost):
    reaches = reaches_of(chances)

    def gain(n):
        tokens = 1 + sum(reaches[:n])
        return tokens * (1 - cost.rate * cost.token_s) - cost.rate * cost.pass_s[n]

    n, found = best_length(reaches, cost)
    assert found == pytest.approx(max(gain(m) for m in range(len(reaches) + 1)) - gain(0), abs=1e-9)
    assert gain_of(reaches, n, cost) == pytest.approx(found, abs=1e-9)


@given(
    st.lists(shares, max_size=5),
    st.lists(shares, min_size=3, max_size=3),
    st.integers(1, 8),
    seconds,
    seconds,
    st.just(0.0) | shares,
    prices(20),
)
def test_the_value_of_another_token_is_that_of_all_lengths_and_confidences(
    chances, by_confidence, k, first_s, each_s, by_text, cost
):
    reaches, odds = reaches_of(chances), np.array([0.5, 0.3, 0.2])
    outlook = Outlook(odds, np.array(by_confidence), first_s, each_s, by_text)
    n = len(reaches)
    if k <= n:
        assert drafting_gain(reaches, k, outlook, cost) == float("-inf")
        return

    stop = max(gain_of(reaches, m, cost) for m in range(n + 1))

    def value(chance):
        """The best of: check some of the old tokens; check those, this one, and any number more, each with the mean chance."""
        values = [stop]
        for more in range(k - n):
            tail = [(reaches[-1] if n else 1.0) * chance * outlook.mean**i for i in range(more + 1)]
            values.append(
                gain_of([*reaches, *tail], n + 1 + more, cost) - cost.rate * more * each_s
            )
        return max(values)

    drafted = sum(share * value(chance) for share, chance in zip(odds, by_confidence, strict=True))
    brute = drafted - cost.rate * first_s - (value(by_text) if by_text else stop)
    assert drafting_gain(reaches, k, outlook, cost) == pytest.approx(brute, abs=1e-7)


def test_the_draft_length_can_exceed_a_step_of_the_costs():
    """The second row costs as much as four: one token does not pay, four do."""
    cost = Prices(1.0, [1.0, 2.5, 2.6, 2.7, 2.8])
    sure = Outlook(np.array([1.0]), np.array([0.9]), 0.01, 0.01)
    assert drafting_gain([], 1, sure, cost) < 0 < drafting_gain([], 4, sure, cost)


def test_drafting_one_token_pays_where_its_confidence_is_informative():
    """On average drafting does not pay; if half of the tokens are certain, it pays to draft one token first."""
    cost = Prices(1.0, [1.0, 1.6])
    told = Outlook(np.array([0.5, 0.5]), np.array([0.05, 0.95]), 0.02, 0.02)
    mean = Outlook(np.array([1.0]), np.array([0.5]), 0.02, 0.02)
    assert drafting_gain([], 1, mean, cost) < 0 < drafting_gain([], 1, told, cost)


@given(st.floats(0.0, 0.95), st.lists(seconds, min_size=2, max_size=20), seconds)
def test_the_seconds_of_a_token_are_those_of_the_best_fixed_length(chance, pass_s, draft_s):
    def each(k):
        return (pass_s[k] + k * draft_s) / sum(chance**i for i in range(k + 1))

    lengths = [k for k in range(1, len(pass_s)) if chance ** (k - 1) >= 0.02]
    assert token_seconds(chance, pass_s, draft_s) == pytest.approx(
        min([pass_s[0], *map(each, lengths)])
    )
