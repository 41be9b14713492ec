"""Incremental reading of JSON values in the text of an answer."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from .source import NotACallError, Source, Steps

_MAX_DEPTH = 200  # nested objects and arrays
_IN_STRING = re.compile(r'[^"\\]*')
_OUTSIDE = re.compile(r'[^"{}\[\]]*')
_END_OF_SCALAR = re.compile(r"[\s,:\]}{\[\"]")
_CLOSES = {"{": "}", "[": "]"}


def parse(text: str) -> Any:
    """Parse a JSON text. A number outside of the range of doubles becomes the nearest one in it.

    Raises:
        NotACallError: It is not JSON.
    """
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        raise NotACallError from None


def _finite(text: str) -> float:
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))


def _no_number(text: str) -> float:
    raise ValueError(text)


class _Nesting:
    """Finds the end of an object, an array or a string."""

    def __init__(self) -> None:
        self._open: list[str] = []  # closing brackets of what is open
        self._is_string = self._is_escaped = False

    @property
    def is_complete(self) -> bool:
        """Whether nothing is open."""
        return not (self._open or self._is_string)

    def step(self, text: str, at: int) -> int:
        """Read up to the next character that matters; return the position after it."""
        if self._is_escaped:
            self._is_escaped = False
            return at + 1
        match = (_IN_STRING if self._is_string else _OUTSIDE).match(text, at)
        at = match.end() if match else at
        if at == len(text):
            return at
        char = text[at]
        if char == '"':
            self._is_string = not self._is_string
        elif self._is_string:
            self._is_escaped = True  # it is a backslash
        elif char in _CLOSES:
            self._open.append(_CLOSES[char])
        elif not self._open or self._open.pop() != char:
            raise NotACallError
        if len(self._open) > _MAX_DEPTH:
            raise NotACallError
        return at + 1


def read_nested(source: Source, emits: bool = False) -> Steps[str]:
    """Read an object, an array or a string, which begins here.

    Args:
        source: The text.
        emits: Whether to emit its text as arguments while it comes.

    Returns:
        Its text.

    Raises:
        NotACallError: It is not JSON.
    """
    start = sent = source.at
    nesting = _Nesting()
    while True:
        while source.at < len(source.text):
            source.at = nesting.step(source.text, source.at)
            if nesting.is_complete:
                break
        is_complete = source.at > start and nesting.is_complete
        if emits:
            source.emit(source.text[sent : source.at])
            sent = source.at
        if is_complete:
            text = source.text[start : source.at]
            parse(text)
            return text
        if source.ended:
            raise NotACallError
        yield


def read_value(source: Source) -> Steps[str]:
    """Read any JSON value; return its text.

    Raises:
        NotACallError: It is not JSON.
    """
    if (yield from source.peek()) in ('"', "{", "["):
        return (yield from read_nested(source))
    start = source.at
    while not (found := _END_OF_SCALAR.search(source.text, start)) and not source.ended:
        yield
    source.at = found.start() if found else len(source.text)
    parse(source.text[start : source.at])
    return source.text[start : source.at]
