"""The acceptance rule by hand: each number can be checked on paper."""

from types import SimpleNamespace

import numpy as np
import pytest

from gguf_spec.sampling.chain import Distribution
from gguf_spec.speculative.acceptance import Draft, block, coupled, rejection, residual
from tests.support.fakes import sampler


class ChunkEvent:
    """A random source with given outcomes that records its calls."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def chance(self, probability):
        self.asked.append(probability)
        return self.answers.pop(0)

    def choose(self, probabilities):
        self.asked.append(list(probabilities))
        return self.answers.pop(0)


class RecordedRows:
    """Rows of distributions, which record their reads."""

    def __init__(self, distributions, rng):
        self.distributions, self.sampler, self.asked = distributions, sampler(rng), []

    def distribution(self, i):
        self.asked.append(i)
        return self.distributions[i]


def distribution(**probs):
    return Distribution(
        np.array([ord(t) - ord("a") for t in probs]), np.array(list(probs.values()))
    )


def test_residual():
    rest = residual(distribution(a=0.5, b=0.3, c=0.2), distribution(a=0.2, b=0.4, d=0.4))
    assert list(rest.ids) == [0, 2]
    assert rest.probs == pytest.approx([0.6, 0.4])


def test_residual_of_disjoint_distributions_is_p():
    p = distribution(a=0.5, b=0.5)
    rest = residual(p, distribution(c=1.0))
    assert list(rest.ids) == [0, 1]
    assert rest.probs == pytest.approx([0.5, 0.5])


def test_residual_of_a_distribution_and_itself_is_that_distribution():
    p = distribution(a=0.5, b=0.3, c=0.2)
    assert residual(p, distribution(a=0.5, b=0.3, c=0.2)) is p


def test_residual_where_all_ids_of_q_are_before_those_of_p():
    rest = residual(distribution(c=0.25, d=0.75), distribution(a=1.0))
    assert (list(rest.ids), list(rest.probs)) == ([2, 3], [0.25, 0.75])


@pytest.mark.parametrize("rule", [rejection, block])
def test_a_draft_without_a_distribution_is_refused(rule):
    q = distribution(a=0.5, b=0.5)
    with pytest.raises(ValueError, match="shorter"):
        rule(Draft([0, 1], [q]), RecordedRows([q] * 3, ChunkEvent(True, True, True, 0)))


def test_a_block_that_only_rounding_refuses():
    """Target and draft agree, so nothing can be rejected; if rounding gives a rejection, earlier accepted tokens stay."""
    q = distribution(a=0.5, b=0.5)
    rng = ChunkEvent(False, True, 0)
    assert block(Draft([1, 1], [q, q]), RecordedRows([q] * 3, rng)) == [1, 0]
    assert rng.asked == [1.0, 1.0, [0.5, 0.5]]


def test_a_token_is_kept_with_p_over_q():
    rng = ChunkEvent(True, False, 0)
    p, q = distribution(a=0.5, b=0.5), distribution(a=0.25, b=0.75)
    new = rejection(Draft([0, 1], [q, q]), RecordedRows([p, p], rng))
    assert rng.asked[:2] == [1.0, pytest.approx(0.5 / 0.75)]
    assert rng.asked[2] == [1.0]  # the residual is a alone
    assert new == [0, 0]


def test_all_accepted_brings_a_bonus_from_the_last_row():
    rows = [distribution(a=1.0), distribution(b=1.0), distribution(c=1.0)]
    assert rejection(Draft([0, 1], rows[:2]), RecordedRows(rows, ChunkEvent(True, True, 0))) == [
        0,
        1,
        2,
    ]


@pytest.mark.parametrize("rule", [rejection, block])
def test_no_draft_is_a_plain_draw(rule):
    assert rule(Draft([], []), RecordedRows([distribution(a=0.1, c=0.9)], ChunkEvent(1))) == [2]


def test_rows_after_a_rejection_are_never_read():
    rows = RecordedRows([distribution(a=0.5, b=0.5)] * 4, ChunkEvent(True, False, 0))
    rejection(Draft([0, 0, 0], [distribution(a=1.0)] * 3), rows)
    assert rows.asked == [0, 1]


def test_block_by_hand():
    """The example on paper: weights 1, 0.5 / 0.8 and then min(1, 0.625 * 0.9 / 0.5) = 1."""
    p, q = (
        [distribution(a=0.5, b=0.5), distribution(a=0.1, b=0.9), distribution(b=1.0)],
        [distribution(a=0.8, b=0.2), distribution(a=0.5, b=0.5)],
    )
    rng = ChunkEvent(False, True, 0)
    assert block(Draft([0, 1], q), RecordedRows(p, rng)) == [0, 1]
    assert rng.asked[0] == pytest.approx(1.0)  # the whole draft: its weight
    mass = 0.625 * 0.9 - 0.5
    assert rng.asked[1] == pytest.approx(mass / (mass + 1 - 0.625))
    assert rng.asked[2] == [1.0]  # of 0.625 p - q only b is above 0


def test_the_weight_of_a_block_is_that_of_all_before():
    """0.5 / 0.8, then 0.4 / 0.5 of that: the weight of the first token still counts at the second."""
    p, q = (
        [distribution(a=0.5, b=0.5), distribution(a=0.6, b=0.4), distribution(b=1.0)],
        [distribution(a=0.8, b=0.2), distribution(a=0.5, b=0.5)],
    )
    rng = ChunkEvent(True, 0)
    assert block(Draft([0, 1], q), RecordedRows(p, rng)) == [0, 1, 1]
    assert rng.asked[0] == pytest.approx(0.625 * 0.8)


def test_block_reads_no_row_after_a_token_of_probability_zero():
    rows = RecordedRows([distribution(b=1.0), None, None], ChunkEvent(0))
    assert block(Draft([0, 0], [distribution(a=1.0), distribution(a=1.0)]), rows) == [1]
    assert rows.asked == [0]


def test_coupled_accepts_while_the_target_samples_the_same_token():
    rows = SimpleNamespace(token=[3, 1, 4].__getitem__)
    assert coupled(Draft([3, 1], []), rows) == [3, 1, 4]
    assert coupled(Draft([3, 2], []), rows) == [3, 1]
    assert coupled(Draft([9, 1], []), rows) == [3]
    assert coupled(Draft([], []), rows) == [3]
