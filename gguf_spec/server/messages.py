"""Validate the messages and tools of a chat request and convert them for chat templates."""

from __future__ import annotations

import json
import re
from typing import Any

from .errors import ApiError, bad
from .reasoning import REASONING, read_reasoning_content

# Role in a request -> role for the chat template. Templates do not know `developer`.
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_FIELDS = {"role", "content", "tool_calls", "tool_call_id", "refusal", REASONING}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def read_messages(value: Any) -> list[dict[str, Any]]:
    """Return validated messages, in the form that chat templates read.

    Each message has a role and a text as content. A message of the assistant may have
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
    for name, given in message.items():
        if (given is not None and name not in _FIELDS) or (given and name == "refusal"):
            param = f"{at}.{name[:100]}"
            raise ApiError(f"{param} is not supported.", param, "unsupported_parameter")
    read: dict[str, Any] = {"role": _ROLES[role]} | read_reasoning_content(message, at)
    calls = message.get("tool_calls")
    if calls is not None:
        if role != "assistant":
            raise bad(f"{at}.tool_calls", "is only allowed in a message of the assistant.")
        read["tool_calls"] = _calls(calls, f"{at}.tool_calls")
    read["content"] = _content(message.get("content"), f"{at}.content", may_be_empty=bool(calls))
    if role == "tool":
        read["tool_call_id"] = _string(message.get("tool_call_id"), f"{at}.tool_call_id")
    elif message.get("tool_call_id") is not None:
        raise bad(f"{at}.tool_call_id", "is only allowed in a message of the role tool.")
    return read


def _string(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise bad(at, "must be a string.")
    return value


def _content(value: Any, at: str, may_be_empty: bool) -> str:
    """Return the content of a message as one text; text parts are joined."""
    if value is None and may_be_empty:
        return ""
    if not isinstance(value, list):
        return _string(value, at)
    if not value:
        raise bad(at, "must be a string, or an array of parts that is not empty.")
    texts = []
    for i, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise ApiError(
                f"{at}[{i}].type must be text: other parts are not supported.",
                f"{at}[{i}].type",
                "unsupported_parameter",
            )
        if set(part) != {"type", "text"}:
            raise bad(f"{at}[{i}]", "may contain only type and text.")
        texts.append(_string(part["text"], f"{at}[{i}].text"))
    return "".join(texts)


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
        try:
            arguments = json.loads(
                _string(function.get("arguments"), f"{at}[{i}].function.arguments")
            )
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise bad(f"{at}[{i}].function.arguments", "must be a JSON object as text.")
        name = _name(function.get("name"), f"{at}[{i}].function.name")
        # The arguments stay an object: chat templates serialise them to JSON.
        calls.append(
            {
                "id": _string(call.get("id"), f"{at}[{i}].id"),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
        )
    return calls


def _name(value: Any, at: str) -> str:
    if not _NAME.fullmatch(_string(value, at)):
        raise bad(at, "must be 1 to 64 letters, digits, _ or -.")
    return str(value)


def read_tools(tools: Any, choice: Any) -> list[dict[str, Any]]:
    """Return the tools that the model may call; an empty list if `choice` is `none`.

    Raises:
        ApiError: A tool or the choice is invalid or not supported. The error names the field.
    """
    if tools is None:
        if choice not in (None, "none"):
            raise bad("tool_choice", "requires tools.")
        return []
    if choice not in (None, "none", "auto"):
        raise ApiError(
            "tool_choice must be none or auto: calls cannot be forced.",
            "tool_choice",
            "unsupported_parameter",
        )
    if not isinstance(tools, list) or not tools:
        raise bad("tools", "must be an array with at least one tool.")
    read = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    return [] if choice == "none" else read


def _tool(tool: Any, at: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise ApiError(
            f"{at}.type must be function: other tools are not supported.",
            f"{at}.type",
            "unsupported_parameter",
        )
    function = tool.get("function")
    if not isinstance(function, dict) or set(tool) != {"type", "function"}:
        raise bad(at, "may contain only type and function.")
    read: dict[str, Any] = {"name": _name(function.get("name"), f"{at}.function.name")}
    for name, value in function.items():
        if name not in ("name", "description", "parameters", "strict"):
            param = f"{at}.function.{name[:100]}"
            raise ApiError(f"{param} is not supported.", param, "unsupported_parameter")
        if name == "strict" and value not in (None, False):
            raise ApiError(
                f"{at}.function.strict is not supported: the arguments are not checked.",
                f"{at}.function.strict",
                "unsupported_parameter",
            )
    read["description"] = _string(function.get("description") or "", f"{at}.function.description")
    read["parameters"] = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(read["parameters"], dict):
        raise bad(f"{at}.function.parameters", "must be a JSON schema.")
    return {"type": "function", "function": read}
