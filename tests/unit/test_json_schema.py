"""Texts that a schema must not let through, and those that it must: cases in the manner of the official test suite."""

import json
import re
from pathlib import Path

import pytest

from gguf_spec.errors import GrammarTooLargeError, InvalidOptionError
from gguf_spec.grammar import automaton as gbnf
from gguf_spec.grammar import json_schema
from gguf_spec.grammar.automaton import Automaton
from gguf_spec.grammar.json_schema import dropping, to_gbnf
from gguf_spec.grammar.schemas import faults_of
from tests.support.fakes import with_few_calls


def takes(schema, value):
    """Whether a value may be written, compactly and with the default separators."""
    automaton, taken = Automaton(to_gbnf(schema), int), set()
    for separators in ((",", ":"), (", ", ": ")):
        at = automaton.read(
            automaton.number(automaton.start),
            json.dumps(value, ensure_ascii=False, separators=separators).encode(),
        )
        taken.add(at >= 0 and () in automaton.states[at][0])
    assert len(taken) == 1, f"{value!r} depends on its spaces"
    return taken.pop()


# field -> its schema as Pydantic 2.14 writes it, a valid value, one that the grammar refuses, and the
# dropped keywords
PYDANTIC = json.loads(
    (Path(__file__).parents[1] / "data/pydantic_fields.json").read_text(encoding="utf-8")
)
PATTERNS = [
    (
        r"^\S$",
        ["a", "\x01", "\u200b"],
        ["\u3000", "\u2003", "\ufeff", "\u2028", "\u1680", " ", "\n"],
    ),
    (r"^[^\s]$", ["a"], ["\u3000", "\u2003", "\xa0"]),
    (r"^\s$", ["\u3000", "\x0b", "\t", "\ufeff"], ["a", "\x1f", "\x85", "\u180e"]),
    (r"^.$", ["a", "\x85", "\x0b"], ["\u2028", "\u2029", "\n", "\r"]),
    ("^a{,3}$", ["a{,3}"], ["", "a", "aa"]),
    ("^x{,}$", ["x{,}"], ["", "x"]),
    ("^[{,3}]$", ["{", ",", "3"], ["a"]),
    (r"^\\{,2}$", ["\\{,2}"], ["", "\\"]),
    ("^(?<year>\\d)$", ["1"], ["a", "\u0663"]),
]


@pytest.mark.parametrize(("pattern", "good", "bad"), PATTERNS)
def test_a_pattern_is_read_as_ecma_262_reads_it(pattern, good, bad):
    schema = {"type": "string", "pattern": pattern}
    assert [text for text in good if not takes(schema, text)] == []
    assert [text for text in bad if takes(schema, text)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        r"\Aa",
        r"a\Z",
        r"[\a]",
        "[]a]",
        "[^]",
        "(?P<x>a)",
        "(?#c)a",
        r"\N{DASH}",
        r"\01",
        "(?i)a",
    ],
)
def test_a_pattern_of_pythons_own_syntax_is_refused(pattern):
    with pytest.raises(InvalidOptionError) as caught:
        to_gbnf({"properties": {"a": {"pattern": pattern}}})
    reason = caught.value.reason
    assert reason.startswith(f"#/properties/a: pattern {json.dumps(pattern)} (")
    assert not re.search(r"[A-Z_]{5,}|<re\.|object at", reason), reason


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(?<=a)b", "a lookbehind is not supported"),
        ("(?<!a)b", "a lookbehind is not supported"),
        (r"(a)\1", "a backreference is not supported"),
        (r"\bword", "a word boundary"),
        (r"\p{L}+", "it is invalid"),
        ("(?i:a)", "flags"),
        ("(?:(?!ab).)+", "a lookahead inside of a repetition"),
        ("(?:^a)*", "^ inside of a repetition"),
        ("(" * 3000 + ")" * 3000, ""),
        ("[z-a]", "bad character range"),
        ("x" * 5000 + "(?<=a)", "a lookbehind"),
    ],
)
def test_a_refused_pattern_is_named_in_words(pattern, words):
    with pytest.raises(InvalidOptionError) as caught:
        to_gbnf({"$defs": {"p": {"pattern": pattern}}, "items": {"$ref": "#/$defs/p"}})
    assert words in caught.value.reason
    assert len(caught.value.reason) < 300
    assert not words or caught.value.reason.startswith('#/$defs/p: pattern "')


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("[a-", 'pattern "[a-" (it is invalid at position 0: unterminated character set)'),
        ("ab[z-a]", 'pattern "ab[z-a]" (it is invalid at position 3: bad character range z-a)'),
        ("^(?<name>a)(?<b>c)*d[", "at position 20: "),  # Python's text of it is shorter
        ("a{,3}[", "at position 5: "),  # and here it is longer
        ("x" * 300 + "(yz", 'at position 300, "(yz": missing ), unterminated subpattern'),
        ("ab(?P<n>c)", "(?P at position 2 has no or another meaning"),
        ('"(', 'pattern "\\"("'),
    ],
)
def test_an_invalid_pattern_is_shown_with_the_place(pattern, place):
    """As it is in JSON, without the schema around it, which was a cut text of Python."""
    for schema in (
        {"type": "string", "pattern": pattern},
        {"properties": {"a": {"pattern": pattern}}, "title": "x" * 99},
    ):
        with pytest.raises(InvalidOptionError) as caught:
            to_gbnf(schema)
        assert place in str(caught.value)
        assert str(caught.value).startswith("json_schema cannot be used: #") and "{'" not in str(
            caught.value
        )


def test_the_beginning_of_a_wrong_schema_is_json():
    with pytest.raises(InvalidOptionError) as caught:
        to_gbnf({"enum": [], "title": "it's"})
    assert str(caught.value).startswith(
        'json_schema is {"enum": [], "title": "it\'s"}, which cannot'
    )
    with pytest.raises(
        InvalidOptionError, match=r'json_schema is \{"enum": \[\], "title": "x+\.\.\., which'
    ):
        to_gbnf({"enum": [], "title": "x" * 99})


DAYS = ["2023-02-28", "2024-02-29", "2000-02-29", "1999-12-31", "2023-04-30"]
NO_DAYS = [
    "2023-02-31",
    "2023-02-29",
    "1900-02-29",
    "2100-02-29",
    "2023-04-31",
    "2023-06-31",
    "2023-13-01",
    "2023-00-10",
    "2023-01-00",
    "2023-1-1",
]


def test_a_date_is_a_day_of_the_calendar():
    assert [day for day in DAYS if not takes({"format": "date"}, day)] == []
    assert [day for day in NO_DAYS if takes({"format": "date"}, day)] == []
    assert [day for day in DAYS if not takes({"format": "date-time"}, f"{day}T10:00:00.5Z")] == []
    assert [day for day in NO_DAYS if takes({"format": "date-time"}, f"{day}T10:00:00Z")] == []


@pytest.mark.parametrize(
    "value",
    [
        {"foo": "bar", "baz": [1, 2, {}]},
        [{"a": False}],
        {"$ref": "#/$defs/a"},
        [],
        {},
        -2.0,
        1.5,
        "a, b: c",
    ],
)
def test_a_constant_may_be_written_with_and_without_spaces(value):
    assert takes({"const": value}, value)
    assert takes({"enum": [0, value]}, value)
    assert not takes({"const": value}, {"foo": "bar"})


def test_an_integral_constant_may_have_a_decimal_point():
    assert takes({"const": -2.0}, -2)
    assert not takes({"const": -2.0}, -2.5)


def an_object(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required)}


INTEGER, TEXT = {"type": "integer"}, {"type": "string"}
CAT, DOG = (
    an_object(["kind"], kind={"const": "cat"}, lives=INTEGER),
    an_object(["name"], kind={"const": "dog"}, name=TEXT),
)
APART = [
    ([INTEGER, TEXT], [1, "a"], [None, 1.5]),
    ([{"type": "null"}, CAT], [None, {"kind": "cat"}], ["cat", {"kind": "dog"}]),
    ([{"const": 1}, {"enum": [2, "1"]}], [1, 2, "1"], [3]),
    ([CAT, DOG], [{"kind": "cat", "lives": 9}, {"name": "Rex"}], [{}, {"kind": "cow"}]),
    (
        [an_object(["a"], a=INTEGER), an_object(["b"], b=INTEGER)],
        [{"a": 1}, {"b": 1}],
        [{"a": 1, "b": 1}, {}],
    ),
    ([{"anyOf": [INTEGER, {"type": "null"}]}, TEXT], [1, None, "a"], [True]),
]


@pytest.mark.parametrize(("parts", "good", "bad"), APART)
def test_one_of_parts_that_share_nothing(parts, good, bad):
    assert [value for value in good if not takes({"oneOf": parts}, value)] == []
    assert [value for value in bad if takes({"oneOf": parts}, value)] == []


def test_one_of_references_is_followed():
    schema = {
        "$defs": {"cat": CAT, "dog": {"allOf": [DOG]}},
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
    }
    assert takes(schema, {"kind": "cat"})
    assert not takes(schema, {"kind": "cow"})


OVERLAP = [
    [INTEGER, {"minimum": 2}],
    [INTEGER, {"type": "number"}],
    [{"minLength": 2}, {"maxLength": 4}],
    [True, True],
    [TEXT, {"const": "a"}],
    [TEXT, CAT | {"type": ["object", "string"]}],
    [an_object(a=INTEGER), an_object(b=INTEGER)],
    [
        {"type": "object", "required": ["foo", "bar"]},
        {"type": "object", "required": ["foo", "baz"]},
    ],
    [TEXT, {"properties": {"a": INTEGER}}],
]


@pytest.mark.parametrize("parts", OVERLAP)
def test_one_of_parts_that_may_share_a_value_is_refused(parts):
    with pytest.raises(InvalidOptionError) as caught:
        to_gbnf({"oneOf": parts})
    assert "oneOf" in caught.value.reason


def test_the_message_about_refused_keywords_is_always_the_same():
    keywords = ["unevaluatedItems", "uniqueItems", "dependentSchemas", "contains", "not", "if"]
    for order in (keywords, keywords[::-1]):
        with pytest.raises(InvalidOptionError) as caught:
            to_gbnf({key: {"type": "null"} for key in order})
        assert caught.value.reason == '#: if {"type": "null"} (no grammar follows it)'


# ---- keywords that are dropped


def dropped_of(schema):
    """The keywords that are dropped, each with its path; strict conversions name the first one."""
    found = []
    with dropping(found):
        to_gbnf(schema)
    if found:
        with pytest.raises(InvalidOptionError) as caught:
            to_gbnf(schema)
        assert any(str(one)[:250] in caught.value.reason for one in found)
    return [(one.path, one.keyword) for one in found]


@pytest.mark.parametrize(
    ("part", "keyword", "good", "bad"),
    [
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "uniqueItems", ["x"], 1),
        ({"type": "array", "contains": {"const": 1}, "maxItems": 2}, "contains", [], [1, 2, 3]),
        ({"type": "string", "pattern": r"\bx", "maxLength": 3}, "pattern", "abc", "abcd"),
        ({"type": "string", "format": "idn-email", "minLength": 2}, "format", "ab", "a"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": {"type": "null"}}}, "dependentRequired", {"a": None}, {"a": 1}),
        ({"type": "integer", "if": {"minimum": 3}, "then": {"maximum": 5}, "maximum": 9}, "if", 7, 10),
        ({"type": "string", "not": {"minLength": 3}, "maxLength": 5}, "not", "abcd", "abcdef"),
        ({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}, "oneOf", 5, 1.5),
        ({"$ref": "https://example.com/x.json", "type": "string"}, "$ref", "x", 1),
        ({"type": "integer", "multipleOf": 1000003, "minimum": 0}, "multipleOf", 5, -5),
    ],
)  # fmt: skip
def test_only_the_keyword_is_dropped(part, keyword, good, bad):
    schema = {"properties": {"a/b": {"type": "boolean"}, "x": part}, "required": ["x"]}
    assert dropped_of(schema) == [("#/properties/x", keyword)]
    with dropping([]):
        assert takes(schema, {"x": good}) and takes(schema, {"x": good, "a/b": True})
        assert (
            not takes(schema, {"x": bad})
            and not takes(schema, {})
            and not takes(schema, {"x": good, "y": 1})
        )


@pytest.mark.full
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer", "multipleOf": 7}, [0, 7, -49, 7 * 10**12], [1, 8, -6]),
        ({"type": "integer", "multipleOf": 3, "minimum": 10, "maximum": 20}, [12, 18], [9, 10, 21, -12]),
        ({"type": "number", "multipleOf": 0.25}, [0.5, 1, -2.75], [0.1, 0.3]),
        ({"type": "number", "minimum": 0.5, "maximum": 2.25}, [0.5, 1, 2.25, 2.249], [0.49, 2.26, -1, 3]),
        ({"type": "number", "exclusiveMinimum": -0.5, "exclusiveMaximum": 0.5}, [0, -0.49, 0.1], [0.5, -0.5, 1]),
        ({"type": "integer", "minimum": 0.5, "maximum": 2.5}, [1, 2], [0, 3]),
        ({"minimum": 5, "exclusiveMinimum": True, "type": "integer"}, [6], [5]),
        ({"type": "string", "nullable": True, "maxLength": 1}, [None, "a"], ["ab", 1]),
        ({"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b", "c"]}, "maxItems": 2}, [[], ["b", "a"], ["c"]], [["a", "a"], ["a", "b", "c"]]),
        ({"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd", "aB"]),
        ({"type": "string", "pattern": "[0-9]", "maxLength": 3}, ["a1", "1"], ["abc", "abc1", ""]),
        ({"allOf": [{"pattern": "^a"}, {"pattern": "b$"}]}, ["ab", "axb"], ["a", "b", "ba"]),
        ({"type": "string", "pattern": "^(?!admin$)[a-z]+$"}, ["administrator", "a"], ["admin", "A"]),
        ({"type": "string", "not": {"enum": ["a", "b"]}}, ["ab", "", "c"], ["a", "b"]),
        ({"enum": ["a", "b", 1], "not": {"const": "a"}}, ["b", 1], ["a"]),
        ({"type": ["string", "null"], "not": {"type": "null"}}, ["a"], [None]),
        ({"type": "integer", "not": {"enum": [0, 7]}}, [1, 70, -7], [0, 7]),
        ({"patternProperties": {"^x_": {"type": "integer"}}}, [{}, {"x_a": 1}], [{"x_a": "s"}, {"y": 1}]),
        ({"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": {"type": "null"}, "properties": {"xa": {"minimum": 3}}}, [{"xa": 3}, {"xb": 1, "y": None}], [{"xa": 2}, {"y": 1}, {"xb": None}]),
        ({"type": "object", "minProperties": 1, "maxProperties": 2}, [{"a": 1}, {"a": 1, "b": 2}], [{}, {"a": 1, "b": 2, "c": 3}]),
        ({"properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "maxProperties": 2}, [{"a": 1, "c": 1}], [{"a": 1}, {"a": 1, "b": 1, "c": 1}]),
        ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}}, [{"a": 1}], [{"c": 1}, {"a": "x"}]),
        ({"properties": {"a": {"type": "integer"}}, "unevaluatedProperties": False}, [{"a": 1}], [{"b": 1}]),
        ({"const": {"a": [1, None]}}, [{"a": [1, None]}], [{"a": [1]}]),
        ({"type": "integer", "format": "int32"}, [2**31 - 1, -(2**31)], [2**31]),
    ],
)  # fmt: skip
def test_what_is_enforced(schema, good, bad):
    assert dropped_of(schema) == []
    assert [value for value in good if not takes(schema, value)] == []
    assert [value for value in bad if takes(schema, value)] == []


FORMATS = {
    "date-time": ("2024-02-29T12:00:00Z", "2023-02-29T12:00:00Z"),
    "duration": ("P1Y2M3DT4H", "1 day"),
    "ipv4": ("127.0.0.1", "256.0.0.1"),
    "ipv6": ("fe80::1", "fe80:::1"),
    "hostname": ("a.example", "-a.example"),
    "email": ("a.b@example.org", "a@b@c"),
    "uri": ("https://a.example:80/x?y#z", "example"),
    "uuid4": ("9b2f1c1e-6a4f-4c3b-8f0e-0123456789ab", "9b2f1c1e-6a4f-5c3b-8f0e-0123456789ab"),
    "base64": ("YWI=", "YWI"),
    "binary": ("anything", None),
    "password": ("anything", None),
}


@pytest.mark.parametrize("form", FORMATS)
def test_formats(form):
    schema, (good, bad) = {"type": "string", "format": form}, FORMATS[form]
    assert takes(schema, good) and not takes(schema, bad)


def test_names_with_line_ends_stay_on_one_line():
    """They come into headers and into the log."""
    schema = {"properties": {"a\r\nX: y": {"type": "string", "pattern": "\n\\A"}}}
    ((path, keyword),) = dropped_of(schema)
    assert (path, keyword) == ("#/properties/a??X: y", "pattern")
    found = faults_of('{"a\\n": 1}', {"properties": {"a\n": {"type": "string"}}})
    assert found == ["#/properties/a?/type is not fulfilled"]


def test_an_unknown_format_is_named():
    assert dropped_of({"type": "string", "format": "iri"}) == [("#", "format")]


def test_what_an_answer_does_not_fulfil():
    schema = {
        "properties": {"a": {"uniqueItems": True}, "b": {"pattern": "(?=(x+)+$)y"}},
        "minimum": 1,
    }
    assert faults_of('{"a": [1, 2], "b": "y"}', schema) == [
        "#/properties/b/pattern is not fulfilled"
    ]
    assert faults_of('{"a": [1, 1]}', schema) == ["#/properties/a/uniqueItems is not fulfilled"]
    assert faults_of('{"a": [1, 2]}', schema) == []
    assert faults_of('{"b": "' + "x" * 5000 + '"}', schema)  # in linear time, or not at all
    assert "not complete" in faults_of('{"a": [1,', schema)[0]
    for hostile in ({"$ref": "http://127.0.0.1:9/x"}, {"$ref": "#"}, {"pattern": "("}, {"type": 5}):
        faults_of("1", hostile)


def test_the_table_of_the_documentation_has_all_keywords():
    text = (Path(__file__).parents[2] / "docs/tools-and-json.md").read_text(encoding="utf-8")
    table = text.partition("| keyword | enforced |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:4] for line in table.splitlines()[2:]]
    codes = [[re.findall(r"`([^`]+)`", cell) for cell in row] for row in rows]
    assert {name for names, *_ in codes for name in names} == json_schema.KEYWORDS | {"nullable"}
    never = next(names for row, (names, *_) in zip(rows, codes, strict=True) if row[1] == " never ")
    assert {*never} == {*json_schema.UNSUPPORTED}
    formats = next(row for row in codes if row[0] == ["format"])
    assert {*formats[1]} == {*json_schema._FORMATS}
    assert {*formats[2]} == {*json_schema.FREE_FORMATS, "int8", "uint64"}


# ---- what Pydantic writes


@pytest.mark.parametrize("name", PYDANTIC)
def test_fields_of_pydantic(name):
    schema, good, bad, dropped = PYDANTIC[name]
    assert [keyword for _, keyword in dropped_of(schema)] == dropped
    with dropping([]):
        assert takes(schema, good)
        assert bad is None or not takes(schema, bad)


# ---- schemas that were made to take long


def levels(n, part, **ends):
    """Definitions `a0`, `b0`, `a1`, ...: each is `part` of a reference to an a and one to a b of the next level."""
    found = {f"{name}{n}": end for name, end in ends.items()}
    for i in range(n):
        a, b = ({"$ref": f"#/$defs/{name}{i + 1}"} for name in "ab")
        found |= {f"a{i}": part(i, a, b), f"b{i}": part(i, b, a)}
    return {"$defs": found}


A0 = {"$ref": "#/$defs/a0"}
NULL = {"type": "null"}


def test_definitions_that_refer_to_each_other_twice_are_converted_once():
    """40 levels: 2^40 paths, but 80 definitions."""
    schema = levels(40, lambda _, a, b: {"anyOf": [a, b]}, a=TEXT, b=INTEGER) | {
        "oneOf": [A0, NULL]
    }
    gbnf = with_few_calls(lambda: to_gbnf(schema))
    assert gbnf.count("::=") < 200
    assert takes(schema, "x") and takes(schema, None) and not takes(schema, [])
    schema = (
        levels(
            40,
            lambda _, a, b: {"allOf": [a, b]},
            a=an_object(["x"], x=TEXT),
            b=an_object(["y"], y=TEXT),
        )
        | A0
    )
    gbnf = with_few_calls(lambda: to_gbnf(schema))
    assert gbnf.count("::=") < 200
    assert takes(schema, {"x": "a", "y": "b"}) and not takes(schema, {"x": "a"})


def a_branch(i, a, b):
    return {"properties": {f"{a['$ref'][-2:]}": True}, "anyOf": [a, b]}


TOO_LARGE = {
    "other keywords on each path": levels(20, a_branch, a={"type": "object"}, b={"type": "object"})
    | {"oneOf": [A0, NULL]},
    "one large part for each of many": {
        "anyOf": [{"$ref": "#/$defs/x"}] * 3000,
        "minProperties": 0,
        "properties": {"p": True},
        "$defs": {"x": an_object(**{f"p{i}": True for i in range(3000)})},
    },
    "many parts without a tag": {
        "oneOf": [an_object([f"p{i}"], **{f"p{i}": TEXT}) for i in range(2000)]
    },
    "many classes": {"type": "string", "pattern": r"\W" * 60_000},
    "two equal branches": {"type": "string", "pattern": "a" * 60_000 + "|" + "a" * 60_000},
    "a class without an end": {"type": "string", "pattern": "[" * 200_000},
}


@pytest.mark.parametrize("schema", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_conversion_has_a_limit_of_work(schema, monkeypatch):
    monkeypatch.setattr(gbnf, "MOST_WORK", 60_000)
    with pytest.raises(InvalidOptionError) as caught:
        to_gbnf(schema)
    assert isinstance(caught.value, GrammarTooLargeError) or "unterminated" in caught.value.reason
    assert to_gbnf(TEXT)  # the next conversion has a limit of its own


@pytest.mark.few(3)
@pytest.mark.parametrize("others", [[], [NULL], [NULL, {"type": "array"}]])
@pytest.mark.parametrize(
    "part",
    [lambda i: {"const": i}, lambda i: an_object(["kind", "v"], kind={"const": f"k{i}"}, v=TEXT)],
)
def test_many_parts_that_an_enum_distinguishes(part, others, monkeypatch):
    """They are not compared in pairs."""
    monkeypatch.setattr(gbnf, "MOST_WORK", 200_000)
    parts = [part(i) for i in range(500)]
    assert to_gbnf({"oneOf": [*parts, *others]})
    monkeypatch.undo()
    with pytest.raises(InvalidOptionError, match="oneOf"):
        to_gbnf({"oneOf": [*parts, *others, part(7)]})


def test_a_forbidden_property_is_not_written_as_an_additional_one():
    for named in ({"a": False}, {"a": False, "b": {"type": "integer"}}):
        schema = {"properties": named, "additionalProperties": True}
        assert takes(schema, {"c": "x"})
        assert not takes(schema, {"a": 1})
        assert not takes(schema, {"c": 1, "a": 1})
