"""Validate the messages of a chat request and convert them for chat templates."""

from __future__ import annotations

import json
from typing import Any

from .errors import ApiError, bad
from .images import Part, content_of, image_url, text_part
from .reasoning import REASONING, read_reasoning_content
from .tools import check_name
from .values import check_supported, string

# Role in a request -> role for the chat template. Templates do not know `developer`.
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_FIELDS = {"role", "content", "tool_calls", "tool_call_id", "name", REASONING}
# Fields that change nothing: identifiers and marks of other servers and clients.
IGNORED_FIELDS = ("annotations", "cache_control", "id", "status", "timestamp")


def read_messages(value: Any) -> list[dict[str, Any]]:
    """Return validated messages, in the form that chat templates read.

    Each message has a role and a text as content. A message of the user may have images, and its
    content is then an array of parts. A message of the assistant may have
    `tool_calls`; their arguments are objects, parsed from JSON.

    Raises:
        ApiError: A message is invalid. The error names the field.
    """
    if not isinstance(value, list) or not value:
        raise bad("messages", "must be an array with at least one message.")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(value)]


def _message(message: Any, at: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise bad(at, "must be an object.")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise bad(f"{at}.role", f"must be one of {', '.join(_ROLES)}.")
    check_supported(message, {*_FIELDS, *IGNORED_FIELDS}, at)
    read: dict[str, Any] = {"role": _ROLES[role]} | read_reasoning_content(message, at)
    if name := message.get("name"):
        read["name"] = string(name, f"{at}.name")
    calls = message.get("tool_calls")
    if calls is not None and calls != []:
        if role != "assistant":
            raise bad(f"{at}.tool_calls", "is only allowed in a message of the assistant.")
        read["tool_calls"] = _calls(calls, f"{at}.tool_calls")
    read["content"] = _content(message.get("content"), f"{at}.content", role)
    if role == "tool":
        read["tool_call_id"] = string(message.get("tool_call_id"), f"{at}.tool_call_id")
    elif message.get("tool_call_id") is not None:
        raise bad(f"{at}.tool_call_id", "is only allowed in a message of the role tool.")
    return read


def _content(value: Any, at: str, role: str) -> str | list[Part]:
    """Return the content of a message as one text, or as parts if there are images."""
    if role in ("assistant", "tool") and (value is None or value == []):
        return ""
    if not isinstance(value, list):
        return string(value, at)
    if not value:
        raise bad(at, "must be a string, or an array of parts that is not empty.")
    kinds = ("text", "image_url") if role == "user" else ("text",)
    return content_of([_part(part, f"{at}[{i}]", kinds) for i, part in enumerate(value)])


def _part(part: Any, at: str, kinds: tuple[str, ...]) -> Part:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in kinds:
        raise ApiError(
            f"{at}.type must be {' or '.join(kinds)}: other parts are not supported.",
            f"{at}.type",
            "unsupported_parameter",
        )
    if not set(part) <= {"type", kind, *IGNORED_FIELDS}:
        raise bad(at, f"may contain only type and {kind}.")
    if kind == "image_url":
        return image_url(part.get(kind), f"{at}.{kind}")
    return text_part(string(part.get("text"), f"{at}.text"))


def _calls(value: Any, at: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise bad(at, "must be an array with at least one call.")
    calls = []
    for i, call in enumerate(value):
        if (
            not isinstance(call, dict)
            or call.get("type", "function") != "function"
            or not isinstance(call.get("function"), dict)
        ):
            raise bad(f"{at}[{i}]", "must be a call of the type function.")
        function = call["function"]
        arguments = read_arguments(function.get("arguments"), f"{at}[{i}].function.arguments")
        name = check_name(function.get("name"), f"{at}[{i}].function.name")
        # The arguments stay an object: chat templates serialise them to JSON.
        calls.append(
            {
                "id": string(call.get("id"), f"{at}[{i}].id"),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
        )
    return calls


def read_arguments(value: Any, at: str) -> dict[str, Any]:
    """Return the arguments of a call; they are an object as text, or empty.

    Raises:
        ApiError: They are not. The error names the field `at`.
    """
    try:
        arguments = json.loads(string(value, at) or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise bad(at, "must be a JSON object as text.")
    return arguments
