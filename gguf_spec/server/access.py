"""ASGI middleware for access checks and request counts. Data sent by clients is never logged."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, log
from .metrics import Metrics
from .page_files import PATHS
from .settings import Settings

# Paths that require no API key; their responses contain no data of any client.
OPEN = frozenset({*PATHS, "/health"})
# Key of the job of a request in its ASGI scope.
JOB = "gguf_spec.job"
# One INFO line for each request, without any data of the client.
REQUESTS = logging.getLogger("gguf_spec.server.requests")
_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"})
# Path that the token in the file of a listed server opens, too.
STATUS = "/api/ps"
# Names and addresses of this machine that a Host header may contain.
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def refused(refusal: ApiError) -> JSONResponse:
    """Return the error response for a refused request."""
    return JSONResponse({"error": refusal.error}, refusal.status, refusal.headers)


class AccessMiddleware:
    """ASGI middleware: checks host, origin and API key, counts requests, hides error details."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        totals: Metrics,
        paths: frozenset[str],
        is_ending: Callable[[], bool],
        status_token: str,
    ) -> None:
        self._app, self._settings, self._totals, self._paths, self._is_ending = (
            app,
            settings,
            totals,
            paths,
            is_ending,
        )
        self._status_token = status_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] != "http":
            return
        status = 499  # recorded if no response was sent

        async def counting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            refusal = self._check(scope["path"], Headers(scope=scope))
            await (refused(refusal) if refusal else self._app)(scope, receive, counting)
        except asyncio.CancelledError:
            if not self._is_ending():
                raise
        except Exception as error:  # uvicorn would log the message, which may quote a prompt
            log(error)
            if status == 499:
                await refused(ApiError("The server failed.", None, "internal_error", 500))(
                    scope, receive, counting
                )
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._totals.count(path, status)
            _log_request(scope, path, status)

    def _check(self, path: str, headers: Headers) -> ApiError | None:
        host, origin, key = headers.get("host", ""), headers.get("origin"), self._settings.api_key
        # DNS rebinding: a web page whose host name resolves to this machine must not get access.
        if self._settings.is_local and _name(host) not in _LOCAL | {self._settings.host}:
            return ApiError("This server responds at localhost only.", None, "unknown_host", 403)
        # CORS stops a page only from reading the response; it could still send any request.
        allowed = self._settings.cors_origins
        if (
            origin is not None
            and origin not in allowed
            and "*" not in allowed
            and (urlsplit(origin).netloc != host or not host)
        ):
            return ApiError("This origin may not use the server.", None, "origin_not_allowed", 403)
        if key is not None and path not in OPEN:
            kind, _, given = headers.get("authorization", "").partition(" ")
            keys = [key, self._status_token] if path == STATUS else [key]
            if kind.lower() != "bearer" or not any(
                hmac.compare_digest(given.strip().encode(), one.encode()) for one in keys
            ):
                message = (
                    "Incorrect API key."
                    if given
                    else "This server requires an API key: Authorization: Bearer KEY."
                )
                return ApiError(
                    message, None, "invalid_api_key", 401, {"WWW-Authenticate": "Bearer"}
                )
        return None


def _log_request(scope: Scope, path: str, status: int) -> None:
    """Log method, path, status, and the tokens of an answer. Checks of the health are left out."""
    if not REQUESTS.isEnabledFor(logging.INFO) or (
        path in ("/health", "/metrics") and status < 400
    ):
        return
    method = scope["method"] if scope["method"] in _METHODS else "?"
    choices = getattr(scope.get(JOB), "stats", [])
    tokens = "".join(
        f", {stats.n_prompt:,} + {stats.n_generated:,} tokens, {stats.tokens_per_s:,.1f} tok/s"
        for stats in choices[:8]
    )
    REQUESTS.info("%s %s %d%s", method, path, status, tokens)


def _name(host: str) -> str | None:
    """Return the host name in a Host header, without the port; None if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
