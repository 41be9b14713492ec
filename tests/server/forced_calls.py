"""Two tools, and a request that forces a call of one, for models with random texts."""

import json

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


def tool(name, parameters, strict=None):
    function = {"name": name, "parameters": parameters}
    return {
        "type": "function",
        "function": function | ({} if strict is None else {"strict": strict}),
    }


F, G = tool("f", DIGIT), tool("g", TREE)
# Values of `tool_choice` that force a call: of any tool, and of G.
CHOICES = ["required", {"type": "function", "function": {"name": "g"}}]


def forced_call(server, choice, **fields):
    """Ask for a call of F or G that follows its schema; return the content and the function."""
    reply = ask_chat(
        server, tools=[F, G], tool_choice=choice, parallel_tool_calls=False, seed=3,
        messages=[{"role": "user", "content": "x"}], **fields,
    )  # fmt: skip
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
    return one["message"]["content"], made["function"]
