"""AsyncLLM: the same texts, cancellation with the task, and a generation that waits for its reader."""

import asyncio
import gc
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import gguf_spec
from gguf_spec import AsyncLLM, Sampling, Speculation
from gguf_spec.errors import BusyError, ClosedError, EmptyPromptError, EventLoopError
from gguf_spec.runtime import async_llm
from gguf_spec.runtime.generation import StatsRecorder
from tests.support.fakes import FakeModel, fake_llm, random_table

TABLES = [random_table(np.random.default_rng(seed), 6) for seed in (5, 6)]
FREE = Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=1, max_tokens=20)
LONG = replace(FREE, max_tokens=None, ignore_eos=True)
LIMIT_S = 20


@pytest.fixture
def llm():
    with fake_llm(
        FakeModel(TABLES[0], n_ctx=5000), FakeModel(TABLES[1], n_ctx=5000), Speculation(0)
    ) as one:
        yield one


@pytest.fixture
def rounds(monkeypatch):
    """Count the rounds; each takes a millisecond, so that a long one outlasts a test."""
    quick, n = StatsRecorder.round_is_done, []

    def counted(*given):
        n.append(1)
        time.sleep(0.001)
        return quick(*given)

    monkeypatch.setattr(StatsRecorder, "round_is_done", counted)
    return n


def run(main):
    return asyncio.run(asyncio.wait_for(main, LIMIT_S))


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


async def read(stream):
    return "".join([chunk.text async for chunk in stream])


def is_free(llm):
    return llm.engine.queue.first is None


def test_texts_are_those_of_separate_requests(llm):
    prompts = ["ab", "ba", "cab", [0, 1]]

    async def main():
        a = AsyncLLM(llm)
        texts = await asyncio.gather(*(a.generate(one, FREE) for one in prompts))
        streams = await asyncio.gather(*(read(a.stream(one, FREE)) for one in prompts))
        return [one.text for one in texts], streams

    alone = [llm.generate(one, FREE).text for one in prompts]
    assert run(main()) == (alone, alone)


def test_a_stream_has_a_result(llm):
    async def main():
        a = AsyncLLM(llm)
        stream, waiting = a.stream("ab", FREE), a.stream("ba", FREE)
        with pytest.raises(asyncio.InvalidStateError):
            _ = waiting.result
        waiting.cancel()
        async with stream:
            chunks = [chunk async for chunk in stream]
            assert [chunk async for chunk in stream] == []
        assert (stream.result.tokens, stream.seed) == (llm.generate("ab", FREE).tokens, 1)
        assert (stream.stats.n_generated, chunks[-1].finish_reason) == (20, "length")

    run(main())
    assert is_free(llm)


def test_the_event_loop_is_not_blocked(llm, rounds):
    async def main():
        task, n = asyncio.create_task(AsyncLLM(llm).generate("ab", replace(FREE, max_tokens=50))), 0
        while not task.done():
            await asyncio.sleep(0.001)
            n += 1
        return n

    assert run(main()) > 2  # 1 where the generation blocks the loop; few on a busy machine


@pytest.mark.parametrize("how", ["generate", "stream"])
def test_cancelling_the_task_cancels_the_generation(llm, rounds, how):
    async def main():
        a = AsyncLLM(llm)
        task = asyncio.create_task(
            a.generate("ab", LONG) if how == "generate" else read(a.stream("ab", LONG))
        )
        await until(lambda: len(rounds) > 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert is_free(llm)  # at once, without waiting for anything
        assert (await a.generate("ab", FREE)).tokens

    run(main())
    assert len(rounds) < 1000


def test_cancelling_a_waiting_task(llm, rounds):
    """It never begins."""

    async def main():
        a = AsyncLLM(llm)
        first = a.stream("ab", LONG)
        prompts = []
        waiting = asyncio.create_task(a.generate("ba", FREE, on_prompt=prompts.append))
        other = a.stream("ba", FREE)
        await asyncio.sleep(0.02)
        await first.__anext__()
        waiting.cancel()
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [chunk async for chunk in other] == []
        await first.aclose()
        assert (await a.generate("ab", FREE)).tokens
        assert prompts == []

    run(main())


def test_a_reader_that_does_not_read_stops_the_generation(llm, rounds):
    async def main():
        stream = AsyncLLM(llm).stream("ab", replace(LONG, max_tokens=300))
        await until(lambda: len(rounds) > async_llm.MOST_UNREAD)
        await asyncio.sleep(0.15)
        n = len(rounds)
        assert n <= async_llm.MOST_UNREAD + 2
        for _ in range(10):
            await stream.__anext__()
        await until(lambda: len(rounds) >= n + 10)
        await asyncio.sleep(0.15)
        assert len(rounds) <= n + 10
        n_chunks = 10 + len([chunk async for chunk in stream])
        return n_chunks, stream.result.text

    n_chunks, text = run(main())
    assert n_chunks == 300
    assert text == llm.generate("ab", replace(LONG, max_tokens=300)).text


def test_cancel_gives_the_last_chunk(llm, rounds):
    async def main():
        stream = AsyncLLM(llm).stream("ab", LONG)
        await stream.__anext__()
        stream.cancel()
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].finish_reason == "cancelled"
        assert stream.result.finish_reason == "cancelled"
        assert len(chunks) < 10

    run(main())
    assert is_free(llm)


@pytest.mark.full
@pytest.mark.parametrize("how", ["break", "never read", "async with"])
def test_a_reader_that_stops_frees_the_model(llm, rounds, how):
    async def main():
        a = AsyncLLM(llm)
        if how == "never read":
            stream = a.stream("ab", LONG)
            await until(lambda: len(rounds) > 2)
            del stream
        elif how == "break":
            async for _ in a.stream("ab", LONG):
                break
        else:
            async with a.stream("ab", LONG) as stream:
                await stream.__anext__()
            assert is_free(llm)
        gc.collect()
        return (await a.generate("ab", FREE)).text

    assert run(main()) == llm.generate("ab", FREE).text
    assert len(rounds) < 100


def test_errors_reach_the_caller(llm):
    async def main():
        a = AsyncLLM(llm)
        with pytest.raises(EmptyPromptError):
            await a.generate("", FREE)
        stream = a.stream("", FREE)
        for _ in range(2):
            with pytest.raises(EmptyPromptError):
                await stream.__anext__()
        with pytest.raises(TypeError):
            await a.generate("ab", nonsense=1)
        unread = a.stream("", FREE)
        assert (await a.generate("ab", FREE)).tokens
        del unread

    run(main())


def test_another_event_loop(llm):
    a = AsyncLLM(llm)

    async def generate(one):
        return (await one.generate("ab", FREE)).text

    text = run(generate(a))
    with pytest.raises(EventLoopError, match="belongs to another event loop") as caught:
        run(generate(a))
    assert isinstance(caught.value, RuntimeError)
    assert run(generate(AsyncLLM(llm))) == text
    with pytest.raises(RuntimeError, match="no running event loop"):
        a.stream("ab", FREE)


def test_a_task_that_would_wait_for_itself(llm):
    async def main():
        a = AsyncLLM(llm)
        async for _ in a.stream("ab", replace(FREE, max_tokens=200)):
            with pytest.raises(BusyError):
                await a.generate("ba", FREE)
            with pytest.raises(BusyError):
                a.stream("ba", FREE)
            break
        other = asyncio.create_task(a.generate("ba", FREE))  # may wait: its task reads no stream
        return (await other).text

    assert run(main()) == llm.generate("ba", FREE).text


def test_closing_ends_requests(rounds):
    llm = fake_llm(FakeModel(TABLES[0], n_ctx=5000), None, Speculation(0))

    async def main():
        async with AsyncLLM(llm) as a:
            running = asyncio.create_task(a.generate("ab", LONG))
            await until(lambda: len(rounds) > 5)
            waiting = asyncio.create_task(a.generate("ba", LONG))
            await asyncio.sleep(0.01)
        assert (await running).finish_reason == "cancelled"
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(ClosedError):
            await a.generate("ab", FREE)
        await a.aclose()

    run(main())
    with pytest.raises(ClosedError):
        llm.generate("ab", FREE)


def test_closing_ends_an_unread_stream(rounds):
    llm = fake_llm(FakeModel(TABLES[0], n_ctx=5000), None, Speculation(0))

    async def main():
        async with AsyncLLM(llm) as a:
            stream = a.stream("ab", LONG)
            await until(lambda: len(rounds) > async_llm.MOST_UNREAD)
        assert [chunk.finish_reason async for chunk in stream][-1] == "cancelled"

    run(main())


@pytest.mark.full
def test_threads_end(llm):
    async def main():
        a = AsyncLLM(llm)
        await asyncio.gather(*(a.generate("ab", FREE) for _ in range(20)))
        return len(ours() - before)

    def ours():
        return {one for one in threading.enumerate() if one.name.startswith("gguf-spec-async")}

    before = ours()
    assert run(main()) == llm.parallel
    gc.collect()
    for _ in range(18_000):
        if not ours() - before:
            break
        time.sleep(0.01)
    assert not ours() - before


def test_a_loop_that_ends_meanwhile(llm, rounds):
    """The generation ends because it has no reader any more."""

    async def main():
        main.stream = AsyncLLM(llm).stream("ab", LONG)
        await until(lambda: len(rounds) > 2)

    run(main())
    for _ in range(18_000):
        if is_free(llm):
            break
        time.sleep(0.01)
    assert is_free(llm)


@pytest.mark.full
@pytest.mark.usefixtures("tales")  # it tests the machine, which takes long beside other programs
def test_a_real_pair():
    async def main():
        async with await AsyncLLM.load("tales", threads=1) as a:
            sampling = Sampling(seed=1, max_tokens=12)
            chat = a.chat("You tell tales.", sampling=sampling)
            first = await chat.send("Hi")
            text = await read(chat.stream("And then?"))
            there = a.llm.chat("You tell tales.", sampling=sampling)
            assert first.text == there.send("Hi").text
            assert text == there.send("And then?").text
            assert chat.messages == there.messages
            assert [one["role"] for one in chat.messages][1:] == ["user", "assistant"] * 2

    run(main())


def test_they_are_public():
    assert {"AsyncLLM", "AsyncStream", "AsyncChat"} <= {*gguf_spec.__all__}


@pytest.fixture
def quick_looks(monkeypatch):
    monkeypatch.setattr(async_llm, "STUCK_S", 0.01)
    monkeypatch.setattr(async_llm, "TAKEN_OVER_S", 0.05)


@pytest.mark.parametrize("how", ["generate", "send", "embed", "another stream"])
def test_a_stream_that_its_task_does_not_read_is_not_awaited_for_ever(llm, quick_looks, how):
    """It keeps the only slot, and the task that could read it waits for the slot."""

    async def main():
        a = AsyncLLM(llm)
        unread = a.stream("ab", LONG)
        other = a.stream("ba", FREE) if how == "another stream" else None
        ways = {
            "generate": lambda: a.generate("ba", FREE),
            "send": lambda: a.chat().send("ba"),
            "embed": lambda: a.embed("ba"),
            "another stream": lambda: read(other),
        }
        with pytest.raises(BusyError):
            await ways[how]()
        chunks = [await unread.__anext__() for _ in range(9)]
        await unread.aclose()
        if other:
            assert await read(other) == llm.generate("ba", FREE).text
        assert (await a.generate("ba", FREE)).text == llm.generate("ba", FREE).text
        return "".join(chunk.text for chunk in chunks)

    assert llm.generate("ab", replace(LONG, max_tokens=40)).text.startswith(run(main()))


def test_a_stream_that_another_task_reads_is_awaited(llm, quick_looks):
    async def main():
        a = AsyncLLM(llm)
        stream = a.stream("ab", replace(FREE, max_tokens=60))
        reader = asyncio.create_task(read(stream))
        text = (await a.generate("ba", FREE)).text
        return text, await reader

    texts = llm.generate("ba", FREE).text, llm.generate("ab", replace(FREE, max_tokens=60)).text
    assert run(main()) == texts


def test_a_short_stream_that_nobody_reads_is_awaited(llm, quick_looks):
    async def main():
        a = AsyncLLM(llm)
        unread = a.stream("ab", replace(FREE, max_tokens=2))
        text = (await a.generate("ba", FREE)).text
        return text, await read(unread)

    texts = llm.generate("ba", FREE).text, llm.generate("ab", replace(FREE, max_tokens=2)).text
    assert run(main()) == texts
