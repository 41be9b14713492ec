import asyncio
import contextlib
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from gguf_spec import Sampling, Stream
from gguf_spec.errors import PromptTooLongError
from tests.support import children

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "examples"))

import async_app  # noqa: E402

LONG = Sampling(temperature=1.0, seed=1, max_tokens=None, ignore_eos=True)


async def read(llm, prompt, sampling):
    return "".join([piece async for piece in async_app.stream(llm, prompt, sampling)])


@pytest.mark.full
def test_concurrent_streams_are_those_of_separate_requests(tales):
    sampling, prompts = (
        Sampling(temperature=0.8, seed=3, max_tokens=40),
        ["The fox said", "The king said", "Once upon a time"],
    )

    async def all_of_them():
        return await asyncio.gather(*(read(tales, prompt, sampling) for prompt in prompts))

    assert asyncio.run(all_of_them()) == [
        tales.generate(prompt, sampling).text for prompt in prompts
    ]


@pytest.mark.full
def test_the_event_loop_is_not_blocked(tales):
    async def count():
        n = 0
        task = asyncio.create_task(read(tales, "Once", Sampling(seed=1, max_tokens=300)))
        while not task.done():
            await asyncio.sleep(0.005)
            n += 1
        return n

    assert asyncio.run(count()) > 1


@pytest.mark.parametrize("how", ["cancel", "break"])
def test_a_reader_that_stops_frees_the_model(tales, how, monkeypatch):
    quick, read_so_far, before = Stream.__next__, [], set(threading.enumerate())
    monkeypatch.setattr(
        Stream,
        "__next__",
        lambda self: (time.sleep(0.02), read_so_far.append(1), quick(self))[2],
    )

    async def leave():
        task = asyncio.create_task(read(tales, "Once", LONG))
        if how == "cancel":
            await asyncio.sleep(0.1)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return
        task.cancel()
        async with contextlib.aclosing(async_app.stream(tales, "Once", LONG)) as pieces:
            async for _ in pieces:
                break

    asyncio.run(leave())
    assert len(read_so_far) < 500  # its end comes after more than a thousand
    assert tales.generate("Once", Sampling(max_tokens=1)).tokens
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("asyncio")]


def test_errors_reach_the_caller(tales):
    with pytest.raises(PromptTooLongError):
        asyncio.run(read(tales, "word " * 5000, LONG))


def on_one_processor():
    """So that the program takes one thread: on a busy machine a second one is waited for."""
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])


@pytest.mark.full
def test_the_program():
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = children.run(
        [sys.executable, ROOT / "scripts" / "examples" / "async_app.py"],
        env=environment, capture_output=True, text=True, limit_s=120, check=True,
        preexec_fn=on_one_processor if hasattr(os, "sched_setaffinity") else None,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[-1] == "cancelled: True"
    assert lines.index(next(line for line in lines if line.startswith("king"))) > max(
        i for i, line in enumerate(lines) if line.startswith("fox: '")
    )
    assert done.stderr == ""
