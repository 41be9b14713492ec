"""The acceptance rule by hand: each number can be checked on paper."""

import numpy as np
import pytest

from gguf_spec._accept import Draft, rejection, residual
from gguf_spec._sampling import Distribution
from tests.fakes import sampler


class Said:
    """A random source that says what it was told to, and notes the questions."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def chance(self, probability):
        self.asked.append(probability)
        return self.answers.pop(0)

    def choose(self, probabilities):
        self.asked.append(list(probabilities))
        return self.answers.pop(0)


def law(**probs):
    return Distribution(np.array([ord(t) - ord("a") for t in probs]), np.array(list(probs.values())))


def test_residual():
    rest = residual(law(a=0.5, b=0.3, c=0.2), law(a=0.2, b=0.4, d=0.4))
    assert list(rest.ids) == [0, 2]
    assert rest.probs == pytest.approx([0.6, 0.4])


def test_residual_of_laws_that_share_no_token_is_p():
    p = law(a=0.5, b=0.5)
    rest = residual(p, law(c=1.0))
    assert list(rest.ids) == [0, 1]
    assert rest.probs == pytest.approx([0.5, 0.5])


def test_a_token_is_kept_with_p_over_q():
    rng = Said(True, False, 0)
    p, q = law(a=0.5, b=0.5), law(a=0.25, b=0.75)
    new = rejection(Draft([0, 1], [q, q]), lambda i: p, sampler(rng))
    assert rng.asked[:2] == [1.0, pytest.approx(0.5 / 0.75)]
    assert rng.asked[2] == [1.0]  # the residual is a alone
    assert new == [0, 0]


def test_all_accepted_brings_a_bonus_from_the_last_row():
    rows = [law(a=1.0), law(b=1.0), law(c=1.0)]
    assert rejection(Draft([0, 1], rows[:2]), rows.__getitem__, sampler(Said(True, True, 0))) == [0, 1, 2]


def test_no_draft_is_a_plain_draw():
    assert rejection(Draft([], []), lambda i: law(a=0.1, c=0.9), sampler(Said(1))) == [2]


def test_rows_after_a_rejection_are_never_asked_for():
    asked = []

    def rows(i):
        asked.append(i)
        return law(a=0.5, b=0.5)

    rejection(Draft([0, 0, 0], [law(a=1.0)] * 3), rows, sampler(Said(True, False, 0)))
    assert asked == [0, 1]
