"""Ollama's routes for text: their requests become those of OpenAI's routes, and answers objects.

The same messages with the same options therefore give the same text on both. docs/server.md and
the OpenAPI description are generated from the tables of fields.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..options import SAMPLING, Speculation
from ..results import Part, Stats
from ..tools.source import parse
from .errors import ApiError, invalid_value, unknown
from .events import ChoiceEnded, ChunkEvent, Started, TokenInfo
from .fields import LOGPROBS, STOPS, OtherField, same, without_effect
from .replies import PartsReply, finish_reason
from .requests import CompletionRequest, read_chat, read_text
from .schema import (
    FLAG,
    JSON_SCHEMA,
    TEXT,
    Shape,
    array,
    array_of,
    checked,
    closed,
    given,
    obj,
    object_of,
    unread,
)
from .wire import ollama_error

if TYPE_CHECKING:
    from ..runtime.llm import LLM

# Option of a request of Ollama -> option of `Sampling`.
OPTIONS = {
    "num_predict": "max_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "seed": "seed",
    "stop": "stop",
    "repeat_penalty": "repeat_penalty",
    "repeat_last_n": "penalty_last_n",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
_AT_START = "The options of `serve` set it when a model is loaded."
_SAMPLER = "The sampler does not have it; this value switches it off."
# Option -> the values without effect; all others are refused.
OTHER_OPTIONS = {
    **dict.fromkeys(
        (
            "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram",
            "f16_kv", "logits_all", "vocab_only", "use_mmap", "use_mlock", "embedding_only",
        ),
        OtherField(_AT_START),
    ),
    "num_keep": OtherField("Where the context is full the answer ends."),
    "penalize_newline": OtherField("Penalties count all tokens.", (True,)),
    "mirostat": OtherField(_SAMPLER, (0,)),
    "mirostat_tau": OtherField("Mirostat sampling is off."),
    "mirostat_eta": OtherField("Mirostat sampling is off."),
    "tfs_z": OtherField(_SAMPLER, (1,)),
}  # fmt: skip
_HINTS = {
    "template": " The template of the model is used; raw=true uses none.",
    "context": " Send the conversation as messages to /api/chat.",
}
EFFORTS = ("low", "medium", "high")


def _refuse(value: Any, at: str) -> None:
    if value:
        raise ApiError(f"{at} is not supported.{_HINTS.get(at, '')}", at, "unsupported")
    raise unknown(at)


def _no_images(value: Any, at: str) -> None:
    if value != []:
        raise unknown(at)


def _read_options(value: Any, at: str) -> dict[str, Any]:
    """Return the field `options` with the names of OpenAI's requests.

    Raises:
        ApiError: An option is unknown, or has a value that is not supported.
    """
    if not isinstance(value, dict):
        raise invalid_value(at, "must be an object.")
    found = {}
    for name, one in value.items():
        if one is None:
            continue
        if name in OPTIONS:
            found[OPTIONS[name]] = one
        elif name not in OTHER_OPTIONS:
            raise unknown(f"options.{name[:100]}")
        elif not OTHER_OPTIONS[name].accepts(one):
            allowed = " or ".join(map(str, OTHER_OPTIONS[name].accepted or ()))
            param = f"options.{name}"
            raise ApiError(f"{param} is not supported but for {allowed}.", param, "unsupported")
    # Values that mean the default at Ollama.
    if same(found.get("max_tokens"), -2):  # fill the context, as -1
        found["max_tokens"] = -1
    if isinstance(found.get("seed"), int) and found["seed"] < 0:  # draw one
        del found["seed"]
    return found


def _options() -> dict[str, Any]:
    schemas = {name: SAMPLING[here].schema for name, here in OPTIONS.items()}
    schemas |= {
        "stop": STOPS.schema,
        "num_predict": schemas["num_predict"] | {"minimum": -2},
        "top_k": schemas["top_k"] | {"minimum": -1},
    }
    fields = schemas | without_effect(OTHER_OPTIONS)
    return object_of({f"{name}?": one for name, one in fields.items()})


def _read_format(value: Any, at: str) -> dict[str, Any]:
    """Return `format` as a response format."""
    if value == "":
        return {}
    if value == "json":
        return {"response_format": {"type": "json_object"}}
    if not isinstance(value, dict):
        raise invalid_value(at, "must be json or a JSON schema.")
    form = {"name": "format", "schema": value}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def _read_think(value: Any, at: str) -> dict[str, Any]:
    """Return `think` as the fields about reasoning."""
    if value is True:  # an error where the model does not reason
        return {"chat_template_kwargs": {"enable_thinking": True}}
    if value is False:
        return {"reasoning_effort": "none"}
    if value not in EFFORTS:
        raise invalid_value(at, f"must be true, false, or one of {', '.join(EFFORTS)}.")
    return {"reasoning_effort": value}


_UNSUPPORTED = ("template", "context", "width", "height", "steps")
# Fields of all routes. Some are checked as those of the chat that they become.
SHARED: dict[str, Any] = {
    "model?": TEXT.schema,
    "options?": Shape(_options(), _read_options),
    # A setting of the server decides for all models.
    "keep_alive?": unread(
        {"description": "No effect. A setting of the server unloads idle models."}
    ),
    **dict.fromkeys((f"{name}?" for name in _UNSUPPORTED), Shape({}, _refuse, is_hidden=True)),
    "images?": Shape({}, _no_images, is_hidden=True),
}
_IMAGES = checked(
    array_of(TEXT),
    lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    "must be an array of images in base64.",
)
_ANSWERS = SHARED | {
    "stream?": FLAG.schema | {"default": True},
    "format?": Shape({"anyOf": [{"enum": ["", "json"]}, {"type": "object"}]}, _read_format),
    "think?": Shape({"enum": [True, False, *EFFORTS]}, _read_think),
    "logprobs?": FLAG.schema,
    "top_logprobs?": LOGPROBS.schema,
    "speculation?": given({}).hidden,
}
_FUNCTION = object_of({"name": TEXT, "description?": TEXT, "parameters?": JSON_SCHEMA})
_TOOL = object_of({"type?": "function", "function?": _FUNCTION})


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("arguments", {}), dict)


_CALLED = object_of({"name": TEXT, "arguments?": {"type": "object"}})
_CALL = checked(
    object_of({"function": _CALLED}), _is_call, "must have a function with a name and arguments."
)
_MESSAGE_FIELDS = obj(
    {
        "role": {"enum": ["system", "user", "assistant", "tool"]},
        "content": TEXT.schema,
        "thinking?": TEXT.schema,
        "images?": _IMAGES,
        "tool_calls?": array(_CALL, "must be an array of calls."),
        "tool_name?": TEXT,
    },
    empty=(None,),
)


def _read_message(value: Any, at: str) -> dict[str, Any]:
    is_object = isinstance(value, dict)
    some = {name: one for name, one in value.items() if one != []} if is_object else value
    return dict(_MESSAGE_FIELDS.read(some, at))


_MESSAGE = Shape(_MESSAGE_FIELDS.schema, _read_message)
CHAT = closed(
    _ANSWERS
    | {
        "messages": array(_MESSAGE, "must be an array of messages."),
        "tools?": array_of(_TOOL),
    }
)
GENERATE = closed(
    _ANSWERS
    | {
        "prompt?": TEXT,
        "system?": TEXT,
        "suffix?": TEXT.schema,
        "raw?": FLAG,
        "images?": _IMAGES.schema,
    }
)
# Name of an option here -> name in Ollama's requests, for errors.
_NAMES = {here: f"options.{name}" for name, here in OPTIONS.items()}
_NAMES |= {"think": "think", "json_schema": "format"}


def read_ollama_chat(
    data: dict[str, Any], default: Speculation, most: int | None
) -> CompletionRequest:
    """Convert the body of `/api/chat`.

    Raises:
        ApiError: A field is invalid.
    """
    given, ids = CHAT.read(data, ""), CallIds()
    messages = [_message(one, f"messages[{i}]", ids) for i, one in enumerate(given["messages"])]
    body = _shared(given) | {"messages": messages}
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
    given = GENERATE.read(data, "")
    prompt, system, images = given.get("prompt", ""), given.get("system", ""), given.get("images")
    body = _shared(given)
    if given.get("raw") or given.get("suffix"):
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
    content = _with_images(_IMAGES.read(images, "prompt.images"), prompt) if images else prompt
    messages.append({"role": "user", "content": content})
    return _named(lambda: read_chat(body | {"messages": messages}, default, most))


def _shared(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of both routes with the names of OpenAI's."""
    names = ("logprobs", "top_logprobs", "speculation")
    body = given.get("options", {}) | {name: given[name] for name in names if name in given}
    body["stream"] = given.get("stream", True)
    return dict(body | given.get("format", {}) | given.get("think", {}))


def _with_images(images: list[str], text: Any) -> list[dict[str, Any]]:
    """Return the content of a message with images, which come before its text."""
    urls = [{"url": f"data:image/any;base64,{one}"} for one in images]
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
    """Return a message in OpenAI's form; the calls of tools get ids, which Ollama does not have."""
    message = {"role": given.get("role"), "content": given.get("content", "")}
    if images := given.get("images"):
        message["content"] = _with_images(images, message["content"])
    if thinking := given.get("thinking"):
        message["reasoning_content"] = thinking
    name = given.get("tool_name")
    if message["role"] == "tool":
        message["tool_call_id"] = ids.answer(name)
        message |= {"name": name} if name else {}
    elif name is not None:
        raise invalid_value(f"{at}.tool_name", "is only allowed in a message of the role tool.")
    if calls := given.get("tool_calls"):
        message["tool_calls"] = [_call(call["function"], ids) for call in calls]
    return message


def _call(function: dict[str, Any], ids: CallIds) -> dict[str, Any]:
    name, arguments = function.get("name"), function.get("arguments", {})
    written = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": ids.call(str(name)), "type": "function", "function": written}


def _named(read: Callable[[], CompletionRequest]) -> CompletionRequest:
    """Return what `read` returns, with the time; its errors name the fields of Ollama."""
    began_s = time.perf_counter()
    try:
        asked = read()
    except ApiError as error:
        param = str(error.error["param"])
        if param not in _NAMES and not param.startswith(("response_format", "reasoning")):
            raise
        name = _NAMES.get(param, "format" if param.startswith("response") else "think")
        message = error.error["message"].replace(param, name)
        raise ApiError(message, name, error.error["code"], error.status) from None
    return replace(asked, names=asked.names | _NAMES, more=began_s)


# Fields of a request that only loads a model; all others are empty.
_OF_LOADING = {"model", "keep_alive", "stream", "options"}


def load_task(data: dict[str, Any], is_chat: bool) -> Callable[[LLM], dict[str, Any]] | None:
    """Return the task of a body without a prompt, which only loads the model.

    Args:
        data: The body.
        is_chat: Whether the route is `/api/chat`.

    Raises:
        ApiError: The model must not be kept.
    """
    given = {name for name, value in data.items() if value not in (None, "", [], {})}
    if not given <= _OF_LOADING:
        return None
    keep = data.get("keep_alive")
    if keep in (0, "0", "0s", "0m", "0h") and not isinstance(keep, bool):
        fact = "must not be 0: the server unloads idle models by a setting of its own."
        raise invalid_value("keep_alive", fact)
    answer = {"message": {"role": "assistant", "content": ""}} if is_chat else {"response": ""}
    end = {"done": True, "done_reason": "load"}
    return lambda llm: {"model": llm.name, "created_at": now(), **answer, **end}


def now() -> str:
    """Return the time in the form of Ollama's timestamps."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """Return a time in nanoseconds."""
    return round(seconds * 1e9)


class OllamaReply(PartsReply):
    """Converts the events of one job to the objects of `/api/chat` or `/api/generate`."""

    def __init__(self, asked: CompletionRequest, started: Started, is_chat: bool) -> None:
        """Create a reply.

        Args:
            asked: The request.
            started: The first event of its job.
            is_chat: Whether the route is `/api/chat`.
        """
        super().__init__(asked, started)
        self._is_chat, self._began_s, self._model = is_chat, asked.more, started.model
        self._load_s = time.perf_counter() - self._began_s  # with the time in the queue

    def complete(
        self, chunks: Sequence[ChunkEvent], ended: Iterable[ChoiceEnded]
    ) -> dict[str, Any]:
        """Return the complete response."""
        (last,) = ended
        parts = [part for one in chunks for part in self._parts(one.chunk)] + [*self._parts()]
        text, thinking = (
            "".join(part.text for part in parts if part.kind == kind)
            for kind in ("text", "reasoning")
        )
        named = [info for one in chunks for info in one.logprobs]
        return self._object(text, thinking, named, self._calls()) | self._end(last)

    def chunk(self, event: ChunkEvent) -> list[dict[str, Any]]:
        """Return an object for each part of a chunk; the first has the log-probabilities."""
        pieces = super().chunk(event)
        if event.logprobs and self._has_logprobs:
            pieces = pieces or self._add(Part("text", ""))
            pieces[0]["logprobs"] = [one.to_dict() for one in event.logprobs]
        return pieces

    def ended(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        """Return the remaining text, the tool calls, and the object with the counts."""
        end = self._end(ended)
        pieces = [made for part in self._parts() for made in self._add(part)]
        if calls := self._calls():
            pieces.append(self._object("", calls=calls) | {"done": False})
        return [*pieces, self._object("") | end]

    def failed(self, refusal: ApiError) -> list[dict[str, Any]]:
        """Return the error that ends the stream."""
        return [ollama_error(refusal)]

    def _add(self, part: Part) -> list[dict[str, Any]]:
        texts = (part.text,) if part.kind == "text" else ("", part.text)
        return [self._object(*texts) | {"done": False}]

    def _calls(self) -> list[dict[str, Any]]:
        """Return the tool calls of the answer, with arguments as objects."""
        functions = [call["function"] for call in self.calls]
        return [
            {"function": {"name": one["name"], "arguments": parse(one["arguments"])}}
            for one in functions
        ]

    def _object(
        self,
        text: str,
        thinking: str = "",
        named: Sequence[TokenInfo] = (),
        calls: Sequence[dict[str, Any]] = (),
    ) -> dict[str, Any]:
        about: dict[str, Any] = {"model": self._model, "created_at": now()}
        more: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if self._is_chat:
            more |= {"tool_calls": calls} if calls else {}
            about["message"] = {"role": "assistant", "content": text, **more}
        else:
            about |= {"response": text, **more}
        if named and self._has_logprobs:
            about["logprobs"] = [one.to_dict() for one in named]
        return about

    def _end(self, ended: ChoiceEnded) -> dict[str, Any]:
        """Return the fields of the last object."""
        stats: Stats = ended.result.stats
        return {
            "done": True,
            "done_reason": finish_reason(ended.result.finish_reason, ended.why),
            "total_duration": nanoseconds(time.perf_counter() - self._began_s),
            "load_duration": nanoseconds(self._load_s),
            "prompt_eval_count": stats.n_prompt,
            "prompt_eval_duration": nanoseconds(stats.prompt_s),
            "eval_count": stats.n_generated,
            "eval_duration": nanoseconds(stats.total_s - stats.prompt_s),
        }
