"""Several requests at once, for each kind of cache: the tokens are those of separate requests."""

import threading
from dataclasses import replace
from functools import partial

import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import BusyError
from gguf_spec.gguf.validation import ModelFile
from gguf_spec.llama import backend, memory
from gguf_spec.llama.options import ContextOptions
from gguf_spec.runtime import request_queue
from gguf_spec.runtime.profile_files import write_profile
from gguf_spec.runtime.request_queue import MOST_UNREAD

PROMPTS = ["abc ab " * (3 + i) for i in range(6)]
SAMPLINGS = [Sampling(seed=i, max_tokens=20 + i, ignore_eos=True) for i in range(6)]
PLAIN = {"threads": 1, "extra_bufts": False}


def tokens(results):
    return [one.tokens for one in results]


@pytest.mark.parametrize("kind", ["llama", "mamba", "lfm2"])
def test_tokens_are_those_of_separate_requests(gguf_dir, kind):
    with gguf_spec.load(gguf_dir / f"{kind}.gguf", None, **PLAIN) as llm:
        alone = [llm.generate(*one).tokens for one in zip(PROMPTS, SAMPLINGS, strict=True)]
    with gguf_spec.load(gguf_dir / f"{kind}.gguf", None, parallel=4, **PLAIN) as llm:
        for _ in range(2):
            assert tokens(llm.generate_many(PROMPTS, SAMPLINGS)) == alone
        with llm.models():  # in turn: a reader has its last token before the slot is free
            states = llm.slots()
        assert [one.request for one in states] == [None] * 4
        assert any(one.n_cached for one in states)  # how many run at once depends on the machine
        assert all(0 <= one.n_cached <= one.n_ctx == llm.n_ctx for one in states)
        assert 0 < llm.pass_counts.n_passes < llm.pass_counts.n_rows


def test_auto_is_one_for_passes_of_their_own(gguf_dir):
    path, speculation = gguf_dir / "llama.gguf", Speculation(strict=True)
    with gguf_spec.load(path, "ngram", parallel="auto", speculation=speculation, **PLAIN) as llm:
        assert llm.parallel == 1
        assert llm.slots()[0].request is None
        before = llm.pass_counts
        llm.generate("abc", Sampling(max_tokens=3, ignore_eos=True))
        assert llm.pass_counts.n_passes > before.n_passes


def test_auto_is_one_where_the_memory_is_unknown(gguf_dir, monkeypatch):
    monkeypatch.setattr(backend, "offloads", lambda: True)
    path = gguf_dir / "llama.gguf"
    models = [(ModelFile(path).header, ContextOptions())]
    assert memory.parallel_in_room(models, 16) is None
    with gguf_spec.load(path, None, parallel="auto", **PLAIN) as llm:
        assert (llm.parallel, llm.parallel_reason) == (1, "the free memory is unknown")


def test_auto_follows_the_measured_costs(gguf_dir):
    """4 before the costs are measured; then by the table, whatever this machine measured."""
    path = gguf_dir / "cousin.gguf"
    options = {"parallel": "auto", "n_ctx": 200, **PLAIN}
    with gguf_spec.load(path, None, **options) as llm:
        assert (llm.parallel, llm.parallel_reason) == (
            4,
            "the usual number: no costs were measured yet",
        )
        target = llm.engine.target
        for pass_s, n in (({1: 0.01, 65: 0.01}, 16), ({1: 0.01, 65: 0.65}, 4)):
            measured = replace(llm.profile, target=pass_s, target_depth={}, guessed=(), steady=True)
            assert write_profile(target, None, measured)
            with gguf_spec.load(path, None, **options) as again:
                assert again.parallel == n
                assert again.parallel_reason.startswith("as measured, ")
    with gguf_spec.load(path, None, parallel=2, **PLAIN) as llm:
        assert llm.parallel_reason == ""


def test_a_gap_needs_other_requests(gguf_dir):
    """No option is accepted that has no effect."""
    path = gguf_dir / "llama.gguf"
    with pytest.raises(gguf_spec.errors.InvalidOptionError, match="none waits for another one"):
        gguf_spec.load(path, None, max_gap=0.5, **PLAIN)
    for wrong in (0, -1, float("nan"), 1e9):
        with pytest.raises(gguf_spec.errors.InvalidOptionError, match="max_gap"):
            gguf_spec.load(path, None, parallel=2, max_gap=wrong, **PLAIN)
    with gguf_spec.load(path, None, parallel=2, max_gap=0.5, **PLAIN) as llm:
        assert llm.engine.pair.scheduler()._max_gap == 0.5


@pytest.mark.parametrize("wrong", [0, 65, "many", 1.5])
def test_wrong_numbers(gguf_dir, wrong):
    with pytest.raises(gguf_spec.errors.InvalidOptionError, match="from 1 to 64, or auto"):
        gguf_spec.load(gguf_dir / "llama.gguf", None, parallel=wrong, **PLAIN)


def in_another_thread(work):
    """Return what a function returns; the test fails where it waits for ever."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(180)
    assert found, "it waits for ever"
    return found[0]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ValueError])
def test_what_a_callback_raises_ends_its_request_alone(gguf_dir, error):
    def fail(_):
        raise error

    with gguf_spec.load(gguf_dir / "llama.gguf", None, parallel=2, **PLAIN) as llm:
        right = llm.generate(PROMPTS[0], SAMPLINGS[0]).tokens
        with pytest.raises(error):
            llm.generate(PROMPTS[1], SAMPLINGS[1], on_token=fail)
        assert in_another_thread(lambda: llm.generate(PROMPTS[0], SAMPLINGS[0]).tokens) == right


def test_a_request_whose_reader_is_behind_waits(gguf_dir):
    """While another one makes 150 tokens, it makes as many as its stream holds."""
    long = Sampling(seed=1, max_tokens=150, ignore_eos=True)
    with gguf_spec.load(gguf_dir / "llama.gguf", None, parallel=2, **PLAIN) as llm:
        right = llm.generate("abc", long).tokens
        stream = llm.stream("abc", long)
        said = [*next(stream).tokens]
        (job,) = llm.engine.queue._running
        in_another_thread(lambda: llm.generate("ab", long))
        assert job._out.qsize() == MOST_UNREAD
        said += [token for chunk in stream for token in chunk.tokens]
        assert tuple(said) == right


def test_a_cancelled_request_whose_reader_is_behind_ends(gguf_dir):
    with gguf_spec.load(gguf_dir / "llama.gguf", None, parallel=2, **PLAIN) as llm:
        stream = llm.stream("abc", Sampling(seed=1, max_tokens=None, ignore_eos=True))
        next(stream)
        (job,) = llm.engine.queue._running
        in_another_thread(lambda: llm.generate("ab", Sampling(max_tokens=150, ignore_eos=True)))
        assert job.task.is_parked
        llm.engine.queue.cancel()
        in_another_thread(lambda: llm.generate("ab", Sampling(max_tokens=9, ignore_eos=True)))
        assert job.has_ended
        assert [chunk.finish_reason for chunk in stream][-1] == "cancelled"


def until(condition):
    """Wait for what other threads do."""
    waited = threading.Event()
    for _ in range(6000):
        if condition():
            return
        waited.wait(0.01)
    raise AssertionError("it never came")


def test_a_request_that_waits_for_slots_is_cancelled_at_once(gguf_dir):
    long = Sampling(max_tokens=None, ignore_eos=True)
    with gguf_spec.load(gguf_dir / "llama.gguf", None, parallel=2, **PLAIN) as llm:
        held = [llm.stream("abc", long), llm.stream("ab", long)]
        for stream in held:
            next(stream)
        with pytest.raises(BusyError):
            llm.stream("a", long)
        made = []

        def read():
            made.append(llm.stream("a", long))
            return [chunk.finish_reason for chunk in made[0]]

        found = []
        thread = threading.Thread(target=lambda: found.append(read()), daemon=True)
        thread.start()
        until(lambda: made and llm.engine.queue._queue)
        made[0].cancel()
        thread.join(180)
        assert found == [["cancelled"]]
        assert llm.engine.queue.n_running == 2


def test_no_request_is_started_before_a_turn_that_is_awaited(gguf_dir, tmp_path):
    order, short = [], Sampling(max_tokens=2, ignore_eos=True)
    with gguf_spec.load(gguf_dir / "llama.gguf", None, parallel=2, **PLAIN) as llm:
        stream = llm.stream("abc", Sampling(max_tokens=None, ignore_eos=True))
        next(stream)

        def save():
            llm.save_session(tmp_path / "one.session", {})
            order.append("turn")

        def generate():
            llm.generate("ab", short)
            order.append("request")

        threads = [threading.Thread(target=work, daemon=True) for work in (save, generate)]
        threads[0].start()
        until(lambda: len(llm.engine.queue.tickets) == 2)
        threads[1].start()
        until(lambda: llm.engine.queue._queue or order)
        list(stream)
        for thread in threads:
            thread.join(180)
        assert order == ["turn", "request"]


def test_slots_whose_preparation_fails_are_emptied(gguf_dir, monkeypatch):
    """They may be half copied or restored."""
    with gguf_spec.load(gguf_dir / "llama.gguf", None, parallel=2, **PLAIN) as llm:
        right = llm.generate(PROMPTS[0], SAMPLINGS[0]).tokens
        assert any(one.n_cached for one in llm.slots())

        def fail(*_):
            raise RuntimeError("half copied")

        monkeypatch.setattr(request_queue, "prepare_slot", fail)
        with pytest.raises(RuntimeError, match="half copied"):
            llm.generate(PROMPTS[0], SAMPLINGS[0])
        assert not any(one.n_cached for one in llm.slots())
        monkeypatch.undo()
        assert llm.generate(PROMPTS[0], SAMPLINGS[0]).tokens == right


def test_preparing_slots_changes_no_row_of_the_others(gguf_dir, monkeypatch):
    """Saving a cache may need a pass, which overwrites llama.cpp's rows."""
    with gguf_spec.load(gguf_dir / "llama.gguf", None, parallel=2, **PLAIN) as llm:
        right = llm.generate(PROMPTS[0], SAMPLINGS[0]).tokens
        arrived, goes_on, said = threading.Event(), threading.Event(), []

        def choose(pairs, prompt, kept, real=request_queue.prepare_slot):
            free = next(pair.target for pair in pairs if pair.task is None)
            free.rollback(0)
            free.logits([7], 1)
            free.rollback(0)
            return real(pairs, prompt, kept)

        def wait(token):
            said.append(token)
            if len(said) == 3:
                arrived.set()
                assert goes_on.wait(180)

        found = []
        work = partial(llm.generate, PROMPTS[0], SAMPLINGS[0], on_token=wait)
        thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
        thread.start()
        assert arrived.wait(180)
        monkeypatch.setattr(request_queue, "prepare_slot", choose)
        other = threading.Thread(target=llm.generate, args=("ab", SAMPLINGS[1]), daemon=True)
        other.start()
        until(lambda: llm.engine.queue.n_waiting)
        goes_on.set()
        thread.join(180)
        other.join(180)
        assert found[0].tokens == right


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_stream_that_is_run_to_its_end(gguf_dir, parallel):
    """Chunks come in order, from the thread that computes; what was read before is not sent again."""
    with gguf_spec.load(gguf_dir / "llama.gguf", None, parallel=parallel, **PLAIN) as llm:
        right, came, threads = llm.generate(PROMPTS[0], SAMPLINGS[0]), [], set()

        def call(chunk):
            came.append(chunk)
            threads.add(threading.get_ident())

        with llm.stream(PROMPTS[0], SAMPLINGS[0]) as stream:
            assert stream.run_to_end(call).tokens == right.tokens
        assert [token for chunk in came for token in chunk.tokens] == [*right.tokens]
        assert [chunk.finish_reason for chunk in came] == [None] * (len(came) - 1) + ["length"]
        assert threads == {
            llm.engine.queue._thread.ident if parallel > 1 else threading.get_ident()
        }
        came.clear()
        stream = llm.stream(PROMPTS[0], SAMPLINGS[0])
        first = next(stream)
        assert stream.run_to_end(call).tokens == right.tokens
        assert [token for one in [first, *came] for token in one.tokens] == [*right.tokens]
        came.clear()
        stream = llm.stream(PROMPTS[0], SAMPLINGS[0])
        stream.cancel()
        assert stream.run_to_end(call).finish_reason == came[-1].finish_reason == "cancelled"


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("error", [SystemExit, ValueError])
def test_what_the_reader_of_chunks_raises_ends_the_request(gguf_dir, parallel, error):
    def fail(_):
        raise error

    with gguf_spec.load(gguf_dir / "llama.gguf", None, parallel=parallel, **PLAIN) as llm:
        right = llm.generate(PROMPTS[0], SAMPLINGS[0]).tokens
        stream = llm.stream(PROMPTS[1], SAMPLINGS[1])
        with pytest.raises(error):
            stream.run_to_end(fail)
        assert stream.result.finish_reason == "cancelled"
        assert in_another_thread(lambda: llm.generate(PROMPTS[0], SAMPLINGS[0]).tokens) == right
