"""Messages and events of the Messages API, from the events of a job."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from ...results import Completion
from ...tools.source import parse
from ..errors import ApiError
from ..events import ChoiceEnded, ChunkEvent, Started
from ..replies import AnswerParts, finish_reason, usage
from ..requests import CompletionRequest
from ..wire import anthropic_error

# Kind of a part -> type of its block and of its deltas, and their field with the text.
_BLOCKS = {
    "text": ("text", "text_delta", "text"),
    "reasoning": ("thinking", "thinking_delta", "thinking"),
}


class MessageReply:
    """Converts the events of one job to a message and its events."""

    def __init__(self, asked: CompletionRequest, started: Started) -> None:
        """Create a reply.

        Args:
            asked: The request.
            started: The first event of its job.
        """
        self._parts = AnswerParts(started.family, asked.tools)
        self._kind: str | None = None  # of the open block
        self._text = ""
        self._message: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": started.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _counts(started.n_prompt, 0, 0),
        }

    # ---- complete messages

    def whole(self, said: Iterable[ChunkEvent], ended: Iterable[ChoiceEnded]) -> dict[str, Any]:
        """Return the complete message.

        Raises:
            ApiError: The answer was cancelled.
        """
        for one in said:
            self.said(one)
        for last in ended:
            self.ended(last)
        return self._message

    # ---- streamed messages

    def first(self) -> list[dict[str, Any]]:
        """Return the events before the first text."""
        return [{"type": "message_start", "message": self._message | {"content": []}}, _PING]

    def said(self, said: ChunkEvent) -> list[dict[str, Any]]:
        """Return the events for a chunk."""
        return [
            event
            for part in self._parts.push(said.chunk)
            for event in self._add(part.kind, part.text)
        ]

    def ended(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        """Return the events of the last blocks, and why the answer ended.

        Raises:
            ApiError: The answer was cancelled.
        """
        result = ended.result
        finish = finish_reason(result.finish_reason, ended.why)
        events = [e for part in self._parts.finish() for e in self._add(part.kind, part.text)]
        events += self._close()
        for call in self._parts.calls:
            events += self._call(call["id"], call["function"])
        reason = "max_tokens" if finish == "length" else "end_turn"
        if self._parts.calls:
            reason = "tool_use"
        elif result.stop_string is not None:
            reason = "stop_sequence"
        stop = {
            "stop_reason": reason,
            "stop_sequence": result.stop_string if reason == "stop_sequence" else None,
        }
        used = _usage(result)
        self._message |= stop | {"usage": used, "seed": result.seed}
        return [*events, {"type": "message_delta", "delta": stop, "usage": used}]

    def finished(self) -> list[dict[str, Any]]:
        """Return the last event."""
        return [{"type": "message_stop"}]

    def failed(self, refusal: ApiError) -> list[dict[str, Any]]:
        """Return the event for an error that ends the stream."""
        return [anthropic_error(refusal)]

    # ---- blocks

    def _add(self, kind: str, text: str) -> list[dict[str, Any]]:
        """Return the events for a piece of text."""
        block_type, delta_type, name = _BLOCKS[kind]
        events = []
        if self._kind != kind:
            events = self._close()
            self._kind, self._text = kind, ""
            events.append(self._start({"type": block_type, name: ""} | _more(kind)))
        self._text += text
        return [*events, self._delta({"type": delta_type, name: text})]

    def _close(self) -> list[dict[str, Any]]:
        """Return the events of the end of the open block, and keep it."""
        if self._kind is None:
            return []
        kind, self._kind = self._kind, None
        block_type, _, name = _BLOCKS[kind]
        more = _more(kind)
        signature = [self._delta({"type": "signature_delta"} | more)] if more else []
        return [*signature, self._stop({"type": block_type, name: self._text} | more)]

    def _call(self, id_: str, function: dict[str, Any]) -> list[dict[str, Any]]:
        id_ = f"toolu_{id_.removeprefix('call_')}"
        block = {"type": "tool_use", "id": id_, "name": function["name"], "input": {}}
        arguments = function["arguments"]
        return [
            self._start(block),
            self._delta({"type": "input_json_delta", "partial_json": arguments}),
            self._stop(block | {"input": parse(arguments)}),
        ]

    def _start(self, block: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _stop(self, block: dict[str, Any]) -> dict[str, Any]:
        index = self._index
        self._message["content"].append(block)
        return {"type": "content_block_stop", "index": index}

    @property
    def _index(self) -> int:
        """Index of the open block."""
        return len(self._message["content"])


_PING = {"type": "ping"}


def _more(kind: str) -> dict[str, Any]:
    """Return the further fields of a block: reasoning is not signed."""
    return {"signature": ""} if kind == "reasoning" else {}


def _counts(n_prompt: int, n_cached: int, n_generated: int) -> dict[str, Any]:
    """Return the token counts of a usage object; `input_tokens` leaves out cached tokens."""
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": n_cached}
    return {"input_tokens": n_prompt - n_cached, "output_tokens": n_generated} | cached


def _usage(result: Completion) -> dict[str, Any]:
    """Return the usage object: token counts, and statistics of the speculation."""
    stats = result.stats
    counts = _counts(stats.n_prompt, stats.n_cached, stats.n_generated)
    return counts | {"speculation": usage([result])["speculation"]}
