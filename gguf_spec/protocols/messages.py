"""Anthropic's dialect, the Messages API: bodies become chats, and answers messages and events."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..options import Speculation
from ..results import Part
from ..tools.families import ToolUse
from ..tools.source import parse as parse_arguments
from . import bodies
from . import schema as s
from .bodies import Body
from .errors import ApiError
from .events import ChoiceEnded, Started
from .fields import note
from .model import Message
from .replies import PartsReply, finish_reason, usage
from .request import REASONING, CompletionRequest, ReasoningFields, Show
from .schema import Fields, Shape


@dataclass(frozen=True)
class MessageShow(Show):
    """What a message shows: whether it names the edits of the conversation; none is made."""

    edits: bool


# ---- errors


# Error code after which clients of Anthropic send whole conversations.
NO_THREADS = "thread_unsupported_request"
# HTTP status -> error type.
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error(refusal: ApiError) -> dict[str, Any]:
    other = "api_error" if refusal.status >= 500 else "invalid_request_error"
    kind, code = _ERROR_TYPES.get(refusal.status, other), refusal.error["code"]
    error = {"type": kind, "message": refusal.error["message"]}
    if long := refusal.too_long:
        error["message"] = f"prompt is too long: {long.n_prompt} tokens > {long.n_ctx} maximum"
    if code == NO_THREADS:
        error["details"] = {"error_code": code, "unsupported": [refusal.error["param"]]}
    return {"type": "error", "error": error}


# ---- bodies

# Fields of blocks that change nothing: marks for the caches and clients of Anthropic.
_IGNORED = ("cache_control", "caller", "citations", "signature", "toolset_name")
_CHOICES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
_THINK = {"enabled": True, "disabled": False, "adaptive": None}


def _block(kind: str, fields: Fields) -> Shape:
    return s.obj({"type": kind, "cache_control?": _MARK} | fields, ignored=_IGNORED)


def _blocks(*blocks: Shape) -> Shape:
    kinds = {one.schema["properties"]["type"]["const"]: one for one in blocks}
    fact = f"must be {' or '.join(kinds)}: other blocks are not supported here."
    return s.tagged("type", kinds, fact)


_MARK = s.unread({"type": "object"})
_OBJECT = s.checked({"type": "object"}, lambda value: isinstance(value, dict), "must be an object.")
_TEXT = _block("text", {"text": s.TEXT})
_BASE64 = s.obj(
    {"type": "base64", "media_type?": s.unread(s.TEXT.schema), "data": bodies.IMAGE_DATA},
    ignored=_IGNORED,
)
_SOURCE = s.tagged("type", {"base64": _BASE64}, "must be base64: nothing is fetched.")
_IMAGE = _block("image", {"source": _SOURCE})

_DOCUMENT_BLOCK = s.obj(
    {"type": "document", "source": _OBJECT}, ignored=("title", "context", *_IGNORED)
)


def _read_document(value: Any, at: str) -> dict[str, Any]:
    """Return a document as a block with its text; one that is no text has a short text instead."""
    source = _DOCUMENT_BLOCK.read(value, at)["source"]
    kind, data = source.get("type"), source.get("data")
    media = source.get("media_type") if isinstance(source.get("media_type"), str) else kind
    text = f"[a document of the type {str(media)[:60]}, which is not read]"
    if kind == "text" and isinstance(data, str):
        text = data
    elif kind == "content":
        text = _TEXTS.read(source.get("content"), f"{at}.source.content")
    elif kind == "base64" and str(media).startswith("text/") and isinstance(data, str):
        with contextlib.suppress(ValueError):
            text = base64.b64decode(data, validate=True).decode()
    else:
        note(f"{at}.source", "Only texts are read.")
    return {"type": "text", "text": text}


_DOCUMENT = Shape(_DOCUMENT_BLOCK.schema, _read_document)
_REFERENCE = _block("tool_reference", {"tool_name": s.TEXT})
_KNOWN = ("text", "image", "document", "thinking", "tool_use", "tool_result", "tool_reference")


def _left_out(some: Shape) -> Shape:
    """Leave out blocks of Anthropic's own tools, and reasoning that cannot be read, of answers."""

    def read(value: Any, at: str) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind in _KNOWN:
            return some.read(value, at)
        note(f"{at}.{kind[:60]}", "Blocks of this type are left out.")
        return None

    return Shape(some.schema, read)


def _read_found(value: Any, at: str) -> dict[str, Any]:
    found = _FOUND_BLOCK.read(value, at)
    return {"type": "text", "text": f"{found['title']} ({found['source']})\n{found['content']}"}


_SOME_TEXTS = s.array(_blocks(_TEXT), "must be a string, or an array of blocks.")
_TEXTS = s.text_or(_SOME_TEXTS.to(lambda blocks: "".join(block["text"] for block in blocks)))
_FOUND_BLOCK = _block("search_result", {"title": s.TEXT, "source": s.TEXT, "content": _TEXTS})
_FOUND = Shape(_FOUND_BLOCK.schema, _read_found)
_RESULT_BLOCKS = bodies.of_result(_blocks(_TEXT, _IMAGE, _DOCUMENT, _REFERENCE, _FOUND))
_RESULTS = s.text_or(s.array(_RESULT_BLOCKS, "must be a string or an array of blocks."))
_RESULT = _block("tool_result", {"tool_use_id": s.ID, "content?": _RESULTS, "is_error?": s.FLAG})
_THOUGHT = _block("thinking", {"thinking": s.TEXT, "signature?": s.unread(s.TEXT.schema)})
_CALL = _block("tool_use", {"id": s.ID, "name": bodies.FUNCTION_NAME, "input": _OBJECT})


def _message(role: str, least: int, blocks: tuple[Shape, ...]) -> Shape:
    fact, some = "must be a string, or an array of blocks that is not empty.", _blocks(*blocks)
    some = _left_out(some) if role == "assistant" else some
    kept = s.array(some, fact, least).to(lambda blocks: [one for one in blocks if one is not None])
    return s.obj({"role": role, "content": s.text_or(kept)}, ignored=("id", "type", *_IGNORED))


_MESSAGES = bodies.conversation(
    {
        "user": _message("user", 1, (_TEXT, _IMAGE, _RESULT, _DOCUMENT, _FOUND)),
        "assistant": _message("assistant", 0, (_TEXT, _THOUGHT, _CALL)),
        "system": _message("system", 1, (_TEXT,)).hidden,
    }
)
_TOOL = s.obj(
    {name: one for name, one in bodies.FUNCTION_FIELDS.items() if name != "parameters?"}
    | {"input_schema": s.JSON_SCHEMA, "defer_loading?": s.FLAG},
    ignored=("type", "cache_control", "eager_input_streaming", "input_examples"),
)
_CHOICE = s.obj(
    {"type": {"enum": [*_CHOICES]}, "name?": s.TEXT.schema, "disable_parallel_tool_use?": s.FLAG}
)
_BUDGET = s.whole_number(1, 10**9)
_FORMAT = s.checked(
    s.object_of({"type": "json_schema", "schema": s.JSON_SCHEMA}),
    lambda value: (
        isinstance(value, dict)
        and value.get("type") == "json_schema"
        and isinstance(value.get("schema"), dict)
    ),
    "must be of the type json_schema, with a schema.",
)


def _thinking(kind: str, more: Fields | None = None) -> Shape:
    # The whole reasoning is sent in any case.
    return s.obj({"type": kind, "display?": s.unread(s.TEXT.schema), **(more or {})})


# Fields that decide the prompt: those of a request to count its tokens.
_PROMPT_FIELDS: dict[str, Shape] = {
    "model": s.TEXT,
    "messages": _MESSAGES,
    "system": _TEXTS,
    "tools": Shape(
        s.array_of(_TOOL),
        lambda value, at: [_TOOL.read(*one) for one in bodies.own(value, at, ("custom", None))],
    ),
    "tool_choice": s.tagged(
        "type",
        dict.fromkeys(_CHOICES, _CHOICE),
        f"must be an object of the type {', '.join(_CHOICES)}.",
        "invalid_value",
        at_key=False,
    )._replace(schema=_CHOICE.schema),
    "thinking": s.tagged(
        "type",
        {
            "enabled": _thinking("enabled", {"budget_tokens?": _BUDGET}),
            **{kind: _thinking(kind) for kind in ("disabled", "adaptive")},
        },
        f"must be an object of the type {', '.join(_THINK)}.",
        "invalid_value",
        at_key=False,
    ),
    "output_config": s.obj({"effort?": bodies.EFFORT, "format?": _FORMAT}),
    "chat_template_kwargs": bodies.TEMPLATE_KWARGS,
}
PROMPT = Body("messages", _PROMPT_FIELDS, "messages")
_SHARED = {name: one for name, one in bodies.SHARED.items() if name != "stop"}
BODY = Body(
    "messages", _SHARED | {"stop_sequences": bodies.STOP_SEQUENCES} | _PROMPT_FIELDS, "messages"
)
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
    data: dict[str, Any], default: Speculation, most: int | None, described: Body = BODY
) -> CompletionRequest:
    """Convert the body of a request; `described` is `PROMPT` where its tokens are counted."""
    edits = isinstance(data.get("context_management"), dict)
    if data.get("thread") is not None:
        fact = "thread is not supported: send all messages of the conversation."
        raise ApiError(fact, "thread", NO_THREADS)
    data, names = described.read(data)
    system = [{"role": "system", "content": data["system"]}] if data.get("system") else []
    tools = {one["name"]: one for one in data.get("tools", [])}
    referenced = _resolve(data["messages"], tools)
    data["tools"] = [
        one
        for one in data.get("tools", [])
        if not one.get("defer_loading") or one["name"] in referenced
    ]
    messages = [*system, *(one for message in data["messages"] for one in _converted(message))]
    config, thinking = data.get("output_config", {}), data.get("thinking", {})
    effort, kwargs = config.get("effort"), data.get("chat_template_kwargs", {})
    think, budget = _THINK.get(thinking.get("type")), thinking.get("budget_tokens")
    think, budget = (
        data.get("_reasoning", {}).get(name, one)
        for name, one in (("think", think), ("budget", budget))
    )
    # The field that decides whether the model reasons.
    decides = (name for name in ("thinking", "output_config") if data.get(name))
    names |= _NAMES | {"think": next(decides, "chat_template_kwargs")}
    if "think_budget" in data:
        del names["think_budget"]
    fields = {
        "stop": data.get("stop_sequences", ()),
        "json_schema": config.get("format", {}).get("schema"),
    }
    request = bodies.request_of(
        data | fields,
        default,
        most,
        names,
        messages=messages,
        tools=_tools(data),
        reasoning=ReasoningFields(effort, kwargs, think, budget),
    )
    return replace(request, show=MessageShow(edits))


def _resolve(messages: list[dict[str, Any]], tools: Mapping[str, dict[str, Any]]) -> set[str]:
    """Write the definition of a tool in place of each reference to it; return their names."""
    names = set()
    results = (
        part
        for message in messages
        if isinstance(message["content"], list)
        for block in message["content"]
        if isinstance(block.get("content"), list)
        for part in block["content"]
        if part["type"] == "tool_reference"
    )
    for part in results:
        name = part.pop("tool_name")
        names.add(name)
        shown = ("name", "description", "input_schema")
        tool = {key: one for key, one in tools.get(name, {"name": name}).items() if key in shown}
        part |= {"type": "text", "text": json.dumps(tool, ensure_ascii=False)}
    return names


def _tools(data: dict[str, Any]) -> ToolUse:
    choice = data.get("tool_choice", {"type": "auto"})
    functions = [one | {"parameters": one["input_schema"]} for one in data.get("tools", [])]
    names, only = bodies.check_different(functions), None
    if choice["type"] == "tool":
        only = bodies.given_name(choice.get("name"), names, "tool_choice.name")
    parallel = not choice.get("disable_parallel_tool_use")
    return bodies.tool_use(functions, _CHOICES[choice["type"]], only, parallel)


def _converted(message: dict[str, Any]) -> list[Message]:
    """Return messages as chat templates read them; results of tools become some of their own."""
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        return [message]
    if role == "assistant":
        return [_answer(content)]
    read: list[Message] = []
    for block in content:
        if block["type"] == "tool_result":
            parts = block.get("content", "")
            parts = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
            # Chat templates have no field for an error.
            error = [{"type": "text", "text": "Error: "}] if block.get("is_error") else []
            parts = [*error, *map(_part, parts)]
            read.append({"role": "tool", "content": parts, "tool_call_id": block["tool_use_id"]})
            continue
        if not read or read[-1]["role"] != role:
            read.append({"role": role, "content": []})
        read[-1]["content"].append(_part(block))
    for one in read:
        if isinstance(one["content"], list):
            one["content"] = bodies.content_of(one["content"])
    return read


def _part(block: dict[str, Any]) -> dict[str, Any]:
    image = block.get("source")
    return {"type": "image_url", "image_url": image["data"]} if image else block


def _answer(blocks: list[dict[str, Any]]) -> Message:
    read: Message = {"role": "assistant", "content": ""}
    for block in blocks:
        if block["type"] == "text":
            read["content"] += block["text"]
        elif block["type"] == "thinking":
            read[REASONING] = read.get(REASONING, "") + block["thinking"]
        else:
            function = {"name": block["name"], "arguments": block["input"]}
            call = {"id": block["id"], "type": "function", "function": function}
            read.setdefault("tool_calls", []).append(call)
    return read


# ---- answers

# Kind of a part -> type of its block and of its deltas, their field with the text, and the further
# fields of the block: reasoning is not signed.
_BLOCKS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "text": ("text", "text_delta", "text", {}),
    "reasoning": ("thinking", "thinking_delta", "thinking", {"signature": ""}),
}


class MessageReply(PartsReply):
    """Converts the events of one job to a message and its events."""

    response: dict[str, Any]

    _error = staticmethod(anthropic_error)

    def __init__(self, request: CompletionRequest, started: Started) -> None:
        super().__init__(request, started)
        self._kind: str | None = None  # of the open block
        self._text = ""
        self.response = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": started.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _counts(started.n_prompt, 0, 0),
        }
        if request.shown(MessageShow).edits:  # nothing is removed
            self.response["context_management"] = {"applied_edits": []}

    def first(self) -> list[dict[str, Any]]:
        return [
            {"type": "message_start", "message": self.response | {"content": []}},
            {"type": "ping"},
        ]

    def ended(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        result = ended.result
        finish = finish_reason(result.finish_reason, ended.why)
        events = self._made() + self._close()
        for call in self.calls:
            events += self._call(call["id"], **call["function"])
        reason = "max_tokens" if finish == "length" else "end_turn"
        if self.calls:
            reason = "tool_use"
        elif result.stop_string is not None:
            reason = "stop_sequence"
        stop = {
            "stop_reason": reason,
            "stop_sequence": result.stop_string if reason == "stop_sequence" else None,
        }
        used = _counts(result.stats.n_prompt, result.stats.n_cached, result.stats.n_generated)
        used |= {"speculation": usage([result])["speculation"]}
        self.response |= stop | {"usage": used, "seed": result.seed}
        names = ("context_management",)
        more = {name: self.response[name] for name in names if name in self.response}
        return [*events, {"type": "message_delta", "delta": stop, "usage": used, **more}]

    def finished(self) -> list[dict[str, Any]]:
        return [{"type": "message_stop"}]

    # ---- blocks

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": f"content_block_{kind}", "index": len(self.response["content"]), **fields}

    def _end(self, block: dict[str, Any]) -> dict[str, Any]:
        """Return the last event of the open block, and keep the block."""
        event = self._event("stop")
        self.response["content"].append(block)
        return event

    def _add(self, part: Part) -> list[dict[str, Any]]:
        block_type, delta_type, name, more = _BLOCKS[part.kind]
        events = []
        if self._kind != part.kind:
            events = self._close()
            self._kind, self._text = part.kind, ""
            events.append(self._event("start", content_block={"type": block_type, name: ""} | more))
        self._text += part.text
        return [*events, self._event("delta", delta={"type": delta_type, name: part.text})]

    def _close(self) -> list[dict[str, Any]]:
        if self._kind is None:
            return []
        (block_type, _, name, more), self._kind = _BLOCKS[self._kind], None
        signature = [self._event("delta", delta={"type": "signature_delta"} | more)] if more else []
        return [*signature, self._end({"type": block_type, name: self._text} | more)]

    def _call(self, id_: str, name: str, arguments: str) -> list[dict[str, Any]]:
        id_ = f"toolu_{id_.removeprefix('call_')}"
        block = {"type": "tool_use", "id": id_, "name": name, "input": {}}
        return [
            self._event("start", content_block=block),
            self._event("delta", delta={"type": "input_json_delta", "partial_json": arguments}),
            self._end(block | {"input": parse_arguments(arguments)}),
        ]


def _counts(n_prompt: int, n_cached: int, n_generated: int) -> dict[str, Any]:
    """Return the token counts of a usage object; `input_tokens` leaves out cached tokens."""
    cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": n_cached}
    return {"input_tokens": n_prompt - n_cached, "output_tokens": n_generated} | cached
