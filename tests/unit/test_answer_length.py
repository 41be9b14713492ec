"""The usual length of an answer, from answers that ended and from answers that were cut off."""

import pytest

from gguf_spec.speculative.cost_model import CostModel, Pace
from gguf_spec.speculative.pair_statistics import AcceptanceRates, PairStatistics


@pytest.fixture
def known():
    return PairStatistics(CostModel({1: 0.05}, {}, 33, Pace()), None, AcceptanceRates({}))


def test_short_requests_do_not_shorten_the_usual_answer(known):
    """A draft model reads a long prompt only for an answer of a certain length (issue 14)."""
    before = known.answer
    for _ in range(20):
        known.answered(8, is_whole=False)
    assert known.answer == before


def test_an_answer_that_ended_counts(known):
    for _ in range(40):
        known.answered(8, is_whole=True)
    assert known.answer == pytest.approx(8, abs=0.1)


def test_a_cut_answer_that_was_longer_counts(known):
    for _ in range(40):
        known.answered(500, is_whole=False)
    assert known.answer == pytest.approx(500, abs=1)
