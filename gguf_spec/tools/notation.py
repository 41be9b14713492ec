"""Notations of the arguments of a call, after its name: JSON and tags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..grammar.json_schema import to_rules
from .json_text import read_nested
from .schemas import property_schema, typed_value, types_of
from .source import NotACallError, Source, Steps
from .tag_rules import tag_rules
from .text_rules import Sym

Schema = Mapping[str, Any]


class Notation(Protocol):
    """Protocol of a notation of arguments."""

    @property
    def ends_itself(self) -> bool:
        """Whether the end of the arguments is seen without the text after them."""

    @property
    def way(self) -> str:
        """How the arguments are streamed, for the documentation."""

    def read(self, source: Source, name: str, schema: Schema, /) -> Steps[None]:
        """Read the arguments of a tool, and emit its call.

        Raises:
            NotACallError: They cannot be read.
        """

    def rules(self, schema: Schema, prefix: str, sym: Sym, /) -> list[str]:
        """Return grammar rules for the arguments; the rule `<prefix>root` is used.

        Raises:
            InvalidOptionError: The schema is not supported.
        """

    def write(self, arguments: Mapping[str, Any]) -> str:
        """Return arguments in this notation."""


@dataclass(frozen=True)
class JsonNotation:
    """A JSON object."""

    ends_itself: bool = True
    way: str = "as they come"

    def read(self, source: Source, name: str, _schema: Schema) -> Steps[None]:
        """Read the arguments of a tool, and emit its call."""
        yield from source.space()
        if (yield from source.peek()) != "{":
            raise NotACallError
        source.start(name)
        yield from read_nested(source, emits=True)

    def rules(self, schema: Schema, prefix: str, _sym: Sym) -> list[str]:
        """Return grammar rules for the arguments."""
        return to_rules(dict(schema), prefix)

    def write(self, arguments: Mapping[str, Any]) -> str:
        """Return arguments in this notation."""
        return json.dumps(dict(arguments), ensure_ascii=False)


@dataclass(frozen=True)
class TagNotation:
    """A key and a value in tags, for each argument.

    The type of a value follows from the schema of the tool: a text is written as it is, any other
    value as JSON.

    Attributes:
        begin: Text before a key.
        middle: Text between a key and its value.
        end: Text after a value.
        pad: Character at both ends of a value that is not part of it, or none.
        first: Text before the first argument.
    """

    begin: str
    middle: str
    end: str
    pad: str = ""
    first: str = ""
    ends_itself: bool = False
    way: str = "texts as they come, other values whole"

    def read(self, source: Source, name: str, schema: Schema) -> Steps[None]:
        """Read the arguments of a tool, and emit its call."""
        source.start(name)
        source.emit("{")
        head = ""
        while (yield from source.optional(self.begin)):
            key = yield from self._key(source)
            part = property_schema(schema, key)
            source.emit(f"{head}{json.dumps(key, ensure_ascii=False)}: ")
            if types_of(part, schema) == {"string"}:
                yield from self._string(source)
            else:
                text = yield from self._text(source)
                source.emit(typed_value(text, part, schema))
            head = ", "
        source.emit("}")

    def _key(self, source: Source) -> Steps[str]:
        at = source.at
        word = self.middle.split()[0]
        if not (yield from source.until([word])):
            raise NotACallError
        key = source.text[at : source.at].strip()
        yield from source.need(self.middle.rstrip())
        return key

    def _text(self, source: Source) -> Steps[str]:
        """Return a value as text."""
        at, end = source.at, self.end.strip()
        if not (yield from source.until([end])):
            raise NotACallError
        text = source.text[at : source.at]
        yield from source.literal(end)
        return text.removeprefix(self.pad).removesuffix(self.pad)

    def _string(self, source: Source) -> Steps[None]:
        """Emit a value that is a text as it comes."""
        if self.pad and (yield from source.peek()) == self.pad:
            source.at += 1
        source.emit('"')
        end = self.end.strip()
        while True:
            at = source.text.find(end, source.at)
            stop = at if at >= 0 else len(source.text) - source.n_open([end])
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
        """Return grammar rules for the arguments."""
        return tag_rules(self, schema, prefix, sym)

    def write(self, arguments: Mapping[str, Any]) -> str:
        """Return arguments in this notation."""
        return "".join(map(self.write_pair, arguments.items()))

    def write_pair(self, pair: tuple[str, Any]) -> str:
        """Return one argument in this notation."""
        key, value = pair
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return f"{self.begin}{key}{self.middle}{self.pad}{text}{self.pad}{self.end}"
