"""LangChain's own `batch` and `abatch` on a server that runs four requests at once: the texts of one after the other."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from langchain_openai import ChatOpenAI

import gguf_spec
from gguf_spec.server import serve_in_thread

QUESTIONS = [f"Tell me of {animal}." for animal in ("a fox", "a wolf", "the king", "a mouse")] * 3


@pytest.fixture(scope="module")
def server():
    with gguf_spec.load("tales", threads=1, parallel=4) as llm, serve_in_thread(llm) as server:
        yield server


def chat_of(server, api, **more):
    return ChatOpenAI(
        model="tales",
        base_url=f"{server.url}/v1",
        api_key="none",
        max_tokens=24,
        temperature=0.8,
        extra_body={"seed": 7},
        max_retries=0,
        use_responses_api=api == "responses",
        **more,
    )


@pytest.fixture(params=["chat", "responses"])
def api(request):
    return request.param


def test_a_batch_has_the_texts_of_one_after_the_other(server, api):
    chat = chat_of(server, api)
    wanted = [chat.invoke(question).text for question in QUESTIONS]
    assert len({*wanted}) > 1 and all(wanted)  # seed and opening decide: some are equal
    together = chat.batch(QUESTIONS, config={"max_concurrency": 8})
    assert [one.text for one in together] == wanted
    parts = [list(chat.stream(question)) for question in QUESTIONS[:2]]
    assert ["".join(part.text for part in some) for some in parts] == wanted[:2]


def test_the_program_of_the_page_about_clients(server, capsys):
    page = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
    program = re.findall(r"```python\n(from langchain_openai .*?)```", page, re.DOTALL)[0]
    exec(compile(program.replace("http://127.0.0.1:8080", server.url), "clients.md", "exec"), {})
    assert len(capsys.readouterr().out.split()) > 5


def test_the_batch_of_asyncio(server, api):
    wanted = [chat_of(server, api).invoke(question).text for question in QUESTIONS[:4]]

    async def together():
        # LangChain's own client would stay in the event loop of the first test.
        async with httpx.AsyncClient() as client:
            return await chat_of(server, api, http_async_client=client).abatch(QUESTIONS[:4])

    assert [one.text for one in asyncio.run(together())] == wanted
