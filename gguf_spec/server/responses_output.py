"""Response objects and events of the Responses API, from the events of a job."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from ..results import Completion
from .errors import ApiError
from .events import ChoiceEnded, ChunkEvent, Started, TokenInfo
from .replies import AnswerParts, finish_reason, usage
from .requests import CompletionRequest
from .responses_api import ResponseRequest, new_id


class ResponseReply:
    """Converts the events of one job to a response object and its events."""

    def __init__(
        self,
        asked: CompletionRequest,
        started: Started,
    ) -> None:
        """Create a reply.

        Args:
            asked: The request; it has the fields for the response.
            started: The first event of its job.
        """
        self._request: ResponseRequest = asked.more
        self._has_logprobs = asked.sampling.logprobs is not None
        self._parts = AnswerParts(started.family, asked.tools)
        self._events = Events()
        self._open: _TextItem | OpenCall | None = None
        self._logprobs: list[TokenInfo] = []  # of text that is not sent yet
        self._response: dict[str, Any] = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": started.model,
            "output": [],
            "usage": None,
            **self._request.echo,
        }

    # ---- complete responses

    def complete(
        self, chunks: Iterable[ChunkEvent], ended: Iterable[ChoiceEnded]
    ) -> dict[str, Any]:
        """Return the complete response.

        Raises:
            ApiError: The answer was cancelled.
        """
        for one in chunks:
            self.chunk(one)
        for last in ended:
            self.ended(last)
        self.finished()
        return self._response

    # ---- streamed responses

    def first(self) -> list[dict[str, Any]]:
        """Return the events before the first text."""
        return [self._event("response.created"), self._event("response.in_progress")]

    def chunk(self, event: ChunkEvent) -> list[dict[str, Any]]:
        """Return the events for a chunk."""
        if self._has_logprobs and not event.chunk.reasoning:
            self._logprobs += event.logprobs
        return [
            made
            for part in self._parts.push(event.chunk)
            for made in self._add(part.kind, part.text)
        ]

    def ended(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        """Return the last events of the items.

        Raises:
            ApiError: The answer was cancelled.
        """
        is_complete = finish_reason(ended.result.finish_reason, ended.why) == "stop"
        events = [e for part in self._parts.finish() for e in self._add(part.kind, part.text)]
        status = "completed" if is_complete else "incomplete"
        calls = self._parts.calls
        if not (calls or self._open or self._response["output"]):
            events += self._begin(OpenMessage)
        events += self._close("completed" if calls else status)
        for call in calls:
            events += self._call(call["id"], call["function"])
        self._complete(ended.result, status)
        return events

    def finished(self) -> list[dict[str, Any]]:
        """Return the last event; from now on the response is stored."""
        if self._request.store:
            self._request.store.add(self._response, self._request.items)
        return [self._event(f"response.{self._response['status']}")]

    def failed(self, refusal: ApiError) -> list[dict[str, Any]]:
        """Return the events for an error that ends the stream."""
        events = self._close("incomplete")
        message = refusal.error["message"]
        self._response |= {
            "status": "failed",
            "error": {"code": "server_error", "message": message},
        }
        return [*events, self._event("response.failed")]

    # ---- items

    def _add(self, kind: str, text: str) -> list[dict[str, Any]]:
        """Return the events for a piece of text."""
        item = OpenMessage if kind == "text" else OpenReasoning
        events = [] if isinstance(self._open, item) else self._begin(item)
        assert self._open
        named, self._logprobs = (self._logprobs, []) if kind == "text" else ([], self._logprobs)
        return [*events, *self._open.add(text, named)]

    def _begin(self, item: type[_TextItem]) -> list[dict[str, Any]]:
        closed = self._close("completed")
        self._open = item(self._events, len(self._response["output"]))
        return [*closed, *self._open.begin()]

    def _close(self, status: str) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        item, events = self._open.close(status)
        self._response["output"].append(item)
        self._open = None
        return events

    def _call(self, id_: str, function: dict[str, Any]) -> list[dict[str, Any]]:
        call = OpenCall(self._events, len(self._response["output"]), id_, function["name"])
        self._open = call
        return [*call.begin(), *call.add(function["arguments"], []), *self._close("completed")]

    def _complete(self, result: Completion, status: str) -> None:
        self._response |= {"status": status, "seed": result.seed, "usage": _usage(result)}
        if status == "completed":
            self._response["completed_at"] = int(time.time())
        else:
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}

    def _event(self, kind: str) -> dict[str, Any]:
        output = list(self._response["output"])
        return self._events.make(kind, response=self._response | {"output": output})


def _usage(result: Completion) -> dict[str, Any]:
    """Return the usage object: token counts, and statistics of the speculation."""
    counts = usage([result])
    n_reasoning = counts["completion_tokens_details"]["reasoning_tokens"]
    n_cached = result.stats.n_cached
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": n_cached, "cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": n_reasoning},
        "total_tokens": counts["total_tokens"],
        "speculation": counts["speculation"],
    }


class Events:
    """Maker of events, which are numbered from 0."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def make(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Return the next event."""
        return {"type": kind, "sequence_number": next(self._numbers), **fields}


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

    def close(self, status: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the complete item, and the events of its end."""
        part = self._part(self._text, self._named)
        item, more = self._item(status, [part]), self._logprobs(self._named)
        index = self._place["output_index"]
        return item, [
            self._event(f"{self.part_type}.done", text=self._text, **more),
            self._event("content_part.done", part=part),
            self._events.make("response.output_item.done", output_index=index, item=item),
        ]

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
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

    def close(self, status: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the complete call, and the events of its end."""
        item, name = self._item(status, self._arguments), self._call["name"]
        return item, [
            self._event(
                "function_call_arguments.done",
                item_id=self._id,
                name=name,
                arguments=self._arguments,
            ),
            self._event("output_item.done", item=item),
        ]

    def _item(self, status: str, arguments: str) -> dict[str, Any]:
        return self._call | {"id": self._id, "status": status, "arguments": arguments}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._events.make(f"response.{kind}", output_index=self._index, **fields)
