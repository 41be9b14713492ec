"""Two prompts under asyncio, streamed through one LLM, the second cancelled after a moment.

An LLM blocks while it computes, so a thread reads the stream and hands each piece to the event loop; leaving the loop cancels the generation.

    python scripts/examples/async_app.py
"""

import asyncio
import threading
from collections.abc import AsyncIterator

import gguf_spec
from gguf_spec import LLM, Sampling, Stream


async def stream(llm: LLM, prompt: str, sampling: Sampling) -> AsyncIterator[str]:
    """Yield pieces of the answer; the LLM is free again within one round when the caller stops or is cancelled."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[str | None] = asyncio.Queue()
    left = threading.Event()
    opened: list[Stream] = []

    def read() -> None:
        try:
            with llm.stream(
                prompt, sampling
            ) as answer:  # waits for its turn: an LLM serves one at a time
                opened.append(answer)
                if left.is_set():
                    return
                for chunk in answer:
                    loop.call_soon_threadsafe(pieces.put_nowait, chunk.text)
        finally:
            loop.call_soon_threadsafe(pieces.put_nowait, None)

    reader = asyncio.create_task(asyncio.to_thread(read))
    try:
        while (piece := await pieces.get()) is not None:
            yield piece
        await reader  # raises what went wrong in there
    finally:
        left.set()
        for answer in opened:
            answer.cancel()
        await asyncio.wait([reader])


async def show(llm: LLM, name: str, prompt: str, max_tokens: int, began: asyncio.Event) -> None:
    n = 0
    sampling = Sampling(seed=1, max_tokens=max_tokens, ignore_eos=True)
    try:
        async for piece in stream(llm, prompt, sampling):
            n += 1
            began.set()
            print(f"{name}: {piece!r}", flush=True)
    finally:
        print(f"{name}: {n} pieces", flush=True)


async def main() -> None:
    with gguf_spec.load("tales") as llm:
        fox, king = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(show(llm, "fox", "The fox said", 40, fox))
        await fox.wait()
        second = asyncio.create_task(show(llm, "king", "The king said", 2000, king))
        await first
        await king.wait()
        await asyncio.sleep(0.3)
        second.cancel()
        await asyncio.wait([second])
        print("cancelled:", second.cancelled())


if __name__ == "__main__":
    asyncio.run(main())
