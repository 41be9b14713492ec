"""Second guesses beside the first: the text is that of the target, and some of them are accepted."""

from dataclasses import replace

import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import InvalidOptionError
from gguf_spec.llama.model import Model
from gguf_spec.llama.options import ContextOptions
from gguf_spec.speculative.acceptance import coupled
from gguf_spec.speculative.engine import Rule, run_round
from gguf_spec.speculative.tree import TreeDraft, TreeRows
from gguf_spec.verify import bundled_prompts
from tests.exactness.test_enumeration import CHAINS, PROMPT, V, distance, exact_distribution
from tests.gguf.test_near_ties import TALES
from tests.support import families
from tests.support.fakes import Anything, FakeModel, every_path, random_table, sampler

CHOICES = [((0, 0), (1, 1)), ((0, 2), (1, 0)), ((1, 2),)]
N = 2  # tokens; more have too many paths


class AnyTree(Anything):
    """Proposes every sequence, with every one of some sets of branches."""

    def draft(self, tokens, k):
        tokens = super().draft(tokens, k).tokens
        branches = CHOICES[self._rng.choose([1 / len(CHOICES)] * len(CHOICES))] if tokens else ()
        return TreeDraft(
            tokens,
            [],
            [(i, token) for i, token in branches if i < len(tokens) and tokens[i] != token],
        )


def tree_law(table, options, k=2):
    distribution = {}

    def run(rng):
        target, chain = FakeModel(table), sampler(rng, **options)
        drafter, tokens, n_taken = AnyTree(rng, V), list(PROMPT), 0
        while len(tokens) < len(PROMPT) + N:
            one = run_round(target, drafter, tokens, chain, k, Rule(coupled))
            tokens += one.tokens
            assert target.cached == tokens[: target.n_past]
            n_taken += target.n_past == len(tokens) - 2
        return tuple(tokens[len(PROMPT) : len(PROMPT) + N]), n_taken

    taken = 0
    for (tokens, n_taken), weight in every_path(run):
        distribution[tokens] = distribution.get(tokens, 0.0) + weight
        taken += n_taken
    return distribution, taken


def first_tokens_law(table, options):
    distribution = {}
    for tokens, weight in exact_distribution(table, options).items():
        distribution[tokens[:N]] = distribution.get(tokens[:N], 0.0) + weight
    return distribution


@pytest.mark.parametrize("name", ["plain", "top-p", "penalties", "grammar", "greedy"])
def test_every_path_of_every_tree_follows_the_targets_distribution(name):
    table = random_table(np.random.default_rng(7), V, 0.2)
    distribution, taken = tree_law(table, CHAINS[name])
    assert distance(distribution, first_tokens_law(table, CHAINS[name])) < 1e-12
    assert taken > 100


def test_a_row_of_another_branch_is_caught(monkeypatch):
    real = TreeRows.branch_off

    def wrong(self, i, token):
        self._branch_logits = self._branch_logits[::-1]
        return real(self, i, token)

    monkeypatch.setattr(TreeRows, "branch_off", wrong)
    table = random_table(np.random.default_rng(7), V)
    assert distance(tree_law(table, {})[0], first_tokens_law(table, {})) > 1e-3


def test_a_branch_left_in_the_cache_is_caught(monkeypatch):
    monkeypatch.setattr(TreeDraft, "n_cached", lambda self, new: len(new) - 1)
    with pytest.raises(AssertionError):
        tree_law(random_table(np.random.default_rng(7), V), {})


@pytest.fixture(scope="module")
def tales():
    with gguf_spec.load("tales", threads=1) as llm:
        yield llm


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.0}, {}, {"repeat_penalty": 1.2, "min_p": 0.05, "top_k": 0}],
    ids=["greedy", "sampled", "penalised"],
)
def test_the_text_is_the_plain_one_and_takes_fewer_rounds(tales, options):
    rounds = {False: 0, True: 0}
    for seed, prompt in enumerate(bundled_prompts()[:6]):
        sampling = Sampling(**{"seed": seed, "max_tokens": 48, **options})
        plain = tales.generate(prompt, sampling, speculation=Speculation(0))
        for tree in rounds:
            one = tales.generate(
                prompt,
                sampling,
                speculation=Speculation(3, drafter="model", adaptive=False, tree=tree),
            )
            assert one.tokens == plain.tokens or one.stats.n_near_ties
            rounds[tree] += one.stats.rounds
        adaptive = tales.generate(prompt, sampling, speculation=Speculation(tree=True))
        assert adaptive.tokens == plain.tokens or adaptive.stats.n_near_ties
    assert rounds[True] < 0.95 * rounds[False]


def test_log_probabilities_and_a_full_context_go_with_branches():
    with gguf_spec.load("tales", threads=1, n_ctx=64) as llm:
        sampling = Sampling(seed=3, max_tokens=None, logprobs=2)
        plain = llm.generate("Once upon a time", sampling, speculation=Speculation(0))
        tree = llm.generate(
            "Once upon a time",
            sampling,
            speculation=Speculation(8, drafter="model", adaptive=False, tree=True),
        )
    assert (tree.tokens, tree.finish_reason) == (plain.tokens, plain.finish_reason)
    assert [one.token for one in tree.logprobs] == [one.token for one in plain.logprobs]
    assert np.allclose(
        [one.logprob for one in tree.logprobs], [one.logprob for one in plain.logprobs], atol=0.05
    )


def test_rows_of_branches_are_those_of_their_own_text(tales):
    with tales.models() as (target, _):
        tokens = tales_ids = [(7919 * i + 13) % target.n_vocab for i in range(40)]
        target.rollback(0)
        target.read(tokens[:30])
        branches = [(2, 100), (2, 200), (5, 300)]
        rows = target.logits(tokens[30:36], 6, branches).copy()
        assert target.cached == tokens[:36]
        after = target.logits(tokens[36:37], 1).copy()  # what stays in the cache is the trunk
        target.rollback(0)
        target.read(tokens[:30])
        trunk = target.logits(tokens[30:36], 6).copy()
        assert np.abs(rows[:6] - trunk).max() < 0.02
        assert np.abs(after - target.logits(tokens[36:37], 1)).max() < 0.02
        for row, (at, token) in zip(rows[6:], branches, strict=True):
            target.rollback(0)
            target.read(tales_ids[: 30 + at])
            alone = target.logits([token], 1)[0]
            assert np.abs(row - alone).max() < 0.02 < np.abs(rows[at] - alone).max()


@pytest.mark.parametrize("options", [{}, {"kv_type": "q8_0"}], ids=str)
def test_rows_of_branches_have_their_bits_wherever_they_lie_in_the_cache(kernels, options):
    """llama.cpp's attention without flash attention adds up values in the order of the cells: it is not taken for exact."""
    model = Model(TALES / "tales-target-Q8_0.gguf", ContextOptions(n_ctx=320, threads=1, **options))
    differ = []
    for depth in (14, 15, 30, 33, 129, 200, 255):
        tokens = [(7919 * i + 13) % model.n_vocab for i in range(depth + 6)]
        for width, at in ((2, 1), (3, 1), (6, 1), (6, 5)):
            model.rollback(0)
            model.read(tokens[:depth])
            row = model.logits(tokens[depth : depth + width], width, [(at, 100)])[-1].copy()
            model.rollback(depth + at)
            if not np.array_equal(row, model.logits([100], 1)[0]):
                differ.append((depth, width, at))
    assert model.exact_branches == (kernels == "own" or bool(options))
    assert not (differ and model.exact_branches)
    model.close()


def test_log_probabilities_have_the_same_bits_with_branches(tmp_path, kernels):
    """There are none where their rows are not exact and near ties are not counted."""
    files = [families.write_family(tmp_path, "llama", seed, str(seed)) for seed in (0, 1)]
    with gguf_spec.load(*files, threads=1, n_ctx=192) as llm:
        for seed in range(5):
            sampling = Sampling(seed=seed, temperature=1.0, max_tokens=60, logprobs=0)
            prompt = [26 + (seed * 7 + i * i) % 64 for i in range(20)]
            plain = llm.generate(prompt, sampling, speculation=Speculation(0))
            way = Speculation(4, drafter="hybrid", adaptive=False, tree=True)
            assert llm.generate(prompt, sampling, speculation=way).logprobs == plain.logprobs


def test_branches_that_cannot_be_are_refused(tales):
    with tales.models() as (target, _):
        target.rollback(0)
        for n_rows, branches in (
            (2, [(0, 1)]),
            (2, [(2, 1)]),
            (2, [(1, 1)] * 4),
            (2, [(1, -1)]),
            (2, [(1, 10**6)]),
        ):
            with pytest.raises(InvalidOptionError):
                target.logits([5, 6], n_rows, branches)
        assert target.cached == []
    for nonsense in (
        {"tree": 1},
        {"tree": True, "accept": "rejection"},
        {"tree": True, "accept": "block"},
    ):
        with pytest.raises(InvalidOptionError):
            Speculation(**nonsense)
    assert replace(Speculation(), tree=True).tree
