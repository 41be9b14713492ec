"""Calls that are forced, or that follow the schema of their tool: the grammars, and answers of models whose logits are noise."""

import pytest

from tests.server.conftest import ask_chat, serving
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


@pytest.mark.parametrize("speculation", ["off", {"k": 4, "adaptive": False}])
@pytest.mark.parametrize("choice", CHOICES)
def test_noise_calls_tools(noisy, choice, speculation):
    forced_call(noisy, choice, max_tokens=120, speculation=speculation)


def test_schemas_that_cannot_be_followed(noisy):
    odd = {"type": "object", "not": {}}
    fields = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
    reply = ask_chat(noisy, **fields, tools=[G, tool("f", odd, strict=True)])
    assert (reply.status, reply.param) == (400, "tools[1].function.parameters")
    assert "not is not supported" in reply.json()["error"]["message"]
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
    reply = ask_chat(noisy, **fields, tools=[F], response_format=schema)
    assert (reply.status, reply.param) == (400, "response_format")
