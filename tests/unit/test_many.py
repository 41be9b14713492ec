"""Many prompts at once: results in order, errors per prompt, and Ctrl-C at any moment cancels all."""

import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import (
    BusyError,
    ClosedError,
    EmptyPromptError,
    InvalidOptionError,
    PromptTooLongError,
    TemplateError,
)
from gguf_spec.runtime import many
from gguf_spec.runtime.generation import StatsRecorder
from tests.support.bytecodes import Bytecodes, described
from tests.support.fakes import FakeModel, fake_llm, random_table

TABLES = [random_table(np.random.default_rng(seed), 6) for seed in (5, 6)]
FREE = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=1, max_tokens=20)
PROMPTS = ["ab", "ba", "cab", [0, 1, 2], "a"]


@pytest.fixture
def llm():
    with fake_llm(
        FakeModel(TABLES[0]), FakeModel(TABLES[1]), Speculation(3, adaptive=False)
    ) as one:
        yield one
        assert one.generate("ab", FREE).tokens


def texts(results):
    return [one.text for one in results]


def no_threads_left():
    return not [one for one in threading.enumerate() if one.name.startswith("gguf-spec-many")]


@pytest.mark.parametrize("n", [None, 1, 3, 50])
def test_results_are_those_of_separate_requests_in_order(llm, n):
    alone = [llm.generate(prompt, FREE).text for prompt in PROMPTS]
    assert texts(llm.generate_many(PROMPTS, FREE, max_parallel=n)) == alone
    assert no_threads_left()


def test_one_sampling_for_each(llm):
    samplings = [replace(FREE, seed=seed, max_tokens=5 + seed) for seed in range(len(PROMPTS))]
    alone = [llm.generate(*one).text for one in zip(PROMPTS, samplings, strict=True)]
    results = llm.generate_many(iter(PROMPTS), iter(samplings), max_parallel=2)
    assert texts(results) == alone
    assert [one.seed for one in results] == list(range(len(PROMPTS)))
    assert {one.seed for one in llm.generate_many(["ab", "ab"])} != {1}
    with pytest.raises(InvalidOptionError, match="2 sampling options for 5 prompts") as caught:
        llm.generate_many(PROMPTS, samplings[:2])
    assert caught.value.option == "samplings"


def test_other_arguments_are_for_all(llm):
    tokens = []
    results = llm.generate_many(
        ["ab", "ba"], FREE, speculation=Speculation(0), echo=True, on_token=tokens.append
    )
    assert [one.text[:2] for one in results] == ["ab", "ba"]
    assert [one.stats.n_drafted for one in results] == [0, 0]
    assert tokens == [token for one in results for token in one.tokens]
    with pytest.raises(TypeError):
        llm.generate_many(["ab"], nonsense=1)


def test_a_list_of_messages_for_each(tales):
    asked = [[{"role": "user", "content": one}] for one in ("Hello", "Hi")]
    sampling = Sampling(seed=1, max_tokens=4)
    results = tales.generate_many(asked, sampling)
    assert texts(results) == [tales.generate(one, sampling).text for one in asked]


@pytest.mark.parametrize("n", [1, 3])
def test_an_error_is_the_result_of_its_prompt_only(llm, n):
    prompts = ["ab", "", "ba", "a" * 100, "ab", [77], "cab"]
    results = llm.generate_many(prompts, FREE, max_parallel=n)
    kinds = {1: EmptyPromptError, 3: PromptTooLongError, 5: InvalidOptionError}
    for i, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
        if i in kinds:
            assert type(result) is kinds[i]
            assert result.__traceback__ is None
        else:
            assert result.text == llm.generate(prompt, FREE).text


def test_each_result_is_reported_as_it_ends(llm):
    seen = []

    def report(i, result):
        assert threading.current_thread() is threading.main_thread()
        seen.append((i, result))

    results = llm.generate_many(["ab", "", "ba"], FREE, on_result=report, max_parallel=2)
    assert sorted(seen, key=lambda one: one[0]) == list(enumerate(results))


def test_results_are_in_order_however_they_end(llm):
    """The first prompt ends after the error of the second."""
    ended, order = threading.Event(), []

    def report(i, _):
        order.append(i)
        ended.set()

    results = llm.generate_many(
        ["ab", [{"role": "user", "content": "a"}]],  # there is no chat template
        FREE,
        max_parallel=2,
        on_result=report,
        on_token=lambda _: not ended.wait(180),
    )
    assert order == [1, 0]
    assert results[0].text == llm.generate("ab", FREE).text
    assert type(results[1]) is TemplateError


def test_jobs_are_taken_as_others_end():
    """A million of them are never in memory at once."""
    n_taken = n_ended = 0

    def jobs():
        nonlocal n_taken
        for n_taken in range(1, 101):
            assert n_taken - n_ended <= 6
            yield n_taken

    def negated(job):
        return -job
        yield

    def on_end(job, result):
        nonlocal n_ended
        n_ended += 1
        assert result == -job

    many.run_all(jobs(), negated, on_end, n_at_once=3, cancellation=many.Cancellation())
    assert (n_taken, n_ended) == (100, 100)


def test_nothing_to_do(llm):
    assert llm.generate_many([]) == []


@pytest.mark.parametrize("wrong", ["ab", {"role": "user", "content": "a"}, [1, 2], [b"ab"],
                                   [{"role": "user", "content": "a"}], ["ab", None]])  # fmt: skip
def test_one_prompt_is_no_list_of_prompts(llm, wrong):
    with pytest.raises(InvalidOptionError) as caught:
        llm.generate_many(wrong, FREE)
    assert caught.value.option == "prompts"
    assert caught.value.hint == "write one prompt as a list of one."


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_max_parallel_is_a_count(llm, wrong):
    with pytest.raises(InvalidOptionError, match="max_parallel is"):
        llm.generate_many(["ab"], FREE, max_parallel=wrong)


def test_parallel_is_the_default(llm, monkeypatch):
    given = []
    whole = many.run_all
    monkeypatch.setattr(
        many, "run_all", lambda *a, **b: given.append(b["n_at_once"]) or whole(*a, **b)
    )
    assert llm.parallel == 1
    llm.generate_many(PROMPTS, FREE)
    monkeypatch.setattr(type(llm), "parallel", 3)
    llm.generate_many(PROMPTS, FREE)
    llm.generate_many(PROMPTS[:2], FREE, max_parallel=7)
    assert given == [1, 3, 2]


def test_a_thread_with_an_open_stream_would_wait_for_itself(llm):
    with llm.stream("ab", FREE), pytest.raises(BusyError):
        llm.generate_many(["ab"], FREE)


def test_a_closed_llm():
    other = fake_llm(FakeModel(TABLES[0]), None, Speculation(0))
    other.close()
    with pytest.raises(ClosedError):
        other.generate_many(["ab"])


def test_what_the_callback_raises_cancels_all(llm):
    def fail(i, _):
        raise ZeroDivisionError(i)

    with pytest.raises(ZeroDivisionError):
        llm.generate_many(["ab"] * 20, FREE, on_result=fail, max_parallel=3)
    assert no_threads_left()
    assert llm.engine.queue.first is None


def test_a_wrong_type_inside_of_a_prompt_is_raised(llm):
    with pytest.raises(TypeError):
        llm.generate_many(["ab"] * 5, FREE, stop_tokens=7)
    assert no_threads_left()


def test_ctrl_c_cancels_all(llm, monkeypatch):
    """The running one after its round, and those that wait do not begin."""
    quick, n, third = StatsRecorder.round_is_done, [], iter([1, 1, 0])

    def slow(*given):
        n.append(1)
        if not next(third, 1):  # one signal alone, whichever thread is the third
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.01)
        return quick(*given)

    monkeypatch.setattr(StatsRecorder, "round_is_done", slow)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            llm.generate_many(["ab"] * 50, replace(FREE, max_tokens=None), max_parallel=4)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(n) < 50
    assert no_threads_left()
    assert llm.engine.queue.first is None


@pytest.mark.full
def test_an_interrupt_at_every_bytecode(llm):
    """Afterwards no thread is left, the LLM is free, and the next call gives the usual texts."""
    way, sampling = Bytecodes(["runtime/many.py"]), replace(FREE, max_tokens=6)

    def ask():
        return texts(llm.generate_many(PROMPTS, sampling, max_parallel=2, on_result=len_of))

    def len_of(i, result):
        return len(result.text)

    right, places, n = ask(), way.places(ask), 0
    for place in places:
        try:
            way.run(ask, place)
        except KeyboardInterrupt:
            n += 1
        assert no_threads_left(), described(place)
        assert llm.engine.queue.first is None, described(place)
    assert ask() == right
    # Those at which the threads happened to be faster or slower this time are not come by.
    assert n > 0.8 * len(places) > 100


@pytest.mark.slow
def test_real_texts_are_those_of_separate_requests(tales, prompts):
    samplings = [Sampling(seed=i, max_tokens=30) for i in range(len(prompts))]
    alone = [tales.generate(*one).text for one in zip(prompts, samplings, strict=True)]
    assert texts(tales.generate_many(prompts, samplings, max_parallel=4)) == alone


def test_it_is_public():
    assert gguf_spec.LLM.generate_many.__doc__
