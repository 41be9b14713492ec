"""Incremental input of the parsers of tool calls.

A parser is a generator over a `Source`. It yields where it needs more text, so it is written as if
the text were complete.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Sequence
from typing import TypeVar

from .events import ArgumentPiece, CallBroken, CallEnded, CallStarted, Event, TextPiece

T = TypeVar("T")
# A step of a parser: yields to wait for more text, and returns a result.
Steps = Generator[None, None, T]

_NAME = re.compile(r"[\w.-]*")
_SPACE = re.compile(r"\s*")
# Between words and markers there may be any white space.
_GAP = re.compile(r"\s+|(?<=>)(?=[\[<])|(?<=\])(?=\[)")
_MOST_NAME = 200  # characters of a name; a longer one is no name


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
        events: Events since the last `take`.
    """

    def __init__(self, text: str = "") -> None:
        self.text, self.at, self.ended = text, 0, False
        self.events: list[Event] = []
        self._n_given = len(text)  # characters at the beginning that are not the answer's
        self._sent = 0  # end of the text whose arguments were emitted
        self._is_open = False

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events

    # ---- events

    def drop(self) -> None:
        """Forget the text that was read."""
        self.text, self._n_given = self.text[self.at :], max(0, self._n_given - self.at)
        self.at = self._sent = 0

    def say(self) -> None:
        """Emit the text that was read as text of the answer."""
        if said := self.text[self._n_given : self.at]:
            self.events.append(TextPiece(said))
        self.drop()

    def start(self, name: str) -> None:
        """Begin a call; the text up to here is represented by it."""
        self.events.append(CallStarted(name))
        self._is_open, self._sent = True, self.at

    def emit(self, arguments: str) -> None:
        """Emit a piece of the arguments; the text up to here is represented by it."""
        if arguments:
            self.events.append(ArgumentPiece(arguments))
        self._sent = self.at

    def end(self) -> None:
        """End the call."""
        self.events.append(CallEnded())
        self._is_open = False

    def give_up(self) -> None:
        """Emit a call that cannot be read."""
        if not self._is_open:
            self.say()
            return
        source, rest = self.text[self._n_given : self.at], self.text[self._sent : self.at]
        self.events.append(CallBroken(source, rest))
        self._is_open = False
        self.drop()

    # ---- reading

    @property
    def is_over(self) -> bool:
        """Whether nothing is left, now and later."""
        return self.ended and self.at == len(self.text)

    def space(self) -> Steps[None]:
        """Skip white space."""
        while True:
            match = _SPACE.match(self.text, self.at)
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
        """Read a phrase.

        Raises:
            NotACallError: It does not follow.
        """
        if not (yield from self.phrase(text)):
            raise NotACallError

    def name(self, names: Collection[str]) -> Steps[str]:
        """Read one of some names.

        Raises:
            NotACallError: Another name follows.
        """
        while True:
            match = _NAME.match(self.text, self.at)
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
            self.at = len(self.text) - (0 if self.ended else self.n_open(words))
            if self.ended:
                return ""
            yield

    def n_open(self, words: Sequence[str]) -> int:
        """Return the length of the longest end of the text that begins a word."""
        tail = self.text[self.at :]
        return max(
            (n for word in words for n in range(1, len(word)) if tail.endswith(word[:n])), default=0
        )

    def word(self) -> Steps[None]:
        """Skip the letters and digits that follow."""
        while True:
            match = _NAME.match(self.text, self.at)
            end = match.end() if match else self.at
            if end < len(self.text) or self.ended:
                self.at = end
                return
            yield
