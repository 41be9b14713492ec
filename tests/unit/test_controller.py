"""The draft controller in simulated time: only passes of fake models take time.

A pair is measured by the real `measure`, so the controller knows of it what it would know of a real one.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gguf_spec.options import K_MAX, Speculation
from gguf_spec.sampling.chain import Distribution
from gguf_spec.sampling.rng import SeededRng
from gguf_spec.speculative import profile, profiler
from gguf_spec.speculative.acceptance import coupled
from gguf_spec.speculative.controller import DraftController, RoundState, SearchBudget, Step
from gguf_spec.speculative.draft_length import Prices
from gguf_spec.speculative.drafters import NgramDrafter, Proposal
from gguf_spec.speculative.engine import RoundRule, read_prompt, rounds
from gguf_spec.speculative.pair import ModelPair
from gguf_spec.speculative.pair_statistics import RequestAcceptance
from gguf_spec.speculative.scheduler import SlotPair
from tests.support.fakes import Clock, FakeModel, costing, random_table, sampler

V, N = 30, 600
PLAIN, AUTO, MODEL = Speculation(0), Speculation(), Speculation(drafter="model")
SOME_K = (1, 2, 3, 4, 5, 7, 8, 11)


def linear(n, n_past):
    """Costs in proportion to the number of tokens."""
    return 0.020 * n


def half(n, n_past):
    return 0.020 * (1 + (n - 1) / 4)


def stairs(n, n_past):
    """Four tokens cost as much as one."""
    return 0.020 * -(-n // 4)


FLAT = costing({1: 0.020, 33: 0.026})
CHEAP, DEAR = costing({1: 0.002, 33: 0.003}), costing({1: 0.008, 33: 0.012})
TABLE, OTHER = (random_table(np.random.default_rng(seed), V) for seed in (1, 2))
DRAFTS = {"good": 1.3 * TABLE + 0.25 * OTHER, "fair": 1.3 * TABLE + 0.8 * OTHER, "useless": -TABLE}


class Scene:
    """A pair of fake models whose clock is the only one."""

    def __init__(self, target_s, draft_s=None, draft="good", n_ctx=4000, checked=True):
        self.clock = Clock()
        self.target = FakeModel(1.3 * TABLE, n_ctx, cost=target_s, clock=self.clock)
        self.draft = draft_s and FakeModel(DRAFTS[draft], n_ctx, cost=draft_s, clock=self.clock)
        clock = self.clock.perf_counter
        self.pair = ModelPair(self.target, self.draft, clock=clock)
        measured = profiler.measure(self.target, self.draft, clock=clock)
        self.pair.use_profile(replace(measured, checked=checked))

    @property
    def known(self):
        return self.pair.experiences["sampled"]

    def run(
        self, speculation=AUTO, n=N, prompt=(1, 2, 3), seed=0, each=lambda n_said: None, **options
    ):
        """Generate `n` tokens; return the seconds, with the prompt."""
        chain = sampler(SeededRng(seed), **options)
        self.controller = self.pair.drafter(
            speculation, chain, n, SlotPair(self.target, self.draft)
        )
        for model in filter(
            None, (self.target, self.draft)
        ):  # or what was read before would be read no more
            model.rollback(0)
        self.tokens, self.target.passes, began, draft_s = (
            [],
            [],
            self.clock.now,
            self.draft.busy_s if self.draft else 0.0,
        )
        read_prompt(self.target, self.controller, prompt, speculation.k, lambda: False)
        self.prompt_s = self.clock.now - began
        for one in rounds(
            self.target,
            self.controller,
            prompt,
            chain,
            speculation.k,
            RoundRule(coupled),
            n,
            lambda token: False,
            lambda: False,
        ):
            self.tokens += one.tokens
            each(len(self.tokens))
        self.drafting_s = self.draft.busy_s - draft_s if self.draft else 0.0
        return self.clock.now - began


@pytest.fixture
def scene():
    return Scene


def best_fixed(scene, *args):
    """Seconds of the best length that there is for these models, plain decoding among them."""
    ways = [PLAIN, *(Speculation(k, drafter="model", adaptive=False) for k in SOME_K)]
    return min(scene(*args).run(way) for way in ways)


PAYS = [
    (FLAT, CHEAP, "good"),
    (FLAT, CHEAP, "fair"),
    (FLAT, DEAR, "good"),
    (stairs, CHEAP, "good"),
    (stairs, CHEAP, "fair"),
    (half, CHEAP, "good"),
]


@pytest.mark.full
@pytest.mark.parametrize("models", PAYS, ids=lambda models: None)
def test_a_draft_that_pays_is_used_as_well_as_at_the_best_fixed_length(scene, models):
    best, plain = best_fixed(scene, *models), scene(*models).run(PLAIN)
    assert best < 0.75 * plain
    for way in (AUTO, MODEL):
        assert best / scene(*models).run(way) > 0.95


@pytest.mark.few(1)
@pytest.mark.parametrize("target_s", [FLAT, half, stairs, linear])
@pytest.mark.parametrize("draft_s", [CHEAP, DEAR])
def test_a_useless_draft_costs_little(scene, target_s, draft_s):
    models = (target_s, draft_s, "useless")
    plain = scene(*models).run(PLAIN)
    for way in (AUTO, MODEL):
        assert scene(*models).run(way) < 1.02 * plain
    assert (
        scene(target_s, DEAR, "useless").run(Speculation(3, drafter="model", adaptive=False))
        > 1.5 * plain
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("draft", ["good", "useless"])
def test_nothing_is_drafted_where_a_checked_token_costs_as_much_as_a_decoded_one(scene, draft):
    """Except for rare passes that check this."""
    one = scene(linear, CHEAP, draft)
    plain = scene(linear, CHEAP, draft).run(PLAIN)
    assert one.run() < 1.01 * plain
    assert sum(n > 1 for n, _ in one.target.passes) <= 0.01 * len(one.target.passes)


def test_a_text_that_repeats_itself_is_drafted_from_without_any_draft_model(scene):
    one = scene(half)
    plain = one.run(PLAIN, temperature=0.0)
    assert one.run(temperature=0.0) < 0.5 * plain
    assert set(one.controller.counts) <= {"ngram", "retry"}


@pytest.fixture
def slow_searches(monkeypatch):
    """Let each search of a scene take a quarter of a pass."""
    fast = NgramDrafter.begin

    def slow(one):
        def begin(self, tokens):
            one.clock.now += 0.005
            one.n_searches = getattr(one, "n_searches", 0) + 1
            return fast(self, tokens)

        monkeypatch.setattr(NgramDrafter, "begin", begin)
        return one

    return slow


def test_searches_without_a_draft_cost_little(scene, slow_searches, monkeypatch):
    plain = scene(linear).run(PLAIN)
    assert slow_searches(scene(linear)).run() < 1.025 * plain
    monkeypatch.setattr(SearchBudget, "rounds_without", lambda *_: 0)
    assert slow_searches(scene(linear)).run() > 1.2 * plain


def test_a_first_request_looks_in_its_first_rounds(scene, slow_searches):
    """A program of one request has no earlier measurement of a search."""
    one = slow_searches(scene(linear))
    one.run(n=4)
    assert one.n_searches == 1 + 3, "of the prompt, and of three rounds"


def test_drafts_that_pay_are_searched_though_the_search_is_slow(scene, slow_searches):
    one = slow_searches(scene(half))
    plain = one.run(PLAIN, temperature=0.0)
    assert one.run(temperature=0.0) < 0.55 * plain


@pytest.mark.full
def test_drafts_end_before_a_step_of_the_costs(scene):
    one = scene(stairs, CHEAP, "good")
    one.run()
    widths = [n for n, _ in one.target.passes]
    assert np.mean([n % 4 == 0 for n in widths]) > 0.85
    flat = scene(FLAT, CHEAP, "good")
    flat.run()
    assert np.mean([n % 4 == 0 for n, _ in flat.target.passes]) < 0.5


@pytest.mark.full
def test_the_better_the_draft_the_longer_the_drafts(scene):
    lengths = []
    for draft in ("good", "fair", "useless"):
        one = scene(FLAT, CHEAP, draft)
        one.run(MODEL)
        lengths.append(np.mean([n for n, _ in one.target.passes]))
    assert lengths[0] > lengths[1] + 1 > lengths[2] + 2


@pytest.mark.full
def test_drafts_are_not_longer_than_the_limit(scene):
    one = scene(FLAT, CHEAP, "good")
    one.run(Speculation(3))
    assert max(n for n, _ in one.target.passes) == 4
    one.run()
    assert 4 < max(n for n, _ in one.target.passes) <= K_MAX + 1


# ---- asking a draft that is not used


@pytest.mark.full
def test_the_controller_takes_less_than_one_percent(scene):
    one = scene(FLAT, DEAR, "useless")
    one.run(MODEL)
    seconds = one.run(MODEL, n=2000)
    assert 0 < one.drafting_s < 0.01 * seconds
    assert one.controller.counts == {}


@pytest.mark.full
def test_a_draft_that_cannot_pay_is_not_run(scene):
    one = scene(linear, DEAR, "useless")
    one.run()
    one.run(n=2000)
    assert one.drafting_s == 0.0


@pytest.mark.full
def test_a_draft_that_was_slow_for_two_passes_is_used_again(scene):
    """Nothing else would correct the cost of a model that is not used."""
    one = scene(FLAT, CHEAP, "good")
    one.run(MODEL)
    for _ in range(2):
        one.known.draft.learn(1, 10, 0.2)
    assert one.known.draft.seconds(1, 10) > 0.1
    one.run(MODEL, n=2000)
    assert one.known.draft.seconds(1, 10) < 0.004
    assert one.run(MODEL) / N < 0.5 * FLAT(1, 0)


def changing(one, draft, n, since):
    """Generate `n` tokens with a draft that changes after 500; return the seconds per token from `since` on."""
    at = {}

    def each(n_said):
        if n_said >= 500:
            one.draft.table = np.float32(DRAFTS[draft])
        at[n_said] = one.clock.now

    one.run(MODEL, n=n, each=each)
    first, last = min(n_said for n_said in at if n_said >= since), max(at)
    return (at[last] - at[first]) / (last - first)


@pytest.mark.full
def test_a_draft_that_becomes_good_in_the_middle_of_a_text_is_noticed(scene):
    assert changing(scene(FLAT, CHEAP, "useless"), "good", 1000, 700) < 0.8 * FLAT(1, 0)
    assert changing(scene(FLAT, CHEAP, "useless"), "good", 2000, 1500) < 0.7 * FLAT(1, 0)
    assert scene(FLAT, CHEAP, "good").run(MODEL) / N < 0.4 * FLAT(
        1, 0
    )  # had it been so from the start


@pytest.mark.full
def test_a_draft_that_becomes_useless_is_stopped(scene):
    assert changing(scene(FLAT, CHEAP, "good"), "useless", 1500, 900) < 1.02 * FLAT(1, 0)


# ---- the prompt


def expensive_reading(n, n_past):
    """A draft with cheap tokens and expensive prompts."""
    return 0.002 * n


def test_a_prompt_is_not_read_by_a_draft_that_does_not_pay(scene):
    one = scene(FLAT, DEAR, "useless")
    one.run(MODEL)
    one.run(MODEL, n=100, prompt=[1, 2, 3] * 200)
    assert one.draft.n_past == 0


@pytest.mark.full
def test_a_long_prompt_is_not_read_for_a_short_answer(scene):
    one = scene(FLAT, expensive_reading, "good")
    prompt = [1, 2, 3] * 500
    one.run(MODEL, n=16, prompt=prompt)
    assert one.draft.n_past == 0
    assert one.drafting_s == 0.0
    one.known.answer = 1000
    one.run(MODEL, n=1000, prompt=prompt)
    assert 1000 < one.draft.n_past < len(prompt), "the last part of the prompt, and the answer"
    one.run(MODEL, n=16, prompt=prompt[:30])
    assert one.draft.n_past > 30


class NeedsTheStart(FakeModel):
    """Draft model that is good only if its cache holds the start of the text."""

    def logits(self, tokens, n_rows):
        rows = super().logits(tokens, n_rows)
        return rows if self.cached[:2] == [1, 2] else -rows


@pytest.mark.full
@pytest.mark.parametrize("n", [800, 100])
def test_the_complete_prompt_is_read_in_pieces_if_its_last_part_is_not_enough(scene, n):
    one = scene(FLAT, lambda n, n_past: 0.0015 + 0.0005 * n, "good")
    one.run(MODEL)
    one.known.answer = 100.0
    one.draft.__class__, seen = NeedsTheStart, []
    prompt = [1, 2, *np.random.default_rng(0).integers(3, V, 2998).tolist()]
    one.run(MODEL, n=n, prompt=prompt, each=lambda _: seen.append(one.draft.n_past))
    assert 0 < seen[0] < 300, "the last part of the prompt"
    assert (one.draft.n_past > len(prompt)) == (n > 100)
    assert np.diff(seen).max() < 250


def test_a_round_that_does_not_look_computes_no_acceptance_rates(scene, slow_searches, monkeypatch):
    one, asked = slow_searches(scene(linear, DEAR, "useless")), []
    of = RequestAcceptance.of
    monkeypatch.setattr(RequestAcceptance, "of", lambda *args: asked.append(args) or of(*args))
    one.run(n=1000)
    assert 0 < len(asked) < 20 * one.n_searches


def test_how_long_answers_are_is_learned_from_those_before(scene):
    """There may be a thousand tokens, and there are ten each time."""
    one = scene(FLAT, expensive_reading, "good")
    prompt, chain = [1, 2, 3] * 200, sampler(SeededRng(0))
    for answer, is_read in ((400, True), (10, False)):
        for _ in range(30):
            one.known.answered(answer, is_whole=True)
        controller = one.pair.drafter(MODEL, chain, 1000, SlotPair(one.target, one.draft))
        one.draft.rollback(0)
        read_prompt(one.target, controller, prompt, 32, lambda: False)
        assert (one.draft.n_past > 0) == is_read


# ---- what is known


@pytest.mark.full
def test_costs_follow_a_machine_that_becomes_half_as_fast(scene):
    one = scene(FLAT, CHEAP, "good")
    one.run()
    for model in (one.target, one.draft):
        model.cost = lambda n, n_past, cost=model.cost: 2 * cost(n, n_past)
    one.run(n=300, seed=1)
    for n in (1, 3, 6):
        assert one.known.target.seconds(n, 100) == pytest.approx(2 * FLAT(n, 100), rel=0.1)
    assert one.known.draft.seconds(1, 100) == pytest.approx(2 * CHEAP(1, 100), rel=0.1)


@pytest.mark.full
def test_drafting_stops_where_wide_passes_become_expensive(scene):
    """As if another program used half of the processor: single tokens, limited by memory, do not change."""
    one = scene(FLAT, CHEAP, "good")
    one.run()
    one.target.cost = lambda n, n_past: 0.020 * n
    for seed in range(4):
        one.run(n=N, seed=seed)
    assert one.run(n=N, seed=2) < 1.05 * scene(linear).run(PLAIN, seed=2)


@pytest.mark.full
@pytest.mark.parametrize(
    "models", [*PAYS, (half, DEAR, "fair"), (FLAT, DEAR, "useless")], ids=lambda models: None
)
def test_the_forecast_is_within_ten_percent_of_the_time(scene, models):
    one = scene(*models)
    for way in (
        AUTO,
        MODEL,
        Speculation(4, drafter="hybrid", adaptive=False),
    ):
        seconds = one.run(way) - one.prompt_s
        assert one.controller.forecast.rounds_s == pytest.approx(seconds, rel=0.1)
        assert one.controller.forecast.plain_s == pytest.approx(scene(*models).run(PLAIN), rel=0.1)


def test_the_confidence_of_a_token_behind_a_wrong_one_is_not_counted(scene, monkeypatch):
    one, counted = scene(FLAT, CHEAP, "useless"), []
    monkeypatch.setattr(one.known, "drafted", counted.append)
    one.run(Speculation(8, drafter="model", adaptive=False), 60)
    n_drafted, n_accepted = one.controller.counts["model"]
    assert 0 < len(counted) <= n_accepted + len(one.target.passes) < n_drafted / 4


def test_statistics_of_one_request_are_used_in_the_next(scene):
    first, second = [], []
    for seed in range(3):
        one = scene(FLAT, CHEAP, "useless")
        one.pair.use_profile(profile.DEFAULT_PROFILE)
        for found in (first, second):
            found.append(one.run(MODEL, n=200, seed=seed))
    assert sum(second) < sum(first)
    assert max(second) < 1.05 * 200 * FLAT(1, 0)


# ---- tokens that were drawn


def n_checked(*steps):
    """Return the number of checked draft tokens, where each costs almost as much as a decoded one."""
    target = SimpleNamespace(n_past=0, busy_s=0.0)
    controller = DraftController(
        target, [], None, profile.DEFAULT_PROFILE.experiences()["drawn"], 9
    )
    prices = Prices(50.0, [0.02 + 0.018 * n for n in range(len(steps) + 1)])
    controller._round = RoundState(1, 0, prices, prices, [*steps])
    return controller._cut()


def test_a_drawn_token_is_checked_at_any_confidence():
    """Without it the remaining tokens would not follow the draft's distribution."""
    distribution = Distribution(np.array([2]), np.ones(1))
    sure, unsure = Step(Proposal(1, ("model", 12)), 0.99), Step(Proposal(2, ("model", 0)), 0.01)
    drawn = Step(Proposal(2, ("model", 0), distribution), 0.01)
    assert n_checked(unsure) == 0
    assert n_checked(sure, unsure) == 1
    assert n_checked(drawn) == 1
    assert n_checked(unsure, drawn, unsure) == 2
