"""The table of families: calls are written, read complete and streamed, and forced by grammars."""

import contextlib
import json
import random

import pytest

from gguf_spec.grammar import automaton as gbnf
from gguf_spec.grammar.automaton import Automaton
from gguf_spec.tools.families import FAMILIES, HARMONY, family_of
from gguf_spec.tools.grammar import ToolSchemaError, tool_grammar
from gguf_spec.tools.reader import ToolReader, read_answer
from tests.support.fakes import with_few_calls
from tests.support.tool_examples import (
    CALLS,
    NAMES,
    SCHEMAS,
    TEMPLATE_MARKS,
    TEXTS,
    accepts,
    is_valid,
    loaded,
    read,
    spoken,
    use,
    written,
)  # fmt: skip

OTHERS = [family for family in FAMILIES if family.name != HARMONY]


def each(families=FAMILIES):
    return pytest.mark.parametrize("family", families, ids=lambda one: one.name)


def no_token(_):
    return None


@each()
def test_calls_are_read(family):
    for calls in CALLS:
        text, found = read_answer(written(family, calls), ToolReader(family, SCHEMAS))
        assert (text, loaded(found)) == ("", calls)


@pytest.mark.few(3)
@each()
def test_every_cut_gives_the_same(family):
    for calls in CALLS:
        before = "" if family.starts else "Let me see:"  # the answer is the calls there
        text = spoken(family, before) + " \n" + family.write(calls) + "\n"
        whole = read(family, [text])
        assert (whole[0], loaded(whole[1])) == (before, calls)
        for cut in range(1, len(text)):
            assert read(family, [text[:cut], text[cut:]]) == whole, text[:cut]
        assert read(family, text) == whole


@each()
def test_arguments_come_in_pieces(family):
    """The name is known before the arguments end, and a long text is not held back."""
    text = written(family, [("weather", {"city": "x" * 1000})])
    _, calls, broken = read(family, [*text[:500]])
    assert not calls
    ((source, rest, name, arguments),) = broken
    assert (name, source) == ("weather", text[:500])
    if family.call.notation.way == "value by value":
        assert arguments == "{"
    else:
        assert arguments.startswith('{"city": "xxxx')
        assert len(rest) < 20


@each()
@pytest.mark.parametrize("text", TEXTS)
def test_text_stays_text(family, text):
    said = spoken(family, text)
    assert read(family, [said]) == (text, [], [])
    assert read(family, said) == (text, [], [])


@each()
def test_text_around_calls(family):
    call = family.write([("ping", {})])
    said = spoken(family, "Before.") + "\n" + call + " After.\n"
    text, calls, broken = read(family, [said])
    if family.starts:  # a call of this family is the whole answer
        assert (text, calls) == (said, [])
        said = written(family, [("ping", {})]) + " After.\n"
        text, calls, _ = read(family, [said])
        assert (text, len(calls)) == (" After.\n", 1)
    else:
        assert (text, loaded(calls), broken) == ("Before. After.\n", [("ping", {})], [])


@pytest.mark.few(4)
@each()
def test_broken_calls_lose_no_text(family):
    """A cut or changed call is text, and all its characters are in the stream."""
    rng = random.Random(7)
    good = written(family, CALLS[3])
    bad = [good[: rng.randrange(len(good))] for _ in range(15)]
    bad += [_changed(good, rng) for _ in range(60)]
    bad += [good.replace("weather", "other"), good.replace("ping", "pong")]
    for text in bad:
        (whole, found), stream = read_answer(text, ToolReader(family, SCHEMAS)), read(family, text)
        for _, arguments in found:
            assert isinstance(json.loads(arguments), dict)
        assert stream[1] == [list(one) for one in found], text
        if not found:
            said = text.removeprefix(family.text_mark) if family.text_mark else text
            assert whole == said
        for source, rest, *_ in stream[2]:
            assert source in text
            assert source.endswith(rest)


def _changed(text, rng):
    at = rng.randrange(len(text))
    return text[:at] + rng.choice(["", "x", '"', "}", "<", "\n", ")"]) + text[at + 1 :]


@each()
def test_calls_that_are_dropped(family):
    text, calls, _ = read(family, [written(family, CALLS[3])], most=1)
    assert (text, len(calls)) == ("", 1)


# ---- grammars


def fits(family, gbnf, calls):
    """Whether a grammar accepts calls; that of harmony begins before the role's channel."""
    return accepts(gbnf, written(family, calls))


@pytest.mark.few(8)
@each()
def test_required(family):
    made = tool_grammar(use(required=True), family, no_token)
    for calls in CALLS:
        assert fits(family, made, calls) == (len(calls) == 1 or family.is_parallel), calls
    for text in TEXTS:
        assert not accepts(made, spoken(family, text))
    wrong = [("weather", {}), ("weather", {"city": "x", "days": 11}), ("ping", {"x": 1}),
             ("weather", {"city": "x", "unit": "K"}), ("pong", {})]  # fmt: skip
    for call in wrong:
        assert not fits(family, made, [call]), call
    assert not accepts(made, written(family, CALLS[0]) + " and more")


def test_reasoning_before_a_forced_call_of_gpt_oss():
    family = family_of(TEMPLATE_MARKS[HARMONY])
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" + written(family, CALLS[0])
    assert accepts(tool_grammar(use(required=True), family, no_token), text)
    assert not accepts(tool_grammar(use(required=True), family, no_token, thinks=False), text)


@each()
def test_named_and_single(family):
    made = tool_grammar(use(required=True, only="ping", parallel=False), family, no_token)
    assert fits(family, made, [("ping", {})])
    assert not fits(family, made, [("weather", {"city": "x"})])
    assert not fits(family, made, [("ping", {}), ("ping", {})])


@pytest.mark.few(8)
@each()
def test_strict_does_not_change_text(family):
    made = tool_grammar(use(strict=frozenset(["weather"])), family, no_token)
    for text in TEXTS:
        if family.name == HARMONY:
            assert accepts(made, f"<|channel|>final<|message|>{text}")
        else:
            assert accepts(made, spoken(family, text)), text
    for calls in CALLS[:3]:
        assert fits(family, made, calls)
        if not family.starts and family.name != HARMONY:
            assert accepts(made, spoken(family, "Well.\n") + family.write(calls))
    assert not fits(family, made, [("weather", {"city": "x", "days": 11})])
    assert not fits(family, made, [("pong", {})])


@each()
def test_an_answer_with_a_schema(family):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    made = tool_grammar(use(), family, no_token, schema)
    head = "<|channel|>final<|message|>" if family.name == HARMONY else family.text_mark
    assert accepts(made, head + '{"n": 5}')
    assert fits(family, made, CALLS[0])
    assert not accepts(made, head + "Hello.")


@pytest.mark.full
@each()
def test_what_a_grammar_accepts_is_read(family):
    """Random texts of the grammar are calls that follow the schemas."""
    rng, n_read = random.Random(11), 0
    made = Automaton(tool_grammar(use(required=True), family, no_token), int)
    for _ in range(60):
        text = _walk(made, rng)
        if text is None:
            continue
        if family.name == HARMONY:  # the reasoning before a call is not part of the text
            text = text[text.rindex("<|channel|>commentary to=") :]
        said, found = read_answer(text, ToolReader(family, SCHEMAS))
        assert said.strip() == "", text
        assert found
        for name, arguments in found:
            assert is_valid(name, json.loads(arguments)), text
        n_read += 1
    assert n_read >= 10


def _walk(automaton, rng):
    """Return a random text of a grammar, or None if it gets too long."""
    at, text = automaton.number(automaton.start), b""
    while len(text) < 1500:
        automaton.reset_budget()
        if () in automaton.states[at][0] and rng.random() < 0.3:
            return text.decode()
        row = automaton.row(at)
        allowed = [byte for byte in range(256) if row[byte] >= 0]
        if not allowed:
            return text.decode() if () in automaton.states[at][0] else None
        allowed = [byte for byte in allowed if byte < 128] or allowed  # others in markers only
        weights = [30 if chr(byte) in '"}]<>)/|' else 1 for byte in allowed]
        byte = rng.choices(allowed, weights)[0]
        text, at = text + bytes([byte]), row[byte]
    return None


@each()
def test_schemas_that_cannot_be_followed(family):
    odd = {"type": "object", "properties": {"x": {"type": "string", "not": {"minLength": 9}}}}
    tools = [{"type": "function", "function": {"name": "odd", "parameters": odd}}]
    dropped = {}
    free = tool_grammar(type(use())(tools, required=True), family, no_token, dropped=dropped)
    assert accepts(free, written(family, [("odd", {"x": "any"})]))
    assert not accepts(free, written(family, [("odd", {"y": "any"})]))
    assert [one[:3] for one in dropped["odd"]] == [("#/properties/x", "not", '{"minLength": 9}')]
    with pytest.raises(ToolSchemaError, match=r'#/properties/x: not \{"minLength": 9\}') as caught:
        tool_grammar(type(use())(tools, strict=frozenset(["odd"])), family, no_token)
    assert caught.value.tool == "odd"


def a_tool(parameters):
    return type(use())([{"type": "function", "function": {"name": "odd", "parameters": parameters}}], required=True, strict=frozenset(["odd"]))  # fmt: skip


def deep(n, part, end):
    """A tool whose argument x is of the first of n definitions, each with two references to the next one."""
    named = {f"d{i}": part({"$ref": f"#/$defs/d{i + 1}"}) for i in range(n)}
    root = {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "required": ["x"]}
    return root | {"$defs": named | {f"d{n}": end}}


INTEGER = {"type": "integer"}


@pytest.mark.full
@each()
def test_definitions_with_two_references_are_converted_once(family):
    """25 levels: 2^25 paths."""
    choice = deep(25, lambda one: {"anyOf": [one, one]}, INTEGER)
    nested = deep(25, lambda one: {"type": "object", "properties": {"a": one, "b": one}}, INTEGER)
    for schema, value in ((choice, 5), (nested, {"a": {"b": {}}})):
        made = with_few_calls(lambda schema=schema: tool_grammar(a_tool(schema), family, no_token))
        assert made.count("::=") < 1000
        call = written(family, [("odd", {"x": value})])
        assert fits(family, made, [("odd", {"x": value})])
        reader = ToolReader(family, {"odd": schema})
        events = with_few_calls(
            lambda reader=reader, call=call: [*reader.push(call), *reader.finish()]
        )
        assert any(event.kind == "end" for event in events)


@each()
@pytest.mark.parametrize("part", [{"enum": 3}, {"$ref": "#/$defs/self"}, {"type": ["string", {}]}])
@pytest.mark.parametrize("required", [["x"], [{}], 5])
def test_invalid_schemas(family, part, required):
    """They are refused or followed; the server never fails."""
    schema = {"type": "object", "properties": {"x": part}, "required": required}
    schema["$defs"] = {"self": {"anyOf": [{"$ref": "#/$defs/self"}, INTEGER]}}
    with contextlib.suppress(ToolSchemaError):
        tool_grammar(a_tool(schema), family, no_token)
    _, found = read_answer(
        written(family, [("odd", {"x": 5})]), ToolReader(family, {"odd": schema})
    )
    assert loaded(found) in ([("odd", {"x": 5})], [("odd", {"x": "5"})])


@each()
def test_a_schema_that_contains_itself(family):
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}}}
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/tree"}}, "$defs": {"tree": tree}}  # fmt: skip
    made = tool_grammar(a_tool(schema), family, no_token)
    assert fits(family, made, [("odd", {"x": {"left": {"left": {}}}})])


@each()
def test_the_tools_of_a_request_share_a_limit_of_work(family, monkeypatch):
    monkeypatch.setattr(gbnf, "MOST_WORK", 20_000)
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": {}}} for i in range(40)]  # fmt: skip
    assert tool_grammar(type(use())(tools[:4], required=True), family, no_token)
    with pytest.raises(ToolSchemaError, match="too large"):
        tool_grammar(type(use())(tools, required=True), family, no_token)


@each()
def test_numbers_that_no_double_holds(family):
    """JSON has no infinity, so that the largest number is meant."""
    call = written(family, [("weather", {"city": "x", "days": 12345})]).replace("12345", "-1e999")
    _, found = read_answer(call, ToolReader(family, SCHEMAS))
    assert json.loads(found[0][1])["days"] in (-float("inf"), -1.7976931348623157e308)


@each(OTHERS)
def test_special_tokens_in_grammars(family):
    """A marker that is a special token is demanded as that token."""
    ids = {name: i for i, name in enumerate(family.tokens)}
    made = tool_grammar(use(required=True), family, ids.get)
    call = family.write(CALLS[3])
    assert ("<[" in made) == any(name in call for name in ids)
    for name, i in ids.items():
        if name in call:
            assert f"<[{i}]>" in made
            assert json.dumps(name) not in made


# ---- recognition


def test_templates_are_recognised():
    assert list(TEMPLATE_MARKS) == NAMES
    for name, template in TEMPLATE_MARKS.items():
        assert family_of(f"... {template} ...").name == name
