"""What the server refuses, in OpenAI's shape; every error of the engine becomes one."""

from __future__ import annotations

import logging
import traceback
from dataclasses import fields
from typing import Any

from ..errors import (
    ClosedError,
    EmptyPromptError,
    GgufSpecError,
    InvalidOptionError,
    NoTokenLeftError,
    PromptTooLongError,
    TemplateError,
)
from ..options import Speculation

LOG = logging.getLogger("gguf_spec.server")
_CAUSED_BY_THE_REQUEST: tuple[tuple[type[GgufSpecError], str | None, str], ...] = (
    (PromptTooLongError, "prompt", "context_length_exceeded"),
    (EmptyPromptError, "prompt", "invalid_value"),
    (TemplateError, "prompt", "invalid_value"),
    (NoTokenLeftError, None, "no_token_left"),
)
_OF_SPECULATION = {field.name for field in fields(Speculation)}


class ApiError(Exception):
    """A request that gets no answer.

    Attributes:
        status: The HTTP status.
        error: `message`, `type`, `param` and `code`.
        headers: What the answer's headers hold beside the usual.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        kind = (
            "server_error"
            if status >= 500
            else "rate_limit_error"
            if status == 429
            else "invalid_request_error"
        )
        self.status, self.headers = status, headers or {}
        self.error: dict[str, Any] = {
            "message": message,
            "type": kind,
            "param": param,
            "code": code,
        }


def bad(param: str, message: str) -> ApiError:
    """Return the refusal of a field whose value is no good."""
    return ApiError(f"{param} {message}", param, "invalid_value")


def gone() -> ApiError:
    """Return what a client that went away would get."""
    return ApiError("The client closed the connection.", None, "cancelled", 499)


def ending() -> ApiError:
    """Return what is left of a request when the server ends."""
    return ApiError(
        "The server is shutting down.", None, "shutting_down", 503, {"Retry-After": "5"}
    )


def option_refusal(error: InvalidOptionError, names: dict[str, str]) -> ApiError:
    """Return the refusal of an option, by the field it came in: `names` holds those that are called differently."""
    option = f"speculation.{error.option}" if error.option in _OF_SPECULATION else error.option
    param = names.get(option, option)
    return ApiError(
        f"{_told(error)}" if param == option else f"{param}: {_told(error)}", param, "invalid_value"
    )


def as_refusal(error: Exception, names: dict[str, str]) -> ApiError:
    """Return what the client is told of an error of the engine. What it does not cause itself, it is not told in detail."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidOptionError):
        return option_refusal(error, names)
    if isinstance(error, ClosedError):
        return ending()
    for kind, param, code in _CAUSED_BY_THE_REQUEST:
        if isinstance(error, kind):
            return ApiError(_told(error), param and names.get(param, param), code)
    log(error)
    return ApiError(f"The server failed ({type(error).__name__}).", None, "internal_error", 500)


def log(error: BaseException) -> None:
    """Write where something went wrong, but not the message, which may quote a prompt."""
    LOG.error(
        "%s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)).rstrip()
    )


def _told(error: GgufSpecError) -> str:
    message = f"{error} {error.hint[:1].upper()}{error.hint[1:]}"
    return message if len(message) <= 600 else f"{message[:300]} [...] {message[-290:]}"
