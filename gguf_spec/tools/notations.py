"""Notations of a tool call: how models write its name and its arguments.

Each notation reads a call from an answer while it comes, makes the grammar rules of a call from the
schema of its tool, and writes a call of an earlier message. The arguments are JSON, tags, or pairs
in Python's notation or in that of Gemma.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidGrammarError
from ..grammar.automaton import quoted, spend
from ..grammar.json_schema import drop, members, to_rules
from ..vocabulary import n_open
from .source import NAME, NotACallError, Source, Steps, parse, read_nested, read_value

Schema = Mapping[str, Any]
# Names of the tools of a request -> JSON schema of their arguments.
Schemas = Mapping[str, Schema]
# GBNF of a text in which special tokens may be written by their names.
Sym = Callable[[str], str]

_MAX_REFS = 20
_JSON_TYPES = {"string", "number", "integer", "boolean", "object", "array", "null"}
_WORDS = {"True": "true", "False": "false", "None": "null"}
# Keywords that change nothing in a grammar.
_NOTES = {
    "title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated",
    "readOnly", "writeOnly", "$defs", "definitions", "strict", "nullable",
}  # fmt: skip
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_MAX_SCHEMA_DEPTH = 30  # nested schemas and references of pairs
_MAX_VALUE_DEPTH = 100  # nested brackets of a value of a pair
_BRACKETS = {"(": "[", ")": "]"}
_COLON = re.compile(r"\s*:")
_PARTS = (
    r"(?P<double>\"(?:[^\"\\]|\\.)*\")|(?P<single>'(?:[^'\\]|\\.)*')|(?P<word>[A-Za-z_][\w-]*)"
    r"|(?P<number>[-+]?[\d.][\d.eE+-]*)|(?P<mark>[\[\]{}(),:])|(?P<space>\s+)|(?P<other>.)"
)
# In the head of a call: stands for a number.
_ANY_ID = "\0"
_NAME_KEYS = ("name", "tool_name")
# Keys that an object of a call may have besides its arguments.
_OTHER_KEYS = (*_NAME_KEYS, "type", "id", "tool_call_id", "function", "index")
_ARGUMENT_KEYS = ("arguments", "parameters")


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


def resolved(schema: Any, root: Any) -> Any:
    """Return a schema, or the one that its `$ref` names in `root`; {} if not found."""
    for _ in range(_MAX_REFS):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            return schema if isinstance(schema, Mapping) else {}
        schema = _target(schema["$ref"], root)
    return {}


def _target(ref: str, root: Any) -> Any:
    """Return the part of `root` that a reference names; None if not found."""
    schema = root
    for part in ref.split("/")[1:]:
        schema = schema.get(part) if isinstance(schema, Mapping) else None
    return schema


def types_of(schema: Any, root: Any) -> set[str]:
    """Return the JSON types that a schema allows; all of them if it names none."""
    found, todo, seen = set[str](), [schema], set[int]()
    while todo:
        schema = todo.pop()
        # Each part and each definition counts once, even if it contains itself.
        if id(schema) in seen:
            continue
        seen.add(id(schema))
        if not isinstance(schema, Mapping):
            found |= _JSON_TYPES
        elif isinstance(ref := schema.get("$ref"), str):
            todo.append(_target(ref, root))
        elif isinstance(kind := schema.get("type"), (str, list)):
            found |= {k for k in ([kind] if isinstance(kind, str) else kind) if isinstance(k, str)}
        elif parts := _items(schema.get("anyOf")) or _items(schema.get("oneOf")):
            todo += parts
        else:
            values = _items(schema.get("enum", [schema["const"]] if "const" in schema else None))
            found |= {*map(_type, values)} or _JSON_TYPES
    return found


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _type(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return "null" if value is None else kinds.get(type(value), "object")


def typed_value(text: str, schema: Any, root: Any) -> str:
    """Return a value that was written without a type as JSON text.

    It is the JSON value that the text is, if the schema allows its type, and otherwise the text.
    """
    core = text.strip()
    core = _WORDS.get(core, core)
    types = types_of(schema, root)
    try:
        kind = _type(parse(core))
    except NotACallError:
        kind = "string"
    allowed = types | ({"integer"} if "number" in types else set())
    if kind != "string" and (kind in allowed or "string" not in types):
        return core
    return _json(text)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _unsupported(schema: Any, reason: str) -> InvalidGrammarError:
    return InvalidGrammarError("json_schema", _json(schema)[:77], reason)


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


# ---- notations of arguments, after the name of a call


@dataclass(frozen=True)
class JsonNotation:
    """A JSON object.

    Attributes:
        ends_itself: Whether the end of the arguments is seen without the text after them.
        way: How the arguments are streamed, for the documentation.
    """

    ends_itself = True
    way = "as they come"

    def read(self, source: Source, name: str, _schema: Schema) -> Steps[None]:
        """Read the arguments, and emit the call; raise NotACallError if there are none."""
        yield from source.space()
        if (yield from source.peek()) != "{":
            raise NotACallError
        source.start(name)
        yield from read_nested(source, emits=True)

    def rules(self, schema: Schema, prefix: str, _sym: Sym) -> list[str]:
        """Return grammar rules for the arguments; the rule `<prefix>root` is used.

        Raises:
            InvalidOptionError: The schema is not supported.
        """
        return to_rules(dict(schema), prefix)

    def write(self, arguments: Mapping[str, Any]) -> str:
        return _json(dict(arguments))


@dataclass(frozen=True)
class TagNotation:
    """A key and a value in tags, for each argument.

    The type of a value follows from the schema of the tool: a text is written as it is, any other
    value as JSON. The methods are those of `JsonNotation`.

    Attributes:
        begin: Text before a key.
        middle: Text between a key and its value.
        end: Text after a value.
        pad: Character at both ends of a value that is not part of it, or none.
    """

    begin: str
    middle: str
    end: str
    pad: str = ""
    ends_itself = False
    way = "texts as they come, other values whole"

    def read(self, source: Source, name: str, schema: Schema) -> Steps[None]:
        source.start(name)
        source.emit("{")
        head = ""
        while (yield from source.optional(self.begin)):
            key = (yield from self._up_to(source, self.middle.split()[0])).strip()
            yield from source.need(self.middle.rstrip())
            part = resolved(schema, schema).get("properties")
            part = resolved(part.get(key) if isinstance(part, Mapping) else None, schema)
            source.emit(f"{head}{_json(key)}: ")
            if types_of(part, schema) == {"string"}:
                yield from self._string(source)
            else:
                end = self.end.strip()
                text = yield from self._up_to(source, end)
                yield from source.literal(end)
                text = text.removeprefix(self.pad).removesuffix(self.pad)
                source.emit(typed_value(text, part, schema))
            head = ", "
        source.emit("}")

    def _up_to(self, source: Source, word: str) -> Steps[str]:
        at = source.at
        if not (yield from source.until([word])):
            raise NotACallError
        return source.text[at : source.at]

    def _string(self, source: Source) -> Steps[None]:
        """Emit a value that is a text as it comes."""
        if self.pad and (yield from source.peek()) == self.pad:
            source.at += 1
        source.emit('"')
        end = self.end.strip()
        while True:
            at = source.text.find(end, source.at)
            stop = at if at >= 0 else len(source.text) - n_open(source.text[source.at :], [end])
            piece = source.text[source.at : stop].removesuffix(self.pad)
            source.at += len(piece)
            source.emit(json.dumps(piece, ensure_ascii=False)[1:-1])
            if at >= 0:
                source.at = at + len(end)
                source.emit('"')
                return
            if source.ended:
                raise NotACallError
            yield

    def rules(self, schema: Schema, prefix: str, sym: Sym) -> list[str]:
        rules: list[str] = []

        def rule(body: str) -> str:
            name = f"{prefix}rest-{len(rules)}"
            rules.append(f"{name} ::= {body}")
            return name

        # A text ends at its first closing tag.
        after = sym(self.end[len(self.end.rstrip()) :])
        text = until({self.end.strip(): after}, f"{prefix}text", sym, False)
        found, n_required, is_free = _properties(schema, schema)
        parts: list[str] = []
        for i, (key, part) in enumerate(found):
            head = sym(self.begin + key + self.middle + self.pad)
            path = "properties", key
            value = self._value_rule(part, schema, f"{prefix}v{i}-", rules, sym, path)
            parts.append(f"{head} {value or prefix + 'text'}")
        root = members(parts[:n_required], parts[n_required:], "", rule)
        if is_free:
            head = f"{sym(self.begin)} [a-zA-Z0-9_-]+ {sym(self.middle + self.pad)}"
            root = f"({head} {prefix}text)*"
        return [f"{prefix}root ::= {root or quoted('')}", *rules, *text]

    def _value_rule(
        self,
        schema: Any,
        root: Any,
        name: str,
        rules: list[str],
        sym: Sym,
        path: Sequence[str],
    ) -> str:
        """Return GBNF for a value with its end; empty for any text."""
        end = self.pad + self.end
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
        texts = [one if isinstance(one, str) else json.dumps(one) for one in _items(values)]
        if not texts or any(end.strip() in text for text in texts):
            raise _unsupported(schema, "enum is invalid")
        return f"({' | '.join(map(sym, texts))}) {sym(end)}"

    def write(self, arguments: Mapping[str, Any]) -> str:
        written = ""
        for key, value in arguments.items():
            text = value if isinstance(value, str) else _json(value)
            written += f"{self.begin}{key}{self.middle}{self.pad}{text}{self.pad}{self.end}"
        return written


@dataclass(frozen=True)
class PairNotation:
    """Pairs with commas between them, up to a closing bracket.

    The methods are those of `JsonNotation`.

    Attributes:
        assign: Text between a key and its value.
        close: Bracket after the last pair; it is not read.
        quote: Quote of a text without escapes; empty for the strings of Python.
        comma: Text between two pairs or values.
        words: Words for true, false and null.
    """

    assign: str
    close: str
    quote: str = ""
    comma: str = ","
    words: tuple[str, ...] = ("true", "false", "null")
    ends_itself = False
    way = "value by value"

    @property
    def is_python(self) -> bool:
        return not self.quote

    def read(self, source: Source, name: str, _schema: Schema) -> Steps[None]:
        source.start(name)
        source.emit("{")
        head = ""
        yield from source.space()
        while (yield from source.peek()) not in (self.close, ""):
            start = source.at
            if not (yield from source.until([self.assign])):
                raise NotACallError
            key = self._key(source.text[start : source.at].strip())
            yield from source.literal(self.assign)
            text = yield from self._value(source)
            source.emit(f"{head}{_json(key)}: {self._to_json(text)}")
            head = ", "
            yield from source.space()
            if not (yield from source.literal(",")):
                break
            yield from source.space()
        source.emit("}")

    def _key(self, text: str) -> str:
        if self.quote and text.startswith(self.quote):
            text = text.removeprefix(self.quote).removesuffix(self.quote)
        if not re.fullmatch(r"[\w.$ -]+", text):
            raise NotACallError
        return text

    def _value(self, source: Source) -> Steps[str]:
        """Read a value up to the comma or bracket after it; return its text."""
        start, depth = source.at, 0
        quotes = (self.quote,) if self.quote else ('"', "'")
        while True:
            quote = yield from source.literal(*quotes)
            if quote:
                yield from self._string(source, quote)
                continue
            char = yield from source.peek()
            if not char:
                raise NotACallError
            if depth == 0 and char in (",", self.close):
                return source.text[start : source.at]
            depth += (char in "([{") - (char in ")]}")
            if not 0 <= depth <= _MAX_VALUE_DEPTH:
                raise NotACallError
            source.at += 1

    def _string(self, source: Source, quote: str) -> Steps[None]:
        while True:
            found = yield from source.until([quote, "\\"] if self.is_python else [quote])
            if not found:
                raise NotACallError
            yield from source.literal(found)
            if found == quote:
                return
            yield from source.peek()
            source.at += 1  # the escaped character

    def _to_json(self, text: str) -> str:
        quote = re.escape(self.quote)
        raw = rf"(?P<raw>{quote}.*?{quote})|" if quote else ""
        return _json(parse(re.sub(raw + _PARTS, self._part, text.strip(), flags=re.DOTALL)))

    def _part(self, match: re.Match[str]) -> str:
        kind, part = match.lastgroup, match[0]
        if kind == "raw":
            n = len(self.quote)
            return _json(part[n:-n])
        if kind in ("double", "single"):
            return _json(_unquoted(part))
        if kind == "mark":
            return _BRACKETS.get(part, part)
        if kind == "other":
            raise NotACallError
        if kind != "word":
            return part
        word = _WORDS.get(part, part)
        if word in _WORDS.values() and not _COLON.match(match.string, match.end()):
            return word
        if self.is_python:
            raise NotACallError
        return json.dumps(part)

    def rules(self, schema: Schema, prefix: str, sym: Sym) -> list[str]:
        return _PairRules(self, schema, prefix, sym).rules()

    def write(self, arguments: Mapping[str, Any]) -> str:
        return self.comma.join(
            f"{key}{self.assign}{self.write_value(value)}" for key, value in arguments.items()
        )

    def write_value(self, value: Any) -> str:
        if isinstance(value, str):
            return _json(value) if self.is_python else f"{self.quote}{value}{self.quote}"
        if isinstance(value, Mapping):
            colon = ": " if self.is_python else ":"
            pairs = [f"{self.write_key(k)}{colon}{self.write_value(v)}" for k, v in value.items()]
            return "{" + self.comma.join(pairs) + "}"
        if isinstance(value, list):
            return "[" + self.comma.join(map(self.write_value, value)) + "]"
        if self.is_python and (value is None or isinstance(value, bool)):
            return str(value)
        return json.dumps(value)

    def write_key(self, key: str) -> str:
        """Return the key of an object that is a value."""
        return _json(key) if self.is_python else key


def _unquoted(text: str) -> str:
    """Return the text of a quoted string; JSON's escapes first, then Python's."""
    try:
        value = json.loads(text) if text[0] == '"' else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        try:
            value = ast.literal_eval(text.replace("\n", "\\n"))
        except (ValueError, SyntaxError):
            raise NotACallError from None
    if not isinstance(value, str):
        raise NotACallError
    return value


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


Notation = JsonNotation | TagNotation | PairNotation

# ---- notations of a call


@dataclass(frozen=True)
class NamedCall:
    """The name of the tool, and arguments in a notation of their own after it.

    Attributes:
        begins: Texts with which a call may begin, the usual one first; may be one empty text.
        middle: Text between the name and the arguments.
        end: Text after the arguments; after JSON it may be missing in an answer.
        skipped: Texts that may stand after the name, each followed by a word: such as an id.
    """

    begins: tuple[str, ...] = ("",)
    middle: str = ""
    notation: Notation = field(default_factory=JsonNotation)
    end: str = ""
    skipped: str = ""

    def read(self, source: Source, schemas: Schemas) -> Steps[None]:
        """Read a call, after its beginning; raise NotACallError if it is none."""
        yield from source.space()
        name = yield from source.name(schemas)
        if self.skipped and (yield from source.optional(self.skipped)):
            yield from source.space(NAME)
        yield from source.need(self.middle)
        yield from self.notation.read(source, name, schemas[name])
        if self.notation.ends_itself:
            yield from source.closing(self.end)
        elif not (yield from source.phrase(self.end)) and not source.is_over:
            raise NotACallError
        source.end()

    def around(self, name: str) -> tuple[str, str]:
        """Return the texts before and after the arguments; `_ANY_ID` stands for any number."""
        return name + self.middle, self.end

    def rule(self, name: str, schema: Schema, prefix: str, sym: Sym) -> list[str]:
        """Return grammar rules for a call after its beginning; the first one is used."""
        head, tail = self.around(name)
        parts = [" [0-9]+ ".join(map(sym, head.split(_ANY_ID))), f"{prefix}a-root", sym(tail)]
        rules = self.notation.rules(schema, f"{prefix}a-", sym)
        return [f"{prefix}call ::= {' '.join(filter(None, parts))}", *rules]

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call in the model's syntax, with its beginning."""
        head, tail = self.around(name)
        head = "0".join(head.split(_ANY_ID))
        return f"{self.begins[0]}{head}{self.notation.write(arguments)}{tail}"


@dataclass(frozen=True)
class ObjectCall(NamedCall):
    """A JSON object with the name of the tool and its arguments.

    Attributes:
        before: Members before the name.
        name_key: Key of the name.
        arguments_key: Key of the arguments.
    """

    before: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"

    def read(self, source: Source, schemas: Schemas) -> Steps[None]:
        """Read a call; braces may be doubled, as in some templates, and the last one missing."""
        yield from source.space()
        is_doubled = yield from source.optional("{{")
        if is_doubled:
            source.at -= 1  # the object begins with the second brace
        found: dict[str, str] = {}
        yield from self._members(source, schemas, found)
        if is_doubled:
            yield from source.optional("}")
        if "name" not in found:
            raise NotACallError
        if "arguments" not in found:
            source.start(found["name"])
            source.emit(found.get("early", "{}"))
        yield from source.closing(self.end)
        source.end()

    def _members(self, source: Source, schemas: Schemas, found: dict[str, str]) -> Steps[None]:
        """Read an object; arguments after the name are emitted as they come."""
        yield from source.need("{")
        while True:
            yield from source.space()
            if (yield from source.peek()) != '"':
                raise NotACallError
            key = parse((yield from read_nested(source)))
            yield from source.need(":")
            yield from source.space()
            yield from self._member(source, schemas, found, key)
            yield from source.space()
            if not (yield from source.literal(",")):
                break
        yield from source.need("}")

    def _member(
        self, source: Source, schemas: Schemas, found: dict[str, str], key: str
    ) -> Steps[None]:
        char = yield from source.peek()
        if key == "function" and char == "{":
            yield from self._members(source, schemas, found)
        elif key in _ARGUMENT_KEYS:
            if char != "{" or "arguments" in found:
                raise NotACallError
            if "name" in found:
                found["arguments"] = ""
                source.start(found["name"])
            text = yield from read_nested(source, emits="name" in found)
            found.setdefault("early", text)
        else:
            if key not in _OTHER_KEYS:
                raise NotACallError
            value = parse((yield from read_value(source)))
            if key in _NAME_KEYS:
                if "name" in found or not isinstance(value, str) or value not in schemas:
                    raise NotACallError
                found["name"] = value

    def around(self, name: str) -> tuple[str, str]:
        head = f'{{{self.before}"{self.name_key}": {json.dumps(name)}, "{self.arguments_key}": '
        return head, "}" + self.end
