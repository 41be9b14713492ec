"""Conversion of JSON schemas to GBNF grammars.

A schema is not trusted: it may be part of a request. No reference is downloaded.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from functools import cache, partial
from itertools import chain, combinations, product
from typing import Any, NamedTuple
from urllib.parse import unquote

from ..errors import GrammarTooLargeError, InvalidGrammarError
from .automaton import (
    MAX_BYTES,
    MAX_DEPTH,
    Automaton,
    limited_work,
    quoted,
    repeated,
    spend,
)
from .patterns import (
    ANY_TEXT,
    PatternError,
    Texts,
    bounded_class,
    matching,
    multiples,
    of_length,
    pattern_gbnf,
    widths,
    words,
)
from .schemas import on_a_line, read_schema

_ENCODER = json.JSONEncoder(sort_keys=True)
# patterns of dates and times
_LEAP = r"(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DAY = (
    r"(\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)"
    rf"|02-(0[1-9]|1\d|2[0-8]))|{_LEAP}-02-29)"
)
_CLOCK = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?"
_HOUR = rf"{_CLOCK}(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
# parts of addresses
_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_V4 = rf"({_BYTE}\.){{3}}{_BYTE}"
_GROUP = r"[0-9a-fA-F]{1,4}"
_RIGHT = [rf"({_GROUP}(:{_GROUP}){{0,{n - 1}}})?" if n else "" for n in range(8)]
_V6 = (
    rf"(({_GROUP}:){{7}}{_GROUP}|({_GROUP}:){{6}}{_V4}|"
    + "|".join(
        (rf"{_GROUP}(:{_GROUP}){{{n - 1}}}" if n else "")
        + rf"::({_RIGHT[7 - n]}"
        + (rf"|({_GROUP}:){{0,{5 - n}}}{_V4})" if n < 6 else ")")
        for n in range(8)
    )
    + ")"
)
# shorter than allowed, so that no name has more than 253 characters, and without two hyphens
_LABEL = r"([a-zA-Z0-9]-?){0,24}[a-zA-Z0-9]"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,4}}"
_LOCAL = r"[a-zA-Z0-9_%+-]+(\.[a-zA-Z0-9_%+-]+)*"
_EMAIL = rf"{_LOCAL}@{_LABEL}(\.{_LABEL}){{1,4}}"
_OF_HOST = r"[a-zA-Z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2}"


def _uri(address: str, *most: str) -> str:
    """Return a pattern for URIs.

    Args:
        address: Another form of a host, in front of a bar; or empty.
        most: Repetition of the characters of user, host, path, query and fragment.
    """
    user, host, path, query, fragment = most
    of_path, of_query = rf"({_OF_HOST}|[:@/])", rf"({_OF_HOST}|[:@/?])"
    return (
        rf"[a-zA-Z][a-zA-Z0-9+.-]{{0,19}}:(//(({_OF_HOST}|:){user}@)?({address}({_OF_HOST}){host})"
        rf"(:\d{{0,5}})?(/{of_path}{path})?|/?(({_OF_HOST}|[:@]){of_path}{path})?)"
        rf"(\?{of_query}{query})?(#{of_query}{fragment})?"
    )


_UUID = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_UUID_OF = "[0-9a-f]{{8}}-[0-9a-f]{{4}}-{}[0-9a-f]{{3}}-[89ab][0-9a-f]{{3}}-[0-9a-f]{{12}}"
_BASE64 = "([{0}]{{4}})*([{0}]{{2}}==|[{0}]{{3}}=)?"
_N = r"\d{1,9}"
_DAYS = f"({_N}Y({_N}M({_N}D)?)?|{_N}M({_N}D)?|{_N}D)"
_TIMES = f"({_N}H({_N}M({_N}S)?)?|{_N}M({_N}S)?|{_N}S)"
# supported values of `format` -> pattern
_FORMATS = {
    "date": _DAY,
    "time": _HOUR,
    "date-time": f"{_DAY}T{_HOUR}",
    "duration": rf"P({_N}W|{_DAYS}(T{_TIMES})?|T{_TIMES})",
    "uuid": _UUID,
    **{f"uuid{n}": _UUID_OF.format(n) for n in range(1, 9)},
    "ipv4": _V4,
    "ipv6": _V6,
    **{f"ipv4{kind}": rf"{_V4}(/(3[0-2]|[12]?\d))?" for kind in ("network", "interface")},
    **{
        f"ipv6{kind}": rf"{_V6}(/(12[0-8]|1[01]\d|[1-9]?\d))?" for kind in ("network", "interface")
    },
    "ipvanyaddress": f"({_V4}|{_V6})",
    "hostname": _HOST,
    "email": _EMAIL,
    # at most 2,083 characters, which is what Pydantic's HttpUrl asks for
    "uri": _uri(rf"\[{_V6}\]|", "{0,20}", "{0,60}", "{0,400}", "{0,140}", "{0,50}"),
    "base64": _BASE64.format("A-Za-z0-9+/"),
    "byte": _BASE64.format("A-Za-z0-9+/"),
    "base64url": _BASE64.format("A-Za-z0-9_-"),
    "json-pointer": "(/([^~/]|~[01])*)*",
}  # fmt: skip
# the same where an automaton is needed, without parts that need many states
_SMALL_LABEL = "([a-zA-Z0-9]-?)*[a-zA-Z0-9]"
_SMALL_FORMATS = {
    "uri": _uri("", "*", "*", "*", "*", "*"),
    "hostname": rf"{_SMALL_LABEL}(\.{_SMALL_LABEL})*",
    "email": rf"{_LOCAL}@{_SMALL_LABEL}(\.{_SMALL_LABEL})+",
}
# values of `format` that every text, or number, fulfils: they speak about its display or its use
FREE_FORMATS: set[str] = {
    "binary", "password", "path", "file-path", "directory-path", "textarea", "multiline", "text",
    "float", "double", "decimal", "number",
}  # fmt: skip
# type -> keywords that apply only to this type
KINDS = {
    "object": {
        "properties", "required", "additionalProperties", "minProperties", "maxProperties",
        "patternProperties", "propertyNames", "unevaluatedProperties", "dependencies",
        "dependentRequired", "dependentSchemas",
    },
    "array": {
        "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems",
        "contains", "unevaluatedItems",
    },
    "string": {
        "pattern", "format", "minLength", "maxLength", "contentEncoding", "contentMediaType",
    },
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}  # fmt: skip
# keyword -> values without an effect, with which it is ignored
_FREE: dict[str, tuple[Any, ...]] = {
    "not": (False,), "uniqueItems": (False,), "patternProperties": ({},),
    "propertyNames": (True, {}, {"type": "string"}), "dependencies": ({},),
    "dependentRequired": ({},), "dependentSchemas": ({},), "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}), "format": (*FREE_FORMATS,), "nullable": (False,),
}  # fmt: skip
# keywords that no grammar follows
UNSUPPORTED: tuple[str, ...] = (
    "if", "contains", "dependencies", "dependentRequired", "dependentSchemas", "$dynamicRef",
    "$recursiveRef", "contentMediaType",
)  # fmt: skip
# all keywords that are not ignored
KEYWORDS: set[str] = {
    "$ref", "allOf", "anyOf", "oneOf", "type", "enum", "const", "not", *UNSUPPORTED
}.union(*KINDS.values())  # fmt: skip
# keyword of a bound -> test of a value, or of its length, against the bound
_TESTS = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
} | {
    f"{way}{what}": test
    for way, test in (("min", operator.ge), ("max", operator.le))
    for what in ("Length", "Items", "Properties")
}
# inside of a character class: the characters that a JSON string may hold without an escape
_QUOTED = r'^"\\\x00-\x1F'
# bounds with more digits, or more of them after the point, are not supported
_MAX_DIGITS, _MAX_DECIMALS = 100, 15
# most values of an array without repetitions whose orders are all written
_MAX_UNIQUE = 7
# Python type -> JSON type
_NAMES = {
    type(None): "null", bool: "boolean", int: "number", float: "number", str: "string",
    list: "array", dict: "object",
}  # fmt: skip
_ALL = frozenset(_NAMES.values())
# largest depth of nested properties that are compared
_DEPTH = 8
# rules that every grammar contains
_BUILT_IN = {
    "space": '" "?',  # between values
    "hex": "[0-9a-fA-F]",
    # one code point per character, so no surrogates
    "char": (
        rf'[{_QUOTED}] | "\\" (["\\/bfnrt] | '
        r'"u" ([0-9abcefABCEF] hex | [dD] [0-7]) hex hex)'
    ),
    "string": r'"\"" char* "\"" space',
    "natural": '"0" | [1-9] [0-9]{0,15}',
    "fraction": r'natural ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})?',
    "object": '"{" space (string ":" space value ("," space string ":" space value)*)? "}" space',
    "array": '"[" space (value ("," space value)*)? "]" space',
    "value": (
        '(object | array | string | "-"? fraction space | '
        '"true" space | "false" space | "null" space)'
    ),
}
# most rules of one string, and about how many bytes each has
_MAX_RULES, _BYTES_OF_RULE = 600, 150
# largest number of parts of a schema
_MAX_SCHEMAS = 5000


class Dropped(NamedTuple):
    """A keyword of a schema that its grammar does not follow.

    Attributes:
        path: JSON pointer of the schema with the keyword.
        value: Its value as JSON text, which may be cut.
        reason: Why, without a full stop.
    """

    path: str
    keyword: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.keyword} {self.value} ({self.reason})"


# where to put the keywords that are dropped; None where they are refused
_dropped: ContextVar[list[Dropped] | None] = ContextVar("gguf_spec_dropped", default=None)


@contextmanager
def dropping(into: list[Dropped] | None) -> Iterator[None]:
    """Drop unsupported keywords in the block, and add each to a list; None refuses them."""
    token = _dropped.set(into)
    try:
        yield
    finally:
        _dropped.reset(token)


def drop(path: Sequence[str], keyword: str, value: Any, reason: str) -> None:
    """Drop a keyword of the schema to which the steps of `path` lead.

    Raises:
        UnsupportedKeywordError: Keywords are not dropped here.
    """
    steps = (step.replace("~", "~0").replace("/", "~1") for step in path)
    text = _ENCODER.encode(value)
    text = text if len(text) <= 80 else f"{text[:77]}..."
    where = "/".join(("#", *steps))[:200]
    one = Dropped(on_a_line(where), on_a_line(keyword[:60]), text, on_a_line(reason))
    into = _dropped.get()
    if into is None:
        raise UnsupportedKeywordError(str(one))
    if not any(other[:3] == one[:3] for other in into):
        into.append(one)


class UnsupportedKeywordError(ValueError):
    """A keyword that no grammar follows; the message has its path, its value and the reason."""


class _Many(list[Any]):
    """Several values of one keyword, all of which apply."""


def _many(value: Any) -> list[Any]:
    """Return the values of a keyword, which are several after schemas were merged."""
    return value if isinstance(value, _Many) else [value]


def _typed(value: Any, kind: type, key: str) -> Any:
    """Return the value of a keyword; raise ValueError for another type, or an empty list."""
    if not isinstance(value, kind) or (
        key in ("enum", "anyOf", "oneOf", "allOf", "type") and not value
    ):
        raise ValueError(f"{key} is {value!r:.60}")
    return value


def _count(schema: dict[str, Any], key: str) -> int | None:
    """Return the value of a keyword that counts; None if it is missing.

    A maximum of 10^9 or more is no limit.

    Raises:
        ValueError: The value is no count, or a minimum of 10^9 or more.
    """
    n = schema.get(key)
    if isinstance(n, float) and n.is_integer():
        n = int(n)
    if n is None:
        return None
    is_far = isinstance(n, int) and n >= 10**9
    if not isinstance(n, int) or isinstance(n, bool) or n < 0 or (is_far and key[:3] == "min"):
        raise ValueError(f"{key} is {n!r:.60}")
    return None if is_far else n


def _kinds(kind: Any) -> list[str]:
    return [
        _typed(k, str, "type")
        for k in (_typed(kind, list, "type") if isinstance(kind, list) else [kind])
    ]


def _same(value: Any) -> str:
    """Return a text that is equal for equal JSON values; in Python 1 and True are equal."""
    text = _ENCODER.encode(int(value) if isinstance(value, float) and value.is_integer() else value)
    spend(3 + len(text) // 32)
    return text


def _unique(values: Iterable[Any]) -> list[Any]:
    """Return JSON values, each once, in the order of their first places."""
    return [*{_same(value): value for value in values}.values()]


def _reduced(schema: Any) -> dict[str, Any]:
    """Return a schema without keywords that have no effect; `const` becomes an `enum`."""
    spend(1 + len(_typed(schema, dict, "a schema")))
    kept = {k: v for k, v in schema.items() if k in KEYWORDS and v not in _FREE.get(k, ())}
    if "const" in kept:
        values = [kept.pop("const")]
        kept["enum"] = _common(kept.get("enum", values), values)
    return kept


def _common(a: Any, b: Any) -> list[Any]:
    there = {_same(value) for value in _typed(b, list, "enum")}
    common = [value for value in _typed(a, list, "enum") if _same(value) in there]
    if not common:
        raise ValueError("two values of enum or const have nothing in common")
    return common


def _common_kinds(a: Any, b: Any) -> list[str]:
    a, b = (
        {*kinds, "integer"} if "number" in kinds else set(kinds) for kinds in (_kinds(a), _kinds(b))
    )
    common = a & b
    if not common:
        raise ValueError("two values of type have nothing in common")
    return sorted(common - {"integer"} if "number" in common else common)


def _both(a: Any, b: Any) -> Any:
    if isinstance(a, bool) or isinstance(b, bool):
        return False if a is False or b is False else b if a is True else a
    return a if _same(a) == _same(b) else {"allOf": [a, b]}


# keyword -> function that merges two values
_COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    **{key: min if test in (operator.le, operator.lt) else max for key, test in _TESTS.items()},
    "type": _common_kinds,
    "enum": _common,
    "items": _both,
    "additionalItems": _both,
    "required": lambda a, b: _typed(a, list, "required") + _typed(b, list, "required"),
    "allOf": lambda a, b: _unique(_typed(a, list, "allOf") + _typed(b, list, "allOf")),
    "patternProperties": lambda a, b: {
        key: _both(a.get(key, True), b.get(key, True)) for key in {**a, **b}
    },
    "propertyNames": _both,
}
# most pairs of the parts of two `anyOf` or `oneOf`
_MAX_PAIRS = 100
# keywords that speak about what the other keywords of the same schema leave over
_LEFT_OVER = ("unevaluatedProperties", "unevaluatedItems")


def _put_together(key: str, a: Any, b: Any, path: Sequence[str]) -> Any:
    if key in _COMBINED:
        return _COMBINED[key](a, b)
    if key not in ("anyOf", "oneOf"):
        return _Many(_unique([*_many(a), *_many(b)]))
    pairs = [{"allOf": [*pair]} for pair in product(_typed(a, list, key), _typed(b, list, key))]
    if len(pairs) > _MAX_PAIRS:
        drop(path, key, b, "there are too many pairs with the other one")
        return a
    return pairs


def _merged(a: Any, b: Any, path: Sequence[str]) -> Any:
    """Return one schema that is equivalent to two schemas together.

    Raises:
        ValueError: They cannot be merged.
    """
    if isinstance(a, bool) or isinstance(b, bool):
        return _both(a, b)
    a, b = _reduced(a), _reduced(b)
    tuples = [
        {k: s[k] for k in ("items", "prefixItems", "additionalItems") if k in s} for s in (a, b)
    ]
    if (
        all(tuples)
        and any("prefixItems" in s or isinstance(s.get("items"), list) for s in (a, b))
        and _same(tuples[0]) != _same(tuples[1])
    ):
        key = "prefixItems" if "prefixItems" in b else "items"
        drop(path, key, b[key], "two tuples cannot be put together")
        b = {k: v for k, v in b.items() if k not in tuples[1]}
    both = {**a, **b}
    for key in a.keys() & b.keys() - {"properties", "additionalProperties"}:
        if _same(a[key]) != _same(b[key]):
            both[key] = _put_together(key, a[key], b[key], path)
    (named_a, rest_a), (named_b, rest_b) = (
        (_typed(s.get("properties", {}), dict, "properties"), s.get("additionalProperties", True))
        for s in (a, b)
    )
    spend(len(named_a) + len(named_b))
    if "additionalProperties" in both:
        both["additionalProperties"] = _both(rest_a, rest_b)
    # a named property of one schema may be an additional property of the other
    if "properties" in both:
        both["properties"] = {
            name: _both(named_a.get(name, rest_a), named_b.get(name, rest_b))
            for name in {**named_a, **named_b}
        }
    return both


def _is_type(value: Any, kind: str) -> bool:
    if kind == "integer":
        return _NAMES[type(value)] == "number" and value == int(value)
    if kind not in _ALL:
        raise ValueError(f"there is no type {kind!r:.60}")
    return _NAMES[type(value)] == kind


def _fits(value: Any, schema: dict[str, Any], path: Sequence[str]) -> bool:
    """Return whether a value of an enum is valid for the other keywords of the schema."""
    if "type" in schema and not any(_is_type(value, kind) for kind in _kinds(schema["type"])):
        return False
    kind = _NAMES[type(value)]
    for key in sorted(schema.keys() & KINDS.get(kind, set())):
        if key in _TESTS:
            if not _TESTS[key](value if kind == "number" else len(value), schema[key]):
                return False
        elif key == "pattern":
            if not all(value in matching(_typed(one, str, key)) for one in _many(schema[key])):
                return False
        else:
            drop(path, key, schema[key], "it stands beside enum or const")
    return True


def _value_gbnf(value: Any) -> str:
    if isinstance(value, dict):
        pairs = ' "," space '.join(
            f'{_value_gbnf(key)} ":" space {_value_gbnf(item)}' for key, item in value.items()
        )
        return f'"{{" space {pairs} "}}" space'
    if isinstance(value, list):
        items = ' "," space '.join(map(_value_gbnf, value))
        return f'"[" space {items} "]" space'
    if isinstance(value, float) and value.is_integer() and abs(value) < 10**15:
        return f'"{int(value)}" ".0"? space'
    text = json.dumps(value, ensure_ascii=False)
    # lone surrogates can only be escaped
    return quoted(text if text.isprintable() else json.dumps(value)) + " space"


# a bound, and whether it is exclusive; None for no bound
_End = tuple[Decimal, bool] | None


def _bounds(schema: dict[str, Any], build: _Converter) -> tuple[_End, _End]:
    """Return the lower bound and the upper one, which is negated.

    One with too many digits is dropped. Those of an integer are whole, and not exclusive.

    Raises:
        ValueError: A bound is no number.
    """
    found: list[_End] = []
    for name, sign in (("minimum", 1), ("maximum", -1)):
        keys = (name, f"exclusive{name.capitalize()}")
        given = {key: schema[key] for key in keys if key in schema}
        for key, bound in given.items():
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                raise ValueError(f"{key} is {bound!r:.60}")
        ends = [(sign * Decimal(str(bound)), key != name) for key, bound in given.items()]
        end = max(ends, default=None)
        if end and (abs(end[0]) >= 10**_MAX_DIGITS or _n_decimals(end[0]) > _MAX_DECIMALS):
            for key, bound in given.items():
                build.drop(key, bound, "it has too many digits")
            end = None
        if end and schema["type"] == "integer":
            whole = math.floor(end[0]) + 1 if end[1] else math.ceil(end[0])
            end = Decimal(whole), False
        found.append(end)
    return found[0], found[1]


def _n_decimals(number: Decimal) -> int:
    """Return the number of digits after the decimal point, without zeros at the end."""
    return max(0, -int(number.normalize().as_tuple().exponent))


def _between(low: str, high: str) -> list[str]:
    """Return GBNF alternatives for the integers from `low` to `high`, which have as many digits."""
    if low == high:
        return [f'"{low}"']
    n, at = len(low), next(i for i, (a, b) in enumerate(zip(low, high, strict=True)) if a != b)
    parts = [(low[:at], int(low[at]) + 1, int(high[at]) - 1)]
    for i in range(at + 1, n):
        parts += [(low[:i], int(low[i]) + 1, 9), (high[:i], 0, int(high[i]) - 1)]
    ways = [
        f'"{begun}" [{first}-{last}] [0-9]{{{n - len(begun) - 1}}}'
        for begun, first, last in parts
        if first <= last
    ]
    return [*ways, f'"{low}"', f'"{high}"']


def _naturals(low: int, high: int) -> str:
    """Return GBNF for the non-negative integers from `low` to `high`."""
    ways, whole = [], []
    for n in range(len(str(low)), len(str(high)) + 1):
        first, last = 10 ** (n - 1) if n > 1 else 0, 10**n - 1
        if low <= first and last <= high and n > 1:
            whole.append(n - 1)
        else:
            ways += _between(str(max(low, first)), str(min(high, last)))
    if whole:
        ways.append(f"[1-9] [0-9]{{{whole[0]},{whole[-1]}}}")
    return f"({' | '.join(ways)})"


def _magnitudes(low: tuple[int, bool], high: tuple[int, bool], n_digits: int) -> list[str]:
    """Return GBNF alternatives for non-negative numbers between two whole bounds.

    A bound has a flag: whether it is exclusive. `n_digits` is the most digits behind the point.
    """
    (least, above), (most, below) = low, high
    if not n_digits:
        return [_naturals(least + above, most - below)] if least + above <= most - below else []
    ways = []
    if least + above < most:
        ways.append(f'{_naturals(least + above, most - 1)} ("." [0-9]{{1,{n_digits}}})?')
    if above and least < most:
        ways.append(f'"{least}." [0-9]{{0,{n_digits - 1}}} [1-9]')
    if not below and (least < most or (least == most and not above)):
        ways.append(f'"{most}" ("." "0"{{1,{n_digits}}})?')
    return ways


def _far(low: _End, high: _End) -> int:
    """Return a number that is as large as one between these bounds, of which one is missing."""
    n = max(len(str(int(abs(end[0])))) for end in (low, high) if end)
    return int(10 ** max(16, n)) - 1


def _number(schema: dict[str, Any], build: _Converter) -> str:
    """Return GBNF for the numbers of a schema.

    A number between bounds has at most 15 digits. Doubles distinguish all such numbers.
    """
    whole = schema["type"] == "integer"
    schema = _sized(schema, build)
    low, high = _bounds(schema, build)
    units = [one for one in _many(schema.get("multipleOf", 1)) if not (whole and one == 1)]
    units = units if "multipleOf" in schema else []
    not_these = [
        str(int(value))
        for part in _many(schema.get("not", _Many()))
        for value in part["enum"]
        if _is_type(value, "integer")
    ]
    if units or not_these or any(end and end[0] % 1 for end in (low, high)):
        return f"{_counted_number(units, not_these, (low, high), whole, build)} space"
    if low is None and high is None:
        return f'"-"? {"natural" if whole else "fraction"} space'
    zero = Decimal(0), False
    if not whole and (low is None or high is None) and zero in (low, high):
        return "fraction space" if low else '("0" | "-" fraction) space'
    far = _far(low, high)
    # `most` is negated
    (least, above), (most, below) = (
        (int(end[0]), end[1]) if end else (-far, False) for end in (low, high)
    )
    n = max(len(str(abs(int(end[0])))) for end in (low, high) if end)
    n_digits = 0 if whole else max(0, 15 - n)
    ways = _magnitudes((max(least, 0), above and least >= 0), (-most, below), n_digits)
    ways += [
        f'"-" {way}'
        for way in _magnitudes((max(most, 0), below or most <= 0), (-least, above), n_digits)
    ]
    if not ways:
        raise ValueError("no number is between minimum and maximum")
    return f"({' | '.join(ways)}) space"


def _sized(schema: dict[str, Any], build: _Converter) -> dict[str, Any]:
    """Return the schema of a number with the bounds of a `format` such as int32."""
    for form in _many(schema.get("format", ())) if "format" in schema else ():
        sized = re.fullmatch(r"(u?)int(8|16|32|64)", str(form))
        if sized is None:
            build.drop("format", form, "this format of numbers is unknown")
            continue
        size = 2 ** int(sized[2])
        least, most = (0, size - 1) if sized[1] else (-size // 2, size // 2 - 1)
        if sized[2] != "64" or sized[1]:  # the numbers without bounds are in those of int64
            schema = _merged(schema, {"minimum": least, "maximum": most}, ())
    return schema


def _counted_number(
    units: list[Any], not_these: list[str], ends: tuple[_End, _End], whole: bool, build: _Converter
) -> str:
    """Return GBNF for multiples, numbers but for some, and those between fractional bounds."""
    low, high = ends
    n_decimals = max([_n_decimals(end[0]) for end in (low, high) if end], default=0)
    point = "" if whole else rf"(\.\d{{1,{max(15, n_decimals)}}})?"
    size = len(str(_far(low, high))) if low or high else 16
    texts = matching(rf"^-?(0|[1-9]\d{{0,{size - 1}}}){point}$")
    if low:
        texts &= matching(f"^({_at_least(low, size)})$")
    if high:
        of_negated = _at_least(high, size)
        # "-" in front of each way, or none if there is one
        texts &= matching(f"^({of_negated})$").negated()
    if not_these:
        texts &= ~words([*not_these, *(["-0"] if "0" in not_these else [])])
    for unit in units:
        if isinstance(unit, bool) or not isinstance(unit, int | float) or unit <= 0:
            raise ValueError(f"multipleOf is {unit!r:.60}")
        exact, n = Decimal(str(unit)), _n_decimals(Decimal(str(unit)))
        try:
            texts &= multiples(int(exact.scaleb(n)), n)
        except PatternError as error:
            build.drop("multipleOf", unit, str(error))
    return build.texts(texts.smaller(), "no number fulfils multipleOf and the bounds")


def _at_least(end: tuple[Decimal, bool], size: int) -> str:
    """Return a pattern for numbers from a bound on, with at most `size` digits before the point."""
    bound, is_open = end
    if bound < 0:
        return rf"[\d.]+|-({_at_most((-bound, is_open))})"
    digits, decimals = _digits(bound)
    ways = [
        rf"{digits}\.{decimals[:i]}[{int(d) + 1}-9]\d*" for i, d in enumerate(decimals) if d < "9"
    ]
    ways.append(rf"{digits}\.{decimals}\d*" + (r"[1-9]\d*" if is_open else ""))
    if not (decimals or is_open):
        ways.append(digits)
    above = _naturals(int(digits) + 1, 10**size - 1)
    return "|".join([*ways, rf"{_as_pattern(above)}(\.\d+)?"])


def _at_most(end: tuple[Decimal, bool]) -> str:
    """Return a pattern for the numbers that are not negative, up to a bound above 0."""
    bound, is_open = end
    digits, decimals = _digits(bound)
    ways = [
        rf"{digits}\.{decimals[:i]}[0-{int(d) - 1}]\d*" for i, d in enumerate(decimals) if d > "0"
    ]
    ways += [rf"{digits}\.{decimals[:i]}" for i in range(1, len(decimals))]
    if not is_open:
        ways.append(rf"{digits}\.{decimals}0*")
    if decimals or not is_open:
        ways.append(digits)
    if digits != "0":
        ways.append(rf"{_as_pattern(_naturals(0, int(digits) - 1))}(\.\d+)?")
    return "|".join(ways)


def _digits(bound: Decimal) -> tuple[str, str]:
    """Return the digits before and after the point, without zeros at the end."""
    digits, _, decimals = f"{bound:f}".partition(".")
    return digits, decimals.rstrip("0")


def _as_pattern(gbnf: str) -> str:
    return re.sub('[" ]', "", gbnf)


def _array(schema: dict[str, Any], build: _Converter) -> str:
    old = isinstance(schema.get("items"), list)  # older form of prefixItems
    if old and "prefixItems" in schema:
        raise ValueError("two different prefixItems are not supported together")
    fixed = _typed(schema["items"] if old else schema.get("prefixItems", []), list, "prefixItems")
    least, most = _count(schema, "minItems"), _count(schema, "maxItems")
    key = "additionalItems" if old else "items"
    key = "unevaluatedItems" if key not in schema and "unevaluatedItems" in schema else key
    others = schema.get(key, not fixed or (least or 0) > len(fixed))
    n = next((i for i, item in enumerate(fixed) if item is False), len(fixed))
    if others is False or n < len(fixed):
        others, most = False, n if most is None else min(n, most)
    fixed = fixed[:n][:most]
    least = len(fixed) if least is None else least
    repeated(least, most)
    if "uniqueItems" in schema and most not in (0, 1):
        values = None if fixed else build.values_of(others)
        if values is not None and len(values) <= _MAX_UNIQUE:
            return _unique_array([*map(_value_gbnf, values)], least, most, build)
        which = "its items are not a small enum" if values is None else "there are too many values"
        build.drop("uniqueItems", schema["uniqueItems"], which)
    after = ""
    if others is not False and most != len(fixed):
        after = _repetition(build.visit(others, key), len(fixed), least, most)
    for i, item_schema in reversed([*enumerate(fixed)]):
        comma = '"," space ' if i else ""
        steps = "items" if old else "prefixItems", str(i)
        after = f"{comma}{build.visit(item_schema, *steps)} {after}"
        after = after if i < least else build.rule(after) + "?"
    return build.rule(f'"[" space {after} "]" space')


def _repetition(item: str, n_before: int, least: int, most: int | None) -> str:
    """Return GBNF for one item again and again, behind `n_before` of `least` to `most` items."""
    begun = max(n_before, 1)
    times = repeated(max(least - begun, 0), None if most is None else most - begun)
    if n_before:
        return f'("," space {item}){times}'
    some = f'{item} ("," space {item}){times}'
    return some if least else f"({some})?"


def _unique_array(values: list[str], least: int, most: int | None, build: _Converter) -> str:
    """Return the name of the rule for the arrays of different values, which are GBNF."""
    most = len(values) if most is None else min(most, len(values))
    if least > most:
        raise ValueError(f"at least {least} different items of {len(values)} values is impossible")

    @cache
    def after(used: int) -> str:
        """Return GBNF for what follows the values of a bit mask."""
        n = used.bit_count()
        comma = '"," space ' if n else ""
        ways = ['""'] if n >= least else []
        ways += [
            f"{comma}{value} {after(used | 1 << i)}"
            for i, value in enumerate(values)
            if n < most and not used >> i & 1
        ]
        return build.rule(" | ".join(ways))

    return build.rule(f'"[" space {after(0)} "]" space')


def _other_key(names: list[str], at: int, build: _Converter) -> str:
    """Return GBNF for the rest of a key that differs from all names.

    The names share their first `at` characters, which are already written.
    """
    whole, groups = any(len(name) == at for name in names), dict[str, list[str]]()
    for name in names:
        if len(name) > at:
            groups.setdefault(name[at], []).append(name)
    parts = [
        f"{quoted(letter)} {_other_key(group, at + 1, build)}" for letter, group in groups.items()
    ]
    not_these = "".join(f"\\U{ord(letter):08X}" for letter in groups)
    parts.append(f"[{_QUOTED}{not_these}] [{_QUOTED}]*")
    return build.rule(f"({' | '.join(parts)}){'' if whole else '?'}")


def _key_rules(
    schema: dict[str, Any], properties: dict[str, Any], extra: Any, build: _Converter
) -> list[tuple[str, Any, tuple[str, ...]]]:
    """Return GBNF for the keys of other properties than the named ones, each with their schema.

    Args:
        properties: The named properties; those that match a pattern get its schema, too.
        extra: The schema of the properties that match no pattern; False for none.
    """
    patterns = _patterns(schema, properties, build)
    names, steps = words(properties), ("additionalProperties",)
    found = [
        (rf'"\"" {build.texts((texts & ~names).smaller())} "\"" space', part, way)
        for texts, part, way in patterns
        if part is not False
    ]
    if extra is False:
        return found
    if "propertyNames" in schema and not (patterns or properties):
        wanted = build.merged({"type": "string"}, schema["propertyNames"])
        return [(build.visit(wanted, "propertyNames"), extra, steps)]
    key = "string"
    if patterns:
        others = ~names
        for texts, _, _ in patterns:
            others &= ~texts
        key = rf'"\"" {build.texts(others.smaller())} "\"" space'
    elif properties:
        # a key with an escape differs from all other keys
        escaped = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
        plain = [name for name in properties if not escaped.search(name)]
        key = build.rule(rf'"\"" {_other_key(plain, 0, build)} "\"" space')
    return [*found, (key, extra, steps)]


def _patterns(
    schema: dict[str, Any], properties: dict[str, Any], build: _Converter
) -> list[tuple[Texts, Any, tuple[str, ...]]]:
    """Return the keys of `patternProperties` with schemas, which named properties get, too."""
    found: list[tuple[Texts, Any, tuple[str, ...]]] = []
    given = _typed(schema.get("patternProperties", {}), dict, "patternProperties")
    for pattern, part in given.items():
        try:
            texts = matching(pattern)
            if any((texts & other).live for other, _, _ in found):
                raise PatternError("a key may match two patterns")
        except PatternError as error:
            build.drop("patternProperties", {pattern: part}, str(error))
            continue
        for name, named in properties.items():
            if name in texts:
                properties[name] = build.merged(named, part)
        found.append((texts, part, ("patternProperties", pattern)))
    return found


def _object(schema: dict[str, Any], build: _Converter) -> str:
    properties = dict(_typed(schema.get("properties", {}), dict, "properties"))
    required = dict.fromkeys(
        _typed(name, str, "required")
        for name in _typed(schema.get("required", []), list, "required")
    )
    extra = schema.get(
        "additionalProperties",
        schema.get("unevaluatedProperties", not (properties or "patternProperties" in schema)),
    )
    for name in required:
        properties.setdefault(name, schema.get("additionalProperties", True))
    others = _key_rules(schema, properties, extra, build)
    if "propertyNames" in schema and (properties or "patternProperties" in schema):
        build.drop("propertyNames", schema["propertyNames"], "the object names properties, too")
    pairs = {
        name: build.rule(f'{_value_gbnf(name)} ":" space {build.visit(part, "properties", name)}')
        for name, part in properties.items()
        if part is not False
    }
    if required.keys() - pairs.keys():
        raise ValueError("a required property is forbidden")
    ways = [f'{key} ":" space {build.visit(part, *steps)}' for key, part, steps in others]
    more = build.rule(" | ".join(ways)) if len(ways) > 1 else "".join(ways)
    first = [pairs.pop(name) for name in required]
    least, most = _count(schema, "minProperties") or 0, _count(schema, "maxProperties")
    repeated(least, most)
    if most is not None and not more and most >= len(first) + len(pairs):
        most = None
    inner = members(first, [*pairs.values()], '"," space', build.rule, more, (least, most))
    return build.rule(f'"{{" space {inner} "}}" space')


def members(
    required: Sequence[str],
    optional: Sequence[str],
    comma: str,
    rule: Callable[[str], str],
    more: str = "",
    bounds: tuple[int, int | None] = (0, None),
) -> str:
    """Return GBNF for members in their order, of which some may be missing.

    There is a rule for what follows each optional member, for each number that matters.

    Args:
        required: GBNF of the members that are never missing; they come first.
        comma: GBNF between two members; may be empty.
        rule: Adds a rule, and returns its name.
        more: GBNF of a member of which any number may follow; empty for none.
        bounds: Least and most members; None for any number.
    """
    least, most = bounds
    if (most is not None and most < len(required)) or (
        not more and least > len(required) + len(optional)
    ):
        raise ValueError(f"at least {least} and at most {most} of its properties is impossible")
    first = f" {comma} ".join(required)
    if not (optional or more):
        return first
    enough = max(least, 1) if most is None else most  # counted up to here
    start = min(len(required), enough)
    # number of members so far -> GBNF of what follows; None where there would be too few
    after: dict[int, str | None] = {}
    for n in range(start, min(start + len(optional), enough) + 1):
        after[n] = '""' if n >= least else None
        if more and n != most:
            after[n] = _repetition(more, n, least, most)
    for i, part in reversed([*enumerate(optional)]):
        for n in range(start, min(start + i, enough) + 1):
            then = None if n == most else after[min(n + 1, enough)]
            ways = [after[n], then and f"{comma if n else ''} {part} {then}".strip()]
            after[n] = rule(" | ".join(filter(None, ways))) if any(ways) else None
    return f"{first} {after[start]}".strip()


class _Facts:
    """Facts about a schema that is not a boolean, without references and `allOf` at its top level.

    Attributes:
        choice: The first of `anyOf` and `oneOf` that it has; empty for none.
        values: The values of `enum` as texts; None without `enum`.
        types: Types of the valid values.
        written: Types of the values that a grammar of the schema can write.
        rest: `additionalProperties`, or None.
        is_object: Whether its grammar writes objects, and their properties decide which.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        self.choice = next((k for k in ("anyOf", "oneOf") if isinstance(schema.get(k), list)), "")
        values = schema.get("enum")
        self.values = frozenset(map(_same, values)) if isinstance(values, list) else None
        self.types = _ALL
        if "type" in schema:
            self.types &= {"number" if k == "integer" else k for k in _kinds(schema["type"])}
        if isinstance(values, list):
            self.types &= {_NAMES[type(value)] for value in values}
        spoken_of = next((kind for kind, keys in KINDS.items() if keys & schema.keys()), None)
        is_free = not schema.keys() & {"type", "enum"}
        self.written = frozenset({spoken_of}) if is_free and spoken_of else self.types
        named, required = schema.get("properties", {}), schema.get("required", [])
        is_valid = isinstance(named, dict) and isinstance(required, list)
        self.named: dict[str, Any] = named if is_valid else {}
        self.required = {name for name in required if isinstance(name, str)} if is_valid else set()
        self.rest: Any = schema.get("additionalProperties") if is_valid else True
        self.is_object = self.written == {"object"} and "enum" not in schema


class Disjointness:
    """Test whether schemas are disjoint; each schema and each pair is examined once."""

    def __init__(self, plain: Callable[[Any], Any]) -> None:
        """`plain` converts a schema to a form without references and `allOf` at the top."""
        self._plain = plain
        self._facts: dict[str, _Facts | bool] = {}  # by the text of the schema
        self._ways: dict[_Facts, list[_Facts | bool]] = {}
        self._found: dict[tuple[_Facts, _Facts, int], bool] = {}

    def of_all(self, schemas: Sequence[Any]) -> bool:
        """Return whether no two schemas allow the same value; False if this is uncertain."""
        enums, objects, others = list[_Facts](), list[_Facts](), list[_Facts | bool]()
        for one in map(self._of, schemas):
            if isinstance(one, bool) or (one.values is None and (one.choice or not one.is_object)):
                others.append(one)
            else:
                (objects if one.values is None else enums).append(one)
        pairs = chain(
            () if _differ(enums) else combinations(enums, 2),
            () if self._have_tag(objects) else combinations(objects, 2),
            combinations(others, 2),
            product(enums, objects),
            product([*enums, *objects], others),
        )
        return all(self._two(a, b, 0) for a, b in pairs)

    def _of(self, schema: Any) -> _Facts | bool:
        plain = self._plain(schema)
        text = _same(plain)
        if text not in self._facts:
            self._facts[text] = plain if isinstance(plain, bool) else _Facts(plain)
        return self._facts[text]

    def _have_tag(self, facts: Sequence[_Facts]) -> bool:
        """Return whether the enum of a property that all objects have tells them apart."""
        tags = set[str]().union(*(one.required for one in facts))
        tags = tags.intersection(*(one.required & one.named.keys() for one in facts))
        return any(_differ([self._of(one.named[tag]) for one in facts]) for tag in sorted(tags))

    def _two(self, a: _Facts | bool, b: _Facts | bool, depth: int) -> bool:
        """Return whether no value of one grammar is valid for the other schema."""
        spend(5)
        if isinstance(a, bool) or isinstance(b, bool):
            return a is False or b is False
        found = self._found.get((a, b, depth))
        if found is None:
            if a.choice:
                found = all(self._two(way, b, depth) for way in self._ways_of(a))
            elif b.choice:
                found = all(self._two(a, way, depth) for way in self._ways_of(b))
            else:
                found = self._excludes(a, b, depth) and self._excludes(b, a, depth)
            self._found[a, b, depth] = found
        return found

    def _ways_of(self, facts: _Facts) -> list[_Facts | bool]:
        """Return the parts of `anyOf` or `oneOf`, each with the keywords beside it."""
        if facts not in self._ways:
            rest = {k: v for k, v in facts.schema.items() if k != facts.choice}
            parts = (part for part in facts.schema[facts.choice] if part is not False)
            ways = [self._of({"allOf": [rest, part]}) for part in parts]
            self._ways[facts] = [*dict.fromkeys(ways)]
        return self._ways[facts]

    def _excludes(self, writer: _Facts, other: _Facts, depth: int) -> bool:
        """Return whether no output of a grammar of `writer` is valid for the other schema."""
        if writer.values is not None and other.values is not None:
            spend(len(writer.values) // 16)
            return writer.values.isdisjoint(other.values)
        if not writer.written & other.types:
            return True
        if not writer.is_object or "enum" in other.schema or depth >= _DEPTH:
            return False
        spend((len(writer.named) + len(other.named)) // 16)
        if (
            writer.rest is False or (writer.named and writer.rest is None)
        ) and other.required - writer.named.keys() - writer.required:
            return True  # the other schema requires a property that is never written
        if other.rest is False and writer.required - other.named.keys():
            return True  # the other schema forbids a property that is always written
        shared = writer.named.keys() & other.named.keys() & (writer.required | other.required)
        return any(
            self._two(self._of(writer.named[name]), self._of(other.named[name]), depth + 1)
            for name in sorted(shared)
        )


def _differ(facts: Sequence[_Facts | bool]) -> bool:
    """Return whether all schemas have an enum, and no value is in two of them."""
    values = [one.values for one in facts if isinstance(one, _Facts) and one.values is not None]
    n_values = sum(map(len, values))
    return len(values) == len(facts) and n_values == len(frozenset[str]().union(*values))


def _not_these(part: dict[str, Any]) -> Texts:
    if "enum" in part:
        return ~words(value for value in part["enum"] if isinstance(value, str))
    texts = ~ANY_TEXT
    for pattern in _many(part["pattern"]):
        texts |= ~matching(pattern)
    return texts


def to_gbnf(schema: Mapping[str, Any] | str | bool) -> str:
    """Return a grammar for the JSON texts that are valid for a schema.

    No reference is downloaded.

    The grammar does not cover every value of the schema:

    - A schema without a type has the type to which its first keywords apply.
    - Required properties come first, the named ones in their order.
    - Numbers without a bound have up to 16 digits.
    - An object with named properties or patterns has no others unless `additionalProperties` or
      `unevaluatedProperties` allows them.
    - A tuple has all its items unless `minItems` allows fewer.

    Keywords beside `$ref` and the parts of `allOf` apply together. `oneOf` is supported if no value
    can be valid for two of its parts. The parts must differ in type, in an `enum` or `const`, or in
    that of a required property, or one of them must require a property that the others do not name.
    Patterns follow ECMA 262.

    A keyword that no grammar follows is refused, or dropped inside of `dropping`. The documentation
    has a table of all of them. Unknown keywords, and those that describe (`title`, `default`,
    `examples`), have no effect.

    Args:
        schema: A JSON schema, as a mapping or as JSON text; True for any value.

    Returns:
        The grammar in GBNF.

    Raises:
        InvalidOptionError: The schema is invalid, or no grammar can follow it.
        GrammarTooLargeError: Its conversion takes too much work.
    """
    with limited_work():
        gbnf = grammar_of(to_rules(schema, ""))
        try:
            Automaton(gbnf, int)
        except InvalidGrammarError as error:
            raise _bad_schema(schema, error) from error
    return gbnf


def grammar_of(rules: Iterable[str]) -> str:
    """Return a grammar of rules, with those that `to_rules` expects."""
    return "\n".join([*rules, *(f"{name} ::= {body}" for name, body in _BUILT_IN.items())]) + "\n"


def to_rules(
    schema: Mapping[str, Any] | str | bool, prefix: str, path: Sequence[str] = ()
) -> list[str]:
    """Return the rules for a schema, as a part of a grammar made by `grammar_of`.

    The first rule is `<prefix>root`. The steps of `path` lead to a schema that is part of another.

    Raises:
        InvalidOptionError: The schema is invalid, or no grammar can follow it.
        GrammarTooLargeError: The conversion takes too much work.
    """
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False)
        if len(text) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES >> 10} KiB")
        spend(len(text) // 16)
        root = read_schema(text)
        with limited_work():
            return _Converter(root, prefix, path).rules()
    except RecursionError:
        raise _bad_schema(schema, "it is nested too deeply") from None
    except (ValueError, TypeError, OverflowError, ArithmeticError) as error:
        raise _bad_schema(schema, error) from error


def _bad_schema(schema: object, reason: Exception | str) -> InvalidGrammarError:
    shown = ""  # the reason has the place and the value of a keyword
    if not isinstance(reason, UnsupportedKeywordError):
        try:
            shown = schema if isinstance(schema, str) else _ENCODER.encode(schema)
        except (RecursionError, TypeError, ValueError):
            shown = "a deep schema" if isinstance(schema, dict) else type(schema).__name__
        shown = on_a_line(shown if len(shown) <= 80 else f"{shown[:77]}...")
    if isinstance(reason, GrammarTooLargeError):
        return GrammarTooLargeError(shown)
    text = str(getattr(reason, "reason", reason))
    return InvalidGrammarError("json_schema", shown, text.rstrip(".")[:300])


class _Converter:
    """Conversion of one schema to grammar rules."""

    def __init__(self, root: Any, prefix: str, path: Sequence[str]) -> None:
        self._root, self._prefix = root, prefix
        self._rules: dict[str, str] = {}  # GBNF body -> name of the rule
        self._refs: dict[str, str] = {}
        self._aliases: list[str] = []
        self._n_visited = self._n_bytes = 0
        self.path = (*path,)
        self._disjointness = Disjointness(self._plain)

    def rules(self) -> list[str]:
        root = self.visit(self._root)
        rules = [f"{name} ::= {body}" for body, name in self._rules.items()]
        return [f"{self._prefix}root ::= {root}", *rules, *self._aliases]

    def rule(self, body: str) -> str:
        spend(1 + len(body) // 16)
        self._n_bytes += 0 if body in self._rules else len(body)
        if self._n_bytes > MAX_BYTES:
            raise ValueError(f"its grammar has more than {MAX_BYTES >> 10} KiB")
        return self._rules.setdefault(body, f"{self._prefix}r{len(self._rules)}")

    def drop(self, keyword: str, value: Any, reason: str) -> None:
        drop(self.path, keyword, value, reason)

    def texts(self, texts: Texts, why_none: str = "no text is possible") -> str:
        """Return the name of the rule for texts, without quotes; raise ValueError for none."""
        if 0 not in texts.live:
            raise ValueError(why_none)
        first, *rest = texts.gbnf(f"{self._prefix}s{len(self._aliases)}-")
        self._aliases += [first, *rest]
        self._n_bytes += sum(map(len, [first, *rest]))
        return first.partition(" ")[0]

    def values_of(self, schema: Any) -> list[Any] | None:
        """Return the values of a schema; None if they cannot be listed."""
        schema = self._plain(schema)
        if isinstance(schema, bool):
            return None
        if schema.get("type") == "boolean" and "enum" not in schema:
            return [False, True]
        if schema.keys() - {"enum", "type"} or "enum" not in schema:
            return None
        return _unique(self._fitting(schema))

    def _fitting(self, schema: dict[str, Any]) -> list[Any]:
        values = _typed(schema["enum"], list, "enum")
        return [value for value in values if _fits(value, schema, self.path)]

    def visit(self, schema: Any, *steps: str) -> str:
        """Return the name of the rule for a schema; `steps` lead to it from the current one."""
        self._n_visited += 1
        if self._n_visited > _MAX_SCHEMAS:
            raise ValueError(f"it has more than {_MAX_SCHEMAS} parts")
        before, self.path = self.path, (*self.path, *steps)
        try:
            return self._visit(schema)
        finally:
            self.path = before

    def _visit(self, schema: Any) -> str:
        if schema is True:
            return "value"
        if schema is False:
            raise ValueError("a part of it allows no value")
        keywords = _reduced(schema)
        if "$ref" in keywords or "allOf" in keywords:
            return self._named(keywords)
        for key in ("anyOf", "oneOf"):
            if key in keywords:
                return self._either(self._parts(keywords, key), key)
        for key in UNSUPPORTED:
            if key in keywords:
                for value in _many(keywords.pop(key)):
                    self.drop(key, value, "no grammar follows it")
        if "not" in keywords:
            keywords = self._without_not(keywords)
        return self._values(keywords) if "enum" in keywords else self._of_type(keywords)

    def _without_not(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema whose `not` became a part of other keywords, if that is simple."""
        kept = {k: v for k, v in schema.items() if k != "not"}
        texts = _Many()
        for part in _many(schema["not"]):
            plain = self._plain(part)
            if plain is True or plain == {}:
                raise ValueError("a part of it allows no value")
            if plain is False:
                continue
            values, bad = plain.get("enum"), _kinds(plain.get("type", [*_ALL]))
            kinds = {"number" if k == "integer" else k for k in _kinds(kept.get("type", [*_ALL]))}
            if plain.keys() == {"type"} and "integer" not in bad:
                kept["type"] = _common_kinds(kept.get("type", [*_ALL]), sorted(_ALL - {*bad}))
            elif plain.keys() == {"enum"} and "enum" in kept:
                excluded = {*map(_same, _typed(values, list, "enum"))}
                kept["enum"] = [v for v in kept["enum"] if _same(v) not in excluded]
            elif values and kinds.isdisjoint(_NAMES[type(value)] for value in values):
                continue
            elif (
                kinds == {"string"}
                and "string" in bad
                and plain.keys() - {"type"} in ({"enum"}, {"pattern"})
            ) or (kept.get("type") == "integer" and plain.keys() == {"enum"}):
                texts.append(plain)
            else:
                self.drop("not", part, "no grammar follows it")
        return {**kept, "not": texts} if texts else kept

    def _parts(self, schema: dict[str, Any], key: str) -> list[Any]:
        """Return the parts of a choice, each merged with the keywords beside it."""
        rest = {k: v for k, v in schema.items() if k != key}
        parts = [
            self.merged(rest, self._seeing(part) if rest else part)
            for part in _typed(schema[key], list, key)
            if part is not False
        ]
        if key == "oneOf" and not self._disjointness.of_all(parts):
            why = "two parts of oneOf may allow the same value; it counts as anyOf"
            self.drop("oneOf", schema[key], why)
        return parts

    def _values(self, schema: dict[str, Any]) -> str:
        values = self._fitting(schema)
        if not values:
            raise ValueError("no value of enum or const matches the keywords beside it")
        return self.rule(f"({' | '.join(map(_value_gbnf, values))})")

    def _of_type(self, schema: dict[str, Any]) -> str:
        if "type" not in schema:
            of_keywords = next((k for k, keys in KINDS.items() if keys & schema.keys()), None)
            return self._of_type({**schema, "type": of_keywords}) if of_keywords else "value"
        kind = schema["type"]
        if isinstance(kind, list):
            return self._either([{**schema, "type": k} for k in dict.fromkeys(_kinds(kind))])
        _is_type(None, _typed(kind, str, "type"))
        if kind in ("array", "object"):
            return (_array if kind == "array" else _object)(schema, self)
        if kind == "string":
            return self._string(schema)
        simple = {"null": '"null" space', "boolean": '("true" | "false") space'}
        return self.rule(simple[kind] if kind in simple else _number(schema, self))

    def _either(self, schemas: list[Any], key: str = "") -> str:
        rules = [self.visit(s, *((key, str(i)) if key else ())) for i, s in enumerate(schemas)]
        return self.rule(" | ".join(rules) or _typed([], list, "anyOf"))

    def _string(self, schema: dict[str, Any]) -> str:
        least, most = _count(schema, "minLength") or 0, _count(schema, "maxLength")
        times = repeated(least, most)
        patterns = [
            ("pattern", one, _typed(one, str, "pattern"))
            for one in (_many(schema["pattern"]) if "pattern" in schema else ())
        ]
        for key in ("format", "contentEncoding"):
            for one in _many(schema[key]) if key in schema else ():
                if isinstance(one, str) and one in _FORMATS:
                    patterns.append((key, one, f"^({_FORMATS[one]})$"))
                elif one not in FREE_FORMATS:
                    self.drop(key, one, f"this {key} is unknown")
        others = _many(schema["not"]) if "not" in schema else []
        if not (patterns or others):
            return "string" if times == "{0,}" else self.rule(rf'"\"" char{times} "\"" space')
        body = None
        if len(patterns) == 1 and not others:
            try:
                only = patterns[0][2]
                low, high = widths(only)
                if least <= low and (most is None or (high is not None and high <= most)):
                    least, most, times = 0, None, "{0,}"
                body = pattern_gbnf(only) if times == "{0,}" else bounded_class(only, least, most)
            except PatternError:  # an automaton may follow it, and otherwise says what is wrong
                pass
        if body is None:
            body = self._restricted(patterns, others, (least, most))
        return self.rule(rf'"\"" {body} "\"" space') if body else "string"

    def _restricted(
        self,
        patterns: list[tuple[str, Any, str]],
        others: list[Any],
        length: tuple[int, int | None],
    ) -> str:
        """Return GBNF for the texts that fulfil several keywords; what is too much is dropped."""
        texts: Texts | None = None
        patterns = [
            (key, value, f"^({_SMALL_FORMATS[value]})$" if value in _SMALL_FORMATS else pattern)
            for key, value, pattern in patterns
        ]
        wanted: list[tuple[str, Any, Callable[[], Texts]]] = [
            *((key, value, partial(matching, pattern)) for key, value, pattern in patterns),
            *(("not", one, partial(_not_these, one)) for one in others),
        ]
        least, most = length
        if length != (0, None):
            key = "minLength" if most is None else "maxLength"
            wanted.append((key, least if most is None else most, partial(of_length, least, most)))
        for key, value, made in wanted:
            try:
                found = made() if texts is None else texts & made()
                room = min(_MAX_RULES, (MAX_BYTES // 2 - self._n_bytes) // _BYTES_OF_RULE)
                if len(found.rows) > max(room, 0):
                    raise PatternError("its grammar would be too large")
            except PatternError as error:
                self.drop(key, value, str(error))
                continue
            texts = found
        if texts is None:
            return ""
        return self.texts(texts, f"no text fulfils {' and '.join(k for k, _, _ in wanted)}")

    def _target(self, ref: Any) -> Any:
        """Return the part of the schema that a reference names; any value if it is dropped."""
        target = self._root
        spend(1 + len(str(ref)) // 8)
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            self.drop("$ref", ref, "it is outside of the schema")
            return True
        for part in ref.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(key) if isinstance(target, list) else key]
            except (KeyError, IndexError, TypeError, ValueError):
                raise ValueError(f"$ref {ref!r:.60} does not exist") from None
        return target

    def _named(self, schema: dict[str, Any]) -> str:
        key = _same(schema)
        if key not in self._refs:
            # named before its conversion, as the schema may contain itself
            name = self._refs[key] = f"{self._prefix}ref{len(self._refs)}"
            whole = self._follow(schema) if "$ref" in schema else self._all(schema)
            before = self.path
            if schema.keys() == {"$ref"} and str(schema["$ref"]).startswith("#"):
                self.path = tuple(schema["$ref"].split("/")[1:])
            self._aliases.append(f"{name} ::= {self.visit(whole)}")
            self.path = before
        return self._refs[key]

    def _follow(self, schema: Any) -> Any:
        for _ in range(MAX_DEPTH):
            if not (isinstance(schema, dict) and "$ref" in schema):
                return schema
            rest = {k: v for k, v in _reduced(schema).items() if k != "$ref"}
            target = self._target(schema["$ref"])
            if rest:
                parts = _typed(rest["allOf"], list, "allOf") if "allOf" in rest else []
                target = {**rest, "allOf": [*parts, target]}
            schema = target
        raise ValueError("its references form a circle")

    def merged(self, rest: Any, schema: Any) -> Any:
        """Merge a schema with the keywords beside it; only then its references are resolved."""
        if isinstance(rest, dict) and not _reduced(rest):
            return schema
        return _merged(self._follow(rest), self._follow(schema), self.path)

    def _all(self, schema: dict[str, Any]) -> Any:
        whole: Any = {k: v for k, v in schema.items() if k != "allOf"}
        parts = _unique(_typed(schema["allOf"], list, "allOf"))
        for part in parts:
            is_alone = len(parts) == len(schema) == 1
            whole = self.merged(whole, part if is_alone else self._seeing(part))
        return whole

    def _seeing(self, part: Any) -> Any:
        """Return a part without keywords about what others leave over; it does not see these."""
        followed = self._follow(part)
        if isinstance(followed, bool) or not followed.keys() & {*_LEFT_OVER}:
            return part
        for key in followed.keys() & {*_LEFT_OVER}:
            self.drop(key, followed[key], "it does not see the keywords beside its own schema")
        return {k: v for k, v in followed.items() if k not in _LEFT_OVER}

    def _plain(self, schema: Any) -> Any:
        """Return a schema without references and `allOf` at its top level."""
        for _ in range(MAX_DEPTH):
            schema = self._follow(schema)
            if not (isinstance(schema, dict) and "allOf" in schema):
                return schema if isinstance(schema, bool) else _reduced(schema)
            schema = self._all(schema)
        raise ValueError("its references form a circle")
