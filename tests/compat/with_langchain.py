"""What LangChain does with `gguf_spec_compat.Llama`. Runs where langchain-community is installed: see test_ecosystem.py."""

import asyncio
from typing import Literal

import pytest
from langchain_community.chat_models import ChatLlamaCpp
from langchain_community.llms import LlamaCpp
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from pydantic import BaseModel

import gguf_spec_compat as compat

HELLO = [SystemMessage("You tell tales."), HumanMessage("Tell me a story about a fox and a king.")]


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Rome", "Bonn"]
    days: Literal[1, 2, 3]


@pytest.fixture(scope="module")
def own(pair):
    compat.install()
    options = {"draft_model_path": pair[1], "flash_attn": False}
    yield {
        "model_path": pair[0],
        "n_ctx": 1024,
        "n_threads": 1,
        "max_tokens": 40,
        "temperature": 0,
        "verbose": False,
        "model_kwargs": options,
    }
    compat.uninstall()


@pytest.fixture(scope="module")
def chat(own):
    return ChatLlamaCpp(**own)


@pytest.fixture(scope="module")
def llm(own):
    return LlamaCpp(**own)


def test_it_is_ours_with_its_draft(chat, llm):
    for one in (chat, llm):
        assert isinstance(one.client, compat.Llama)
        assert one.client._llm.draft_name == "tales-draft-Q4_0.gguf"


def test_a_chat(chat):
    answer = chat.invoke(HELLO)
    assert answer.content
    assert answer.response_metadata["finish_reason"] in ("stop", "length")
    parts = list(chat.stream(HELLO))
    assert len(parts) > 3
    assert "".join(part.content for part in parts) == answer.content
    asked_again = [*HELLO, AIMessage(answer.content), HumanMessage("And then?")]
    assert chat.invoke(asked_again).content != answer.content
    stopped = chat.stream(HELLO, stop=[" "])  # with invoke LangChain 0.4 drops it on the way
    assert "".join(part.content for part in stopped) == answer.content.split(" ")[0]


def test_chats_at_once(chat):
    async def ask():
        return await asyncio.gather(*(chat.ainvoke(HELLO) for _ in range(3)))

    assert {answer.content for answer in asyncio.run(ask())} == {chat.invoke(HELLO).content}


def test_tools_that_must_be_called(chat):
    assert isinstance(chat.with_structured_output(Weather).invoke(HELLO), Weather)
    bound = chat.bind_tools(
        [Weather], tool_choice={"type": "function", "function": {"name": "Weather"}}
    )
    whole, *others = bound.invoke(HELLO).tool_calls
    assert (whole["name"], others) == ("Weather", [])
    joined = None
    for part in bound.stream(HELLO):
        joined = part if joined is None else joined + part
    assert [(call["name"], call["args"]) for call in joined.tool_calls] == [
        ("Weather", whole["args"])
    ]


def test_text(llm):
    text = llm.invoke("Once upon a time")
    assert text
    assert "".join(llm.stream("Once upon a time")) == text
    assert llm.get_num_tokens("Once upon a time") == 4
    assert llm.invoke("Once upon a time", stop=[","]) == text.split(",")[0]


def test_more_texts_at_once_than_an_executor_has_threads(llm):
    """Any thread of the pool reads each part: with a lock owned by one thread this would hang or fail."""

    async def ask():
        return await asyncio.wait_for(
            asyncio.gather(*(llm.ainvoke("Once upon a time") for _ in range(40))), 120
        )

    assert set(asyncio.run(ask())) == {llm.invoke("Once upon a time")}


def test_a_grammar(own):
    llm = LlamaCpp(**own, grammar='root ::= " yes" | " no"')
    assert llm.invoke("Is it so?") in (" yes", " no")


def test_what_cannot_be_had_is_named(own):
    with pytest.raises(ValueError, match="use_mlock is True but must be False"):
        ChatLlamaCpp(**own, use_mlock=True)
