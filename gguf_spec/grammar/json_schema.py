"""Conversion of JSON schemas to GBNF grammars.

A schema is not trusted: it may be part of a request. No reference is downloaded.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import GrammarTooLargeError, InvalidGrammarError
from .automaton import Automaton
from .gbnf import MAX_BYTES, MAX_DEPTH
from .json_containers import array, object_
from .json_disjoint import Disjointness
from .json_keywords import FORMATS, KINDS, REFUSED, count, kinds, same, typed, unique
from .json_merge import merged, reduced
from .json_numbers import number
from .json_pattern import QUOTED, Pattern, repeated
from .json_values import fits, is_type, value_gbnf
from .work import limited_work, spend

# optional white space between values
_SPACE = '" "?'
# rules that every grammar contains
_BUILT_IN = {
    "space": _SPACE,
    "hex": "[0-9a-fA-F]",
    # one code point per character, so no surrogates
    "char": (
        rf'[{QUOTED}] | "\\" (["\\/bfnrt] | '
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
BUILT_IN_RULES = tuple(f"{name} ::= {body}" for name, body in _BUILT_IN.items())
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
        GrammarTooLargeError: Its conversion takes too much work.
    """
    with limited_work():
        gbnf = "\n".join([*to_rules(schema, ""), *BUILT_IN_RULES]) + "\n"
        try:
            Automaton(gbnf, int)
        except InvalidGrammarError as error:
            raise _bad_schema(schema, error) from error
    return gbnf


def to_rules(schema: Mapping[str, Any] | str | bool, prefix: str) -> list[str]:
    """Return the rules for a schema, as a part of a grammar that contains `BUILT_IN_RULES`.

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
        keywords = reduced(schema)
        if "$ref" in keywords or "allOf" in keywords:
            return self._named(keywords)
        for key in ("anyOf", "oneOf"):
            if key in keywords:
                return self._either(self._parts(keywords, key))
        for key in REFUSED:
            if key in keywords:
                raise ValueError(f"{key} is not supported")
        return self._values(keywords) if "enum" in keywords else self._of_type(keywords)

    def _parts(self, schema: dict[str, Any], key: str) -> list[Any]:
        """Return the parts of `anyOf` or `oneOf`, each merged with the keywords beside it."""
        rest = {k: v for k, v in schema.items() if k != key}
        parts = [self._with(rest, s) for s in typed(schema[key], list, key) if s is not False]
        if key == "oneOf" and not self._disjointness.of_all(parts):
            raise ValueError(
                "two parts of oneOf may allow the same value, which is not supported; "
                "use anyOf instead"
            )
        return parts

    def _values(self, schema: dict[str, Any]) -> str:
        values = [value for value in typed(schema["enum"], list, "enum") if fits(value, schema)]
        if not values:
            raise ValueError("no value of enum or const matches the keywords beside it")
        return self.rule(f"({' | '.join(map(value_gbnf, values))})")

    def _of_type(self, schema: dict[str, Any]) -> str:
        if "type" not in schema:
            of_keywords = next((k for k, keys in KINDS.items() if keys & schema.keys()), None)
            return self._of_type({**schema, "type": of_keywords}) if of_keywords else "value"
        kind = schema["type"]
        if isinstance(kind, list):
            return self._either({**schema, "type": k} for k in dict.fromkeys(kinds(kind)))
        is_type(None, typed(kind, str, "type"))
        if kind in ("array", "object"):
            return (array if kind == "array" else object_)(schema, self)
        if kind == "string":
            return self._string(schema)
        simple = {"null": '"null" space', "boolean": '("true" | "false") space'}
        return self.rule(simple[kind] if kind in simple else number(schema))

    def _either(self, schemas: Iterable[Any]) -> str:
        return self.rule(" | ".join([self.visit(s) for s in schemas]) or typed([], list, "anyOf"))

    def _string(self, schema: dict[str, Any]) -> str:
        times = repeated(count(schema, "minLength"), count(schema, "maxLength"))
        limits = [key for key in ("pattern", "format") if key in schema] + ["a length"] * (
            times != "{0,}"
        )
        if len(limits) > 1:
            raise ValueError(f"{' and '.join(limits)} are not supported together")
        if limits in (["pattern"], ["format"]):
            pattern = schema["pattern"] if "pattern" in schema else f"^{FORMATS[schema['format']]}$"
            return self.rule(rf'"\"" {Pattern(typed(pattern, str, "pattern")).gbnf} "\"" space')
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
        key = same(schema)
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
        for part in unique(typed(schema["allOf"], list, "allOf")):
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
