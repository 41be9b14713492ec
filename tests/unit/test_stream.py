"""What a stream reports of time, by a clock that moves only where the test says so."""

from dataclasses import replace

import numpy as np
import pytest

from gguf_spec import Sampling, Speculation, _controller, _stream
from tests.fakes import Clock, FakeModel, fake_llm, random_table

V = 6
TABLES = [random_table(np.random.default_rng(seed), V) for seed in (5, 6)]
FREE = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=1, max_tokens=20)
PASS_S, DRAFT_S, TOKEN_S = 2.0, 0.25, 0.5


@pytest.fixture
def clock(monkeypatch):
    one = Clock()
    monkeypatch.setattr(_stream, "time", one)
    monkeypatch.setattr(_controller, "time", one)
    return one


def models(clock, n_ctx=200):
    return (
        FakeModel(TABLES[0], n_ctx, cost=lambda n, n_past: PASS_S, clock=clock),
        FakeModel(TABLES[1], n_ctx, cost=lambda n, n_past: DRAFT_S, clock=clock),
    )


def slow(clock):
    """A caller's function that takes a while for each token, inside the stream."""

    def on_token(token):
        clock.now += TOKEN_S

    return on_token


@pytest.mark.parametrize("n_prompt", [1, 40, 80])
@pytest.mark.parametrize("k", [0, 3])
def test_every_second_is_of_the_prompt_the_draft_the_target_or_the_rest(clock, k, n_prompt):
    target, draft = models(clock)
    with fake_llm(target, draft, Speculation(k, adaptive=False)) as llm:
        clock.now = 50.0
        stream = llm.stream_tokens([1] * n_prompt, FREE, on_token=slow(clock))
        begun = draft.busy_s, target.busy_s
        told = []
        for chunk in stream:
            told.append(stream.stats)
            clock.now += 1000.0  # what the reader does with it is not the stream's time
        s = stream.stats
        read_s = PASS_S * len(target.read_tokens) + DRAFT_S * len(draft.read_tokens)
        assert s.prompt_s == pytest.approx(read_s)
        assert s.verify_s == pytest.approx(PASS_S * s.rounds) == pytest.approx(target.busy_s - begun[1] - PASS_S * len(target.read_tokens))
        assert s.draft_s == pytest.approx(draft.busy_s - begun[0] - DRAFT_S * len(draft.read_tokens))
        assert (s.draft_s > 0) == bool(k)
        assert s.other_s == pytest.approx(TOKEN_S * 20)
        assert s.total_s == pytest.approx(s.prompt_s + s.draft_s + s.verify_s + s.other_s)
        assert [one.ttft_s for one in told] == [told[0].total_s] * len(told), "the time of the first text stays"
        assert all(a.total_s < b.total_s for a, b in zip(told, told[1:], strict=False))
        assert s.rounds == len(told) and s.n_generated == len(chunk.tokens) + told[-2].n_generated


def test_what_is_read_again_behind_a_shift_counts_as_generation(clock):
    target, _ = models(clock, n_ctx=24)
    with fake_llm(target, None, Speculation(0)) as llm:
        stream = llm.stream_tokens([1] * 4, replace(FREE, overflow="shift", max_tokens=60))
        list(stream)
        first, *again = target.read_tokens
        assert again
        assert stream.stats.prompt_s == PASS_S
        assert stream.stats.verify_s == pytest.approx(PASS_S * (60 + len(again)))
        assert (len(first), stream.stats.total_s) == (3, pytest.approx(PASS_S * (61 + len(again))))


def test_the_forecast_is_that_of_the_controller_and_nothing_without_one(clock):
    target, draft = models(clock)
    with fake_llm(target, draft, Speculation(3, adaptive=False)) as llm:
        s = llm.generate("ab", FREE).stats
        assert 0 < s.forecast_s and 0 < s.plain_s
        assert s.drafters["model"][0] == s.n_drafted
        plain = llm.generate("ab", FREE, speculation=Speculation(0)).stats
        assert (plain.forecast_s, plain.plain_s, plain.drafters, plain.draft_s) == (0.0, 0.0, {}, 0.0)


def test_the_length_of_an_answer_is_learned_where_something_drafts(clock):
    target, draft = models(clock)
    with fake_llm(target, draft, Speculation(3, adaptive=False)) as llm:
        known = llm._pair.experiences["sampled"]
        before = known.answer
        llm.generate("ab", FREE)
        assert known.answer == pytest.approx(before + (20 - before) / 5)
