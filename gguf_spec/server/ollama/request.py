"""Conversion of Ollama's requests for text to the requests of OpenAI's routes.

The same messages with the same options therefore give the same text on both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...options import Speculation
from ..errors import ApiError, bad, unsupported
from ..requests import CompletionRequest, read_chat, read_text
from ..values import flag, string
from .fields import OPTIONS, known_fields, read_options

_SHARED = frozenset(
    {"model", "stream", "options", "format", "think", "logprobs", "top_logprobs", "speculation"}
)
_CHAT = _SHARED | {"messages", "tools"}
_GENERATE = _SHARED | {"prompt", "system", "suffix", "raw", "images"}
_MESSAGE = frozenset({"role", "content", "thinking", "images", "tool_calls", "tool_name"})
EFFORTS = ("low", "medium", "high")
# Name of an option here -> name in Ollama's requests, for errors.
_NAMES = {here: f"options.{name}" for name, here in OPTIONS.items() if here not in ("stop", "seed")}
_NAMES |= {"stop": "options.stop", "seed": "options.seed", "think": "think"}
_NAMES |= {"json_schema": "format"}


def read_ollama_chat(
    data: dict[str, Any], default: Speculation, most: int | None
) -> CompletionRequest:
    """Convert the body of `/api/chat`.

    Raises:
        ApiError: A field is invalid.
    """
    given = known_fields(data, _CHAT)
    body = _shared(given) | {"messages": _messages(given.get("messages"))}
    if tools := given.get("tools"):
        body["tools"] = tools
    return _named(lambda: read_chat(body, default, most))


def read_ollama_generate(
    data: dict[str, Any], default: Speculation, most: int | None
) -> CompletionRequest:
    """Convert the body of `/api/generate`.

    The prompt is a message of the user, unless `raw` is set or the text after the answer is given.

    Raises:
        ApiError: A field is invalid.
    """
    given = known_fields(data, _GENERATE)
    prompt, system = (string(given.get(name, ""), name) for name in ("prompt", "system"))
    body = _shared(given)
    images = given.get("images")
    if flag(given, "raw") or given.get("suffix"):
        if images:
            raise ApiError("images need a prompt without raw and suffix.", "images", "conflict")
        if system or body.keys() & {"response_format", "reasoning_effort", "chat_template_kwargs"}:
            raise ApiError(
                "system, format and think need a prompt without raw and suffix.", "raw", "conflict"
            )
        body |= {"prompt": prompt, "max_tokens": body.get("max_tokens", -1)}
        body |= {"suffix": given["suffix"]} if given.get("suffix") else {}
        if body.pop("logprobs", False):
            body["logprobs"] = body.pop("top_logprobs", 0)
        return _named(lambda: read_text(body, default, most))
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    content = _with_images(images, prompt, "prompt") if images else prompt
    messages.append({"role": "user", "content": content})
    return _named(lambda: read_chat(body | {"messages": messages}, default, most))


def _shared(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of both routes with the names of OpenAI's."""
    body = read_options(given.get("options"))
    body |= {
        name: given[name] for name in ("logprobs", "top_logprobs", "speculation") if name in given
    }
    body["stream"] = given.get("stream", True)
    return body | _format(given.get("format")) | _think(given.get("think"))


def _format(value: Any) -> dict[str, Any]:
    """Return `format` as a response format."""
    if value in (None, ""):
        return {}
    if value == "json":
        return {"response_format": {"type": "json_object"}}
    if not isinstance(value, dict):
        raise bad("format", "must be json or a JSON schema.")
    form = {"name": "format", "schema": value}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def _think(value: Any) -> dict[str, Any]:
    """Return `think` as the fields about reasoning."""
    if value is None:
        return {}
    if value is True:  # an error where the model does not reason
        return {"chat_template_kwargs": {"enable_thinking": True}}
    if value is False:
        return {"reasoning_effort": "none"}
    if value not in EFFORTS:
        raise bad("think", f"must be true, false, or one of {', '.join(EFFORTS)}.")
    return {"reasoning_effort": value}


def _messages(value: Any) -> list[dict[str, Any]]:
    """Return messages in OpenAI's form; the calls of tools get ids, which Ollama does not have."""
    if not isinstance(value, list):
        raise bad("messages", "must be an array of messages.")
    found: list[dict[str, Any]] = []
    ids = CallIds()
    for i, message in enumerate(value):
        at = f"messages[{i}]"
        if not isinstance(message, dict):
            raise bad(at, "must be an object.")
        given = {name: one for name, one in message.items() if one not in (None, [])}
        for name in given:
            if name not in _MESSAGE:
                raise unsupported(f"{at}.{name[:100]}")
        found.append(_message(given, at, ids))
    return found


def _with_images(value: Any, text: Any, at: str) -> list[dict[str, Any]]:
    """Return the content of a message with images, which come before its text."""
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise bad(f"{at}.images", "must be an array of images in base64.")
    urls = [{"url": f"data:image/any;base64,{one}"} for one in value]
    parts = [{"type": "image_url", "image_url": url} for url in urls]
    return [*parts, {"type": "text", "text": text}]


class CallIds:
    """Ids of the calls in a conversation: an answer of a tool belongs to the first open call."""

    def __init__(self) -> None:
        self._n = 0
        self._open: list[tuple[str, str]] = []  # name, id

    def call(self, name: str) -> str:
        """Return the id of a new call."""
        self._n += 1
        self._open.append((name, f"call{self._n:05}"))
        return self._open[-1][1]

    def answer(self, name: str | None) -> str:
        """Return the id of the call that an answer belongs to."""
        known = [one for one in self._open if name in (None, one[0])] or self._open
        if not known:
            return "call00000"
        found = known[0]
        self._open.remove(found)
        return found[1]


def _message(given: dict[str, Any], at: str, ids: CallIds) -> dict[str, Any]:
    message = {"role": given.get("role"), "content": given.get("content", "")}
    if "images" in given:
        message["content"] = _with_images(given["images"], message["content"], at)
    if thinking := given.get("thinking"):
        message["reasoning_content"] = thinking
    if message["role"] == "tool":
        name = given.get("tool_name")
        if not isinstance(name, (str, type(None))):
            raise bad(f"{at}.tool_name", "must be a string.")
        message["tool_call_id"] = ids.answer(name)
        message |= {"name": name} if name else {}
    elif "tool_name" in given:
        raise bad(f"{at}.tool_name", "is only allowed in a message of the role tool.")
    calls = given.get("tool_calls")
    if calls is not None:
        message["tool_calls"] = _calls(calls, f"{at}.tool_calls", ids)
    return message


def _calls(value: Any, at: str, ids: CallIds) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise bad(at, "must be an array of calls.")
    calls = []
    for i, call in enumerate(value):
        function = call.get("function") if isinstance(call, dict) else None
        arguments = function.get("arguments", {}) if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(arguments, dict):
            raise bad(f"{at}[{i}]", "must have a function with a name and arguments.")
        name = function.get("name")
        written = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        calls.append({"id": ids.call(str(name)), "type": "function", "function": written})
    return calls


def _named(read: Callable[[], CompletionRequest]) -> CompletionRequest:
    """Return what `read` returns; its errors name the fields of Ollama."""
    try:
        asked = read()
    except ApiError as error:
        param = str(error.error["param"])
        if param not in _NAMES and not param.startswith(("response_format", "reasoning")):
            raise
        name = _NAMES.get(param, "format" if param.startswith("response") else "think")
        message = error.error["message"].replace(param, name)
        raise ApiError(message, name, error.error["code"], error.status) from None
    return replace(asked, names=asked.names | _NAMES)
