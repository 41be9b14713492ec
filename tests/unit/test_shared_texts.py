"""Answers that the drafts of all requests may come from: bounds, order, drafts, and the same text."""

import random

import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.speculative.drafters import NgramDrafter, SharedTexts
from tests.support.fakes import proposed


def test_a_draft_from_an_earlier_answer():
    shared = SharedTexts()
    shared.add([1, 2, 3, 4, 5, 6])
    drafter = NgramDrafter(shared=shared)
    assert proposed(drafter, [9, 2, 3]) == [4, 5, 6]
    assert proposed(NgramDrafter(), [9, 2, 3]) == []
    shared.add([7, 2, 3, 8, 8, 8, 1])  # while the request runs
    assert proposed(drafter, [9, 2, 3, 8], 3) == [8, 8, 1]


def test_the_longer_match_wins():
    shared = SharedTexts()
    shared.add([1, 2, 3, 4])
    assert proposed(NgramDrafter(shared=shared), [2, 3, 9, 1, 2, 3], 1) == [4]
    assert proposed(NgramDrafter(shared=shared), [5, 1, 2, 3, 9, 5, 1, 2, 3], 1) == [9]


def test_texts_are_bounded_and_the_least_recently_used_are_removed():
    shared, rng = SharedTexts(most=80, n_pages=4), random.Random(1)
    for page in range(4):
        shared.add([100 * page + i for i in range(20)])
    assert (shared.n_tokens, len(shared.pages)) == (80, 4)
    assert proposed(NgramDrafter(shared=shared), [1, 2], 1) == [3]  # the first page was used
    shared.add([900 + i for i in range(20)])
    assert proposed(NgramDrafter(shared=shared), [1, 2], 1) == [3]
    assert proposed(NgramDrafter(shared=shared), [101, 102], 1) == [], "the second made room"
    for _ in range(50):
        shared.add([rng.randrange(50) for _ in range(rng.randrange(60))])
        assert shared.n_tokens <= 80
        assert len(shared.pages) <= 4
    assert len(shared._used_at) <= 4


def test_the_same_answer_is_there_once():
    shared = SharedTexts()
    for _ in range(3):
        shared.add([1, 2, 3, 4])
    shared.add([2, 3])
    assert shared.n_tokens == 4
    shared.add([4, 2])
    assert shared.n_tokens == 6


@pytest.mark.full
@pytest.mark.parametrize("parallel", [1, 3])
def test_the_texts_stay_the_same_in_fewer_rounds(parallel):
    """Answers that repeat each other: the same schema-like text with another seed and number."""
    prompts = [f'{{"name": "fox {i}", "says": "' for i in range(3)]
    requests = [
        (prompt, Sampling(seed=seed, max_tokens=40, temperature=0.4))
        for seed in (1, 2)
        for prompt in prompts
    ] * 3

    def run(**options):
        speculation = Speculation(6, adaptive=False, drafter="ngram")
        with gguf_spec.load(
            "tales", "ngram", threads=1, n_ctx=256, speculation=speculation, **options
        ) as llm:
            found = [llm.generate(*requests[0])]
            found += llm.generate_many(*map(list, zip(*requests[1:], strict=True)))
            return [one.text for one in found], sum(one.stats.rounds for one in found)

    texts, n_private = run()
    assert run(shared_drafts=True, parallel=parallel)[0] == texts
    assert run(shared_drafts=True)[1] < 0.8 * n_private
