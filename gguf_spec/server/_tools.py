"""Calls of tools in what a model writes: three forms, told apart by the model's template."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any, Literal

Form = Literal["hermes", "mistral", "llama"]
_OPEN, _CLOSE, _MISTRAL = "<tool_call>", "</tool_call>", "[TOOL_CALLS]"


def form_of(template: str) -> Form:
    """Return how a model with this template writes a call.

    `hermes`, Qwen too: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. `mistral`: `[TOOL_CALLS][{...}]` or `[TOOL_CALLS]name[ARGS]{...}`.
    `llama`: the whole answer is `{"name": ..., "parameters": {...}}`, or several of them with semicolons between.
    """
    return "hermes" if _OPEN in template else "mistral" if _MISTRAL in template else "llama"


class ToolReader:
    """Parts an answer, as it comes, into text that can be shown and calls.

    What begins like a call is held back until it is one, or is none: then it is text after all.
    """

    def __init__(self, form: Form, names: Sequence[str]) -> None:
        self._form, self._names = form, frozenset(names)
        self._held = ""
        self._is_text = False  # whether nothing that follows can be a call
        self.calls: list[dict[str, Any]] = []

    def push(self, text: str) -> str:
        """Return the text that is certain to be no call."""
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
        """Return the rest of the text; from then on `calls` is complete."""
        held, self._held = self._held, ""
        if self._is_text or not held:
            return held
        found = _hermes(held) if self._form == "hermes" else _mistral(held) if self._form == "mistral" else _llama(held)
        calls = [_call(one, self._names) for one in found] if found else []
        if not calls or None in calls:
            return held
        self.calls = [call for call in calls if call]
        return ""

    def _take(self, n: int) -> str:
        text, self._held = self._held[:n], self._held[n:]
        return text

    def _before_tag(self) -> int:
        """Return how much of the held text comes before a tag, or what may become one; white space before it belongs to it."""
        at = self._held.find(_OPEN)
        if at < 0:
            at = len(self._held) - max((n for n in range(1, len(_OPEN)) if self._held.endswith(_OPEN[:n])), default=0)
        return len(self._held[:at].rstrip())

    def _may_begin(self, start: str) -> bool:
        if self._form == "llama":
            return start[0] == "{"
        return start[0] == "[" or any(
            name.startswith(start[: len(name)]) and (len(start) <= len(name) or start[len(name)] in "[{") for name in self._names
        )


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _hermes(text: str) -> list[Any] | None:
    parts = text.split(_OPEN)
    bodies = [part.partition(_CLOSE) for part in parts[1:]]
    if parts[0].strip() or any(after.strip() for _, _, after in bodies):
        return None
    return [_load(body) for body, _, _ in bodies]


def _mistral(text: str) -> list[Any] | None:
    text = text.strip().removeprefix(_MISTRAL)
    if text.startswith("["):
        found = _load(text)
        return found if isinstance(found, list) else None
    calls = [re.fullmatch(r"\s*([\w-]+)(?:\[ARGS\])?\s*(\{.*\})\s*", part, re.DOTALL) for part in text.split(_MISTRAL)]
    return [call and {"name": call[1], "arguments": _load(call[2])} for call in calls]


def _llama(text: str) -> list[Any]:
    whole = _load(text)
    return [whole] if whole is not None else [_load(part) for part in text.split(";") if part.strip()]


def _call(found: Any, names: frozenset[str]) -> dict[str, Any] | None:
    """Return a call in OpenAI's form; None for what calls none of the tools."""
    if not isinstance(found, dict) or found.get("name") not in names:
        return None
    arguments = found.get("arguments", found.get("parameters", {}))
    if not isinstance(arguments, dict):
        return None
    function = {"name": found["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
