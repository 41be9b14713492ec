"""Whoever drafts, and however far the window lets them: the law is the target's own, and under `coupled` the text is the plain one."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation, _window
from gguf_spec._accept import RULES
from gguf_spec._drafters import SURENESSES, DrawnGuess, ModelDrafter, NgramDrafter, RetryDrafter
from gguf_spec._engine import Rule, run_round
from gguf_spec._profile import NOTHING_KNOWN
from gguf_spec._types import DRAFTERS
from gguf_spec._window import Window
from gguf_spec.verify import bundled_prompts
from tests.exactness.test_enumeration import V, distance, exact_law
from tests.fakes import Clock, FakeModel, every_path, random_table, sampler

N = 2  # tokens; more have too many paths
COSTS = {"free": lambda n, n_past: 1e-6, "flat": lambda n, n_past: 1 + 0.05 * n, "dear": lambda n, n_past: 0.4 + 0.6 * n}


def law_of(table, draft_table, rule, cost, monkeypatch, prompt, fixed=False):
    """The law of the first tokens over all paths; the window knows what it learned on this path, and no real clock."""
    law, drafted = {}, set()

    def run(rng):
        clock = Clock()
        monkeypatch.setattr(_window, "time", SimpleNamespace(perf_counter=clock.perf_counter))
        target, draft = FakeModel(table, cost=cost, clock=clock), FakeModel(draft_table, cost=lambda n, n_past: 0.05 * n, clock=clock)
        chain = sampler(rng)
        model = ModelDrafter(draft, DrawnGuess(chain), V)
        window = Window(target, [NgramDrafter(), RetryDrafter()], model, NOTHING_KNOWN.experiences()["drawn"], 50, fixed)
        tokens = list(prompt)
        while len(tokens) < len(prompt) + N:
            one = run_round(target, window, tokens, chain, 2, Rule(RULES[rule]))
            drafted.add(one.n_drafted)
            tokens += one.tokens
        return tuple(tokens[len(prompt) : len(prompt) + N])

    for tokens, weight in every_path(run):
        law[tokens] = law.get(tokens, 0.0) + weight
    return law, drafted


def right_law(table, prompt):
    law = {}
    for tokens in itertools.product(range(V), repeat=N):
        history, weight = list(prompt), 1.0
        for token in tokens:
            weight *= sampler(None).distribution(FakeModel(table).logits(history, 1)[0], history).prob(token)
            history.append(token)
        law[tokens] = weight
    return law


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("prompt", [[1, 2], [1, 2, 0, 1, 2, 0, 1, 2]], ids=["short", "repeated"])
def test_every_path_of_an_adaptive_window_follows_the_targets_law(rule, cost, prompt, monkeypatch):
    rng = np.random.default_rng(5)
    table, draft = random_table(rng, V), random_table(rng, V)
    law, drafted = law_of(table, draft, rule, COSTS[cost], monkeypatch, prompt)
    assert distance(law, right_law(table, prompt)) < 1e-12
    assert cost == "dear" or drafted - {0}


def test_cutting_a_drawn_token_by_what_it_is_would_be_caught(monkeypatch):
    rng = np.random.default_rng(5)
    table, draft = random_table(rng, V), random_table(rng, V)
    monkeypatch.setattr(
        Window, "_cut", lambda self: next((i for i, s in enumerate(self._steps) if s.proposal.kind[1] < SURENESSES // 2), len(self._steps))
    )
    law, _ = law_of(table, draft, "rejection", COSTS["free"], monkeypatch, [1, 2])
    assert distance(law, right_law(table, [1, 2])) > 1e-3


def test_the_right_law_is_that_of_the_other_enumeration():
    table = random_table(np.random.default_rng(5), V)
    law = {}
    for tokens, weight in exact_law(table, {}).items():
        law[tokens[:N]] = law.get(tokens[:N], 0.0) + weight
    assert distance(law, right_law(table, [1, 2])) < 1e-12


WAYS = {"greedy": {"temperature": 0.0}, "sampled": {}, "penalised": {"repeat_penalty": 1.2, "dry_multiplier": 0.5}}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_seed_alone_decides_the_text_of_the_real_pair(tales, drafter, adaptive, way):
    for seed, prompt in enumerate([*bundled_prompts()[:2], "And the king said: yes. And the king said: no. And the king said:"]):
        sampling = Sampling(**{"seed": seed, "max_tokens": 40, **WAYS[way]})
        plain = tales.generate(prompt, sampling, speculation=Speculation(0))
        one = tales.generate(prompt, sampling, speculation=Speculation(6, drafter=drafter, adaptive=adaptive))
        assert one.tokens == plain.tokens or one.stats.n_near_ties
        assert adaptive or one.stats.n_drafted


@pytest.fixture(scope="module")
def tales():
    with gguf_spec.load("tales", threads=1) as llm:
        yield llm
