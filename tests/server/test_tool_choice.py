"""Calls that are forced, or that follow the schema of their tool: the grammars, and answers of models whose logits are noise."""

import json

import pytest

import gguf_spec
from gguf_spec.grammar.automaton import Automaton
from gguf_spec.server import serve_in_thread
from gguf_spec.server.errors import ApiError
from gguf_spec.server.tool_calls import ToolReader
from gguf_spec.server.tool_grammar import tool_grammar
from gguf_spec.server.tools import read_tools
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
TEMPLATES = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama": ""}
ARGS = "[TOOL_CALLS] [ARGS]"


def tool(name, parameters, strict=None):
    function = {"name": name, "parameters": parameters}
    return {
        "type": "function",
        "function": function | ({} if strict is None else {"strict": strict}),
    }


F, G = tool("f", DIGIT), tool("g", TREE)
STRICT = [tool("f", DIGIT, strict=True), G]


def accepts(grammar, text):
    automaton = Automaton(grammar, lambda word: int(word[2:-2]))
    at = automaton.read(automaton.number(automaton.start), text.encode())
    return at >= 0 and () in automaton.states[at][0]


def grammar(form, tools, choice, parallel=True, schema=None, template=None):
    use = read_tools(tools, choice, parallel)
    return tool_grammar(use, form, template or TEMPLATES[form], lambda _: None, schema)


def call(form, name, arguments):
    if form == "hermes":
        inner = json.dumps({"name": name, "arguments": arguments})
        return f"<tool_call>\n{inner}\n</tool_call>"
    if form == "mistral":
        return "[TOOL_CALLS][" + json.dumps({"name": name, "arguments": arguments}) + "]"
    return json.dumps({"name": name, "parameters": arguments})


FORMS = ["hermes", "mistral", "llama"]


@pytest.mark.parametrize("form", FORMS)
def test_required(form):
    made = grammar(form, [F, G], "required")
    for name, arguments in (("f", {"x": 7}), ("g", {"x": "oak"})):
        text = call(form, name, arguments)
        assert accepts(made, text)
        reader = ToolReader(form, ["f", "g"])
        assert (reader.push(text) + reader.finish(), len(reader.calls)) == ("", 1)
    for wrong in (
        "", "Hello.", call(form, "f", {"x": "oak"}), call(form, "g", {"x": 7}), call(form, "h", {"x": 7}),
        call(form, "f", {}), call(form, "f", {"x": 7, "y": 1}), call(form, "f", {"x": 7}) + " and more",
    ):  # fmt: skip
        assert not accepts(made, wrong), wrong


@pytest.mark.parametrize("form", FORMS)
def test_named(form):
    named = {"type": "function", "function": {"name": "g"}}
    made = grammar(form, [F, G], named)
    assert accepts(made, call(form, "g", {"x": "elm"}))
    assert not accepts(made, call(form, "f", {"x": 7}))
    once = call(form, "g", {"x": "elm"})
    assert not accepts(made, f"{once}\n{once}")


def test_several_calls():
    one = call("hermes", "f", {"x": 1})
    assert accepts(grammar("hermes", [F], "required"), f"{one}\n{one}")
    assert not accepts(grammar("hermes", [F], "required", parallel=False), f"{one}\n{one}")
    inner = '{"name": "f", "arguments": {"x": 1}}'
    assert accepts(grammar("mistral", [F], "required"), f"[TOOL_CALLS][{inner}, {inner}]")
    one = 'f[ARGS]{"x": 1}'
    made = grammar("mistral", [F], "required", template=ARGS)
    assert accepts(made, f"[TOOL_CALLS]{one}[TOOL_CALLS]{one}")
    assert not accepts(made, one)
    made = grammar("mistral", [F], "required", parallel=False, template=ARGS)
    assert not accepts(made, f"[TOOL_CALLS]{one}[TOOL_CALLS]{one}")


@pytest.mark.parametrize("form", FORMS)
def test_strict_leaves_text_alone(form):
    """The answer may be a text; a call in it must follow the schema, also that of a tool that is not strict."""
    made = grammar(form, STRICT, "auto")
    for text in ("", "Hello.", "for [x] and {y} <b>", "é <tool", "f is a tool", "1 < 2"):
        assert accepts(made, text), text
    assert accepts(made, call(form, "f", {"x": 7}))
    for wrong in (call(form, "f", {"x": "oak"}), call(form, "h", {}), call(form, "f", {"x": 77})):
        assert not accepts(made, wrong), wrong


def test_strict_around_tags():
    made = grammar("hermes", STRICT, "auto")
    one = call("hermes", "f", {"x": 7})
    for text in (
        f"Let me see.\n{one}",
        f"<<tool_call>{one.removeprefix('<tool_call>')}",
        f"a <tool_{one}",
    ):
        assert accepts(made, text), text
    for text in ("<tool_call>", "a <tool_call> b", f"{one} and more", "<<tool_call>x"):
        assert not accepts(made, text), text


def test_strict_without_a_marker():
    """Where the name alone begins a call, a text must not begin with it and a bracket."""
    made = grammar("mistral", STRICT, "auto", template=ARGS)
    for text in ("f{", "g[", ' f{"x": 1}', "[1]", "\nf{"):
        assert not accepts(made, text), text
    for text in ("f", "fg{", "f {", "x f{"):
        assert accepts(made, text), text


@pytest.mark.parametrize("form", FORMS)
def test_a_schema_with_tools(form):
    made = grammar(
        form,
        [F],
        "auto",
        schema={"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]},
    )
    assert accepts(made, '{"sum": 5}')
    assert accepts(made, call(form, "f", {"x": 7}))
    assert not accepts(made, "Hello.")
    assert not accepts(made, call(form, "f", {"x": "oak"}))


def test_schemas_that_cannot_be_followed():
    odd = tool("f", {"type": "object", "not": {}})
    assert accepts(grammar("llama", [odd], "required"), call("llama", "f", {"any": [1]}))
    with pytest.raises(ApiError) as caught:
        grammar("llama", [G, tool("f", {"type": "object", "not": {}}, strict=True)], "auto")
    assert caught.value.error["param"] == "tools[1].function.parameters"
    assert "not is not supported" in str(caught.value)
    with pytest.raises(ApiError) as caught:
        grammar("llama", [F], "auto", schema={"not": {}})
    assert caught.value.error["param"] == "response_format"


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


def test_the_first_call_only():
    reader = ToolReader("llama", ["f"], most=1)
    reader.push('{"name": "f", "parameters": {"x": 1}}; {"name": "f", "parameters": {"x": 2}}')
    reader.finish()
    assert [json.loads(one["function"]["arguments"]) for one in reader.calls] == [{"x": 1}]
