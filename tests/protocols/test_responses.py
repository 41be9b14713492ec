"""The Responses API: items as messages, wrong fields, files, and tools of agents."""

import base64

import pytest

import gguf_spec
from gguf_spec.protocols.errors import ApiError
from gguf_spec.protocols.events import Started
from gguf_spec.protocols.request import REASONING
from gguf_spec.protocols.responses import ResponseReply, messages_of, read_response
from gguf_spec.tools.families import family_of
from tests.protocols.field_bodies import NoStore

FUNCTION = {
    "type": "function",
    "name": "f",
    "description": "Does it.",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
}


def test_the_message_of_a_developer_is_one_of_the_system():
    item = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]}  # fmt: skip
    assert messages_of(None, [item]) == messages_of("Be kind.", [])


def test_the_complete_reasoning_is_returned_and_not_its_summary():
    summary, content = ([{"type": "x", "text": text}] for text in ("Short.", "All of it."))
    for item, text in (
        ({"content": content, "summary": summary}, "All of it."),
        ({"content": None, "summary": summary}, "Short."),
    ):
        [message] = messages_of(None, [{"type": "reasoning"} | item])
        assert message == {"role": "assistant", "content": "", REASONING: text}


def data_url(data, kind="text/plain"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


FILE = {"type": "input_file", "filename": "a"}

FILES = [
    ({"file_data": data_url(b"%PDF", "application/pdf")}, "file_data"),
    ({"file_data": data_url(b"\xff\xfe")}, "file_data"),
    ({"file_data": data_url(b"a\0b")}, "file_data"),
    ({"file_data": "data:text/plain;base64,a$b="}, "file_data"),
    ({"file_data": "hello"}, "file_data"),
    ({"file_data": 1}, "file_data"),
    ({}, "file_data"),
    ({"file_data": data_url(b"a" * ((1 << 20) + 9))}, "file_data"),
    ({"file_id": "file-1"}, "file_id"),
    ({"file_url": "http://127.0.0.1:9/a.txt"}, "file_url"),
    ({"file_data": data_url(b"a"), "filename": "a\nb"}, "filename"),
]


def refused(**fields):
    """Return the field that the reader of bodies refuses."""
    with pytest.raises(ApiError) as caught:
        read_response({"input": "Hi."} | fields, gguf_spec.Speculation(), None, NoStore())
    assert caught.value.status == 400
    assert len(caught.value.error["message"]) < 800
    return caught.value.error["param"]


@pytest.mark.parametrize(("fields", "param"), FILES)
def test_files_that_are_refused(fields, param):
    said = [{"role": "user", "content": [FILE | fields]}]
    assert refused(input=said) == f"input[0].content[0].{param}"


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}

WRONG = [
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": [1]}, "input[0]"),
    ({"input": [{"role": "user", "content": "x"}, {"role": "none", "content": "x"}]}, "input[1].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].image_url"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]}, "input[0].content[0].image_url"),
    ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
    ({"input": [{"role": "assistant", "content": [FILE]}]}, "input[0].content[0].type"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
    ({"input": [{"type": ["x"]}]}, "input[0].type"),
    ({"input": [CALL | {"call_id": None}]}, "input[0].call_id"),
    ({"input": [CALL | {"name": "a b"}]}, "input[0].name"),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
    ({"input": [{"type": "reasoning", "summary": 1}]}, "input[0].summary"),
    ({"instructions": 1}, "instructions"),
    ({"previous_response_id": 1}, "previous_response_id"),
    ({"max_output_tokens": -2}, "max_output_tokens"),
    ({"max_output_tokens": 4, "max_tokens": 5}, "max_output_tokens"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {"a": "b" * 513}}, "metadata"),
    ({"text": {"format": {"type": "xml"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format"),
    ({"text": {"format": {"type": "json_object"}}, "grammar": 'root ::= "a"'}, "grammar"),
    ({"reasoning": {"effort": 3}}, "reasoning.effort"),
    ({"reasoning": {"summary": "x"}}, "reasoning.summary"),
    ({"reasoning": 1}, "reasoning"),
    ({"truncation": "x"}, "truncation"),
    ({"store": 1}, "store"),
    ({"stream": 1}, "stream"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [FUNCTION, FUNCTION]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"background": 1}, "background"),
    ({"background": True, "store": False}, "background"),
    ({"conversation": "c"}, "conversation"),
    ({"speculation": {"k": 999}}, "speculation.k"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_wrong_fields_are_named(fields, param):
    assert refused(**fields) == param


def items_of(*items, **more):
    request = read_response(
        {"input": [{"role": "user", "content": "x"}, *items]} | more,
        gguf_spec.Speculation(),
        None,
        NoStore(),
    )
    return request.prompts[0][1:]


def test_items_of_other_tools_are_rendered_or_left_out():
    call = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** Begin"}
    result = {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}
    answer, tool = items_of(call, result)
    assert answer["tool_calls"][0]["function"] == {
        "name": "patch",
        "arguments": {"input": "*** Begin"},
    }
    assert (tool["role"], tool["content"], tool["tool_call_id"]) == ("tool", "ok", "c")
    shell = {
        "type": "local_shell_call",
        "call_id": "s",
        "status": "completed",
        "action": {"command": ["ls"]},
    }
    out = {"type": "local_shell_call_output", "call_id": "s", "output": {"stdout": "a"}}
    answer, tool = items_of(shell, out)
    function = answer["tool_calls"][0]["function"]
    assert function == {"name": "local_shell", "arguments": {"action": {"command": ["ls"]}}}
    assert tool["content"] == '{"stdout": "a"}'
    cut = {"type": "function_call", "call_id": "d", "name": "sh", "arguments": '{"c": '}
    assert items_of(cut)[0]["tool_calls"][0]["function"]["arguments"] == '{"c": '
    for item in (
        {"type": "web_search_call", "id": "w", "status": "completed"},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
    ):
        assert items_of(item) == []


def test_what_cannot_be_read_in_a_result_is_a_short_text():
    pdf = {
        "type": "input_file",
        "filename": "a.pdf",
        "file_data": data_url(b"%PDF", "application/pdf"),
    }
    image = {"type": "input_image", "image_url": "https://x/a.png"}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    for part in (pdf, image, {"type": "input_image", "file_id": "x"}, {"type": "input_audio"}):
        output = {"type": "function_call_output", "call_id": "c", "output": [part]}
        assert items_of(call, output)[-1]["content"].startswith(
            f"[a part of the type {part['type']}"
        )


def test_items_with_the_same_id_are_taken():
    said = {"type": "message", "role": "assistant", "id": "msg_1", "content": "a"}
    assert len(items_of(said, said, {"role": "user", "content": "b"})) == 3


TOOLS_OF_AGENTS = [
    {"type": "web_search"},
    {
        "type": "custom",
        "name": "patch",
        "description": "d",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"},
    },
    {
        "type": "namespace",
        "name": "mcp__clock",
        "tools": [
            {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
        ],
    },
]


def test_tools_of_agents():
    choice = {"type": "function", "name": "now", "namespace": "mcp__clock"}
    body = {"input": "x", "tools": TOOLS_OF_AGENTS, "tool_choice": choice}
    request = read_response(body, gguf_spec.Speculation(), None, NoStore())
    patch, now = (one["function"] for one in request.tools.tools)
    assert (patch["name"], list(patch["parameters"]["properties"])) == ("patch", ["input"])
    assert patch["description"].endswith("start: /x/")
    assert (now["name"], request.tools.only) == ("mcp__clock__now", "mcp__clock__now")
    reply = ResponseReply(request, Started("m", family_of(""), 1))
    for name, arguments, expected in (
        (
            "patch",
            '{"input": "*** Begin"}',
            {"type": "custom_tool_call", "name": "patch", "input": "*** Begin"},
        ),
        (
            "mcp__clock__now",
            "{}",
            {"type": "function_call", "namespace": "mcp__clock", "name": "now", "arguments": "{}"},
        ),
    ):
        _, delta, done, last = reply._call("call_1", name, arguments)
        assert expected.items() <= last["item"].items() and last["item"]["call_id"] == "call_1"
        kind = (
            expected["type"]
            .replace("function_call", "function_call_arguments")
            .replace("custom_tool_call", "custom_tool_call_input")
        )
        assert (delta["type"], done["type"]) == (f"response.{kind}.delta", f"response.{kind}.done")
        # sent back, the call is the same
        [message] = items_of(last["item"])
        assert message["tool_calls"][0]["function"]["name"] == name
