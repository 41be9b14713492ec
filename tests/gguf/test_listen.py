"""Functions that listen to a generation, with one slot and with several that share passes."""

import asyncio
import gc
import sys
import threading
import weakref
from dataclasses import replace
from queue import SimpleQueue

import pytest

import gguf_spec
from gguf_spec import AsyncLLM, Chunk, Ended, Sampling
from gguf_spec.errors import BusyError, ClosedError
from tests.closing.interrupted import in_another_thread

PLAIN = {"threads": 1, "extra_bufts": False, "draft": None}
SHORT = Sampling(seed=3, max_tokens=20, ignore_eos=True)
ENDLESS = replace(SHORT, max_tokens=None, overflow="shift")
PROMPTS = ["abc ab " * (3 + i) for i in range(6)]


class Heard:
    """The events of a generation; its end is waited for."""

    def __init__(self):
        self.events, self.threads, self._ends = [], set(), SimpleQueue()

    def __call__(self, event):
        self.events.append(event)
        self.threads.add(threading.get_ident())
        if isinstance(event, Ended):
            self._ends.put(event)

    def end(self):
        return self._ends.get(timeout=180)

    @property
    def tokens(self):
        return tuple(x for one in self.events if isinstance(one, Chunk) for x in one.tokens)

    @property
    def n_ends(self):
        return sum(isinstance(one, Ended) for one in self.events)


@pytest.fixture(params=[1, 3])
def llm(request, gguf_dir):
    with gguf_spec.load(gguf_dir / "llama.gguf", parallel=request.param, **PLAIN) as one:
        yield one
        assert one.generate(PROMPTS[0], SHORT).tokens  # it is free


def test_the_events_are_those_of_a_reader_from_one_thread_of_the_engine(llm):
    right = [llm.generate(one, SHORT).tokens for one in PROMPTS]
    n, of_each, threads = threading.active_count(), [], set()
    for prompt, tokens in zip(PROMPTS, right, strict=True):
        heard, stream = Heard(), llm.stream(prompt, SHORT)
        of_each.append((heard, stream, tokens))
        stream.listen(heard)
        if llm.parallel == 1:  # `stream` waits for the turn of the one before
            assert heard.end() == Ended(None)
    assert threading.active_count() <= n + 1  # however many requests there are
    for heard, stream, tokens in of_each:
        if llm.parallel > 1:
            assert heard.end() == Ended(None)
        assert heard.tokens == stream.result.tokens == tokens
        assert [type(one) for one in heard.events[-2:]] == [Chunk, Ended]
        assert heard.events[-2].finish_reason == "length"
        assert heard.n_ends == 1
        threads |= heard.threads
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_who_listens_may_ask_meanwhile_in_the_same_thread(llm):
    heard = Heard()
    llm.stream(PROMPTS[0], SHORT).listen(heard)
    assert llm.generate(PROMPTS[1], SHORT).tokens
    assert heard.end() == Ended(None)


@pytest.mark.parametrize("error", [ValueError, SystemExit, StopIteration, GeneratorExit])
def test_what_a_listener_raises_ends_its_request_only(llm, error):
    right, heard, other = llm.generate(PROMPTS[0], SHORT).tokens, Heard(), Heard()

    def fail(event):
        heard(event)
        raise error

    stream = llm.stream(PROMPTS[1], ENDLESS)
    stream.listen(fail)
    if llm.parallel == 1:
        assert type(heard.end().error) is error
    llm.stream(PROMPTS[0], SHORT).listen(other)
    if llm.parallel > 1:
        assert type(heard.end().error) is error
    assert (other.end().error, other.tokens) == (None, right)
    assert heard.n_ends == 1
    assert len(heard.events) == 2
    assert stream.result.finish_reason == "cancelled"


def test_a_listener_that_fails_while_its_request_waits_ends_no_other(llm):
    """A waiting request that is cancelled gets its last chunk beside those that run."""
    if llm.parallel == 1:
        return
    run, heard, goes_on = [Heard() for _ in range(3)], Heard(), threading.Event()
    streams = [llm.stream(prompt, ENDLESS) for prompt in PROMPTS[:3]]
    for stream, one in zip(streams, run, strict=True):
        stream.listen(lambda event, one=one: (one(event), goes_on.set()))
    assert goes_on.wait(180)

    def fail(event):
        heard(event)
        raise ValueError

    waiting = llm.stream(PROMPTS[3], SHORT)
    waiting.listen(fail)
    waiting.cancel()
    assert type(heard.end().error) is ValueError
    assert all(one.n_ends == 0 for one in run)
    for stream, one in zip(streams, run, strict=True):
        stream.cancel()
        assert one.end() == Ended(None)


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_listener_ends_its_request(llm, how):
    heard, stream = Heard(), llm.stream(PROMPTS[0], ENDLESS)

    def call(event):
        heard(event)
        if len(heard.events) == 3:
            getattr(stream, how)()

    stream.listen(call)
    assert heard.end() == Ended(None)
    assert heard.n_ends == 1
    assert len(heard.events) <= 5
    assert stream.result.finish_reason == "cancelled"


@pytest.mark.parametrize("how", ["cancel", "close", "abort"])
def test_another_thread_ends_it(llm, how):
    heard, stream, begun = Heard(), llm.stream(PROMPTS[0], ENDLESS), threading.Event()
    stream.listen(lambda event: (heard(event), begun.set()))
    assert begun.wait(180)
    getattr(stream, how)()
    assert heard.end() == Ended(None)
    assert heard.n_ends == 1


def test_it_waits_while_the_listener_is_full_and_others_go_on(llm):
    heard, stream, is_full = Heard(), llm.stream(PROMPTS[0], ENDLESS), threading.Event()
    is_asked = threading.Event()

    def full():
        if is_full.is_set():
            is_asked.set()
        return is_full.is_set()

    is_full.set()
    stream.listen(heard, full)
    assert is_asked.wait(180)
    n = len(heard.events)
    assert n <= 1
    if llm.parallel > 1:
        assert llm.generate(PROMPTS[1], SHORT).tokens
        assert len(heard.events) == max(n, 1)
    is_full.clear()
    in_time = threading.Event()
    for _ in range(18_000):
        if len(heard.events) > 5:
            break
        in_time.wait(0.01)
    assert len(heard.events) > 5
    is_full.set()
    stream.cancel()  # it waits for nobody then
    assert heard.end() == Ended(None)


def test_an_error_of_the_one_that_says_whether_it_is_full(llm):
    heard, stream = Heard(), llm.stream(PROMPTS[0], ENDLESS)
    stream.listen(heard, lambda: 1 / 0)
    assert type(heard.end().error) is ZeroDivisionError
    assert heard.n_ends == 1


def test_one_reader_a_stream(llm):
    heard, stream = Heard(), llm.stream(PROMPTS[0], SHORT)
    stream.listen(heard)
    for read in (lambda: next(stream), stream.run_to_end, lambda: stream.listen(heard)):
        with pytest.raises(BusyError, match="listened"):
            read()
    assert heard.end() == Ended(None)
    assert stream.result.finish_reason == "length"
    with llm.stream(PROMPTS[0], SHORT) as read_already:
        next(read_already)
        with pytest.raises(BusyError, match="read already"):
            read_already.listen(heard)
        assert [*read_already][-1].finish_reason == "length"
    assert heard.n_ends == 1


def test_a_listener_cannot_wait_for_its_own_thread(llm):
    errors, heard = [], Heard()

    def call(event):
        if not errors:
            try:
                llm.generate(PROMPTS[1], SHORT)
            except BusyError as error:
                errors.append(error)
        heard(event)

    llm.stream(PROMPTS[0], SHORT).listen(call)
    assert heard.end() == Ended(None)
    assert len(errors) == 1


def test_a_stream_that_only_the_engine_holds_goes_on_and_is_freed(llm):
    heard, stream = Heard(), llm.stream(PROMPTS[0], SHORT)
    held = weakref.ref(stream)
    stream.listen(heard)
    del stream
    gc.collect()
    assert heard.end() == Ended(None)
    assert len(heard.tokens) == SHORT.max_tokens
    heard = None
    llm.generate(PROMPTS[1], SHORT)  # its thread has gone on
    for _ in range(18_000):
        gc.collect()
        if held() is None:
            break
        threading.Event().wait(0.01)
    assert held() is None


@pytest.mark.parametrize("parallel", [1, 2])
def test_close_ends_what_is_listened_to(gguf_dir, parallel):
    llm = gguf_spec.load(gguf_dir / "llama.gguf", parallel=parallel, **PLAIN)
    heard = [Heard() for _ in range(parallel + (parallel > 1))]  # one of three waits
    for one, prompt in zip(heard, PROMPTS, strict=False):
        llm.stream(prompt, ENDLESS).listen(one)
    unheard = llm.stream(PROMPTS[0], SHORT) if parallel > 1 else None
    in_another_thread(llm.close)
    for one in heard:
        assert type(one.end().error) in (type(None), ClosedError)
        assert one.n_ends == 1
    if unheard:
        with pytest.raises(ClosedError):
            unheard.listen(heard[0])
        assert heard[0].n_ends == 1


def test_an_answer_of_a_chat_is_a_message_before_its_end_is_told(llm, tales):
    del llm
    chat, heard, n = tales.chat(), Heard(), []
    turn = chat.stream("Hi", Sampling(seed=1, max_tokens=4))
    turn.listen(lambda event: (n.append(len(chat.messages)), heard(event)))
    assert heard.end() == Ended(None)
    assert (n[0], n[-1]) == (0, 2)
    assert chat.messages[1]["content"] == turn.result.text


def test_requests_of_an_event_loop_hold_no_thread(llm):
    """One thread prepares them; another one, of the engine, computes them all."""

    def n_threads():
        return sum(one.name.startswith("gguf-spec-async") for one in threading.enumerate())

    async def main():
        async with AsyncLLM(llm) as one:
            before = n_threads()
            asked = [one.generate(prompt, SHORT) for prompt in PROMPTS]
            stream = one.stream(PROMPTS[0], SHORT)
            texts = [done.text for done in await asyncio.gather(*asked)]
            assert "".join([chunk.text async for chunk in stream]) == texts[0]
            return texts, n_threads() - before

    right = [llm.generate(one, SHORT).text for one in PROMPTS]
    with gguf_spec.load(llm.path, parallel=llm.parallel, **PLAIN) as llm:
        assert asyncio.run(main()) == (right, 1)


def test_many_requests_hold_no_threads(llm):
    """Threads prepare them; none of them is inside of this package while all are computed."""
    found = []

    def look(_):
        frames = sys._current_frames()
        threads = [one for one in threading.enumerate() if one.name.startswith("gguf-spec-many")]
        found.append([inside(frames.get(one.ident)) for one in threads])

    def inside(frame):
        while frame:
            if "gguf_spec" in frame.f_code.co_filename:
                return True
            frame = frame.f_back
        return False

    sampling = replace(SHORT, max_tokens=60)
    results = llm.generate_many(PROMPTS[: llm.parallel], sampling, on_token=look)
    assert [len(one.tokens) for one in results] == [60] * llm.parallel
    assert any(one and not any(one) for one in found)
