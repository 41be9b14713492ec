"""Any order of requests, cancels, closings, sessions and lost streams on real caches: kept prefixes, slots and texts stay right."""

import contextlib
from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from llama_cpp import llama_cpp as C

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import BusyError
from gguf_spec.runtime.prefix_cache import _key
from tests.support import tiny

# Beginnings that texts share, one of them that of another; the least that is copied are 64 tokens.
HEADS = ("abc ab " * 12, "abc ab " * 12 + "the of and in " * 6, "re er on the " * 8, "ab")
WAYS = (
    Speculation(0),
    Speculation(),
    Speculation(3, adaptive=False),
    Speculation(4, drafter="ngram"),
)
N_CTX = 256
texts = st.builds(
    lambda head, end: HEADS[head] + end,
    st.integers(0, len(HEADS) - 1),
    st.text("abcdef ", max_size=6),
)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.8]),
    seed=st.integers(0, 3),
    max_tokens=st.sampled_from([0, 1, 7, 30]),
    ignore_eos=st.just(True),
    stop=st.sampled_from([(), ("a",)]),
)


class Requests(RuleBasedStateMachine):
    """One LLM with N slots and a small memory for prefixes; each text is that of an LLM which keeps nothing."""

    def __init__(self, files, n, reference, known, folder):
        super().__init__()
        self.llm = gguf_spec.load(
            *files, parallel=n, threads=1, n_ctx=N_CTX, extra_bufts=False, prefix_memory="100kB"
        )
        self.n, self.reference, self.known = n, reference, known
        self.session = folder / f"{n}.session"
        self.saved = None
        self.open = []  # (stream, what it should say)

    def right(self, prompt, sampling):
        """Return the tokens of a request alone, from empty caches."""
        key = prompt, repr(sampling)
        if key not in self.known:
            self.reference.engine.target.forget()
            self.known[key] = self.reference.generate(prompt, sampling, speculation=WAYS[0]).tokens
        return self.known[key]

    @precondition(lambda self: len(self.open) < self.n)
    @rule(prompt=texts, sampling=samplings, way=st.sampled_from(WAYS), n=st.integers(0, 3))
    def begin(self, prompt, sampling, way, n):
        stream = self.llm.stream(prompt, sampling, speculation=way)
        said = [token for _, chunk in zip(range(n), stream, strict=False) for token in chunk.tokens]
        self.open.append((stream, self.right(prompt, sampling), said))

    @precondition(lambda self: self.open)
    @rule(i=st.integers(0, 9))
    def read(self, i):
        stream, right, said = self.open.pop(i % len(self.open))
        said += [token for chunk in stream for token in chunk.tokens]
        assert tuple(said) == stream.result.tokens == right

    @precondition(lambda self: self.open)
    @rule(i=st.integers(0, 9), how=st.sampled_from(["cancel", "close", "drop"]))
    def end(self, i, how):
        stream, right, said = self.open.pop(i % len(self.open))
        assert tuple(said) == right[: len(said)]
        if how == "cancel":
            stream.cancel()
            for chunk in stream:
                said += chunk.tokens
            assert tuple(said) == right[: len(said)]
        elif how == "close":
            stream.close()
            assert next(stream, None) is None

    @precondition(lambda self: len(self.open) == self.n)
    @rule(prompt=texts, sampling=samplings)
    def one_too_many(self, prompt, sampling):
        """It would wait for its own thread, unless one of the open streams has ended unseen."""
        with contextlib.suppress(BusyError):
            found = self.llm.generate(prompt, sampling)
            assert found.tokens == self.right(prompt, sampling)

    @precondition(lambda self: not self.open)
    @rule(some=st.lists(st.tuples(texts, samplings), min_size=1, max_size=5))
    def together(self, some):
        found = self.llm.generate_many(*map(list, zip(*some, strict=True)))
        assert [one.tokens for one in found] == [self.right(*one) for one in some]

    @precondition(lambda self: not self.open)
    @rule()
    def save(self):
        self.saved = {"n": len(self.known)}
        self.llm.save_session(self.session, self.saved)

    @precondition(lambda self: not self.open and self.saved)
    @rule()
    def restore(self):
        data, why = self.llm.restore_session(self.session)
        assert data.items() >= self.saved.items()
        assert why in ("", "it was saved without caches")

    @precondition(lambda self: not self.open)
    @invariant()
    def all_is_as_listed(self):
        """Looked at with the turn: requests whose streams were dropped may still run."""
        self.llm.engine.queue.in_turn(lambda: (self.check_caches(), self.check_memory()))

    def check_caches(self):
        for pair in self.llm.engine.pair.slots:
            for slot in pair.slots:
                last = slot.native.cache(C.llama_memory_seq_pos_max, slot.index)
                assert slot.n_past == len(slot.cached)
                # recurrent layers are cut by the next pass
                assert last + 1 == slot.n_past or (slot.recurrent and last >= slot.n_past)

    def check_memory(self):
        store = self.llm.engine.kept
        assert store._keys == sorted(store._kept)
        assert store._n_bytes == sum(one.n_bytes for one in store._kept.values()) <= store._limit
        assert all(_key(one.target.tokens) == key for key, one in store._kept.items())

    def teardown(self):
        self.open.clear()
        self.llm.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("requests")
    kinds = {
        "llama": tiny.llama(seed=1),
        "cousin": tiny.llama(seed=2),
        "mamba": tiny.mamba(),
        "lfm2": tiny.lfm2(),
    }
    return {name: tiny.write(folder / f"{name}.gguf", one) for name, one in kinds.items()}


def run(files, kind, n, folder, **options):
    """Run the machine with a kind of model; `options` are hypothesis's settings."""
    draft = files["cousin"] if kind == "llama" else "ngram"
    checks = {"deadline": None, "suppress_health_check": [*HealthCheck]}
    with gguf_spec.load(
        files[kind], None, threads=1, n_ctx=N_CTX, extra_bufts=False, prefix_memory=0
    ) as reference:
        make = partial(Requests, (files[kind], draft), n, reference, {}, folder)
        run_state_machine_as_test(make, settings=settings(**checks, **options))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["llama", "lfm2", "mamba"])
@pytest.mark.parametrize("n", [1, 3])
def test_any_order_of_requests(files, kind, n, tmp_path):
    run(files, kind, n, tmp_path, max_examples=10, stateful_step_count=15)
