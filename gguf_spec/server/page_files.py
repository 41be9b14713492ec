"""Web page of the server: its files, with their security headers and caching."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).with_name("page")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
# Only the page's own files are loaded and only its own server is asked. Scripts cannot turn text
# into markup (Trusted Types), so a mistake in the page could not become an injection either.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",  # links in answers do not tell a name server of themselves
    "Cache-Control": "no-cache",  # ask each time; the answer is 304 while the file is the same
}
# Path in the server -> file. The page itself needs no API key: it contains no data.
PATHS = {
    "/" if path.name == "page.html" else f"/page/{path.name}": path
    for path in sorted(FOLDER.glob("*"))
    if path.suffix in _TYPES
}


def page_routes() -> list[Route]:
    """Return the routes of the page's files."""
    return [Route(path, _serve(file), methods=["GET"]) for path, file in PATHS.items()]


def _serve(file: Path) -> Callable[[Request], Response]:
    body = file.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = _HEADERS | {"ETag": tag}

    def respond(request: Request) -> Response:
        known = [one.strip() for one in request.headers.get("if-none-match", "").split(",")]
        if tag in known or f"W/{tag}" in known:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=_TYPES[file.suffix])

    return respond
