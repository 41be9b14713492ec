"""Models whose rollback drops too many tokens: what that costs, and that nothing else changes."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gguf_spec.errors import RollbackError
from gguf_spec.options import Sampling, Speculation
from gguf_spec.speculative.controller import DraftController
from gguf_spec.speculative.draft_length import Outlook, Prices, best_length, drafting_gain, gain_of
from gguf_spec.speculative.prefix import retain_prefix, return_to
from gguf_spec.speculative.profile import DEFAULT_PROFILE
from tests.support.fakes import FakeModel, fake_llm, random_table


class Copying(FakeModel):
    """A model that can roll back to before its last pass with rows, or to a requested checkpoint."""

    free_rollback, can_roll_back = 0, False

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.saved, self.n_back = {}, 0

    def logits(self, tokens, n_rows):
        if n_rows > self.free_rollback + 1:
            self.saved["pass"] = self.n_past
        return super().logits(tokens, n_rows)

    def hold(self, lasting=False):
        self.saved["lasting" if lasting else "pass"] = self.n_past

    def rollback(self, to):
        if to >= self.n_past:
            return
        places = [n for n in (0, *self.saved.values()) if n <= to]
        if to and max(places) == 0 and 0 not in self.saved.values():
            raise RollbackError("copying", self.n_past, to)
        super().rollback(max(places))
        self.saved = {kind: n for kind, n in self.saved.items() if n <= self.n_past}
        self.n_back += 1


TABLE = random_table(np.random.default_rng(3), 6)
PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]


def answers(target, draft, **speculation):
    with fake_llm(target, draft, Speculation(**speculation)) as llm:
        return [
            llm.generate_tokens(PROMPT, Sampling(temperature=t, seed=seed, max_tokens=30)).tokens
            for t in (0, 1.0)
            for seed in range(5)
        ]


@pytest.mark.few(2)
@pytest.mark.parametrize("k", [1, 2, 5, 9])
@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("copies", ["target", "draft", "both"])
def test_the_text_does_not_change(k, adaptive, copies):
    plain = answers(FakeModel(TABLE), FakeModel(TABLE), k=0)
    target = (FakeModel if copies == "draft" else Copying)(TABLE)
    draft = (FakeModel if copies == "target" else Copying)(0.5 * TABLE)
    assert answers(target, draft, k=k, adaptive=adaptive) == plain
    if not adaptive:
        assert (
            all(model.n_back > 10 for model in (target, draft) if isinstance(model, Copying))
            or k == 1
        )


def brute_replays(reaches, n, prices):
    """Expected cost of decoding tokens again: by each number of accepted tokens."""
    reach = [1.0, *reaches[:n], 0.0]
    return prices.rate * sum(
        (reach[a] - reach[a + 1]) * prices.replay_s[a]
        for a in range(n)
        if n - a > prices.free_rollback
    )


@pytest.mark.parametrize("free", [0, 1, 3, 6])
def test_expected_replays(free):
    rng = np.random.default_rng(free)
    pass_s = np.cumsum(rng.uniform(0.01, 0.05, 7)).tolist()
    prices = Prices(20.0, pass_s, 0.001, rng.uniform(0.0, 0.1, 6).tolist(), free)
    reaches = np.cumprod(rng.uniform(0.5, 1.0, 6)).tolist()
    found = prices.replays(np.asarray(reaches))
    for n in range(7):
        assert found[n] == pytest.approx(brute_replays(reaches, n, prices))
    gains = [
        sum(reaches[:n]) * prices.worth - prices.extra(n) - brute_replays(reaches, n, prices)
        for n in range(7)
    ]
    assert [gain_of(reaches, n, prices) for n in range(7)] == pytest.approx(gains)
    n, gain = best_length(reaches, prices)
    assert gain == pytest.approx(max(gains))
    assert gains[n] == pytest.approx(gain)


def test_a_longer_draft_counts_its_replays():
    """With one bucket the gain is that of the best length ahead, over stopping."""
    reaches, chance = [0.9, 0.7], 0.6
    for free in (0, 2):
        prices = Prices(
            20.0, [0.05 + 0.01 * n for n in range(9)], 0.0, [0.02 * (a + 1) for a in range(8)], free
        )
        outlook = Outlook(np.array([1.0]), np.array([chance]), 0.002, 0.003)
        ahead = [0.7 * chance * chance**i for i in range(6)]
        values = [
            gain_of([*reaches, *ahead[: m + 1]], 3 + m, prices) - prices.rate * 0.003 * m
            for m in range(6)
        ]
        stop = best_length(reaches, prices)[1]
        expected = max(*values, stop) - prices.rate * 0.002 - stop
        assert drafting_gain(reaches, 8, outlook, prices) == pytest.approx(expected)


def test_replays_shorten_drafts():
    reaches = [0.8**i for i in range(1, 9)]
    pass_s = [0.05 + 0.01 * n for n in range(9)]
    free = best_length(reaches, Prices(20.0, pass_s))
    copied = best_length(reaches, Prices(20.0, pass_s, 0.0, [0.03 * (a + 1) for a in range(8)], 0))
    assert copied[0] < free[0]
    assert copied[1] < free[1]


def test_the_controller_counts_replays():
    known = DEFAULT_PROFILE.experiences()["greedy"]
    controller = DraftController(Copying(TABLE), [], None, known, 30)
    replay_s, free = controller.replay(2, 4, 10)
    # behind a round of 2 pending tokens, of whose draft `a` are accepted, 3 + a are pending
    alone = known.target.seconds(1, 10)
    expected = [max(0.0, known.target.seconds(3 + a, 10) - alone) for a in range(4)]
    assert (free, list(replay_s)) == (0, pytest.approx(expected))
    assert DraftController(FakeModel(TABLE), [], None, known, 30).replay(2, 4, 10) == ((), 0)


def test_a_rollback_reads_the_missing_tokens_again():
    for n in range(1, 8):
        model = Copying(TABLE)
        model.read(PROMPT[:2])
        model.hold(lasting=True)
        model.read(PROMPT[2:])
        return_to(model, PROMPT, n)
        assert model.cached == PROMPT[:n]


def test_a_prefix_ends_on_the_grid_of_prefill_passes():
    for held, grid in itertools.product((3, 4), (0, 4)):
        model = Copying(TABLE)
        model.exactness = replace(model.exactness, grid=grid)
        model.read(PROMPT[:held])
        model.hold()
        model.read(PROMPT[held:])
        retain_prefix(model, [*PROMPT[:6], 5, 5])
        assert model.n_past == (held if not grid or held == 4 else 0)
