"""OpenAI's Responses API: bodies become chats, and answers responses and their events.

An item of the input is read as an item with all its fields, as a stored response repeats it.
"""

from __future__ import annotations

import base64
import binascii
import copy
import itertools
import json
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Protocol

from ..options import Speculation
from ..results import Completion, Part, Stats
from ..tools.families import ToolUse
from . import bodies
from . import schema as s
from .bodies import Body
from .errors import ApiError, invalid_value
from .events import ChoiceEnded, ChunkEvent, PromptRead, Started, TokenInfo
from .fields import OTHER_FIELDS, note, same
from .model import Message
from .replies import FINGERPRINT, PartsReply, finish_reason, prompt_progress, timings, usage
from .request import REASONING, CompletionRequest, ReasoningFields, Show
from .schema import Fields, Shape

Item = dict[str, Any]
# Returns the item of a stored response with an id, or None.
FindItem = Callable[[str], Item | None]

_ITEM_BYTES = 1024  # of one item of a conversation, about


class Store(Protocol):
    """Earlier responses, to which a body may refer, and where an answer is kept."""

    def conversation(self, id_: str, param: str) -> list[Item]:
        """Return the items of a response and of its input; `ApiError` if it is not kept."""

    def finder(self) -> FindItem:
        """Return a function that looks up items by their ids."""

    def add(self, response: dict[str, Any], items: Sequence[Item]) -> None:
        """Keep a response with the items of its input."""


@dataclass(frozen=True)
class ResponseShow(Show):
    """What a response shows.

    Attributes:
        fields: Its id and its time, and fields of the body that it repeats.
        items: All items of the input, those of earlier responses included.
        store: Where it is kept; None for nowhere.
        calls: Name of a tool here -> what the item of its call has: its type, and its own name.
        shows_drafts: Whether the events of a stream mark the text that was drafted.
    """

    fields: dict[str, Any]
    items: list[Item]
    store: Store | None
    calls: dict[str, dict[str, Any]]
    shows_drafts: bool = False

    @property
    def goes_on(self) -> bool:
        is_background: bool = self.fields["background"]
        return is_background


# ---- files with text

MOST_BYTES = 1 << 20  # of one file
_FILE_KEYS = {"type", "filename", "file_data", "detail", "prompt_cache_breakpoint"}
_NAME_LENGTH_MAX = 256
_DATA_URL = re.compile(r"data:([\w.+/-]*)((?:;[\w.+-]+=[^;,]*)*);base64,", re.ASCII)
# Media types of text that do not begin with `text/`.
_TEXT_TYPES = frozenset(
    f"application/{name}"
    for name in (
        "json", "jsonl", "x-ndjson", "xml", "yaml", "x-yaml", "toml", "javascript",
        "x-javascript", "typescript", "sql", "x-sh", "x-python",
    )
)  # fmt: skip


def read_file(part: dict[str, Any], at: str) -> str:
    """Return the text of a part of the type `input_file`, as a code block with the file's name."""
    for name, value in part.items():
        if name not in _FILE_KEYS and value is not None:
            fact = "is not supported: send the text of the file in file_data."
            raise s.unsupported(f"{at}.{name[:100]}", fact)
    name = part.get("filename") or "file"
    if not isinstance(name, str) or len(name) > _NAME_LENGTH_MAX or not name.isprintable():
        raise invalid_value(
            f"{at}.filename", f"must be a line of at most {_NAME_LENGTH_MAX} characters."
        )
    text = _file_text(part.get("file_data"), f"{at}.file_data")
    # The fence is longer than any in the text.
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"File {name}:\n{fence}\n{text.removesuffix(chr(10))}\n{fence}"


def _file_text(url: Any, at: str) -> str:
    head = _DATA_URL.match(url) if isinstance(url, str) else None
    if not head:
        raise invalid_value(at, "must be a data URL: data:text/plain;base64,...")
    kind = head[1].lower() or "text/plain"
    if not (kind.startswith("text/") or kind in _TEXT_TYPES or kind.endswith(("+json", "+xml"))):
        raise s.unsupported(at, f"has the type {kind[:60]}: only files with text are supported.")
    encoded = url[head.end() :]
    if len(encoded) > MOST_BYTES * 4 // 3 + 4:
        raise invalid_value(at, f"may contain at most {MOST_BYTES:,} bytes.")
    try:
        text = base64.b64decode(encoded, validate=True).decode("utf-8-sig")
    except (binascii.Error, UnicodeDecodeError):
        raise invalid_value(at, "must be the Base64 form of a text in UTF-8.") from None
    if "\0" in text:
        raise invalid_value(at, "must be a text, without zero characters.")
    return text


# ---- parts and items

# Fields without effect of items and parts: marks of this API and of its clients.
_IGNORED = frozenset(
    {
        "annotations", "caller", "created_by", "internal_chat_message_metadata_passthrough",
        "logprobs", "parsed", "parsed_arguments", "phase", "prompt_cache_breakpoint",
        "status",
    }
)  # fmt: skip
# Types of parts -> their field with the text.
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


def _with_text(text: str, kind: str) -> dict[str, Any]:
    more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return {"type": kind, "text": text} | more


_IMAGE = s.obj(
    {
        "type": "input_image",
        "image_url": Shape(s.TEXT.schema, bodies.IMAGE_URL.read),
        "detail?": s.unread(s.TEXT.schema),
    },
    ignored=_IGNORED,
)
_FILE = Shape(
    s.object_of({"type": "input_file", "filename?": s.TEXT, "file_data": s.TEXT}), read_file
)


def _content(kind: str, *, is_result: bool = False) -> Shape:
    """Return the description of the content of a message or of an output, read as parts.

    In a result a text is read as it is, and a short text stands for unreadable parts.
    """
    parts, fact = dict[str, Shape](), f"must be {kind}: other parts are not supported."
    for name, field in _TEXT_PARTS.items():
        part = s.obj({"type": name, field: s.TEXT}, ignored=_IGNORED)
        part = part.to(lambda found: _with_text(found.get("text", found.get("refusal")), kind))
        parts[name] = part if name == kind else part.hidden
    if kind == "input_text":
        image = {"type": "input_image", "detail": "auto"}
        file = {"type": "input_file", "filename": "file"}
        parts["input_image"] = _IMAGE.as_given().to(lambda part: image | part)
        parts["input_file"] = _FILE.as_given().to(lambda part: file | part)
        fact = fact.replace(kind, f"{kind}, input_image or input_file")
    part = s.tagged("type", parts, fact)
    part = bodies.of_result(part, ("input_text", *_TEXT_PARTS)) if is_result else part
    some = s.array(part, "must be a string, or an array of parts.")
    as_part = s.TEXT.to(lambda text: [_with_text(text, kind)])
    return s.text_or(some, s.TEXT if is_result else as_part)


def _thoughts(kind: str) -> Shape:
    part = s.obj({"type": kind, "text": s.TEXT}, ignored=_IGNORED)
    part = part.to(lambda found: {"type": kind, "text": found["text"]})
    return s.array(part, "must be an array of parts.")


def _item(kind: str, prefix: str, fields: Fields) -> Shape:
    """Return the description of an item, which is read with all its fields."""

    def complete(found: dict[str, Any]) -> Item:
        head = {"type": kind, "id": found.get("id") or new_id(prefix), "status": "completed"}
        names = [name.rstrip("?") for name in fields]
        return head | {name: found[name] for name in names if name in found}

    return s.obj({"type?": kind, "id?": s.or_empty(s.ID)} | fields, ignored=_IGNORED).to(complete)


_REASONING = _item(
    "reasoning",
    "rs",
    {
        "summary?": _thoughts("summary_text"),
        "content?": _thoughts("reasoning_text"),
        "encrypted_content?": s.given({}).hidden,
    },
)


def _read_reasoning(item: Any, at: str) -> Item:
    read = _REASONING.read(item, at)
    head = {name: read[name] for name in ("type", "id", "status")}
    head |= {"summary": read.get("summary", []), "content": read.get("content", [])}
    if read.get("encrypted_content") and not head["content"] and not head["summary"]:
        note(f"{at}.encrypted_content", "This server sends reasoning as content.")
    return head


_INPUT, _OUTPUT = _content("input_text"), _content("output_text")
_CONTENTS = {"user": _INPUT, "assistant": _OUTPUT, "system": _INPUT, "developer": _INPUT}
_MESSAGES = {
    role: _item("message", "msg", {"role": role, "content": content})
    for role, content in _CONTENTS.items()
}
_ROLE_FACT = f"must be one of {', '.join(_MESSAGES)}."
_CALL = {"call_id": s.ID, "name": bodies.FUNCTION_NAME, "namespace?": s.or_empty(s.TEXT)}
_RESULT = {"call_id": s.ID, "output": _content("input_text", is_result=True)}
_OF_TOOLS: dict[str, tuple[str, Fields]] = {  # prefix of the ids, fields
    "function_call": ("fc", _CALL | {"arguments": s.TEXT}),
    "custom_tool_call": ("ctc", _CALL | {"input": s.TEXT}),
    "custom_tool_call_output": ("ctco", _RESULT),
    "function_call_output": ("fco", _RESULT),
}
_ITEMS = {
    "message": s.tagged("role", _MESSAGES, _ROLE_FACT, "invalid_value"),
    **{kind: _item(kind, one[0], {"type": kind, **one[1]}) for kind, one in _OF_TOOLS.items()},
    "reasoning": Shape(_REASONING.schema, _read_reasoning),
}
_REFERENCE = s.object_of({"type": "item_reference", "id": s.ID})
_ITEM_SCHEMAS = [*(one.schema for one in _ITEMS.values()), _REFERENCE]


def read_input(value: Any, find: FindItem) -> list[Item]:
    """Return the field `input` as a list of complete items; `find` looks up references."""
    if isinstance(value, str):
        return [_ITEMS["message"].read({"role": "user", "content": value}, "input")]
    if not isinstance(value, list) or not value:
        raise invalid_value("input", "must be a string, or an array with at least one item.")
    items = []
    ids: set[str] = set()
    for i, given in enumerate(value):
        item = _read_item(given, f"input[{i}]", find)
        if item is None:
            continue
        if item["id"] in ids:
            if given.get("type") == "item_reference":
                # a few of them must not stand for a large conversation
                raise invalid_value(f"input[{i}].id", "is that of an item before it.")
            item["id"] = new_id("item")
        items.append(item)
        ids.add(item["id"])
    if not items:
        raise s.unsupported("input[0].type", f"must be one of {', '.join(_ITEMS)}.")
    return items


def _other_item(item: Item, kind: str, at: str) -> Item | None:
    """Return a call or a result of another kind of tool as that of a function; else None.

    Items of other kinds, such as those of tools that OpenAI runs, are left out.
    """
    if not item.get("call_id"):
        note(f"{at}.{kind[:60]}", "Items of this type are left out.")
        return None
    left = {"type", "id", "call_id", "status", "output"} | _IGNORED
    fields = {name: one for name, one in item.items() if name not in left and one is not None}
    if kind.endswith("_output"):
        output = item.get("output", fields)
        is_content = isinstance(output, str) or (
            isinstance(output, list) and all(isinstance(x, dict) and "text" in x for x in output)
        )
        text = output if is_content else json.dumps(output, ensure_ascii=False)
        call: Item = {"type": "function_call_output", "output": text}
    else:
        name = str(fields.pop("name", None) or kind.removesuffix("_call"))[:128]
        name = re.sub(r"[^a-zA-Z0-9_-]", "_", name)
        arguments = json.dumps(fields, ensure_ascii=False)
        call = {"type": "function_call", "name": name, "arguments": arguments}
    call |= {name: item[name] for name in ("id", "call_id") if name in item}
    return dict(_ITEMS[call["type"]].read(call, at))


def _read_item(item: Any, at: str, find: FindItem) -> Item | None:
    if not isinstance(item, dict):
        raise invalid_value(at, "must be an object.")
    kind = item.get("type") or "message"
    if kind == "item_reference":
        found = find(s.TEXT.read(item.get("id"), f"{at}.id"))
        if found is None:
            fact = "names an item that is not stored, or not any more: send the item itself."
            raise ApiError(f"{at}.id {fact}", f"{at}.id", "item_not_found", 404)
        return found
    if not isinstance(kind, str):
        raise invalid_value(f"{at}.type", "must be a string.")
    shape = _ITEMS.get(kind)
    return _other_item(item, kind, at) if shape is None else dict(shape.read(item, at))


# ---- messages for the chat template


def messages_of(instructions: str | None, items: Iterable[Item]) -> list[Message]:
    """Return messages; the items of a turn (reasoning, text, calls) form one of the assistant."""
    messages: list[Message] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        kind = item["type"]
        if kind == "message" and item["role"] == "assistant":
            _turn(messages, "content", "tool_calls")["content"] = text_of(item["content"])
        elif kind == "message":
            role = "system" if item["role"] == "developer" else item["role"]
            messages.append({"role": role, "content": _with_images(item["content"])})
        elif kind == "reasoning":
            text = "".join(part["text"] for part in item["content"] or item["summary"])
            if not text:
                continue
            turn = _turn(messages, "content", "tool_calls")
            turn[REASONING] = turn.get(REASONING, "") + text
        elif kind in ("function_call", "custom_tool_call"):
            arguments: Any = {"input": item.get("input")}
            if kind == "function_call":
                arguments = bodies.read_arguments(item["arguments"], "arguments")
            function = {"name": _joined_name(item), "arguments": arguments}
            call = {"id": item["call_id"], "type": "function", "function": function}
            _turn(messages).setdefault("tool_calls", []).append(call)
        else:
            output = item["output"]
            content = output if isinstance(output, str) else _with_images(output)
            messages.append({"role": "tool", "content": content, "tool_call_id": item["call_id"]})
    return messages


def _joined_name(call: Item) -> str:
    """Return the name of a function for the model: that of its namespace comes first."""
    space = call.get("namespace")
    return f"{space}__{call['name']}" if space else call["name"]


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
    """Return the running turn of the assistant, which a field of `is_over` ends, or begin one."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or any(map(last.get, is_over)):
        last = {"role": "assistant", "content": ""}
        messages.append(last)
    return last


def _with_images(parts: Sequence[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return the content of a message: its texts, with the images between them."""
    found: list[dict[str, Any]] = []
    for is_image, some in groupby(parts, lambda part: part["type"] == "input_image"):
        if is_image:
            urls = [part["image_url"] for part in some]
            images = [bodies.IMAGE_URL.read(url, "input") for url in urls]
            found += [{"type": "image_url", "image_url": image} for image in images]
        else:
            found.append({"type": "text", "text": text_of([*some])})
    return bodies.content_of(found)


# ---- body


# What `include` may name: log-probabilities, and parts of answers that this server never has.
TOKEN_LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (
    TOKEN_LOGPROBS, "reasoning.encrypted_content", "file_search_call.results",
    "web_search_call.results", "web_search_call.action.sources",
    "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)  # fmt: skip
_SUMMARIES = ("auto", "concise", "detailed")
_METADATA_MAX, _METADATA_KEY_MAX, _METADATA_VALUE_MAX = 16, 64, 512
# Name of an option or of a field of the chat route -> field here.
_NAMES = {
    "prompt": "input",
    "json_schema": "text.format",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "tools[].function.parameters": "tools[].parameters",
    "reasoning_effort": "reasoning.effort",
}
_METADATA = s.checked(
    {
        "type": "object",
        "maxProperties": _METADATA_MAX,
        "propertyNames": {"maxLength": _METADATA_KEY_MAX},
        "additionalProperties": {"type": "string", "maxLength": _METADATA_VALUE_MAX},
    },
    lambda value: (
        isinstance(value, dict)
        and len(value) <= _METADATA_MAX
        and all(len(key) <= _METADATA_KEY_MAX for key in value)
        and all(isinstance(x, str) and len(x) <= _METADATA_VALUE_MAX for x in value.values())
    ),
    f"must be an object of at most {_METADATA_MAX} texts of at most {_METADATA_VALUE_MAX} "
    f"characters, with names of at most {_METADATA_KEY_MAX}.",
)
_EMPTY = {"type": "function", "name": "", "description": None, "parameters": None, "strict": False}
_NAMED: dict[str, Any] = {"type": "function", "name": bodies.FUNCTION_NAME}
_TOOL = s.obj(_NAMED | {"description?": s.TEXT, "parameters?": s.JSON_SCHEMA, "strict?": s.FLAG})
_CUSTOM = s.obj(_NAMED | {"type": "custom", "description?": s.TEXT, "format?": {"type": "object"}})
_TEXT_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def _read_tools(value: Any, at: str) -> list[dict[str, Any]]:
    """Return functions for the model; each has the fields of its calls in `call`.

    A custom tool is a function with one text. The functions of a namespace have joined names.
    """
    found = []
    for tool, place in bodies.own(value, at, ("function", "custom", "namespace")):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind == "namespace":
            space = s.TEXT.read(tool.get("name"), f"{place}.name")
            for one in _read_tools(tool.get("tools"), f"{place}.tools"):
                call = {"namespace": space, **one["call"]}
                found.append(one | {"name": f"{space}__{one['name']}", "call": call})
        elif kind == "custom":
            custom = _CUSTOM.read(tool, place)
            form, description = custom.get("format") or {}, custom.get("description", "")
            if isinstance(form, dict) and isinstance(form.get("definition"), str):
                description += f"\n\nGrammar of the input:\n{form['definition']}"
            call = {"type": "custom_tool_call", "name": custom["name"]}
            one = {"name": custom["name"], "description": description, "parameters": _TEXT_INPUT}
            found.append(_EMPTY | one | {"call": call})
        elif kind == "function":
            one = _TOOL.read(tool, place)
            found.append(_EMPTY | one | {"call": {"type": "function_call", "name": one["name"]}})
        else:
            raise s.unsupported(f"{place}.type", "must be function, custom or namespace.")
    return found


_NAMES_OF_TOOLS = s.array_of(s.object_of(_NAMED), least=1)
_MODE = {"enum": ["auto", "required"]}
_ALLOWED = s.object_of({"type": "allowed_tools", "mode": _MODE, "tools": _NAMES_OF_TOOLS})
_CHOICES = [{"enum": [*bodies.TOOL_CHOICES]}, s.object_of(_NAMED), _ALLOWED]


def _included(value: Any, at: str) -> Any:
    if value not in _INCLUDED:
        note(at, "It is not sent.")
    return value


def _read_format(form: Any, _: str) -> Any:
    """Return a format and its JSON schema; None for the latter if it has none."""
    as_chat = form
    if isinstance(form, dict) and form.get("type") == "json_schema":
        inner = {name: value for name, value in form.items() if name != "type"}
        as_chat = {"type": "json_schema", "json_schema": inner}
    try:
        return form, bodies.schema_of(as_chat, "text.format")
    except ApiError as error:
        message = error.error["message"].partition(" ")[2]
        raise invalid_value("text.format", message) from None


_FORM = {
    "anyOf": [bodies.PLAIN_FORMAT, s.object_of({"type": "json_schema", **bodies.NAMED_SCHEMA})]
}
BODY = Body(
    "responses",
    bodies.SHARED
    | bodies.EVENT_FIELDS
    | {
        "input": s.given({"anyOf": [s.TEXT.schema, s.array_of({"anyOf": _ITEM_SCHEMAS}, least=1)]}),
        "instructions": s.TEXT,
        "max_output_tokens": bodies.SHARED["max_tokens"],
        "metadata": _METADATA,
        "store": s.FLAG,
        "previous_response_id": s.TEXT,
        "truncation": s.one_of(("auto", "disabled"), "must be auto or disabled."),
        "include": s.array(Shape({"enum": [*_INCLUDED]}, _included), "must be an array."),
        "top_logprobs": bodies.LOGPROBS,
        "stream_options": s.obj(
            {
                "include_obfuscation?": s.unread(s.FLAG.schema),
                "include_speculation?": s.FLAG,
            }
        ),
        "background": s.FLAG,
        "tools": Shape(s.array_of(_TOOL), _read_tools),
        "tool_choice": s.given({"anyOf": _CHOICES}),
        "parallel_tool_calls": s.FLAG,
        "reasoning": s.obj(
            {
                "effort?": bodies.EFFORT,
                "summary?": s.one_of(_SUMMARIES),
                "generate_summary?": s.one_of(_SUMMARIES).hidden,
            },
        ),
        "text": s.obj(
            {
                "format?": Shape(_FORM, _read_format),
                "verbosity?": Shape(s.TEXT.schema, OTHER_FIELDS["verbosity"].take),
            }
        ),
        "chat_template_kwargs": bodies.TEMPLATE_KWARGS,
    },
    "input",
)


def read_response(
    data: dict[str, Any], default: Speculation, most: int | None, store: Store
) -> CompletionRequest:
    """Convert the body of a request; `store` has what it refers to."""
    given_tools = data.get("tools") or []
    data, names = BODY.read(data)
    _read_limit(data, names)
    instructions, previous = data.get("instructions"), data.get("previous_response_id")
    before = store.conversation(previous, "previous_response_id") if previous else []
    items = [*before, *read_input(data["input"], store.finder())]
    messages = messages_of(instructions, items)
    if not messages:
        raise invalid_value("input", "has no message, call or result.")
    tools = data.get("tools", [])
    form, schema = data.get("text", {}).get("format", ({"type": "text"}, None))
    given_reasoning = data.get("reasoning", {})
    more = data.get("_reasoning", {})
    effort, kwargs = given_reasoning.get("effort"), data.get("chat_template_kwargs", {})
    reasoning = ReasoningFields(effort, kwargs, more.get("think"), more.get("budget"))
    top, truncation = data.get("top_logprobs", 0), data.get("truncation", "disabled")
    wants = top or TOKEN_LOGPROBS in data.get("include", [])
    of_think = "reasoning.effort" if reasoning.effort else "chat_template_kwargs"
    fields = {"json_schema": schema, "logprobs": top if wants else None}
    names = _NAMES | {"think": of_think} | names
    request = bodies.request_of(
        data | fields,
        default,
        most,
        names,
        messages=messages,
        tools=_chosen(tools, data),
        reasoning=reasoning,
    )
    summary = given_reasoning.get("summary") or given_reasoning.get("generate_summary")
    background, stored = data.get("background", False), data.get("store", True)
    if background and not stored:
        fact = "requires store to be true: its answer is asked for by the id."
        raise invalid_value("background", fact)
    repeated = {
        "id": new_id("resp"),
        "created_at": int(time.time()),
        "background": background,
        "instructions": instructions,
        "max_output_tokens": request.sampling.max_tokens,
        "metadata": data.get("metadata", {}),
        "parallel_tool_calls": data.get("parallel_tool_calls", True),
        "previous_response_id": previous,
        "reasoning": {"effort": reasoning.effort, "summary": summary},
        "store": stored,
        "temperature": request.sampling.temperature,
        "text": {"format": form, "verbosity": "medium"},
        "tool_choice": data.get("tool_choice", "auto"),
        "tools": [_EMPTY | one if one.get("type") == "function" else one for one in given_tools],
        "top_logprobs": request.sampling.logprobs or 0,
        "top_p": request.sampling.top_p,
        "truncation": truncation,
    }
    calls = {one["name"]: one["call"] for one in tools}
    drafts = data.get("stream_options", {}).get("include_speculation", False)
    show = ResponseShow(repeated, items, store if stored else None, calls, drafts)
    return replace(request, drops_oldest=truncation == "auto", show=show)


def _read_limit(data: dict[str, Any], names: dict[str, str]) -> None:
    """Rename `max_output_tokens` to the name of the option."""
    if "max_output_tokens" in data:
        limit = data.pop("max_output_tokens")
        if not same(data.setdefault("max_tokens", limit), limit):
            raise invalid_value(
                "max_output_tokens", f"differs from {names.get('max_tokens', 'max_tokens')}."
            )
        names["max_tokens"] = "max_output_tokens"


def _chosen_name(choice: dict[str, Any]) -> Any:
    name = choice.get("name")
    return _joined_name(choice) if isinstance(name, str) else name


def _chosen(tools: list[dict[str, Any]], data: dict[str, Any]) -> ToolUse:
    names, choice = bodies.check_different(tools), data.get("tool_choice", "auto")
    parallel = data.get("parallel_tool_calls", True)
    if isinstance(choice, str) and choice in bodies.TOOL_CHOICES:
        return bodies.tool_use(tools, choice, None, parallel)
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind in ("function", "custom"):
        # A single tool is forced as in the chat route: the template still lists all of them.
        only = bodies.given_name(_chosen_name(choice), names, "tool_choice")
        return bodies.tool_use(tools, "required", only, parallel)
    some = choice.get("tools") if kind == "allowed_tools" else None
    if (
        not isinstance(some, list)
        or not some
        or choice.get("mode") not in ("auto", "required")
        or not all(isinstance(one, dict) for one in some)
    ):
        raise s.unsupported(
            "tool_choice",
            "must be none, auto, required, or an object of the type function with a name, or of "
            "the type allowed_tools with a mode and functions.",
        )
    own = [one for one in some if one.get("type") in ("function", "custom")]
    allowed = [bodies.given_name(_chosen_name(one), names, "tool_choice") for one in own]
    kept = [tool for tool in tools if tool["name"] in allowed]
    return bodies.tool_use(kept, choice["mode"], None, parallel)


# ---- answers


# Kind of a part -> prefix of the id of its item, type of the item's part, fields of both. Reasoning
# is not summarised.
_FORMS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "text": (
        "msg",
        "output_text",
        {"type": "message", "role": "assistant"},
        {"annotations": [], "logprobs": []},
    ),
    "reasoning": ("rs", "reasoning_text", {"type": "reasoning", "summary": []}, {}),
}


class ResponseReply(PartsReply):
    """Converts the events of one job to a response object and its events."""

    response: dict[str, Any]

    def __init__(self, request: CompletionRequest, started: Started) -> None:
        super().__init__(request, started)
        self._show = request.shown(ResponseShow)
        self.n_bytes: int = _ITEM_BYTES * len(self._show.items)
        # Numbers of the events; in the background two came while the request was waiting.
        self._numbers = itertools.count(2 if self._show.goes_on else 0)
        self._drafts = Counter[str]()  # of chunks that are not sent yet
        self._asked, self._stats = request, Stats()  # up to the current chunk
        self._open: str | None = None  # kind of the open item
        self._logprobs: list[TokenInfo] = []  # of text that is not sent yet
        self.response = {
            "object": "response",
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": started.model,
            "system_fingerprint": FINGERPRINT,
            "output": [],
            "usage": None,
            **self._show.fields,
        }

    def queued(self) -> list[dict[str, Any]]:
        """Return the first events of a response in the background, which has not begun."""
        self._numbers = itertools.count()
        self.response["status"] = "queued"
        return [self._state("created"), self._state("queued")]

    def first(self) -> list[dict[str, Any]]:
        states = ["in_progress"] if self._show.goes_on else ["created", "in_progress"]
        return [self._state(state) for state in states]

    def chunk(self, event: ChunkEvent) -> list[dict[str, Any]]:
        chunk = event.chunk
        if self._has_logprobs and not chunk.reasoning:
            self._logprobs += event.logprobs
        self._stats = event.stats
        events = super().chunk(event)
        if self._show.shows_drafts:
            counts = {"drafted": chunk.n_drafted, "accepted": chunk.n_accepted}
            self._drafts.update(counts, tokens=len(chunk.tokens), rounds=1)
            if events:
                parts = [[part, accepted] for part, accepted in chunk.accepted_text]
                events[-1]["speculation"] = {**self._drafts, "text": [] if self._tools else parts}
                self._drafts.clear()
        return events

    def prompt(self, event: PromptRead) -> list[dict[str, Any]]:
        return [self._state("in_progress") | prompt_progress(event, self._asked)]

    def ended(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        result, status = ended.result, "completed"
        # In the background no connection ends an answer; only a request to cancel it does.
        is_stopped = self._show.goes_on and ended.why == "client_closed"
        if is_stopped and result.finish_reason == "cancelled":
            status = "cancelled"
        elif finish_reason(result.finish_reason, ended.why) != "stop":
            status = "incomplete"
        events = self._made()
        if not (self.calls or self._open or self.response["output"]):
            events += self._begin("text")
        events += self._close("completed" if self.calls or status == "completed" else "incomplete")
        for call in self.calls:
            events += self._call(call["id"], **call["function"])
        self.response |= {"status": status, "seed": result.seed, "usage": _usage(result)}
        self.response["timings"] = timings(result.stats)
        if status == "completed":
            self.response["completed_at"] = int(time.time())
        elif status == "incomplete":
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        return events

    def finished(self) -> list[dict[str, Any]]:
        """Return the last event; from now on the response is stored."""
        if self._show.store:
            self._show.store.add(self.response, self._show.items)
        return [self._state(self.response["status"]) | {"timings": self.response["timings"]}]

    def failed(self, refusal: ApiError) -> list[dict[str, Any]]:
        events, state = self._close("incomplete"), "failed"
        error = {"code": "server_error", "message": refusal.error["message"]}
        if self._show.goes_on:  # the code of what else is the status of the whole answer
            is_stopped = refusal.error["code"] == "cancelled"
            state = "cancelled" if is_stopped else "failed"
            error |= {name: one for name, one in refusal.error.items() if one and name != "type"}
        self.response |= {"status": state, "error": None if state == "cancelled" else error}
        if self._show.goes_on and self._show.store:
            self._show.store.add(self.response, self._show.items)
        return [*events, self._state(state)]

    # ---- events

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}", "sequence_number": next(self._numbers), **fields}

    def _state(self, kind: str) -> dict[str, Any]:
        return self._event(kind, response=self.response | {"output": list(self.response["output"])})

    def _add(self, part: Part) -> list[dict[str, Any]]:
        events = [] if self._open == part.kind else self._begin(part.kind)
        more: dict[str, Any] = {}
        if "timings" in self._asked.each:
            more["timings"] = timings(self._stats)
        if "logprobs" in self._part:
            named = more["logprobs"] = [one.to_dict() for one in self._logprobs]
            self._logprobs = []
            self._part["logprobs"] += named
        self._part["text"] += part.text
        kind = f"{self._part['type']}.delta"
        return [*events, self._event(kind, **self._place, delta=part.text, **more)]

    def _begin(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of the beginning of an item, which ends the one before it."""
        closed, (prefix, part_type, item, part) = self._close("completed"), _FORMS[kind]
        index, self._open = len(self.response["output"]), kind
        self._item = item | {"id": new_id(prefix), "status": "in_progress", "content": []}
        self._part = copy.deepcopy({"type": part_type, "text": ""} | part)
        self._place = {"item_id": self._item["id"], "output_index": index, "content_index": 0}
        return [
            *closed,
            self._event("output_item.added", output_index=index, item=self._item),
            self._event("content_part.added", **self._place, part=copy.deepcopy(self._part)),
        ]

    def _close(self, status: str) -> list[dict[str, Any]]:
        """Return the events of the end of the open item, and keep it."""
        if self._open is None:
            return []
        self._open, part = None, self._part
        item = self._item | {"status": status, "content": [part]}
        index = len(self.response["output"])
        self.response["output"].append(item)
        more = {name: part[name] for name in ("text", "logprobs") if name in part}
        return [
            self._event(f"{part['type']}.done", **self._place, **more),
            self._event("content_part.done", **self._place, part=part),
            self._event("output_item.done", output_index=index, item=item),
        ]

    def _call(self, call_id: str, name: str, arguments: str) -> list[dict[str, Any]]:
        call = {"type": "function_call", "name": name} | self._show.calls.get(name, {})
        is_custom = call["type"] == "custom_tool_call"
        id_ = new_id("ctc" if is_custom else "fc")
        place = {"output_index": len(self.response["output"])}
        field, kind = "arguments", "function_call_arguments"
        if is_custom:
            field, kind = "input", "custom_tool_call_input"
            arguments = _input_of(arguments)
        begun = call | {"call_id": call_id, "id": id_, "status": "in_progress", field: ""}
        item = begun | {"status": "completed", field: arguments}
        self.response["output"].append(item)
        done = {field: arguments} if is_custom else {"name": call["name"], field: arguments}
        return [
            self._event("output_item.added", **place, item=begun),
            self._event(f"{kind}.delta", **place, item_id=id_, delta=arguments),
            self._event(f"{kind}.done", **place, item_id=id_, **done),
            self._event("output_item.done", **place, item=item),
        ]


def _input_of(arguments: str) -> str:
    """Return the text that is the argument of a custom tool."""
    read = bodies.read_arguments(arguments, "arguments")
    text = read.get("input") if isinstance(read, dict) else None
    return text if isinstance(text, str) else arguments


def _usage(result: Completion) -> dict[str, Any]:
    """Return the usage object: token counts, and statistics of the speculation."""
    counts = usage([result])
    n_reasoning = counts["completion_tokens_details"]["reasoning_tokens"]
    n_cached = result.stats.n_cached
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": n_cached, "cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": n_reasoning},
        "total_tokens": counts["total_tokens"],
        "speculation": counts["speculation"],
    }
