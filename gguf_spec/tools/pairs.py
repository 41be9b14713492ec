"""Arguments as pairs of a key and a value in Python's notation, or in that of Gemma."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .json_text import parse
from .pair_rules import PairRules
from .source import NotACallError, Source, Steps
from .text_rules import Sym

_MAX_DEPTH = 100
_BRACKETS = {"(": "[", ")": "]"}
_WORDS = {"True": "true", "False": "false", "None": "null"}
_COLON = re.compile(r"\s*:")
_PARTS = (
    r"(?P<double>\"(?:[^\"\\]|\\.)*\")|(?P<single>'(?:[^'\\]|\\.)*')|(?P<word>[A-Za-z_][\w-]*)"
    r"|(?P<number>[-+]?[\d.][\d.eE+-]*)|(?P<mark>[\[\]{}(),:])|(?P<space>\s+)"
)


@dataclass(frozen=True)
class PairNotation:
    """Pairs with commas between them, up to a closing bracket.

    Attributes:
        assign: Text between a key and its value.
        close: Bracket after the last pair; it is not read.
        quote: Quote of a text without escapes; empty for the strings of Python.
    """

    assign: str
    close: str
    quote: str = ""
    ends_itself: bool = False
    way: str = "value by value"

    @property
    def is_python(self) -> bool:
        """Whether the values are Python's."""
        return not self.quote

    @property
    def comma(self) -> str:
        """Text between two pairs or values."""
        return ", " if self.is_python else ","

    @property
    def words(self) -> tuple[str, str, str]:
        """Words for true, false and null."""
        return ("True", "False", "None") if self.is_python else ("true", "false", "null")

    def read(self, source: Source, name: str, _schema: Mapping[str, Any]) -> Steps[None]:
        """Read the arguments of a tool, and emit its call."""
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
            source.emit(f"{head}{json.dumps(key, ensure_ascii=False)}: {self._to_json(text)}")
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
            if not 0 <= depth <= _MAX_DEPTH:
                raise NotACallError
            source.at += 1

    def _string(self, source: Source, quote: str) -> Steps[None]:
        """Read a string after its opening quote."""
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
        """Return a value as JSON text."""
        pattern = rf"(?P<raw>{re.escape(self.quote)}.*?{re.escape(self.quote)})|" if self.quote \
            else ""  # fmt: skip
        parts, at, text = [], 0, text.strip()
        regex = re.compile(pattern + _PARTS, re.DOTALL)
        while at < len(text):
            match = regex.match(text, at)
            if not match:
                raise NotACallError
            parts.append(self._part(match, text))
            at = match.end()
        written = "".join(parts)
        return json.dumps(parse(written), ensure_ascii=False)

    def _part(self, match: re.Match[str], text: str) -> str:
        kind, part = match.lastgroup, match[0]
        if kind == "raw":
            n = len(self.quote)
            return json.dumps(part[n:-n], ensure_ascii=False)
        if kind in ("double", "single"):
            return json.dumps(_unquoted(part), ensure_ascii=False)
        if kind == "mark":
            return _BRACKETS.get(part, part)
        if kind != "word":
            return part
        is_key = _COLON.match(text, match.end())
        word = _WORDS.get(part, part)
        if word in ("true", "false", "null") and not is_key:
            return word
        if self.is_python:
            raise NotACallError
        return json.dumps(part)

    def rules(self, schema: Mapping[str, Any], prefix: str, sym: Sym) -> list[str]:
        """Return grammar rules for the arguments."""
        return PairRules(self, schema, prefix, sym).rules()

    def write(self, arguments: Mapping[str, Any]) -> str:
        """Return arguments in this notation."""
        return self.comma.join(
            f"{key}{self.assign}{self.write_value(value)}" for key, value in arguments.items()
        )

    def write_value(self, value: Any) -> str:
        """Return a value in this notation."""
        if isinstance(value, str):
            quoted = json.dumps(value, ensure_ascii=False)
            return quoted if self.is_python else f"{self.quote}{value}{self.quote}"
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
        return json.dumps(key, ensure_ascii=False) if self.is_python else key


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
