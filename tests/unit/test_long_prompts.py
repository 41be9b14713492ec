"""A draft model that reads only the last part of a long prompt: positions, caches, the next turn."""

from types import SimpleNamespace

import numpy as np
import pytest

from gguf_spec.sampling.rng import SeededRng
from gguf_spec.speculative.controller import _LAST_PART, DraftController, DraftModelUse
from gguf_spec.speculative.cost_model import Batches, CostModel, Pace
from gguf_spec.speculative.drafters import MODELS, CoupledDraftSampler, FirstRead, ModelDrafter
from gguf_spec.speculative.drafters.model import _LEAST_CONTEXT, DraftCorrection
from gguf_spec.speculative.engine import RoundRule, read_prompt, rounds
from gguf_spec.speculative.pair_statistics import RequestAcceptance
from gguf_spec.speculative.profile import DEFAULT_PROFILE
from tests.support.fakes import Clock, FakeModel, costing, random_table, sampler

V = 30
TABLE = random_table(np.random.default_rng(1), V)
PROMPT = np.random.default_rng(2).integers(0, V, 5000).tolist()


def never():
    return False


def drafter(model, first=None):
    return ModelDrafter(
        model, CoupledDraftSampler(sampler(SeededRng(0)), DraftCorrection(V)), V, first
    )


def test_positions_in_the_text_and_in_the_cache_are_distinguished():
    model = FakeModel(TABLE, n_ctx=9000)
    one = drafter(model)
    one.begin_at(4000)
    assert one.n_past == 0
    one.read(PROMPT[:4990], never)
    assert (one.n_past, one.n_cached) == (4990, 990)
    assert model.cached == PROMPT[4000:4990]
    one.begin(PROMPT)
    whole = drafter(FakeModel(TABLE, n_ctx=9000))
    whole.read(PROMPT[:4990], never)
    whole.begin(PROMPT)
    assert one.propose() == whole.propose()  # this model looks at two tokens only
    assert (one.n_past, one.n_cached) == (5000, 1000)
    one.rollback(4500)
    assert (one.n_past, model.cached) == (4500, PROMPT[4000:4500])
    one.rollback(4000)
    assert (one.n_past, model.cached) == (0, [])
    one.read(PROMPT[:10], never)
    assert (one.n_past, model.cached) == (10, PROMPT[:10])


def test_the_next_turn_continues_from_the_read_part():
    model, first = FakeModel(TABLE, n_ctx=9000), FirstRead()
    one = drafter(model, first)
    one.begin_at(4000)
    one.read(PROMPT, never)
    turn = [*PROMPT, 1, 2, 3]
    two = drafter(model, first)  # each request has a drafter of its own
    two.keep(turn)
    assert (two.n_past, model.cached) == (5000, PROMPT[4000:])
    other = [*PROMPT[:4600], 7 if PROMPT[4600] != 7 else 8, 1]
    two.keep(other)
    assert (two.n_past, model.cached) == (4600, PROMPT[4000:4600])


@pytest.mark.parametrize(
    "other", [PROMPT[1:], PROMPT[:100], [*PROMPT[: 4000 + _LEAST_CONTEXT - 1], -1], []]
)
def test_a_useless_part_is_dropped(other):
    model, first = FakeModel(TABLE, n_ctx=9000), FirstRead()
    one = drafter(model, first)
    one.begin_at(4000)
    one.read(PROMPT, never)
    one.keep(other)
    assert (one.n_past, model.cached, first.offset) == (0, [], 0)


def test_a_cache_changed_by_other_code_is_noticed():
    """Sessions give back a cache from the start of a text; tuning empties it."""
    model, first = FakeModel(TABLE, n_ctx=9000), FirstRead(4000)
    model.read(PROMPT[:3000])
    one = drafter(model, first)
    one.keep(PROMPT)
    assert (one.n_past, first.offset) == (3000, 0)


def test_a_review_leaves_the_part_as_it_was():
    model = FakeModel(TABLE, n_ctx=9000)
    one = drafter(model)
    one.begin_at(4000)
    one.read(PROMPT[:4100], never)
    whole = drafter(FakeModel(TABLE, n_ctx=9000))
    whole.read(PROMPT[:4100], never)
    assert one.review(PROMPT, 32, 16) == whole.review(PROMPT, 32, 16)
    assert (one.n_past, model.cached) == (4100, PROMPT[4000:4100])
    assert len(one.review(PROMPT[:4110], 9, 9)) == 9
    assert (one.n_past, model.cached) == (4109, PROMPT[4000:4109])


@pytest.fixture
def clock():
    """The clock of the fake models, also for the draft controller, so that the load of the machine has no effect."""
    return Clock()


def generate(clock, n_prompt, draft_s, depth=0.0, n=40):
    """Return the target, the draft model, its drafter and the tokens of one answer behind a prompt of so many tokens."""
    target = FakeModel(TABLE, n_ctx=9000, cost=costing({1: 0.020, 65: 0.030}), clock=clock)
    draft = FakeModel(
        TABLE, n_ctx=9000, cost=lambda n, n_past: draft_s(n) + n * depth * n_past, clock=clock
    )
    known = DEFAULT_PROFILE.experiences()["sampled"]
    known.target = CostModel({1: 0.020, 65: 0.030}, {}, 65, Pace())
    known.draft = CostModel(
        {n: draft_s(n) for n in (1, 2, 4, 8, 16, 32, 65)}, {1: depth}, 65, Pace()
    )
    known.answer = n
    chain = sampler(SeededRng(3))
    model = ModelDrafter(draft, CoupledDraftSampler(chain, DraftCorrection(V)), V)
    controller = DraftController(target, [], model, known, n, clock=clock.perf_counter)
    prompt, emitted = PROMPT[:n_prompt], []
    read_prompt(target, controller, prompt, 16, never)
    for one in rounds(
        target, controller, prompt, chain, 16, RoundRule(), n, lambda _: False, never
    ):
        emitted += one.tokens
        assert model.n_past <= target.n_past + 1
        text = [*prompt, *emitted]
        first = model.n_past - model.n_cached
        assert draft.cached == text[first : model.n_past]
        assert target.cached == text[:-1]
    return target, model, emitted


def cheap(n):
    return 0.001 + 0.0001 * n


@pytest.mark.full
def test_how_much_is_read_is_decided_by_cost(clock):
    plain = generate(clock, 5000, lambda n: 1.0 * n)
    assert plain[1].n_past == 0  # far too dear
    part = generate(clock, 5000, cheap)
    assert part[1].n_past - part[1].n_cached == 5000 - 1 - _LAST_PART
    short = generate(clock, 2 * _LAST_PART, cheap)
    assert short[1].n_past == short[1].n_cached > 2 * _LAST_PART
    long_answer = generate(clock, 5000, cheap, n=1000)
    assert long_answer[1].n_past > 5900
    assert plain[2] == part[2] == long_answer[2][:40]  # the text is the target's own


@pytest.mark.full
def test_a_deep_cache_that_slows_the_draft_model_is_not_filled(clock):
    part = generate(clock, 5000, lambda n: 0.0005 + 0.00001 * n, depth=1e-6, n=1000)
    assert part[1].n_past - part[1].n_cached > 3000


@pytest.mark.parametrize(
    ("surest", "n_left", "pays"),
    [(False, 10**6, True), (True, 10**6, False), (True, 50, False), (False, 50, False)],
)
def test_an_answer_that_ends_before_the_complete_text_is_read(surest, n_left, pays):
    """Fewer tokens are left than rounds are needed, so nothing can be saved, also where reading would make it slower."""
    known = DEFAULT_PROFILE.experiences()["sampled"]
    known.target = CostModel({1: 0.050, 65: 0.300}, {}, 65, Pace())
    known.confidences[:] = [
        1.0 if i == (len(known.confidences) - 1) * surest else 1e-6
        for i in range(len(known.confidences))
    ]
    known.answer = n_left
    costs = CostModel({1: 0.004, 65: 0.005}, {}, 65, Pace())
    costs.learn(512, 0, 0.006)
    costs.learn(512, 0, 0.006)
    model = SimpleNamespace(name="model", n_cached=128, reads_at_once=512)
    chances = RequestAcceptance(known.chances, MODELS)
    use = DraftModelUse(model, costs, known, chances, n_left, False, 65, Batches(), n_emitted=40)
    assert use._whole_pays(100_000) == pays
