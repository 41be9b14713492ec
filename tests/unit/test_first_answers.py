"""The first answers of a model without measured costs: their own passes show these, and which passes are exact."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gguf_spec import Speculation
from gguf_spec.arrays import row_bits
from gguf_spec.passes import Exactness
from gguf_spec.sampling.rng import SeededRng
from gguf_spec.speculative import controller as controller_module
from gguf_spec.speculative import profiler
from gguf_spec.speculative.acceptance import coupled
from gguf_spec.speculative.cost_model import (
    ALONE,
    Batches,
    CostModel,
    Pace,
    SharedPasses,
    interpolate,
)
from gguf_spec.speculative.drafters import NoDrafter
from gguf_spec.speculative.engine import RoundRule, read_prompt, rounds
from gguf_spec.speculative.pair import ModelPair
from gguf_spec.speculative.scheduler import SlotPair
from tests.support.fakes import Clock, FakeModel, random_table, sampler

TRUE = {1: 40.0, 2: 46.0, 4: 54.0, 8: 72.0, 16: 121.0, 33: 221.0, 65: 420.0}  # milliseconds
V, N = 40, 120
TABLE = random_table(np.random.default_rng(5), V)


def cost(n, n_past):
    return interpolate({width: ms / 1000 for width, ms in TRUE.items()}, n)


class Promised(FakeModel):
    """Its kernels are exact."""

    exactness = Exactness(attention=True, promised=True)


class Moving(Promised):
    """Its rows move with the width of a pass, against the promise, and so do its cached values."""

    def logits(self, tokens, n_rows):
        self.is_moved = self.is_moved and self.n_past > self.moved_at
        rows = super().logits(tokens, n_rows)
        if len(tokens) > 1 and not self.is_moved:
            self.is_moved, self.moved_at = True, self.n_past - len(tokens)
        return rows[:, ::-1].copy() if self.is_moved else rows

    is_moved, moved_at = False, 0


class Files:
    """What a pair stores."""

    def __init__(self):
        self.profile = None

    def read_statistics(self, experiences):
        pass

    write_statistics = read_statistics

    def write_profile(self, profile):
        self.profile = profile


@pytest.fixture
def opened():
    """Open a pair over a fake model that a process closed with some profile."""

    def open_pair(kind=Promised, kept=None):
        clock = Clock()
        target = kind(4 * TABLE, 4000, cost=cost, clock=clock)
        target.close = lambda: None
        target.path, target.stored = SimpleNamespace(name="fake"), Files()
        pair = ModelPair(
            target,
            None,
            lambda *_: kept or profiler.guess(target, None, 0.1),
            files=target.stored,
            clock=clock.perf_counter,
        )
        pair.measure()
        return pair

    return open_pair


def answer(pair, n=N, speculation=None, prompt=(1, 2, 3), seed=0, beside=ALONE):
    target, chain = pair.target, sampler(SeededRng(seed))
    slots = SlotPair(target, None, batches=Batches(beside))
    drafter = pair.drafter(speculation or Speculation(), chain, n, slots)
    target.rollback(0)
    target.passes.clear()
    read_prompt(target, drafter, prompt, 64, lambda: False)
    k, rule = (0 if isinstance(drafter, NoDrafter) else 64), RoundRule(coupled)
    found = rounds(target, drafter, prompt, chain, k, rule, n, lambda _: False, lambda: False)
    return [token for one in found for token in one.tokens]


def plain(n=N):
    pair = ModelPair(Promised(4 * TABLE, 4000, cost=cost), None)
    return answer(pair, n, Speculation(k=0))


def test_passes_of_the_answer_show_the_costs(opened):
    pair = opened()
    assert answer(pair) == plain()
    costs = pair.experiences["sampled"].target
    assert [costs.seconds(n, 0) for n in (1, 2, 4, 8, 16)] == pytest.approx(
        [cost(n, 0) for n in (1, 2, 4, 8, 16)], rel=0.05
    )
    assert costs.n_checks == 1
    pair.close()
    stored = pair.target.stored.profile
    assert {n: stored.target[n] for n in (1, 2, 4, 8, 16)} == pytest.approx(
        {n: cost(n, 0) for n in (1, 2, 4, 8, 16)}, rel=0.05
    )
    assert stored.checked
    assert not {1, 2, 4, 8, 16} & {*stored.guessed}


@pytest.fixture
def no_drafts(monkeypatch):
    """Passes over several tokens are those that check the costs."""
    monkeypatch.setattr(controller_module.DraftController, "best_text", lambda _: (None, 0.0))


def test_checks_get_a_tenth_of_the_time(opened, no_drafts):
    """At any moment: a short answer does not wait for them."""
    pair = opened()
    target, tokens = pair.target, answer(pair)
    costs = [cost(n, 0) for n, _ in target.passes]
    extra = np.cumsum(costs) - cost(1, 0) * np.arange(1, len(costs) + 1)
    # The costs of the first passes are guesses.
    assert (extra <= 0.12 * np.cumsum(costs)).all()
    assert len(tokens) == len(costs) == N
    assert [n for n, _ in target.passes if n > 1] == [2, 4, 8, 16]
    assert all(rows == n for n, rows in target.passes), "as a pass that checks a draft"


class Common(SharedPasses):
    """Passes with another request: their times are not those of one sequence."""

    n, is_alone = 2, False

    def learn(self, update, *args, **kwargs):
        pass


def test_passes_with_other_requests_check_nothing(opened, no_drafts):
    """A width would be decoded again and again, as its time is learned from no such pass."""
    pair, widths = opened(), []
    for beside in (ALONE, Common(), ALONE):
        assert answer(pair, beside=beside, n=16) == plain(16)
        widths.append([n for n, _ in pair.target.passes if n > 1])
    assert widths == [[2, 4], [], [8]]


def test_rows_are_noted_only_while_costs_are_checked(opened, no_drafts, monkeypatch):
    """Afterwards no pass decodes known tokens again; a hash reads the whole row."""
    pair, noted = opened(), []
    monkeypatch.setattr(
        controller_module, "row_bits", lambda row: noted.append(row) or row_bits(row)
    )
    answer(pair)
    assert 0 < len(noted) < N, "until the last width was decoded"
    noted.clear()
    answer(pair)
    assert not noted


def test_short_answers_go_on_where_the_last_process_ended(opened, no_drafts):
    kept, widths = None, []
    for _ in range(14):
        pair = opened(kept=kept)
        answer(pair, 16)
        widths.append([n for n, _ in pair.target.passes if n > 1])
        pair.close()
        before, kept = kept, pair.target.stored.profile
        assert not before or {*kept.guessed} <= {*before.guessed}
    assert [n for one in widths for n in one] == [2, 4, 8], "each once; 16 costs more than a tenth"
    assert len([one for one in widths if one]) > 1


def test_passes_that_are_not_exact_change_no_text(opened, caplog):
    pair = opened(Moving)
    assert answer(pair) == plain()
    assert [n for n, _ in pair.target.passes if n > 1] == [2]
    assert "Rows of fake changed with the width of a pass" in caplog.text
    assert pair.profile.exact_width == 1
    assert answer(pair) == plain(), "a later request drafts nothing"
    assert max(n for n, _ in pair.target.passes) == 1
    pair.close()
    assert pair.target.stored.profile.exact_width == 1
    assert not pair.target.stored.profile.steady, "the next load measures it"


def test_a_disturbed_measurement_is_checked_by_answers(opened):
    wrong = {n: 2 * ms / 1000 if n == 4 else ms / 1000 for n, ms in TRUE.items()}
    whole = profiler.guess(Promised(TABLE), None, 0.04)
    whole = replace(whole, target=wrong, seconds=1.0, guessed=(), steady=False)
    pair = opened(kept=whole)
    assert answer(pair) == plain()
    pair.close()
    assert pair.target.stored.profile.checked
    assert pair.target.stored.profile.target[4] == pytest.approx(cost(4, 0), rel=0.1)


@pytest.mark.parametrize("factor", [1 / 30, 1 / 3, 1.0, 3.0, 30.0])
def test_the_first_pass_shows_the_speed_of_the_machine(factor):
    usual = {n: 0.02 * times for n, times in profiler.USUAL.items()}
    pace = Pace()
    costs = CostModel(usual, {}, 65, pace, leads=True, guessed=usual)
    draft = CostModel({1: 0.002, 65: 0.02}, {}, 65, pace, guessed=(1, 65))
    costs.learn(1, 0, 3 * factor * 0.02)  # the first pass reads the weights from the disk
    costs.learn(1, 0, factor * 0.02)
    assert costs.seconds(1, 0) == pytest.approx(factor * 0.02)
    assert costs.seconds(8, 0) == pytest.approx(factor * usual[8])
    assert draft.seconds(1, 0) == pytest.approx(factor * 0.002)


def test_a_guess_takes_the_shorter_one_of_two_passes_after_a_large_error():
    usual = {n: 0.02 * times for n, times in profiler.USUAL.items()}
    costs = CostModel(usual, {}, 65, Pace(), leads=True, guessed=usual)
    costs.check()
    costs.learn(1, 0, 0.02)
    costs.learn(2, 0, 0.1)  # beside another program
    assert costs.width_to_check(1, 65, 0.9, 0.0) == 2
    costs.learn(2, 0, 0.025)
    assert costs.seconds(2, 0) == pytest.approx(0.025)
    assert costs.width_to_check(1, 65, 0.9, 0.0) == 4
    assert costs.untimed == (4, 8, 16, 33, 65)
