"""ASGI middleware for access checks and request counts. Data sent by clients is never logged."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, failure, log
from .metrics import Metrics
from .page_files import PATHS
from .settings import Settings
from .wire import refused

HEALTH_PATHS = ("/health", "/v1/health")
# Paths that require no API key; their responses contain no data of any client.
OPEN = frozenset({*PATHS, *HEALTH_PATHS})
# Key of the job of a request in its ASGI scope.
JOB = "gguf_spec.job"
# One INFO line for each request, without any data of the client.
REQUESTS = logging.getLogger("gguf_spec.server.requests")
_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"})
# Path that the token in the file of a listed server opens, too.
STATUS = "/api/ps"
# Names and addresses of this machine that a Host header may contain.
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class AccessMiddleware:
    """ASGI middleware: checks host, origin and API key, counts requests, hides error details."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        totals: Metrics,
        routes: Sequence[Route],
        is_ending: Callable[[], bool],
        status_token: str,
    ) -> None:
        self._app, self._settings, self._totals = app, settings, totals
        self._routes, self._is_ending, self._status_token = routes, is_ending, status_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] != "http":
            return
        path, status = scope["path"], 499  # recorded if no response was sent

        async def counting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            refusal = self._check(path, Headers(scope=scope))
            await (refused(refusal, path) if refusal else self._app)(scope, receive, counting)
        except asyncio.CancelledError:
            if not self._is_ending():
                raise
        except Exception as error:  # uvicorn would log the message, which may quote a prompt
            log(error)
            if status == 499:
                await refused(failure(error), path)(scope, receive, counting)
        finally:
            found = (one.path for one in self._routes if one.path_regex.match(path))
            label = next(found, "other")
            self._totals.count(label, status)
            _log_request(scope, label, status)

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
            and (not host or origin.split("://")[1:] != [host])
        ):
            return ApiError("This origin may not use the server.", None, "origin_not_allowed", 403)
        if key is not None and path not in OPEN:
            keys = [key, self._status_token] if path == STATUS else [key]
            given = _keys_of(headers)
            if not any(_is_one_of(one, keys) for one in given):
                message = (
                    "Incorrect API key."
                    if any(given)
                    else "This server requires an API key: Authorization: Bearer KEY, or x-api-key."
                )
                return ApiError(
                    message, None, "invalid_api_key", 401, {"WWW-Authenticate": "Bearer"}
                )
        return None


def _keys_of(headers: Headers) -> tuple[str, str]:
    """Return the key of each header that may have one, as OpenAI and as Anthropic name it."""
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    return bearer.strip() if kind.lower() == "bearer" else "", headers.get("x-api-key", "").strip()


def _is_one_of(given: str, keys: Iterable[str]) -> bool:
    return any(hmac.compare_digest(given.encode(), one.encode()) for one in keys)


def _log_request(scope: Scope, path: str, status: int) -> None:
    """Log method, path, status, and the tokens of an answer. Checks of the health are left out."""
    if not REQUESTS.isEnabledFor(logging.INFO) or (
        path in (*HEALTH_PATHS, "/metrics") and status < 400
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
