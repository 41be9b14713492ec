"""Output items of the Responses API that grow, and the events of their growth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from ..events import TokenInfo
from .items import Item, new_id


@dataclass(frozen=True)
class Events:
    """Maker of events, which are numbered.

    Attributes:
        numbers: The numbers of the next events.
    """

    numbers: Iterator[int]

    def make(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Return the next event."""
        return {"type": kind, "sequence_number": next(self.numbers), **fields}


class OpenItem(Protocol):
    """An output item that grows."""

    def __init__(self, events: Events, index: int) -> None: ...

    def begin(self) -> list[dict[str, Any]]:
        """Return the events of its beginning."""

    def add(self, text: str, named: Sequence[TokenInfo], /) -> list[dict[str, Any]]:
        """Return the events of a new piece of text, with its tokens if they were requested."""

    def close(self, status: str) -> tuple[Item, list[dict[str, Any]]]:
        """Return the complete item, and the events of its end."""


class _TextItem:
    """An item with one part of text; subclasses give the form of item and part."""

    prefix = part_type = ""
    has_logprobs = False
    item: ClassVar[dict[str, Any]]
    part: ClassVar[dict[str, Any]]

    def __init__(self, events: Events, index: int) -> None:
        self._events, self._text, self._named = events, "", list[dict[str, Any]]()
        self._id = new_id(self.prefix)
        self._place = {"item_id": self._id, "output_index": index, "content_index": 0}

    def begin(self) -> list[dict[str, Any]]:
        """Return the events of its beginning."""
        index = self._place["output_index"]
        item = self._item("in_progress", [])
        return [
            self._events.make("response.output_item.added", output_index=index, item=item),
            self._event("content_part.added", part=self._part("", [])),
        ]

    def add(self, text: str, named: Sequence[TokenInfo]) -> list[dict[str, Any]]:
        """Return the event of a new piece of text."""
        shown = [one.to_dict() for one in named]
        self._text += text
        self._named += shown
        return [self._event(f"{self.part_type}.delta", delta=text, **self._logprobs(shown))]

    def close(self, status: str) -> tuple[Item, list[dict[str, Any]]]:
        """Return the complete item, and the events of its end."""
        part = self._part(self._text, self._named)
        item, more = self._item(status, [part]), self._logprobs(self._named)
        index = self._place["output_index"]
        return item, [
            self._event(f"{self.part_type}.done", text=self._text, **more),
            self._event("content_part.done", part=part),
            self._events.make("response.output_item.done", output_index=index, item=item),
        ]

    def _item(self, status: str, content: list[dict[str, Any]]) -> Item:
        return self.item | {"id": self._id, "status": status, "content": content}

    def _part(self, text: str, named: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": self.part_type, "text": text, **self.part, **self._logprobs(named)}

    def _logprobs(self, named: list[dict[str, Any]]) -> dict[str, Any]:
        return {"logprobs": named} if self.has_logprobs else {}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._events.make(f"response.{kind}", **self._place, **fields)


class OpenMessage(_TextItem):
    """The text of an answer."""

    prefix, part_type, has_logprobs = "msg", "output_text", True
    item: ClassVar = {"type": "message", "role": "assistant"}
    part: ClassVar = {"annotations": []}


class OpenReasoning(_TextItem):
    """The reasoning before an answer. It is not summarised."""

    prefix, part_type = "rs", "reasoning_text"
    item: ClassVar = {"type": "reasoning", "summary": []}
    part: ClassVar = {}


class OpenCall:
    """A call of a function."""

    def __init__(self, events: Events, index: int, call_id: str = "", name: str = "") -> None:
        self._events, self._index, self._arguments = events, index, ""
        self._id = new_id("fc")
        self._call = {"type": "function_call", "call_id": call_id, "name": name}

    def begin(self) -> list[dict[str, Any]]:
        """Return the event of its beginning."""
        item = self._item("in_progress", "")
        return [self._event("output_item.added", item=item)]

    def add(self, text: str, _: Sequence[TokenInfo]) -> list[dict[str, Any]]:
        """Return the event of a new piece of the arguments."""
        self._arguments += text
        return [self._event("function_call_arguments.delta", item_id=self._id, delta=text)]

    def close(self, status: str) -> tuple[Item, list[dict[str, Any]]]:
        """Return the complete call, and the events of its end."""
        item, said = self._item(status, self._arguments), self._arguments
        name = self._call["name"]
        return item, [
            self._event(
                "function_call_arguments.done", item_id=self._id, name=name, arguments=said
            ),
            self._event("output_item.done", item=item),
        ]

    def _item(self, status: str, arguments: str) -> Item:
        return self._call | {"id": self._id, "status": status, "arguments": arguments}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._events.make(f"response.{kind}", output_index=self._index, **fields)
