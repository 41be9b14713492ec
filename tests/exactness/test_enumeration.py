"""Level 2: every random path of the real engine on a tiny vocabulary; the joint distribution of the first tokens is the target's to 1e-12."""

import itertools
from collections import defaultdict

import numpy as np
import pytest

from gguf_spec.sampling.chain import NO_FILTERS, Sampler
from gguf_spec.speculative.acceptance import Draft, Rows, block, coupled, rejection
from gguf_spec.speculative.drafters import ModelDrafter, StochasticDraftSampler
from gguf_spec.speculative.engine import RoundRule, read_prompt, rounds, run_round
from tests.exactness import wrong_rules
from tests.support.fakes import (
    Anything,
    FakeModel,
    NoTwice,
    Replay,
    drafting,
    every_path,
    random_table,
    sampler,
)

V, M, PROMPT = 3, 3, [1, 2]
CHAINS = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top-k": {"top_k": 2},
    "top-p": {"top_p": 0.7},
    "min-p": {"min_p": 0.2, "temperature": 1.4},
    "penalties": {
        "repeat_penalty": 1.7,
        "frequency_penalty": 0.4,
        "presence_penalty": -0.3,
        "penalty_last_n": 3,
    },
    "bias": {"logit_bias": {0: 1.5, 2: float("-inf")}},
    "typical-p": {"typical_p": 0.6},
    "top-n-sigma": {"top_n_sigma": 1.7},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.2},
    "grammar": {"filters": NO_FILTERS._replace(grammar=NoTwice(V))},
    "greedy": {"temperature": 0.0},
}
RULES = {"coupled": coupled, "rejection": rejection, "block": block}


def exact_distribution(target_table, options, m=M):
    """Return the target's distribution of the first `m` tokens, by the chain rule."""
    distribution = {}
    for tokens in itertools.product(range(V), repeat=m):
        history, weight = list(PROMPT), 1.0
        for token in tokens:
            row = FakeModel(target_table).logits(history, 1)[0]
            weight *= sampler(Replay(), **options).distribution(row, history).prob(token)
            history.append(token)
        if weight:
            distribution[tokens] = weight
    return distribution


def engine_distribution(target_table, draft_table, k, options, rule=rejection, drafts=None, m=M):
    """Return the engine's distribution of the first `m` tokens over all random paths, and the number of paths.

    The rule `coupled` requires nothing of the draft, so every possible draft is tried.
    """
    distribution, n_paths = defaultdict(float), 0

    def run(rng):
        target, chain = FakeModel(target_table), sampler(rng, **options)
        drafter = (
            Anything(rng, V)
            if rule is coupled or drafts is Anything
            else drafting(target, FakeModel(draft_table), StochasticDraftSampler(chain), V)
        )
        tokens = list(PROMPT)
        while len(tokens) < len(PROMPT) + m:
            tokens += run_round(target, drafter, tokens, chain, k, RoundRule(rule)).tokens
        return tuple(tokens[len(PROMPT) : len(PROMPT) + m])

    for tokens, weight in every_path(run):
        distribution[tokens] += weight
        n_paths += 1
    return distribution, n_paths


def distance(a, b):
    return max(abs(a.get(t, 0.0) - b.get(t, 0.0)) for t in {*a, *b})


@pytest.fixture(params=[0.0, 0.25], ids=["full", "with zeros"])
def tables(request):
    rng = np.random.default_rng(7)
    return random_table(rng, V, request.param), random_table(rng, V, request.param)


MANY = {"coupled": 1000, "rejection": 400, "block": 100}


@pytest.mark.few(54)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("k", [0, 1, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("rule", RULES)
def test_all_paths_together_give_the_targets_distribution(tables, chain, k, rule):
    target, draft = tables
    distribution, n_paths = engine_distribution(target, draft, k, CHAINS[chain], RULES[rule])
    assert abs(sum(distribution.values()) - 1) < 1e-12
    assert distance(distribution, exact_distribution(target, CHAINS[chain])) < 1e-12
    assert n_paths > 1 or chain == "greedy"
    assert n_paths > MANY[rule] or (k, chain) != (2, "plain")


def test_block_verification_accepts_at_least_as_much(tables):
    """Expected accepted tokens of one round with k = 2, exactly; here more, not just as many."""
    target_table, draft_table = tables

    def accepted(rule):
        def run(rng):
            chain, target = sampler(rng), FakeModel(target_table)
            return run_round(
                target,
                drafting(target, FakeModel(draft_table), StochasticDraftSampler(chain), V),
                PROMPT,
                chain,
                2,
                RoundRule(rule),
            ).n_accepted

        return sum(n * weight for n, weight in every_path(run))

    assert accepted(block) > accepted(rejection) + 1e-3


@pytest.mark.full
@pytest.mark.parametrize("rule", wrong_rules.ALL, ids=lambda rule: rule.__name__)
def test_a_wrong_rule_is_caught(tables, rule):
    target, draft = tables
    distribution, _ = engine_distribution(target, draft, 2, {}, rule, m=2)
    assert distance(distribution, exact_distribution(target, {}, 2)) > 1e-3


def kept_unseen(draft, rows):
    """Coupling that accepts the first drafted token always."""
    return [
        *draft.tokens[:1],
        *coupled(
            Draft(draft.tokens[1:], []),
            Rows(rows.logits[1:], rows.history(1), draft.tokens[1:], rows.sampler),
        ),
    ]


def row_too_early(draft, rows):
    """Coupling that reads each row one place too early."""
    return [rows.token(max(len(draft.tokens) - 1, 0))]


@pytest.mark.few(2)
@pytest.mark.parametrize("rule", [kept_unseen, row_too_early], ids=lambda rule: rule.__name__)
def test_a_wrong_coupling_is_caught(tables, rule):
    target, draft = tables
    distribution, _ = engine_distribution(target, draft, 2, {}, rule, Anything, 2)
    assert distance(distribution, exact_distribution(target, {}, 2)) > 1e-3
    right, _ = engine_distribution(target, draft, 2, {}, coupled, Anything, 2)
    assert distance(right, exact_distribution(target, {}, 2)) < 1e-12


@pytest.mark.full
def test_a_rollback_that_drops_too_much_changes_only_the_speed(tables, monkeypatch):
    target, draft = tables
    monkeypatch.setattr(
        ModelDrafter, "rollback", lambda self, to: self._model.rollback(max(to - 1, 0))
    )
    assert (
        distance(engine_distribution(target, draft, 2, {})[0], exact_distribution(target, {}))
        < 1e-12
    )


@pytest.mark.full
def test_penalties_from_a_stale_history_are_caught(tables, monkeypatch):
    """The rows of a pass must depend on the tokens drafted before them; here they depend on the prompt only."""
    target, draft = tables
    options = CHAINS["penalties"]
    right = Sampler.distribution
    monkeypatch.setattr(
        Sampler,
        "distribution",
        lambda self, logits, history: right(self, logits, history[: len(PROMPT)]),
    )
    distribution = engine_distribution(target, draft, 2, options)[0]
    monkeypatch.undo()
    assert distance(distribution, exact_distribution(target, options)) > 1e-3


@pytest.mark.parametrize("rule", [rejection, block])
def test_the_loop_cuts_rounds_without_changing_the_distribution(tables, rule):
    """With end tokens and a limit, over `rounds`: sequences that end early count as such."""
    target_table, draft_table = tables
    ends, n_max = {0}, 3

    def distribution_with(draft, k):
        distribution = defaultdict(float)

        def run(rng):
            chain, target = sampler(rng), FakeModel(target_table)
            drafter = drafting(target, FakeModel(draft, end=ends), StochasticDraftSampler(chain), V)
            read_prompt(target, drafter, PROMPT, k, lambda: False)
            tokens = []
            for one in rounds(
                target,
                drafter,
                PROMPT,
                chain,
                k,
                RoundRule(rule),
                n_max,
                lambda t: t in ends,
                lambda: False,
            ):
                tokens += one.tokens
            return tuple(tokens)

        for tokens, weight in every_path(run):
            distribution[tokens] += weight
        return distribution

    plain = distribution_with(draft_table, 0)
    assert any(len(tokens) < n_max for tokens in plain)
    for k in (1, 2):
        assert distance(distribution_with(draft_table, k), plain) < 1e-12
