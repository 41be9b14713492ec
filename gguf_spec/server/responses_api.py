"""The Responses API: bodies as those of a chat, the items that are stored, and the answers.

An item of the input is read as an item with all its fields, as a stored response repeats it.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar

from ..options import Speculation
from ..results import Completion
from ..tools.families import ToolUse
from .errors import ApiError, invalid_value
from .events import ChoiceEnded, ChunkEvent, Started, TokenInfo
from .fields import LOGPROBS, SHARED, Body, same
from .replies import AnswerParts, finish_reason, usage
from .requests import (
    EFFORT,
    FUNCTION_NAME,
    IMAGE_URL,
    NAMED_SCHEMA,
    PLAIN_FORMAT,
    REASONING,
    TEMPLATE_KWARGS,
    TOOL_CHOICES,
    CompletionRequest,
    Message,
    ReasoningFields,
    chat_request,
    check_different,
    content_of,
    given_name,
    read_arguments,
    schema_of,
    text_part,
    tool_use,
)
from .responses_store import FindItem, Item, ResponseStore
from .schema import (
    FLAG,
    ID,
    JSON_SCHEMA,
    TEXT,
    Fields,
    Shape,
    array,
    array_of,
    checked,
    given,
    obj,
    object_of,
    one_of,
    or_empty,
    string,
    tagged,
    unread,
)

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
    """Return the text of a part of the type `input_file`, as a code block with the file's name.

    Args:
        part: The part.
        at: Its place in the request.

    Raises:
        ApiError: It is not a text in UTF-8 as a data URL, or too large. The error names the field.
    """
    for name, value in part.items():
        if name not in _FILE_KEYS and value is not None:
            fact = f"{at}.{name[:100]} is not supported: send the text of the file in file_data."
            raise ApiError(fact, f"{at}.{name[:100]}", "unsupported_parameter")
    name = part.get("filename") or "file"
    if not isinstance(name, str) or len(name) > _NAME_LENGTH_MAX or not name.isprintable():
        raise invalid_value(
            f"{at}.filename", f"must be a line of at most {_NAME_LENGTH_MAX} characters."
        )
    return f"File {name}:\n{_fenced(_file_text(part.get('file_data'), f'{at}.file_data'))}"


def _file_text(url: Any, at: str) -> str:
    head = _DATA_URL.match(url) if isinstance(url, str) else None
    if not head:
        raise invalid_value(at, "must be a data URL: data:text/plain;base64,...")
    kind = head[1].lower() or "text/plain"
    if not (kind.startswith("text/") or kind in _TEXT_TYPES or kind.endswith(("+json", "+xml"))):
        fact = f"{at} has the type {kind[:60]}: only files with text are supported."
        raise ApiError(fact, at, "unsupported_parameter")
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


def _fenced(text: str) -> str:
    """Return a text as a code block, whose fence is longer than any in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text.removesuffix(chr(10))}\n{fence}"


# ---- parts and items

# Fields without effect of items and parts: marks of this API and of its clients.
_IGNORED = frozenset(
    {
        "annotations", "caller", "created_by", "internal_chat_message_metadata_passthrough",
        "logprobs", "namespace", "parsed", "parsed_arguments", "phase", "prompt_cache_breakpoint",
        "status",
    }
)  # fmt: skip
# Types of parts -> their field with the text.
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_ONLY_USER = "must not be input_image: only messages of the user have images."


def new_id(prefix: str) -> str:
    """Return a random id."""
    return f"{prefix}_{secrets.token_hex(16)}"


def _with_text(text: str, kind: str) -> dict[str, Any]:
    more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return {"type": kind, "text": text} | more


def _text(kind: str, read_as: str) -> Shape:
    """Return the description of a part with text, which is read as a part of another type."""
    name = _TEXT_PARTS[kind]
    part = obj({"type": kind, name: TEXT}, ignored=_IGNORED)
    return Shape(
        part.schema,
        lambda value, at: _with_text(part.read(value, at)[name], read_as),
        is_hidden=kind != read_as,
    )


_URL = Shape(TEXT.schema, IMAGE_URL.read)
_IMAGE_FIELDS = obj(
    {"type": "input_image", "image_url": _URL, "detail?": unread(TEXT.schema)}, ignored=_IGNORED
)
_FILE = object_of({"type": "input_file", "filename?": TEXT, "file_data": TEXT})


def _read_image(part: Any, at: str) -> dict[str, Any]:
    _IMAGE_FIELDS.read(part, at)
    return {"type": "input_image", "detail": "auto", **part}


def _refuse_image(_: Any, at: str) -> None:
    raise ApiError(f"{at}.type {_ONLY_USER}", f"{at}.type", "unsupported_parameter")


def _read_file(part: Any, at: str) -> dict[str, Any]:
    read_file(part, at)
    return {"type": "input_file", "filename": "file", **part}


def _content(kind: str, *, images: bool = False, keeps_text: bool = False) -> Shape:
    """Return the description of the content of a message or of an output, read as parts.

    Args:
        kind: Type of the parts with text.
        images: Whether there may be images.
        keeps_text: Whether a text is read as it is.
    """
    parts = {name: _text(name, kind) for name in _TEXT_PARTS}
    fact = f"must be {kind}: other parts are not supported."
    if kind == "input_text":
        image = Shape(_IMAGE_FIELDS.schema, _read_image if images else _refuse_image)
        parts |= {"input_image": image, "input_file": Shape(_FILE, _read_file)}
        fact = fact.replace(kind, f"{kind}, input_image or input_file")
    some = array(tagged("type", parts, fact), "must be a string, or an array of parts.")

    def read(value: Any, at: str) -> Any:
        if isinstance(value, str):
            return value if keeps_text else [_with_text(value, kind)]
        return some.read(value, at)

    return Shape({"anyOf": [TEXT.schema, some.schema]}, read)


def _arguments(value: Any, at: str) -> Any:
    read_arguments(value, at)
    return value


def _thoughts(kind: str) -> Shape:
    part = obj({"type": kind, "text": TEXT}, ignored=_IGNORED)
    read = Shape(
        part.schema, lambda value, at: {"type": kind, "text": part.read(value, at)["text"]}
    )
    return array(read, "must be an array of parts.")


def _item(kind: str, prefix: str, fields: Fields) -> Shape:
    """Return the description of an item, which is read with all its fields."""
    item = obj({"type?": kind, "id?": or_empty(ID)} | fields, ignored=_IGNORED)
    names = [name.rstrip("?") for name in fields]

    def read(value: Any, at: str) -> Item:
        found = item.read(value, at)
        head = {"type": kind, "id": found.get("id") or new_id(prefix), "status": "completed"}
        return head | {name: found[name] for name in names if name in found}

    return Shape(item.schema, read)


_REASONING = _item(
    "reasoning",
    "rs",
    {
        "summary?": _thoughts("summary_text"),
        "content?": _thoughts("reasoning_text"),
        "encrypted_content?": given({}).hidden,
    },
)


def _read_reasoning(item: Any, at: str) -> Item:
    read = {"summary": [], "content": []} | _REASONING.read(item, at)
    if read.pop("encrypted_content", None) and not read["content"] and not read["summary"]:
        param = f"{at}.encrypted_content"
        fact = f"{param} is not readable here: this server sends reasoning as content."
        raise ApiError(fact, param, "unsupported_parameter")
    order = ("type", "id", "status", "summary", "content")
    return {name: read[name] for name in order}


_INPUT, _OUTPUT = _content("input_text"), _content("output_text")
_CONTENTS = {
    "user": _content("input_text", images=True),
    "assistant": _OUTPUT,
    "system": _INPUT,
    "developer": _INPUT,
}
_MESSAGES = {
    role: _item("message", "msg", {"role": role, "content": content})
    for role, content in _CONTENTS.items()
}
_ROLE_FACT = f"must be one of {', '.join(_MESSAGES)}."
_CALL = {"call_id": ID, "name": FUNCTION_NAME, "arguments": Shape(TEXT.schema, _arguments)}
_RESULT = {"call_id": ID, "output": _content("input_text", keeps_text=True)}
_ITEMS = {
    "message": tagged("role", _MESSAGES, _ROLE_FACT, "invalid_value"),
    "function_call": _item("function_call", "fc", {"type": "function_call", **_CALL}),
    "function_call_output": _item(
        "function_call_output", "fco", {"type": "function_call_output", **_RESULT}
    ),
    "reasoning": Shape(_REASONING.schema, _read_reasoning),
}
_REFERENCE = object_of({"type": "item_reference", "id": ID})
_ITEM_SCHEMAS = [*(one.schema for one in _ITEMS.values()), _REFERENCE]


def read_input(value: Any, find: FindItem) -> list[Item]:
    """Return the field `input` as a list of complete items.

    Args:
        value: A text, or an array of items.
        find: Looks up the items that references name.

    Raises:
        ApiError: An item is invalid or not supported. The error names the field.
    """
    if isinstance(value, str):
        return [_ITEMS["message"].read({"role": "user", "content": value}, "input")]
    if not isinstance(value, list) or not value:
        raise invalid_value("input", "must be a string, or an array with at least one item.")
    items = [_read_item(item, f"input[{i}]", find) for i, item in enumerate(value)]
    ids: set[str] = set()
    for i, item in enumerate(items):
        if item["id"] in ids:  # a few references must not stand for a large conversation
            raise invalid_value(f"input[{i}].id", "is that of an item before it.")
        ids.add(item["id"])
    return items


def _read_item(item: Any, at: str, find: FindItem) -> Item:
    if not isinstance(item, dict):
        raise invalid_value(at, "must be an object.")
    kind = item.get("type") or "message"
    if kind == "item_reference":
        found = find(string(item.get("id"), f"{at}.id"))
        if found is None:
            fact = "names an item that is not stored, or not any more: send the item itself."
            raise ApiError(f"{at}.id {fact}", f"{at}.id", "item_not_found", 404)
        return found
    shape = _ITEMS.get(kind) if isinstance(kind, str) else None
    if shape is None:
        kinds = f"{', '.join(_ITEMS)} or item_reference"
        fact = f"{at}.type must be {kinds}: other items are not supported."
        raise ApiError(fact, f"{at}.type", "unsupported_parameter")
    return dict(shape.read(item, at))


# ---- messages for the chat template


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
        messages.append({"role": role, "content": _with_images(item["content"])})


def _with_images(parts: Sequence[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return the content of a message: its texts, with the images between them."""
    found: list[dict[str, Any]] = []
    for is_image, some in groupby(parts, lambda part: part["type"] == "input_image"):
        if is_image:
            urls = [part["image_url"] for part in some]
            images = [IMAGE_URL.read(url, "input") for url in urls]
            found += [{"type": "image_url", "image_url": image} for image in images]
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
_METADATA = checked(
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
_NAMED: dict[str, Any] = {"type": "function", "name": FUNCTION_NAME}
_TOOL = obj(
    _NAMED | {"description?": TEXT, "parameters?": JSON_SCHEMA, "strict?": FLAG},
    empty=(None, False),
)
_NAMES_OF_TOOLS = array_of(object_of(_NAMED), least=1)
_MODE = {"enum": ["auto", "required"]}
_ALLOWED = object_of({"type": "allowed_tools", "mode": _MODE, "tools": _NAMES_OF_TOOLS})
_CHOICES = [{"enum": [*TOOL_CHOICES]}, object_of(_NAMED), _ALLOWED]


def _answer_schema(form: Any) -> Any:
    """Return the JSON schema of a format, or None if it has none."""
    if isinstance(form, dict) and form.get("type") == "json_schema":
        inner = {name: value for name, value in form.items() if name != "type"}
        form = {"type": "json_schema", "json_schema": inner}
    try:
        return schema_of(form, "text.format")
    except ApiError as error:
        message = error.error["message"].partition(" ")[2]
        raise invalid_value("text.format", message) from None


def _read_format(form: Any, _: str) -> Any:
    _answer_schema(form)
    return form


def _read_verbosity(value: Any, at: str) -> Any:
    if value != "medium":
        raise ApiError(f"{at} must be medium.", at, "unsupported_parameter")
    return value


_FORM = {"anyOf": [PLAIN_FORMAT, object_of({"type": "json_schema", **NAMED_SCHEMA})]}
BODY = Body(
    "responses",
    SHARED
    | {
        "input": given({"anyOf": [TEXT.schema, array_of({"anyOf": _ITEM_SCHEMAS}, least=1)]}),
        "instructions": TEXT,
        "max_output_tokens": SHARED["max_tokens"],
        "metadata": _METADATA,
        "store": FLAG,
        "previous_response_id": TEXT,
        "truncation": one_of(("auto", "disabled"), "must be auto or disabled."),
        "include": checked(
            array_of({"enum": [*_INCLUDED]}),
            lambda value: isinstance(value, list) and all(one in _INCLUDED for one in value),
            f"must be an array of {', '.join(_INCLUDED)}.",
        ),
        "top_logprobs": LOGPROBS,
        "stream_options": obj(
            {"include_obfuscation?": unread(FLAG.schema)},
            only="may contain only include_obfuscation, which has no effect.",
        ),
        "tools": array(
            tagged("type", {"function": _TOOL}, "must be function: other tools are not supported."),
            "must be an array of tools.",
        ),
        "tool_choice": given({"anyOf": _CHOICES}),
        "parallel_tool_calls": FLAG,
        "reasoning": obj(
            {
                "effort?": EFFORT,
                "summary?": one_of(_SUMMARIES),
                "generate_summary?": one_of(_SUMMARIES).hidden,
            },
            only="may contain only effort and summary.",
        ),
        "text": obj(
            {
                "format?": Shape(_FORM, _read_format),
                "verbosity?": or_empty(Shape({"const": "medium"}, _read_verbosity)),
            },
            only="may contain only format and verbosity.",
        ),
        "chat_template_kwargs": TEMPLATE_KWARGS,
    },
    "input",
)


@dataclass(frozen=True)
class ResponseRequest:
    """Fields of a request that its answer repeats, and what is stored with it.

    Attributes:
        echo: Fields of the response object.
        items: All items of the input, those of earlier responses included.
        store: Where the response is stored; None if it is not.
    """

    echo: Mapping[str, Any]
    items: Sequence[Item]
    store: ResponseStore | None


def read_response(
    data: dict[str, Any], default: Speculation, most: int | None, store: ResponseStore
) -> CompletionRequest:
    """Convert the body of a request; `more` is a `ResponseRequest`.

    Args:
        data: The body.
        default: Speculation options of the server.
        most: Maximum length of an answer in tokens; None for no limit.
        store: The responses that `previous_response_id` and item references name.

    Raises:
        ApiError: A field is invalid or not supported. The error names the field.
    """
    data, names = BODY.read(data)
    _read_limit(data, names)
    instructions, previous = data.get("instructions"), data.get("previous_response_id")
    before = store.get(previous, "previous_response_id").conversation if previous else []
    items = [*before, *read_input(data["input"], store.finder())]
    nothing = {
        "type": "function",
        "name": "",
        "description": None,
        "parameters": None,
        "strict": False,
    }
    tools = [nothing | one for one in data.get("tools", [])]
    form, given_reasoning = data.get("text", {}).get("format"), data.get("reasoning", {})
    reasoning = ReasoningFields(given_reasoning.get("effort"), data.get("chat_template_kwargs", {}))
    top, truncation = data.get("top_logprobs", 0), data.get("truncation", "disabled")
    wants = top or TOKEN_LOGPROBS in data.get("include", [])
    of_think = "reasoning.effort" if reasoning.effort else "chat_template_kwargs"
    chat = {
        "messages": messages_of(instructions, items),
        "tools": _chosen(tools, data),
        "reasoning": reasoning,
        "json_schema": None if form is None else _answer_schema(form),
        "logprobs": top if wants else None,
    }
    asked = chat_request(data | chat, default, most, names | _NAMES | {"think": of_think})
    summary = given_reasoning.get("summary") or given_reasoning.get("generate_summary")
    echo = {
        "instructions": instructions,
        "max_output_tokens": asked.sampling.max_tokens,
        "metadata": data.get("metadata", {}),
        "parallel_tool_calls": data.get("parallel_tool_calls", True),
        "previous_response_id": previous,
        "reasoning": {"effort": reasoning.effort, "summary": summary},
        "store": data.get("store", True),
        "temperature": asked.sampling.temperature,
        "text": {"format": {"type": "text"} if form is None else form, "verbosity": "medium"},
        "tool_choice": data.get("tool_choice", "auto"),
        "tools": tools,
        "top_logprobs": asked.sampling.logprobs or 0,
        "top_p": asked.sampling.top_p,
        "truncation": truncation,
    }
    more = ResponseRequest(echo, items, store if echo["store"] else None)
    return replace(asked, drops_oldest=truncation == "auto", more=more)


def _read_limit(data: dict[str, Any], names: dict[str, str]) -> None:
    """Rename `max_output_tokens` to the name of the option."""
    if "max_output_tokens" in data:
        limit = data.pop("max_output_tokens")
        if not same(data.setdefault("max_tokens", limit), limit):
            raise invalid_value(
                "max_output_tokens", f"differs from {names.get('max_tokens', 'max_tokens')}."
            )
        names["max_tokens"] = "max_output_tokens"


def _chosen(tools: list[dict[str, Any]], data: dict[str, Any]) -> ToolUse:
    """Return how the model may call tools."""
    names, choice = check_different(tools), data.get("tool_choice", "auto")
    mode, allowed = _choice(choice, names)
    # A single tool is forced as in the chat route: the template still lists all of them.
    only = allowed[0] if isinstance(choice, dict) and choice["type"] == "function" else None
    kept = tools if only else [tool for tool in tools if tool["name"] in allowed]
    return tool_use(kept, mode, only, data.get("parallel_tool_calls", True))


def _choice(choice: Any, names: list[str]) -> tuple[str, list[str]]:
    """Return the mode of a tool choice (`none`, `auto`, `required`) and the tools it allows."""
    if isinstance(choice, str) and choice in ("none", "auto", "required"):
        return choice, names
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function":
        return "required", [given_name(choice.get("name"), names, "tool_choice")]
    allowed = choice.get("tools") if kind == "allowed_tools" else None
    if (
        not isinstance(allowed, list)
        or not allowed
        or choice.get("mode") not in ("auto", "required")
        or not all(isinstance(one, dict) and one.get("type") == "function" for one in allowed)
    ):
        raise ApiError(
            "tool_choice must be none, auto, required, or an object of the type function with a "
            "name, or of the type allowed_tools with a mode and functions.",
            "tool_choice",
            "unsupported_parameter",
        )
    return choice["mode"], [given_name(one.get("name"), names, "tool_choice") for one in allowed]


# ---- answers


class ResponseReply:
    """Converts the events of one job to a response object and its events."""

    def __init__(
        self,
        asked: CompletionRequest,
        started: Started,
    ) -> None:
        """Create a reply.

        Args:
            asked: The request; it has the fields for the response.
            started: The first event of its job.
        """
        self._request: ResponseRequest = asked.more
        self._has_logprobs = asked.sampling.logprobs is not None
        self._parts = AnswerParts(started.family, asked.tools)
        self._events = Events()
        self._open: _TextItem | OpenCall | None = None
        self._logprobs: list[TokenInfo] = []  # of text that is not sent yet
        self._response: dict[str, Any] = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": started.model,
            "output": [],
            "usage": None,
            **self._request.echo,
        }

    # ---- complete responses

    def complete(
        self, chunks: Iterable[ChunkEvent], ended: Iterable[ChoiceEnded]
    ) -> dict[str, Any]:
        """Return the complete response.

        Raises:
            ApiError: The answer was cancelled.
        """
        for one in chunks:
            self.chunk(one)
        for last in ended:
            self.ended(last)
        self.finished()
        return self._response

    # ---- streamed responses

    def first(self) -> list[dict[str, Any]]:
        """Return the events before the first text."""
        return [self._event("response.created"), self._event("response.in_progress")]

    def chunk(self, event: ChunkEvent) -> list[dict[str, Any]]:
        """Return the events for a chunk."""
        if self._has_logprobs and not event.chunk.reasoning:
            self._logprobs += event.logprobs
        return [
            made
            for part in self._parts.push(event.chunk)
            for made in self._add(part.kind, part.text)
        ]

    def ended(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        """Return the last events of the items.

        Raises:
            ApiError: The answer was cancelled.
        """
        is_complete = finish_reason(ended.result.finish_reason, ended.why) == "stop"
        events = [e for part in self._parts.finish() for e in self._add(part.kind, part.text)]
        status = "completed" if is_complete else "incomplete"
        calls = self._parts.calls
        if not (calls or self._open or self._response["output"]):
            events += self._begin(OpenMessage)
        events += self._close("completed" if calls else status)
        for call in calls:
            events += self._call(call["id"], call["function"])
        self._complete(ended.result, status)
        return events

    def finished(self) -> list[dict[str, Any]]:
        """Return the last event; from now on the response is stored."""
        if self._request.store:
            self._request.store.add(self._response, self._request.items)
        return [self._event(f"response.{self._response['status']}")]

    def failed(self, refusal: ApiError) -> list[dict[str, Any]]:
        """Return the events for an error that ends the stream."""
        events = self._close("incomplete")
        message = refusal.error["message"]
        self._response |= {
            "status": "failed",
            "error": {"code": "server_error", "message": message},
        }
        return [*events, self._event("response.failed")]

    # ---- items

    def _add(self, kind: str, text: str) -> list[dict[str, Any]]:
        """Return the events for a piece of text."""
        item = OpenMessage if kind == "text" else OpenReasoning
        events = [] if isinstance(self._open, item) else self._begin(item)
        assert self._open
        named, self._logprobs = (self._logprobs, []) if kind == "text" else ([], self._logprobs)
        return [*events, *self._open.add(text, named)]

    def _begin(self, item: type[_TextItem]) -> list[dict[str, Any]]:
        closed = self._close("completed")
        self._open = item(self._events, len(self._response["output"]))
        return [*closed, *self._open.begin()]

    def _close(self, status: str) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        item, events = self._open.close(status)
        self._response["output"].append(item)
        self._open = None
        return events

    def _call(self, id_: str, function: dict[str, Any]) -> list[dict[str, Any]]:
        call = OpenCall(self._events, len(self._response["output"]), id_, function["name"])
        self._open = call
        return [*call.begin(), *call.add(function["arguments"], []), *self._close("completed")]

    def _complete(self, result: Completion, status: str) -> None:
        self._response |= {"status": status, "seed": result.seed, "usage": _usage(result)}
        if status == "completed":
            self._response["completed_at"] = int(time.time())
        else:
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}

    def _event(self, kind: str) -> dict[str, Any]:
        output = list(self._response["output"])
        return self._events.make(kind, response=self._response | {"output": output})


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


class Events:
    """Maker of events, which are numbered from 0."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def make(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Return the next event."""
        return {"type": kind, "sequence_number": next(self._numbers), **fields}


class _TextItem:
    """An item with one part of text; subclasses give the form of item and part."""

    prefix = part_type = ""
    has_logprobs = False
    item: ClassVar[dict[str, Any]]
    part: ClassVar[dict[str, Any]]

    def __init__(self, events: Events, index: int) -> None:
        self._events, self._text, self._named = events, "", list[dict[str, Any]]()
        self._id = new_id(self.prefix)
        self._place = {"item_id": self._id, "output_index": index, "content_index": 0}

    def begin(self) -> list[dict[str, Any]]:
        """Return the events of its beginning."""
        index = self._place["output_index"]
        item = self._item("in_progress", [])
        return [
            self._events.make("response.output_item.added", output_index=index, item=item),
            self._event("content_part.added", part=self._part("", [])),
        ]

    def add(self, text: str, named: Sequence[TokenInfo]) -> list[dict[str, Any]]:
        """Return the event of a new piece of text."""
        shown = [one.to_dict() for one in named]
        self._text += text
        self._named += shown
        return [self._event(f"{self.part_type}.delta", delta=text, **self._logprobs(shown))]

    def close(self, status: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the complete item, and the events of its end."""
        part = self._part(self._text, self._named)
        item, more = self._item(status, [part]), self._logprobs(self._named)
        index = self._place["output_index"]
        return item, [
            self._event(f"{self.part_type}.done", text=self._text, **more),
            self._event("content_part.done", part=part),
            self._events.make("response.output_item.done", output_index=index, item=item),
        ]

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return self.item | {"id": self._id, "status": status, "content": content}

    def _part(self, text: str, named: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": self.part_type, "text": text, **self.part, **self._logprobs(named)}

    def _logprobs(self, named: list[dict[str, Any]]) -> dict[str, Any]:
        return {"logprobs": named} if self.has_logprobs else {}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._events.make(f"response.{kind}", **self._place, **fields)


class OpenMessage(_TextItem):
    """The text of an answer."""

    prefix, part_type, has_logprobs = "msg", "output_text", True
    item: ClassVar = {"type": "message", "role": "assistant"}
    part: ClassVar = {"annotations": []}


class OpenReasoning(_TextItem):
    """The reasoning before an answer. It is not summarised."""

    prefix, part_type = "rs", "reasoning_text"
    item: ClassVar = {"type": "reasoning", "summary": []}
    part: ClassVar = {}


class OpenCall:
    """A call of a function."""

    def __init__(self, events: Events, index: int, call_id: str = "", name: str = "") -> None:
        self._events, self._index, self._arguments = events, index, ""
        self._id = new_id("fc")
        self._call = {"type": "function_call", "call_id": call_id, "name": name}

    def begin(self) -> list[dict[str, Any]]:
        """Return the event of its beginning."""
        item = self._item("in_progress", "")
        return [self._event("output_item.added", item=item)]

    def add(self, text: str, _: Sequence[TokenInfo]) -> list[dict[str, Any]]:
        """Return the event of a new piece of the arguments."""
        self._arguments += text
        return [self._event("function_call_arguments.delta", item_id=self._id, delta=text)]

    def close(self, status: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the complete call, and the events of its end."""
        item, name = self._item(status, self._arguments), self._call["name"]
        return item, [
            self._event(
                "function_call_arguments.done",
                item_id=self._id,
                name=name,
                arguments=self._arguments,
            ),
            self._event("output_item.done", item=item),
        ]

    def _item(self, status: str, arguments: str) -> dict[str, Any]:
        return self._call | {"id": self._id, "status": status, "arguments": arguments}

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._events.make(f"response.{kind}", output_index=self._index, **fields)
