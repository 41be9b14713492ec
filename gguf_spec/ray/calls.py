"""An HTTP request as data: what the ingress sends to a replica, and the ASGI call made of it."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from ..server.errors import ApiError
from ..server.requests import SEEDED, parse

# Headers about a body that the ingress has read, and may have changed.
_OF_THE_BODY = (b"content-length", b"transfer-encoding", b"expect")


def path_of(request: Request) -> str:
    """Return the path of a request below the prefix of the application."""
    scope = request.scope
    return scope["path"].removeprefix(scope.get("root_path", "").rstrip("/")) or "/"


@dataclass(frozen=True)
class Head:
    """Status and headers of a response.

    Attributes:
        status: HTTP status code.
        headers: Names and values.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]

    def get(self, name: bytes) -> bytes:
        """Return the value of a header; empty if no header has it."""
        return next((value for one, value in self.headers if one.lower() == name), b"")


@dataclass(frozen=True)
class Call:
    """A request with its whole body.

    Attributes:
        method: HTTP method.
        path: Path below the prefix of the application.
        query: Query string.
        scheme: `http` or `https`.
        headers: Names and values.
        body: The body.
    """

    method: str
    path: str
    query: bytes
    scheme: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    @classmethod
    def of(cls, request: Request, body: bytes) -> Call:
        """Return a request with its body as data."""
        scope = request.scope
        headers = [one for one in scope["headers"] if one[0].lower() not in _OF_THE_BODY]
        return cls(
            scope["method"],
            path_of(request),
            scope["query_string"],
            scope["scheme"],
            tuple((bytes(name), bytes(value)) for name, value in headers),
            body,
        )

    def with_seed(self) -> Call:
        """Return the request with a seed if it generates text, so that a repetition is the same.

        A body that is not valid stays as it is; the replica refuses it.
        """
        if self.method != "POST" or self.path not in SEEDED:
            return self
        with suppress(ApiError):
            fields = parse(self.body)
            if fields.get("seed") is None:
                fields["seed"] = secrets.randbits(32)
                return replace(self, body=json.dumps(fields, ensure_ascii=False).encode())
        return self

    async def run(self, app: ASGIApp) -> AsyncIterator[Head | bytes]:
        """Call an ASGI application; yield the head of its response, then the parts of the body.

        The application is told of a disconnect when the iterator is closed.
        """
        messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        requests, is_closed = [self._message()], asyncio.Event()

        async def receive() -> Any:
            if requests:
                return requests.pop()
            await is_closed.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            messages.put_nowait(message)

        task = asyncio.ensure_future(app(self._scope(), receive, send))
        task.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while message := await messages.get():
                if message["type"] == "http.response.start":
                    yield Head(message["status"], tuple(map(tuple, message["headers"])))
                elif message.get("body"):
                    yield message["body"]
            await task
        finally:
            is_closed.set()

    def _message(self) -> dict[str, Any]:
        return {"type": "http.request", "body": self.body, "more_body": False}

    def _scope(self) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": self.scheme,
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query,
            "root_path": "",
            "headers": list(self.headers),
            "client": None,
            "server": None,
        }
