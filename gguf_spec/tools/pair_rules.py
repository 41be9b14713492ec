"""GBNF rules for arguments as pairs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..grammar.json_schema import to_rules
from ..grammar.work import spend
from .member_rules import check_keywords, members, sequence, unsupported
from .schemas import resolved
from .text_rules import Sym, quoted, until

if TYPE_CHECKING:
    from .pairs import PairNotation

_MAX_DEPTH = 30  # nested schemas and references
_ANY_KEY = "[a-zA-Z_] [a-zA-Z0-9_]*"
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class PairRules:
    """Conversion of one schema to the rules of its arguments."""

    def __init__(self, notation: PairNotation, schema: Any, prefix: str, sym: Sym) -> None:
        self._notation, self._root, self._prefix, self._sym = notation, schema, prefix, sym
        self._rules: list[str] = []
        self._refs: dict[str, str] = {}  # reference -> name of its rule
        self._comma = quoted(notation.comma)

    def rules(self) -> list[str]:
        """Return all rules; the first one is the root.

        Raises:
            InvalidOptionError: The schema is not supported.
        """
        root = self._members(self._root, 0, is_top=True)
        return [f"{self._prefix}root ::= {root or quoted('')}", *self._rules, *self._text()]

    def _text(self) -> list[str]:
        """Return the rules for any text in quotes, and for any plain value."""
        name = f"{self._prefix}text"
        words = " | ".join(map(quoted, self._notation.words))
        plain = f'{name} | "-"? fraction | {words}'
        if self._notation.is_python:
            string = [f'{name} ::= "\\"" char* "\\""']
        else:
            quote = self._notation.quote
            body = until({quote: ""}, f"{name}-body", self._sym, may_end=False)
            string = [f"{name} ::= {self._sym(quote)} {name}-body", *body]
        return [*string, f"{self._prefix}any ::= {plain}"]

    def _add(self, name: str, body: str) -> str:
        name = f"{self._prefix}{name}-{len(self._rules)}"
        self._rules.append(f"{name} ::= {body}")
        return name

    def _members(self, schema: Any, depth: int, is_top: bool = False) -> str:
        found, is_free = members(schema, self._root)
        colon = self._notation.assign if is_top or not self._notation.is_python else ": "
        key_of = (lambda key: key) if is_top else self._notation.write_key
        if is_free:
            key = _ANY_KEY if is_top or not self._notation.is_python else '"\\"" char* "\\""'
            pair = f"{key} {quoted(colon)} {self._prefix}any"
            return f"({pair} ({self._comma} {pair})*)?"
        parts = []
        for key, part, is_required in found:
            if is_top and not re.fullmatch(r"[\w.$-]+", key):
                raise unsupported(schema, f"the property {key!r:.60} cannot be written")
            value = self._value(part, depth + 1)
            parts.append((f"{quoted(key_of(key) + colon)} {value}", is_required))
        return sequence(parts, self._comma, self._add, "rest")

    def _value(self, schema: Any, depth: int) -> str:
        """Return GBNF for a value."""
        spend(20)
        ref = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(ref, str):
            return self._resolved_value(schema if isinstance(schema, Mapping) else {}, depth)
        if ref not in self._refs:
            # named before its conversion, as the schema may contain itself
            name = self._refs[ref] = f"{self._prefix}ref{len(self._refs)}"
            value = self._resolved_value(resolved(schema, self._root), depth)
            self._rules.append(f"{name} ::= {value}")
        return self._refs[ref]

    def _resolved_value(self, schema: Mapping[str, Any], depth: int) -> str:
        """Return GBNF for a value of a schema that is no reference."""
        if depth > _MAX_DEPTH:
            raise unsupported(schema, "it is nested too deeply")
        if "enum" in schema or "const" in schema:
            return self._one_of(schema)
        for key in ("anyOf", "oneOf"):
            if key in schema:
                check_keywords(schema, key)
                return self._either(schema[key], depth)
        kind = schema.get("type")
        if isinstance(kind, list):
            spend(len(kind) * len(schema))
            return self._either([{**schema, "type": one} for one in kind], depth)
        if kind is None and not (schema.keys() & {"properties", "items"}):
            check_keywords(schema)
            return f"{self._prefix}any"
        return self._of_type(schema, kind or ("object" if "properties" in schema else "array"),
                             depth)  # fmt: skip

    def _one_of(self, schema: Any) -> str:
        check_keywords(schema, "type", "enum", "const")
        values = schema.get("enum", [schema.get("const")])
        if not isinstance(values, list) or not values:
            raise unsupported(schema, "enum is invalid")
        return f"({' | '.join(self._sym(self._notation.write_value(one)) for one in values)})"

    def _either(self, schemas: Any, depth: int) -> str:
        if not isinstance(schemas, list) or not schemas:
            raise unsupported(schemas, "anyOf or type is invalid")
        return f"({' | '.join(self._value(one, depth + 1) for one in schemas)})"

    def _of_type(self, schema: Any, kind: Any, depth: int) -> str:
        true, false, null = map(quoted, self._notation.words)
        if kind == "string":
            check_keywords(schema, "type")
            return f"{self._prefix}text"
        if kind == "boolean":
            check_keywords(schema, "type")
            return f"({true} | {false})"
        if kind == "null":
            check_keywords(schema, "type")
            return null
        if kind in ("integer", "number"):
            check_keywords(schema, "type", *_BOUNDS)
            name = f"{self._prefix}n{len(self._rules)}-"
            self._rules += to_rules(schema, name)
            return f"{name}root"
        if kind == "array":
            check_keywords(schema, "type", "items")
            item = self._value(schema.get("items", {}), depth + 1)
            return self._add("array", f'"[" ({item} ({self._comma} {item})*)? "]"')
        if kind == "object":
            return self._add("object", f'"{{" {self._members(schema, depth)} "}}"')
        raise unsupported(schema, f"there is no type {kind!r:.60}")
