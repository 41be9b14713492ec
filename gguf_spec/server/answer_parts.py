"""Parts of an answer in their order: reasoning, text and tool calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..results import Chunk, Part
from ..tools.families import Family
from ..tools.reader import ToolReader, call_of
from ..tools.source import ArgumentPiece, CallBroken, CallEnded, CallStarted, Event
from ..tools.use import ToolUse


class AnswerParts:
    """Reads the chunks of one choice as parts. Text that may begin a tool call is held back.

    Attributes:
        calls: The complete tool calls in OpenAI's format.
    """

    def __init__(self, family: Family, use: ToolUse) -> None:
        """Start an answer.

        Args:
            family: Syntax of the tool calls.
            use: The tools that may be called.
        """
        most = None if use.parallel else 1
        self._tools = ToolReader(family, use.schemas, most) if use.tools else None
        self._family = family
        self._name, self._arguments = "", ""
        self.calls: list[dict[str, Any]] = []

    def push(self, chunk: Chunk) -> Iterator[Part]:
        """Yield the parts of a chunk that can be sent now."""
        for part in chunk.parts:
            if part.kind == "text" and self._tools:
                yield from self._read(self._tools.push(part.text))
            elif part.text:
                yield part

    def finish(self) -> Iterator[Part]:
        """Yield the text that was held back and is not a call."""
        if self._tools:
            yield from self._read(self._tools.finish())

    def _read(self, events: Sequence[Event]) -> Iterator[Part]:
        """Yield the text of events, that of broken calls included; collect the calls."""
        for event in events:
            if isinstance(event, CallStarted):
                self._name, self._arguments = event.name, ""
            elif isinstance(event, ArgumentPiece):
                self._arguments += event.text
            elif isinstance(event, CallEnded):
                self.calls.append(call_of(self._family, self._name, self._arguments))
            elif text := event.source if isinstance(event, CallBroken) else event.text:
                yield Part("text", text)
