"""Calls that are forced, or that follow the schema of their tool: the grammars, and answers of models whose logits are noise."""

import pytest

from tests.server.conftest import ask, ask_chat, serving
from tests.server.forced_calls import CHOICES, F, G, forced_call, tool
from tests.support import tiny

ARGS = "[TOOL_CALLS] [ARGS]"


CHATML = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m['role'] }}: "
    "{{ m['content'] }}\n{% endfor %}{# MARK #}"
)
# With control tokens for the markers, as in the vocabularies of Mistral.
MARKED = [*tiny.TOKENS[:-2], "[TOOL_CALLS]", "[ARGS]"]


@pytest.fixture(scope="module", params=["<tool_call>", "[TOOL_CALLS]", ARGS, "none"])
def noisy(request, tmp_path_factory):
    """A server of a model with random texts."""
    path = tmp_path_factory.mktemp("noisy") / "noisy.gguf"
    template = CHATML.replace("MARK", request.param)
    tokens = MARKED if "[" in request.param else tiny.TOKENS
    tiny.write(
        path,
        tiny.llama(scale=0.5),
        tokens=tokens,
        metadata={"tokenizer.chat_template": template, "llama.context_length": 1024},
    )
    with serving(path) as server:
        yield server


@pytest.mark.few(6)
@pytest.mark.parametrize("speculation", ["off", {"k": 4, "adaptive": False}])
@pytest.mark.parametrize("choice", CHOICES)
def test_noise_calls_tools(noisy, choice, speculation):
    forced_call(noisy, choice, max_tokens=120, speculation=speculation)


def test_schemas_that_cannot_be_followed(noisy):
    odd = {"type": "object", "not": {}}
    fields = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
    reply = ask_chat(noisy, **fields, tools=[G, tool("f", odd, strict=True)])
    assert (reply.status, reply.param) == (400, "tools[1].function.parameters")
    assert "a part of it allows no value" in reply.json()["error"]["message"]
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
    reply = ask_chat(noisy, **fields, tools=[F], response_format=schema)
    assert (reply.status, reply.param) == (400, "response_format")


# The only answer, which does not fulfil the keyword that is dropped.
PART = {
    "type": "object",
    "properties": {"a": {"const": 1}, "b": {"enum": [2]}},
    "required": ["a"],
    "maxProperties": 1,
    "dependentRequired": {"a": ["b"]},
}
DROPPED = '#: dependentRequired {"a": ["b"]} (no grammar follows it)'
HEADERS = ("x-schema-unenforced", "x-schema-unfulfilled")
ASKED = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 60}


def ask_all(server, strict=False):
    """The replies of each way to give a schema, with the field that an error names."""
    schema = {"name": "f", "schema": PART, "strict": strict}
    form = {"type": "json_schema", "json_schema": schema}
    yield ask_chat(server, **ASKED, response_format=form), "response_format", ""
    yield ask_chat(server, **ASKED, response_format=form, stream=True), "response_format", ""
    body = {
        "input": "x",
        "max_output_tokens": 60,
        "text": {"format": {"type": "json_schema", **schema}},
    }
    yield ask(server, "POST", "/v1/responses", body), "text.format", ""
    tools = [G, tool("f", PART, strict=strict)]
    named = {"type": "function", "function": {"name": "f"}}
    reply = ask_chat(server, **ASKED, tools=tools, tool_choice=named)
    yield reply, "tools[1].function.parameters", "f:"


@pytest.mark.parametrize("noisy", ["<tool_call>"], indirect=True)
def test_what_is_not_enforced_is_named(noisy, caplog):
    replies = [*ask_all(noisy)]
    body = {"messages": ASKED["messages"], "format": PART, "stream": False}
    replies.append((ask(noisy, "POST", "/api/chat", body), "format", ""))
    for reply, _, owner in replies:
        headers = {name.lower(): value for name, value in reply.headers.items()}
        assert reply.status == 200
        assert headers[HEADERS[0]] == owner + DROPPED
        # A stream has it only where the answer ended before its head was sent.
        if HEADERS[1] in headers or "event-stream" not in headers["content-type"]:
            assert headers[HEADERS[1]] == f"{owner}#/dependentRequired is not fulfilled"
    assert caplog.text.count("A schema is not enforced whole: # dependentRequired (") <= 1
    assert "An answer does not fulfil its schema: #/dependentRequired" in caplog.text
    reply = ask_chat(noisy, **ASKED)
    assert not {name.lower() for name in reply.headers} & {*HEADERS}


@pytest.mark.parametrize("noisy", ["<tool_call>"], indirect=True)
def test_a_strict_schema_is_refused_with_path_keyword_and_value(noisy):
    for reply, param, _ in ask_all(noisy, strict=True):
        assert (reply.status, reply.param) == (400, param)
        assert DROPPED in reply.json()["error"]["message"]
