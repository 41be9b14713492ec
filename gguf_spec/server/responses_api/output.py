"""Response objects and events of the Responses API, from the events of a job."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import Any

from ...results import Completion
from ..answer_parts import AnswerParts
from ..errors import ApiError
from ..events import ChoiceEnded, ChunkEvent, Started, TokenInfo
from ..requests import CompletionRequest
from ..responses import finish_reason, usage
from .items import new_id
from .open_items import Events, OpenCall, OpenItem, OpenMessage, OpenReasoning
from .request import ResponseRequest
from .store import ResponseStore


class ResponseReply:
    """Converts the events of one job to a response object and its events."""

    def __init__(
        self,
        asked: CompletionRequest,
        request: ResponseRequest,
        store: ResponseStore,
        started: Started,
    ) -> None:
        """Create a reply.

        Args:
            asked: The request.
            request: Its fields for the response.
            store: Where a complete response is stored.
            started: The first event of its job.
        """
        self._request, self._store = request, store
        self._has_logprobs = asked.sampling.logprobs is not None
        self._parts = AnswerParts(started.family, asked.tools)
        self._events = Events(itertools.count())
        self._open: OpenItem | None = None
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
            **request.echo,
        }

    # ---- complete responses

    def whole(self, said: Iterable[ChunkEvent], ended: Iterable[ChoiceEnded]) -> dict[str, Any]:
        """Return the complete response.

        Raises:
            ApiError: The answer was cancelled.
        """
        for one in said:
            self.said(one)
        for last in ended:
            self.ended(last)
        self.finished()
        return self._response

    # ---- streamed responses

    def first(self) -> list[dict[str, Any]]:
        """Return the events before the first text."""
        return [self._event("response.created"), self._event("response.in_progress")]

    def said(self, said: ChunkEvent) -> list[dict[str, Any]]:
        """Return the events for a chunk."""
        if self._has_logprobs and not said.chunk.reasoning:
            self._logprobs += said.logprobs
        return [
            event
            for part in self._parts.push(said.chunk)
            for event in self._add(part.kind, part.text)
        ]

    def ended(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        """Return the last events of the items.

        Raises:
            ApiError: The answer was cancelled.
        """
        is_whole = finish_reason(ended.result.finish_reason, ended.why) == "stop"
        events = [e for part in self._parts.finish() for e in self._add(part.kind, part.text)]
        status = "completed" if is_whole else "incomplete"
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
        if self._request.stores:
            self._store.add(self._response, self._request.items)
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

    def _begin(self, item: type[OpenItem]) -> list[dict[str, Any]]:
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
