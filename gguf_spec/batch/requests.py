"""Requests of the lines: OpenAI's batch format, and plain lines with a prompt or messages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..options import Speculation
from ..server.errors import ApiError, bad, unknown
from ..server.requests import CompletionRequest, parse, read_chat, read_text
from ..server.schema import flag, is_count
from .defaults import LineDefaults
from .lines import LINE_BYTES, Line

_FIELDS = ("custom_id", "method", "url", "body")
_READERS = {"/v1/chat/completions": read_chat, "/v1/completions": read_text}
# Fields of a plain line that make its prompt a text in any case: over HTTP too, a chat has none.
_OF_TEXTS = frozenset({"echo", "suffix"})


@dataclass(frozen=True)
class LineHead:
    """Form and id of a line.

    Attributes:
        is_plain: Whether it is a plain line, and not one in OpenAI's format.
        id: Its id: `custom_id` or None, or `id` of a plain line or the number of the line. What is
            no text, number or truth value, and infinity, which no JSON can have, is left out.
    """

    is_plain: bool
    id: Any


def read_head(line: Line) -> tuple[LineHead, dict[str, Any] | ApiError]:
    """Return the form of a line, and its JSON object or what is wrong with it."""
    # What is not JSON has a form too, because its result has one.
    data = _read_object(line)
    is_plain = (
        b'"custom_id"' not in (line.data or b"")
        if isinstance(data, ApiError)
        else not data.keys() & {*_FIELDS}
    )
    found = {} if isinstance(data, ApiError) else data
    own = found.get("id" if is_plain else "custom_id")
    if not isinstance(own, (str, int, float)) or own in (math.inf, -math.inf):
        own = None
    return LineHead(is_plain, line.number if is_plain and own is None else own), data


def _read_object(line: Line) -> dict[str, Any] | ApiError:
    if line.data is None:
        fault = f"The line has more than {LINE_BYTES:,} bytes."
        return ApiError(fault, None, "request_too_large", 413)
    try:
        return parse(line.data)
    except ApiError:
        return ApiError("The line is not a JSON object in UTF-8.", None, "invalid_json")


def read_request(
    head: LineHead,
    data: dict[str, Any],
    number: int,
    defaults: LineDefaults,
    speculation: Speculation,
) -> CompletionRequest:
    """Return the request of a line.

    Args:
        head: Its form.
        data: Its JSON object.
        number: Its number.
        defaults: Options that it may leave out.
        speculation: Draft options of the model.

    Raises:
        ApiError: A field is invalid or not supported. The error names the field.
    """
    read = _read_plain if head.is_plain else _read_openai
    return read(data, number, defaults, speculation)


def _read_openai(
    data: dict[str, Any], number: int, defaults: LineDefaults, speculation: Speculation
) -> CompletionRequest:
    for name in data:
        if name not in _FIELDS:
            raise unknown(name[:100])
    custom_id, body = data.get("custom_id"), data.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise bad("custom_id", "must be a string that is not empty.")
    if data.get("method") != "POST":
        raise bad("method", "must be POST.")
    url = data.get("url")
    if not isinstance(url, str) or url not in _READERS:
        raise bad("url", f"must be {' or '.join(_READERS)}.")
    if not isinstance(body, dict):
        raise bad("body", "must be an object.")
    _check_stream(body)
    asked = _READERS[url](body, speculation, None)
    return defaults.apply(asked, body, number, is_plain=False)


def _read_plain(
    data: dict[str, Any], number: int, defaults: LineDefaults, speculation: Speculation
) -> CompletionRequest:
    body = {name: value for name, value in data.items() if name != "id"}
    if not isinstance(data.get("id"), (str, type(None))) and not is_count(data.get("id")):
        raise bad("id", "must be a string or a whole number.")
    if ("prompt" in body) == ("messages" in body):
        raise bad("prompt", "or messages is required, and excludes the other.")
    _check_stream(body)
    prompt = body.get("prompt")
    if isinstance(prompt, str) and defaults.chat and not _OF_TEXTS & body.keys():
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    if "messages" in body:
        body["messages"] = _with_system(body["messages"], defaults.system)
        asked = read_chat(body, speculation, None)
    else:
        asked = read_text(body, speculation, None)
    if len(asked.prompts) * asked.n != 1:
        name = "n" if asked.n > 1 else "prompt"
        raise bad(name, "gives several answers, which only lines in OpenAI's format may have.")
    if asked.tools.tools:
        raise bad("tools", "are supported in lines in OpenAI's format only.")
    return defaults.apply(asked, body, number, is_plain=True)


def _check_stream(body: dict[str, Any]) -> None:
    if flag(body.get("stream"), "stream"):
        raise ApiError(
            "stream is not supported: a batch has whole answers.", "stream", "unsupported_parameter"
        )


def _with_system(messages: Any, system: str | None) -> Any:
    """Return messages with the system message of the batch, unless they have one."""
    if system is None or not isinstance(messages, list):
        return messages
    roles = {one.get("role") for one in messages if isinstance(one, dict) and _has_role(one)}
    if roles & {"system", "developer"}:
        return messages
    return [{"role": "system", "content": system}, *messages]


def _has_role(message: dict[str, Any]) -> bool:
    return isinstance(message.get("role"), str)
