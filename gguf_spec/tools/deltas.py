"""Tool calls of an answer in OpenAI's format, whole or as deltas of a stream."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from .events import ArgumentPiece, CallEnded, CallStarted, Event, TextPiece
from .families import Family
from .reader import ToolReader, read_answer
from .use import ToolUse

Delta = dict[str, Any]


def call_of(family: Family, name: str, arguments: str) -> Delta:
    """Return a call in OpenAI's format, with an id of its own."""
    id_ = f"call_{secrets.token_hex(12)}"
    if family.id_length:
        id_ = secrets.token_hex(family.id_length)[: family.id_length]
    return {
        "id": id_,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def whole_answer(text: str, family: Family, use: ToolUse) -> tuple[str, list[Delta]]:
    """Separate a complete answer into its text and its tool calls."""
    said, calls = read_answer(text, family, use.schemas, None if use.parallel else 1)
    return said, [call_of(family, name, arguments) for name, arguments in calls]


class ToolDeltas:
    """Converts the text of an answer to deltas, while it comes.

    The first delta of a call has its id and its name, and the others have its arguments in pieces.

    Attributes:
        has_call: Whether a call is complete.
    """

    def __init__(self, family: Family, use: ToolUse) -> None:
        self._reader = ToolReader(family, use.schemas, None if use.parallel else 1)
        self._family, self._index = family, -1
        self.has_call = False

    def push(self, text: str) -> list[Delta]:
        """Return the deltas that a new text completes."""
        return self._deltas(self._reader.push(text))

    def finish(self) -> list[Delta]:
        """Return the last deltas."""
        return self._deltas(self._reader.finish())

    def _deltas(self, events: Sequence[Event]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            if isinstance(event, CallStarted):
                self._index += 1
                call = {"index": self._index, **call_of(self._family, event.name, "")}
                deltas.append({"tool_calls": [call]})
            elif isinstance(event, ArgumentPiece):
                _add_arguments(deltas, self._index, event.text)
            elif isinstance(event, CallEnded):
                self.has_call = True
            elif text := event.text if isinstance(event, TextPiece) else event.rest:
                _add_content(deltas, text)
        return deltas


def _add_arguments(deltas: list[Delta], index: int, text: str) -> None:
    """Add a piece of arguments; pieces of one chunk are one delta."""
    last = deltas[-1].get("tool_calls") if deltas else None
    if last and last[0]["index"] == index and "id" not in last[0]:
        last[0]["function"]["arguments"] += text
    else:
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})


def _add_content(deltas: list[Delta], text: str) -> None:
    if deltas and "content" in deltas[-1]:
        deltas[-1]["content"] += text
    else:
        deltas.append({"content": text})
