"""Validate the tools of a chat request and how the model may call them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from ..tools.use import NO_TOOLS, ToolUse
from .errors import ApiError, bad, unsupported
from .values import string

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Keys of a tool and of its function; `cache_control` is for the caches of other servers.
_TOOL_KEYS = {"type", "function", "cache_control"}
_FUNCTION_KEYS = {"name", "description", "parameters", "strict"}


def read_tools(tools: Any, choice: Any, parallel: bool) -> ToolUse:
    """Return the tools that the model may call; none if `choice` is `none`.

    Args:
        tools: The field `tools`.
        choice: The field `tool_choice`: `none`, `auto`, `required`, or an object with the name of
            a function.
        parallel: Whether the answer may have several calls.

    Raises:
        ApiError: A tool or the choice is invalid or not supported. The error names the field.
    """
    if tools is None or tools == []:
        if choice not in (None, "none", "auto"):
            raise bad("tool_choice", "requires tools.")
        return NO_TOOLS
    if not isinstance(tools, list):
        raise bad("tools", "must be an array of tools.")
    strict: set[str] = set()
    read = [_tool(tool, f"tools[{i}]", strict) for i, tool in enumerate(tools)]
    names = {tool["function"]["name"] for tool in read}
    if len(names) < len(read):
        raise bad("tools", "must have different names.")
    only = _named(choice, names)
    if choice == "none":
        return NO_TOOLS
    required = choice == "required" or only is not None
    kept = strict if only is None else strict & {only}
    return ToolUse(read, required, only, parallel and only is None, frozenset(kept))


def _named(choice: Any, names: set[str]) -> str | None:
    """Return the name of the tool that the choice demands, or None."""
    if choice is None or (isinstance(choice, str) and choice in ("none", "auto", "required")):
        return None
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(choice, dict) or choice.get("type") != "function" or not name:
        raise ApiError(
            "tool_choice must be none, auto, required, or an object with the name of a function.",
            "tool_choice",
            "unsupported_parameter",
        )
    return given_name(name, names, "tool_choice")


def given_name(value: Any, names: Collection[str], at: str) -> str:
    """Return the name of a tool that a choice demands.

    Args:
        value: The name.
        names: Names of the given tools.
        at: Its place in the request.

    Raises:
        ApiError: There is no such tool. The error names the field `at`.
    """
    if not isinstance(value, str) or value not in names:
        raise bad(at, f"names the tool {str(value)[:100]!r}, which is not in tools.")
    return value


def _tool(tool: Any, at: str, strict: set[str]) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        raise ApiError(
            f"{at}.type must be function: other tools are not supported.",
            f"{at}.type",
            "unsupported_parameter",
        )
    function = tool.get("function")
    if not isinstance(function, dict) or not set(tool) <= _TOOL_KEYS:
        raise bad(at, "may contain only type and function.")
    for key in function:
        if key not in _FUNCTION_KEYS:
            raise unsupported(f"{at}.function.{key[:100]}")
    name = check_name(function.get("name"), f"{at}.function.name")
    if not isinstance(function.get("strict"), (bool, type(None))):
        raise bad(f"{at}.function.strict", "must be true or false.")
    if function.get("strict"):
        strict.add(name)
    description = string(function.get("description") or "", f"{at}.function.description")
    parameters = function.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise bad(f"{at}.function.parameters", "must be a JSON schema.")
    return for_template(name, description, parameters)


def for_template(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return a tool in the form that chat templates read.

    Args:
        name: Name of the function.
        description: What it does; may be empty.
        parameters: JSON schema of its arguments; empty for a function without arguments.
    """
    parameters = parameters or {"type": "object", "properties": {}}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def check_name(value: Any, at: str) -> str:
    """Return the name of a function.

    Raises:
        ApiError: It is not a name.
    """
    name = string(value, at)
    if not _NAME.fullmatch(name):
        raise bad(at, "must be 1 to 64 letters, digits, _ or -.")
    return name
