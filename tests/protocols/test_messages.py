"""Anthropic's dialect: wrong fields, and blocks as messages."""

import json

import pytest

import gguf_spec
from gguf_spec.protocols.errors import ApiError
from gguf_spec.protocols.messages import read_request
from gguf_spec.protocols.openai import read_chat

USER = {"role": "user", "content": "Hello."}

TOOL = {"name": "f", "description": "Does it.", "input_schema": {"type": "object"}}


@pytest.mark.parametrize("effort", ["low", "high"])
def test_the_effort_is_that_of_the_chat(effort):
    body, default = {"messages": [USER], "max_tokens": 16}, gguf_spec.Speculation()
    asked = read_request(body | {"output_config": {"effort": effort}}, default, None)
    assert asked.reasoning.effort == effort
    assert (
        asked.reasoning == read_chat(body | {"reasoning_effort": effort}, default, None).reasoning
    )


TEXT = {"type": "text", "text": "x"}


def blocks(*given, role="user"):
    return {"messages": [{"role": role, "content": list(given)}, USER]}


WRONG = [
    ({"messages": None}, "messages must"),
    ({"messages": []}, "messages must"),
    ({"messages": [1]}, "messages[0] must"),
    ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].role must"),
    ({"messages": [{"role": "user"}]}, "messages[0].content must"),
    (blocks(), "messages[0].content must"),
    (blocks("x"), "messages[0].content[0].type must"),
    (blocks({"type": "image", "source": {}}), "messages[0].content[0].source.type must be base64"),
    (blocks({"type": "image", "source": {"type": "url", "url": "https://x"}}), "messages[0].content[0].source.type must be base64"),
    (blocks({"type": "image", "source": {"type": "base64", "data": "aGk="}}), "messages[0].content[0].source.data is not a PNG"),
    (blocks({"type": "image", "source": {"type": "base64"}}), "messages[0].content[0].source.data must"),
    (blocks({"type": "text"}), "messages[0].content[0].text must"),
    (blocks({"type": "tool_use", "id": "a", "name": "f", "input": {}}), "messages[0].content[0].type must"),
    (blocks({"type": "tool_result", "content": "x"}), "messages[0].content[0].tool_use_id must"),
    (blocks({"type": "tool_result", "tool_use_id": "a", "is_error": 1}), "messages[0].content[0].is_error must"),
    (blocks({"type": "tool_result", "tool_use_id": "a"}, role="assistant"), "messages[0].content[0].type must"),
    (blocks({"type": "tool_use", "id": "a", "name": "f", "input": "{}"}, role="assistant"), "messages[0].content[0].input must"),
    (blocks({"type": "tool_use", "id": "a", "name": "f g", "input": {}}, role="assistant"), "messages[0].content[0].name must"),
    (blocks({"type": "thinking"}, role="assistant"), "messages[0].content[0].thinking must"),
    ({"system": 1}, "system must"),
    ({"system": [{"type": "image"}]}, "system[0].type must"),
    ({"max_tokens": -2}, "max_tokens is"),
    ({"max_tokens": "x"}, "max_tokens is"),
    ({"stop_sequences": [1]}, "stop_sequences must"),
    ({"stop_sequences": ["x" * 300]}, "stop_sequences must"),
    ({"thinking": {"type": "between_tools"}}, "thinking must"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens must"),
    ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens must"),
    ({"output_config": {"effort": 5}}, "output_config.effort must"),
    ({"output_config": {"format": {"type": "json_object"}}}, "output_config.format must"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {}}}, "grammar": 'root ::= "a"'}, "grammar cannot"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema must"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type must"),
    ({"tools": [TOOL | {"strict": 1}]}, "tools[0].strict must"),
    ({"tools": [TOOL, TOOL]}, "tools must"),
    ({"tool_choice": "auto"}, "tool_choice must"),
    ({"tool_choice": {"type": "any"}}, "tool_choice requires"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name names"),
    ({"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice.disable_parallel_tool_use must"),
    ({"container": "x"}, "container is not"),
    ({"thread": {"type": "create"}}, "thread is not supported"),
    ({"speculation": {"k": 999}}, "speculation.k is"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_wrong_fields_are_named(fields, message):
    with pytest.raises(ApiError) as caught:
        read_request({"messages": [USER], "max_tokens": 16} | fields, gguf_spec.Speculation(), None)
    assert caught.value.status == 400
    assert caught.value.error["message"].startswith(message)
    assert len(caught.value.error["message"]) < 900


READ_TOOL = TOOL | {"name": "Read", "defer_loading": True}


def results(*content, **more):
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [*content]} | more
    messages = [
        USER,
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    body = {"messages": messages, "max_tokens": 4, "tools": [TOOL, READ_TOOL]}
    return read_request(body, gguf_spec.Speculation(), None)


def test_blocks_of_results():
    text = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "Page 1."},
    }
    pdf = {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"},
    }
    assert results(text).prompts[0][-1]["content"] == "Page 1."
    assert "application/pdf" in results(pdf).prompts[0][-1]["content"]
    assert results(text, is_error=True).prompts[0][-1]["content"] == "Error: Page 1."


def test_what_cannot_be_read_in_a_result_is_a_short_text():
    url = {"type": "image", "source": {"type": "url", "url": "https://x/a.png"}}
    broken = {"type": "image", "source": {"type": "base64", "data": "aGk="}}
    for block in (url, broken, {"type": "of_tomorrow"}):
        assert results(block).prompts[0][-1]["content"].startswith("[a part of the type ")
    page = {"type": "search_result", "title": "T", "source": "S", "content": [TEXT]}
    assert results(page).prompts[0][-1]["content"] == "T (S)\nx"
    with pytest.raises(ApiError, match="text must be a string"):
        results({"type": "text"})


def test_deferred_tools_stand_where_they_are_referenced():
    plain, found = (
        results({"type": "text", "text": "x"}),
        results({"type": "tool_reference", "tool_name": "Read"}),
    )
    assert [one["function"]["name"] for one in plain.tools.tools] == [TOOL["name"]]
    assert [one["function"]["name"] for one in found.tools.tools] == [TOOL["name"], "Read"]
    assert json.loads(found.prompts[0][-1]["content"])["input_schema"] == TOOL["input_schema"]


def test_tools_and_blocks_of_anthropic_are_left_out():
    searched = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "of_tomorrow"},
        TEXT,
    ]
    body = {"messages": [USER, {"role": "assistant", "content": searched}, USER], "max_tokens": 4}
    body["tools"] = [{"type": "web_search_20250305", "name": "web_search"}, TOOL]
    request = read_request(body, gguf_spec.Speculation(), None)
    assert [one["function"]["name"] for one in request.tools.tools] == [TOOL["name"]]
    assert request.prompts[0][1] == {"role": "assistant", "content": TEXT["text"]}
