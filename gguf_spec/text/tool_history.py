"""Tools, calls and results of earlier messages, in the form that a chat template can render."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..llama.model import Model
from ..tools.families import family_of

Messages = Sequence[Mapping[str, Any]]

# A template that reads the tools from the system message, as JSON text.
_IN_SYSTEM = re.compile(r"\bmessage\s*(?:\.\s*tools\b|\[\s*['\"]tools['\"]\s*\])")
# Variables with which templates are given tools.
TOOL_VARIABLES = ("tools", "xml_tools")


def call_tokens(model: Model) -> dict[int, str]:
    """Return the special tokens of the model's tool calls that have no text, with their names."""
    family = family_of(model.chat_template or "")
    ids = {name: model.tokenize(name, special=True, start=False) for name in family.tokens}
    single = ((found[0], name) for name, found in ids.items() if len(found) == 1)
    return {token: name for token, name in single if not model.piece(token)}


def reads_tools(template: str) -> bool:
    """Return whether a template renders tools."""
    return any(re.search(rf"\b{name}\b", template) for name in TOOL_VARIABLES)


@dataclass(frozen=True)
class ToolHistory:
    """Messages for one template.

    Attributes:
        messages: The messages. A call that the template does not render is a placeholder at the
            end of a content.
        places: Placeholder -> the call in the model's syntax.
    """

    messages: list[dict[str, Any]]
    places: Mapping[str, str]

    def render(self, render: Callable[[Messages], str], contents: Messages) -> str:
        """Return the prompt for other contents of the messages, with all calls."""
        filled = []
        for new, fitted in zip(contents, self.messages, strict=True):
            filled.append({k: v for k, v in new.items() if k != _PLACE})
            if place := fitted.get(_PLACE):
                filled[-1]["content"] += place
        text = render(filled)
        # in one search: there may be thousands of places
        return _PLACES.sub(lambda match: self.places.get(match[0], match[0]), text)


_PLACE = "_place_of_calls"
# Placeholders of calls: a number between two equal private-use characters.
_PLACES = re.compile("([\U00100000-\U0010fffd])[0-9]+\\1")


def tool_history(
    messages: Messages, template: str, tools: Sequence[Mapping[str, Any]] | None
) -> ToolHistory:
    """Fit tools, calls and their results to a template.

    - Ids get the length that the template demands.
    - Several calls of a message become several messages where the template renders only one.
    - Calls become text where the template renders none.
    - Tools become a field of the system message where the template reads them there.

    Args:
        messages: The messages.
        template: The chat template.
        tools: The tools of the request.
    """
    family = family_of(template)
    fitted = [dict(message) for message in messages]
    if family.id_length:
        fitted = [_with_ids(message, family.id_length) for message in fitted]
    if not family.is_parallel:
        fitted = _one_call_each(fitted)
    if tools and _IN_SYSTEM.search(template):
        text = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
        if not fitted or fitted[0]["role"] != "system":
            fitted = [{"role": "system", "content": ""}, *fitted]
        fitted[0] = {**fitted[0], "tools": text}
    places: dict[str, str] = {}
    if "tool_calls" not in template:
        taken = json.dumps(fitted, default=str, ensure_ascii=False) + template
        (mark,) = unused(taken, 1, 0x100000)
        for i, message in enumerate(fitted):
            if calls := message.pop("tool_calls", None):
                called = [(c["function"]["name"], c["function"]["arguments"]) for c in calls]
                written = family.write(called).removeprefix(family.prompted)
                message[_PLACE] = place = f"{mark}{i}{mark}"
                places[place] = ("\n" if message["content"] else "") + written
    return ToolHistory(fitted, places)


def with_text_arguments(messages: Messages) -> list[dict[str, Any]]:
    """Return messages whose calls have their arguments as JSON text."""
    found = [dict(one) for one in messages]
    for message in found:
        if message.get("tool_calls"):
            message["tool_calls"] = calls = [dict(call) for call in message["tool_calls"]]
            for call in calls:
                arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
                call["function"] = {**call["function"], "arguments": arguments}
    return found


def _with_ids(message: dict[str, Any], length: int) -> dict[str, Any]:
    if message.get("tool_calls"):
        calls = [{**call, "id": _id(call.get("id"), length)} for call in message["tool_calls"]]
        return {**message, "tool_calls": calls}
    if "tool_call_id" in message:
        return {**message, "tool_call_id": _id(message["tool_call_id"], length)}
    return message


def _id(given: object, length: int) -> str:
    """Return an id of some length: the given one, or one that follows from it."""
    text = str(given)
    if len(text) == length and text.isascii() and text.isalnum():
        return text
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:length]


def _one_call_each(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with one call each, and the result of each call after it."""
    fitted, at = list[dict[str, Any]](), 0
    while at < len(messages):
        message, at = messages[at], at + 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            fitted.append(message)
            continue
        end = at
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        results, at = messages[at:end], end
        for i, call in enumerate(calls):
            first = message if i == 0 else {"role": message["role"], "content": ""}
            fitted.append({**first, "tool_calls": [call]})
            fitted += [one for one in results if one.get("tool_call_id") == call.get("id")]
        ids = [call.get("id") for call in calls]
        fitted += [one for one in results if one.get("tool_call_id") not in ids]
    return fitted


def unused(taken: str, n: int, first: int = 0xF0000) -> list[str]:
    """Return private-use characters that are not in a text.

    They have no upper or lower case and are not white space.

    Args:
        taken: The text.
        n: Number of characters.
        first: Code point of the first one of the plane.
    """
    found: set[str] = set()
    while len(found) < n:
        if (mark := chr(first + secrets.randbelow(0xFFFE))) not in taken:
            found.add(mark)
    return [*found]
