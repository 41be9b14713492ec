"""Requests in a batch: closing, dropping, Ctrl-C, unread streams, and calls that need exclusive use of the models."""

import gc
import queue
import sys
import threading
import time
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import gguf_spec
from gguf_spec.errors import BusyError, ClosedError, DecodeError
from gguf_spec.llama.context import Context
from gguf_spec.runtime import request_queue
from gguf_spec.speculative.scheduler import Scheduler
from tests.closing.interrupted import in_another_thread
from tests.closing.together import ENDLESS, LONG, OPTIONS, PLAIN, PROMPTS, SHORT
from tests.support import children
from tests.support.bytecodes import Bytecodes, described, spread

from tests.closing.together import Beside, free, texts  # isort: skip

FILES = (
    "runtime/request_queue.py",
    "runtime/stream.py",
    "runtime/generation.py",
    "runtime/llm.py",
    "runtime/chat.py",
    "runtime/client.py",
    "runtime/local_engine.py",
    "runtime/many.py",
)


@pytest.fixture(scope="module")
def llm():
    with gguf_spec.load("tales", **OPTIONS) as one:
        yield one


@pytest.fixture(scope="module")
def right(llm):
    return {prompt: llm.generate(prompt, SHORT).text for prompt in PROMPTS}


@pytest.fixture(autouse=True)
def all_is_free(request):
    """After each test no slot is in use, and each text is unchanged."""
    yield
    if "right" in request.fixturenames:
        llm, right = request.getfixturevalue("llm"), request.getfixturevalue("right")
        assert in_another_thread(lambda: free(llm))
        assert in_another_thread(lambda: texts(llm)) == right


# ---- closing and dropping


@pytest.mark.full
def test_close_ends_the_requests_that_run():
    llm = gguf_spec.load("tales", **OPTIONS)
    native = weakref.ref(llm.engine.target.native)
    with Beside(llm) as beside:
        llm.close()
    assert {one.finish_reason for one in beside.results} == {"cancelled"}
    assert native() is None
    with pytest.raises(ClosedError):
        llm.generate("a", SHORT)


@pytest.mark.full
def test_a_request_that_waits_while_another_thread_closes():
    """Five requests on four slots: each is cancelled or raises an error about closing."""
    llm = gguf_spec.load("tales", **OPTIONS)
    ended = []
    with Beside(llm, 4) as beside:
        stream = llm.stream("a", SHORT)

        def wait():
            try:
                ended.append([chunk.finish_reason for chunk in stream])
            except ClosedError as error:
                ended.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        llm.close()
        thread.join(180)
        assert not thread.is_alive()
    assert {one.finish_reason for one in beside.results} == {"cancelled"}
    assert isinstance(ended[0], ClosedError) or ended[0][-1] == "cancelled"


@pytest.mark.full
def test_a_stream_that_is_read_after_close():
    llm = gguf_spec.load("tales", **OPTIONS)
    stream, begun = llm.stream("a", SHORT), llm.stream("a", LONG)
    next(begun)
    llm.close()
    with pytest.raises(ClosedError):
        in_another_thread(lambda: next(stream))
    *_, last = list(begun)
    assert last.finish_reason == "cancelled"


@pytest.mark.full
def test_an_llm_that_is_dropped_frees_its_memory(gguf_dir):
    options = OPTIONS | {"n_ctx": 128, "extra_bufts": False}
    llm = gguf_spec.load(gguf_dir / "llama.gguf", gguf_dir / "twin.gguf", **options)
    natives = [weakref.ref(model.native) for model in (llm.engine.target, llm.engine.pair.draft)]
    thread = llm.engine.queue._thread
    assert len(texts(llm)) == len(PROMPTS)
    stream = llm.stream("ab", SHORT)
    next(stream)
    del stream
    llm.snapshot()
    del llm
    gc.collect()
    thread.join(180)
    gc.collect()
    assert not thread.is_alive()
    assert [one() for one in natives] == [None, None]


@pytest.mark.full
def test_a_stream_outlives_the_name_of_its_llm(right):
    """As in `for chunk in load(...).stream(...)`."""
    stream = gguf_spec.load("tales", **OPTIONS).stream(PROMPTS[0], SHORT)
    gc.collect()
    assert in_another_thread(lambda: "".join(chunk.text for chunk in stream)) == right[PROMPTS[0]]


LEFT_OPEN = {
    "a stream": 'stream = llm.stream("ab", endless); next(stream)',
    "streams that nobody reads": "\n".join((
        'streams = [llm.stream("ab", endless) for _ in range(3)]',
        "for one in streams: next(one)",
    )),
    "a thread in a round": "\n".join((
        "begun = threading.Event()",
        'threading.Thread(target=lambda: llm.generate("ab", endless, on_token=lambda _: begun.set()), daemon=True).start()',
        "begun.wait(180)",
    )),
    "a callback that does not return": "\n".join((
        "begun = threading.Event()",
        "def block(_): begun.set(); threading.Event().wait()",
        'threading.Thread(target=lambda: llm.generate("ab", endless, on_token=block), daemon=True).start()',
        "begun.wait(180)",
    )),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("what", LEFT_OPEN)
def test_a_program_that_leaves_something_open_ends(gguf_dir, what):
    """Python must not end the thread of the scheduler inside of a request: that crashes."""
    program = f"""
import atexit, sys, threading
atexit.register(lambda: print(llm.engine.queue.n_running, "left"))  # called after those of the package
import gguf_spec
from gguf_spec import Sampling
llm = gguf_spec.load(sys.argv[1], None, threads=1, n_ctx=128, extra_bufts=False, parallel=4)
llm.prompt = "text"  # or generate() warns
endless = Sampling(max_tokens=None, ignore_eos=True, overflow="shift", seed=1)
{LEFT_OPEN[what]}
print("done")
"""
    child = children.run(
        [sys.executable, "-c", program, gguf_dir / "llama.gguf"],
        capture_output=True,
        text=True,
        limit_s=50,
        check=False,
    )
    n = 1 if "callback" in what else 0
    assert (child.returncode, child.stdout, child.stderr) == (0, f"done\n{n} left\n", "")


# ---- Ctrl-C


def streamed(llm):
    with llm.stream(PROMPTS[1], SHORT) as stream:
        return "".join(chunk.text for chunk in stream)


REQUESTS = {
    "generate": lambda llm: llm.generate(PROMPTS[0], SHORT).text,
    "stream": streamed,
    "many": lambda llm: [one.text for one in llm.generate_many(PROMPTS, SHORT)],
    "stream, not closed": lambda llm: next(llm.stream(PROMPTS[2], LONG)).finish_reason,
}


@pytest.mark.few(2)
@pytest.mark.parametrize("n", [15, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", REQUESTS)
def test_an_interrupt_before_bytecodes(llm, right, name, n):
    """In the thread of the caller; the next text is unchanged, and all slots are free."""
    request, way = partial(REQUESTS[name], llm), Bytecodes(FILES)
    places = way.places(request)
    n_raised = 0
    for place in spread(places, n):
        if n and n_raised == n:
            break
        try:
            way.run(request, place)
        except KeyboardInterrupt:
            n_raised += 1
        found = in_another_thread(lambda: llm.generate(PROMPTS[0], SHORT).text)
        assert found == right[PROMPTS[0]], described(place)
        assert in_another_thread(lambda: free(llm)), described(place)
    assert n_raised >= (n or len(places) // 2)


# ---- streams


@pytest.mark.full
def test_a_stream_that_is_not_read_does_not_stop_the_others(llm, right):
    with llm.stream(PROMPTS[0], LONG, speculation=PLAIN) as stream:
        first = next(stream)
        assert in_another_thread(lambda: texts(llm)) == right
        time.sleep(0.05)
        assert stream.stats.n_generated < 200, "it waits for its reader"
        rest = list(stream)
    assert len(first.tokens) + sum(len(one.tokens) for one in rest) == 400
    assert rest[-1].finish_reason == "length"


@pytest.mark.full
@pytest.mark.parametrize("n_read", [1, 3])
def test_a_stream_that_is_dropped_frees_its_slot(llm, right, n_read):
    streams = [llm.stream(prompt, ENDLESS) for prompt in PROMPTS[:4]]
    for stream in streams:
        for _ in range(n_read):
            next(stream)
    del stream, streams
    assert in_another_thread(lambda: texts(llm)) == right


@pytest.mark.full
@pytest.mark.parametrize(
    "call",
    [lambda llm: llm.generate(PROMPTS[0], SHORT).text, lambda llm: llm.forget()],
    ids=["a slot", "the turn"],
)
def test_streams_in_reference_cycles_do_not_hold_their_slots(llm, right, call):
    """As after an exception whose traceback refers to them; the garbage collector may not come by itself."""
    gc.disable()
    try:
        for prompt in PROMPTS[:4]:
            cycle = [llm.stream(prompt, ENDLESS)]
            next(cycle[0])
            cycle.append(cycle)
        del cycle
        found = in_another_thread(lambda: call(llm))
    finally:
        gc.enable()
    assert not found or found == right[PROMPTS[0]]


def read_more_streams_than_slots(llm):
    streams = [llm.stream(prompt, ENDLESS) for prompt in PROMPTS]
    for stream in streams[:4]:
        next(stream)
    with pytest.raises(BusyError):
        next(streams[4])  # opened before any was read
    for call in (
        lambda: llm.stream("a", SHORT),
        lambda: llm.generate("a", SHORT),
        lambda: llm.generate_many(["a"], SHORT),
        llm.forget,
        llm.snapshot,
        lambda: llm.models().__enter__(),
    ):
        with pytest.raises(BusyError):
            call()
    streams[0].close()
    assert in_another_thread(lambda: llm.generate(PROMPTS[0], SHORT).text)
    for stream in streams:
        stream.close()


@pytest.mark.full
def test_a_thread_never_waits_for_its_own_streams(llm, right):
    in_another_thread(lambda: read_more_streams_than_slots(llm))


def test_a_callback_may_not_wait_for_the_thread_that_it_runs_in(llm, right):
    errors = []

    def on_token(_):
        for call in (lambda: llm.generate("a", SHORT), llm.snapshot):
            try:
                call()
            except BusyError as error:
                errors.append(error)
        return len(errors) >= 4

    assert llm.generate(PROMPTS[0], SHORT, on_token=on_token).finish_reason == "cancelled"
    assert len(errors) >= 4


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_a_callback_raises_is_raised_in_its_request_only(llm, right, error):
    def fail(_):
        raise error("planted")

    beside = Beside(llm, 2, replace(SHORT, max_tokens=60))
    with beside, pytest.raises(error, match="planted"):
        in_another_thread(lambda: llm.generate(PROMPTS[3], SHORT, on_token=fail))
    assert all(isinstance(one, gguf_spec.Completion) for one in beside.results)


class Waiting:
    """A stream that another thread reads, and that waits for a slot or for the turn."""

    def __init__(self, llm):
        self.stream, self.chunks = llm.stream("a", SHORT), []
        self._thread = threading.Thread(target=lambda: self.chunks.extend(self.stream))
        self._thread.start()
        while not llm.engine.queue.n_waiting:
            time.sleep(0.001)

    def ended(self):
        self._thread.join(180)
        assert not self._thread.is_alive()
        return [(chunk.finish_reason, chunk.tokens) for chunk in self.chunks]


@pytest.mark.parametrize("end", ["cancel", "close", "abort"])
def test_a_stream_that_waits_for_a_slot_ends_at_once(llm, right, end):
    """All slots are used by requests that never end; later requests in the queue are not lost."""
    with Beside(llm, 4) as beside:
        first, second = Waiting(llm), Waiting(llm)
        getattr(first.stream, end)()
        assert first.ended() == [("cancelled", ())]
        assert not second.chunks and not beside.results
        second.stream.cancel()
        assert second.ended() == [("cancelled", ())]


def test_a_stream_that_waits_for_the_turn_ends_at_once(llm, right):
    with llm.models():
        waiting = Waiting(llm)
        waiting.stream.cancel()
        assert waiting.ended() == [("cancelled", ())]


# ---- failures


def test_an_unexpected_error_ends_the_requests_and_leaves_nothing_wrong(llm, right, monkeypatch):
    """Caches are empty afterwards, and so are the lists of cached tokens."""
    llm.generate(PROMPTS[0] + " there was a king who had three sons", SHORT)
    step, n = Scheduler.step, []

    def failing(self):
        n.append(1)
        if len(n) == 4:
            raise RuntimeError("planted")
        return step(self)

    monkeypatch.setattr(Scheduler, "step", failing)
    with pytest.raises(RuntimeError, match="planted"):
        llm.generate(PROMPTS[0] + " there was a king who had three sons", SHORT)
    monkeypatch.undo()
    with llm.models() as (target, draft):
        assert target.cached == draft.cached == []
        assert {slot.request for slot in llm.slots()} == {None}
    assert llm.generate(PROMPTS[0], SHORT).text == right[PROMPTS[0]]


@pytest.mark.full
@pytest.mark.parametrize("function", ["prepare_slot", "reads_prefix"])
def test_an_error_while_a_request_is_started_is_its_own(llm, right, monkeypatch, function):
    """Running requests continue with right texts; no incomplete copy is left in a cache."""
    texts(llm)  # there are caches to lose
    real, bad = getattr(request_queue, function), llm.tokenize(PROMPTS[3])

    def failing(*given):
        found = real(*given)
        if bad in given:
            raise RuntimeError("planted")
        return found

    monkeypatch.setattr(request_queue, function, failing)
    with Beside(llm, 2) as beside:
        with pytest.raises(RuntimeError, match="planted"):
            in_another_thread(lambda: llm.generate(PROMPTS[3], SHORT))
        assert not any(pair.target.cached for pair in llm.engine.queue.scheduler.free)
    assert all(isinstance(one, gguf_spec.Completion) for one in beside.results)


def test_a_failed_pass_is_an_error_of_its_request(llm, right, monkeypatch):
    decode = Context.decode
    bad = llm.tokenize(PROMPTS[2])

    def failing(self, parts, *more):
        if self is llm.engine.target.context and any(
            part.n_rows and part.sequence.cached[: len(bad) - 1] == bad[:-1] for part in parts
        ):
            for part in parts:
                part.sequence.forget()
            raise DecodeError(-3, 1, 1, "planted")
        return decode(self, parts, *more)

    monkeypatch.setattr(Context, "decode", failing)
    results = llm.generate_many(PROMPTS, SHORT)
    for prompt, one in zip(PROMPTS, results, strict=True):
        if prompt == PROMPTS[2]:
            assert isinstance(one, DecodeError)
        else:
            assert one.text == right[prompt]


# ---- calls that need the models to themselves


@pytest.mark.full
def test_calls_wait_for_the_requests_that_run(llm, right, tmp_path):
    """Sessions, conversations, snapshots, profiles and the models, each beside three requests."""
    profile, snapshot = llm.profile, llm.snapshot()
    chat = llm.chat(sampling=SHORT)
    said = chat.send("Tell me of a fox.").text

    def restored():
        chat.restore(tmp_path / "kept")
        return chat.messages[-1]["content"]

    def looked_inside():
        with llm.models() as (target, _):
            assert llm.engine.queue.n_running == 0
            return len(target.logits([*target.cached[:1], 5], 1))

    for call in (
        lambda: chat.save(tmp_path / "kept"),
        lambda: llm.save_session(tmp_path / "other", {"a": 1}),
        lambda: llm.restore_session(tmp_path / "other"),
        restored,
        llm.forget,
        llm.snapshot,
        lambda: llm.restore(snapshot),
        lambda: llm.use_profile(profile),
        looked_inside,
        lambda: chat.send("And then?"),
    ):
        beside = Beside(llm, 3, replace(SHORT, max_tokens=60))
        with beside:
            call()
        assert all(isinstance(one, gguf_spec.Completion) for one in beside.results)
        assert in_another_thread(lambda: texts(llm)) == right
    assert chat.messages[2]["content"] == said if chat.system else said in str(chat.messages)


def test_forget_empties_the_caches_of_all_slots(llm, right):
    texts(llm)
    pairs = llm.engine.queue.scheduler.pairs
    assert sum(pair.target.n_past > 0 for pair in pairs) > 1
    llm.forget()
    assert not any(slot.n_past for pair in pairs for slot in pair.slots)
    passes = []
    llm.generate(PROMPTS[0], SHORT, on_prompt=lambda now: passes.append(now.done))
    assert passes[-1] == len(llm.tokenize(PROMPTS[0])) - 1


@pytest.mark.full
def test_another_profile_is_that_of_the_next_requests(llm, right):
    """Its exact width and costs, and the statistics of a restored snapshot."""
    profile = llm.profile
    llm.use_profile(replace(profile, exact_width=2))
    assert texts(llm) == right
    side = llm.engine.queue.scheduler.target
    assert side.context.widest == side.costs.widest == 2
    llm.restore(llm.snapshot())
    texts(llm)
    assert llm.engine.queue.scheduler.target.base is llm.engine.pair.experiences["sampled"].target
    llm.use_profile(profile)
    texts(llm)
    assert llm.engine.queue.scheduler.target.context.widest == profile.widest(exact=True)


@pytest.mark.slow
def test_two_minutes_of_requests_of_all_kinds():
    """Texts are right, memory stays flat, and no slot, file or thread is left."""
    root = Path(__file__).resolve().parents[2]
    child = children.run(
        [
            sys.executable,
            root / "scripts" / "checks" / "soak.py",
            "--parallel",
            "4",
            "--minutes",
            "2",
        ],
        capture_output=True,
        text=True,
        limit_s=300,
        check=False,
        cwd=root,
    )
    assert child.returncode == 0, child.stdout + child.stderr


def test_a_reader_waits_in_pieces(llm, monkeypatch):
    """On Windows, Ctrl-C arrives only between two waits."""
    waits = []

    class Queue:
        def __init__(self):
            self._queue = queue.SimpleQueue()
            self.put, self.qsize = self._queue.put, self._queue.qsize

        def get(self, timeout=None):
            waits.append(timeout)
            if len(waits) < 3:  # nothing came in time
                raise queue.Empty
            return self._queue.get(timeout=180)

    monkeypatch.setattr(request_queue, "SimpleQueue", Queue)
    assert llm.generate(PROMPTS[0], SHORT).tokens
    assert len(waits) >= 3
    assert set(waits) == {request_queue._WAIT_S}
