"""The Messages API of Anthropic: texts as in a chat, events, stop reasons, tools, reasoning, errors and limits."""

import json
import re

import pytest

import gguf_spec
from gguf_spec.server import serve_in_thread
from tests.server.conftest import ask, ask_chat, until
from tests.server.test_reasoning import CHAIN
from tests.support import reasoners
from tests.support.talkers import answering

PATH = "/v1/messages"
COUNT = f"{PATH}/count_tokens"
USER = {"role": "user", "content": "Hello."}
FUNCTION = {"name": "f", "description": "Does it.", "parameters": {"type": "object"}}
TOOL = {"name": "f", "description": "Does it.", "input_schema": {"type": "object"}}
CALL = ["Let me see.", "<tool_call>", '\n{"name": "f", ', '"arguments": {"x": 1}}', "\n</tool_call>"]  # fmt: skip
TWO = ["<tool_call>{}", '{"name": "f", "arguments": {}}', "</tool_call><tool_call>", '{"name": "f", "arguments": {"y": 2}}</tool_call>']  # fmt: skip


def post(server, headers=(), path=PATH, **fields):
    body = {"messages": [USER], "max_tokens": 16, "seed": 5} | fields
    if path == COUNT:
        body = {name: value for name, value in body.items() if name not in ("max_tokens", "seed")}
    return ask(server, "POST", path, body, headers)


def text_of(message):
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


def events_of(reply):
    """Return the events of a stream, whose names must be their types."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = []
    for event in reply.body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def joined(events):
    """Return the message that a client makes of the events."""
    first, ping, *events = events
    assert (first["type"], ping) == ("message_start", {"type": "ping"})
    message, last = first["message"], events.pop()
    assert message["content"] == [] and last == {"type": "message_stop"}
    arguments = ""
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(dict(event["content_block"]))
            arguments = ""
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(message["content"]) - 1
            kind, value = list(event["delta"].values())
            block, name = message["content"][-1], list(event["delta"])[1]
            if kind == "input_json_delta":
                arguments += value
                block["input"] = json.loads(arguments)
            else:
                assert kind == f"{name}_delta"
                block[name] += value
        elif event["type"] == "message_delta":
            message |= event["delta"] | {"usage": event["usage"]}
        else:
            assert event == {"type": "content_block_stop", "index": len(message["content"]) - 1}
    return message


def read(message):
    """Return the number of prompt tokens: `input_tokens` leaves out the cached ones."""
    return message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"]


def plain(message):
    """Return a message without the fields that differ between two answers."""
    content = [
        {name: value for name, value in block.items() if name != "id"}
        for block in message["content"]
    ]
    used = {"input": read(message), "output": message["usage"]["output_tokens"]}
    return {name: message[name] for name in ("type", "role", "model", "stop_reason", "stop_sequence")} | {
        "content": content,
        "usage": used,
    }  # fmt: skip


@pytest.mark.parametrize("speculation", ["off", {"k": 4, "adaptive": False}])
def test_the_text_is_that_of_the_chat(server, speculation):
    messages = [
        {"role": "user", "content": "Tell me of a fox."},
        {"role": "assistant", "content": [{"type": "text", "text": "Once"}]},
        {"role": "user", "content": [{"type": "text", "text": "Go "}, {"type": "text", "text": "on.", "cache_control": {"type": "ephemeral"}}]},
    ]  # fmt: skip
    system = {"role": "system", "content": "Be kind."}
    chat = ask_chat(server, messages=[system, *messages], max_tokens=24, seed=5).json()
    wanted = chat["choices"][0]["message"]["content"]
    assert len(wanted) > 20
    blocks = [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]
    options = {"messages": messages, "max_tokens": 24, "speculation": speculation}
    for given in ("Be kind.", blocks):
        whole = post(server, system=given, **options).json()
        assert text_of(whole) == wanted
        assert read(whole) == chat["usage"]["prompt_tokens"]
    assert (whole["usage"]["speculation"]["drafted"] > 0) == (speculation != "off")
    assert (whole["stop_reason"], whole["stop_sequence"], whole["seed"]) == ("max_tokens", None, 5)
    events = events_of(post(server, system=blocks, stream=True, **options))
    assert read(events[0]["message"]) == read(whole)
    assert plain(joined(events)) == plain(whole)
    assert post(server, path=COUNT, system=blocks, messages=messages).json() == {
        "input_tokens": read(whole)
    }


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequences(server, stream):
    text = text_of(post(server, max_tokens=40).json())
    stop = text[10:13]
    reply = post(server, max_tokens=40, stop_sequences=["§", stop], stream=stream)
    message = joined(events_of(reply)) if stream else reply.json()
    assert text_of(message) == text[: text.index(stop)]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)


@pytest.fixture(scope="module")
def caller(tmp_path_factory):
    path = answering(
        tmp_path_factory.mktemp("caller") / "m.gguf", {"\n": CALL, "Q": ["Done", " now"]}
    )
    with (
        gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm,
        serve_in_thread(llm) as one,
    ):
        yield one  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_tools(caller, stream):
    def answer(**fields):
        reply = post(caller, temperature=0, max_tokens=30, tools=[TOOL], stream=stream, **fields)
        return joined(events_of(reply)) if stream else reply.json()

    first = answer()
    text, call = first["content"]
    assert text == {"type": "text", "text": "Let me see."}
    assert call["id"].startswith("toolu_")
    assert call == {"type": "tool_use", "id": call["id"], "name": "f", "input": {"x": 1}}
    assert (first["stop_reason"], first["stop_sequence"]) == ("tool_use", None)
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "ok"}]}  # fmt: skip
    messages = [USER, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]  # fmt: skip
    last = answer(messages=messages)
    assert (text_of(last), last["stop_reason"]) == ("Done now", "end_turn")

    # what the model reads is what it reads in a chat
    function = {"name": "f", "arguments": '{"x": 1}'}
    said = {"role": "assistant", "content": "Let me see.", "tool_calls": [{"id": "c", "type": "function", "function": function}]}  # fmt: skip
    chat = [USER, said, {"role": "tool", "tool_call_id": "c", "content": "ok"}]
    tools = [{"type": "function", "function": FUNCTION}]
    usage = ask_chat(caller, messages=chat, tools=tools).json()["usage"]
    assert usage["prompt_tokens"] == read(last)
    counted = post(caller, path=COUNT, messages=messages, tools=[TOOL]).json()
    assert counted["input_tokens"] == usage["prompt_tokens"]
    result["is_error"] = True
    failed = post(caller, path=COUNT, messages=messages, tools=[TOOL]).json()
    assert counted["input_tokens"] < failed["input_tokens"] < counted["input_tokens"] + 8
    messages[-1]["content"].append({"type": "text", "text": "And?"})
    assert text_of(answer(messages=messages)) == "Let me see."  # a question follows the result


def test_tool_choice(caller):
    def answer(kind, **more):
        choice = {"type": kind} | more
        return post(caller, temperature=0, max_tokens=60, tools=[TOOL], tool_choice=choice).json()

    none = answer("none")
    assert (text_of(none), none["stop_reason"]) == ("".join(CALL), "end_turn")
    assert answer("auto", disable_parallel_tool_use=True)["stop_reason"] == "tool_use"
    for choice in ({"kind": "any"}, {"kind": "tool", "name": "f"}):
        forced = answer(**choice)
        assert [block["type"] for block in forced["content"]] == ["tool_use"]
        assert (forced["content"][0]["name"], forced["stop_reason"]) == ("f", "tool_use")
    other = TOOL | {"name": "g", "strict": True, "input_schema": {"$ref": "#/nowhere"}}
    reply = post(caller, tools=[TOOL, other])
    assert reply.status == 400
    assert reply.json()["error"]["message"].startswith("tools[1].input_schema cannot be used")


def test_several_calls(tmp_path):
    path = answering(tmp_path / "m.gguf", {"\n": ["<tool_call>", *TWO[1:]]})
    with gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm, serve_in_thread(llm) as one:  # fmt: skip
        both = post(one, temperature=0, tools=[TOOL])
        assert [block["input"] for block in both.json()["content"]] == [{}, {"y": 2}]
        streamed = joined(events_of(post(one, temperature=0, tools=[TOOL], stream=True)))
        assert plain(streamed) == plain(both.json())
        single = {"type": "auto", "disable_parallel_tool_use": True}
        single = post(one, temperature=0, tools=[TOOL], tool_choice=single).json()
        assert [block["input"] for block in single["content"]] == [{}]


# ---- reasoning


def test_thinking(tmp_path):
    path = tmp_path / "thinker.gguf"
    with reasoners.thinker(path, reasoners.QWEN35, CHAIN) as llm, serve_in_thread(llm) as server:
        options = {"temperature": 0, "max_tokens": 30}
        whole = post(server, **options).json()
        assert whole["content"] == [
            {"type": "thinking", "thinking": "ab", "signature": ""},
            {"type": "text", "text": "cd"},
        ]
        streamed = joined(events_of(post(server, stream=True, **options)))
        assert plain(streamed) == plain(whole)
        n = read(whole)
        off = post(server, thinking={"type": "disabled"}, **options).json()
        assert read(off) > n  # the template's empty part
        assert post(server, path=COUNT, thinking={"type": "disabled"}).json()["input_tokens"] > n
        on = post(server, thinking={"type": "enabled", "budget_tokens": 1}, **options).json()
        assert on["content"][0]["thinking"] == "a"
        for fields in ({"thinking": {"type": "adaptive"}}, {"output_config": {"effort": "max"}}):
            assert plain(post(server, **fields, **options).json()) == plain(whole)
        long = {"type": "thinking", "thinking": "ab " * 30, "signature": "x"}
        said = {"role": "assistant", "content": [long, {"type": "text", "text": "cd"}]}
        call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "t"}
        kept = [USER, {"role": "assistant", "content": [long, call]}, {"role": "user", "content": [result]}]  # fmt: skip
        kept = post(server, path=COUNT, messages=kept).json()["input_tokens"]
        dropped = post(server, path=COUNT, messages=[USER, said, USER]).json()["input_tokens"]
        assert kept > 80 > dropped  # as the template decides


def test_a_model_without_thinking(server):
    for kind in ({"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}):
        assert plain(post(server, thinking=kind).json()) == plain(post(server).json())


def test_structured_outputs(server):
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    form = {"type": "json_schema", "schema": schema}
    message = post(server, output_config={"format": form}, max_tokens=200).json()
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    chat = ask_chat(server, response_format=wanted, max_tokens=200, seed=5).json()
    assert text_of(message) == chat["choices"][0]["message"]["content"]
    assert isinstance(json.loads(text_of(message))["age"], int)


# ---- errors and limits


# One of the fields of tests/protocols/test_messages.py, and those that only the model can refuse.
WRONG = [
    ({"messages": None}, "messages must"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"$ref": "#/none"}}}}, "output_config.format is"),
    ({"messages": [{"role": "user", "content": "x " * 3000}]}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), WRONG)
@pytest.mark.parametrize("stream", [False, True])
def test_the_server_names_wrong_fields(server, fields, message, stream):
    reply = post(server, **{"stream": stream} | fields)
    error = reply.json()
    assert (reply.status, error["type"]) == (400, "error")
    assert error["error"]["type"] == "invalid_request_error"
    assert error["error"]["message"].startswith(message)
    assert len(reply.body) < 1000


def test_counting_has_the_same_errors(server):
    for fields in ({"messages": []}, {"system": 1}):
        reply = post(server, path=COUNT, **fields)
        assert (reply.status, reply.json()["error"]["type"]) == (400, "invalid_request_error")
        assert next(iter(fields)) in reply.json()["error"]["message"]


def test_keys_limits_and_counts(tales):
    with serve_in_thread(tales, api_key="secret", max_tokens=8, body_bytes=2000, any_model=False) as server:  # fmt: skip
        version = {"anthropic-version": "2023-06-01"}
        for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": "secre"}, {"x-api-key": ""}):
            reply = post(server, version | headers)
            assert (reply.status, reply.json()["error"]["type"]) == (401, "authentication_error")
        for key in (
            {"x-api-key": "secret"},
            {"Authorization": "Bearer secret", "x-api-key": "other"},
        ):
            assert post(server, version | key, max_tokens=8).status == 200
        reply = post(server, key)
        assert (reply.status, reply.json()["error"]["message"][:13]) == (400, "max_tokens is")
        assert post(server, key, path=COUNT).status == 200
        reply = post(server, key, model="none")
        assert (reply.status, reply.json()["error"]["type"]) == (404, "not_found_error")
        reply = post(server, key, system="x" * 3000)
        assert (reply.status, reply.json()["error"]["type"]) == (413, "request_too_large")
        reply = ask(server, "GET", PATH, headers=key)
        assert (reply.status, reply.json()["type"]) == (405, "error")
        text = ask(server, path="/metrics", headers=key).body.decode()
        assert f'requests_total{{path="{PATH}",status="200"}} 2' in text
        assert f'requests_total{{path="{COUNT}",status="200"}} 1' in text


@pytest.mark.usefixtures("failing_streams")
def test_an_error_in_a_stream(server):
    events = events_of(post(server, stream=True))
    assert events[-1] == {
        "type": "error",
        "error": {"type": "api_error", "message": "The server failed (RuntimeError)."},
    }
    assert "message_stop" not in {event["type"] for event in events}
    assert post(server).status == 500


def test_a_closed_connection(endless):
    from tests.server.test_load import busy, connect

    with serve_in_thread(endless) as server:
        for stream in (False, True):
            fields = {"messages": [USER], "temperature": 0, "stream": stream}
            with connect(server, PATH, **fields):
                until(lambda: busy(server))
            until(lambda: not busy(server))


# ---- what agents send


def test_nothing_is_removed_from_the_context(server):
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    answer = post(server, context_management=edits).json()
    assert answer["context_management"] == {"applied_edits": []}


def test_a_prompt_that_is_too_long(server):
    reply = post(server, messages=[{"role": "user", "content": "x " * 3000}])
    assert re.search(
        r"prompt is too long: \d+ tokens > \d+ maximum", reply.json()["error"]["message"]
    )
