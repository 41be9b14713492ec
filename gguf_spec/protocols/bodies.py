"""Request bodies: what the dialects have in common.

Fields of other APIs follow the rule and the tables of `fields`. A dialect reads its body, and
`request_of` makes the request of all.

What reads a field or a body raises `ApiError` where it is invalid or not supported; the error names
the field. `names` are, for options whose field has another name: option -> field. `most` is the
maximum length of an answer in tokens; None for no limit.
"""

from __future__ import annotations

import gc
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from ..errors import ImageError, InvalidOptionError
from ..images import Image, image_of_base64, image_of_url
from ..options import SAMPLING, SPECULATION, Sampling, Speculation, require, well_formed
from ..tools.families import NO_TOOLS, ToolUse
from . import schema as s
from .errors import LOG, ApiError, invalid_value, option_refusal, unknown
from .fields import (
    OTHER_FIELDS,
    OTHER_NAMES,
    REASONING_FIELDS,
    OtherField,
    Route,
    note,
    note_taken,
    same,
    whole,
    without_effect,
)
from .request import (
    NO_REASONING_FIELDS,
    REASONING,
    CompletionRequest,
    Conversation,
    LineLimits,
    ReasoningFields,
    Text,
)
from .schema import Read, Shape

T = TypeVar("T")
SEEDS = 2**64  # number of seeds
# Most values of a body. The parser keeps all other threads waiting, and an array or an object takes
# it as long as 4 numbers, a field of an object as long as 12.
VALUES_MAX, _OF_VALUES = 1 << 20, ((b",", 1), (b"[", 4), (b"{", 4), (b":", 12))
_TEXTS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# What may be half of a surrogate pair: an escape, or its bytes.
_HALF = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
_REPEATS = 5  # turns with the same call after which the log names it
# A probability that one token has in any case; lowest temperature that means 0, as in llama-server.
_TINY, _MOST_COLD = 1e-9, 100
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
# Effort of other APIs -> the nearest one here; None is the default.
_MEANT_EFFORTS: dict[str, str | None] = {
    **dict.fromkeys(("max", "maximum", "highest", "ultra", "very_high", "extra_high"), "xhigh"),
    **dict.fromkeys(("min", "minimum", "lowest", "very_low"), "minimal"),
    **dict.fromkeys(("off", "disabled", "disable", "false", "no"), "none"),
    **dict.fromkeys(("moderate", "normal", "standard"), "medium"),
    **dict.fromkeys(("auto", "default", "adaptive", "dynamic"), None),
}


def parse(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body in UTF-8; unpaired surrogates become U+FFFD."""
    n_in_texts = (n_values(text[0]) for text in _TEXTS.finditer(body))
    if (n := n_values(body)) > VALUES_MAX and n - sum(n_in_texts) > VALUES_MAX:
        fact = "The body has more than {:,} values; each array counts as 4, each field as 12."
        raise ApiError(fact.format(VALUES_MAX), None, "invalid_json")
    infinite: list[float] = []

    def number(text: str) -> float:
        value = float(text)
        if math.isinf(value):
            infinite.append(value)
        return value

    try:
        with _without_collections():
            data = json.loads(body, parse_constant=_no_number, parse_float=number)
        if _HALF.search(body):
            text = json.dumps(data, ensure_ascii=False)
            data = json.loads(mended) if (mended := well_formed(text)) != text else data
    except (ValueError, RecursionError) as error:
        at = ""
        if isinstance(error, json.JSONDecodeError):
            at = f" (line {error.lineno}, column {error.colno})"
        raise ApiError(f"The body is not JSON in UTF-8{at}.", None, "invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError("The body must be a JSON object.", None, "invalid_json")
    if infinite:
        _check_finite(data)
    return data


def n_values(body: bytes) -> int:
    """Return how many values a body has, about; each counts as long as the parser takes for it."""
    return sum(weight * body.count(mark) for mark, weight in _OF_VALUES)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Keep the garbage collector from looking through new values again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _check_finite(data: dict[str, Any]) -> None:
    """Check that no field holds a number such as 1e999, which an answer could not repeat.

    Fields that are numbers have limits of their own, and a bias may be infinite.
    """
    for name, value in data.items():
        if name == "body" and isinstance(value, dict):  # of a line of a batch
            _check_finite(value)
        elif name != "logit_bias" and isinstance(value, (dict, list)):
            try:
                json.dumps(value, allow_nan=False)
            except ValueError:
                raise invalid_value(name[:100], "contains a number that is too large.") from None


def _no_number(text: str) -> float:
    raise ValueError(text)


def made(make: Callable[[], T], names: dict[str, str]) -> T:
    """Return the options that `make` creates; an error names the field of its option."""
    try:
        return make()
    except InvalidOptionError as error:
        raise option_refusal(error, names) from None
    except OverflowError:
        raise ApiError("A number is too large.", None, "invalid_value") from None


# ---- fields of all routes, and of other APIs


# Limits: number of stop strings, characters of one, alternatives per token (logprobs), choices.
STOPS_MAX, STOP_LENGTH_MAX, TOP_LOGPROBS_MAX, CHOICES_MAX = 16, 256, 20, 128
BIASES_MAX = 5_000  # texts with a bias; each is tokenised
STOP_FACT = (
    f"must be a string of at most {STOP_LENGTH_MAX} characters, "
    f"or an array of at most {STOPS_MAX} of them."
)
# Fields of `Sampling` that a body may hold under the same name.
SAME = tuple(name for name, rule in SAMPLING.items() if rule.in_requests)
LOGPROBS = s.whole_number(0, TOP_LOGPROBS_MAX)


def _stops(value: Any, at: str) -> tuple[str, ...]:
    """Return the stop strings; empty strings, which stop nothing, are left out."""
    some = [value] if isinstance(value, str) else value
    if (
        not isinstance(some, list)
        or len(some) > STOPS_MAX
        or not all(isinstance(stop, str) and len(stop) <= STOP_LENGTH_MAX for stop in some)
    ):
        raise invalid_value(at, STOP_FACT)
    return tuple(filter(None, some))


def _sampling() -> dict[str, Shape]:
    """Return the fields that are those of `Sampling`, whose construction checks them.

    `max_tokens` has no default: it is the server's. -1 means as much as the server allows.
    """
    schemas = {name: SAMPLING[name].schema for name in SAME}
    for name in schemas.keys() - {"max_tokens"}:
        if (default := getattr(Sampling, name)) is not None:
            schemas[name] |= {"default": default}
    for name in ("max_tokens", "top_k", "seed"):
        schemas[name] = schemas[name] | {"minimum": -1}
    for name in ("top_p", "typical_p"):
        schemas[name] = {"type": "number", "minimum": 0, "maximum": 1} | (
            {"default": schemas[name]["default"]}
        )
    return {name: s.given(schema) for name, schema in schemas.items()}


_STOP = {"type": "string", "maxLength": STOP_LENGTH_MAX}
STOPS = Shape({"anyOf": [_STOP, s.array_of(_STOP, STOPS_MAX)]}, _stops)
STOP_SEQUENCES = Shape(s.array_of(_STOP, STOPS_MAX), _stops)
_BIASES_FACT = "must be an object from token ids or texts to numbers."


def _biases(value: Any, at: str) -> dict[int | str, Any]:
    """Return biases by token, or by text.

    llama-server also takes pairs, texts whose tokens get the bias, and false to forbid a token.
    """
    if isinstance(value, list) and all(isinstance(one, list) and len(one) == 2 for one in value):
        value = {str(token): bias for token, bias in value}
    if not isinstance(value, dict):
        raise invalid_value(at, _BIASES_FACT)
    found: dict[int | str, Any] = {}
    n_texts = sum(not _is_id(key) for key in value)
    if n_texts > BIASES_MAX:
        fact = f"has {n_texts:,} texts, but may have at most {BIASES_MAX:,}; ids may be more."
        raise invalid_value(at, fact)
    for key, bias in value.items():
        found[int(key) if _is_id(key) else key] = -math.inf if bias is False else bias
    accepts = SAMPLING["logit_bias"].accepts_one  # of a token, `Sampling` checks it
    if any(isinstance(k, str) and not (accepts(x) or x == -math.inf) for k, x in found.items()):
        raise invalid_value(at, _BIASES_FACT)
    return found


def _is_id(key: str) -> bool:
    return key.isdecimal() and len(key) < 10


BIASES = Shape(
    {
        "type": "object",
        "description": "By token ids, or by texts whose tokens get the bias.",
        "additionalProperties": SAMPLING["logit_bias"].schema,
    },
    _biases,
)
_BREAKERS = s.checked(
    s.array_of(s.TEXT, SAMPLING["dry_sequence_breakers"].items_max),
    lambda value: isinstance(value, list) and SAMPLING["dry_sequence_breakers"].accepts((*value,)),
    "must be an array of texts.",
).to(tuple)
_STOP_TOKENS = s.checked(
    s.array_of(s.COUNT),
    lambda value: isinstance(value, list) and all(s.is_count(one) and one >= 0 for one in value),
    "must be an array of token ids.",
).to(tuple)
_TIME = {"type": "integer", "description": "Milliseconds; below 1 for no limit."}
_DRAFTING = s.object_of({f"{name}?": rule.schema for name, rule in SPECULATION.items()})
SHARED: dict[str, Shape] = {
    "model": s.TEXT,
    "stream": s.FLAG,
    "stop": STOPS,
    "logit_bias": BIASES,
    "dry_sequence_breakers": _BREAKERS,
    "stop_tokens": _STOP_TOKENS,
    "speculation": s.given({"anyOf": [{"const": "off"}, _DRAFTING]}),
    "t_max_predict_ms": s.checked(_TIME, s.is_count, "must be a whole number."),
    **_sampling(),
}


def model_of(names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the schema of the field `model`; `names` is None for any name."""
    return {"type": "string"} if names is None else {"enum": [*names, ""]}


class Body(NamedTuple):
    """Description of a body that asks for an answer.

    Attributes:
        fields: Descriptions of its fields, without those of other APIs.
        needed: Name of the field that must be there.
    """

    route: Route
    fields: Mapping[str, Shape]
    needed: str

    def read(self, data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the fields of a body under their names here, without those that are null.

        The second value are the names of those with another name in the body, by their names here.
        """
        found, names, others = dict[str, Any](), dict[str, str](), self._others
        reasoning: dict[str, Any] = {}
        for name, value in data.items():
            here = name if name in self.fields else OTHER_NAMES.get(name, "")
            if value is None:
                continue
            if here in self.fields:
                self._put(found, names, here, name, value)
            elif self.route != "text" and name in REASONING_FIELDS:
                reasoning |= REASONING_FIELDS[name](value, name)
                names["think"] = names["reasoning_effort"] = name
            elif name in others:
                others[name].take(value, name)
            elif value not in s.NOTHING:
                note(name)
        for name, shape in self.fields.items():
            if name in found or name == self.needed:
                found[name] = shape.read(found.get(name), names.get(name, name))
        if "effort" in reasoning:
            reasoning["effort"] = EFFORT.read(reasoning["effort"], names["reasoning_effort"])
        return found | ({"_reasoning": reasoning} if reasoning else {}), names

    def _put(
        self, found: dict[str, Any], names: dict[str, str], here: str, name: str, value: Any
    ) -> None:
        newer = "max_completion_tokens"  # counts where a client sends the older one, too
        if here in found and newer in (name, names.get(here)):
            if name != newer:
                return
        elif here in found and not same(found[here], value):
            raise invalid_value(here, f"differs from {names.get(here, name)}.")
        found[here] = value
        if here != name:
            names[here] = name

    @property
    def _others(self) -> dict[str, OtherField]:
        others = OTHER_FIELDS.items()
        return {k: v for k, v in others if self.route in v.routes and k not in self.fields}

    def schema(self, names: tuple[str, ...] | None) -> dict[str, Any]:
        """Return the JSON schema; `names` are those of the models, None for any name."""
        own = dict(self.fields) | {"model": s.given(model_of(names))}
        own |= {name: own[here] for name, here in OTHER_NAMES.items() if here in own}
        fields = without_effect(self._others) | own
        needed = {self.needed: fields.pop(self.needed)}
        return s.object_of({f"{name}?": one for name, one in fields.items()} | needed, more=True)


# ---- messages


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def _name(value: Any, at: str) -> str:
    name: str = s.TEXT.read(value, at)
    if not _NAME.fullmatch(name):
        raise invalid_value(at, "must be 1 to 128 letters, digits, _ or -.")
    return name


def read_arguments(value: Any, at: str) -> dict[str, Any] | str:
    """Return the arguments of a call: an object, or a text such as that of a cut call."""
    if isinstance(value, dict):
        return value
    text: str = s.TEXT.read(value, at) if value is not None else ""
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return arguments if isinstance(arguments, dict) else text


def _image_of(form: str, decode: Callable[[str, str], Image]) -> Read:
    def read(value: Any, at: str) -> Image:
        if not isinstance(value, str):
            raise invalid_value(at, f"must be {form}.")
        try:
            return decode(value, at)
        except ImageError as error:
            hint = error.hint[:1].upper() + error.hint[1:]
            raise ApiError(f"{error.message} {hint}", at, "invalid_image") from None

    return read


# Images are decoded before a request waits for its model; nothing is fetched.
IMAGE_DATA = Shape(s.TEXT.schema, _image_of("an image in base64", image_of_base64))
_URL = Shape(s.TEXT.schema, _image_of("a data: URL", image_of_url))
_URL_OBJECT = s.obj({"url": _URL, "detail?": s.unread(s.TEXT.schema)})


# The image of a `data:` URL, or of an object with one in `url`, as at OpenAI.
IMAGE_URL = Shape(
    {"anyOf": [_URL.schema, _URL_OBJECT.schema]},
    lambda v, at: _URL_OBJECT.read(v, at)["url"] if isinstance(v, dict) else _URL.read(v, at),
)
FUNCTION_NAME = Shape({"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,128}$"}, _name)


def content_of(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return the content of a message: one text, or parts if there are images."""
    if any(part["type"] == "image_url" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def of_result(part: Shape, text_kinds: tuple[str, ...] = ("text",)) -> Shape:
    """Return the description of a part of a result; a short text stands for what cannot be read.

    The first of `text_kinds`, the types of parts with text, is that of the short text.
    """

    def read(value: Any, at: str) -> Any:
        try:
            return part.read(value, at)
        except ApiError:
            kind = value.get("type") if isinstance(value, dict) else None
            if not isinstance(kind, str) or kind in text_kinds:
                raise
            note(at, "A short text stands for what cannot be read.")
            kind = re.sub(r"\W", "_", kind)[:60]
            return {"type": text_kinds[0], "text": f"[a part of the type {kind}, not read]"}

    return Shape(part.schema, read)


def conversation(roles: Mapping[str, Shape]) -> Shape:
    fact = f"must be one of {', '.join(roles)}."
    message = s.tagged("role", roles, fact, "invalid_value", "must be an object.")
    return s.array(message, "must be an array with at least one message.", 1)


# ---- tools


FUNCTION_FIELDS = {
    "name": FUNCTION_NAME,
    "description?": s.or_empty(s.TEXT, ""),
    "parameters?": s.or_empty(s.JSON_SCHEMA, {}),
    "strict?": s.FLAG,
}


def own(tools: Any, at: str, kinds: Collection[Any] = ("function", None)) -> list[tuple[Any, str]]:
    """Return the tools that a model can be offered, with their places; others are left out.

    Where there are only others they are refused: what the model answers would be made up. In
    `kinds` None is that of a tool without a type.
    """
    if not isinstance(tools, list):
        raise invalid_value(at, "must be an array of tools.")
    found, left_out = [], ""
    for i, one in enumerate(tools):
        kind = one.get("type") if isinstance(one, dict) else None
        if isinstance(kind, str) and kind not in kinds:
            left_out = f"{at}[{i}].type"
            note(f"{at}[{i}].{kind[:60]}", "Tools of a server are left out.")
        else:
            found.append((one, f"{at}[{i}]"))
    if left_out and not found:
        named = " or ".join(one for one in kinds if one)
        raise s.unsupported(left_out, f"must be {named}: other tools are not supported.")
    return found


def check_different(functions: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of functions, which must differ."""
    names = [one["name"] for one in functions]
    if len(set(names)) < len(names):
        raise invalid_value("tools", "must have different names.")
    return names


def given_name(value: Any, names: Collection[str], at: str) -> str:
    """Return the name of a tool that a choice demands, which must be one of `names`."""
    if not isinstance(value, str) or value not in names:
        raise invalid_value(at, f"names the tool {str(value)[:100]!r}, which is not in tools.")
    return value


def tool_use(
    functions: list[dict[str, Any]], mode: str, only: str | None, parallel: bool
) -> ToolUse:
    """Return how the model may call tools.

    Args:
        functions: Functions with a name, and perhaps description, parameters and `strict`.
        mode: `none`, `auto` or `required`.
        only: Name of the single function that must be called, or None.
        parallel: Whether the answer may have several calls.
    """
    if mode == "required" and not functions:
        raise invalid_value("tool_choice", "requires tools.")
    if mode == "none" or not functions:
        return NO_TOOLS
    strict = frozenset(
        one["name"] for one in functions if one.get("strict") and only in (None, one["name"])
    )
    nothing = {"type": "object", "properties": {}}  # one for all, to save memory
    tools = [
        {
            "type": "function",
            "function": {
                "name": one["name"],
                "description": one.get("description") or "",
                "parameters": one.get("parameters") or nothing,
            },
        }
        for one in functions
    ]
    return ToolUse(tools, mode == "required", only, parallel and only is None, strict)


TOOL_CHOICES = ("none", "auto", "required")


# ---- reasoning and the form of the answer


def _effort(value: Any, at: str) -> str | None:
    """Return an effort of another API as the nearest one here; None leaves it to the model."""
    if not isinstance(value, str):
        raise invalid_value(at, f"must be one of {', '.join(EFFORTS)}.")
    name = value.strip().lower()
    if name in EFFORTS or not name:
        return name or None
    if name not in _MEANT_EFFORTS:
        note(at, "There is no effort of this name.")
        return None
    if meant := _MEANT_EFFORTS[name]:
        note_taken(at, name, meant)
    return meant


EFFORT = Shape({"enum": [*EFFORTS]}, _effort)
TEMPLATE_KWARGS = s.checked(
    {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}},
    lambda value: (
        isinstance(value, dict)
        and all(one is None or isinstance(one, (str, bool, int, float)) for one in value.values())
    ),
    "must be an object of plain values.",
)


class StrictSchema(dict[str, Any]):
    """The schema of an answer, of which each keyword must be enforced."""


def schema_of(value: Any, at: str) -> Any:
    """Return the JSON schema of a response format, or None if it has none."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text" or value in ({}, ""):
        return None
    if kind == "json_object":
        # llama-server's form has the schema here.
        return s.JSON_SCHEMA.read(value.get("schema") or {"type": "object"}, f"{at}.schema")
    if kind != "json_schema":
        raise invalid_value(at, "must be of the type text, json_object or json_schema.")
    inner, at = value.get("json_schema", value), f"{at}.json_schema"
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, (dict, bool)):
        raise invalid_value(at, "must contain a schema.")
    for name, one in inner.items():
        kinds: tuple[type, ...] = (bool,) if name == "strict" else (str,)
        if name in ("strict", "name", "description") and not isinstance(one, (*kinds, type(None))):
            raise invalid_value(at, f"has a {name} of another type.")
        if name not in ("schema", "strict", "name", "description", "type"):
            note(f"{at}.{name[:100]}")
    return StrictSchema(schema) if inner.get("strict") and isinstance(schema, dict) else schema


NAMED_SCHEMA = {"name?": s.TEXT, "schema": s.JSON_SCHEMA, "strict?": s.FLAG, "description?": s.TEXT}
PLAIN_FORMAT = s.object_of({"type": {"enum": ["text", "json_object"]}})
_SCHEMA_FORMAT = s.object_of({"type": "json_schema", "json_schema": s.object_of(NAMED_SCHEMA)})
RESPONSE_FORMAT = Shape({"oneOf": [PLAIN_FORMAT, _SCHEMA_FORMAT]}, schema_of)
# Fields of llama-server about what each event of a stream has.
EVENT_FIELDS = {"timings_per_token": s.FLAG, "return_progress": s.FLAG}
# Fields about the form of an answer, of the routes whose answers have probabilities.
FORMATS = EVENT_FIELDS | {
    "json_schema": s.JSON_SCHEMA,
    "guided_json": s.text_or(s.JSON_SCHEMA),
    "response_format": RESPONSE_FORMAT,
    "n_probs": s.whole_number(0, 100),
}


def schema_in(data: dict[str, Any], names: dict[str, str]) -> Any:
    found = data.get("response_format")
    for name in ("json_schema", "guided_json"):
        if name in data and found is None:
            found, names["json_schema"] = data[name], name
    return found


def prompts(mixed: bool) -> Shape:
    """Return the description of prompts; an empty array is one without tokens."""
    some = s.texts(CHOICES_MAX, f"may contain at most {CHOICES_MAX} prompts.", mixed=mixed)
    return some._replace(
        read=lambda value, at: ([],) if value == [] else tuple(some.read(value, at))
    )


# ---- texts to embed


# Most texts of a request, as at OpenAI.
TEXTS_MAX = 2048
TEXTS_FACT = f"must contain 1 to {TEXTS_MAX:,} texts."
DIMENSIONS = s.whole_number(1, 1 << 20)._replace(schema={"type": "integer", "minimum": 1})
ONLY_TEXTS = s.texts(TEXTS_MAX, TEXTS_FACT, ids=False)


# ---- requests


def continued(messages: Conversation, continues: bool | None = None) -> tuple[Conversation, str]:
    """Return the messages before an answer, and its beginning: the last one, of the assistant."""
    last = messages[-1]
    is_text = isinstance(last.get("content"), str) and not last.get("tool_calls")
    can = last.get("role") == "assistant" and is_text and len(messages) > 1
    if continues and not can:
        fact = "requires a last message of the assistant with a text, and others before it."
        raise invalid_value("continue_final_message", fact)
    if not can or continues is False or (last.get(REASONING) and not continues):
        return messages, ""
    if last.get(REASONING):
        note(f"messages[].{REASONING}", "A message is continued after its reasoning.")
    return messages[:-1], last["content"]


def request_of(
    data: dict[str, Any],
    default: Speculation,
    most: int | None,
    names: dict[str, str],
    *,
    texts: tuple[Text, ...] = (),
    messages: Conversation | None = None,
    tools: ToolUse = NO_TOOLS,
    reasoning: ReasoningFields = NO_REASONING_FIELDS,
    continues: bool | None = None,
) -> CompletionRequest:
    """Return the request that all dialects have in common.

    Args:
        data: Read fields: those of `SHARED`, `json_schema`, and `logprobs` (None for none).
        texts: Prompts of a request for text.
        messages: The conversation of a chat.
        continues: Whether the last message must be continued; None: if it is of the assistant.
    """
    if data.get("grammar") and data.get("json_schema") is not None:
        raise invalid_value("grammar", f"cannot be combined with {names['json_schema']}.")
    if data.get("grammar") and tools.has_grammar:
        raise invalid_value("grammar", "cannot be combined with calls that follow a schema.")
    n = data.get("n", 1)
    if n * len(texts) > CHOICES_MAX:
        raise invalid_value("n", f"times the number of prompts may be at most {CHOICES_MAX}.")
    more = ("json_schema", "logprobs", "dry_sequence_breakers", "stop_tokens")
    fields = {name: _meant(name, data[name]) for name in (*SAME, *more) if name in data}
    given = frozenset((*fields, *(data.keys() & {"stop", "logit_bias"})))
    biases = data.get("logit_bias", {})
    by_id = {token: bias for token, bias in biases.items() if isinstance(token, int)}
    fields |= {"stop": data.get("stop", ()), "logit_bias": by_id}
    fields["max_tokens"] = _max_tokens(data.get("max_tokens"), most, names)
    if data.get("n_probs") and fields.get("logprobs") is None:
        fields["logprobs"] = data["n_probs"]
    begun = ""
    if messages is not None:
        messages, begun = continued(messages, continues)
        _name_repeats(messages)
    indent, most_ms = data.get("n_indent", 0), data.get("t_max_predict_ms", 0)
    most_s = min(most_ms, 10**9) / 1000 if most_ms > 0 else None
    asks = {
        "timings": data.get("timings_per_token"),
        "progress": data.get("stream") and data.get("return_progress"),
    }
    if names.get("repeat_penalty") == "repetition_penalty":  # it counts all tokens there
        fields.setdefault("penalty_last_n", -1)
    return CompletionRequest(
        texts,
        messages,
        n,
        made(lambda: Sampling(**fields), names),
        _speculation(data.get("speculation"), default, names),
        stream=data.get("stream", False),
        tools=tools,
        names=names | ({"prefill": names["prompt"]} if begun else {}),
        reasoning=reasoning,
        lines=LineLimits(indent, most_s) if indent or most_s else None,
        prefill=begun,
        given=given,
        biases=tuple((text, bias) for text, bias in biases.items() if isinstance(text, str)),
        each=frozenset(name for name, asked in asks.items() if asked),
    )


def _name_repeats(messages: Conversation) -> None:
    """Name in the log, every few times, that the same call is made again and again."""
    turns = [one.get("tool_calls") or [] for one in messages if one["role"] == "assistant"]
    calls = [[one["function"] for one in turn] for turn in reversed(turns)]
    n = next((i for i, one in enumerate(calls) if one != calls[0]), len(calls))
    if n and calls[0] and n % _REPEATS == 0:
        fact = "A conversation ends with the same tool call %d times: an agent may be in a loop."
        LOG.warning(fact, n)


def _meant(name: str, value: Any) -> Any:
    """Return a value of an option that other servers write in another way."""
    if name == "grammar" and value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if name == "seed" and value < 0:  # -1 draws one; vLLM takes all numbers of 64 bits
        return None if value == -1 else value % SEEDS if value >= -SEEDS // 2 else value
    if name in ("top_p", "typical_p") and value == 0:  # the most likely token alone
        return _TINY
    if name in ("top_k", "top_n_sigma") and value == -1:
        return 0
    return 0 if name == "temperature" and -_MOST_COLD <= value < 0 else value


def _max_tokens(value: Any, most: int | None, names: dict[str, str]) -> Any:
    """Return the maximum length of the answer; -1 means as much as the server allows."""
    if value is None or (s.is_count(value) and value == -1):
        return most
    allowed = "a whole number, 0 or more, or -1 for as many as the server allows"
    is_length = s.is_count(value) and value >= 0
    made(lambda: require("max_tokens", value, allowed, is_length), names)
    if most is not None and value > most:
        raise invalid_value(
            names.get("max_tokens", "max_tokens"),
            f"is {value} but the limit of this server is {most}.",
        )
    return value


def _speculation(value: Any, default: Speculation, names: dict[str, str]) -> Speculation | None:
    if value is None:
        return None
    if value == "off":
        return replace(default, k=0)
    if not isinstance(value, dict):
        raise invalid_value("speculation", 'must be an object, or "off".')
    for name in value:
        if name not in SPECULATION:
            raise unknown(f"speculation.{name[:100]}")
    given = {name: whole(one) for name, one in value.items() if one is not None}
    options: Speculation = made(lambda: replace(default, **given), names)
    return options
