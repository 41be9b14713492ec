"""API errors in the format of each API, and the conversion of engine errors to them.

`names` are, for options whose field in the request has another name: option -> field.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Mapping
from typing import Any, Literal

from ..errors import (
    ClosedError,
    ContextTooShortError,
    EmptyPromptError,
    GgufSpecError,
    ImageError,
    InvalidOptionError,
    NoEditError,
    NoGenerationError,
    NoInfillError,
    NoRankingError,
    NotEnoughMemoryError,
    NoTokenLeftError,
    NoVisionError,
    Option,
    PromptTooLongError,
    Pull,
    TemplateError,
    TextTooLongError,
    WorkerError,
    written,
)
from ..options import SAMPLING, SPECULATION

LOG = logging.getLogger("gguf_spec.server")
SHUTTING_DOWN = "shutting_down"  # error code of answers that the shutdown ended
_INDEX = re.compile(r"\[\d+\]")  # of an array, in the name of a field
# Options of the engine that a request can set outside its `speculation` object.
_OF_REQUEST = {*SAMPLING, "prompt", "tools", "chat_template_kwargs"}
# Engine errors that the request caused: (error class, field of the request, OpenAI error code).
_CAUSED_BY_THE_REQUEST: tuple[tuple[type[GgufSpecError], str | None, str], ...] = (
    (PromptTooLongError, "prompt", "context_length_exceeded"),
    (EmptyPromptError, "prompt", "invalid_value"),
    (ContextTooShortError, "text", "context_length_exceeded"),
    (NoEditError, None, "no_edit"),
    (TemplateError, "prompt", "invalid_value"),
    (NoInfillError, "suffix", "no_infill"),
    (ImageError, "prompt", "invalid_image"),
    (NoVisionError, "prompt", "no_vision"),
    (NoTokenLeftError, None, "no_token_left"),
    (TextTooLongError, "texts", "context_length_exceeded"),
    (NoGenerationError, "model", "no_generation"),
    (NoRankingError, "model", "no_ranking"),
)


class ApiError(Exception):
    """Error response to a request.

    Attributes:
        error: OpenAI error object with `message`, `type`, `param` and `code`.
        too_long: The error of a prompt that is too long, which each API names in its own words.
    """

    headers: dict[str, str]
    status: int

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        kind = "rate_limit_error" if status == 429 else "invalid_request_error"
        kind = "server_error" if status >= 500 else kind
        self.status, self.headers = status, headers or {}
        self.too_long: PromptTooLongError | Literal[False] = False
        facts = {"message": message, "type": kind, "param": param, "code": code}
        self.error: dict[str, Any] = facts


def invalid_value(param: str, message: str) -> ApiError:
    return ApiError(f"{param} {message}", param, "invalid_value")


def unknown(param: str) -> ApiError:
    return ApiError(f"Unknown field: {param}.", param, "unknown_parameter")


def client_closed() -> ApiError:
    return ApiError("The client closed the connection.", None, "cancelled", 499)


def shutting_down() -> ApiError:
    return ApiError("The server is shutting down.", None, SHUTTING_DOWN, 503, {"Retry-After": "5"})


def too_slow(seconds: float, status: int = 503) -> ApiError:
    """Return the error for a request that has no partial answer and ran out of time."""
    fact = f"The request took longer than {seconds:g} s, the time limit of this server: "
    return ApiError(f"{fact}gguf-spec serve --timeout sets it.", None, "timeout", status)


def not_loaded(model: str, error: Exception) -> ApiError:
    """Return the error for a model that could not be loaded.

    Only a lack of memory is explained; other messages may contain paths of this machine.
    """
    if isinstance(error, NotEnoughMemoryError):
        fact = f"There is not enough memory for the model {model!r}: {error.message}"
        return ApiError(fact, "model", "not_enough_memory", 503)
    fact = f"The model {model!r} cannot be loaded ({type(error).__name__})."
    return ApiError(fact, "model", "model_not_loaded", 500)


def option_refusal(error: InvalidOptionError, names: dict[str, str]) -> ApiError:
    """Return the error for an invalid option, under the name of its request field."""
    param = _field(error.option, names) or error.option
    return ApiError(_message_of(error, names), param, "invalid_value")


def refusal_of(error: Exception, names: dict[str, str]) -> ApiError | None:
    """Return the API error for an engine error that the request caused; None for all others."""
    if isinstance(error, ApiError):
        return _renamed(error, names)
    if isinstance(error, InvalidOptionError) and _field(error.option, names):
        return option_refusal(error, names)
    for kind, param, code in _CAUSED_BY_THE_REQUEST:
        if isinstance(error, kind):
            message = _message_of(error, names)
            if isinstance(error, PromptTooLongError):  # clients look for the words of OpenAI
                message = (
                    f"This model's maximum context length is {error.n_ctx} tokens. However, your "
                    f"prompt has {error.n_prompt} tokens. Shorten the prompt."
                )
            refusal = ApiError(message, param and names.get(param, param), code)
            refusal.too_long = isinstance(error, PromptTooLongError) and error
            return refusal
    return None


def _renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """Return an error about a field of the chat route under the name that the field has.

    An index of an array is written as `[]` in the names: `tools[].function.parameters`.
    """
    param = error.error["param"] or ""
    here = names.get(_INDEX.sub("[]", param))
    if here is None:
        return error
    for index in _INDEX.findall(param):
        here = here.replace("[]", index, 1)
    message = error.error["message"]
    if message.startswith(param):
        message = here + message[len(param) :]
    return ApiError(message, here, error.error["code"], error.status, error.headers)


def as_refusal(error: Exception, names: dict[str, str]) -> ApiError:
    """Return the API error for an engine error.

    Errors that the request did not cause are logged; the client gets only their class name.
    """
    if isinstance(error, ClosedError):
        return shutting_down()
    if isinstance(error, WorkerError):
        LOG.error("%s", error)  # it quotes no prompt
        fact = "A worker that holds a part of the model is lost."
        return ApiError(fact, None, "worker_lost", 503)
    if isinstance(error, NotEnoughMemoryError):
        return ApiError(f"There is not enough memory: {error}", None, "not_enough_memory", 503)
    refusal = refusal_of(error, names)
    if refusal:
        return refusal
    log(error)
    return failure(error)


def failure(error: Exception) -> ApiError:
    """Return the API error for an unexpected error: the client gets only its class name."""
    return ApiError(f"The server failed ({type(error).__name__}).", None, "internal_error", 500)


def log(error: BaseException) -> None:
    """Log the class and traceback of an error, without its message, which may quote a prompt."""
    LOG.error(
        "%s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)).rstrip()
    )


def in_request(text: str) -> str:
    """Return a text of the engine with the fields of a request; empty if they lack an option."""
    return written(text, lambda part: _in_request(part, {})) or ""


def _in_request(part: Option | Pull, names: Mapping[str, str]) -> str | None:
    """Write an option of the engine as a field of the request: `speculation.k=0`."""
    if isinstance(part, Pull) or part.of_commands:
        return None
    field = _field(part.name, names)
    if field is None or part.value is ...:
        return field
    return f"{field}={json.dumps(part.value, default=str)}"


def _field(option: str, names: Mapping[str, str]) -> str | None:
    """Return the field of an option; None for options that a request cannot set."""
    if option in SPECULATION:
        return f"speculation.{option}"
    return names.get(option, option if option in _OF_REQUEST else None)


def _message_of(error: GgufSpecError, names: Mapping[str, str]) -> str:
    fact, hint = error.written(lambda part: _in_request(part, names))
    message = f"{fact} {hint[:1].upper()}{hint[1:]}".rstrip()
    return message if len(message) <= 600 else f"{message[:300]} [...] {message[-290:]}"


def openai_error(refusal: ApiError) -> dict[str, Any]:
    """Return the form of an error at OpenAI, and on all paths without a form of their own."""
    return {"error": refusal.error}
