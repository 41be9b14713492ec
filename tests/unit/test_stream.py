"""Times of a stream by a simulated clock; seeds, parts of a long text, and text that was held back."""

import itertools
import sys
from dataclasses import FrozenInstanceError, asdict, replace

import numpy as np
import pytest

from gguf_spec import Sampling, Speculation
from gguf_spec.runtime import generation
from gguf_spec.runtime.generation import Request
from gguf_spec.sampling.chain import CompatSampling
from gguf_spec.speculative.profile import Profile
from tests.support import children
from tests.support.fakes import Clock, FakeModel, fake_llm, random_table

V = 6
TABLES = [random_table(np.random.default_rng(seed), V) for seed in (5, 6)]
FREE = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=1, max_tokens=20)
PASS_S, DRAFT_S, TOKEN_S = 2.0, 0.25, 0.5


@pytest.fixture
def clock():
    return Clock()


def models(clock, n_ctx=200):
    return (
        FakeModel(TABLES[0], n_ctx, cost=lambda n, n_past: PASS_S, clock=clock),
        FakeModel(TABLES[1], n_ctx, cost=lambda n, n_past: DRAFT_S, clock=clock),
    )


@pytest.mark.parametrize("n_prompt", [1, 40, 80])
@pytest.mark.parametrize("k", [0, 3])
def test_every_second_is_of_the_prompt_the_draft_the_target_or_the_rest(clock, k, n_prompt):
    target, draft = models(clock)
    letter = target.piece

    def piece(token):
        clock.now += TOKEN_S  # the stream's own work takes a while too
        return letter(token)

    target.piece = piece
    with fake_llm(target, draft, Speculation(k, adaptive=False), clock=clock) as llm:
        clock.now = 50.0
        stream = llm.stream_tokens([1] * n_prompt, FREE)
        begun = draft.busy_s, target.busy_s
        told = []
        for _ in stream:
            told.append(stream.stats)
            clock.now += 1000.0  # what the reader does with it is not the stream's time
        s = stream.stats
        read_s = PASS_S * len(target.read_tokens) + DRAFT_S * len(draft.read_tokens)
        assert s.prompt_s == pytest.approx(read_s)
        assert (
            s.verify_s
            == pytest.approx(PASS_S * s.rounds)
            == pytest.approx(target.busy_s - begun[1] - PASS_S * len(target.read_tokens))
        )
        assert s.draft_s == pytest.approx(
            draft.busy_s - begun[0] - DRAFT_S * len(draft.read_tokens)
        )
        assert (s.draft_s > 0) == bool(k)
        assert s.other_s == pytest.approx(TOKEN_S * 20)
        assert s.total_s == pytest.approx(s.prompt_s + s.draft_s + s.verify_s + s.other_s)
        assert [one.ttft_s for one in told] == [told[0].total_s] * len(told), (
            "the time of the first text stays"
        )
        assert all(a.total_s < b.total_s for a, b in itertools.pairwise(told))
        assert [one.rounds for one in told] == list(range(1, len(told) + 1))


def test_what_is_read_again_behind_a_shift_counts_as_generation(clock):
    target, _ = models(clock, n_ctx=24)
    with fake_llm(target, None, Speculation(0), clock=clock) as llm:
        stream = llm.stream_tokens([1] * 4, replace(FREE, overflow="shift", max_tokens=60))
        list(stream)
        first, *again = target.read_tokens
        assert again
        assert stream.stats.prompt_s == PASS_S
        assert stream.stats.verify_s == pytest.approx(PASS_S * (60 + len(again)))
        assert (len(first), stream.stats.total_s) == (3, pytest.approx(PASS_S * (61 + len(again))))


def test_the_forecast_is_that_of_the_controller_and_nothing_without_one(clock):
    target, draft = models(clock)
    with fake_llm(target, draft, Speculation(3, adaptive=False), clock=clock) as llm:
        s = llm.generate("ab", FREE).stats
        assert min(s.forecast_s, s.plain_s) > 0
        assert s.drafters["model"][0] == s.n_drafted
        plain = llm.generate("ab", FREE, speculation=Speculation(0)).stats
        assert (plain.forecast_s, plain.plain_s, plain.drafters, plain.draft_s) == (
            0.0,
            0.0,
            {},
            0.0,
        )


def test_the_length_of_an_answer_is_learned_where_something_drafts(clock):
    target, draft = models(clock)
    with fake_llm(target, draft, Speculation(3, adaptive=False), clock=clock) as llm:
        known = llm.engine.pair.experiences["sampled"]
        llm.generate("ab", FREE)
        assert known.answer == 128, "an answer that max_tokens cut off may be as long as usual"
        known.answer = 4.0
        llm.generate("ab", FREE)
        assert known.answer == pytest.approx(4 + (20 - 4) / 5)


def test_each_part_of_a_text_has_its_seed_and_the_later_half_of_the_answer(monkeypatch):
    """The text of a seed must not change between versions."""
    seeds, begins, seed = [], [], 2**64 - 5
    rng, read = generation.SeededRng, generation.engine.read_prompt
    monkeypatch.setattr(generation, "SeededRng", lambda seed: seeds.append(seed) or rng(seed))
    monkeypatch.setattr(
        generation.engine,
        "read_prompt",
        lambda *args: begins.append(list(args[2])) or read(*args),
    )
    with fake_llm(FakeModel(TABLES[0], 24), None, Speculation(0)) as llm:
        tokens = llm.generate_tokens(
            [1] * 4, replace(FREE, seed=seed, overflow="shift", max_tokens=45)
        ).tokens
    assert begins == [[1] * 4, *([1] * 4 + list(tokens[at - 10 : at]) for at in (20, 30, 40))]
    assert seeds == [(seed + part * 0x9E3779B97F4A7C15) % 2**64 for part in range(4)]


def test_a_seed_that_is_drawn_has_32_bits(monkeypatch):
    monkeypatch.setattr(generation.secrets, "randbits", lambda n_bits: n_bits)
    with fake_llm(FakeModel(TABLES[0]), None, Speculation(0)) as llm:
        assert llm.generate("ab", replace(FREE, seed=None)).seed == 32


@pytest.mark.parametrize("accept", ["coupled", "rejection", "block"])
def test_near_ties_are_those_of_the_coupled_rule(monkeypatch, accept):
    """Rules that resample do not use the noise, so they have no near ties."""
    monkeypatch.setattr(Profile, "logit_noise", lambda self, *_: 1.0)
    noises = []
    monkeypatch.setattr(
        "gguf_spec.speculative.acceptance.is_near_tie",
        lambda *args: noises.append(args[-1]) or args[-1] > 0,
    )
    with fake_llm(
        FakeModel(TABLES[0]), FakeModel(TABLES[1]), Speculation(3, accept, adaptive=False)
    ) as llm:
        stats = llm.generate("ab", FREE).stats
    assert {1.0} == {*noises} - {0.0} if accept == "coupled" else {*noises} == {0.0}
    assert (stats.n_near_ties > 0) == (accept == "coupled")


def test_text_that_was_held_back_is_not_shown_as_drafted():
    with fake_llm(
        FakeModel(TABLES[0]), FakeModel(TABLES[0]), Speculation(3, adaptive=False)
    ) as llm:
        plain = llm.generate("ab", replace(FREE, temperature=0.0)).text
        with llm.stream("ab", replace(FREE, temperature=0.0, stop=(plain[-2:] + "!",))) as stream:
            *_, last = stream
    assert stream.result.text == plain
    assert last.accepted_text[-1] == (plain[-2:], False)


def test_a_running_request_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Request([1], FREE, Speculation()).prefill = "x"


def test_a_text_that_shifts_can_be_cancelled():
    with fake_llm(FakeModel(TABLES[0], 24), None, Speculation(0)) as llm:
        stream = llm.stream_tokens([1] * 4, replace(FREE, overflow="shift", max_tokens=None))
        for _ in stream:
            if stream.stats.n_generated == 45:
                stream.cancel()
    assert (stream.result.finish_reason, len(stream.result.tokens)) == ("cancelled", 45)


@pytest.mark.parametrize(
    ("sampling", "shown"), [(FREE, "\ufffd" * 20), (CompatSampling(**asdict(FREE)), "")]
)
def test_bytes_that_are_no_text_are_shown_as_such_and_left_out_as_llama_cpp_python_does(
    sampling, shown
):
    target = FakeModel(TABLES[0])
    target.piece = lambda token: b"\xff"
    with fake_llm(target, None, Speculation(0)) as llm:
        assert llm.generate("ab", sampling).text == shown


CLOSED_WHILE_IT_IS_READ = """
import threading, time
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from gguf_spec.runtime.stream import Stream

words = SimpleQueue()

def read():
    while True:  # as a request that waits in a queue
        try:
            one = words.get(timeout=60)
        except Empty:
            continue
        if one == "end":
            return
        if one == "yield":
            yield

stream = Stream(SimpleNamespace(cancelled=False), read(), lambda: None, None)
reader = threading.Thread(target=lambda: next(stream, None))
reader.start()
for _ in range(400):
    time.sleep(0.001)
    stream.close()
    words.put('go on')
words.put('end')
reader.join()
"""


@pytest.mark.full
def test_a_stream_that_another_thread_reads_is_closed_without_a_crash():
    """Python 3.11 crashed in `generator.close`, where a counter in the code of the generator has certain values."""
    children.run([sys.executable, "-c", CLOSED_WHILE_IT_IS_READ], check=True)
