"""Request bodies, error responses and streams as bytes, in the format of each API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from .errors import ApiError, client_closed, shutting_down
from .settings import Settings

# How much of an oversized body is read, as a multiple of the size limit. A client that is still
# sending does not read the response; after this amount it can receive the error.
_MOST_READ = 8
# Bytes of a body above which it is converted in a thread.
_LARGE = 1 << 16


class BodyReader:
    """Reads the bodies of the requests of a server.

    A large one is converted in a thread, so that other requests are answered. They take turns:
    several threads at once keep the interpreter from the event loop, and need memory for each.
    """

    def __init__(self, settings: Settings, is_ending: Callable[[], bool]) -> None:
        """Create a reader.

        Args:
            settings: Settings of the server.
            is_ending: Returns whether the server shuts down.
        """
        self._settings, self._is_ending = settings, is_ending
        self._converting = asyncio.Lock()

    async def receive(self, request: Request) -> bytes:
        """Return the body of a request.

        Raises:
            ApiError: The body is too large or arrives too slowly, the client disconnected, or the
                server is shutting down.
        """
        try:
            body = await asyncio.wait_for(self._read(request), self._settings.timeout)
        except asyncio.TimeoutError:
            fact = "The body did not arrive in time."
            raise ApiError(fact, None, "timeout", 408, {"Connection": "close"}) from None
        except ClientDisconnect:
            raise client_closed() from None
        if self._is_ending():
            raise shutting_down()
        return body

    async def _read(self, request: Request) -> bytes:
        n, most, parts = 0, self._settings.body_bytes, []
        async for part in request.stream():
            n += len(part)
            if n <= most:
                parts.append(part)
            elif n > _MOST_READ * most:
                break
        if n > most:
            fact = f"The body has more than {most:,} bytes."
            raise ApiError(fact, None, "request_too_large", 413)
        return b"".join(parts)

    async def convert(self, body: bytes, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function that reads a body; return its result.

        Args:
            body: The body.
            function: The function; it must not use the event loop.
            given: Its arguments.
        """
        if len(body) <= _LARGE:
            return function(*given)
        async with self._converting:
            return await asyncio.to_thread(function, *given)


# Error code after which clients of Anthropic send whole conversations.
NO_THREADS = "thread_unsupported_request"
# HTTP status -> error type of Anthropic.
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def openai_error(refusal: ApiError) -> dict[str, Any]:
    """Return an error in the format of OpenAI."""
    return {"error": refusal.error}


def anthropic_error(refusal: ApiError) -> dict[str, Any]:
    """Return an error in the format of Anthropic."""
    other = "api_error" if refusal.status >= 500 else "invalid_request_error"
    kind, code = _ANTHROPIC_TYPES.get(refusal.status, other), refusal.error["code"]
    error = {"type": kind, "message": refusal.error["message"]}
    if code == NO_THREADS:
        error["details"] = {"error_code": code, "unsupported": [refusal.error["param"]]}
    return {"type": "error", "error": error}


def ollama_error(refusal: ApiError) -> dict[str, Any]:
    """Return an error in the format of Ollama."""
    return {"error": refusal.error["message"]}


# First part of a path -> format of its errors. All other paths have that of OpenAI.
_FORMATS = {"/v1/messages": anthropic_error, "/api": ollama_error}


def refused(refusal: ApiError, path: str) -> JSONResponse:
    """Return the error response for a refused request to a path."""
    of = (form for start, form in _FORMATS.items() if path == start or path.startswith(f"{start}/"))
    body = next(of, openai_error)(refusal)
    return JSONResponse(body, refusal.status, refusal.headers)


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


def _line(data: dict[str, Any]) -> bytes:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"{text}\n".encode()


def _data_event(data: dict[str, Any]) -> bytes:
    return b"data: " + _line(data) + b"\n"


def _named_event(data: dict[str, Any]) -> bytes:
    return f"event: {data['type']}\n".encode() + _data_event(data)


_EVENTS, _COMMENT = "text/event-stream", b": ping\n\n"
# Chat completions: unnamed events, and a mark after the last one.
DATA_EVENTS = StreamFormat(_EVENTS, _data_event, _COMMENT, b"data: [DONE]\n\n")
# Responses: the name of an event is its field `type`.
NAMED_EVENTS = StreamFormat(_EVENTS, _named_event, _COMMENT)
# Messages of Anthropic: the same, with an event for the purpose.
MESSAGE_EVENTS = NAMED_EVENTS._replace(ping=_named_event({"type": "ping"}))
# Ollama: one object a line. Some clients reject an empty line; a space before an object is allowed.
JSON_LINES = StreamFormat("application/x-ndjson", _line, b" ")
