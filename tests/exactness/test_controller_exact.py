"""For all drafters and draft lengths the distribution is the target's, and with `coupled` the text is the plain one."""

import itertools

import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.options import DRAFTERS, HEADS
from gguf_spec.sampling.chain import Distribution
from gguf_spec.speculative import controller as controller_module
from gguf_spec.speculative.acceptance import RULES
from gguf_spec.speculative.controller import DraftController
from gguf_spec.speculative.cost_model import CostModel, Pace
from gguf_spec.speculative.drafters import (
    MODELS,
    N_CONFIDENCE_BUCKETS,
    ModelDrafter,
    NgramDrafter,
    RetryDrafter,
    StochasticDraftSampler,
)
from gguf_spec.speculative.engine import RoundRule, run_round
from gguf_spec.speculative.pair_statistics import AcceptanceRates, PairStatistics
from gguf_spec.speculative.profile import DEFAULT_PROFILE
from gguf_spec.verify import bundled_prompts
from tests.exactness.test_enumeration import V, distance, exact_distribution
from tests.support.fakes import Clock, FakeModel, every_path, random_table, sampler

N = 2  # tokens; more have too many paths
COSTS = {
    "free": lambda n, n_past: 1e-6,
    "flat": lambda n, n_past: 1 + 0.05 * n,
    "dear": lambda n, n_past: 0.4 + 0.6 * n,
}


WHO = {
    "model": (False, True),
    "ngram": (True, False),
    "hybrid": (True, True),
}  # whether the text drafts, and a model


def nothing_known():
    return DEFAULT_PROFILE.experiences()["drawn"]


def distribution_of(
    table, draft_table, rule, cost, monkeypatch, prompt, known=nothing_known, who="hybrid"
):
    """Return the distribution of the first tokens over all paths; the controller learns on each path alone, without a clock."""
    distribution, drafted = {}, set()
    by_text, by_model = WHO[who]

    def run(rng):
        clock = Clock()
        target, draft = (
            FakeModel(table, cost=cost, clock=clock),
            FakeModel(draft_table, cost=lambda n, n_past: 0.05 * n, clock=clock),
        )
        chain = sampler(rng)
        model, texts = (
            ModelDrafter(draft, StochasticDraftSampler(chain), V),
            [NgramDrafter(), RetryDrafter()],
        )
        controller = DraftController(
            target,
            texts if by_text else [],
            model if by_model else None,
            known(),
            50,
            clock=clock.perf_counter,
        )
        tokens = list(prompt)
        while len(tokens) < len(prompt) + N:
            one = run_round(target, controller, tokens, chain, 2, RoundRule(RULES[rule]))
            drafted.add(one.n_drafted)
            tokens += one.tokens
        return tuple(tokens[len(prompt) : len(prompt) + N])

    for tokens, weight in every_path(run):
        distribution[tokens] = distribution.get(tokens, 0.0) + weight
    return distribution, drafted


def right_distribution(table, prompt):
    distribution = {}
    for tokens in itertools.product(range(V), repeat=N):
        history, weight = list(prompt), 1.0
        for token in tokens:
            weight *= (
                sampler(None)
                .distribution(FakeModel(table).logits(history, 1)[0], history)
                .prob(token)
            )
            history.append(token)
        distribution[tokens] = weight
    return distribution


@pytest.mark.full
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("prompt", [[1, 2], [1, 2, 0, 1, 2, 0, 1, 2]], ids=["short", "repeated"])
def test_every_path_of_an_adaptive_controller_follows_the_targets_distribution(
    rule, cost, prompt, monkeypatch
):
    rng = np.random.default_rng(5)
    table, draft = random_table(rng, V), random_table(rng, V)
    distribution, drafted = distribution_of(table, draft, rule, COSTS[cost], monkeypatch, prompt)
    assert distance(distribution, right_distribution(table, prompt)) < 1e-12
    assert cost == "dear" or drafted - {0}


def some_experience(seed):
    """Costs and acceptance rates at which no, some, or all drafts pay, by confidence."""
    rng, pace = np.random.default_rng(seed), Pace()
    priors = {
        one.name: rng.uniform(0.05, 0.95, len(one.priors)) for one in (NgramDrafter, RetryDrafter)
    }
    of_models = np.sort(rng.uniform(0.05, 0.95, N_CONFIDENCE_BUCKETS)).tolist()
    priors |= dict.fromkeys(MODELS, of_models)
    costs = []
    for scale in (1.0, 0.3):  # stairs: some tokens more cost nothing, some much
        table = scale * (
            rng.uniform(0.5, 1.0) + np.cumsum(rng.exponential(1.0, 8) * rng.integers(0, 2, 8))
        )
        costs.append(CostModel(dict(enumerate(table.tolist(), 1)), {}, 33, pace))
    return PairStatistics(*costs, AcceptanceRates(priors))


@pytest.mark.full
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("rule", RULES)
def test_so_does_a_controller_of_any_costs_and_chances(rule, who, monkeypatch):
    rng, prompt, drafted = np.random.default_rng(7), [0, 1, 2, 0, 1, 2, 0, 1], set()
    table, draft = random_table(rng, V), random_table(rng, V)
    for seed in range(12):
        distribution, some = distribution_of(
            table,
            draft,
            rule,
            COSTS["flat"],
            monkeypatch,
            prompt,
            lambda seed=seed: some_experience(seed),
            who,
        )
        assert distance(distribution, right_distribution(table, prompt)) < 1e-12
        drafted |= some
    assert drafted == {0, 1, 2}


@pytest.mark.full
@pytest.mark.failing_drafts
@pytest.mark.parametrize("after", [0, 1, 2, 3])
@pytest.mark.parametrize("who", ["model", "hybrid"])
@pytest.mark.parametrize("rule", RULES)
def test_so_does_one_whose_draft_model_fails(rule, who, after, monkeypatch):
    rng, right = np.random.default_rng(5), ModelDrafter.propose
    table, draft = random_table(rng, V), random_table(rng, V)

    def propose(self):
        self.n_asked = getattr(self, "n_asked", 0) + 1
        if self.n_asked > after:
            raise ArithmeticError
        return right(self)

    monkeypatch.setattr(ModelDrafter, "propose", propose)
    distribution, drafted = distribution_of(
        table, draft, rule, COSTS["free"], monkeypatch, [1, 2, 0, 1, 2, 0, 1, 2], who=who
    )
    assert distance(distribution, right_distribution(table, [1, 2, 0, 1, 2, 0, 1, 2])) < 1e-12
    assert (drafted == {0}) == (who == "model" and after == 0)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_token_of_the_text_treated_as_drawn_would_be_caught(rule, monkeypatch):
    """A proposal from the text is no random choice: its distribution has only that token."""
    rng, prompt = np.random.default_rng(5), [1, 2, 0, 1, 2, 0, 1, 2]
    table = random_table(rng, V)
    monkeypatch.setattr(
        controller_module, "_certain", lambda token: Distribution(np.arange(V), np.full(V, 1 / V))
    )
    distribution, _ = distribution_of(
        table, table, rule, COSTS["free"], monkeypatch, prompt, who="ngram"
    )
    assert distance(distribution, right_distribution(table, prompt)) > 1e-3


@pytest.mark.full
def test_cutting_a_drawn_token_by_what_it_is_would_be_caught(monkeypatch):
    rng = np.random.default_rng(5)
    table, draft = random_table(rng, V), random_table(rng, V)

    def cut_by_confidence(self):
        steps = self._round.steps
        return next(
            (
                i
                for i, step in enumerate(steps)
                if step.proposal.kind[1] < N_CONFIDENCE_BUCKETS // 2
            ),
            len(steps),
        )

    monkeypatch.setattr(DraftController, "_cut", cut_by_confidence)
    distribution, _ = distribution_of(table, draft, "rejection", COSTS["free"], monkeypatch, [1, 2])
    assert distance(distribution, right_distribution(table, [1, 2])) > 1e-3


def test_both_enumerations_give_the_same_distribution():
    table = random_table(np.random.default_rng(5), V)
    distribution = {}
    for tokens, weight in exact_distribution(table, {}).items():
        distribution[tokens[:N]] = distribution.get(tokens[:N], 0.0) + weight
    assert distance(distribution, right_distribution(table, [1, 2])) < 1e-12


WAYS = {
    "greedy": {"temperature": 0.0},
    "sampled": {},
    "penalised": {"repeat_penalty": 1.2, "dry_multiplier": 0.5},
}


@pytest.mark.full
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("drafter", sorted({*DRAFTERS} - {*HEADS}))
def test_the_seed_alone_decides_the_text_of_the_real_pair(tales, drafter, adaptive, way):
    for seed, prompt in enumerate(
        [
            *bundled_prompts()[:2],
            "And the king said: yes. And the king said: no. And the king said:",
        ]
    ):
        sampling = Sampling(**{"seed": seed, "max_tokens": 40, **WAYS[way]})
        plain = tales.generate(prompt, sampling, speculation=Speculation(0))
        one = tales.generate(
            prompt, sampling, speculation=Speculation(6, drafter=drafter, adaptive=adaptive)
        )
        assert one.tokens == plain.tokens or one.stats.n_near_ties
        assert adaptive or one.stats.n_drafted


@pytest.fixture(scope="module")
def tales():
    with gguf_spec.load("tales", threads=1) as llm:
        yield llm
