"""Calls that are forced, or that follow the schema of their tool: the grammars, and answers of models whose logits are noise."""

import json

import pytest

import gguf_spec
from gguf_spec.server import serve_in_thread
from tests.gguf import zoo
from tests.server.conftest import ask_chat

DIGIT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["x"],
}
TREE = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/leaf"}},
    "required": ["x"],
    "$defs": {"leaf": {"enum": ["oak", "elm"]}},
}
ARGS = "[TOOL_CALLS] [ARGS]"


def tool(name, parameters, strict=None):
    function = {"name": name, "parameters": parameters}
    return {
        "type": "function",
        "function": function | ({} if strict is None else {"strict": strict}),
    }


F, G = tool("f", DIGIT), tool("g", TREE)


CHATML = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m['role'] }}: "
    "{{ m['content'] }}\n{% endfor %}{# MARK #}"
)
# With control tokens for the markers, as in the vocabularies of Mistral.
MARKED = [*zoo.TOKENS[:-2], "[TOOL_CALLS]", "[ARGS]"]


@pytest.fixture(scope="module", params=["<tool_call>", "[TOOL_CALLS]", ARGS, "none"])
def noisy(request, tmp_path_factory):
    """A server of a model that says anything."""
    path = tmp_path_factory.mktemp("noisy") / "noisy.gguf"
    template = CHATML.replace("MARK", request.param)
    tokens = MARKED if "[" in request.param else zoo.TOKENS
    zoo.write(
        path,
        zoo.llama(scale=0.5),
        tokens=tokens,
        metadata={"tokenizer.chat_template": template, "llama.context_length": 1024},
    )
    with (
        gguf_spec.load(path, "ngram", threads=1, extra_bufts=False) as llm,
        serve_in_thread(llm) as server,
    ):
        yield server


@pytest.mark.parametrize("speculation", ["off", {"k": 4, "adaptive": False}])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "g"}}])
def test_noise_calls_tools(noisy, choice, speculation):
    fields = {
        "tools": [F, G], "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 120, "seed": 3,
        "messages": [{"role": "user", "content": "x"}], "speculation": speculation,
    }  # fmt: skip
    reply = ask_chat(noisy, **fields)
    assert reply.status == 200, reply.body
    [one] = reply.json()["choices"]
    assert one["finish_reason"] == "tool_calls", one
    [made] = one["message"]["tool_calls"]
    arguments = json.loads(made["function"]["arguments"])
    if made["function"]["name"] == "f":
        assert choice == "required"
        assert arguments["x"] in range(10)
    else:
        assert arguments["x"] in ("oak", "elm")


def test_schemas_that_cannot_be_followed(noisy):
    odd = {"type": "object", "not": {}}
    fields = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
    reply = ask_chat(noisy, **fields, tools=[G, tool("f", odd, strict=True)])
    assert (reply.status, reply.param) == (400, "tools[1].function.parameters")
    assert "not is not supported" in reply.json()["error"]["message"]
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
    reply = ask_chat(noisy, **fields, tools=[F], response_format=schema)
    assert (reply.status, reply.param) == (400, "response_format")
