"""Messages for the chat template, from the items of the Responses API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from ..images import Part, content_of, image_url, text_part
from ..messages import read_arguments
from ..reasoning import REASONING
from .files import read_file
from .items import Item

Message = dict[str, Any]


def messages_of(instructions: str | None, items: Iterable[Item]) -> list[Message]:
    """Return the messages of a conversation.

    The items of one turn of the assistant (reasoning, text, calls) form one message.

    Args:
        instructions: Text of the system, before the items; None for none.
        items: Validated items.
    """
    messages: list[Message] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        _ADD[item["type"]](messages, item)
    return messages


def text_of(parts: Sequence[dict[str, Any]]) -> str:
    """Return the text of parts; a file is a block of its own."""
    text, is_after_file = "", False
    for part in parts:
        is_file = part["type"] == "input_file"
        piece = read_file(part, "input") if is_file else part["text"]
        if text and piece and (is_file or is_after_file):
            text += "\n\n"
        text += piece
        is_after_file = is_file
    return text


def _turn(messages: list[Message], *is_over: str) -> Message:
    """Return the message of the running turn of the assistant, or begin one.

    Args:
        messages: The messages.
        is_over: Fields of a message after which a new turn begins.
    """
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or any(map(last.get, is_over)):
        last = {"role": "assistant", "content": ""}
        messages.append(last)
    return last


def _add_message(messages: list[Message], item: Item) -> None:
    role = item["role"]
    if role == "assistant":
        _turn(messages, "content", "tool_calls")["content"] = text_of(item["content"])
    else:
        role = "system" if role == "developer" else role
        messages.append({"role": role, "content": _content(item["content"])})


def _content(parts: Sequence[dict[str, Any]]) -> str | list[Part]:
    """Return the content of a message: its texts, with the images between them."""
    found: list[Part] = []
    for is_image, some in groupby(parts, lambda part: part["type"] == "input_image"):
        if is_image:
            found += [image_url(part["image_url"], "input") for part in some]
        else:
            found.append(text_part(text_of([*some])))
    return content_of(found)


def _add_reasoning(messages: list[Message], item: Item) -> None:
    text = "".join(part["text"] for part in item["content"] or item["summary"])
    turn = _turn(messages, "content", "tool_calls")
    turn[REASONING] = turn.get(REASONING, "") + text


def _add_call(messages: list[Message], item: Item) -> None:
    arguments = read_arguments(item["arguments"], "arguments")
    function = {"name": item["name"], "arguments": arguments}
    call = {"id": item["call_id"], "type": "function", "function": function}
    _turn(messages).setdefault("tool_calls", []).append(call)


def _add_output(messages: list[Message], item: Item) -> None:
    output = item["output"]
    content = output if isinstance(output, str) else text_of(output)
    messages.append({"role": "tool", "content": content, "tool_call_id": item["call_id"]})


_ADD = {
    "message": _add_message,
    "reasoning": _add_reasoning,
    "function_call": _add_call,
    "function_call_output": _add_output,
}
