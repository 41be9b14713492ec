"""The public API on fakes: one request at a time, exact cuts, errors before any pass."""

import inspect
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import gguf_spec
from gguf_spec import AsyncLLM, Chat, Sampling, Speculation
from gguf_spec.batch import Batch
from gguf_spec.errors import (
    BusyError,
    ClosedError,
    EmptyPromptError,
    InvalidOptionError,
    OptionTypeError,
    PromptTooLongError,
)
from gguf_spec.options import SAMPLING, SPECULATION
from gguf_spec.registry.resolve import resolve
from gguf_spec.runtime import prompt as prompts
from gguf_spec.runtime.llm import LLM
from gguf_spec.sampling.chain import Filters, logprob
from gguf_spec.speculative.profile import Profile
from tests.support.fakes import FakeModel, fake_llm, random_table

V = 6
TABLES = [random_table(np.random.default_rng(seed), V) for seed in (5, 6)]
FREE = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=1, max_tokens=20)


def fixed(k, **options):
    return Speculation(k, adaptive=False, **options)


@pytest.fixture
def llm():
    with fake_llm(FakeModel(TABLES[0]), FakeModel(TABLES[1]), fixed(3)) as one:
        yield one


def test_stream_and_generate_agree(llm):
    with llm.stream("ab", FREE) as stream:
        chunks = list(stream)
    whole = llm.generate("ab", FREE)
    assert "".join(c.text for c in chunks) == whole.text == stream.result.text
    assert tuple(t for c in chunks for t in c.tokens) == whole.tokens
    assert [c.finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert all("".join(t for t, _ in c.accepted_text) == c.text for c in chunks)


def test_stream_and_generate_take_the_same_options():
    stream, generate = (inspect.signature(one).parameters for one in (LLM.stream, LLM.generate))
    assert stream == generate


def test_a_chunk_shows_which_text_was_drafted(llm):
    """Every token is one letter: the first `n_accepted` letters come from the draft, the last one from the target."""
    with llm.stream("ab", FREE) as stream:
        chunks = list(stream)
    assert {c.n_accepted for c in chunks} > {0}
    for c in chunks:
        assert [accepted for text, accepted in c.accepted_text for _ in text] == [
            i < c.n_accepted for i in range(len(c.tokens))
        ]
    assert stream.result.accepted_text == tuple(part for c in chunks for part in c.accepted_text)
    assert '<span style="color: green">' in stream.result._repr_html_()


def test_stats_add_up(llm):
    s = llm.generate("ab", FREE).stats
    assert (s.n_prompt, s.n_generated) == (2, 20)
    assert s.n_accepted <= s.n_drafted
    assert s.n_generated == s.n_accepted + s.rounds
    assert s.prompt_s + s.draft_s + s.verify_s + s.other_s == pytest.approx(s.total_s)
    assert 0 < s.ttft_s <= s.total_s
    assert s.to_dict()["tokens_per_round"] == s.n_generated / s.rounds
    assert llm.generate("ab", FREE, speculation=Speculation(0)).stats.n_drafted == 0


@pytest.mark.parametrize("k", [0, 3])
def test_stop_tokens_of_the_sampling(llm, k):
    plain = llm.generate("ab", FREE, speculation=fixed(k)).tokens
    cut = plain.index(plain[3])
    once = replace(FREE, stop_tokens=[plain[3]])
    result = llm.generate("ab", once, speculation=fixed(k))
    assert (result.tokens, result.finish_reason) == (plain[:cut], "stop")
    assert llm.generate_tokens([0, 1], once, stop_tokens=[plain[0]]).tokens == ()


@pytest.mark.parametrize("k", [0, 3])
def test_ignore_eos(k):
    with fake_llm(
        FakeModel(TABLES[0], end={2, 3}), FakeModel(TABLES[1], end={2, 3}), fixed(k)
    ) as llm:
        ended = llm.generate("ab", FREE)
        assert (ended.finish_reason, len(ended.tokens) < 20) == ("stop", True)
        result = llm.generate("ab", replace(FREE, ignore_eos=True))
        assert (result.finish_reason, len(result.tokens)) == ("length", 20)
        assert not {2, 3} & {*result.tokens}


@pytest.mark.parametrize("k", [0, 3])
def test_echo_and_prefill(llm, k):
    plain = llm.generate("abc", FREE, speculation=fixed(k))
    filled = llm.generate("ab", FREE, speculation=fixed(k), prefill="c")
    assert (filled.text, filled.tokens) == (plain.text, plain.tokens)
    with llm.stream("ab", FREE, speculation=fixed(k), prefill="c", echo=True) as stream:
        first = next(stream)
        assert first.text.startswith("abc")
        assert len(first.text) == 3 + len(first.tokens)
        assert next(accepted for _, accepted in first.accepted_text) is False
        rest = list(stream)
    assert stream.result.text == "abc" + plain.text == first.text + "".join(c.text for c in rest)
    assert stream.result.tokens == plain.tokens


def test_a_stop_string_in_what_is_echoed_ends_nothing(llm):
    assert llm.generate("ab", replace(FREE, stop=("ab",), max_tokens=1), echo=True).text.startswith(
        "ab"
    )


def test_log_probabilities_of_cut_rounds(llm):
    """One for each token that is part of the result, however it ended."""
    for options in ({"max_tokens": 7}, {"stop": ("a",)}, {"stop_tokens": [1]}):
        with llm.stream("ab", replace(FREE, logprobs=2, **options)) as stream:
            chunks = list(stream)
        result = stream.result
        assert [one.token for one in result.logprobs] == list(result.tokens)
        assert [[one.token for one in c.logprobs] for c in chunks] == [
            list(c.tokens) for c in chunks
        ]
        assert all(len(one.top) == 2 and one.top[0][1] >= one.logprob for one in result.logprobs)
    assert all(one.top == () for one in llm.generate("ab", replace(FREE, logprobs=0)).logprobs)


class Only:
    """A grammar of one text: letters by their number, then an end."""

    def __init__(self, tokens, end, n_prompt=2):
        self.tokens, self.end, self.n_prompt = tokens, end, n_prompt

    def allowed(self, history, ids):
        at = len(history) - self.n_prompt
        return ids == (self.tokens[at] if at < len(self.tokens) else self.end)

    def mask(self, history):
        return None

    def possible(self, history):
        return np.ones(V, dtype=bool)


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ignore_eos": True},
        {"logit_bias": {2: -np.inf}},
        {"temperature": 0.0, "logit_bias": {2: -np.inf}},
    ],
)
def test_a_complete_grammar_ends_the_text_also_with_forbidden_ends(monkeypatch, k, options):
    grammar = Filters(grammar=Only([3, 1, 3, 3], 2), ends=np.array([2]))
    monkeypatch.setattr("gguf_spec.runtime.generation.make_filters", lambda *_: grammar)
    with fake_llm(FakeModel(TABLES[0], end={2}), FakeModel(TABLES[1], end={2}), fixed(k)) as llm:
        result = llm.generate("ab", replace(FREE, **options))
    assert (result.tokens, result.finish_reason) == ((3, 1, 3, 3), "stop")


def test_near_ties_behind_a_stop_string_do_not_count(llm, monkeypatch):
    monkeypatch.setattr("gguf_spec.speculative.acceptance.is_near_tie", lambda *_: True)
    monkeypatch.setattr(Profile, "logit_noise", lambda self, *_: 1.0)
    for seed in range(20):  # some of them are cut in the middle of a round
        stats = llm.generate("ab", replace(FREE, stop=("a", "cd"), seed=seed)).stats
        assert stats.n_near_ties <= stats.n_generated
    assert llm.generate("ab", FREE).stats.n_near_ties > 0


def test_a_row_in_which_most_cannot_come_has_finite_log_probabilities():
    row = np.array([1.0, -np.inf, 2.0, -np.inf], dtype=np.float32)
    one = logprob(row, 0, 4)
    assert [token for token, _ in one.top] == [2, 0]
    assert np.isfinite(logprob(row, 1, 0).logprob)


def test_strict_changes_nothing_without_rounding_noise(llm):
    result = llm.generate("ab", FREE, speculation=fixed(3, strict=True))
    assert (result.tokens, result.stats.n_decided_again) == (llm.generate("ab", FREE).tokens, 0)


@pytest.mark.failing_drafts
def test_a_draft_with_nan_logits_changes_nothing(llm, monkeypatch):
    plain = llm.generate("ab", FREE, speculation=Speculation(0)).tokens
    llm.engine.pair.draft.table[:] = np.nan
    result = llm.generate("ab", FREE)
    assert (result.tokens, result.stats.n_drafted) == (plain, 0)


def test_a_smaller_vocabulary_of_the_draft_changes_nothing():
    small = FakeModel(random_table(np.random.default_rng(8), V - 2))
    with fake_llm(FakeModel(TABLES[0]), small, fixed(3)) as llm:
        options = {"logprobs": 1, "ignore_eos": True, "repeat_penalty": 1.3, "logit_bias": {5: 0.5}}
        plain = llm.generate("ab", replace(FREE, **options), speculation=Speculation(0))
        assert {4, 5} & {*plain.tokens}
        burst = llm.generate("ab", replace(FREE, **options))
        assert (burst.tokens, burst.logprobs) == (plain.tokens, plain.logprobs)
        assert burst.stats.n_accepted > 0


def test_a_seed_that_was_drawn_is_named(llm):
    free = Sampling(temperature=1.0, max_tokens=20)
    first = llm.generate("ab", free)
    again = llm.generate("ab", Sampling(temperature=1.0, max_tokens=20, seed=first.seed))
    assert again.tokens == first.tokens
    assert llm.generate("ab", free).seed != first.seed


@pytest.mark.parametrize("k", [0, 1, 4])
def test_stop_tokens_end_it_and_are_left_out(llm, k):
    plain = llm.generate_tokens([0, 1], FREE, speculation=fixed(k))
    end = plain.tokens[6]
    cut = llm.generate_tokens([0, 1], FREE, stop_tokens=[end], speculation=fixed(k))
    assert cut.tokens == plain.tokens[: plain.tokens.index(end)]
    assert cut.finish_reason == "stop"


@pytest.mark.parametrize("k", [0, 4])
def test_the_callback_stops_at_its_token(llm, k):
    seen = []
    plain = llm.generate_tokens([0, 1], FREE, speculation=fixed(k))
    cut = llm.generate_tokens(
        [0, 1], FREE, on_token=lambda t: seen.append(t) or len(seen) == 5, speculation=fixed(k)
    )
    assert cut.tokens == tuple(seen) == plain.tokens[:5]
    assert cut.finish_reason == "cancelled"


@pytest.mark.parametrize(
    "error", [ZeroDivisionError, ValueError, KeyboardInterrupt, InvalidOptionError]
)
def test_a_failing_callback_releases_the_llm(llm, error):
    """The caller gets its error, also a ValueError, which a generator raises if another thread is running it."""

    def fail(token):
        raise (
            InvalidOptionError("grammar", "x", "shorter") if error is InvalidOptionError else error
        )

    with pytest.raises(error):
        llm.generate_tokens([0, 1], FREE, on_token=fail)
    assert llm.generate("ab", FREE).tokens


@pytest.mark.parametrize("k", [0, 1, 5])
def test_a_stop_string_over_tokens_cuts_text_and_tokens_alike(llm, k):
    plain = llm.generate("ab", FREE, speculation=fixed(k))
    stop = plain.text[7:9]
    at = plain.text.index(stop)
    cut = llm.generate("ab", Sampling(**{**FREE.__dict__, "stop": (stop,)}), speculation=fixed(k))
    assert cut.text == plain.text[:at]
    assert cut.tokens == plain.tokens[: at + 2]
    assert cut.finish_reason == "stop"


def test_cancel_from_another_thread(llm):
    long = Sampling(temperature=1.0, max_tokens=None, seed=1)
    with llm.stream("ab", long) as stream:
        first = next(stream)
        thread = threading.Thread(target=stream.cancel)
        thread.start()
        thread.join()
        rest = list(stream)
    assert [(c.finish_reason, c.tokens, c.n_drafted, c.n_accepted) for c in rest] == [
        ("cancelled", (), 0, 0)
    ]
    assert stream.result.text == first.text


def test_errors_are_raised_before_any_pass(llm):
    for bad, error in (
        ([], EmptyPromptError),
        ([1] * 64, PromptTooLongError),
        ([V], InvalidOptionError),
        ([-1], InvalidOptionError),
    ):
        with pytest.raises(error):
            llm.generate_tokens(bad)
    with pytest.raises(EmptyPromptError):
        llm.generate("")
    with pytest.raises(InvalidOptionError):
        llm.generate_tokens([1], stop_tokens=[99])
    for bad in ({"logit_bias": {V: 1.0}}, {"stop_tokens": [V]}):
        with pytest.raises(InvalidOptionError, match=f"{next(iter(bad))}.*an id from 0 to {V - 1}"):
            llm.generate_tokens([1], replace(FREE, **bad))
    with pytest.raises(InvalidOptionError):
        llm.generate_tokens([1.0])
    assert llm.engine.target.passes == []
    assert len(llm.generate_tokens([1] * 63).tokens) == 1


def test_the_streaming_thread_gets_an_error_and_other_threads_wait(llm):
    done = []
    with llm.stream("ab", FREE) as stream:
        next(stream)
        with pytest.raises(BusyError):
            llm.generate("ab", FREE)
        other = threading.Thread(target=lambda: done.append(llm.generate("ab", FREE)))
        other.start()
        assert done == []
    other.join()
    assert done[0].tokens == llm.generate("ab", FREE).tokens


def test_a_dropped_stream_releases_the_llm(llm):
    next(llm.stream("ab", FREE))
    assert llm.generate("ab", FREE).tokens


def test_a_stream_dropped_while_a_thread_waits_releases_the_llm(llm):
    done, stream = [], llm.stream("ab", FREE)
    next(stream)
    other = threading.Thread(target=lambda: done.append(llm.generate("ab", FREE)), daemon=True)
    other.start()
    while len(llm.engine.queue.tickets) < 2:
        time.sleep(0.001)
    del stream
    other.join(180)
    assert done and done[0].tokens == llm.generate("ab", FREE).tokens


def test_closing_during_a_round_cancels_it_and_releases_the_llm(llm, monkeypatch):
    """As from another thread, or from the caller's own code inside a round: the generator cannot be closed then."""
    stream = llm.stream("ab", Sampling(temperature=1.0, max_tokens=None, seed=1))
    piece = llm.engine.target.piece
    monkeypatch.setattr(llm.engine.target, "piece", lambda token: stream.close() or piece(token))
    chunks = list(stream)
    assert chunks[-1].finish_reason == "cancelled" and len(chunks) == 2
    monkeypatch.undo()
    assert llm.generate("ab", FREE).tokens


def test_many_threads(llm):
    expected = {
        seed: llm.generate("ab", Sampling(temperature=1.0, seed=seed, max_tokens=12)).tokens
        for seed in range(8)
    }
    found = {}

    def work(seed):
        found[seed] = llm.generate("ab", Sampling(temperature=1.0, seed=seed, max_tokens=12)).tokens

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


@pytest.mark.full
def test_a_stream_is_closed_once_by_many_threads(llm):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    for _ in range(200):
        stream, errors, go = llm.stream("ab", FREE), [], threading.Barrier(6)
        next(stream)

        def close(stream=stream, errors=errors, go=go):
            go.wait()
            try:
                stream.close()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=close) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
    sys.setswitchinterval(interval)
    assert len(llm.generate("ab", FREE).tokens) == 20


def test_close_ends_a_stream_that_another_thread_holds_and_does_not_read():
    llm = fake_llm(FakeModel(TABLES[0]), FakeModel(TABLES[1]), fixed(3))
    opened, done, chunks = threading.Event(), threading.Event(), []

    def hold():
        with llm.stream("ab", FREE) as stream:
            next(stream)
            opened.set()
            done.wait(180)
            chunks.extend(stream)

    thread = threading.Thread(target=hold)
    thread.start()
    assert opened.wait(180)
    closer = threading.Thread(target=llm.close, daemon=True)
    closer.start()
    closer.join(180)
    assert not closer.is_alive()
    done.set()
    thread.join(180)
    assert [chunk.finish_reason for chunk in chunks] == ["cancelled"]
    with pytest.raises(ClosedError):
        llm.generate("ab", FREE)


def test_close_during_a_round_releases_the_llm_after_it(llm, monkeypatch):
    """The reader takes its chunk and reads no more; other requests do not wait for it."""
    running, closed, piece = threading.Event(), threading.Event(), llm.engine.target.piece
    stream = llm.stream("ab", FREE)
    monkeypatch.setattr(
        llm.engine.target, "piece", lambda token: (running.set(), closed.wait(180), piece(token))[2]
    )
    reader = threading.Thread(target=lambda: next(stream))
    reader.start()
    assert running.wait(180)
    stream.close()
    closed.set()
    reader.join(180)
    monkeypatch.undo()
    assert len(llm.generate("ab", FREE).tokens) == 20


def test_close():
    llm = fake_llm(FakeModel(TABLES[0]), None, Speculation())
    stream = llm.stream("ab", FREE)
    next(stream)
    llm.close()
    llm.close()
    assert next(stream, None) is None
    for call in (
        lambda: llm.generate("ab"),
        lambda: llm.tokenize("ab"),
        lambda: llm.generate_tokens([1]),
    ):
        with pytest.raises(ClosedError):
            call()


# ---- the models, and what is learned


def test_without_a_draft_no_tokens_are_drafted():
    target, draft = FakeModel(TABLES[0]), FakeModel(TABLES[1])
    with fake_llm(target, None, fixed(3)) as llm, llm.models() as models:
        assert models == (target, None)
    with fake_llm(target, draft, fixed(3)) as llm, llm.models() as models:
        assert models == (target, draft)


def test_learned_statistics_can_be_restored(llm):
    def known():
        snapshot = llm.snapshot()
        return (
            snapshot.experiences["sampled"].chances.to_list(),
            snapshot.calibration.bias.tolist(),
        )

    first, at_first = llm.snapshot(), known()
    for _ in range(2):
        llm.generate("ab", FREE)
        assert known() != at_first
        llm.restore(first)
        assert known() == at_first, "the snapshot has learned too"
    llm.generate("ab", FREE)
    bias = known()[1]
    llm.restore(replace(first, calibration=None))
    assert known() == (at_first[0], bias)


def test_the_profile_can_be_replaced(llm):
    profile = replace(llm.profile, seconds=1.5)
    llm.use_profile(profile)
    assert llm.profile is profile
    with llm.stream("ab", FREE), pytest.raises(BusyError):
        llm.use_profile(profile)
    llm.close()
    for call in (llm.snapshot, lambda: llm.use_profile(profile)):
        with pytest.raises(ClosedError):
            call()


def test_the_vocabulary_can_be_read_while_a_request_runs(llm):
    with llm.stream("ab", FREE):
        assert llm.vocabulary.n_vocab == V
    llm.close()
    with pytest.raises(ClosedError):
        _ = llm.vocabulary


# ---- every kind of prompt with every option


MESSAGES = [{"role": "user", "content": "hi"}]


def complete(llm, **options):
    return llm.generate(**options)


def streamed(llm, **options):
    with llm.stream(**options) as stream:
        for _ in stream:
            pass
    return stream.result


def by_alias(llm, prompt, **options):
    return llm.generate_tokens(prompt, **options)


def streamed_by_alias(llm, prompt, **options):
    with llm.stream_tokens(prompt, **options) as stream:
        for _ in stream:
            pass
    return stream.result


PROMPTS = {
    "text": "ab",
    "ids": [0, 1],
    "tuple": (0, 1),
    "array": np.array([0, 1]).tolist(),
    "messages": MESSAGES,
}
CALLS = [complete, streamed]
ALIASES = [by_alias, streamed_by_alias]


@pytest.fixture
def asked(llm, monkeypatch):
    """The messages of the template; it writes the same prompt as the text and the ids."""
    seen = []

    def encode(model, messages, options, _most):
        seen.append((list(messages), options.prefill, options.tools))
        return model.tokenize("ab" + options.prefill, special=True)

    monkeypatch.setattr(prompts, "encode_chat", encode)
    return seen


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("call", "kind"),
    [(call, kind) for call in CALLS for kind in PROMPTS]
    + [(call, kind) for call in ALIASES for kind in ("ids", "tuple", "array")],
)
def test_all_prompts_take_all_options(llm, asked, call, kind):
    prompt, is_ids = PROMPTS[kind], kind not in ("text", "messages")
    plain = llm.generate("ab", FREE)
    ask = partial(call, llm, prompt=prompt, sampling=FREE)
    assert ask().tokens == plain.tokens
    assert ask(speculation=Speculation(0)).stats.n_drafted == 0
    assert (
        ask(stop_tokens=[plain.tokens[3]]).tokens
        == plain.tokens[: plain.tokens.index(plain.tokens[3])]
    )
    seen = []
    stopped = ask(on_token=lambda token: seen.append(token) or len(seen) == 3)
    assert (tuple(seen), stopped.finish_reason) == (plain.tokens[:3], "cancelled")
    shown = "" if kind == "messages" else "ab"
    assert ask(echo=True).text == shown + plain.text
    longer = llm.generate("abc", FREE)
    with_prefill = partial(ask, prompt=[*prompt, 2]) if is_ids else ask
    assert with_prefill(prefill="c", echo=True).text == f"{shown}c{longer.text}"
    llm.forget()
    steps = []
    ask(on_prompt=steps.append)
    assert steps == [("prompt", 1, 1, "tokens")]
    assert ask(tools=[{"type": "function"}]).tokens == plain.tokens
    if kind == "messages":
        assert asked[-1] == (MESSAGES, "", [{"type": "function"}])
        assert ("c" in [prefill for _, prefill, _ in asked]) is True
    else:
        assert asked == []


@pytest.mark.parametrize("call", CALLS + ALIASES)
def test_empty_prompts_and_invalid_ids(llm, call):
    with pytest.raises(EmptyPromptError):
        call(llm, prompt=[])
    for bad in ([6], [-1], [0, "a"], [1.0], [None]):
        with pytest.raises(InvalidOptionError, match="prompt"):
            call(llm, prompt=bad)


class Strange:
    """A value that no argument takes."""

    def __repr__(self):
        return "<strange>"


# Call -> its arguments; each of them with a value of another type is refused with its name.
CALLS = {
    "generate": (lambda llm, /, **a: llm.generate(**{"prompt": "ab", "sampling": FREE} | a), LLM.generate),
    "stream": (lambda llm, /, **a: llm.stream(**{"prompt": "ab", "sampling": FREE} | a), LLM.stream),
    "generate_many": (lambda llm, /, **a: llm.generate_many(**{"prompts": ["ab"], "speculation": None} | a), LLM.generate_many),
    "tokenize": (lambda llm, /, **a: llm.tokenize(**{"prompt": "ab"} | a), LLM.tokenize),
    "tokenize_infill": (lambda llm, /, **a: llm.tokenize_infill(**{"prefix": "a", "suffix": "b"} | a), LLM.tokenize_infill),
    "embed": (lambda llm, /, **a: llm.embed(**{"texts": "ab"} | a), LLM.embed),
    "choose": (lambda llm, /, **a: llm.choose(**{"prompt": "ab", "options": ["a"]} | a), LLM.choose),
    "rank_tokens": (lambda llm, /, **a: llm.rank_tokens(**{"query": "a", "documents": ["b"]} | a), LLM.rank_tokens),
    "token_bytes": (lambda llm, /, **a: llm.token_bytes(**a), LLM.token_bytes),
    "token_text": (lambda llm, /, **a: llm.token_text(**a), LLM.token_text),
    "save_session": (lambda llm, /, **a: llm.save_session(**{"path": "x", "data": {}} | a), LLM.save_session),
    "restore_session": (lambda llm, /, **a: llm.restore_session(**a), LLM.restore_session),
    "chat": (lambda llm, /, **a: llm.chat(**a), LLM.chat),
    "Chat": (lambda llm, /, **a: Chat(**{"llm": llm} | a), Chat.__init__),
    "Chat.send": (lambda llm, /, **a: llm.chat().send(**{"text": "a"} | a), Chat.send),
    "Chat.stream": (lambda llm, /, **a: llm.chat().stream(**{"text": "a"} | a), Chat.stream),
    "Chat.save": (lambda llm, /, **a: llm.chat().save(**a), Chat.save),
    "Chat.restore": (lambda llm, /, **a: llm.chat().restore(**a), Chat.restore),
    "Chat.with_model": (lambda llm, /, **a: llm.chat().with_model(**a), Chat.with_model),
    "AsyncLLM": (lambda _, /, **a: AsyncLLM(**{} | a), AsyncLLM.__init__),
    "load": (lambda _, /, **a: gguf_spec.load(**{"model": "tales"} | a), gguf_spec.load),
    "resolve": (lambda _, /, **a: resolve(**{"model": "tales"} | a), resolve),
    "Batch": (lambda _, /, **a: Batch(**{"source": "a", "target": "b"} | a), Batch.__init__),
    "Sampling": (lambda _, /, **a: Sampling(**{} | a), Sampling),
    "Speculation": (lambda _, /, **a: Speculation(**{} | a), Speculation),
}  # fmt: skip
NOT_TYPED = {"self", "others", "options", "encoding", "clock", "json_schema"}
ARGUMENTS_OF_CALLS = [
    (call, name)
    for call, (_, function) in CALLS.items()
    for name in inspect.signature(function).parameters
    if name not in NOT_TYPED or (call, name) == ("choose", "options")
]


@pytest.mark.parametrize(("call", "name"), ARGUMENTS_OF_CALLS)
def test_a_value_of_another_type_is_named(llm, call, name):
    """Not Python's words for what it cannot do with the value."""
    with pytest.raises(InvalidOptionError, match=f"^{name} is <strange>") as caught:
        CALLS[call][0](llm, **{name: Strange()})
    message = f"{caught.value} {caught.value.hint}"
    assert " but must be " in message
    assert isinstance(caught.value, TypeError) or name in gguf_spec.options.OPTIONS


@pytest.mark.parametrize(
    ("call", "said", "hint"),
    [
        (lambda llm: llm.generate(b"Once"), "prompt is b'Once' (bytes) but must be a text, a list of messages or a list of token ids.", "decode bytes: prompt.decode()."),
        (lambda llm: llm.generate(bytearray(b"a")), "prompt is bytearray(b'a') (bytearray) but must be a text", "decode bytes"),
        (lambda llm: llm.generate(None), "prompt is None but must be a text", "give a text"),
        (lambda llm: llm.generate({"role": "user", "content": "a"}), "prompt is {'role': 'user', 'content': 'a'} (dict) but", "one message as a list of one"),
        (lambda llm: llm.generate(["a", "b"]), "prompt is ['a', 'b'] (list) but", "several to generate_many"),
        (lambda llm: llm.generate([1, None]), "prompt[1] is None but must be a token id.", "give a token id"),
        (lambda llm: llm.generate([True]), "prompt[0] is True (bool) but must be a token id.", ""),
        (lambda llm: llm.generate({1}), "prompt is {1} (set) but must be", ""),
        (lambda llm: llm.generate("a", {"temperature": 0}), "sampling is {'temperature': 0} (dict) but must be a Sampling or None.", "write Sampling("),
        (lambda llm: llm.generate("a", temprature=0), "there is no argument 'temprature'.", "did you mean temperature?"),
        (lambda llm: llm.generate("a", n_ctx=64), "there is no argument 'n_ctx'.", "it is an argument of gguf_spec.load."),
        (lambda llm: llm.generate_many(["a"], n_predict=3), "there is no argument 'n_predict'.", "did you mean max_tokens?"),
        (lambda llm: llm.chat().send("a", temp=3), "there is no argument 'temp'.", "did you mean temperature?"),
        (lambda llm: llm.ask("a", bananas=3), "there is no argument 'bananas'.", "see help()"),
        (lambda _: gguf_spec.load("tales", ctx=64), "there is no argument 'ctx'.", "did you mean n_ctx?"),
        (lambda _: gguf_spec.load("tales", thread=1), "there is no argument 'thread'.", "did you mean threads?"),
        (lambda _: gguf_spec.load("tales", n_gpu_layers=1), "there is no argument 'n_gpu_layers'.", "did you mean gpu_layers?"),
        (lambda llm: llm.generate("a", speculation=5), "speculation is 5 (int) but must be a Speculation or None.", "write Speculation(k=8)."),
        (lambda llm: llm.generate_many(["a", None]), "prompts[1] is None but must be a text", ""),
        (lambda llm: llm.generate_many(b"a"), "prompts is b'a' (bytes) but must be a list of prompts", "one prompt as a list of one"),
        (lambda llm: llm.choose("a", "bc"), "options is 'bc' (str) but must be a list of texts.", ""),
        (lambda llm: llm.choose([1, 2], ["a"]), "prompt is [1, 2] (list) but must be a text, a list of messages.", ""),
        (lambda llm: llm.embed(b""), "texts is b'' (bytes) but must be a text, token ids, or a list of texts or of token ids.", "decode bytes"),
        (lambda llm: llm.embed(["a", None]), "texts[1] is None but must be a text or token ids.", ""),
        (lambda _: Sampling(stop=b"ab"), "stop is b'ab' but must be", ""),
        (lambda _: Sampling(stop_tokens=b"ab"), "stop_tokens is b'ab' but must be token ids.", ""),
        (lambda _: Sampling(temperature="hot"), "temperature is 'hot' but must be from 0 to a million.", ""),
        (lambda _: AsyncLLM("tales"), "llm is 'tales' (str) but must be an LLM.", "load one with gguf_spec.load."),
        (lambda llm: llm.generate("a", images="a.png"), "images is 'a.png' (str) but must be a list of images.", "write one image as a list of one."),
        (lambda llm: llm.generate("x" * 500, [5] * 500), "sampling is [5, 5,", ""),
    ],
)  # fmt: skip
def test_usual_mistakes_are_type_errors_with_what_is_right(llm, call, said, hint):
    with pytest.raises(OptionTypeError) as caught:
        call(llm)
    assert str(caught.value).startswith(said)
    assert (
        caught.value.hint.startswith(hint) if hint.startswith("give") else hint in caught.value.hint
    )
    assert isinstance(caught.value, (TypeError, ValueError))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("call", "said", "hint"),
    [
        (lambda llm: llm.choose("a", []), "options is [] but must be at least one text.", "give the texts to choose from."),
        (lambda _: Sampling(seed=-1), "seed is -1 but must be a whole number from 0 to 2**64 - 1.", "omit seed for a random seed."),
        (lambda _: Sampling(max_tokens=-1), "max_tokens is -1 but must be", "set max_tokens=None for as many as the context holds."),
        (lambda _: Sampling(top_k=-1), "top_k is -1 but must be", "set top_k=0 to keep all tokens."),
        (lambda _: gguf_spec.load(""), "model is '' but must be the name of a model or a path.", ""),
    ],
)  # fmt: skip
def test_values_of_other_programs_are_refused_with_ours(llm, call, said, hint):
    with pytest.raises(InvalidOptionError) as caught:
        call(llm)
    assert str(caught.value).startswith(said)
    assert hint in caught.value.hint
    assert not isinstance(caught.value, TypeError)


def test_an_unknown_argument_is_a_type_error(llm):
    with pytest.raises(TypeError, match="there is no argument 'temperatur'"):
        llm.generate("a", temperatur=0)
    with pytest.raises(TypeError, match="there is no argument 'temperatur'"):
        llm.generate_many(["a"], temperatur=0)


@pytest.mark.parametrize("of", [np.array, tuple, lambda ids: [np.int64(one) for one in ids]])
def test_ids_may_be_numbers_of_numpy(llm, of):
    assert llm.generate(of([1, 2]), FREE).tokens == llm.generate([1, 2], FREE).tokens


def test_no_option_of_a_request_is_an_argument_of_generate():
    names = {*inspect.signature(LLM.generate).parameters}
    assert names & {*SAMPLING, *SPECULATION} <= {"stop_tokens"}


def test_options_of_a_request_by_keyword(llm):
    """They are those of Sampling and Speculation, and go before a given Sampling."""
    asked = Sampling(temperature=0, max_tokens=5)
    whole = llm.generate("abc", asked)
    assert llm.generate("abc", temperature=0, max_tokens=5, k=0).text == whole.text
    assert llm.generate("abc", asked, max_tokens=2).tokens == whole.tokens[:2]
    with llm.stream("abc", temperature=0, max_tokens=2) as stream:
        assert [token for chunk in stream for token in chunk.tokens] == [*whole.tokens[:2]]
    assert [one.tokens for one in llm.generate_many(["abc"], temperature=0, max_tokens=2)] == [whole.tokens[:2]]  # fmt: skip
    with pytest.raises(InvalidOptionError, match="temperature is -1"):
        llm.generate("abc", temperature=-1)
    chat = llm.chat()
    answer = chat.send("a", temperature=0, max_tokens=3)
    assert answer.stats.n_generated == 3
    assert llm.chat().send("a", Sampling(temperature=0, max_tokens=3)).text == answer.text


def test_a_question_is_answered_to_its_end(llm):
    assert llm.ask("a", temperature=0, max_tokens=3).stats.n_generated == 3
    end = llm.ask("a", temperature=0)
    assert end.finish_reason != "length" or end.stats.n_prompt + end.stats.n_generated >= llm.n_ctx
    assert str(end) == end.text
    assert len(repr(end)) < 150 and "stats" not in repr(end)


def test_a_text_for_a_model_that_answers_messages_is_said_once(llm, caplog):
    llm.prompt = "chat"
    for _ in range(2):
        llm.generate("a", max_tokens=1)
    llm.generate([1], max_tokens=1)
    assert [one.getMessage() for one in caplog.records if "ask()" in one.getMessage()] == [
        f"generate() continues a text, but {llm.name} answers messages: use ask(), or chat()."
    ]


def test_the_numbers_of_the_file_have_their_old_name_too(tales):
    assert tales.file_numbers["n_vocab"] == tales.vocabulary.n_vocab
    assert tales.facts == tales.file_numbers and tales.facts is not None
