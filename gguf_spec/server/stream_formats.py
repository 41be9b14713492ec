"""Formats of streamed answers: server-sent events with or without names, and lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class StreamFormat(NamedTuple):
    """Format of a streamed answer.

    Attributes:
        media_type: Media type of the response.
        write: Returns the bytes of one object.
        ping: Bytes without a meaning, which keep a connection open.
        end: Bytes after a complete answer; they are not sent after an error.
    """

    media_type: str
    write: Callable[[dict[str, Any]], bytes]
    ping: bytes
    end: bytes = b""


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _data_event(data: dict[str, Any]) -> bytes:
    return f"data: {_json(data)}\n\n".encode()


def _named_event(data: dict[str, Any]) -> bytes:
    return f"event: {data['type']}\ndata: {_json(data)}\n\n".encode()


def _line(data: dict[str, Any]) -> bytes:
    return f"{_json(data)}\n".encode()


_EVENTS, _COMMENT = "text/event-stream", b": ping\n\n"
# Chat completions: unnamed events, and a mark after the last one.
DATA_EVENTS = StreamFormat(_EVENTS, _data_event, _COMMENT, b"data: [DONE]\n\n")
# Responses: the name of an event is its field `type`.
NAMED_EVENTS = StreamFormat(_EVENTS, _named_event, _COMMENT)
# Messages of Anthropic: the same, with an event for the purpose.
MESSAGE_EVENTS = NAMED_EVENTS._replace(ping=_named_event({"type": "ping"}))
# Ollama: one object a line. Some clients reject an empty line; a space before an object is allowed.
JSON_LINES = StreamFormat("application/x-ndjson", _line, b" ")
