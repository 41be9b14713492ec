"""Incremental input of the parsers of tool calls, the events that they emit, and JSON values in it.

A parser is a generator over a `Source`. It yields where it needs more text, so it is written as if
the text were complete.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Generator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from ..vocabulary import n_open

T = TypeVar("T")
# A step of a parser: yields to wait for more text, and returns a result.
Steps = Generator[None, None, T]

NAME = re.compile(r"[\w.-]*")
_SPACE = re.compile(r"\s*")
# Between words and markers there may be any white space.
_GAP = re.compile(r"\s+|(?<=>)(?=[\[<])|(?<=\])(?=\[)")
_MOST_NAME = 200  # characters of a name; a longer one is no name
_MAX_DEPTH = 200  # nested objects and arrays
_IN_STRING = re.compile(r'[^"\\]*')
_OUTSIDE = re.compile(r'[^"{}\[\]]*')
_END_OF_SCALAR = re.compile(r"[\s,:\]}{\[\"]")
_CLOSES = {"{": "}", "[": "]", '"': '"', "\\": "\\"}


class Event(NamedTuple):
    """A piece of an answer.

    Attributes:
        kind: `text` of the answer; `call`, where the call of a tool begins; `arguments` of the
            current call; `end`, where it is complete; `broken`, where it cannot be read, or the
            answer ends inside of it.
        text: The text, the name of the tool, the next piece of the arguments as JSON text, or the
            whole text of a broken call as the model wrote it.
        rest: Of a broken call, the part of its text after the arguments that were already emitted.
    """

    kind: Literal["text", "call", "arguments", "end", "broken"]
    text: str = ""
    rest: str = ""


def words_of(text: str) -> list[str]:
    """Return the words and markers of a text, between which an answer may have white space."""
    return [word for word in _GAP.split(text) if word]


class NotACallError(Exception):
    """The text from here on is not a tool call."""


class Source:
    """Text of an answer with a reading position, and the events that were read.

    Attributes:
        text: Text from the beginning of the current call or piece of text.
        at: Reading position in `text`.
        ended: Whether no more text follows.
        events: Events so far; the reader takes them out.
    """

    at: int
    ended: bool
    text: str

    def __init__(self, text: str = "") -> None:
        self.text, self.at, self.ended = text, 0, False
        self.events: list[Event] = []
        self._n_given = len(text)  # characters at the beginning that are not the answer's
        self._sent = 0  # end of the text whose arguments were emitted
        self._is_open = False

    # ---- events

    def drop(self) -> None:
        self.text, self._n_given = self.text[self.at :], max(0, self._n_given - self.at)
        self.at = self._sent = 0

    def say(self) -> None:
        """Emit the text that was read as text of the answer."""
        if text := self.text[self._n_given : self.at]:
            self.events.append(Event("text", text))
        self.drop()

    def start(self, name: str) -> None:
        """Begin a call; the text up to here is represented by it."""
        self.events.append(Event("call", name))
        self._is_open, self._sent = True, self.at

    def emit(self, arguments: str) -> None:
        """Emit a piece of the arguments; the text up to here is represented by it."""
        if arguments:
            self.events.append(Event("arguments", arguments))
        self._sent = self.at

    def end(self) -> None:
        self.events.append(Event("end"))
        self._is_open = False

    def give_up(self) -> None:
        """Emit a call that cannot be read."""
        if not self._is_open:
            self.at = len(self.text[: self.at].rstrip()) or self.at  # a call may follow the space
            self.say()
            return
        source, rest = self.text[self._n_given : self.at], self.text[self._sent : self.at]
        self.events.append(Event("broken", source, rest))
        self._is_open = False
        self.drop()

    # ---- reading

    @property
    def is_over(self) -> bool:
        """Whether nothing is left, now and later."""
        return self.ended and self.at == len(self.text)

    def space(self, pattern: re.Pattern[str] = _SPACE) -> Steps[None]:
        """Skip white space, or what another pattern matches."""
        while True:
            match = pattern.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text) or self.ended:
                return
            yield

    def peek(self) -> Steps[str]:
        """Return the next character without reading it; empty at the end."""
        while self.at == len(self.text) and not self.ended:
            yield
        return self.text[self.at : self.at + 1]

    def literal(self, *words: str) -> Steps[str]:
        """Read one of some words; empty if none follows. No word begins another."""
        while True:
            for word in words:
                if self.text.startswith(word, self.at):
                    self.at += len(word)
                    return word
            rest = self.text[self.at : self.at + max(map(len, words))]
            if self.ended or not any(word.startswith(rest) for word in words):
                return ""
            yield

    def phrase(self, text: str) -> Steps[bool]:
        """Read the words of a text with any white space before each; False if they do not follow.

        After False the position is where the text differs.
        """
        for word in words_of(text):
            yield from self.space()
            if not (yield from self.literal(word)):
                return False
        return True

    def optional(self, text: str) -> Steps[bool]:
        """Read a phrase if it follows; otherwise read nothing."""
        at = self.at
        if (yield from self.phrase(text)):
            return True
        self.at = at
        return False

    def closing(self, text: str) -> Steps[None]:
        """Read a phrase at the end of a call; it may be missing, or cut off with the answer."""
        if not (yield from self.optional(text)):
            rest = "".join(self.text[self.at :].split())
            if self.ended and rest and "".join(text.split()).startswith(rest):
                self.at = len(self.text)

    def need(self, text: str) -> Steps[None]:
        """Read a phrase; raise NotACallError if it does not follow."""
        if not (yield from self.phrase(text)):
            raise NotACallError

    def name(self, names: Collection[str]) -> Steps[str]:
        """Read one of some names; raise NotACallError if none follows."""
        while True:
            match = NAME.match(self.text, self.at)
            end = match.end() if match else self.at
            name = self.text[self.at : end]
            if not any(one.startswith(name) for one in names) or len(name) > _MOST_NAME:
                raise NotACallError
            if end < len(self.text) or self.ended:
                break
            yield
        if name not in names:
            raise NotACallError
        self.at = end
        return name

    def until(self, words: Sequence[str]) -> Steps[str]:
        """Wait for one of some words; the position is then at its beginning, otherwise the end.

        What was read when this yields contains no part of a word.
        """
        while True:
            found = [(at, word) for word in words if (at := self.text.find(word, self.at)) >= 0]
            if found:
                self.at, word = min(found)
                return word
            self.at = len(self.text) - (0 if self.ended else n_open(self.text[self.at :], words))
            if self.ended:
                return ""
            yield


def parse(text: str) -> Any:
    """Parse JSON, numbers as the nearest doubles; raise NotACallError if it is none."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        raise NotACallError from None


def _finite(text: str) -> float:
    return max(-sys.float_info.max, min(float(text), sys.float_info.max))


def _no_number(text: str) -> float:
    raise ValueError(text)


def _step(text: str, at: int, still_open: list[str]) -> int:
    """Return the position after the next character that matters in an object, an array or a string.

    Closing characters of what is open are changed here; a backslash stands for an escape.

    Raises:
        NotACallError: A bracket does not match, or too many are open.
    """
    last = still_open[-1] if still_open else ""
    if last == "\\":
        still_open.pop()
        return at + 1
    match = (_IN_STRING if last == '"' else _OUTSIDE).match(text, at)
    at = match.end() if match else at
    if at == len(text):
        return at
    if text[at] == last:
        still_open.pop()
    elif text[at] not in _CLOSES or (len(still_open) == _MAX_DEPTH and text[at] in "{["):
        raise NotACallError
    else:
        still_open.append(_CLOSES[text[at]])
    return at + 1


def read_nested(source: Source, emits: bool = False) -> Steps[str]:
    """Read an object, an array or a string, which begins here; return its text.

    With `emits` the text is emitted as arguments while it comes. It may raise NotACallError.
    """
    start, still_open = source.at, list[str]()
    while True:
        sent = source.at
        while source.at < len(source.text) and (still_open or source.at == start):
            source.at = _step(source.text, source.at, still_open)
        if emits:
            source.emit(source.text[sent : source.at])
        if source.at > start and not still_open:
            text = source.text[start : source.at]
            parse(text)
            return text
        if source.ended:
            raise NotACallError
        yield


def read_value(source: Source) -> Steps[str]:
    """Read any JSON value and return its text; raise NotACallError if it is none."""
    if (yield from source.peek()) in ('"', "{", "["):
        return (yield from read_nested(source))
    start = source.at
    while not (found := _END_OF_SCALAR.search(source.text, start)) and not source.ended:
        yield
    source.at = found.start() if found else len(source.text)
    parse(source.text[start : source.at])
    return source.text[start : source.at]
