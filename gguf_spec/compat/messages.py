"""Conversion of the arguments of chat calls: messages, tools and the chat format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llama_cpp.llama_chat_format import guess_chat_format_from_gguf_metadata

from ..errors import InvalidOptionError

# Name that llama-cpp-python gives to the template of a file if it has no other name for it.
_OWN_FORMAT = "chat_template.default"
Tool = Mapping[str, Any]


def as_text(value: str | bool | int | float) -> str:
    """Format a metadata value as llama.cpp does."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:f}" if isinstance(value, float) else str(value)


def check_chat_format(name: str | None, metadata: dict[str, str]) -> str | None:
    """Return the name of the chat template of the file; None if the file has none.

    Raises:
        InvalidOptionError: `name` is another template.
    """
    template = metadata.get("tokenizer.chat_template")
    own = (guess_chat_format_from_gguf_metadata(metadata) or _OWN_FORMAT) if template else None
    if name is not None and (own is None or name not in (own, _OWN_FORMAT)):
        allowed = (
            f"{own!r} or None: only the template in the file is supported"
            if own
            else "None: the file has no chat template"
        )
        raise InvalidOptionError("chat_format", name, allowed, "omit chat_format.")
    return own


def as_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with their contents as plain text.

    Text parts are joined; a missing content becomes an empty text. Arguments of calls become
    objects, as chat templates read them.

    Raises:
        InvalidOptionError: A part is not text, such as an image.
    """
    return [_message(message) for message in messages]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    read = {**message, "content": _content(message.get("content"))}
    if message.get("tool_calls"):
        read["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return read


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (TypeError, ValueError, RecursionError):
        arguments = function["arguments"]
    return {**call, "function": {**function, "arguments": arguments}}


def _content(content: Any) -> Any:
    if content is None:
        return ""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content
    texts = []
    for part in content:
        text = (
            part
            if isinstance(part, str)
            else part.get("text")
            if isinstance(part, Mapping) and part.get("type") == "text"
            else None
        )
        if not isinstance(text, str):
            raise InvalidOptionError(
                "messages",
                part,
                'text, or parts such as {"type": "text", "text": "..."}',
                "remove parts that are not text, such as images.",
            )
        texts.append(text)
    return "".join(texts)


def n_logprobs(logprobs: bool | int | None, top_logprobs: int | None) -> int | None:
    """Return the number of alternatives to report per token; None for no log-probabilities.

    LangChain passes this number as `logprobs`.

    Raises:
        InvalidOptionError: Alternatives are requested without log-probabilities.
    """
    if logprobs is None or logprobs is False:
        if top_logprobs:
            raise InvalidOptionError(
                "top_logprobs", top_logprobs, "None unless logprobs is True", "set logprobs=True."
            )
        return None
    return (top_logprobs or 0) if logprobs is True else logprobs


def as_tools(
    functions: Sequence[Tool] | None,
    function_call: str | Tool | None,
    tools: Sequence[Tool] | None,
    tool_choice: str | Tool | None,
) -> tuple[list[Tool], Tool | None]:
    """Convert the tool arguments of a chat call.

    `functions` and `function_call` are the older form of `tools` and `tool_choice`.

    Returns:
        The tools for the prompt, and the function that the model must call, or None.

    Raises:
        InvalidOptionError: An argument is not supported; names the argument.
    """
    name, choice = (
        ("tool_choice", tool_choice) if function_call is None else ("function_call", function_call)
    )
    shown: list[Tool] = [
        *({"type": "function", "function": function} for function in functions or ()),
        *(tools or ()),
    ]
    if not isinstance(choice, Mapping):
        if choice not in (None, "none", "auto"):
            raise InvalidOptionError(
                name, choice, "'none', 'auto' or a mapping with the name of one tool"
            )
        return ([] if choice == "none" else shown), None
    wanted = choice.get("function", choice).get("name")
    called = next((tool["function"] for tool in shown if tool["function"]["name"] == wanted), None)
    if called is None:
        raise InvalidOptionError(
            name,
            wanted,
            "one of the given tools: " + ", ".join(str(tool["function"]["name"]) for tool in shown),
        )
    return shown, called
