"""Any order of prompts, rounds, cancels and closings leaves valid caches and changes no text."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gguf_spec.options import ACCEPT, DRAFTERS, HEADS, Sampling, Speculation
from tests.support.fakes import AS_DRAFT, AS_TARGET, FakeModel, fake_llm, random_table

V = 5
TABLES = [random_table(np.random.default_rng(seed), V) for seed in (1, 2)]
N_CTX = 24


def make_llm(draft=TABLES[1], target=TABLES[0], n_ctx=N_CTX):
    """A pair for which drafting pays, as far as the costs go."""
    draft = None if draft is None else FakeModel(draft, n_ctx, end={4}, cost=AS_DRAFT)
    return fake_llm(FakeModel(target, n_ctx, end={4}, cost=AS_TARGET), draft, Speculation())


chains = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 2]),
    top_p=st.sampled_from([1.0, 0.8]),
    repeat_penalty=st.sampled_from([1.0, 1.5]),
    min_p=st.sampled_from([0.0, 0.2]),
    typical_p=st.sampled_from([1.0, 0.7]),
    top_n_sigma=st.sampled_from([0.0, 1.2]),
    xtc_probability=st.sampled_from([0.0, 0.5]),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, 0, 3]),
    seed=st.integers(0, 50),
    max_tokens=st.sampled_from([1, 2, 5, None]),
    stop=st.sampled_from([(), ("ab",), ("c", "dd")]),
)
prompts = st.lists(st.integers(0, 3), min_size=1, max_size=8)
ways = st.builds(
    Speculation,
    k=st.integers(0, 6),
    strict=st.booleans(),
    drafter=st.sampled_from(sorted({*DRAFTERS} - {*HEADS})),
    adaptive=st.booleans(),
)
drawing_ways = st.builds(
    Speculation,
    k=st.integers(0, 6),
    accept=st.sampled_from(ACCEPT[1:]),
    drafter=st.sampled_from(sorted({*DRAFTERS} - {*HEADS})),
    adaptive=st.booleans(),
)


def is_reproducible(speculation):
    """Return whether only the seed decides the text; else statistics and clock do too."""
    return (
        speculation.accept == "coupled"
        or not speculation.k
        or (not speculation.adaptive and speculation.drafter in ("auto", "model"))
    )


class Requests(RuleBasedStateMachine):
    """One LLM, many requests; each is compared with the same request to a fresh LLM."""

    def __init__(self):
        super().__init__()
        self.llm = make_llm()
        self.stream = None
        self.emitted = []

    @precondition(lambda self: self.stream is None)
    @rule(prompt=prompts, sampling=chains, speculation=ways | drawing_ways)
    def open(self, prompt, sampling, speculation):
        text = "".join(chr(ord("a") + t) for t in prompt)
        self.request = (text, sampling, speculation)
        self.prompt, self.emitted, self.chunks = prompt, [], []
        self.stream = self.llm.stream(text, sampling, speculation=self.request[2])

    @precondition(lambda self: self.stream is not None)
    @rule()
    def step(self):
        chunk = next(self.stream, None)
        if (
            chunk is None
        ):  # it stays open: the clock decides after how many chunks, and must not decide which rules there are
            self.check_result()
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
        assert result.logprobs == tuple(one for c in self.chunks for one in c.logprobs)
        if is_reproducible(speculation):
            with make_llm() as fresh:
                again = fresh.generate(text, sampling, speculation=speculation)
            assert (again.text, again.tokens, again.finish_reason) == (
                result.text,
                result.tokens,
                result.finish_reason,
            )
            assert again.logprobs == result.logprobs
        assert [one.token for one in result.logprobs] == (
            [] if sampling.logprobs is None else list(result.tokens)
        )
        assert not any(s in result.text for s in sampling.stop)
        assert len(result.tokens) <= (sampling.max_tokens or N_CTX)
        assert len(self.prompt) + len(result.tokens) <= N_CTX

    @invariant()
    def the_caches_hold_what_was_emitted(self):
        target, draft = self.llm.engine.target.cached, self.llm.engine.pair.draft.cached
        if self.stream is None or not self.chunks:
            return
        said = self.prompt + self.emitted
        # A burst may have been cut by a stop string or an end token: the caches then hold at most what was emitted before the cut, and the end.
        n = min(len(target), len(said))
        assert target[:n] == said[:n]
        if self.chunks[-1].finish_reason is None:
            assert target == said[:-1]
            if (
                self.request[2].k and self.request[2].drafter != "ngram"
            ):  # else its cache lies idle, and is emptied before it is used again
                assert len(draft) <= len(said) - 1
                assert draft == said[: len(draft)]


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


def test_the_state_machine_catches_a_cache_that_is_not_cut(monkeypatch):
    """The same invariant for an engine that does not roll back the draft."""
    monkeypatch.setattr(
        "gguf_spec.speculative.drafters.ModelDrafter.rollback", lambda self, to: None
    )
    with pytest.raises(AssertionError):
        for seed in range(20):
            machine = Requests()
            sampling = Sampling(temperature=1.5, top_k=0, top_p=1.0, seed=seed)
            machine.open(
                prompt=[1, 2], sampling=sampling, speculation=Speculation(4, adaptive=False)
            )
            while not machine.chunks or machine.chunks[-1].finish_reason is None:
                machine.step()
                machine.the_caches_hold_what_was_emitted()


@pytest.mark.few(3)
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("drafter", sorted({*DRAFTERS} - {*HEADS}))
def test_all_these_ways_do_draft_and_tokens_of_each_are_accepted(drafter, adaptive):
    """Without accepted drafts these tests would show nothing."""
    names = set()
    with make_llm(TABLES[0] + 0.4 * TABLES[1], n_ctx=200) as llm:
        llm.engine.pair.clock = lambda: 0.0  # how busy this machine is must not decide
        for seed in range(6):
            sampling = Sampling(
                temperature=0.7, top_k=0, top_p=1.0, seed=seed, ignore_eos=True, max_tokens=100
            )
            with llm.stream(
                "ab",
                sampling,
                speculation=Speculation(6, drafter=drafter, adaptive=adaptive),
            ) as stream:
                for _ in stream:
                    pass
            assert stream.stats.n_accepted > 20
            names |= {name for name, (_, accepted) in stream.stats.drafters.items() if accepted}
    both = {"model", "ngram"}
    if (drafter, adaptive) == (
        "hybrid",
        False,
    ):  # there the text drafts only where it is surer than the model is hoped to be
        assert "model" in names <= {*both, "retry"}
        return
    assert (
        names - {"retry"}
        == {
            "model": {"model"},
            "ngram": {"ngram"},
            "hybrid": both,
            "auto": both if adaptive else {"model"},
        }[drafter]
    )


def letters(prompt):
    return "".join(chr(ord("a") + t) for t in prompt)


drafts = st.sampled_from(
    [None, TABLES[0], TABLES[1], random_table(np.random.default_rng(3), V, holes=0.4)]
)


@pytest.mark.full
@settings(deadline=None, max_examples=300)
@given(prompts, chains, drafts, ways, st.integers(0, 12))
def test_the_seed_alone_decides_the_text(prompt, sampling, draft, speculation, cut):
    """For any draft and drafter, also cancelled and continued, the text and log-probabilities are those of plain decoding."""
    if draft is None and speculation.drafter in ("model", "hybrid"):
        speculation = replace(speculation, drafter="auto")
    with make_llm(None) as llm:
        plain = llm.generate(letters(prompt), sampling, speculation=Speculation(0))
    with make_llm(draft) as llm:
        burst = llm.generate(letters(prompt), sampling, speculation=speculation)
        assert (burst.text, burst.tokens, burst.finish_reason) == (
            plain.text,
            plain.tokens,
            plain.finish_reason,
        )
        assert burst.logprobs == plain.logprobs
        assert burst.stats.rounds <= plain.stats.rounds
        said = []
        free = Sampling(**{**sampling.__dict__, "stop": ()})

        def enough(token):
            said.append(token)
            return len(said) > cut

        if not sampling.stop:
            whole = llm.generate_tokens(prompt, free, speculation=speculation, on_token=enough)
            if (
                whole.finish_reason == "cancelled"
                and len(said) < (sampling.max_tokens or 99)
                and len(prompt) + len(said) < N_CTX
            ):
                left = None if sampling.max_tokens is None else sampling.max_tokens - len(said)
                rest = llm.generate_tokens(
                    [*prompt, *said],
                    Sampling(**{**free.__dict__, "max_tokens": left}),
                    speculation=speculation,
                )
                assert (*said, *rest.tokens) == plain.tokens


def test_rules_that_draw_again_do_not_give_the_same_text():
    """The test above must fail with them: a negative control."""
    sampling = Sampling(temperature=1.5, top_k=0, top_p=1.0, seed=3, max_tokens=12)
    with make_llm() as llm:
        for accept in ("rejection", "block"):
            texts = {
                llm.generate(
                    "ab", sampling, speculation=Speculation(k, accept, adaptive=False)
                ).text
                for k in (0, 1, 3, 6)
            }
            assert len(texts) > 1


@pytest.mark.full
def test_a_draft_with_low_confidence_is_read_with_a_lower_temperature():
    """The draft is the target at more than twice the temperature; with the same noise it gives the same text at its own."""
    sampling = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=1, max_tokens=None)
    table = random_table(np.random.default_rng(5), V) * 2

    def acceptance(scale):
        with fake_llm(
            FakeModel(table, 3000), FakeModel(table * scale, 3000), Speculation(1, adaptive=False)
        ) as llm:
            return llm.generate("ab", sampling).stats.acceptance

    assert acceptance(0.45) > 0.98
    assert acceptance(1.05) > 0.98
    assert acceptance(-1.0) < 0.5
