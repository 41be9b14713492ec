"""LlamaIndex's asynchronous calls on a server that runs four requests at once: the texts of one after the other."""

import asyncio
import re
from pathlib import Path

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

import gguf_spec
from gguf_spec.server import serve_in_thread

QUESTIONS = [f"Tell me of {animal}." for animal in ("a fox", "a wolf", "the king", "a mouse")] * 3


@pytest.fixture(scope="module")
def llm():
    with gguf_spec.load("tales", threads=1, parallel=4) as one, serve_in_thread(one) as server:
        yield OpenAILike(
            model="tales",
            api_base=f"{server.url}/v1",
            api_key="none",
            is_chat_model=True,
            context_window=2048,
            max_tokens=24,
            temperature=0.8,
            max_retries=0,
            additional_kwargs={"seed": 7},
        )


def test_the_program_of_the_page_about_clients(llm, capsys):
    page = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
    program = re.findall(r"```python\n(from llama_index.*?)```", page, re.DOTALL)[0]
    program = program.replace("http://127.0.0.1:8080/v1", llm.api_base)
    exec(compile(program, "clients.md", "exec"), {})
    assert len(capsys.readouterr().out.split()) > 5


def messages(question):
    return [ChatMessage(role="user", content=question)]


def test_calls_at_once_have_the_texts_of_one_after_the_other(llm):
    wanted = [llm.chat(messages(question)).message.content for question in QUESTIONS]
    assert len({*wanted}) > 1 and all(wanted)  # seed and opening decide: some are equal

    async def streamed(question):
        parts = await llm.astream_chat(messages(question))
        return "".join([part.delta or "" async for part in parts])

    async def at_once():
        whole = [llm.achat(messages(question)) for question in QUESTIONS[:8]]
        answers = await asyncio.gather(*whole, *(streamed(one) for one in QUESTIONS[8:]))
        return [one if isinstance(one, str) else one.message.content for one in answers]

    assert asyncio.run(at_once()) == wanted
