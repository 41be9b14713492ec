"""Any order of prompts, rounds, cancels and closings leaves the caches as they must be, and changes no text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gguf_spec._llm import LLM
from gguf_spec._types import Sampling, Speculation
from tests.fakes import FakeModel, random_table

V = 5
TABLES = [random_table(np.random.default_rng(seed), V) for seed in (1, 2)]
N_CTX = 24


def make_llm():
    return LLM("fake", FakeModel(TABLES[0], N_CTX, end={4}), FakeModel(TABLES[1], N_CTX, end={4}), prompt="text", speculation=Speculation())


chains = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 2]),
    top_p=st.sampled_from([1.0, 0.8]),
    repeat_penalty=st.sampled_from([1.0, 1.5]),
    seed=st.integers(0, 50),
    max_tokens=st.sampled_from([1, 2, 5, None]),
    stop=st.sampled_from([(), ("ab",), ("c", "dd")]),
)
prompts = st.lists(st.integers(0, 3), min_size=1, max_size=8)


class Requests(RuleBasedStateMachine):
    """One LLM, many requests; each is compared with the same request to a fresh LLM."""

    def __init__(self):
        super().__init__()
        self.llm = make_llm()
        self.stream = None
        self.emitted = []

    @precondition(lambda self: self.stream is None)
    @rule(prompt=prompts, sampling=chains, k=st.integers(0, 6))
    def open(self, prompt, sampling, k):
        text = "".join(chr(ord("a") + t) for t in prompt)
        self.request = (text, sampling, Speculation(k))
        self.prompt, self.emitted, self.chunks = prompt, [], []
        self.stream = self.llm.stream(text, sampling, speculation=Speculation(k))

    @precondition(lambda self: self.stream is not None)
    @rule()
    def step(self):
        chunk = next(self.stream, None)
        if chunk is None:
            self.check_result()
            self.stream = None
            return
        self.chunks.append(chunk)
        self.emitted += chunk.tokens
        assert chunk.n_accepted <= chunk.n_drafted <= self.request[2].k
        assert len(chunk.tokens) <= chunk.n_drafted + 1

    @precondition(lambda self: self.stream is not None)
    @rule()
    def cancel(self):
        self.stream.cancel()
        rest = list(self.stream)
        done = any(c.finish_reason in ("stop", "length") for c in self.chunks)
        assert done or [c.finish_reason for c in rest] == ["cancelled"]
        self.stream = None

    @precondition(lambda self: self.stream is not None)
    @rule()
    def close(self):
        self.stream.close()
        assert next(self.stream, None) is None
        self.stream = None

    @precondition(lambda self: self.stream is not None)
    @rule()
    def drain(self):
        self.chunks += list(self.stream)
        self.check_result()
        self.stream = None

    def check_result(self):
        result = self.stream.result
        text, sampling, speculation = self.request
        assert result.finish_reason in ("stop", "length")
        assert "".join(c.text for c in self.chunks) == result.text
        with make_llm() as fresh:
            again = fresh.generate(text, sampling, speculation=speculation)
        assert (again.text, again.tokens, again.finish_reason) == (result.text, result.tokens, result.finish_reason)
        assert not any(s in result.text for s in sampling.stop)
        assert len(result.tokens) <= (sampling.max_tokens or N_CTX)
        assert len(self.prompt) + len(result.tokens) <= N_CTX

    @invariant()
    def the_caches_hold_what_was_emitted(self):
        target, draft = self.llm._target.cached, self.llm._draft.cached
        if self.stream is None or not self.chunks:
            return
        said = self.prompt + self.emitted
        # A burst may have been cut by a stop string or an end token: the caches then hold at most what was emitted before the cut, and the end.
        n = min(len(target), len(said))
        assert target[:n] == said[:n]
        if self.chunks[-1].finish_reason is None:
            assert target == said[:-1]
            if self.request[2].k:  # without a draft its cache lies idle, and is emptied before it is used again
                assert len(draft) <= len(target)
                assert draft == said[: len(draft)]


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


def test_the_state_machine_catches_a_cache_that_is_not_cut(monkeypatch):
    """The same invariant over an engine that forgets to roll the draft back."""
    monkeypatch.setattr("gguf_spec._drafters.ModelDrafter.rollback", lambda self, to: None)
    with pytest.raises(AssertionError):
        for seed in range(20):
            machine = Requests()
            machine.open(prompt=[1, 2], sampling=Sampling(temperature=1.5, top_k=0, top_p=1.0, seed=seed), k=4)
            while machine.stream is not None:
                machine.step()
                machine.the_caches_hold_what_was_emitted()


@settings(deadline=None)
@given(prompts, chains, st.integers(1, 6))
def test_greedy_is_the_same_with_any_draft(prompt, sampling, k):
    greedy = Sampling(**{**sampling.__dict__, "temperature": 0.0})
    text = "".join(chr(ord("a") + t) for t in prompt)
    with make_llm() as llm:
        plain = llm.generate(text, greedy, speculation=Speculation(0))
        burst = llm.generate(text, greedy, speculation=Speculation(k))
    assert (plain.text, plain.tokens, plain.finish_reason) == (burst.text, burst.tokens, burst.finish_reason)
    assert burst.stats.rounds <= plain.stats.rounds
