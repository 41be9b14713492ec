"""Routes for the page alone: the tools of the user's tool servers, and calls of them.

A call runs a program with the rights of this user, so these routes take more than an API does: the
origin must be the server's own, and where there is no API key, a token of this run of the server,
which the printed address of the page has. The page asks its user before each call.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..protocols.errors import ApiError
from ..protocols.schema import COUNT, TEXT, Shape, checked, obj
from .settings import Settings
from .streams import JsonAnswer
from .uploads import BodyReader

if TYPE_CHECKING:
    from ..tool_servers.toolbox import Toolbox

LIST, CALL = "/page/tools", "/page/tools/call"
_MOST: Shape = checked(COUNT, lambda value: type(value) is int, "must be a whole number.")
_BODY = obj({"name": TEXT, "arguments": TEXT, "most": _MOST})


class ToolRoutes:
    """The routes; without tool servers the list is empty, and there are no calls."""

    def __init__(self, settings: Settings, bodies: BodyReader) -> None:
        self._settings, self._bodies = settings, bodies
        self._token = secrets.token_urlsafe(24)
        self._box: Toolbox | None = None
        if settings.tool_servers:
            from ..tool_servers.toolbox import Toolbox

            self._box = Toolbox(settings.tool_servers)
        self._threads = ThreadPoolExecutor(settings.limits.calls, "gguf-spec-tools")
        self.n_running: int = 0  # calls of tools
        self.routes: list[Route] = [
            Route(LIST, self._list, methods=["POST"]),
            Route(CALL, self._call, methods=["POST"]),
        ]

    def page_url(self, url: str) -> str:
        """Return the address of the page; the token is behind #, which is not sent."""
        needs_token = self._box and self._settings.api_key is None
        return f"{url}/#tools={self._token}" if needs_token else f"{url}/"

    def cancel(self) -> None:
        """End the calls that are running. May be called from any thread."""
        if self._box:
            self._box.cancel()

    def close(self) -> None:
        """End the tool servers; running calls end with them."""
        if self._box:
            self._box.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def refusal(self, path: str, headers: Headers) -> ApiError | None:
        """Return why a request may not be answered; None if it may, or for another path."""
        if path not in (LIST, CALL):
            return None
        origin, host = headers.get("origin", ""), headers.get("host", "")
        if not host or origin.split("://")[1:] != [host]:
            fact = "Only the page of this server may ask for tools."
            return ApiError(fact, None, "origin_not_allowed", 403)
        if path == CALL and not self._may_call(headers):
            fact = "Tools need the address of the page that gguf-spec serve printed at its start."
            return ApiError(fact, None, "no_tools", 403)
        return None

    def _may_call(self, headers: Headers) -> bool:
        if self._settings.api_key is not None:  # it was checked
            return True
        given = headers.get("authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode(), self._token.encode())

    async def _list(self, request: Request) -> Response:
        """Return the tools; an empty list with a note where this page may not call them."""
        found: dict[str, Any] = {"object": "list", "data": [], "notes": [], "offered": False}
        if not self._box:
            return JSONResponse(found)
        found["offered"] = True
        if not self._may_call(request.headers):
            fact = "To use tools, open the page by the address that gguf-spec serve printed."
            return JSONResponse(found | {"notes": [fact]})
        tools, notes = await self._in_thread(self._box.find)
        data = [{**one.function["function"], "server": one.server} for one in tools]
        return JsonAnswer(found | {"data": data, "notes": notes})

    async def _call(self, request: Request) -> Response:
        if not self._box:
            fact = "This server has no tools: gguf-spec serve --mcp offers those of the config."
            raise ApiError(fact, None, "no_tools", 404)
        given = await self._bodies.read(request, lambda data: _BODY.read(data, ""))
        asked = given["name"], given["arguments"], given["most"]
        text, is_error = await self._in_thread(self._box.call, *asked)
        return JsonAnswer({"object": "tool.result", "output": text, "is_error": is_error})

    async def _in_thread(self, function: Callable[..., Any], *given: Any) -> Any:
        most = self._settings.limits.calls
        if self.n_running >= most:
            fact = f"{most} calls of tools are running. Try again later."
            raise ApiError(fact, None, "too_many_calls", 429, {"Retry-After": "5"})
        self.n_running += 1
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, function, *given)
        finally:
            self.n_running -= 1
