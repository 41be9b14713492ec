"""Conversion of the body of a request to the Responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...options import Speculation
from ...tools.use import NO_TOOLS, ToolUse
from ..errors import ApiError, bad, unsupported
from ..fields import read_fields, same
from ..reasoning import EFFORTS, ReasoningFields, read_reasoning
from ..requests import SHARED, CompletionRequest, completion_request
from ..responses_store import ResponseStore
from ..tools import check_name, for_template, given_name
from ..values import TOP_LOGPROBS_MAX, count, flag, schema, string
from .conversation import messages_of
from .items import Item, read_input

_OWN = frozenset(
    {
        "chat_template_kwargs", "include", "input", "instructions", "max_output_tokens", "metadata",
        "parallel_tool_calls", "previous_response_id", "reasoning", "store", "stream_options",
        "text", "tool_choice", "tools", "top_logprobs", "truncation",
    }
)  # fmt: skip
_KNOWN = SHARED | _OWN
# What `include` may name: log-probabilities, and parts of answers that this server never has.
LOGPROBS = "message.output_text.logprobs"
INCLUDED = (
    LOGPROBS, "reasoning.encrypted_content", "file_search_call.results",
    "web_search_call.results", "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)  # fmt: skip
SUMMARIES = ("auto", "concise", "detailed")
TOOL_KEYS = ("type", "name", "description", "parameters", "strict")
METADATA_MAX, METADATA_KEY_MAX, METADATA_VALUE_MAX = 16, 64, 512
# Name of an option or of a field of the chat route -> field here.
_NAMES = {
    "prompt": "input",
    "json_schema": "text.format",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "tools[].function.parameters": "tools[].parameters",
    "reasoning_effort": "reasoning.effort",
}


@dataclass(frozen=True)
class ResponseRequest:
    """Fields of a request that its answer repeats, and what is stored with it.

    Attributes:
        echo: Fields of the response object.
        items: All items of the input, those of earlier responses included.
        store: Where the response is stored; None if it is not.
    """

    echo: Mapping[str, Any]
    items: Sequence[Item]
    store: ResponseStore | None


def read_response(
    data: dict[str, Any], default: Speculation, most: int | None, store: ResponseStore
) -> CompletionRequest:
    """Convert the body of a request; `more` is a `ResponseRequest`.

    Args:
        data: The body.
        default: Speculation options of the server.
        most: Maximum length of an answer in tokens; None for no limit.
        store: The responses that `previous_response_id` and item references name.

    Raises:
        ApiError: A field is invalid or not supported. The error names the field.
    """
    data, names = read_fields(data, _KNOWN, "responses")
    _read_limit(data, names)
    instructions, previous = data.get("instructions"), data.get("previous_response_id")
    for name in ("instructions", "previous_response_id"):
        string(data.get(name, ""), name)
    before = store.get(previous, "previous_response_id").conversation if previous else []
    items = [*before, *read_input(data.get("input"), store.finder())]
    options = data.pop("stream_options", {})
    if not isinstance(options, dict) or not set(options) <= {"include_obfuscation"}:
        raise bad("stream_options", "may contain only include_obfuscation, which has no effect.")
    truncation = data.get("truncation", "disabled")
    if truncation not in ("auto", "disabled"):
        raise bad("truncation", "must be auto or disabled.")
    use, tools = _tools(data)
    reasoning, summary = _reasoning(data)
    form, verbosity = _format(data.get("text", {}))
    if "grammar" in data and (form["type"] != "text" or use.has_grammar):
        raise bad("grammar", "cannot be combined with text.format or calls that follow a schema.")
    sampling = {"json_schema": _schema(form), "logprobs": _logprobs(data)}
    names |= _NAMES | {"think": _of_think(reasoning)}
    messages = messages_of(instructions, items)
    asked = completion_request(data, (messages,), sampling, default, most, names)
    asked = replace(asked, tools=use, reasoning=reasoning, drops_oldest=truncation == "auto")
    echo = {
        "instructions": instructions,
        "max_output_tokens": asked.sampling.max_tokens,
        "metadata": _metadata(data.get("metadata", {})),
        "parallel_tool_calls": data.get("parallel_tool_calls", True),
        "previous_response_id": previous,
        "reasoning": {"effort": reasoning.effort, "summary": summary},
        "store": data.get("store") is None or flag(data, "store"),
        "temperature": asked.sampling.temperature,
        "text": {"format": form, "verbosity": verbosity},
        "tool_choice": data.get("tool_choice", "auto"),
        "tools": tools,
        "top_logprobs": asked.sampling.logprobs or 0,
        "top_p": asked.sampling.top_p,
        "truncation": truncation,
    }
    return replace(asked, more=ResponseRequest(echo, items, store if echo["store"] else None))


def _read_limit(data: dict[str, Any], names: dict[str, str]) -> None:
    """Rename `max_output_tokens` to the name of the option."""
    if "max_output_tokens" in data:
        limit = data.pop("max_output_tokens")
        if not same(data.setdefault("max_tokens", limit), limit):
            raise bad("max_output_tokens", f"differs from {names.get('max_tokens', 'max_tokens')}.")
        names["max_tokens"] = "max_output_tokens"


def _logprobs(data: dict[str, Any]) -> int | None:
    """Return the number of alternatives for each token; None without log-probabilities."""
    included = data.get("include", [])
    if not isinstance(included, list) or not all(one in INCLUDED for one in included):
        raise bad("include", f"must be an array of {', '.join(INCLUDED)}.")
    top = count(data.get("top_logprobs", 0), "top_logprobs", 0, TOP_LOGPROBS_MAX)
    return top if LOGPROBS in included or top else None


def _metadata(value: Any) -> dict[str, str]:
    if (
        not isinstance(value, dict)
        or len(value) > METADATA_MAX
        or any(len(key) > METADATA_KEY_MAX for key in value)
        or not all(
            isinstance(one, str) and len(one) <= METADATA_VALUE_MAX for one in value.values()
        )
    ):
        raise bad(
            "metadata",
            f"must be an object of at most {METADATA_MAX} texts of at most {METADATA_VALUE_MAX} "
            f"characters, with names of at most {METADATA_KEY_MAX}.",
        )
    return value


def _reasoning(data: dict[str, Any]) -> tuple[ReasoningFields, str | None]:
    """Return the fields about reasoning, and the kind of summary that was asked for."""
    given = data.get("reasoning", {})
    if not isinstance(given, dict) or not set(given) <= {"effort", "summary", "generate_summary"}:
        raise bad("reasoning", "may contain only effort and summary.")
    effort = given.get("effort")
    if effort is not None and effort not in EFFORTS:
        raise bad("reasoning.effort", f"must be one of {', '.join(EFFORTS)}.")
    for name in ("summary", "generate_summary"):
        if given.get(name) is not None and given[name] not in SUMMARIES:
            raise bad(f"reasoning.{name}", f"must be one of {', '.join(SUMMARIES)}.")
    fields = {"reasoning_effort": effort}
    if "chat_template_kwargs" in data:
        fields["chat_template_kwargs"] = data["chat_template_kwargs"]
    return read_reasoning(fields), given.get("summary") or given.get("generate_summary")


def _of_think(reasoning: ReasoningFields) -> str:
    return "reasoning.effort" if reasoning.effort else "chat_template_kwargs"


def _format(text: Any) -> tuple[dict[str, Any], str]:
    """Return the format of the answer, and its verbosity."""
    if not isinstance(text, dict) or not set(text) <= {"format", "verbosity"}:
        raise bad("text", "may contain only format and verbosity.")
    verbosity = text.get("verbosity") or "medium"
    if verbosity != "medium":
        param = "text.verbosity"
        raise ApiError(f"{param} must be medium.", param, "unsupported_parameter")
    form = text.get("format")
    if form is None:
        return {"type": "text"}, verbosity
    _schema(form)
    return form, verbosity


def _schema(form: Any) -> Any:
    """Return the JSON schema of a format, or None if it has none."""
    if isinstance(form, dict) and form.get("type") == "json_schema":
        inner = {name: value for name, value in form.items() if name != "type"}
        form = {"type": "json_schema", "json_schema": inner}
    try:
        return schema(form)
    except ApiError as error:
        message = error.error["message"].partition(" ")[2]
        raise bad("text.format", message) from None


def _tools(data: dict[str, Any]) -> tuple[ToolUse, list[dict[str, Any]]]:
    """Return how tools may be called, and the tools as the response repeats them."""
    parallel = data.get("parallel_tool_calls") is None or flag(data, "parallel_tool_calls")
    given, choice = data.get("tools", []), data.get("tool_choice", "auto")
    if not isinstance(given, list):
        raise bad("tools", "must be an array of tools.")
    tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(given)]
    names = [tool["name"] for tool in tools]
    if len(set(names)) < len(names):
        raise bad("tools", "must have different names.")
    mode, allowed = _choice(choice, names)
    if mode == "none" or not tools:
        if mode == "required":
            raise bad("tool_choice", "requires tools.")
        return NO_TOOLS, tools
    kept = [tool for tool in tools if tool["name"] in allowed]
    # A single tool is forced as in the chat route: the template still lists all of them.
    only = allowed[0] if isinstance(choice, dict) and choice["type"] == "function" else None
    strict = frozenset(tool["name"] for tool in kept if tool["strict"])
    listed = [
        for_template(tool["name"], tool["description"] or "", tool["parameters"] or {})
        for tool in (tools if only else kept)
    ]
    return ToolUse(listed, mode == "required", only, parallel and only is None, strict), tools


def _choice(choice: Any, names: list[str]) -> tuple[str, list[str]]:
    """Return the mode of a tool choice (`none`, `auto`, `required`) and the tools it allows."""
    if isinstance(choice, str) and choice in ("none", "auto", "required"):
        return choice, names
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function":
        return "required", [given_name(choice.get("name"), names, "tool_choice")]
    allowed = choice.get("tools") if kind == "allowed_tools" else None
    if (
        not isinstance(allowed, list)
        or not allowed
        or choice.get("mode") not in ("auto", "required")
        or not all(isinstance(one, dict) and one.get("type") == "function" for one in allowed)
    ):
        raise ApiError(
            "tool_choice must be none, auto, required, or an object of the type function with a "
            "name, or of the type allowed_tools with a mode and functions.",
            "tool_choice",
            "unsupported_parameter",
        )
    return choice["mode"], [given_name(one.get("name"), names, "tool_choice") for one in allowed]


def _tool(tool: Any, at: str) -> dict[str, Any]:
    """Return a tool as the response repeats it."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise ApiError(
            f"{at}.type must be function: other tools are not supported.",
            f"{at}.type",
            "unsupported_parameter",
        )
    for name, value in tool.items():
        if name not in TOOL_KEYS and value not in (None, False):
            raise unsupported(f"{at}.{name[:100]}")
    read = {name: tool.get(name) for name in TOOL_KEYS}
    check_name(read["name"], f"{at}.name")
    if not isinstance(read["description"], (str, type(None))):
        raise bad(f"{at}.description", "must be a string.")
    if not isinstance(read["parameters"], (dict, type(None))):
        raise bad(f"{at}.parameters", "must be a JSON schema.")
    if not isinstance(read["strict"], (bool, type(None))):
        raise bad(f"{at}.strict", "must be true or false.")
    return read | {"strict": bool(read["strict"])}
