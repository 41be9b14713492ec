"""Notations of a tool call: how models write its name and its arguments.

Each notation reads a call from an answer while it comes, and writes a call of an earlier message.
The arguments are JSON, tags, or pairs in Python's notation or in that of Gemma. The grammar of each
is in `rules.py`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..vocabulary import n_open
from .source import NAME, NotACallError, Source, Steps, parse, read_nested, read_value

Schema = Mapping[str, Any]
# Names of the tools of a request -> JSON schema of their arguments.
Schemas = Mapping[str, Schema]

_MAX_REFS = 20
_JSON_TYPES = {"string", "number", "integer", "boolean", "object", "array", "null"}
_WORDS = {"True": "true", "False": "false", "None": "null"}
_MAX_VALUE_DEPTH = 100  # nested brackets of a value of a pair
_BRACKETS = {"(": "[", ")": "]"}
_COLON = re.compile(r"\s*:")
_PARTS = (
    r"(?P<double>\"(?:[^\"\\]|\\.)*\")|(?P<single>'(?:[^'\\]|\\.)*')|(?P<word>[A-Za-z_][\w-]*)"
    r"|(?P<number>[-+]?[\d.][\d.eE+-]*)|(?P<mark>[\[\]{}(),:])|(?P<space>\s+)|(?P<other>.)"
)
# In the head of a call: stands for a number.
ANY_ID = "\0"
_NAME_KEYS = ("name", "tool_name")
# Keys that an object of a call may have besides its arguments.
_OTHER_KEYS = (*_NAME_KEYS, "type", "id", "tool_call_id", "function", "index")
_ARGUMENT_KEYS = ("arguments", "parameters")


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
        elif parts := items(schema.get("anyOf")) or items(schema.get("oneOf")):
            todo += parts
        else:
            values = items(schema.get("enum", [schema["const"]] if "const" in schema else None))
            found |= {*map(_type, values)} or _JSON_TYPES
    return found


def items(value: Any) -> list[Any]:
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
        """Return the texts before and after the arguments; `ANY_ID` stands for any number."""
        return name + self.middle, self.end

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call in the model's syntax, with its beginning."""
        head, tail = self.around(name)
        head = "0".join(head.split(ANY_ID))
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
