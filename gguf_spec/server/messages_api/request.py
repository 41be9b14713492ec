"""Conversion of the body of a request to the Messages API."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...options import Speculation
from ...tools.use import NO_TOOLS, ToolUse
from ..errors import ApiError, bad, unsupported
from ..fields import read_fields
from ..reasoning import ReasoningFields, read_reasoning
from ..requests import SHARED, CompletionRequest, completion_request
from ..tools import check_name, for_template, given_name
from ..values import flag, is_count, stops, string
from ..wire import NO_THREADS
from .content import read_messages, read_system

# Fields that decide the prompt: those of a request to count its tokens.
PROMPT_FIELDS = frozenset(
    {
        "chat_template_kwargs", "messages", "model", "output_config", "system", "thinking",
        "tool_choice", "tools",
    }
)  # fmt: skip
_KNOWN = (SHARED - {"stop"}) | PROMPT_FIELDS | {"stop_sequences"}
TOOL_KEYS = frozenset({"type", "name", "description", "input_schema", "strict"})
# Fields of a tool without effect.
_IGNORED_OF_TOOLS = frozenset({"cache_control", "eager_input_streaming", "input_examples"})
# Effort of this API -> effort of the chat route.
EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
THINKING = ("enabled", "disabled", "adaptive")
CHOICES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
# Name of an option or of a field of the chat route -> field here.
_NAMES = {
    "prompt": "messages",
    "stop": "stop_sequences",
    "json_schema": "output_config.format",
    "response_format": "output_config.format",
    "tools[].function.parameters": "tools[].input_schema",
    "think_budget": "thinking.budget_tokens",
}


def read_request(
    data: dict[str, Any],
    default: Speculation,
    most: int | None,
    known: frozenset[str] = _KNOWN,
) -> CompletionRequest:
    """Convert the body of a request.

    Args:
        data: The body.
        default: Speculation options of the server.
        most: Maximum length of an answer in tokens; None for no limit.
        known: Fields of the route.

    Raises:
        ApiError: A field is invalid or not supported. The error names the field.
    """
    if data.get("thread") is not None:
        fact = "thread is not supported: send all messages of the conversation."
        raise ApiError(fact, "thread", NO_THREADS)
    data, names = read_fields(data, known, "messages")
    messages = [*read_system(data.get("system")), *read_messages(data.get("messages"))]
    use = _tools(data)
    effort, schema = _output(data.get("output_config", {}))
    if "grammar" in data and (schema is not None or use.has_grammar):
        fact = "cannot be combined with output_config.format or calls that follow a schema."
        raise bad("grammar", fact)
    reasoning = _reasoning(data, effort)
    data["stop"] = list(stops(data.get("stop_sequences"), "stop_sequences"))
    names |= _NAMES | {"think": _of_think(data)}
    if "think_budget" in data:
        del names["think_budget"]
    sampling = {"json_schema": schema}
    asked = completion_request(data, (messages,), sampling, default, most, names)
    return replace(asked, tools=use, reasoning=reasoning)


def _of_think(data: dict[str, Any]) -> str:
    """Return the field that decides whether the model reasons."""
    given = [name for name in ("thinking", "output_config") if data.get(name)]
    return given[0] if given else "chat_template_kwargs"


def _output(value: Any) -> tuple[str | None, Any]:
    """Return the effort and the JSON schema of the field `output_config`."""
    if not isinstance(value, dict) or not set(value) <= {"effort", "format"}:
        raise bad("output_config", "may contain only effort and format.")
    effort, form = value.get("effort"), value.get("format")
    if effort is not None and not (isinstance(effort, str) and effort in EFFORTS):
        raise bad("output_config.effort", f"must be one of {', '.join(EFFORTS)}.")
    if form is None:
        return effort and EFFORTS[effort], None
    if (
        not isinstance(form, dict)
        or form.get("type") != "json_schema"
        or not isinstance(form.get("schema"), dict)
        or not set(form) <= {"type", "schema"}
    ):
        raise bad("output_config.format", "must be of the type json_schema, with a schema.")
    return effort and EFFORTS[effort], form["schema"]


def _reasoning(data: dict[str, Any], effort: str | None) -> ReasoningFields:
    """Return the fields about reasoning."""
    fields = {name: data[name] for name in ("chat_template_kwargs",) if name in data}
    read = replace(read_reasoning(fields), effort=effort)
    value = data.get("thinking")
    if value is None:
        return read
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in THINKING:
        raise bad("thinking", f"must be an object of the type {', '.join(THINKING)}.")
    if value.get("display") not in (None, "summarized"):
        raise bad("thinking.display", "must be summarized: the whole reasoning is sent.")
    if not set(value) <= {"type", "display", *(["budget_tokens"] if kind == "enabled" else [])}:
        raise bad("thinking", f"of the type {kind} has a field that is not supported.")
    budget = value.get("budget_tokens")
    if budget is not None and not (is_count(budget) and 0 < budget <= 10**9):
        raise bad("thinking.budget_tokens", "must be a whole number above 0.")
    think = {"enabled": True, "disabled": False, "adaptive": None}[kind]
    return replace(read, think=think, budget=budget)


def _tools(data: dict[str, Any]) -> ToolUse:
    """Return the tools that the model may call, and how."""
    given, choice = data.get("tools", []), data.get("tool_choice", {"type": "auto"})
    if not isinstance(given, list):
        raise bad("tools", "must be an array of tools.")
    kind = choice.get("type") if isinstance(choice, dict) else None
    if not isinstance(kind, str) or kind not in CHOICES:
        raise bad("tool_choice", f"must be an object of the type {', '.join(CHOICES)}.")
    if not set(choice) <= {"type", "disable_parallel_tool_use", "name"}:
        raise bad("tool_choice", "may contain only type, name and disable_parallel_tool_use.")
    parallel = not flag(choice, "disable_parallel_tool_use", "tool_choice.")
    strict: set[str] = set()
    tools = [_tool(tool, f"tools[{i}]", strict) for i, tool in enumerate(given)]
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise bad("tools", "must have different names.")
    only = choice.get("name") if kind == "tool" else None
    if kind == "tool":
        given_name(only, names, "tool_choice.name")
    if kind == "any" and not tools:
        raise bad("tool_choice", "requires tools.")
    if kind == "none" or not tools:
        return NO_TOOLS
    kept = strict if only is None else strict & {only}
    required = CHOICES[kind] == "required"
    return ToolUse(tools, required, only, parallel and only is None, frozenset(kept))


def _tool(tool: Any, at: str, strict: set[str]) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") not in (None, "custom"):
        fact = f"{at}.type must be custom: tools of the server are not supported."
        raise ApiError(fact, f"{at}.type", "unsupported_parameter")
    for key, value in tool.items():
        if key not in TOOL_KEYS | _IGNORED_OF_TOOLS and value not in (None, False):
            raise unsupported(f"{at}.{key[:100]}")
    name = check_name(tool.get("name"), f"{at}.name")
    if flag(tool, "strict", f"{at}."):
        strict.add(name)
    description = string(tool.get("description") or "", f"{at}.description")
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise bad(f"{at}.input_schema", "must be a JSON schema.")
    return for_template(name, description, schema)
