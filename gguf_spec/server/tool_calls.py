"""Parser for tool calls in generated text, in three formats; the chat template selects one."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any, Literal

Form = Literal["hermes", "mistral", "llama"]
OPEN, CLOSE, MISTRAL = "<tool_call>", "</tool_call>", "[TOOL_CALLS]"


def form_of(template: str) -> Form:
    """Return the tool call format of a model with this chat template.

    - `hermes`, also used by Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
    - `mistral`: `[TOOL_CALLS][{...}]` or `[TOOL_CALLS]name[ARGS]{...}`.
    - `llama`: the whole answer is `{"name": ..., "parameters": {...}}`, or several such objects
      separated by semicolons.
    """
    return "hermes" if OPEN in template else "mistral" if MISTRAL in template else "llama"


class ToolReader:
    """Incremental parser that separates an answer into text and tool calls.

    Text that may be the beginning of a call is held back until the answer ends. If it is not a
    valid call then, it is returned as text.

    Attributes:
        calls: Parsed calls in OpenAI's format; complete after `finish`.
    """

    def __init__(self, form: Form, names: Sequence[str], most: int | None = None) -> None:
        """Create a parser.

        Args:
            form: Form of the calls.
            names: Names of the tools.
            most: Maximum number of calls; further ones are dropped. None for no limit.
        """
        self._form, self._names, self._most = form, frozenset(names), most
        self._held = ""
        self._is_text = False  # True once the rest of the answer cannot contain a call
        self.calls: list[dict[str, Any]] = []

    def push(self, text: str) -> str:
        """Append generated text; return the text that cannot be part of a call."""
        self._held += text
        if self._is_text:
            return self._take(len(self._held))
        if self._form == "hermes":
            return self._take(self._before_tag())
        start = self._held.lstrip()
        if start and not self._may_begin(start):
            self._is_text = True
            return self._take(len(self._held))
        return ""

    def finish(self) -> str:
        """Return the remaining text and complete `calls`."""
        held, self._held = self._held, ""
        if self._is_text or not held:
            return held
        found = (
            _hermes(held)
            if self._form == "hermes"
            else _mistral(held)
            if self._form == "mistral"
            else _llama(held)
        )
        calls = [_call(one, self._names) for one in found] if found else []
        if not calls or None in calls:
            return held
        self.calls = [call for call in calls if call][: self._most]
        return ""

    def _take(self, n: int) -> str:
        text, self._held = self._held[:n], self._held[n:]
        return text

    def _before_tag(self) -> int:
        """Return the number of held characters before a tag or the beginning of one.

        White space before a tag belongs to the tag.
        """
        at = self._held.find(OPEN)
        if at < 0:
            at = len(self._held) - max(
                (n for n in range(1, len(OPEN)) if self._held.endswith(OPEN[:n])), default=0
            )
        return len(self._held[:at].rstrip())

    def _may_begin(self, start: str) -> bool:
        if self._form == "llama":
            return start[0] == "{"
        return start[0] == "[" or any(
            name.startswith(start[: len(name)])
            and (len(start) <= len(name) or start[len(name)] in "[{")
            for name in self._names
        )


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _values(text: str, before: str, after: str) -> list[Any] | None:
    """Parse a text that is a sequence of JSON values with separators.

    Args:
        text: The text.
        before: Regular expression that must match before each value.
        after: Regular expression for an optional match after each value.

    Returns:
        Pairs (match of `before`, value); None if the text contains anything else.
    """
    found, at = [], 0
    while at < len(text):
        opened = re.compile(before).match(text, at)
        if not opened:
            return None
        try:
            value, at = json.JSONDecoder().raw_decode(text, opened.end())
        except (ValueError, RecursionError):
            return None
        found.append((opened, value))
        closed = re.compile(after).match(text, at)
        at = closed.end() if closed else at
    return found


def _hermes(text: str) -> list[Any] | None:
    found = _values(text, rf"\s*{OPEN}\s*", rf"\s*({CLOSE})?\s*")
    return found and [value for _, value in found]


def _mistral(text: str) -> list[Any] | None:
    text = text.strip().removeprefix(MISTRAL)
    if text.startswith("["):
        found = _load(text)
        return found if isinstance(found, list) else None
    calls = _values(text, r"\s*(?:\[TOOL_CALLS\])?\s*([\w-]+)(?:\[ARGS\])?\s*", r"\s*")
    return calls and [{"name": opened[1], "arguments": arguments} for opened, arguments in calls]


def _llama(text: str) -> list[Any] | None:
    found = _values(text, r"\s*", r"\s*;?\s*")
    return found and [value for _, value in found]


def _call(found: Any, names: frozenset[str]) -> dict[str, Any] | None:
    """Return a call in OpenAI's format; None if `found` is not a call of a known tool."""
    if not isinstance(found, dict) or found.get("name") not in names:
        return None
    arguments = found.get("arguments", found.get("parameters", {}))
    if not isinstance(arguments, dict):
        return None
    function = {"name": found["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
