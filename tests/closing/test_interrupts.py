"""Ctrl-C at any moment: the text of the next request does not change.

All places around calls of llama.cpp by hand: `python -m tests.closing.injected FOLDER calls 0` (10 minutes).
"""

import contextlib
import copy
import gc
import re
import signal
import threading
import weakref
from functools import partial

import pytest
from llama_cpp import llama_cpp as C

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import ClosedError
from gguf_spec.llama import threads
from gguf_spec.llama.threads import ThreadGovernor
from tests.closing.children import run_child
from tests.support.bytecodes import PACKAGE, Bytecodes, described
from tests.unit.test_threads import Machine, run

slow = pytest.mark.slow


@pytest.mark.full
@pytest.mark.parametrize("n", [30, pytest.param(500, marks=slow)])
def test_sigint_at_random_moments(tmp_path, n):
    last = run_child("interrupted", tmp_path, n, limit_s=1200)
    assert last.startswith(f"{n} SIGINTs, ") and last.endswith(" 0 wrong"), last


@pytest.mark.full
@pytest.mark.parametrize("n", [40, pytest.param(1000, marks=slow)])
def test_an_interrupt_before_and_after_calls_of_llama_cpp(tmp_path, n):
    assert run_child("injected", tmp_path, "calls", n, limit_s=3000).endswith(" 0 wrong")


@pytest.mark.full
@pytest.mark.parametrize("n", [30, pytest.param(1000, marks=slow)])
def test_an_interrupt_before_bytecodes(tmp_path, n):
    assert run_child("injected", tmp_path, "bytecodes", n, limit_s=3000).endswith(" 0 wrong")


@pytest.mark.full
@pytest.mark.parametrize(("n_before", "busy"), [(0, 0), (200, 1)])
def test_the_thread_governor_survives_an_interrupt_at_every_bytecode(n_before, busy):
    """In its first passes, and in passes that try and select fewer threads."""
    machine, begun = Machine(2), ThreadGovernor(2)
    run(begun, machine, n_before)
    machine.busy = busy

    def passes(governor, n=80):
        threads._candidates.cache_clear()  # each run comes to the same places
        return run(governor, copy.deepcopy(machine), n)

    way, governor = Bytecodes(["llama/threads.py"]), copy.deepcopy(begun)
    places = way.places(lambda: passes(governor))
    assert (len(places) > 200, governor.threads) == (True, 2 - busy)
    for place in [*places, *((one, 1) for one, _ in places)]:
        governor = copy.deepcopy(begun)
        with pytest.raises(KeyboardInterrupt):
            way.run(lambda governor=governor: passes(governor), place)
        try:
            passes(governor, 40)
        except Exception as error:
            raise AssertionError(f"after an interrupt at {described(place)}") from error


def test_cancel_in_a_signal_handler_that_interrupts_cancel(tales):
    """No lock is taken: it would be that of the interrupted call."""
    way = Bytecodes(["runtime/stream.py"])
    stream = tales.stream("Once", Sampling(seed=1))
    places = way.places(stream.cancel)
    stream.close()
    for place in places:
        stream = tales.stream("Once", Sampling(seed=1))
        with pytest.raises(KeyboardInterrupt):
            way.run(stream.cancel, place)
        stream.cancel()
        assert [chunk.finish_reason for chunk in stream] == ["cancelled"]


@pytest.mark.parametrize("n_read", [0, 1, 99])
def test_dropping_a_stream_runs_no_python_code(tales, n_read):
    """Python drops a Ctrl-C that arrives inside of a finalizer, so there must be no finalizer."""
    way = Bytecodes(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
    streams = [tales.stream("Once", Sampling(seed=1, max_tokens=9))]
    for _ in zip(range(n_read), streams[0], strict=False):
        pass
    assert way.places(streams.clear) == []
    assert tales.engine.queue.first is None


@pytest.mark.full
def test_an_interrupt_anywhere_in_a_turn_of_a_chat_keeps_no_turn(tales):
    """Also with the traceback kept, as a notebook keeps it: its frames hold all that is open."""
    way, sampling = (
        Bytecodes(["runtime/client.py", "runtime/local_engine.py", "runtime/chat.py"]),
        Sampling(seed=1, max_tokens=3),
    )

    def send():
        return tales.chat(sampling=sampling).send("hi", speculation=Speculation(0))

    right = send().text
    for place in way.places(send):
        with pytest.raises(KeyboardInterrupt) as kept:
            way.run(send, place)
        assert tales.engine.queue.first is None, described(place)
        assert send().text == right
        del kept


@pytest.mark.full
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=slow)])
@pytest.mark.parametrize("stream_open", [False, True])
def test_a_close_that_is_interrupted_can_be_repeated(gguf_dir, stream_open, step):
    """At each `step`th bytecode; afterwards a close frees all, and no request runs on partly closed models."""
    way = Bytecodes(
        [
            "runtime/llm.py",
            "runtime/client.py",
            "runtime/local_engine.py",
            "runtime/request_queue.py",
            "speculative/pair.py",
            "llama/context.py",
            "llama/sequence.py",
            "llama/weights.py",
            "runtime/stream.py",
            "runtime/generation.py",
            "llama/native.py",
        ]
    )

    def opened():
        llm = gguf_spec.load(
            gguf_dir / "llama.gguf", gguf_dir / "twin.gguf", threads=1, n_ctx=128, extra_bufts=False
        )
        return llm, llm.stream("ab", Sampling(seed=1)) if stream_open else None

    llm, stream = opened()
    places = way.places(llm.close)
    for place in places[::step]:
        llm, stream = opened()
        natives = [
            weakref.ref(model.native) for model in (llm.engine.target, llm.engine.pair.draft)
        ]
        with contextlib.suppress(KeyboardInterrupt):
            way.run(llm.close, place)
        del stream
        with contextlib.suppress(ClosedError):
            assert llm.generate("ab", Sampling(max_tokens=4, seed=1)).tokens
        llm.close()
        assert [one() for one in natives] == [None, None], described(place)
        with pytest.raises(ClosedError):
            llm.generate("ab")


def test_an_interrupt_while_llama_cpp_frees_is_not_lost(gguf_dir, monkeypatch):
    """It arrives where C calls Python, which drops exceptions there; this `free` stands for a log line."""
    freed, closing, before = [], [], signal.signal(signal.SIGINT, signal.default_int_handler)

    def free(name, function, pointer):
        if closing and name == "llama_free":  # `load` frees what it has measured
            signal.pthread_kill(
                threading.main_thread().ident, signal.SIGINT
            )  # not to whichever thread: it might come after `close`
        function(pointer)
        freed.append(name)

    for name in ("llama_free", "llama_model_free"):
        monkeypatch.setattr(C, name, partial(free, name, getattr(C, name)))
    llm = gguf_spec.load(gguf_dir / "llama.gguf", None, threads=1, n_ctx=128, extra_bufts=False)
    freed.clear()
    closing.append(True)
    try:
        with pytest.raises(KeyboardInterrupt):
            llm.close()
    finally:
        signal.signal(signal.SIGINT, before)
    assert freed == ["llama_free", "llama_model_free"]
    llm.close()


MADE = {
    "llama_model_load_from_file": "llama_model_free",
    "llama_init_from_model": "llama_free",
    "llama_batch_init": "llama_batch_free",
}


@pytest.mark.full
@pytest.mark.parametrize("step", [149, pytest.param(8, marks=slow)])
def test_a_load_that_is_interrupted_leaves_nothing_in_memory(gguf_dir, monkeypatch, step):
    """At each `step`th bytecode of it."""
    counts = dict.fromkeys([*MADE, *MADE.values()], 0)

    def counted(name, function, *arguments):
        counts[name] += 1
        return function(*arguments)

    for name in counts:
        monkeypatch.setattr(C, name, partial(counted, name, getattr(C, name)))

    def load():
        with gguf_spec.load(
            gguf_dir / "llama.gguf", gguf_dir / "twin.gguf", threads=1, n_ctx=128, extra_bufts=False
        ):
            pass

    way = Bytecodes(
        [
            "llama/native.py",
            "llama/context.py",
            "llama/sequence.py",
            "llama/weights.py",
            "runtime/load.py",
        ]
    )
    load()
    # Between the bytecodes of the callback `tell`, and of what it calls, ctypes drops an exception or the load is cancelled.
    callback = ("tell", "end_with_program")
    places = [one for one in way.places(load) if one[0][0].co_name not in callback]
    for place in places[::step]:
        with contextlib.suppress(KeyboardInterrupt):
            way.run(load, place)
        gc.collect()
        assert all(counts[made] == counts[freed] for made, freed in MADE.items()), (
            f"{described(place)}: {counts}"
        )
    assert counts["llama_model_free"] > 12


@pytest.mark.full
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=slow)])
def test_an_interrupt_anywhere_in_listen_leaves_the_turn_to_the_engine_or_to_nobody(gguf_dir, step):
    """The engine never computes while another thread has the turn."""
    way, sampling = (
        Bytecodes(["runtime/stream.py", "runtime/request_queue.py"]),
        Sampling(seed=1, max_tokens=8, ignore_eos=True),
    )
    goes_on, n_computed = threading.Event(), 0
    with gguf_spec.load(
        gguf_dir / "llama.gguf", None, threads=1, n_ctx=128, extra_bufts=False
    ) as llm:
        right = llm.generate("ab", sampling).tokens

        def listen():
            llm.stream("abc", sampling).listen(lambda _: goes_on.wait(60))

        goes_on.set()
        listen()  # its thread runs
        places = way.places(listen)
        for place in places[::step]:
            llm.snapshot()
            goes_on.clear()
            with contextlib.suppress(KeyboardInterrupt):
                way.run(listen, place)
            for job in llm.engine.queue._jobs():
                n_computed += 1
                assert llm.engine.queue.first is job.ticket, described(place)
            goes_on.set()
            assert llm.generate("ab", sampling).tokens == right, described(place)
            assert llm.engine.queue.first is None, described(place)
    assert (len(places) > 200, n_computed > 3) == (True, True)


def test_no_lock_is_in_the_hands_of_python_code_where_an_interrupt_may_come():
    """Ctrl-C inside of an Event or a Condition leaves its lock taken, and the next thread waits for ever.

    Lock, RLock and SimpleQueue are written in C. The threads of a server take no signals.
    """
    kinds = re.compile(
        r"threading\.(Event|Condition|\w*Semaphore|Barrier)\b|queue\.(Lifo|Priority)?Queue\b"
    )
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if kinds.search(re.sub(r"asyncio\.\w+", "", path.read_text(encoding="utf-8")))
    }
    assert found == {"server/systemd.py", "server/worker.py"}
