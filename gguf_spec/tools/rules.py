"""Grammar rules of tool calls, from the schemas of their tools: one form for each notation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import InvalidGrammarError
from ..grammar.automaton import quoted, spend
from ..grammar.json_schema import drop, members, to_rules
from .notations import (
    ANY_ID,
    NamedCall,
    Notation,
    PairNotation,
    Schema,
    TagNotation,
    items,
    resolved,
    types_of,
)

# GBNF of a text in which special tokens may be written by their names.
Sym = Callable[[str], str]
# Keywords that change nothing in a grammar.
_NOTES = {
    "title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated",
    "readOnly", "writeOnly", "$defs", "definitions", "strict", "nullable",
}  # fmt: skip
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_MAX_SCHEMA_DEPTH = 30  # nested schemas and references of pairs


# ---- rules for texts


def symbols(names: Iterable[str], token: Callable[[str], int | None]) -> Sym:
    """Return a function from a text to its GBNF; `token` gives the id of a name without text."""
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))

    def sym(text: str) -> str:
        found = []
        for i, part in enumerate(re.split(f"({pattern})", text) if pattern else [text]):
            id_ = token(part) if i % 2 else None
            if part:
                found.append(quoted(part) if id_ is None else f"<[{id_}]>")
        return " ".join(found)

    return sym


def until(
    marks: Mapping[str, str], name: str, sym: Sym, may_end: bool, not_first: str = ""
) -> Iterator[str]:
    """Yield rules for a text up to the first marker; the rule `<name>` is the first one.

    Each rule is a state: the longest end of the text that begins a marker.

    Args:
        marks: Marker -> GBNF after it.
        sym: GBNF of a marker, if it is a special token without text.
        may_end: Whether the text may end without a marker.
        not_first: Inside of a class of characters with which the text must not begin.
    """
    states = sorted({word[:n] for word in marks for n in range(len(word))}, key=len)
    letters = sorted({letter for word in marks for letter in word})
    rules = {state: f"{name}-{i}" if i else name for i, state in enumerate(states)}
    again = f"{name}-{len(states)}" if not_first else name
    tokens = [
        f"{symbol} {after}".rstrip()
        for word, after in marks.items()
        if (symbol := sym(word)).startswith("<")
    ]
    for state in [*states, *([""] if not_first else [])]:
        is_first = bool(not_first) and rules[state] == name
        parts = ['""'] if may_end else []
        known = ""
        for letter in letters:
            read = state + letter
            whole = next((word for word in marks if read.endswith(word)), None)
            after = next(read[i:] for i in range(len(read) + 1) if read[i:] in rules)
            if whole is not None:
                parts.append(f"{quoted(letter)} {marks[whole]}".rstrip())
            elif after:
                parts.append(f"{quoted(letter)} {rules[after]}")
            if whole is not None or after:
                # escaped for a character class
                known += re.sub(r"[\\\]\[^\n\t-]", lambda m: f"\\x{ord(m[0]):02X}", letter)
        others = known + (not_first if is_first else "") or "\\x00"
        parts += [f"[^{others}] {again}", *tokens]
        yield f"{rules[state]} ::= {' | '.join(parts)}"
        if is_first:
            rules[""] = again


# ---- schemas of arguments


def _unsupported(schema: Any, reason: str) -> InvalidGrammarError:
    return InvalidGrammarError("json_schema", json.dumps(schema, ensure_ascii=False)[:77], reason)


def _check_keywords(schema: Mapping[str, Any], path: Sequence[str], *allowed: str) -> None:
    """Drop the keywords of a schema but for some, and notes; raise an error if refused."""
    for key, value in schema.items():
        if key not in allowed and key not in _NOTES:
            try:
                drop(path, str(key), value, "it is not supported in calls of this model")
            except ValueError as error:
                raise _unsupported(schema, str(error)) from None


def _properties(
    schema: Any, root: Any, path: Sequence[str] = ()
) -> tuple[list[tuple[str, Any]], int, bool]:
    """Return the properties of an object, the required ones first, and the number of these.

    The third result is whether any other property is allowed instead.

    Raises:
        InvalidOptionError: The schema is not supported.
    """
    schema = resolved(schema, root)
    _check_keywords(schema, path, "type", "properties", "required", "additionalProperties")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if (
        not isinstance(properties, Mapping)
        or not isinstance(required, list)
        or not all(isinstance(name, str) for name in required)
    ):
        raise _unsupported(schema, "properties or required is invalid")
    if schema.get("type", "object") != "object":
        raise _unsupported(schema, "the arguments are not an object")
    unknown = [name for name in required if name not in properties]
    if unknown:
        raise _unsupported(schema, f"the required property {unknown[0]!r:.60} is not in properties")
    names = set(required)
    found = sorted(properties.items(), key=lambda one: one[0] not in names)
    is_free = not found and schema.get("additionalProperties") is not False
    return found, len(names), is_free


# ---- calls


def call_rules(call: NamedCall, name: str, schema: Schema, prefix: str, sym: Sym) -> list[str]:
    """Return grammar rules for a call after its beginning; the first one is used.

    Raises:
        InvalidOptionError: The schema is not supported.
    """
    head, tail = call.around(name)
    parts = [" [0-9]+ ".join(map(sym, head.split(ANY_ID))), f"{prefix}a-root", sym(tail)]
    rules = _arguments_rules(call.notation, schema, f"{prefix}a-", sym)
    return [f"{prefix}call ::= {' '.join(filter(None, parts))}", *rules]


def _arguments_rules(notation: Notation, schema: Schema, prefix: str, sym: Sym) -> list[str]:
    """Return grammar rules for the arguments of a call; the rule `<prefix>root` is used."""
    if isinstance(notation, TagNotation):
        return _tag_rules(notation, schema, prefix, sym)
    if isinstance(notation, PairNotation):
        return _PairRules(notation, schema, prefix, sym).rules()
    return to_rules(dict(schema), prefix)


def _tag_rules(tags: TagNotation, schema: Schema, prefix: str, sym: Sym) -> list[str]:
    rules: list[str] = []

    def rule(body: str) -> str:
        name = f"{prefix}rest-{len(rules)}"
        rules.append(f"{name} ::= {body}")
        return name

    # A text ends at its first closing tag.
    after = sym(tags.end[len(tags.end.rstrip()) :])
    text = until({tags.end.strip(): after}, f"{prefix}text", sym, False)
    found, n_required, is_free = _properties(schema, schema)
    parts: list[str] = []
    for i, (key, part) in enumerate(found):
        head = sym(tags.begin + key + tags.middle + tags.pad)
        path = "properties", key
        value = _value_rule(tags, part, schema, f"{prefix}v{i}-", rules, sym, path)
        parts.append(f"{head} {value or prefix + 'text'}")
    root = members(parts[:n_required], parts[n_required:], "", rule)
    if is_free:
        head = f"{sym(tags.begin)} [a-zA-Z0-9_-]+ {sym(tags.middle + tags.pad)}"
        root = f"({head} {prefix}text)*"
    return [f"{prefix}root ::= {root or quoted('')}", *rules, *text]


def _value_rule(
    tags: TagNotation,
    schema: Any,
    root: Any,
    name: str,
    rules: list[str],
    sym: Sym,
    path: Sequence[str],
) -> str:
    """Return GBNF for a value with its end; empty for any text."""
    end = tags.pad + tags.end
    schema = resolved(schema, root)
    if "string" not in types_of(schema, root):
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        rules += to_rules({**shared, **schema}, name, path)
        return f"{name}root {sym(end)}"
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is None:
        _check_keywords(schema, path, "type", "anyOf", "oneOf")
        return ""
    _check_keywords(schema, path, "type", "enum", "const")
    texts = [one if isinstance(one, str) else json.dumps(one) for one in items(values)]
    if not texts or any(end.strip() in text for text in texts):
        raise _unsupported(schema, "enum is invalid")
    return f"({' | '.join(map(sym, texts))}) {sym(end)}"


class _PairRules:
    """Conversion of one schema to the rules of arguments as pairs."""

    def __init__(self, notation: PairNotation, schema: Any, prefix: str, sym: Sym) -> None:
        self._notation, self._root, self._prefix, self._sym = notation, schema, prefix, sym
        self._rules: list[str] = []
        self._refs: dict[str, str] = {}  # reference -> name of its rule
        self._comma = quoted(notation.comma)

    def rules(self) -> list[str]:
        """Return all rules; the first is the root, the last are any text and any value."""
        notation, name = self._notation, f"{self._prefix}text"
        root = self._object(self._root, (), is_top=True)
        if notation.is_python:
            string = [f'{name} ::= "\\"" char* "\\""']
        else:
            body = until({notation.quote: ""}, f"{name}-body", self._sym, may_end=False)
            string = [f"{name} ::= {self._sym(notation.quote)} {name}-body", *body]
        plain = f'{name} | "-"? fraction | {" | ".join(map(quoted, notation.words))}'
        first = f"{self._prefix}root ::= {root or quoted('')}"
        return [first, *self._rules, *string, f"{self._prefix}any ::= {plain}"]

    def _add(self, body: str, name: str = "rest") -> str:
        name = f"{self._prefix}{name}-{len(self._rules)}"
        self._rules.append(f"{name} ::= {body}")
        return name

    def _object(self, schema: Any, path: tuple[str, ...], is_top: bool = False) -> str:
        found, n_required, is_free = _properties(schema, self._root, path)
        is_plain = is_top or not self._notation.is_python
        colon = self._notation.assign if is_plain else ": "
        if is_free:
            key = "[a-zA-Z_] [a-zA-Z0-9_]*" if is_plain else '"\\"" char* "\\""'
            pair = f"{key} {quoted(colon)} {self._prefix}any"
            return f"({pair} ({self._comma} {pair})*)?"
        parts: list[str] = []
        for key, part in found:
            if is_top and not re.fullmatch(r"[\w.$-]+", key):
                raise _unsupported(schema, f"the property {key!r:.60} cannot be written")
            value = self._value(part, (*path, "properties", key))
            name = key if is_top else self._notation.write_key(key)
            parts.append(f"{quoted(name + colon)} {value}")
        return members(parts[:n_required], parts[n_required:], self._comma, self._add)

    def _value(self, schema: Any, path: tuple[str, ...]) -> str:
        """Return GBNF for a value; `path` leads to its schema."""
        spend(20)
        schema = schema if isinstance(schema, Mapping) else {}
        ref = schema.get("$ref")
        if not isinstance(ref, str):
            return self._resolved_value(schema, path)
        if ref not in self._refs:
            # named before its conversion, as the schema may contain itself
            name = self._refs[ref] = f"{self._prefix}ref{len(self._refs)}"
            value = self._resolved_value(resolved(schema, self._root), path)
            self._rules.append(f"{name} ::= {value}")
        return self._refs[ref]

    def _resolved_value(self, schema: Schema, path: tuple[str, ...]) -> str:
        if len(path) > 2 * _MAX_SCHEMA_DEPTH:
            raise _unsupported(schema, "it is nested too deeply")
        if "enum" in schema or "const" in schema:
            _check_keywords(schema, path, "type", "enum", "const")
            values = schema.get("enum", [schema.get("const")])
            if not isinstance(values, list) or not values:
                raise _unsupported(schema, "enum is invalid")
            return f"({' | '.join(self._sym(self._notation.write_value(v)) for v in values)})"
        for key in ("anyOf", "oneOf"):
            if key in schema:
                _check_keywords(schema, path, key)
                return self._either(schema[key], (*path, key))
        kind = schema.get("type")
        if isinstance(kind, list):
            spend(len(kind) * len(schema))
            return self._either([{**schema, "type": one} for one in kind], (*path, "type"))
        if kind is None and not (schema.keys() & {"properties", "items"}):
            _check_keywords(schema, path)
            return f"{self._prefix}any"
        kind = kind or ("object" if "properties" in schema else "array")
        return self._of_type(schema, kind, path)

    def _either(self, schemas: Any, path: tuple[str, ...]) -> str:
        if not isinstance(schemas, list) or not schemas:
            raise _unsupported(schemas, "anyOf or type is invalid")
        return f"({' | '.join(self._value(one, (*path, str(i))) for i, one in enumerate(schemas))})"

    def _of_type(self, schema: Any, kind: Any, path: tuple[str, ...]) -> str:
        true, false, null = map(quoted, self._notation.words)
        simple = {"string": f"{self._prefix}text", "boolean": f"({true} | {false})", "null": null}
        if isinstance(kind, str) and kind in simple:
            _check_keywords(schema, path, "type")
            return simple[kind]
        if kind in ("integer", "number"):
            _check_keywords(schema, path, "type", *_BOUNDS)
            name = f"{self._prefix}n{len(self._rules)}-"
            self._rules += to_rules(schema, name, path)
            return f"{name}root"
        if kind == "array":
            _check_keywords(schema, path, "type", "items")
            item = self._value(schema.get("items", {}), (*path, "items"))
            return self._add(f'"[" ({item} ({self._comma} {item})*)? "]"', "array")
        if kind == "object":
            return self._add(f'"{{" {self._object(schema, path)} "}}"', "object")
        raise _unsupported(schema, f"there is no type {kind!r:.60}")
