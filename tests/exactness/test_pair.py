"""Levels 3 and 4 on the bundled pair: the distribution of sampled tokens by chi-square, and greedy texts with and without speculation."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner

from gguf_spec import Sampling, Speculation
from gguf_spec.cli import cli
from gguf_spec.sampling.rng import SeededRng
from gguf_spec.speculative.acceptance import coupled, rejection
from gguf_spec.speculative.drafters import (
    CoupledDraftSampler,
    DraftCorrection,
    StochasticDraftSampler,
)
from gguf_spec.speculative.engine import RoundRule, run_round
from tests.exactness import wrong_rules
from tests.exactness.near_ties import first_difference, gap, noise, rows_at_width
from tests.support.fakes import drafting, sampler

CHAIN = {"temperature": 0.9, "top_k": 4, "repeat_penalty": 1.2}
M, K = 3, 2


def exact_distribution(target, prompt):
    """Return the target's distribution of the first M tokens, from its logits."""
    chain = sampler(None, **CHAIN)
    distribution = {(): 1.0}
    for _ in range(M):
        longer = {}
        for tokens, weight in distribution.items():
            target.rollback(0)
            history = [*prompt, *tokens]
            one = chain.distribution(target.logits(history, 1)[0], history)
            longer |= {
                (*tokens, int(t)): weight * p for t, p in zip(one.ids, one.probs, strict=True)
            }
        distribution = longer
    return distribution


def sampled(llm, prompt, rule, n, k=K, seed=11):
    """Counts of the first M tokens over `n` sequences through the real engine."""
    target, draft = llm.engine.target, llm.engine.pair.draft
    rng = SeededRng(seed)
    chain = sampler(rng, **CHAIN)
    guess = (
        CoupledDraftSampler(chain, DraftCorrection(target.n_vocab))
        if rule is coupled
        else StochasticDraftSampler(chain)
    )
    drafter = drafting(target, draft, guess, target.n_vocab)
    target.rollback(0), draft.rollback(0)
    counts = Counter()
    for _ in range(n):
        tokens = list(prompt)
        target.rollback(len(prompt) - 1), draft.rollback(len(prompt) - 1)
        while len(tokens) < len(prompt) + M:
            tokens += run_round(target, drafter, tokens, chain, k, RoundRule(rule)).tokens
        counts[tuple(tokens[len(prompt) : len(prompt) + M])] += 1
    return counts


def excess(counts, distribution, n):
    """Return by how many standard deviations chi-square exceeds its mean; cells with few expected are pooled."""
    rare = [t for t, p in distribution.items() if p * n < 5]
    cells = [(sum(counts[t] for t in rare), sum(distribution[t] for t in rare))] if rare else []
    cells += [(counts[t], p) for t, p in distribution.items() if p * n >= 5]
    if sum(c for c, _ in cells) < n:
        return float("inf")  # tokens came that the target never says
    chi_square = sum((c - p * n) ** 2 / (p * n) for c, p in cells if p)
    return (chi_square - (len(cells) - 1)) / np.sqrt(2 * (len(cells) - 1))


@pytest.fixture(scope="module")
def opening(tales):
    prompt = tales.tokenize("Once upon a time there was a")
    return prompt, exact_distribution(tales.engine.target, prompt)


def test_the_distribution_depends_on_earlier_tokens(opening):
    _, distribution = opening
    first = {t[0] for t in distribution}
    given = [
        {
            t[1]: p / sum(q for s, q in distribution.items() if s[:2] == t[:2])
            for t, p in distribution.items()
            if t[0] == f
        }
        for f in first
    ]
    assert any(a.keys() != b.keys() for a, b in itertools.combinations(given, 2))


@pytest.mark.full
@pytest.mark.parametrize(
    ("k", "n"), [(0, 1_000), (K, 2_000), pytest.param(K, 10_000, marks=pytest.mark.slow)]
)
def test_chi_square_over_thousands_of_sequences(tales, opening, k, n):
    prompt, distribution = opening
    assert excess(sampled(tales, prompt, rejection, n, k), distribution, n) < 4


@pytest.mark.full
@pytest.mark.parametrize(  # the first needs thousands of sequences; `verify` catches it too (test_verify.py)
    "rule",
    [
        pytest.param(rule, marks=pytest.mark.slow)
        if rule is wrong_rules.block_with_the_plain_residual
        else rule
        for rule in wrong_rules.ALL
    ],
    ids=lambda rule: rule.__name__,
)
def test_chi_square_catches_a_wrong_rule(tales, opening, rule):
    prompt, distribution = opening
    counts = Counter()
    for n in range(500, 4_001, 500):
        counts += sampled(tales, prompt, rule, 500, seed=n)
        if excess(counts, distribution, n) > 6:
            return
    pytest.fail(
        f"after {n} sequences chi-square is {excess(counts, distribution, n):.1f} standard deviations above chance"
    )


def compare(llm, prompts, ks, n_tokens):
    """Return (texts compared, near ties); fail on a difference that noise does not explain."""
    n_texts, near_ties = 0, []
    for text in prompts:
        ids = llm.tokenize(text)
        plain = llm.generate_tokens(
            ids, Sampling(temperature=0.0, max_tokens=n_tokens), speculation=Speculation(0)
        )
        for k in ks:
            burst = llm.generate_tokens(
                ids,
                Sampling(temperature=0.0, max_tokens=n_tokens),
                speculation=Speculation(k, adaptive=False),
            )
            n_texts += 1
            at = first_difference(plain.tokens, burst.tokens)
            if at is not None:
                row = rows_at_width(llm.engine.target, [*ids, *plain.tokens[:at]], len(ids), 1)[-1]
                allowed = noise(llm.engine.target, ids, list(plain.tokens))
                assert gap(row) <= allowed, (
                    f"{text!r}, k = {k}: token {at} differs, gap {gap(row):.4f}, noise {allowed:.4f}"
                )
                near_ties.append((text, k, at, gap(row), allowed))
    return n_texts, near_ties


@pytest.mark.full
def test_greedy_text_is_the_same_with_any_k(tales, prompts, capsys):
    n_texts, near_ties = compare(tales, prompts[::7], [1, 2, 4, 8], 40)
    with capsys.disabled():
        print(
            f"\n{n_texts - len(near_ties)} of {n_texts} greedy texts identical, {len(near_ties)} near ties {near_ties}"
        )


@pytest.mark.slow
def test_greedy_text_of_fifty_prompts(tales, prompts, capsys):
    n_texts, near_ties = compare(tales, prompts, [1, 2, 4, 8], 120)
    with capsys.disabled():
        print(
            f"\n{n_texts - len(near_ties)} of {n_texts} greedy texts identical, {len(near_ties)} near ties {near_ties}"
        )


@pytest.mark.slow
def test_greedy_text_of_fifty_prompts_through_the_command_line(tales, prompts, capsys):
    """`generate --json -t 0` with --draft none and with -k 1, 2, 4, 8."""
    n_same, near_ties = 0, 0
    for prompt in prompts:
        results = []
        for how in (["--draft", "none"], *(["-k", str(k)] for k in (1, 2, 4, 8))):
            args = [
                "generate",
                "-m",
                "tales",
                prompt,
                "--json",
                "-t",
                "0",
                "-n",
                "64",
                "--threads",
                "1",
                "--fixed",
                *how,
            ]
            run = CliRunner().invoke(cli, args, standalone_mode=False)
            assert run.exception is None
            results.append(json.loads(run.stdout))
        assert results[0]["draft"] is None and all(r["stats"]["n_drafted"] for r in results[1:])
        for one in results[1:]:
            n_same += one["text"] == results[0]["text"]
            if one["text"] != results[0]["text"]:
                ids = tales.tokenize(prompt)
                at = first_difference(results[0]["tokens"], one["tokens"])
                row = rows_at_width(
                    tales.engine.target, [*ids, *results[0]["tokens"][:at]], len(ids), 1
                )[-1]
                assert gap(row) <= noise(tales.engine.target, ids, results[0]["tokens"])
                near_ties += 1
    with capsys.disabled():
        print(
            f"\n--json -t 0: {n_same} of {4 * len(prompts)} texts identical, {near_ties} near ties"
        )


def test_the_same_seed_gives_the_same_text(tales):
    once = Sampling(seed=5, max_tokens=40)
    first = tales.generate("Once upon a time", once)
    tales.generate(
        "Something else altogether, which fills the caches", Sampling(seed=9, max_tokens=30)
    )
    assert tales.generate("Once upon a time", once).tokens == first.tokens
    assert (
        tales.generate("Once upon a time", Sampling(seed=6, max_tokens=40)).tokens != first.tokens
    )
