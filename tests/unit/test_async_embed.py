"""AsyncLLM.embed and rerank: results as without asyncio, beside streams, and cancelled with the task."""

import asyncio
import threading

import numpy as np
import pytest

import gguf_spec
from gguf_spec import AsyncLLM, Sampling
from gguf_spec.errors import BusyError, ClosedError, EmptyPromptError, NoRankingError
from gguf_spec.llama.embedder import Embedder
from gguf_spec.llama.weights import Weights
from tests.support import encoders

TEXTS = ["the cat sat on the mat", "hello world", "zebra quux moon"]
LIMIT_S = 30


def run(main):
    return asyncio.run(asyncio.wait_for(main, LIMIT_S))


@pytest.fixture(scope="module", params=["mean", "rank"])
def encoder(request, tmp_path_factory):
    ranks = request.param == "rank"
    path = tmp_path_factory.mktemp("async") / "bert.gguf"
    encoders.write(path, pooling=4 if ranks else 1, ranks=ranks)
    with gguf_spec.load(path, threads=1) as llm:
        yield llm


def test_results_are_those_of_the_llm(encoder):
    async def main():
        a = AsyncLLM(encoder)
        seen = []
        results = await asyncio.gather(*(a.embed(TEXTS[:n], on_pass=seen.append) for n in (1, 3)))
        assert [one.done for one in seen if one.done] == [1, 1, 2, 3]  # a text is a pass
        assert [one.total for one in seen if not one.done] == [1, 3, 3, 3]  # each is tokenised
        with pytest.raises(EmptyPromptError):
            await a.embed([[]])
        if encoder.pooling == "rank":
            return results, await a.rerank("moon", TEXTS)
        with pytest.raises(NoRankingError):
            await a.rerank("moon", TEXTS)
        return results, None

    (one, three), scores = run(main())
    np.testing.assert_array_equal(one, encoder.embed(TEXTS[:1]))
    np.testing.assert_array_equal(three, encoder.embed(TEXTS))
    if scores:
        assert scores == encoder.rerank("moon", TEXTS)


@pytest.mark.full
def test_beside_requests_that_run_together():
    sampling = Sampling(seed=3, max_tokens=30)
    with gguf_spec.load("tales", threads=1, parallel=2) as llm:
        wanted, vectors = llm.generate("A fox", sampling).text, llm.embed(TEXTS)

        async def main():
            async with AsyncLLM(llm) as a:
                texts = [a.generate("A fox", sampling) for _ in range(4)]
                found = await asyncio.gather(*texts, *(a.embed(TEXTS) for _ in range(3)))
                async for _ in a.stream("A fox", sampling):
                    with pytest.raises(BusyError):  # it would wait for the stream
                        await a.embed(TEXTS)
                return found

        found = run(main())
    assert [one.text for one in found[:4]] == [wanted] * 4
    for one in found[4:]:
        np.testing.assert_array_equal(one, vectors)


def test_a_cancelled_task_ends_after_its_pass(tmp_path, monkeypatch):
    running, may_end, real, n = threading.Event(), threading.Event(), Embedder.rows_of, []

    def waiting(self, native, group):
        n.append(1)
        running.set()
        assert may_end.wait(LIMIT_S)
        return real(self, native, group)

    monkeypatch.setattr(Embedder, "rows_of", waiting)
    with gguf_spec.load(encoders.write(tmp_path / "bert.gguf"), threads=1) as llm:

        async def main():
            a = AsyncLLM(llm)
            task = asyncio.create_task(a.embed(TEXTS * 200))
            behind = asyncio.create_task(a.embed(TEXTS))
            await asyncio.to_thread(running.wait, LIMIT_S)
            for one in (task, behind):
                one.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await one
            may_end.set()
            await a.embed(TEXTS)
            await a.aclose()
            with pytest.raises(ClosedError):
                await a.embed(TEXTS)

        run(main())
    # one of the cancelled task, none of the one that waited, one for each text of the last
    assert len(n) == 1 + len(TEXTS)


@pytest.mark.parametrize("name", ["embed", "rerank"])
def test_a_cancelled_task_ends_after_the_text_that_is_tokenised(tmp_path, monkeypatch, name):
    running, may_end, real, n = threading.Event(), threading.Event(), Weights._tokenize, []

    def waiting(self, text, *given):
        if b"moon" in text:
            n.append(text)
            running.set()
            assert may_end.wait(LIMIT_S)
        return real(self, text, *given)

    path = encoders.write(tmp_path / "rank.gguf", pooling=4, ranks=True)
    with gguf_spec.load(path, threads=1) as llm:
        monkeypatch.setattr(Weights, "_tokenize", waiting)

        async def main():
            async with AsyncLLM(llm) as a:
                given = (["moon"] * 1000,) if name == "embed" else ("sun", ["moon"] * 1000)
                task = asyncio.create_task(getattr(a, name)(*given))
                await asyncio.to_thread(running.wait, LIMIT_S)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                may_end.set()
                await a.embed("sun")

        run(main())
    assert len(n) == 1
