"""Reasoning in the chat API, with the official client and a model that reasons."""

import openai
import pytest

from gguf_spec.server import serve_in_thread
from tests.server.conftest import ask_chat
from tests.support import reasoners

CHAIN = ["Ċ", "a", "b", "</think>", "c", "d", "<|endoftext|>"]
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    path = tmp_path_factory.mktemp("thinker") / "thinker.gguf"
    with reasoners.thinker(path, reasoners.QWEN35, CHAIN) as llm, serve_in_thread(llm) as server:
        yield server


@pytest.fixture
def client(thinker):
    with openai.OpenAI(base_url=f"{thinker.url}/v1", api_key="none", max_retries=0) as one:
        yield one


def create(client, **options):
    options = {"messages": MESSAGES, "temperature": 0, "max_tokens": 30} | options
    return client.chat.completions.create(model="", **options)


def test_a_message_has_its_reasoning_apart(client):
    answer = create(client)
    message = answer.choices[0].message
    assert (message.content, message.reasoning_content) == ("cd", "ab")
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3
    assert answer.usage.completion_tokens == 5


def test_the_deltas_of_a_stream(client):
    options = {"include_usage": True, "include_speculation": True}
    chunks = list(create(client, stream=True, stream_options=options, logprobs=True))
    deltas = [chunk.choices[0].delta.model_dump() for chunk in chunks if chunk.choices]
    said = [(one.get("reasoning_content"), one.get("content")) for one in deltas]
    assert "".join(reasoning or "" for reasoning, _ in said) == "ab"
    assert "".join(content or "" for _, content in said) == "cd"
    begin = next(i for i, (_, content) in enumerate(said) if content)
    assert not any(reasoning for reasoning, _ in said[begin:])
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 3
    named = [one for c in chunks if c.choices and c.choices[0].logprobs for one in c.choices[0].logprobs.content]  # fmt: skip
    assert [one.token for one in named] == ["a", "b", "</think>", "c", "d"]


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "none"},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
    ],
)
def test_reasoning_is_switched_off(client, fields):
    with_it, without = create(client), create(client, **fields)
    # the template begins the answer after an empty part
    assert without.usage.prompt_tokens > with_it.usage.prompt_tokens
    assert getattr(without.choices[0].message, "reasoning_content", None) is None


def test_a_budget(client):
    message = create(client, extra_body={"think_budget": 1}).choices[0].message
    assert message.reasoning_content == "a"


def test_reasoning_of_earlier_answers(client):
    answer = {"role": "assistant", "content": "cd", "reasoning_content": "ab " * 30}
    kept = create(client, messages=[*MESSAGES, answer])
    dropped = create(client, messages=[*MESSAGES, answer, *MESSAGES])
    assert kept.usage.prompt_tokens > 80 > dropped.usage.prompt_tokens


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh"])
def test_an_effort_that_the_template_does_not_read(client, server, effort):
    assert create(client, reasoning_effort=effort).choices[0].message.content == "cd"
    assert ask_chat(server, reasoning_effort=effort).status == 200  # a model without reasoning


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": 1}, "reasoning_effort"),
        ({"reasoning_effort": []}, "reasoning_effort"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": []}}, "chat_template_kwargs"),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            "reasoning_effort",
        ),
        ({"think_budget": -1}, "think_budget"),
        (
            {"messages": [{"role": "user", "content": "a", "reasoning_content": "b"}]},
            "messages[0].reasoning_content",
        ),
        (
            {"messages": [{"role": "assistant", "content": "a", "reasoning_content": 1}]},
            "messages[0].reasoning_content",
        ),
    ],
)
def test_wrong_fields_are_named(thinker, fields, param):
    answer = ask_chat(thinker, **fields)
    assert (answer.status, answer.param) == (400, param)


def test_a_model_without_reasoning(server):
    assert ask_chat(server, think_budget=3).param == "think_budget"
    kwargs = {"enable_thinking": True}
    assert ask_chat(server, chat_template_kwargs=kwargs).param == "chat_template_kwargs"
    assert ask_chat(server, chat_template_kwargs={"enable_thinking": False}).status == 200
    assert ask_chat(server, reasoning_effort="none").status == 200
    message = ask_chat(server).json()["choices"][0]["message"]
    assert "reasoning_content" not in message
