"""Calls that differ slightly from the syntax of their family."""

import json

import pytest

from gguf_spec.tools.families import FAMILIES, ToolUse
from gguf_spec.tools.notations import typed_value
from gguf_spec.tools.reader import ToolDeltas, ToolReader, read_answer, whole_answer

BY_NAME = {family.name: family for family in FAMILIES}
TYPED = {
    "type": "object",
    "properties": {
        "s": {"type": "string"}, "n": {"type": "number"}, "b": {"type": "boolean"},
        "o": {"$ref": "#/$defs/o"}, "u": {"type": ["string", "null"]}, "e": {"enum": ["1", "2"]},
    },
    "$defs": {"o": {"type": "object"}},
}  # fmt: skip
SCHEMAS = {"f": TYPED, "get_weather": {}}
TOOLS = [{"function": {"name": "f", "parameters": TYPED}}]
CALL = '{"name": "f", "arguments": {"x": "é"}}'
X = {"x": "é"}
HERMES = [
    (f"<tool_call>\n{CALL}\n</tool_call>", "", [X]),
    (f"Let me see.\n<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "Let me see.", [X, X]),
    (f"<tool_call>{CALL}", "", [X]), (f"<tool_call>{CALL}\n</tool", "", [X]), (f"<tool_call>{CALL}\n</b", "\n</b", [X]), ("a < b, <tool_cal", "a < b, <tool_cal", []),
    (f"<tool_call>{CALL}<tool_call>{CALL}", "", [X, X]),
    ("<tool_call>{oops}</tool_call>", "<tool_call>{oops}</tool_call>", []),
    ('<tool_call>{"name": "g", "arguments": {}}</tool_call>', '<tool_call>{"name": "g", "arguments": {}}</tool_call>', []),
    (f"<tool_call>{CALL}</tool_call> and more", " and more", [X]), (" \n text \n", " \n text \n", []), ("", "", []),
    (f"<tool_call>{{oops <tool_call>{CALL}</tool_call>", "<tool_call>{oops", [X]),
    ('<tool_call>{"name": "f", "arguments": {"x": "a </tool_call> b <tool_call> c"}}</tool_call>', "",
     [{"x": "a </tool_call> b <tool_call> c"}]),
    ('<tool_call>{"name": "f", "arguments": []}</tool_call>', '<tool_call>{"name": "f", "arguments": []}</tool_call>', []),
    ('<tool_call>{"arguments": {"x": "é"}, "name": "f"}</tool_call>', "", [X]),
    ('<tool_call>{"name": "f"}</tool_call>', "", [{}]),
    ('<tool_call>{"type": "function", "function": {"name": "f", "parameters": {"x": "é"}}, "id": 7}</tool_call>', "", [X]),
    ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', []),
]  # fmt: skip
# as Qwen2.5-Coder-1.5B-Instruct writes them
INDENTED = json.dumps(json.loads(CALL), indent=2)
FENCED = [
    (f"```json\n{INDENTED}\n```", "", [X]), (f"\n```json\n{CALL}\n{CALL}\n```\n", "", [X, X]), (f"```json\n{CALL}", "", [X]),
    (f"```json\n{CALL}\n```\nThat is it.", "\nThat is it.", [X]),
    ('```json\n{"name": "g", "arguments": {}}\n```', '```json\n{"name": "g", "arguments": {}}\n```', []),
    ('```json\n{"name": "f", "age": 5}\n```', '```json\n{"name": "f", "age": 5}\n```', []),
    (f"So:\n```\n{CALL}\n```", "So:", [X]), ("```python\nx = {}\n```\n", "```python\nx = {}\n```\n", []), ("a ``` b", "a ``` b", []),
    (f"```python\nx = 1\n```\n\n```json\n{CALL}\n```", "```python\nx = 1\n```", [X]), ("```", "```", []), ("``", "``", []),
    (f"I look.\n\n```json\n{CALL}\n```", "I look.", [X]), (f"I look. <tools>{CALL}</tools> So.", "I look. So.", [X]),
    (f"It is\n```json\n[1]\n``` and\n```json\n{CALL}\n```\nDone.", "It is\n```json\n[1]\n``` and\nDone.", [X]),
    ("```json\n[1]\n```", "```json\n[1]\n```", []), ("```js", "```js", []),
    (CALL, "", [X]), (f"\n{INDENTED}\n{CALL}\n", "", [X, X]), (f"{CALL} That is it.", " That is it.", [X]), (f"Such as: {CALL}", f"Such as: {CALL}", []),
    ('{"name": "f", "arguments": [1]}', '{"name": "f", "arguments": [1]}', []), ('{"x": 1}', '{"x": 1}', []),
    (f"<tools>\n{CALL}\n</tools>\n<tools>\n{CALL}\n</tools>", "", [X, X]), (f"<tool>{CALL}", "", [X]), (f"```xml\n{CALL}\n```\n```json\n{CALL}\n```", "", [X, X]),
    ("<tools>\n[]\n</tools>", "<tools>\n[]\n</tools>", []), ("<tooling", "<tooling", []), (f"<tools>{CALL}</tools>\n<tool_call>{CALL}</tool_call>", "", [X, X]),
]  # fmt: skip
# as the template of Qwen2.5-Coder-1.5B-Instruct shows them
DOUBLED = [
    (f"{{{CALL}}}", "", [X]), (f"{{{CALL}", "", [X]), (f"\n{{{CALL}}}\n", "", [X]), (f"{{{CALL}}}\n{{{CALL}}}", "", [X, X]),
    (f"{{{CALL}}}\n<tool_call>\n{CALL}\n</tool_call>", "", [X, X]), (f"{{{CALL}}} That is it.", " That is it.", [X]),
    (f"<tool_call>\n{{{CALL}}}\n</tool_call>", "", [X]), (f"<tool_call>\n{{{CALL}\n</tool_call>", "", [X]), (f"```json\n{{{CALL}}}\n```", "", [X]),
    ('{{"name": "f"}}', "", [{}]), ('{{"arguments": {"x": "é"}, "name": "f"}}', "", [X]),
    *((text, text, []) for text in (
        '{{"name": "g", "arguments": {}}}', '{{"name": "f", "age": 5}}', '{{"name": "f", "arguments": [1]}}', '{{"name"', "{{ name }} is {{ age }}", "{{", "{", "{}",
        '{{"name": {{"name": "f", "arguments": {}}}}}', f"Such as: {{{CALL}}}",
    )),
]  # fmt: skip
LLAMA = [
    ('{"name": "f", "parameters": {"x": "é"}}', "", [X]), (f"  {CALL}; {CALL}", "", [X, X]),
    ('{"name": "f", "parameters": {"x": "a; b"}}; {"name": "f", "parameters": {"x": "};{"}}', "", [{"x": "a; b"}, {"x": "};{"}]),
    ('{"type": "function", "name": "f", "parameters": {"x": "é"}}', "", [X]),
    ('{"name": "f", "parameters": {}}; and more', "; and more", [{}]),
    ('{"name": "f", "parameters": {}} {"name": "f", "parameters": {}}', "", [{}, {}]),
    ("{a set}", "{a set}", []), ("The {x}", "The {x}", []), ('{"sum": 5}', '{"sum": 5}', []),
    (f'I look.\n<|python_tag|>{CALL}', "I look.", [X]),
    ('{"name": "g", "parameters": {}}', '{"name": "g", "parameters": {}}', []), ("[1]", "[1]", []),
]  # fmt: skip
MISTRAL = [
    (f"[TOOL_CALLS][{CALL}]", "", [X]), (f"[TOOL_CALLS] [{CALL}, {CALL}]", "", [X, X]),
    ('[TOOL_CALLS][{"name": "f", "arguments": {"x": "é"}, "id": "123456789"}]', "", [X]),
    ("[1, 2] are numbers", "[1, 2] are numbers", []), (f"[TOOL_CALLS][{CALL}", "", [X]),
]  # fmt: skip
MISTRAL_ARGS = [
    ('[TOOL_CALLS]f[ARGS]{"x": "é"}', "", [X]), ("for you", "for you", []),
    ('[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{"x": "é"}[TOOL_CALLS]get_weather[ARGS]{}', "", [X, {}]),
    ('[TOOL_CALLS]f[ARGS]{"x": "[TOOL_CALLS]f{}"}[TOOL_CALLS]f[ARGS]{"x": "[ARGS]"}', "", [{"x": "[TOOL_CALLS]f{}"}, {"x": "[ARGS]"}]),
]  # fmt: skip
QWEN = [
    ("<tool_call>\n<function=f>\n<parameter=s>\n5\n</parameter>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>", "", [{"s": "5", "n": 5}]),
    ("Well.\n<function=f><parameter=s>a\n\nb</parameter></function>", "Well.", [{"s": "a\n\nb"}]),
    ("<tool_call><function=f>\n<parameter=b>\nTrue\n</parameter><parameter=o>{\"a\": [1]}</parameter></function></tool_call>", "", [{"b": True, "o": {"a": [1]}}]),
    ("<tool_call>\n<function=f>\n<parameter=s>\n\n a </b> \n\n</parameter>\n</function>\n</tool_call>", "", [{"s": "\n a </b> \n"}]),
    ("<function=g>\n</function>", "<function=g>\n</function>", []),
    ("<tool_call>\n<function=f>\n<parameter=s>\nno end", "<tool_call>\n<function=f>\n<parameter=s>\nno end", []),
]  # fmt: skip
LFM2 = [
    ("<|tool_call_start|>[f(s='it\\'s', n=-1.5, b=True, o={'a': [None, \"x\"], \"b\": (1, 2)})]<|tool_call_end|>Done.",
     "Done.", [{"s": "it's", "n": -1.5, "b": True, "o": {"a": [None, "x"], "b": [1, 2]}}]),
    ("<|tool_call_start|>[get_weather(), f(s=\"a, b)\")]<|tool_call_end|>", "", [{}, {"s": "a, b)"}]),
    ("<|tool_call_start|>[f(s=open('x'))]<|tool_call_end|>", "<|tool_call_start|>[f(s=open('x'))]<|tool_call_end|>", []),
    ("<|tool_call_start|>[g()]<|tool_call_end|>", "<|tool_call_start|>[g()]<|tool_call_end|>", []),
]  # fmt: skip
GEMMA = [
    ('<|tool_call>call:f{s:<|"|>a, {b}<|"|>,n:5,o:{a:[true,<|"|>x<|"|>]}}<tool_call|>', "", [{"s": "a, {b}", "n": 5, "o": {"a": [True, "x"]}}]),
    ("<|tool_call>call:f{s:celsius}<tool_call|>", "", [{"s": "celsius"}]),
]  # fmt: skip
GPT = [
    ('Hm.<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": "é"}', "Hm.", [X]),
    ("<|channel|>commentary to=python <|constrain|>json<|message|>1+1", "<|channel|>commentary to=python <|constrain|>json<|message|>1+1", []),
]  # fmt: skip
OTHERS = [
    ("functionary-v3.2", 'all\nHello.>>>f\n{"x": "é"}', "Hello.", [X]),
    ("functionary-v3.2", "allowed", "allowed", []),
    ("command-r7b", '<|START_ACTION|>[\n {"tool_call_id": "0", "tool_name": "f", "parameters": {"x": "é"}}\n]<|END_ACTION|>', "", [X]),
    ("glm", "\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>1</arg_value>\n<arg_key>e</arg_key><arg_value>1</arg_value></tool_call>", "", [{"s": "1", "e": "1"}]),
]  # fmt: skip
CASES = [
    *(("hermes", *case) for case in HERMES), *(("hermes", *case) for case in FENCED), *(("hermes", *case) for case in DOUBLED),
    ("hermes", '{{"name": "f", "arguments": {"x": }}}', '{{"name": "f", "arguments": {"x": }}}', []),
    *(("llama3", *case) for case in LLAMA),
    *(("mistral", *case) for case in MISTRAL), *(("mistral-args", *case) for case in MISTRAL_ARGS),
    *(("qwen3-coder", *case) for case in QWEN), *(("lfm2", *case) for case in LFM2),
    *(("gemma4", *case) for case in GEMMA), *(("harmony", *case) for case in GPT), *OTHERS,
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer", "text", "arguments"), CASES)
def test_answers(name, answer, text, arguments):
    said, calls = read_answer(answer, ToolReader(BY_NAME[name], SCHEMAS))
    assert (said, [json.loads(one) for _, one in calls]) == (text, arguments)


@pytest.mark.parametrize("case", FENCED + DOUBLED)
def test_calls_without_markers_in_pieces(case):
    answer, text, arguments = case
    deltas = ToolDeltas(BY_NAME["hermes"], ToolUse(TOOLS))
    parts = [delta for letter in answer for delta in deltas.push(letter)] + deltas.finish()
    assert "".join(part.get("content", "") for part in parts) == text
    found = {}
    for call in (call for part in parts for call in part.get("tool_calls", [])):
        found[call["index"]] = found.get(call["index"], "") + call["function"]["arguments"]
    assert [json.loads(one) for one in found.values()] == arguments


@pytest.mark.parametrize(
    "answer", [f"```json\n{CALL}\n```", f"{{{CALL}}}", CALL, f"<tools>\n{CALL}\n</tools>"]
)
@pytest.mark.parametrize(("wanted", "fits"), [("string", True), ("integer", False)])
def test_a_call_that_no_grammar_checks_is_one_of_a_strict_tool_if_it_fits(answer, wanted, fits):
    schema = {"type": "object", "properties": {"x": {"type": wanted}}, "required": ["x"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    use = ToolUse(tools, strict=frozenset({"f"}))
    text, calls = whole_answer(answer, BY_NAME["hermes"], use)
    assert (text, len(calls)) == (("", 1) if fits else (answer, 0))
    deltas = ToolDeltas(BY_NAME["hermes"], use)
    parts = [delta for letter in answer for delta in deltas.push(letter)] + deltas.finish()
    assert {name for part in parts for name in part} == {"tool_calls" if fits else "content"}
    assert "".join(part.get("content", "") for part in parts) == ("" if fits else answer)


def test_text_is_not_held_back_without_need():
    reader = ToolReader(BY_NAME["hermes"], SCHEMAS)
    assert [event.text for event in reader.push("It is warm. ")] == ["It is warm."]
    assert [event.text for event in reader.push("Is it? <")] == [" Is it?"]
    assert [event.text for event in reader.push("b>")] == [" <b>"]
    reader = ToolReader(BY_NAME["llama3"], SCHEMAS)
    assert "".join(event.text for event in reader.push(' {"sum": 5,')) == ' {"sum": 5,'


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "string"}, '"5"'), ("5", {"type": "integer"}, "5"), ("5", {}, "5"),
        ("five", {"type": "integer"}, '"five"'), ("null", {"type": ["string", "null"]}, "null"),
        ("5", {"type": ["string", "null"]}, '"5"'), ("5", {"type": "number"}, "5"),
        ("False", {"type": "boolean"}, "false"), ("5", {"anyOf": [{"type": "string"}]}, '"5"'),
        ("1", {"enum": ["1"]}, '"1"'), ("1", {"enum": [1, 2]}, "1"), ("NaN", {}, '"NaN"'),
        ("[" * 100_000, {}, json.dumps("[" * 100_000)),
    ],
)  # fmt: skip
def test_values_without_a_type(text, schema, value):
    assert typed_value(text, schema, schema) == value


@pytest.mark.few(8)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_hostile_answers_are_read_in_time(family):
    """Long answers that begin many calls, nest deeply, or never end cost time in proportion."""
    lead = family.lead.removeprefix(family.prompted)
    for text in (
        lead * 3000, lead + "f" * 50_000, lead + "[{(" * 20_000, lead + '"\\' * 20_000,
        f'{lead}f(s={"[" * 50_000}', f'{lead}f{{s:{"[" * 50_000}',
        f'{lead}{{"name": "f", "arguments": {{"a": {"[" * 50_000}',
    ):  # fmt: skip
        said, calls = read_answer(text, ToolReader(family, SCHEMAS))
        assert said in (text, text.rstrip(), text.removeprefix(family.text_mark))
        assert not calls
