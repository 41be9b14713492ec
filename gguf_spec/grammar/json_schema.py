"""Conversion of JSON schemas to GBNF grammars.

A schema is not trusted: it may be part of a request. No reference is downloaded.
"""

from __future__ import annotations

import importlib
import json
import math
import operator
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, combinations, product
from typing import Any

from ..errors import GrammarTooLargeError, InvalidGrammarError
from .automaton import (
    MAX_BYTES,
    MAX_DEPTH,
    NEVER,
    Automaton,
    Ranges,
    limited_work,
    others_than,
    spend,
)

_ENCODER = json.JSONEncoder(sort_keys=True)
# patterns of dates and times
_LEAP = r"(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DAY = (
    r"(\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)"
    rf"|02-(0[1-9]|1\d|2[0-8]))|{_LEAP}-02-29)"
)
_HOUR = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
# supported values of `format` -> pattern
_FORMATS = {
    "date": _DAY,
    "time": _HOUR,
    "date-time": f"{_DAY}T{_HOUR}",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
# type -> keywords that apply only to this type
KINDS = {
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "additionalItems", "minItems", "maxItems"},
    "string": {"pattern", "format", "minLength", "maxLength"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
# unsupported keyword -> values without an effect, with which it is ignored
_REFUSED: dict[str, tuple[Any, ...]] = {
    "not": (False,), "if": (), "contains": (), "uniqueItems": (False,), "patternProperties": ({},),
    "propertyNames": (True, {}, {"type": "string"}), "dependencies": ({},),
    "dependentRequired": ({},), "dependentSchemas": ({},), "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}), "$dynamicRef": (), "$recursiveRef": (),
}  # fmt: skip
# all keywords that are not ignored
_KEYWORDS = {"$ref", "allOf", "anyOf", "oneOf", "type", "enum", "const", *_REFUSED}.union(
    *KINDS.values()
)
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
# Tokens of a pattern. `python`: unknown in ECMA 262 or with another meaning. `brace`: a literal.
# `name`: the start of a named group.
_WORDS = re.compile(
    r"""(?P<python>\\(?:[AZaNU]|0\d)|\(\?[P#]|\[\^?\])
    | (?P<brace>\{,)
    | (?P<name>\(\?<[A-Za-z_$][\w$]*>)
    | \\.
    | \[(?:[^\]\\]|\\.)*\]?
    | .""",
    re.VERBOSE | re.DOTALL,
)
# code points that "." does not match
_LINE_ENDS = ((10, 10), (13, 13), (0x2028, 0x2029))
# code points of the character classes; white space is that of ECMA 262, which differs from Python's
_CLASSES: dict[str, Ranges] = {
    "CATEGORY_DIGIT": ((48, 57),),
    "CATEGORY_WORD": ((48, 57), (65, 90), (95, 95), (97, 122)),
    "CATEGORY_SPACE": (
        (9, 13), (32, 32), (160, 160), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
        (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
    ),
}  # fmt: skip
# bounds with more digits are rejected
_MAX_DIGITS = 100
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
# largest number of parts of a schema
_MAX_SCHEMAS = 5000


def _typed(value: Any, kind: type, key: str) -> Any:
    """Return the value of a keyword if it has the right type.

    Raises:
        ValueError: The value has another type, or is empty where this is invalid. The message
            contains the keyword.
    """
    if not isinstance(value, kind) or (
        key in ("enum", "anyOf", "oneOf", "allOf", "type") and not value
    ):
        raise ValueError(f"{key} is {value!r:.60}")
    return value


def _count(schema: dict[str, Any], key: str) -> int | None:
    """Return the value of a keyword that counts; None if it is missing.

    Raises:
        ValueError: The value is no count, or 10^9 or more.
    """
    n = schema.get(key)
    if isinstance(n, float) and n.is_integer():
        n = int(n)
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or not 0 <= n < 10**9):
        raise ValueError(f"{key} is {n!r}")
    return n


def _kinds(kind: Any) -> list[str]:
    """Return the type names of `type`, which is one name or a list."""
    return [
        _typed(k, str, "type")
        for k in (_typed(kind, list, "type") if isinstance(kind, list) else [kind])
    ]


def _same(value: Any) -> str:
    """Return a text that is equal for equal JSON values.

    In Python 1 and True are equal.
    """
    text = _ENCODER.encode(int(value) if isinstance(value, float) and value.is_integer() else value)
    spend(3 + len(text) // 32)
    return text


def _unique(values: Iterable[Any]) -> list[Any]:
    """Return JSON values, each once, in the order of their first places."""
    return [*{_same(value): value for value in values}.values()]


def _reduced(schema: Any) -> dict[str, Any]:
    """Return a schema without keywords that are ignored or have no effect.

    `const` becomes an `enum`.
    """
    spend(1 + len(_typed(schema, dict, "a schema")))
    kept = {k: v for k, v in schema.items() if k in _KEYWORDS and v not in _REFUSED.get(k, ())}
    if "format" in kept and not (isinstance(kept["format"], str) and kept["format"] in _FORMATS):
        del kept["format"]
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
}


def _merged(a: Any, b: Any) -> Any:
    """Return one schema that is equivalent to two schemas together.

    Raises:
        ValueError: They cannot be merged.
    """
    if isinstance(a, bool) or isinstance(b, bool):
        return _both(a, b)
    a, b = _reduced(a), _reduced(b)
    both = {**a, **b}
    tuples = [
        {k: s[k] for k in ("items", "prefixItems", "additionalItems") if k in s} for s in (a, b)
    ]
    if (
        all(tuples)
        and ("prefixItems" in both or any(isinstance(s.get("items"), list) for s in (a, b)))
        and _same(tuples[0]) != _same(tuples[1])
    ):
        raise ValueError("two different prefixItems are not supported together")
    for key in a.keys() & b.keys() - {"properties", "additionalProperties"}:
        if _same(a[key]) != _same(b[key]):
            if key not in _COMBINED:
                raise ValueError(f"two different values of {key} are not supported together")
            both[key] = _COMBINED[key](a[key], b[key])
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


def quoted(text: str) -> str:
    """Return a text as a GBNF literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _repeated(least: int | None, most: int | None) -> str:
    """Return GBNF's repetition suffix; None means no limit.

    Raises:
        ValueError: `most` is less than `least`.
    """
    if most is not None and most < (least or 0):
        raise ValueError(f"at least {least} and at most {most} is impossible")
    return f"{{{least or 0},{'' if most is None else most}}}"


def _as_python(pattern: str) -> str:
    """Return a regular expression of ECMA 262 in Python's syntax.

    Raises:
        ValueError: Python would interpret it in another way.
    """

    def word(match: re.Match[str]) -> str:
        escapes = re.findall(r"\\0\d|\\.", match[0]) if match[0][0] == "[" else []
        if match["python"] or any(re.fullmatch(r"\\([AZaNU]|0\d)", escape) for escape in escapes):
            raise ValueError(
                f"a pattern contains {match[0]:.20}, which has no or another meaning in ECMA 262"
            )
        return r"\{," if match["brace"] else "(" if match["name"] else match[0]

    return _WORDS.sub(word, pattern)


def _pattern(pattern: str) -> str:
    """Return GBNF for a regular expression of ECMA 262, for the inside of a JSON string.

    Raises:
        ValueError: The expression is invalid or not supported.
    """
    spend(2 * len(pattern) + len(pattern) ** 2 // 20_000)  # equal branches take quadratic time
    parser = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # warnings about future changes of Python's syntax are not for the user
        parsed = parser.parse(_as_python(pattern))
    if parsed.state.flags & ~re.UNICODE:
        raise ValueError("a pattern sets flags")
    parts = [(str(op), arg) for op, arg in parsed]
    begins = parts[:1] == [("AT", parser.AT_BEGINNING)]
    ends = len(parts) > begins and parts[-1] == ("AT", parser.AT_END)
    inner = _expressions(parts[begins : len(parts) - ends])
    return f"{'' if begins else 'char*'} {inner} {'' if ends else 'char*'}".strip()


def _expressions(parts: Iterable[tuple[Any, Any]]) -> str:
    return " ".join(_expression(str(op), arg) for op, arg in parts) or '""'


def _expression(op: str, arg: Any) -> str:
    if op in ("LITERAL", "NOT_LITERAL"):
        return _characters(((arg, arg),), op == "NOT_LITERAL")
    if op == "ANY":
        return _characters(_LINE_ENDS, True)
    if op == "IN":
        ranges: list[tuple[int, int]] = []
        for kind, member in arg:
            if str(kind) == "CATEGORY":
                known = _CLASSES[str(member).replace("_NOT", "")]
                ranges += others_than(known) if "_NOT" in str(member) else known
            elif str(kind) != "NEGATE":
                ranges.append(member if str(kind) == "RANGE" else (member, member))
        return _characters(tuple(ranges), any(str(kind) == "NEGATE" for kind, _ in arg))
    if op == "BRANCH":
        return f"({' | '.join(map(_expressions, arg[1]))})"
    if op == "SUBPATTERN" and not (arg[1] or arg[2]):
        return f"({_expressions(arg[3])})"
    if op in ("MAX_REPEAT", "MIN_REPEAT"):
        most = arg[1] if isinstance(arg[1], int) and arg[1] < 10**9 else None
        return f"({_expressions(arg[2])}){_repeated(arg[0], most)}"
    raise ValueError(f"a pattern contains {op.lower()}, which is not supported")


def _characters(ranges: Ranges, negated: bool) -> str:
    """Return GBNF for the ways to write one of these characters in a JSON string."""
    spend(20 + 8 * len(ranges))
    chosen = ranges if negated else others_than(ranges)
    plain = others_than((*chosen, *NEVER, (0, 31), (34, 34), (92, 92)))
    pieces = "".join(f"\\U{low:08X}-\\U{high:08X}" for low, high in plain)
    ways = [f"[{pieces}]"] if plain else []
    others = others_than(chosen)
    codes = {code for code in (*range(32), 34, 92) for a, b in others if a <= code <= b}
    for letter, code in zip('"\\bfnrt', (34, 92, 8, 12, 10, 13, 9), strict=True):
        if code in codes:
            ways.append(quoted("\\" + letter))
    # control characters without a letter escape
    codes -= {8, 9, 10, 12, 13, 34, 92}
    for high in (0, 16):
        if low := sorted(code - high for code in codes if code & ~15 == high):
            digits = "".join(dict.fromkeys(f"{code:x}{code:X}" for code in low))
            ways.append(f"{quoted(chr(92) + f'u00{high >> 4}')} [{digits}]")
    if not ways:
        raise ValueError("a pattern contains an invalid character")
    return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"


def _is_type(value: Any, kind: str) -> bool:
    """Return whether a value has a JSON type."""
    if kind == "integer":
        return _NAMES[type(value)] == "number" and value == int(value)
    if kind not in _ALL:
        raise ValueError(f"there is no type {kind!r:.60}")
    return _NAMES[type(value)] == kind


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    """Return whether a value of an enum is valid for the other keywords of the schema."""
    if "type" in schema and not any(_is_type(value, kind) for kind in _kinds(schema["type"])):
        return False
    kind = _NAMES[type(value)]
    for key in sorted(schema.keys() & KINDS.get(kind, set())):
        if key not in _TESTS:
            raise ValueError(f"{key} is not supported beside enum or const")
        if not _TESTS[key](value if kind == "number" else len(value), schema[key]):
            return False
    return True


def _value_gbnf(value: Any) -> str:
    """Return GBNF for a value, with optional white space."""
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


def _end(schema: dict[str, Any], name: str, sign: int) -> tuple[int, bool] | None:
    """Return the lower bound and whether it is exclusive; None without a bound.

    Args:
        schema: The schema.
        name: `minimum` or `maximum`.
        sign: -1 for `maximum`: the result is then the lower bound of the negated number.
    """
    ends: list[tuple[float, bool]] = []
    for key in (name, f"exclusive{name.capitalize()}"):
        bound = schema.get(key, 0)
        if (
            isinstance(bound, bool)
            or not isinstance(bound, int | float)
            or abs(bound) >= 10**_MAX_DIGITS
        ):
            raise ValueError(f"{key} is {str(bound)[:60]}, which is not supported")
        if key in schema:
            ends.append((sign * bound, key != name))
    if not ends:
        return None
    bound, open_ = max(ends)
    if schema["type"] == "integer":
        return (math.floor(bound) + 1 if open_ else math.ceil(bound)), False
    if bound != int(bound):
        raise ValueError(
            f"{name} or {key} of a number is not a whole number, which is not supported"
        )
    return int(bound), open_


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
    """Return GBNF alternatives for non-negative numbers between two bounds.

    Args:
        low: Lower bound, and whether it is exclusive.
        high: Upper bound, and whether it is exclusive.
        n_digits: Largest number of digits after the decimal point.
    """
    (least, above), (most, below) = low, high
    if not n_digits:
        return [_naturals(least + above, most - below)] if least + above <= most - below else []
    ways = (
        [f'{_naturals(least + above, most - 1)} ("." [0-9]{{1,{n_digits}}})?']
        if least + above < most
        else []
    )
    if above and least < most:
        ways.append(f'"{least}." [0-9]{{0,{n_digits - 1}}} [1-9]')
    if not below and (least < most or (least == most and not above)):
        ways.append(f'"{most}" ("." "0"{{1,{n_digits}}})?')
    return ways


def _number(schema: dict[str, Any]) -> str:
    """Return GBNF for the numbers of a schema.

    A number between bounds has at most 15 digits. Doubles distinguish all such numbers.
    """
    whole = schema["type"] == "integer"
    if "multipleOf" in schema and not (whole and schema["multipleOf"] == 1):
        raise ValueError("multipleOf is not supported")
    low, high = _end(schema, "minimum", 1), _end(schema, "maximum", -1)
    if low is None and high is None:
        return f'"-"? {"natural" if whole else "fraction"} space'
    if not whole and (low, high) in (((0, False), None), (None, (0, False))):
        return "fraction space" if low else '("0" | "-" fraction) space'
    n = max(len(str(abs(end[0]))) for end in (low, high) if end)
    far = 1 - 10 ** max(16, n), False
    # `most` is negated
    (least, above), (most, below) = low or far, high or far
    n_digits = 0 if whole else max(0, 15 - n)
    ways = _magnitudes((max(least, 0), above and least >= 0), (-most, below), n_digits)
    ways += [
        f'"-" {way}'
        for way in _magnitudes((max(most, 0), below or most <= 0), (-least, above), n_digits)
    ]
    if not ways:
        raise ValueError("no number is between minimum and maximum")
    return f"({' | '.join(ways)}) space"


def _array(schema: dict[str, Any], build: _Converter) -> str:
    """Return the name of the rule for the arrays of a schema."""
    old = isinstance(schema.get("items"), list)  # older form of prefixItems
    if old and "prefixItems" in schema:
        raise ValueError("two different prefixItems are not supported together")
    fixed = _typed(schema["items"] if old else schema.get("prefixItems", []), list, "prefixItems")
    least, most = _count(schema, "minItems"), _count(schema, "maxItems")
    others = schema.get(
        "additionalItems" if old else "items", not fixed or (least or 0) > len(fixed)
    )
    n = next((i for i, item in enumerate(fixed) if item is False), len(fixed))
    if others is False or n < len(fixed):
        others, most = False, n if most is None else min(n, most)
    fixed = fixed[:n][:most]
    least = len(fixed) if least is None else least
    _repeated(least, most)
    after, more = "", None if most is None else most - len(fixed)
    if others is not False and more != 0:
        item = build.visit(others)
        if fixed:
            after = f'("," space {item}){_repeated(max(least - len(fixed), 0), more)}'
        else:
            times = _repeated(max(least - 1, 0), None if more is None else more - 1)
            after = f'{item} ("," space {item}){times}'
            after = after if least else f"({after})?"
    for i, item_schema in reversed([*enumerate(fixed)]):
        comma = '"," space ' if i else ""
        after = f"{comma}{build.visit(item_schema)} {after}"
        after = after if i < least else build.rule(after) + "?"
    return build.rule(f'"[" space {after} "]" space')


def _other_key(names: list[str], at: int, build: _Converter) -> str:
    """Return GBNF for the rest of a key that differs from all these names.

    Args:
        names: The names; they share their first `at` characters.
        at: Length of the common prefix, which is already written.
        build: The conversion.
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


def _object(schema: dict[str, Any], build: _Converter) -> str:
    """Return the name of the rule for the objects of a schema."""
    properties = dict(_typed(schema.get("properties", {}), dict, "properties"))
    required = dict.fromkeys(
        _typed(name, str, "required")
        for name in _typed(schema.get("required", []), list, "required")
    )
    extra = schema.get("additionalProperties", not properties)
    for name in required:
        properties.setdefault(name, schema.get("additionalProperties", True))
    pairs = {
        name: build.rule(f'{_value_gbnf(name)} ":" space {build.visit(part)}')
        for name, part in properties.items()
        if part is not False
    }
    if required.keys() - pairs.keys():
        raise ValueError("a required property is forbidden")
    most = _count(schema, "maxProperties")
    if (_count(schema, "minProperties") or 0) > len(required):
        raise ValueError("minProperties above the number of required properties is not supported")
    if most is not None and (extra is not False or most < len(pairs)):
        raise ValueError("maxProperties below the number of allowed properties is not supported")
    more = ""
    if extra is not False:
        key = "string"
        if properties:
            # a key with an escape differs from all other keys
            escaped = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
            plain = [name for name in properties if not escaped.search(name)]
            key = build.rule(rf'"\"" {_other_key(plain, 0, build)} "\"" space')
        more = f'{key} ":" space {build.visit(extra)}'
    first = [pairs.pop(name) for name in required]
    inner = sequence(first, [*pairs.values()], '"," space', build.rule, more)
    return build.rule(f'"{{" space {inner} "}}" space')


def sequence(
    required: Sequence[str],
    optional: Sequence[str],
    comma: str,
    rule: Callable[[str], str],
    more: str = "",
) -> str:
    """Return GBNF for members in their order, of which some may be missing.

    Each optional member has a rule for what follows it: there are as many rules as members.

    Args:
        required: GBNF of the members that are never missing; they come first.
        optional: GBNF of the others.
        comma: GBNF between two members; may be empty.
        rule: Adds a rule, and returns its name.
        more: GBNF of a member of which any number may follow; empty for none.
    """
    rest = rule(f"({comma} {more})*") if more else ""
    starts = [f"{more} {rest}"] if more else []
    for part in reversed(optional):
        starts.append(f"{part} {rest}")
        rest = rule(f"({comma} {part})? {rest}")
    if required:
        return f"{f' {comma} '.join(required)} {rest}".rstrip()
    return f"({' | '.join(reversed(starts))})?" if starts else ""


class _Facts:
    """Facts about a schema that is not a boolean, without references and `allOf` at its top level.

    Attributes:
        schema: The schema.
        choice: The first of `anyOf` and `oneOf` that it has; empty for none.
        values: The values of `enum` as texts; None without `enum`.
        types: Types of the valid values.
        written: Types of the values that a grammar of the schema can write.
        named: The named properties.
        required: Names of the required properties.
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
        """Create a test.

        Args:
            plain: Converts any schema to a form without references and `allOf` at its top level.
        """
        self._plain = plain
        self._facts: dict[str, _Facts | bool] = {}  # by the text of the schema
        self._ways: dict[_Facts, list[_Facts | bool]] = {}
        self._found: dict[tuple[_Facts, _Facts, int], bool] = {}

    def of_all(self, schemas: Sequence[Any]) -> bool:
        """Return whether no two schemas allow the same value.

        The result is False if this is uncertain.
        """
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
        """Return whether no value of one grammar is valid for the other schema.

        Args:
            a: A schema.
            b: Another one.
            depth: Current depth of nested properties.
        """
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


def to_gbnf(schema: Mapping[str, Any] | str | bool) -> str:
    """Return a grammar for the JSON texts that are valid for a schema.

    No reference is downloaded.

    The grammar does not cover every value of the schema:

    - A schema without a type has the type to which its first keywords apply.
    - Required properties come first.
    - Numbers without a bound have up to 16 digits.
    - An object with named properties has no others unless `additionalProperties` allows them.
    - A tuple has all its items unless `minItems` allows fewer.

    Keywords beside `$ref` and the parts of `allOf` apply together. `oneOf` is supported if no value
    can be valid for two of its parts. The parts must differ in type, in an `enum` or `const`, or in
    that of a required property, or one of them must require a property that the others do not name.
    Patterns follow ECMA 262.

    Every other keyword with an effect is either supported or rejected. Rejected are `not`, `if`,
    `uniqueItems`, `contains`, `patternProperties`, `propertyNames`, `dependencies`, `dependent...`,
    `unevaluated...`, `multipleOf` other than 1 for integers, fractional bounds of a number,
    `minProperties` and `maxProperties` unless they always hold, two of `pattern`, `format` and a
    length, and keywords beside `enum` that cannot be checked. Ignored are `title`, `description`,
    `default`, `examples`, `$schema`, `$id`, `$comment`, `deprecated`, `readOnly`, `writeOnly`, a
    `format` other than date, time, date-time and uuid, and unknown keywords.

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


def to_rules(schema: Mapping[str, Any] | str | bool, prefix: str) -> list[str]:
    """Return the rules for a schema, as a part of a grammar made by `grammar_of`.

    Args:
        schema: As for `to_gbnf`.
        prefix: Start of the names of the rules; the first rule is `<prefix>root`.

    Raises:
        InvalidOptionError: The schema is invalid, or no grammar can follow it.
        GrammarTooLargeError: The conversion takes too much work.
    """
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False)
        if len(text) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES >> 10} KiB")
        spend(len(text) // 16)
        root = json.loads(text, parse_constant=_finite, parse_float=_finite)
        with limited_work():
            return _Converter(root, prefix).rules()
    except RecursionError:
        raise _bad_schema(schema, "it is nested too deeply") from None
    except (ValueError, TypeError, re.error, OverflowError, Warning) as error:
        raise _bad_schema(schema, error) from error


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text:.60} is not JSON, or too large")
    return float(text)


def _bad_schema(schema: object, reason: Exception | str) -> InvalidGrammarError:
    try:
        shown = str(schema)[:77]
    except RecursionError:
        shown = "a deep schema"
    if isinstance(reason, GrammarTooLargeError):
        return GrammarTooLargeError(shown)
    text = str(getattr(reason, "reason", reason))
    return InvalidGrammarError("json_schema", shown, text.rstrip(".")[:300])


class _Converter:
    """Conversion of one schema to grammar rules."""

    def __init__(self, root: Any, prefix: str) -> None:
        self._root, self._prefix = root, prefix
        self._rules: dict[str, str] = {}  # GBNF body -> name of the rule
        self._refs: dict[str, str] = {}
        self._aliases: list[str] = []
        self._n_visited = self._n_bytes = 0
        self._disjointness = Disjointness(self._plain)

    def rules(self) -> list[str]:
        """Return all rules; the first one is the root."""
        root = self.visit(self._root)
        rules = [f"{name} ::= {body}" for body, name in self._rules.items()]
        return [f"{self._prefix}root ::= {root}", *rules, *self._aliases]

    def rule(self, body: str) -> str:
        """Return the name of the rule with this body."""
        spend(1 + len(body) // 16)
        self._n_bytes += 0 if body in self._rules else len(body)
        if self._n_bytes > MAX_BYTES:
            raise ValueError(f"its grammar has more than {MAX_BYTES >> 10} KiB")
        return self._rules.setdefault(body, f"{self._prefix}r{len(self._rules)}")

    def visit(self, schema: Any) -> str:
        """Return the name of the rule for a schema."""
        self._n_visited += 1
        if self._n_visited > _MAX_SCHEMAS:
            raise ValueError(f"it has more than {_MAX_SCHEMAS} parts")
        if schema is True:
            return "value"
        if schema is False:
            raise ValueError("a part of it allows no value")
        keywords = _reduced(schema)
        if "$ref" in keywords or "allOf" in keywords:
            return self._named(keywords)
        for key in ("anyOf", "oneOf"):
            if key in keywords:
                return self._either(self._parts(keywords, key))
        for key in _REFUSED:
            if key in keywords:
                raise ValueError(f"{key} is not supported")
        return self._values(keywords) if "enum" in keywords else self._of_type(keywords)

    def _parts(self, schema: dict[str, Any], key: str) -> list[Any]:
        """Return the parts of `anyOf` or `oneOf`, each merged with the keywords beside it."""
        rest = {k: v for k, v in schema.items() if k != key}
        parts = [self._with(rest, s) for s in _typed(schema[key], list, key) if s is not False]
        if key == "oneOf" and not self._disjointness.of_all(parts):
            raise ValueError(
                "two parts of oneOf may allow the same value, which is not supported; "
                "use anyOf instead"
            )
        return parts

    def _values(self, schema: dict[str, Any]) -> str:
        values = [value for value in _typed(schema["enum"], list, "enum") if _fits(value, schema)]
        if not values:
            raise ValueError("no value of enum or const matches the keywords beside it")
        return self.rule(f"({' | '.join(map(_value_gbnf, values))})")

    def _of_type(self, schema: dict[str, Any]) -> str:
        if "type" not in schema:
            of_keywords = next((k for k, keys in KINDS.items() if keys & schema.keys()), None)
            return self._of_type({**schema, "type": of_keywords}) if of_keywords else "value"
        kind = schema["type"]
        if isinstance(kind, list):
            return self._either({**schema, "type": k} for k in dict.fromkeys(_kinds(kind)))
        _is_type(None, _typed(kind, str, "type"))
        if kind in ("array", "object"):
            return (_array if kind == "array" else _object)(schema, self)
        if kind == "string":
            return self._string(schema)
        simple = {"null": '"null" space', "boolean": '("true" | "false") space'}
        return self.rule(simple[kind] if kind in simple else _number(schema))

    def _either(self, schemas: Iterable[Any]) -> str:
        return self.rule(" | ".join([self.visit(s) for s in schemas]) or _typed([], list, "anyOf"))

    def _string(self, schema: dict[str, Any]) -> str:
        times = _repeated(_count(schema, "minLength"), _count(schema, "maxLength"))
        limits = [key for key in ("pattern", "format") if key in schema] + ["a length"] * (
            times != "{0,}"
        )
        if len(limits) > 1:
            raise ValueError(f"{' and '.join(limits)} are not supported together")
        if limits in (["pattern"], ["format"]):
            pattern = (
                schema["pattern"] if "pattern" in schema else f"^{_FORMATS[schema['format']]}$"
            )
            return self.rule(rf'"\"" {_pattern(_typed(pattern, str, "pattern"))} "\"" space')
        return self.rule(rf'"\"" char{times} "\"" space') if limits else "string"

    def _target(self, ref: Any) -> Any:
        target = self._root
        spend(1 + len(str(ref)) // 8)
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise ValueError(f"$ref {ref!r:.60} is outside the schema")
        for part in ref.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(key) if isinstance(target, list) else key]
            except (KeyError, IndexError, TypeError):
                raise ValueError(f"$ref {ref!r:.60} does not exist") from None
        return target

    def _named(self, schema: dict[str, Any]) -> str:
        key = _same(schema)
        if key not in self._refs:
            # named before its conversion, as the schema may contain itself
            name = self._refs[key] = f"{self._prefix}ref{len(self._refs)}"
            self._aliases.append(
                f"{name} ::= "
                f"{self.visit(self._follow(schema) if '$ref' in schema else self._all(schema))}"
            )
        return self._refs[key]

    def _follow(self, schema: Any) -> Any:
        for _ in range(MAX_DEPTH):
            if not (isinstance(schema, dict) and "$ref" in schema):
                return schema
            rest, target = (
                {k: v for k, v in _reduced(schema).items() if k != "$ref"},
                self._target(schema["$ref"]),
            )
            schema = {"allOf": [rest, target]} if rest else target
        raise ValueError("its references form a circle")

    def _with(self, rest: Any, schema: Any) -> Any:
        """Merge a schema with the keywords beside it.

        References are resolved only if there is something to merge.
        """
        if isinstance(rest, dict) and not _reduced(rest):
            return schema
        return _merged(self._follow(rest), self._follow(schema))

    def _all(self, schema: dict[str, Any]) -> Any:
        whole: Any = {k: v for k, v in schema.items() if k != "allOf"}
        for part in _unique(_typed(schema["allOf"], list, "allOf")):
            whole = self._with(whole, part)
        return whole

    def _plain(self, schema: Any) -> Any:
        """Return a schema without references and `allOf` at its top level."""
        for _ in range(MAX_DEPTH):
            schema = self._follow(schema)
            if not (isinstance(schema, dict) and "allOf" in schema):
                return schema if isinstance(schema, bool) else _reduced(schema)
            schema = self._all(schema)
        raise ValueError("its references form a circle")
