"""Ollama's dialect: requests for text become those of OpenAI's routes, and answers objects.

The same messages with the same options therefore give the same text on both.
docs/server-fields.md and the OpenAPI description are generated from the tables of fields.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..options import SAMPLING, Speculation, duration
from ..results import Part, Stats
from ..tools.source import parse as parse_arguments
from . import schema as s
from .bodies import DIMENSIONS, EFFORT, EFFORTS, LOGPROBS, ONLY_TEXTS, STOPS
from .errors import ApiError, invalid_value
from .events import ChoiceEnded, ChunkEvent, Started, TokenInfo
from .fields import OLLAMA_OPTIONS, note, same, without_effect
from .openai import read_chat, read_text
from .replies import PartsReply, finish_reason
from .request import REASONING, CompletionRequest, ReadBody, Show
from .schema import Shape

# Option of a request of Ollama -> option of `Sampling`.
OPTIONS = {
    name: {"num_predict": "max_tokens", "repeat_last_n": "penalty_last_n"}.get(name, name)
    for name in (
        "num_predict", "temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "stop",
        "repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty",
    )
}  # fmt: skip
_HINTS = {
    "template": " The template of the model is used; raw=true uses none.",
    "context": " Send the conversation as messages to /api/chat.",
}


@dataclass(frozen=True)
class OllamaShow(Show):
    """What an answer shows: the time since the request was read, by `time.perf_counter`."""

    began_s: float


def ollama_error(refusal: ApiError) -> dict[str, Any]:
    return {"error": refusal.error["message"]}


def _refuse(value: Any, at: str) -> None:
    if value:
        raise ApiError(f"{at} is not supported.{_HINTS.get(at, '')}", at, "unsupported")


def _no_images(value: Any, at: str) -> None:
    if value != []:
        note(at, "Images belong to messages.")


def _read_options(value: Any, at: str) -> dict[str, Any]:
    """Return the field `options` with the names of OpenAI's requests."""
    if not isinstance(value, dict):
        raise invalid_value(at, "must be an object.")
    found = {}
    for name, one in value.items():
        if one is None:
            continue
        if name in OPTIONS:
            found[OPTIONS[name]] = one
        elif name in OLLAMA_OPTIONS:
            OLLAMA_OPTIONS[name].take(one, f"options.{name}")
        else:
            note(f"options.{name[:100]}")
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
    fields = schemas | without_effect(OLLAMA_OPTIONS)
    return s.object_of({f"{name}?": one for name, one in fields.items()})


def _read_format(value: Any, at: str) -> dict[str, Any]:
    if value == "":
        return {}
    if value == "json":
        return {"response_format": {"type": "json_object"}}
    if not isinstance(value, dict):
        raise invalid_value(at, "must be json or a JSON schema.")
    form = {"name": "format", "schema": value}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def _read_think(value: Any, at: str) -> dict[str, Any]:
    if value is True:  # an error where the model does not reason
        return {"chat_template_kwargs": {"enable_thinking": True}}
    if value is False:
        return {"reasoning_effort": "none"}
    if not isinstance(value, str):
        raise invalid_value(at, f"must be true, false, or one of {', '.join(EFFORTS)}.")
    effort = EFFORT.read(value, at)
    return {"reasoning_effort": effort} if effort else {}


_UNSUPPORTED = ("template", "context", "width", "height", "steps")
# Fields of all routes. Some are checked as those of the chat that they become.
SHARED: dict[str, Any] = {
    "model?": s.TEXT.schema,
    "options?": Shape(_options(), _read_options),
    "keep_alive?": s.unread(  # `kept_seconds` reads it
        {"description": "Time for which the model is kept: seconds, or a text such as 5m."}
    ),
    **dict.fromkeys((f"{name}?" for name in _UNSUPPORTED), Shape({"enum": [None]}, _refuse)),
    "images?": Shape({"enum": [None]}, _no_images),
}
_IMAGES = s.checked(
    s.array_of(s.TEXT),
    lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    "must be an array of images in base64.",
)
_ANSWERS = SHARED | {
    "stream?": s.FLAG.schema | {"default": True},
    "format?": Shape({"anyOf": [{"enum": ["", "json"]}, {"type": "object"}]}, _read_format),
    "think?": Shape({"enum": [True, False, *EFFORTS]}, _read_think),
    "logprobs?": s.FLAG.schema,
    "top_logprobs?": LOGPROBS.schema,
    "speculation?": s.given({}).hidden,
}
_FUNCTION = s.object_of({"name": s.TEXT, "description?": s.TEXT, "parameters?": s.JSON_SCHEMA})
_TOOL = s.object_of({"type?": "function", "function?": _FUNCTION})


_CALLED = s.object_of({"name": s.TEXT, "arguments?": {"type": "object"}})
_CALL = s.checked(
    s.object_of({"function": _CALLED}),
    lambda call: (
        isinstance(call, dict)
        and isinstance(call.get("function"), dict)
        and isinstance(call["function"].get("arguments", {}), dict)
    ),
    "must have a function with a name and arguments.",
)
_MESSAGE_FIELDS = s.obj(
    {
        "role": {"enum": ["system", "user", "assistant", "tool"]},
        "content?": s.TEXT.schema,
        "thinking?": s.TEXT.schema,
        "images?": _IMAGES,
        "tool_calls?": s.array(_CALL, "must be an array of calls."),
        "tool_name?": s.TEXT,
    },
)


def _read_message(value: Any, at: str) -> dict[str, Any]:
    is_object = isinstance(value, dict)
    some = {name: one for name, one in value.items() if one != []} if is_object else value
    return dict(_MESSAGE_FIELDS.read(some, at))


_MESSAGE = Shape(_MESSAGE_FIELDS.schema, _read_message)
CHAT = s.obj(
    _ANSWERS
    | {"messages": s.array(_MESSAGE, "must be an array of messages."), "tools?": s.array_of(_TOOL)}
)
GENERATE = s.obj(
    _ANSWERS
    | {
        "prompt?": s.TEXT,
        "system?": s.TEXT,
        "suffix?": s.TEXT.schema,
        "raw?": s.FLAG,
        "images?": _IMAGES.schema,
    }
)
# Name of an option here -> name in Ollama's requests, for errors.
_NAMES = {here: f"options.{name}" for name, here in OPTIONS.items()}
_NAMES |= {"think": "think", "json_schema": "format"}
_NO_CALL = "call00000"  # id in an answer of a tool without a call


def read_ollama_chat(
    data: dict[str, Any], default: Speculation, most: int | None
) -> CompletionRequest:
    given = CHAT.read(data, "")
    body = _shared(given) | {"messages": _messages(given["messages"])}
    if tools := given.get("tools"):
        body["tools"] = tools
    return _named(read_chat, body, default, most)


def read_ollama_generate(
    data: dict[str, Any], default: Speculation, most: int | None
) -> CompletionRequest:
    """Convert the body of `/api/generate`.

    The prompt is a message of the user, unless `raw` is set or the text after the answer is given.
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
        return _named(read_text, body, default, most)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    content = _with_images(_IMAGES.read(images, "prompt.images"), prompt) if images else prompt
    messages.append({"role": "user", "content": content})
    return _named(read_chat, body | {"messages": messages}, default, most)


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


def _messages(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages in OpenAI's form; the calls of tools get ids, which Ollama does not have.

    An answer of a tool belongs to the first open call with its name, else to the first open one.
    """
    messages, n_calls, open_ = list[dict[str, Any]](), 0, list[tuple[Any, str]]()  # name, id
    for i, one in enumerate(given):
        message = {"role": one.get("role"), "content": one.get("content", "")}
        if images := one.get("images"):
            message["content"] = _with_images(images, message["content"])
        if thinking := one.get("thinking"):
            message[REASONING] = thinking
        name = one.get("tool_name")
        if message["role"] == "tool":
            found = [call for call in open_ if name in (None, call[0])] or open_ or [("", _NO_CALL)]
            message["tool_call_id"] = found[0][1]
            open_ = [call for call in open_ if call != found[0]]
            message |= {"name": name} if name else {}
        elif name is not None:
            fact = "is only allowed in a message of the role tool."
            raise invalid_value(f"messages[{i}].tool_name", fact)
        for call in one.get("tool_calls", ()):
            n_calls, id_ = n_calls + 1, f"call{n_calls + 1:05}"
            name, arguments = call["function"].get("name"), call["function"].get("arguments", {})
            open_.append((str(name), id_))
            written = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
            calls = message.setdefault("tool_calls", [])
            calls.append({"id": id_, "type": "function", "function": written})
        messages.append(message)
    return messages


def _named(
    read: ReadBody, body: dict[str, Any], default: Speculation, most: int | None
) -> CompletionRequest:
    """Return what `read` returns, with the time; its errors name the fields of Ollama."""
    began_s = time.perf_counter()
    try:
        request = read(body, default, most)
    except ApiError as error:
        param = str(error.error["param"])
        if param not in _NAMES and not param.startswith(("response_format", "reasoning")):
            raise
        name = _NAMES.get(param, "format" if param.startswith("response") else "think")
        message = error.error["message"].replace(param, name)
        raise ApiError(message, name, error.error["code"], error.status) from None
    return replace(request, names=request.names | _NAMES, show=OllamaShow(began_s))


def load_answer(data: dict[str, Any], is_chat: bool) -> dict[str, Any] | None:
    """Return the answer, but for the name, to a body without a prompt, which loads or unloads.

    The other fields are checked, and have no effect.
    """
    of_prompt = ("messages",) if is_chat else ("prompt", "suffix", "images")
    if any(data.get(name) not in (None, "", [], {}) for name in of_prompt):
        return None
    rest = {name: value for name, value in data.items() if name not in of_prompt}
    if is_chat:
        CHAT.read(rest | {"messages": []}, "")
    else:
        GENERATE.read(rest, "")
    unloads = kept_seconds(data) == 0
    answer = {"message": {"role": "assistant", "content": ""}} if is_chat else {"response": ""}
    end = {"done": True, "done_reason": "unload" if unloads else "load"}
    return {"created_at": now(), **answer, **end}


def kept_seconds(data: dict[str, Any]) -> float | None:
    """Return the time for which a request keeps its model; None where it says nothing."""
    keep = data.get("keep_alive")
    if keep is None or isinstance(keep, bool):
        return None
    try:
        return duration(str(keep))
    except ValueError:
        note("keep_alive", "It is not a duration such as 90, 5m or -1.")
        return None


def now() -> str:
    """Return the time in the form of Ollama's timestamps."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


class OllamaReply(PartsReply):
    """Converts the events of one job to the objects of `/api/chat` or `/api/generate`."""

    _error = staticmethod(ollama_error)

    def __init__(self, request: CompletionRequest, started: Started, is_chat: bool) -> None:
        super().__init__(request, started)
        self._is_chat, self._model = is_chat, started.model
        self._began_s = request.shown(OllamaShow).began_s
        self._load_s = time.perf_counter() - self._began_s  # with the time in the queue

    def complete(
        self, chunks: Sequence[ChunkEvent], ended: Iterable[ChoiceEnded]
    ) -> dict[str, Any]:
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
        end = self._end(ended)
        pieces = self._made()
        if calls := self._calls():
            pieces.append(self._object("", calls=calls) | {"done": False})
        return [*pieces, self._object("") | end]

    def _add(self, part: Part) -> list[dict[str, Any]]:
        texts = (part.text,) if part.kind == "text" else ("", part.text)
        return [self._object(*texts) | {"done": False}]

    def _calls(self) -> list[dict[str, Any]]:
        functions = [call["function"] for call in self.calls]
        return [
            {"function": {"name": one["name"], "arguments": parse_arguments(one["arguments"])}}
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


# ---- bodies about models and embeddings


def _or_nothing(shape: Shape) -> Shape:
    """Return the description of a text or texts; without one a request only loads the model."""
    return Shape(
        shape.schema, lambda value, at: None if value in ("", []) else shape.read(value, at)
    )


EMBED = s.obj(
    SHARED | {"input?": _or_nothing(ONLY_TEXTS), "truncate?": s.FLAG, "dimensions?": DIMENSIONS},
)
EMBEDDINGS = s.obj(SHARED | {"prompt?": _or_nothing(s.TEXT)})
SHOW = s.obj(
    {"model?": s.TEXT.schema, "name?": s.given({}).hidden, "verbose?": s.FLAG.schema},
    ignored=("system", "template", "options"),
)


def vectors_of(
    rows: list[list[float]], n_tokens: int, model: str, seconds: float, load_s: float
) -> dict[str, Any]:
    """Return the answer of `/api/embed`."""
    return {
        "model": model,
        "embeddings": rows,
        "total_duration": nanoseconds(seconds),
        "load_duration": nanoseconds(load_s),
        "prompt_eval_count": n_tokens,
    }
