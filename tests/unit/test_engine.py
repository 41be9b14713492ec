"""The round and the loop on fakes: numbers of passes and tokens, and contents of the caches."""

import numpy as np
import pytest

from gguf_spec.errors import RollbackError
from gguf_spec.sampling.rng import SeededRng
from gguf_spec.speculative.acceptance import Draft, coupled, rejection
from gguf_spec.speculative.drafters import NoDrafter, StochasticDraftSampler
from gguf_spec.speculative.engine import (
    Round,
    RoundRule,
    read_prompt,
    rounds,
    row_alone,
    run_round,
)
from tests.support.fakes import FakeModel, drafting, random_table, sampler

V, RULE = 6, RoundRule(rejection)
TABLE = random_table(np.random.default_rng(3), V)
OTHER = random_table(np.random.default_rng(4), V)


def never():
    return False


def pair(draft_table=TABLE, end=(), seed=1, **options):
    chain = sampler(SeededRng(seed), **options)
    target, target.draft = FakeModel(TABLE, end=end), FakeModel(draft_table, end=end)
    return target, drafting(target, target.draft, StochasticDraftSampler(chain), V), chain


def test_a_perfect_draft_gives_k_plus_1_tokens_in_one_pass():
    target, drafter, chain = pair(temperature=0.0)
    one = run_round(target, drafter, [1, 2], chain, 4, RULE)
    assert (len(one.tokens), one.n_drafted, one.n_accepted) == (5, 4, 4)
    assert target.passes == [(2 + 4, 5)]
    assert target.draft.passes == [(2, 1), (1, 1), (1, 1), (1, 1)]


def test_a_drafts_token_is_decoded_once_and_never_replayed():
    target, drafter, chain = pair(temperature=0.0)
    tokens = [1, 2]
    for _ in range(5):
        tokens += run_round(target, drafter, tokens, chain, 3, RULE).tokens
    given = [n for n, _ in target.draft.passes]
    # After a full acceptance the draft has not seen its own last token: two tokens in one pass, then singles.
    assert given == [2, 1, 1] + [2, 1, 1] * 4
    assert [n for n, _ in target.passes] == [2 + 3] + [1 + 3] * 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_like_the_target_is_always_kept_with_penalties_too(temperature):
    """Draft rows pass the same chain with the same history, so equal models have equal distributions."""
    target, drafter, chain = pair(
        temperature=temperature, repeat_penalty=1.8, presence_penalty=0.5, frequency_penalty=0.5
    )
    tokens = [1]
    for _ in range(8):
        one = run_round(target, drafter, tokens, chain, 5, RULE)
        assert one.n_accepted == one.n_drafted == 5
        tokens += one.tokens


def test_one_target_pass_in_each_round():
    target, drafter, chain = pair(draft_table=OTHER)
    tokens = [1]
    for i in range(20):
        tokens += run_round(target, drafter, tokens, chain, 2, RULE).tokens
        assert len(target.passes) == i + 1
        assert target.cached == tokens[:-1]
        assert target.draft.cached == tokens[: target.draft.n_past]
        assert len(tokens) - target.draft.n_past in (1, 2)


def test_k_0_is_plain_decoding_and_touches_no_draft():
    target, drafter, chain = pair()
    run_round(target, drafter, [1, 2], chain, 0, RULE)
    assert target.passes == [(2, 1)]
    assert target.draft.passes == []


def test_the_draft_stops_after_a_token_that_ends():
    for seed in range(9):
        _target, drafter, _chain = pair(end={0, 2, 4}, seed=seed)
        drafted = drafter.draft([1], 9).tokens
        ends = [i for i, token in enumerate(drafted) if token in (0, 2, 4)]
        assert ends == ([len(drafted) - 1] if len(drafted) < 9 else [])


def test_a_draft_proposes_only_tokens_the_target_has():
    wide = np.full((V + 3,) * 3, 0.0)
    wide[..., V:] = 50.0
    chain = sampler(SeededRng(1))
    drafter = drafting(FakeModel(TABLE), FakeModel(wide), StochasticDraftSampler(chain), V)
    assert all(
        max(drafter.draft([1], 4).tokens) < V and drafter.rollback(0) is None for _ in range(20)
    )


def test_a_draft_reads_tokens_it_lacks_as_its_last_one():
    small = FakeModel(TABLE[:4, :4, :4])
    drafter = drafting(FakeModel(TABLE), small, StochasticDraftSampler(sampler(SeededRng(1))), V)
    drafter.draft([5, 1], 1)
    assert small.cached == [3, 1]


def run(k, n_max, n_ctx=64, end=(), prompt=(1, 2), cancelled=never):
    chain = sampler(SeededRng(1))
    target = FakeModel(TABLE, n_ctx=n_ctx, end=end)
    drafter = drafting(
        target, FakeModel(OTHER, n_ctx=n_ctx, end=end), StochasticDraftSampler(chain), V
    )
    read_prompt(target, drafter, list(prompt), k, cancelled)
    return target, list(
        rounds(target, drafter, list(prompt), chain, k, RULE, n_max, target.is_end, cancelled)
    )


@pytest.mark.parametrize("k", [0, 1, 3, 8])
@pytest.mark.parametrize("n_max", [1, 2, 7])
def test_max_tokens_is_exact(k, n_max):
    _, done = run(k, n_max)
    assert sum(len(one.tokens) for one in done) == n_max


@pytest.mark.parametrize("k", [0, 1, 3, 8])
def test_a_full_context_ends_it(k):
    target, done = run(k, None, n_ctx=12)
    assert sum(len(one.tokens) for one in done) == 12 - 2
    assert target.n_past == 11


@pytest.mark.parametrize("k", [0, 3, 8])
def test_nothing_comes_after_an_end_token(k):
    target, done = run(k, 60, end={3})
    tokens = [t for one in done for t in one.tokens]
    assert tokens.count(3) == 1 and tokens[-1] == 3
    assert done[-1].ended and not any(one.ended for one in done[:-1])
    assert target.cached == [1, 2, *tokens][:-1]


def test_cancel_before_the_first_round():
    target, done = run(3, 9, cancelled=lambda: True)
    assert done == [] and target.passes == []


def test_a_prompt_of_one_token():
    assert sum(len(one.tokens) for one in run(2, 4, prompt=[1])[1]) == 4


def test_a_long_prompt_is_read_in_parts_and_can_be_cancelled_between_them():
    looks = iter([False, True])
    target = FakeModel(TABLE, n_ctx=4000)
    read_prompt(target, NoDrafter(), [1] * 2000, 0, lambda: next(looks))
    assert target.n_past == 32


def test_a_second_prompt_reads_only_what_is_new():
    target, drafter, _chain = pair()
    for prompt in ([1, 2, 3, 4], [1, 2, 4, 4, 3], [2, 2], [2, 2, 1], [2, 2]):
        read_prompt(target, drafter, prompt, 2, never)
        assert target.cached == prompt[:-1] == target.draft.cached
    target.read_tokens.clear()
    read_prompt(target, drafter, [2, 1, 3, 1], 2, never)
    assert target.read_tokens == [[1, 3]]
    read_prompt(target, drafter, [2, 1, 3, 2], 2, never)
    assert target.read_tokens == [[1, 3]]


def test_a_draft_too_reads_only_what_is_new_and_nothing_where_it_is_not_asked():
    target, drafter, _chain = pair()
    draft = target.draft
    for prompt, read in (
        ([2, 1, 3, 1], [[2, 1, 3]]),
        ([2, 1, 3, 2], []),
        ([2, 1, 4, 5, 1], [[4, 5]]),
    ):
        draft.read_tokens.clear()
        read_prompt(target, drafter, prompt, 2, never)
        assert draft.read_tokens == read
    draft.read_tokens.clear()
    read_prompt(target, drafter, [1, 1, 1], 0, never)
    assert draft.read_tokens == []


def test_as_much_is_drafted_as_there_is_room_for():
    """A draft that is always right brings the last four tokens in one round, and the one after k tokens in another."""
    for n_max, drafted in ((4, [3]), (5, [3, 0]), (6, [3, 1])):
        target, drafter, chain = pair(temperature=0.0)
        done = list(rounds(target, drafter, [1, 2], chain, 3, RULE, n_max, target.is_end, never))
        assert [one.n_drafted for one in done] == drafted


def test_a_draft_reads_each_token_once_over_many_rounds():
    target, drafter, chain = pair(temperature=0.0)
    assert len(list(rounds(target, drafter, [1, 2], chain, 3, RULE, 20, target.is_end, never))) == 5
    assert target.draft.passes == [(2, 1), (1, 1), (1, 1)] + [(2, 1), (1, 1), (1, 1)] * 4


@pytest.mark.parametrize("seed", range(6))
def test_after_an_end_the_draft_caches_only_emitted_tokens(seed):
    target, drafter, chain = pair(end={3}, seed=seed)
    said = [1, 2]
    for one in rounds(target, drafter, [1, 2], chain, 5, RULE, 60, target.is_end, never):
        said += one.tokens
        assert target.draft.cached == said[: target.draft.n_past]
        assert len(said) - target.draft.n_past in (1, 2)
        assert target.cached == said[:-1]


def test_a_round_ends_with_the_first_token_that_is_an_end():
    def round_until(is_end):
        target, drafter, chain = pair(temperature=0.0, logprobs=0)
        return run_round(target, drafter, [1, 2], chain, 3, RoundRule(coupled, 1e3), is_end)

    whole = round_until(lambda _: False)
    assert (len(whole.tokens), whole.n_accepted, whole.near_ties) == (4, 3, (0, 1, 2, 3))
    for token in whole.tokens:
        n = whole.tokens.index(token) + 1
        assert round_until(token.__eq__) == Round(
            whole.tokens[:n], 3, min(n, 3), True, (0, 1, 2, 3)[:n], False, whole.logprobs[:n], True
        )
    assert Round([4], 0, 0) == Round([4], 0, 0, False, (), False, ())


def test_near_ties_are_looked_for_only_in_passes_over_more_than_one_token():
    assert (RoundRule().accept, RoundRule().noise_of(9), RoundRule().strict) == (
        coupled,
        0.0,
        False,
    )
    assert [RoundRule(noise=0.5).noise_of(n) for n in (1, 2, 3)] == [0.0, 0.5, 0.5]


def test_strict_decides_the_first_near_tie_again_and_keeps_nothing_behind_it():
    """Here every choice counts as a near tie."""
    target, drafter, chain = pair(temperature=0.0, logprobs=0)
    one = run_round(target, drafter, [1, 2], chain, 4, RoundRule(coupled, 1e3, strict=True))
    assert one == Round(
        [int(TABLE[1, 2].argmax())], 4, 0, False, (0,), True, one.logprobs, wide=True
    )
    assert [logprob.token for logprob in one.logprobs] == one.tokens
    assert (target.passes, target.cached) == ([(2 + 4, 5), (1, 1)], [1, 2])


def test_log_probabilities_are_those_of_the_row_before_penalties_and_bias():
    options = {"repeat_penalty": 3.0, "presence_penalty": 2.0, "logit_bias": {1: 4.0, 2: -4.0}}
    target, drafter, chain = pair(logprobs=V, **options)
    tokens = [1, 2]
    for _ in range(6):
        one = run_round(target, drafter, tokens, chain, 3, RULE)
        for found in one.logprobs:
            row = TABLE[tokens[-2], tokens[-1]]
            logprobs = row - np.log(np.exp(row).sum())
            assert (found.token, found.logprob) == (
                found.token,
                pytest.approx(logprobs[found.token]),
            )
            assert dict(found.top) == pytest.approx(dict(enumerate(logprobs)))
            tokens.append(found.token)


@pytest.mark.parametrize("n_cached", [0, 1, 3, 4, 5, 7])
def test_a_repeated_decision_uses_a_pass_over_one_token(n_cached):
    """For any cache: recurrent layers may have dropped more tokens, and a rejected draft leaves too many."""
    history = [1, 2, 3, 4, 5]
    target, _, chain = pair()
    target.cached = [*history, 5, 5][:n_cached]
    alone = row_alone(target, history, chain)
    assert (target.cached, target.passes) == (history, [(1, 1)])
    assert (alone.logits == TABLE[4, 5].astype(np.float32)).all()
    assert alone.history(0) == history


def test_a_model_without_rollback_reads_all_again_unless_the_prompt_continues():
    target = FakeModel(TABLE)

    def rollback(to):
        if 0 < to < target.n_past:
            raise RollbackError("fake", target.n_past, to)
        del target.cached[to:]

    target.rollback = rollback
    for prompt, read in (([1, 2, 3], [[1, 2]]), ([1, 2, 4, 1], [[4]]), ([1, 3, 1], [[1, 3]])):
        target.read_tokens.clear()
        read_prompt(target, NoDrafter(), prompt, 0, never)
        assert (target.cached, target.read_tokens) == (prompt[:-1], read)


def test_no_drafter_drafts_nothing():
    drafter = NoDrafter()
    drafter.read([1], never)
    drafter.keep([1])
    drafter.rollback(0)
    assert drafter.draft([1], 5) == Draft([], [])
