"""Items of the input of the Responses API: validation, and a form with all fields."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from ..errors import ApiError, bad
from ..images import image_url
from ..messages import read_arguments
from ..tools import check_name
from ..values import check_supported, identifier, string
from .files import read_file

Item = dict[str, Any]
# Returns the item of a stored response with an id, or None.
FindItem = Callable[[str], Item | None]

_ROLES = ("user", "assistant", "system", "developer")
# Types of parts -> their field with the text.
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
# Fields without effect of items and parts: marks of this API and of its clients.
_IGNORED = frozenset(
    {
        "annotations", "caller", "created_by", "internal_chat_message_metadata_passthrough",
        "logprobs", "namespace", "parsed", "parsed_arguments", "phase", "prompt_cache_breakpoint",
        "status",
    }
)  # fmt: skip


def new_id(prefix: str) -> str:
    """Return a random id."""
    return f"{prefix}_{secrets.token_hex(16)}"


def read_input(value: Any, find: FindItem) -> list[Item]:
    """Return the field `input` as a list of complete items.

    Args:
        value: A text, or an array of items.
        find: Looks up the items that references name.

    Raises:
        ApiError: An item is invalid or not supported. The error names the field.
    """
    if isinstance(value, str):
        return [_message({"role": "user", "content": value}, "input")]
    if not isinstance(value, list) or not value:
        raise bad("input", "must be a string, or an array with at least one item.")
    items = [_item(item, f"input[{i}]", find) for i, item in enumerate(value)]
    ids: set[str] = set()
    for i, item in enumerate(items):
        if item["id"] in ids:  # a few references must not stand for a large conversation
            raise bad(f"input[{i}].id", "is that of an item before it.")
        ids.add(item["id"])
    return items


def _item(item: Any, at: str, find: FindItem) -> Item:
    if not isinstance(item, dict):
        raise bad(at, "must be an object.")
    kind = item.get("type") or "message"
    if kind == "item_reference":
        return _referenced(item, at, find)
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise ApiError(
            f"{at}.type must be {', '.join(_READERS)} or item_reference: other items are not "
            "supported.",
            f"{at}.type",
            "unsupported_parameter",
        )
    return read(item, at)


def _referenced(item: Item, at: str, find: FindItem) -> Item:
    found = find(string(item.get("id"), f"{at}.id"))
    if found is None:
        raise ApiError(
            f"{at}.id names an item that is not stored, or not any more: send the item itself.",
            f"{at}.id",
            "item_not_found",
            404,
        )
    return found


def _message(item: Item, at: str) -> Item:
    _check_fields(item, {"type", "id", "role", "content"}, at)
    role = item.get("role")
    if role not in _ROLES:
        raise bad(f"{at}.role", f"must be one of {', '.join(_ROLES)}.")
    kind = "output_text" if role == "assistant" else "input_text"
    content = _content(item.get("content"), f"{at}.content", kind)
    if role != "user":
        _check_no_image(content, f"{at}.content")
    return _complete("message", "msg", item, at) | {"role": role, "content": content}


def _content(value: Any, at: str, kind: str) -> list[dict[str, Any]]:
    """Return the content of a message or of an output as parts.

    Args:
        value: A text, or an array of parts.
        at: Its place in the request.
        kind: Type of the parts with text.
    """
    if isinstance(value, str):
        return [_text_part(value, kind)]
    if not isinstance(value, list):
        raise bad(at, "must be a string, or an array of parts.")
    return [_part(part, f"{at}[{i}]", kind) for i, part in enumerate(value)]


def _part(part: Any, at: str, kind: str) -> dict[str, Any]:
    given = part.get("type") if isinstance(part, dict) else None
    if given == "input_file" and kind == "input_text":
        read_file(part, at)
        return {"type": "input_file", "filename": "file", **part}
    if given == "input_image" and kind == "input_text":
        return _image(part, at)
    if not isinstance(given, str) or given not in _TEXT_PARTS:
        raise ApiError(
            f"{at}.type must be {kind}"
            f"{', input_image or input_file' if kind == 'input_text' else ''}: other parts are not "
            "supported.",
            f"{at}.type",
            "unsupported_parameter",
        )
    name = _TEXT_PARTS[given]
    _check_fields(part, {"type", name}, at)
    return _text_part(string(part.get(name), f"{at}.{name}"), kind)


def _image(part: dict[str, Any], at: str) -> dict[str, Any]:
    _check_fields(part, {"type", "image_url", "detail"}, at)
    image_url(part.get("image_url"), f"{at}.image_url")
    return {"type": "input_image", "detail": "auto", **part}


def _check_no_image(parts: list[dict[str, Any]], at: str) -> None:
    for i, part in enumerate(parts):
        if part["type"] == "input_image":
            fact = f"{at}[{i}].type must not be input_image: only messages of the user have images."
            raise ApiError(fact, f"{at}[{i}].type", "unsupported_parameter")


def _text_part(text: str, kind: str) -> dict[str, Any]:
    more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return {"type": kind, "text": text} | more


def _function_call(item: Item, at: str) -> Item:
    _check_fields(item, {"type", "id", "call_id", "name", "arguments"}, at)
    given = item.get("arguments")
    read_arguments(given, f"{at}.arguments")
    return _complete("function_call", "fc", item, at) | {
        "call_id": identifier(item.get("call_id"), f"{at}.call_id"),
        "name": check_name(item.get("name"), f"{at}.name"),
        "arguments": given,
    }


def _function_call_output(item: Item, at: str) -> Item:
    _check_fields(item, {"type", "id", "call_id", "output"}, at)
    output = item.get("output")
    if not isinstance(output, str):
        output = _content(output, f"{at}.output", "input_text")
        _check_no_image(output, f"{at}.output")
    call_id = identifier(item.get("call_id"), f"{at}.call_id")
    return _complete("function_call_output", "fco", item, at) | {
        "call_id": call_id,
        "output": output,
    }


def _reasoning(item: Item, at: str) -> Item:
    _check_fields(item, {"type", "id", "summary", "content", "encrypted_content"}, at)
    read = _complete("reasoning", "rs", item, at)
    for name in ("summary", "content"):
        parts = [] if item.get(name) is None else item[name]
        if not isinstance(parts, list):
            raise bad(f"{at}.{name}", "must be an array of parts.")
        kind = "summary_text" if name == "summary" else "reasoning_text"
        texts = [_reasoning_part(part, f"{at}.{name}[{i}]") for i, part in enumerate(parts)]
        read[name] = [{"type": kind, "text": text} for text in texts]
    if item.get("encrypted_content") and not read["content"] and not read["summary"]:
        param = f"{at}.encrypted_content"
        fact = f"{param} is not readable here: this server sends reasoning as content."
        raise ApiError(fact, param, "unsupported_parameter")
    return read


def _reasoning_part(part: Any, at: str) -> str:
    if not isinstance(part, dict):
        raise bad(at, "must be an object.")
    _check_fields(part, {"type", "text"}, at)
    return string(part.get("text"), f"{at}.text")


_READERS: dict[str, Callable[[Item, str], Item]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
}


def _complete(kind: str, prefix: str, item: Item, at: str) -> Item:
    """Return the fields that all items have."""
    given = item.get("id")
    id_ = identifier(given, f"{at}.id") if given else new_id(prefix)
    return {"type": kind, "id": id_, "status": "completed"}


def _check_fields(item: Item, known: set[str], at: str) -> None:
    check_supported(item, known | _IGNORED, at)
