"""Messages for the chat template, from the messages and blocks of the Messages API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ApiError, bad
from ..images import Part, content_of, image_base64, text_part
from ..reasoning import REASONING
from ..tools import check_name
from ..values import check_supported, identifier, string

Message = dict[str, Any]

_ROLES = ("user", "assistant", "system")
# Fields of blocks that change nothing: marks for the caches and clients of Anthropic.
_IGNORED = frozenset({"cache_control", "caller", "citations", "signature", "toolset_name"})


def read_system(value: Any) -> list[Message]:
    """Return the field `system`, a text or blocks, as messages: none or one.

    Raises:
        ApiError: It is invalid. The error names the field.
    """
    text = _text_of(value, "system") if value is not None else ""
    return [{"role": "system", "content": text}] if text else []


def read_messages(value: Any) -> list[Message]:
    """Return validated messages, in the form that chat templates read.

    The results of tools, which are blocks of a message of the user, become messages of their own.

    Raises:
        ApiError: A message is invalid or not supported. The error names the field.
    """
    if not isinstance(value, list) or not value:
        raise bad("messages", "must be an array with at least one message.")
    read = [one for i, message in enumerate(value) for one in _read(message, f"messages[{i}]")]
    if read[-1]["role"] == "assistant":
        fact = "must end with a message of the user: an answer cannot be continued."
        raise bad("messages", fact)
    return read


def _read(message: Any, at: str) -> list[Message]:
    if not isinstance(message, dict):
        raise bad(at, "must be an object.")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise bad(f"{at}.role", f"must be one of {', '.join(_ROLES)}.")
    _check_fields(message, {"role", "content", "id", "type"}, at)
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list) or not (content or role == "assistant"):
        raise bad(f"{at}.content", "must be a string, or an array of blocks that is not empty.")
    if role == "assistant":
        return [_answer(content, f"{at}.content")]
    return _question(role, content, f"{at}.content")


def _question(role: str, blocks: list[Any], at: str) -> list[Message]:
    """Return the messages of a message of the user: texts, images and results in their order."""
    read: list[Message] = []
    for i, block in enumerate(blocks):
        kinds = ("text", "image", "tool_result") if role == "user" else ("text",)
        kind = _kind(block, f"{at}[{i}]", kinds)
        if kind == "tool_result":
            read.append(_result(block, f"{at}[{i}]"))
            continue
        if not read or read[-1]["role"] != role:
            read.append({"role": role, "content": []})
        part = _image if kind == "image" else _text_part
        read[-1]["content"].append(part(block, f"{at}[{i}]"))
    return [
        {**one, "content": content_of(one["content"])} if isinstance(one["content"], list) else one
        for one in read
    ]


def _text_part(block: dict[str, Any], at: str) -> Part:
    return text_part(_text(block, at))


def _image(block: dict[str, Any], at: str) -> Part:
    _check_fields(block, {"type", "source"}, at)
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") != "base64":
        fact = f"{at}.source.type must be base64: nothing is fetched."
        raise ApiError(fact, f"{at}.source.type", "unsupported_parameter")
    _check_fields(source, {"type", "media_type", "data"}, f"{at}.source")
    return image_base64(source.get("data"), f"{at}.source.data")


def _result(block: dict[str, Any], at: str) -> Message:
    _check_fields(block, {"type", "tool_use_id", "content", "is_error"}, at)
    content, is_error = block.get("content"), block.get("is_error")
    if not isinstance(is_error, (bool, type(None))):
        raise bad(f"{at}.is_error", "must be true or false.")
    text = "" if content is None else _text_of(content, f"{at}.content")
    return {
        "role": "tool",
        # Chat templates have no field for an error.
        "content": f"Error: {text}" if is_error else text,
        "tool_call_id": identifier(block.get("tool_use_id"), f"{at}.tool_use_id"),
    }


def _answer(blocks: list[Any], at: str) -> Message:
    """Return a message of the assistant: its reasoning, its text and its calls."""
    read: Message = {"role": "assistant", "content": ""}
    for i, block in enumerate(blocks):
        kind = _kind(block, f"{at}[{i}]", tuple(_ADD))
        _ADD[kind](read, block, f"{at}[{i}]")
    return read


def _add_text(read: Message, block: dict[str, Any], at: str) -> None:
    read["content"] += _text(block, at)


def _add_thinking(read: Message, block: dict[str, Any], at: str) -> None:
    _check_fields(block, {"type", "thinking"}, at)
    text = string(block.get("thinking"), f"{at}.thinking")
    read[REASONING] = read.get(REASONING, "") + text


def _add_call(read: Message, block: dict[str, Any], at: str) -> None:
    _check_fields(block, {"type", "id", "name", "input"}, at)
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise bad(f"{at}.input", "must be an object.")
    name = check_name(block.get("name"), f"{at}.name")
    function = {"name": name, "arguments": arguments}
    call = {"id": identifier(block.get("id"), f"{at}.id"), "type": "function", "function": function}
    read.setdefault("tool_calls", []).append(call)


_ADD: dict[str, Callable[[Message, dict[str, Any], str], None]] = {
    "text": _add_text,
    "thinking": _add_thinking,
    "tool_use": _add_call,
}


def _text_of(value: Any, at: str) -> str:
    """Return a text, or the text of blocks."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise bad(at, "must be a string, or an array of blocks.")
    texts = []
    for i, block in enumerate(value):
        _kind(block, f"{at}[{i}]", ("text",))
        texts.append(_text(block, f"{at}[{i}]"))
    return "".join(texts)


def _kind(block: Any, at: str, kinds: tuple[str, ...]) -> str:
    """Return the type of a block, one of `kinds`."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise ApiError(
            f"{at}.type must be {' or '.join(kinds)}: other blocks are not supported here.",
            f"{at}.type",
            "unsupported_parameter",
        )
    return kind


def _text(block: dict[str, Any], at: str) -> str:
    _check_fields(block, {"type", "text"}, at)
    return string(block.get("text"), f"{at}.text")


def _check_fields(block: dict[str, Any], known: set[str], at: str) -> None:
    check_supported(block, known | _IGNORED, at)
