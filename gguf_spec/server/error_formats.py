"""Bodies of error responses, in the format of the API that their path belongs to."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from .errors import ApiError

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
