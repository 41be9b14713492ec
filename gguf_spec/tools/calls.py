"""Notations of a call: JSON objects with a name, and names with arguments after them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..grammar.json_schema import to_rules
from .json_text import parse, read_nested, read_value
from .notation import Notation
from .source import NotACallError, Source, Steps
from .text_rules import Sym

# Names of the tools of a request -> JSON schema of their arguments.
Schemas = Mapping[str, Mapping[str, Any]]
_NAME_KEYS = ("name", "tool_name")
# Keys that an object of a call may have besides its arguments.
_OTHER_KEYS = (*_NAME_KEYS, "type", "id", "tool_call_id", "function", "index")
_ARGUMENT_KEYS = ("arguments", "parameters")


class CallNotation(Protocol):
    """Protocol of a notation of one call."""

    @property
    def begins(self) -> tuple[str, ...]:
        """Texts with which a call may begin, the usual one first; may be one empty text."""

    @property
    def way(self) -> str:
        """How the arguments are streamed, for the documentation."""

    def read(self, source: Source, schemas: Schemas) -> Steps[None]:
        """Read a call, after its beginning.

        Raises:
            NotACallError: It is not a call of one of the tools.
        """

    def rule(self, name: str, schema: Mapping[str, Any], prefix: str, sym: Sym) -> list[str]:
        """Return grammar rules for a call of a tool after its beginning; the first one is used.

        Raises:
            InvalidOptionError: The schema is not supported.
        """

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call in the model's syntax, with its beginning."""


@dataclass(frozen=True)
class ObjectCall:
    """A JSON object with the name of the tool and its arguments.

    Attributes:
        begins: As in `CallNotation`.
        end: Text after the object; it may be missing in an answer.
        name_key: Key of the name.
        arguments_key: Key of the arguments.
        before: GBNF and text of members before the name.
    """

    begins: tuple[str, ...] = ("",)
    end: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    before: tuple[str, str] = ("", "")
    way: str = "as they come"

    def read(self, source: Source, schemas: Schemas) -> Steps[None]:
        """Read a call, after its beginning."""
        yield from source.space()
        found: dict[str, str] = {}
        yield from self._members(source, schemas, found)
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

    def rule(self, name: str, schema: Mapping[str, Any], prefix: str, sym: Sym) -> list[str]:
        """Return grammar rules for a call of a tool after its beginning."""
        head = f'"{self.name_key}": {json.dumps(name)}, "{self.arguments_key}": '
        before = f"{sym('{')} {self.before[0]} {sym(head)}" if self.before[0] else sym("{" + head)
        end = sym("}" + self.end)
        rules = to_rules(dict(schema), f"{prefix}a-")
        return [f"{prefix}call ::= {before} {prefix}a-root {end}", *rules]

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call in the model's syntax."""
        written = json.dumps(dict(arguments), ensure_ascii=False)
        head = f'{self.before[1]}"{self.name_key}": {json.dumps(name)}'
        return f'{self.begins[0]}{{{head}, "{self.arguments_key}": {written}}}{self.end}'


@dataclass(frozen=True)
class NamedCall:
    """The name of the tool, and arguments in a notation of their own after it.

    Attributes:
        begins: As in `CallNotation`.
        middle: Text between the name and the arguments.
        notation: Notation of the arguments.
        end: Text after the arguments; after JSON it may be missing in an answer.
        skipped: Texts that may stand after the name, each followed by a word: such as an id.
    """

    begins: tuple[str, ...]
    middle: str
    notation: Notation
    end: str = ""
    skipped: str = ""

    @property
    def way(self) -> str:
        """How the arguments are streamed."""
        return self.notation.way

    def read(self, source: Source, schemas: Schemas) -> Steps[None]:
        """Read a call, after its beginning."""
        yield from source.space()
        name = yield from source.name(schemas)
        if self.skipped and (yield from source.optional(self.skipped)):
            yield from source.word()
        yield from source.need(self.middle)
        yield from self.notation.read(source, name, schemas[name])
        if self.notation.ends_itself:
            yield from source.closing(self.end)
        elif not (yield from source.phrase(self.end)) and not source.is_over:
            raise NotACallError
        source.end()

    def rule(self, name: str, schema: Mapping[str, Any], prefix: str, sym: Sym) -> list[str]:
        """Return grammar rules for a call of a tool after its beginning."""
        rules = self.notation.rules(schema, f"{prefix}a-", sym)
        arguments = f"{prefix}a-root"
        parts = [sym(name + self.middle), arguments, sym(self.end)]
        return [f"{prefix}call ::= {' '.join(filter(None, parts))}", *rules]

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call in the model's syntax."""
        return f"{self.begins[0]}{name}{self.middle}{self.notation.write(arguments)}{self.end}"
