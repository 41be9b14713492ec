"""Conversion of JSON schemas to GBNF grammars.

A schema is not trusted: it may be part of a request. No reference is downloaded.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import InvalidGrammarError, InvalidOptionError
from .automaton import Automaton
from .gbnf import MAX_BYTES, MAX_DEPTH
from .json_isolated import apart
from .json_merge import FORMATS, KINDS, REFUSED, TESTS, kinds, merged, reduced, same, typed
from .json_numbers import number
from .json_pattern import Pattern, literal, repeated

# optional white space between values
_SPACE = '" "?'
# character class of the characters that need an escape in a JSON string
_QUOTED = r'^"\\\x00-\x1F'
# rules that every grammar contains
_BUILT_IN = {
    "space": _SPACE,
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
    """
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False)
        if len(text) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES >> 10} KiB")
        gbnf = _Converter(json.loads(text, parse_constant=_finite, parse_float=_finite)).gbnf()
        Automaton(gbnf, int)
    except InvalidOptionError as error:
        reason = error.reason if isinstance(error, InvalidGrammarError) else str(error).rstrip(".")
        raise _bad_schema(schema, reason) from error
    except RecursionError:
        raise _bad_schema(schema, "it is nested too deeply") from None
    except (ValueError, TypeError, re.error, OverflowError, Warning) as error:
        raise _bad_schema(schema, f"{error}") from error
    return gbnf


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text:.60} is not JSON, or too large")
    return float(text)


def _bad_schema(schema: object, reason: str) -> InvalidGrammarError:
    try:
        shown = str(schema)[:77]
    except RecursionError:
        shown = "a deep schema"
    return InvalidGrammarError("json_schema", shown, reason[:300])


def _json(value: Any) -> str:
    """Return GBNF for a value, with optional white space."""
    if isinstance(value, dict):
        pairs = ' "," space '.join(
            f'{_json(key)} ":" space {_json(item)}' for key, item in value.items()
        )
        return f'"{{" space {pairs} "}}" space'
    if isinstance(value, list):
        items = ' "," space '.join(map(_json, value))
        return f'"[" space {items} "]" space'
    if isinstance(value, float) and value.is_integer() and abs(value) < 10**15:
        return f'"{int(value)}" ".0"? space'
    text = json.dumps(value, ensure_ascii=False)
    # lone surrogates can only be escaped
    return literal(text if text.isprintable() else json.dumps(value)) + " space"


def _count(schema: dict[str, Any], key: str) -> int | None:
    count = schema.get(key)
    if isinstance(count, float) and count.is_integer():
        count = int(count)
    if count is not None and (
        not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < 10**9
    ):
        raise ValueError(f"{key} is {count!r}")
    return count


def _is(value: Any, kind: str) -> bool:
    """Return whether a value has a JSON type."""
    if kind in ("integer", "number"):
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and (kind == "number" or value == int(value))
        )
    types = {"null": type(None), "boolean": bool, "string": str, "array": list, "object": dict}
    if kind not in types:
        raise ValueError(f"there is no type {kind!r:.60}")
    return isinstance(value, types[kind])


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    """Return whether a value of an enum is valid for the other keywords of the schema."""
    if "type" in schema and not any(_is(value, kind) for kind in kinds(schema["type"])):
        return False
    for key in sorted(
        schema.keys() & next((keys for kind, keys in KINDS.items() if _is(value, kind)), set())
    ):
        if key not in TESTS:
            raise ValueError(f"{key} is not supported beside enum or const")
        if not TESTS[key](value if _is(value, "number") else len(value), schema[key]):
            return False
    return True


class _Converter:
    """Conversion of one schema to grammar rules."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._rules: dict[str, str] = {}  # GBNF body -> name of the rule
        self._refs: dict[str, str] = {}
        self._aliases: list[str] = []
        self._n_visited = 0

    def gbnf(self) -> str:
        root = self._visit(self._root)
        rules = [f"{name} ::= {body}" for name, body in _BUILT_IN.items()] + [
            f"{name} ::= {body}" for body, name in self._rules.items()
        ]
        return "\n".join([f"root ::= {root}", *rules, *self._aliases]) + "\n"

    def _rule(self, body: str) -> str:
        return self._rules.setdefault(body, f"r{len(self._rules)}")

    def _visit(self, schema: Any) -> str:
        """Return the name of the rule for a schema."""
        self._n_visited += 1
        if self._n_visited > _MAX_SCHEMAS:
            raise ValueError(f"it has more than {_MAX_SCHEMAS} parts")
        if schema is True:
            return "value"
        if schema is False:
            raise ValueError("a part of it allows no value")
        said = reduced(schema)
        if "$ref" in said or "allOf" in said:
            return self._named(said)
        for key in ("anyOf", "oneOf"):
            if key in said:
                rest = {k: v for k, v in said.items() if k != key}
                parts = [self._with(rest, s) for s in typed(said[key], list, key) if s is not False]
                if key == "oneOf" and not all(
                    apart(self._plain(a), self._plain(b), self._plain)
                    for a, b in itertools.combinations(parts, 2)
                ):
                    raise ValueError(
                        "two parts of oneOf may allow the same value, which is not supported; "
                        "use anyOf instead"
                    )
                return self._either(parts)
        for key in said.keys() & REFUSED.keys():
            raise ValueError(f"{key} is not supported")
        return self._values(said) if "enum" in said else self._of_type(said)

    def _values(self, schema: dict[str, Any]) -> str:
        values = [value for value in typed(schema["enum"], list, "enum") if _fits(value, schema)]
        if not values:
            raise ValueError("no value of enum or const matches the keywords beside it")
        return self._rule(f"({' | '.join(map(_json, values))})")

    def _of_type(self, schema: dict[str, Any]) -> str:
        kind: Any = (
            schema["type"]
            if "type" in schema
            else next((kind for kind, keys in KINDS.items() if keys & schema.keys()), True)
        )
        if kind is True and "type" not in schema:
            return "value"
        if isinstance(kind, list):
            return self._either({**schema, "type": k} for k in dict.fromkeys(kinds(kind)))
        _is(None, typed(kind, str, "type"))
        if kind in ("integer", "number"):
            return self._rule(number({**schema, "type": kind}))
        simple = {"null": '"null" space', "boolean": '("true" | "false") space'}
        makers = {"object": self._object, "array": self._array, "string": self._string}
        return self._rule(simple[kind]) if kind in simple else makers[kind](schema)

    def _either(self, schemas: Iterable[Any]) -> str:
        return self._rule(" | ".join([self._visit(s) for s in schemas]) or typed([], list, "anyOf"))

    def _target(self, ref: Any) -> Any:
        target = self._root
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
        key = same(schema)
        if key not in self._refs:
            # named before its conversion, as the schema may contain itself
            name = self._refs[key] = f"ref{len(self._refs)}"
            self._aliases.append(
                f"{name} ::= "
                f"{self._visit(self._follow(schema) if '$ref' in schema else self._all(schema))}"
            )
        return self._refs[key]

    def _follow(self, schema: Any) -> Any:
        for _ in range(MAX_DEPTH):
            if not (isinstance(schema, dict) and "$ref" in schema):
                return schema
            rest, target = (
                {k: v for k, v in reduced(schema).items() if k != "$ref"},
                self._target(schema["$ref"]),
            )
            schema = {"allOf": [rest, target]} if rest else target
        raise ValueError("its references form a circle")

    def _with(self, rest: Any, schema: Any) -> Any:
        """Merge a schema with the keywords beside it.

        References are resolved only if there is something to merge.
        """
        if isinstance(rest, dict) and not reduced(rest):
            return schema
        return merged(self._follow(rest), self._follow(schema))

    def _all(self, schema: dict[str, Any]) -> Any:
        whole: Any = {k: v for k, v in schema.items() if k != "allOf"}
        for part in typed(schema["allOf"], list, "allOf"):
            whole = self._with(whole, part)
        return whole

    def _plain(self, schema: Any) -> Any:
        """Return a schema without references and `allOf` at its top level."""
        for _ in range(MAX_DEPTH):
            schema = self._follow(schema)
            if not (isinstance(schema, dict) and "allOf" in schema):
                return schema if isinstance(schema, bool) else reduced(schema)
            schema = self._all(schema)
        raise ValueError("its references form a circle")

    def _string(self, schema: dict[str, Any]) -> str:
        times = repeated(_count(schema, "minLength"), _count(schema, "maxLength"))
        told = [key for key in ("pattern", "format") if key in schema] + ["a length"] * (
            times != "{0,}"
        )
        if len(told) > 1:
            raise ValueError(f"{' and '.join(told)} are not supported together")
        if told in (["pattern"], ["format"]):
            pattern = schema["pattern"] if "pattern" in schema else f"^{FORMATS[schema['format']]}$"
            return self._rule(rf'"\"" {Pattern(typed(pattern, str, "pattern")).gbnf} "\"" space')
        return self._rule(rf'"\"" char{times} "\"" space') if told else "string"

    def _array(self, schema: dict[str, Any]) -> str:
        old = isinstance(schema.get("items"), list)  # older form of prefixItems
        if old and "prefixItems" in schema:
            raise ValueError("two different prefixItems are not supported together")
        fixed = typed(
            schema["items"] if old else schema.get("prefixItems", []), list, "prefixItems"
        )
        least, most = _count(schema, "minItems"), _count(schema, "maxItems")
        items = schema.get(
            "additionalItems" if old else "items", not fixed or (least or 0) > len(fixed)
        )
        n = next((i for i, s in enumerate(fixed) if s is False), len(fixed))
        if items is False or n < len(fixed):
            fixed, items, most = fixed[:n], False, n if most is None else min(n, most)
        fixed = fixed[:most]
        least = len(fixed) if least is None else least
        repeated(least, most)
        after, more = "", None if most is None else most - len(fixed)
        if items is not False and more != 0:
            item = self._visit(items)
            if fixed:
                after = f'("," space {item}){repeated(max(least - len(fixed), 0), more)}'
            else:
                after = (
                    f'{item} ("," space {item})'
                    f"{repeated(max(least - 1, 0), None if more is None else more - 1)}"
                )
                after = after if least else f"({after})?"
        for i, s in reversed([*enumerate(fixed)]):
            comma = '"," space ' if i else ""
            after = f"{comma}{self._visit(s)} {after}"
            after = after if i < least else self._rule(after) + "?"
        return self._rule(f'"[" space {after} "]" space')

    def _other_key(self, names: list[str], at: int) -> str:
        """Return GBNF for the rest of a key that differs from all these names.

        Args:
            names: The names, sorted; they share their first `at` characters.
            at: Length of the common prefix, which is already written.
        """
        whole, groups = any(len(name) == at for name in names), dict[str, list[str]]()
        for name in names:
            if len(name) > at:
                groups.setdefault(name[at], []).append(name)
        ways = [
            f"{literal(letter)} {self._other_key(group, at + 1)}"
            for letter, group in groups.items()
        ]
        not_these = "".join(f"\\U{ord(letter):08X}" for letter in groups)
        ways.append(f"[{_QUOTED}{not_these}] [{_QUOTED}]*")
        return self._rule(f"({' | '.join(ways)}){'' if whole else '?'}")

    def _object(self, schema: dict[str, Any]) -> str:
        properties = dict(typed(schema.get("properties", {}), dict, "properties"))
        required = dict.fromkeys(
            typed(name, str, "required")
            for name in typed(schema.get("required", []), list, "required")
        )
        extra = schema.get("additionalProperties", not properties)
        properties |= {
            name: schema.get("additionalProperties", True)
            for name in required
            if name not in properties
        }
        pairs = {
            name: self._rule(f'{_json(name)} ":" space {self._visit(s)}')
            for name, s in properties.items()
            if s is not False
        }
        if required.keys() - pairs.keys():
            raise ValueError("a required property is forbidden")
        most = _count(schema, "maxProperties")
        if (_count(schema, "minProperties") or 0) > len(required):
            raise ValueError(
                "minProperties above the number of required properties is not supported"
            )
        if most is not None and (extra is not False or most < len(pairs)):
            raise ValueError(
                "maxProperties below the number of allowed properties is not supported"
            )
        first = ' "," space '.join(pairs.pop(name) for name in required)
        key = "string"
        # a key with an escape differs from all other keys
        if extra is not False and properties:
            plain = [
                name for name in properties if not re.search(r'["\\\x00-\x1f\ud800-\udfff]', name)
            ]
            key = self._rule(rf'"\"" {self._other_key(plain, 0)} "\"" space')
        more = f'{key} ":" space {self._visit(extra)}' if extra is not False else None
        rest = self._rule(f'("," space {more})*') if more else ""
        starts = [f"{more} {rest}"] if more else []
        # each pair with its possible successors: the number of rules is the number of properties
        for pair in reversed(pairs.values()):
            starts.append(f"{pair} {rest}")
            rest = self._rule(f'("," space {pair})? {rest}')
        some = " | ".join(reversed(starts))
        return self._rule(
            '"{" space '
            + (f"{first} {rest}" if first else f"({some})?" if some else "")
            + ' "}" space'
        )
