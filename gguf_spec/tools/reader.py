"""Tool calls of an answer: the parser of its text, and the calls in OpenAI's format.

Both work on a complete answer, or on its pieces.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from typing import Any

from ..grammar.schemas import faults_of
from ..vocabulary import n_open
from .families import Family, ToolUse
from .notations import Schemas
from .source import Event, NotACallError, Source, Steps

Delta = dict[str, Any]


class ToolReader:
    """Incremental parser of an answer.

    The joined text and calls do not depend on how the answer is cut. White space before a call is
    dropped. Text that looks like a call but is not one stays text.
    """

    def __init__(
        self,
        family: Family,
        schemas: Schemas,
        most: int | None = None,
        *,
        strict: Collection[str] = (),
    ) -> None:
        """Create a parser.

        Args:
            schemas: Names of the tools, with the JSON schemas of their arguments.
            most: Maximum number of calls; further ones are dropped. None for no limit.
            strict: Names of the tools whose arguments must follow their schema. Calls without the
                family's markers, which no grammar checks, are checked here; one that does not fit
                is text.
        """
        self._family, self._schemas, self._most = family, schemas, most
        self._strict = strict
        self._holds = False  # events are kept until a call is checked
        self._source = Source(family.prompted)
        self._n_calls = 0
        self._n_read = 0  # calls since the last text
        self._steps = self._answer()
        next(self._steps, None)

    def push(self, text: str) -> list[Event]:
        """Append text of the answer; return the events that it completes."""
        self._source.text += text
        return self._read() if text else []

    def finish(self) -> list[Event]:
        """End the answer; return the last events."""
        self._source.ended = True
        return self._read()

    def _read(self) -> list[Event]:
        """Return the next events, without the calls after the last one that is wanted."""
        next(self._steps, None)
        if self._holds:
            return []
        events, self._source.events = self._source.events, []
        kept = []
        for event in events:
            self._n_calls += event.kind == "call"
            if self._most is None or self._n_calls <= self._most or event.kind == "text":
                kept.append(event)
            elif event.kind == "broken":
                kept.append(Event("text", event.text))
        return kept

    # ---- the steps of the parser

    def _answer(self) -> Steps[None]:
        source, family = self._source, self._family
        if family.prompted and (yield from source.literal(family.prompted + family.text_mark)):
            source.drop()
        elif family.starts:
            yield from source.space()
            if (yield from source.peek()) == family.starts:
                yield from self._section()
            else:
                source.at = 0
        elif family.fences:
            yield from self._read_or_give_up(self._bare())
        while not source.is_over:
            yield from self._text()
            if not source.is_over:
                yield from self._section()

    def _text(self) -> Steps[None]:
        """Emit text up to a call or the end; white space before a call stays unread text."""
        source = self._source
        markers = *self._family.markers, *(begin for begin, _ in self._family.fences)
        while True:
            found = [at for marker in markers if (at := source.text.find(marker)) >= 0]
            if source.ended and not found:
                source.at = len(source.text)
                had_call = self._n_read and not source.text.strip()
                source.drop() if had_call else source.say()
                return
            end = min(found, default=len(source.text) - n_open(source.text, markers))
            source.at = len(source.text[:end].rstrip())
            if source.at:
                source.say()
                self._n_read = 0
            if found:
                return
            yield

    def _section(self) -> Steps[None]:
        """Read calls up to the end of their section, or of the fence around them."""
        for begin, end in self._family.fences:
            if (yield from self._source.optional(begin)):
                yield from self._read_or_give_up(self._fenced(end))
                return
        yield from self._read_or_give_up(self._calls())

    def _fenced(self, end: str) -> Steps[None]:
        source = self._source
        while True:
            yield from self._checked_call()
            if (yield from source.optional(end)) or source.is_over:
                source.drop()
                return

    def _bare(self) -> Steps[None]:
        """Read calls without any marker, also in doubled braces, as long as such follow."""
        source = self._source
        while True:
            yield from source.space()
            is_object = (yield from source.peek()) == "{"
            source.at = 0
            if not is_object:
                return
            yield from self._checked_call()

    def _checked_call(self) -> Steps[None]:
        """Read a call that no grammar has checked; raise NotACallError if it does not fit."""
        source = self._source
        begin, self._holds = len(source.events), bool(self._strict)
        try:
            yield from self._family.call.read(source, self._schemas)
            name, *pieces = [one.text for one in source.events[begin:]] or [""]
            if name in self._strict and faults_of("".join(pieces), self._schemas[name]):
                del source.events[begin:]
                raise NotACallError
        finally:
            self._holds = False
        self._n_read += 1
        source.drop()

    def _read_or_give_up(self, calls: Steps[None]) -> Steps[None]:
        source = self._source
        try:
            yield from calls
        except NotACallError:
            if source.at == 0:
                source.at = min(1, len(source.text))
            source.give_up()
            self._n_read = 0

    def _calls(self) -> Steps[None]:
        source, family = self._source, self._family
        if family.open:
            yield from source.need(family.open)
        while True:
            yield from source.space()
            for begin in sorted(family.call.begins, key=len, reverse=True):
                if not begin or (yield from source.optional(begin)):
                    break
            else:
                raise NotACallError
            yield from family.call.read(source, self._schemas)
            self._n_read += 1
            source.drop()
            if not (yield from self._has_next()):
                return

    def _has_next(self) -> Steps[bool]:
        """Read the text between two calls, or the end of the section; return which it was."""
        source, family = self._source, self._family
        if family.open and (yield from source.optional(family.close)):
            source.drop()
            return False
        if family.between.strip():
            if (yield from source.optional(family.between)) and not source.is_over:
                return True
            source.at = 0
            if family.starts:
                yield from source.space()
                is_next = (yield from source.peek()) == family.starts
                source.at = 0
                return is_next
            return False
        if not family.open:
            return False
        yield from source.space()
        return not source.is_over


def reader_of(family: Family, use: ToolUse) -> ToolReader:
    """Return a parser of the calls that a request allows."""
    return ToolReader(family, use.schemas, None if use.parallel else 1, strict=use.strict)


def read_answer(text: str, reader: ToolReader) -> tuple[str, list[tuple[str, str]]]:
    """Separate a complete answer into text and tool calls; a broken call is text.

    Returns:
        The text, and the names of the called tools with the arguments as JSON text.
    """
    answer, calls = "", list[tuple[str, str]]()
    for kind, piece, _ in [*reader.push(text), *reader.finish()]:
        if kind == "call":
            calls.append((piece, ""))
        elif kind == "arguments":
            calls[-1] = calls[-1][0], calls[-1][1] + piece
        else:
            answer += piece
            if kind == "broken":
                calls.pop()
    return answer, calls


def call_of(family: Family, name: str, arguments: str) -> Delta:
    """Return a call in OpenAI's format, with an id of its own."""
    id_ = f"call_{secrets.token_hex(12)}"
    if family.id_length:
        id_ = secrets.token_hex(family.id_length)[: family.id_length]
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def whole_answer(text: str, family: Family, use: ToolUse) -> tuple[str, list[Delta]]:
    """Separate a complete answer into its text and its tool calls."""
    answer, calls = read_answer(text, reader_of(family, use))
    return answer, [call_of(family, name, arguments) for name, arguments in calls]


class ToolDeltas:
    """Converts the text of an answer to deltas, while it comes.

    The first delta of a call has its id and its name, and the others have its arguments in pieces.

    Attributes:
        has_call: Whether a call is complete.
    """

    has_call: bool

    def __init__(self, family: Family, use: ToolUse) -> None:
        self._reader, self._family, self._index = reader_of(family, use), family, -1
        self.has_call = False

    def push(self, text: str) -> list[Delta]:
        """Return the deltas that a new text completes."""
        return self._deltas(self._reader.push(text))

    def finish(self) -> list[Delta]:
        """End the answer; return the last deltas."""
        return self._deltas(self._reader.finish())

    def _deltas(self, events: Sequence[Event]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            if event.kind == "call":
                self._index += 1
                call = {"index": self._index, **call_of(self._family, event.text, "")}
                deltas.append({"tool_calls": [call]})
            elif event.kind == "arguments":
                # pieces of one chunk are one delta
                last = deltas[-1].get("tool_calls") if deltas else None
                if last and "id" not in last[0]:
                    last[0]["function"]["arguments"] += event.text
                else:
                    call = {"index": self._index, "function": {"arguments": event.text}}
                    deltas.append({"tool_calls": [call]})
            elif event.kind == "end":
                self.has_call = True
            elif text := event.rest if event.kind == "broken" else event.text:
                if not (deltas and "content" in deltas[-1]):
                    deltas.append({"content": ""})
                deltas[-1]["content"] += text
        return deltas
