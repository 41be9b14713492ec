"""Conversion of request bodies to options of the engine: chats and text completions.

No field that changes the answer is silently ignored: an unknown or unsupported field is an error
that names the field. `fields` has the tables of fields that have no effect. The other APIs convert
their bodies to the fields of a chat, and `chat_request` makes the request of all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..errors import ImageError, InvalidOptionError
from ..llama.image_file import Image
from ..options import SPECULATION, Sampling, Speculation
from ..runtime.images import image_of_base64, image_of_url
from ..tools.families import NO_TOOLS, ToolUse
from .errors import ApiError, invalid_value, option_refusal, unknown
from .fields import CHOICES_MAX, LOGPROBS, SAME, SHARED, TOP_LOGPROBS_MAX, Body, same
from .schema import (
    COUNT,
    FLAG,
    JSON_SCHEMA,
    TEXT,
    Fields,
    Read,
    Shape,
    array,
    array_of,
    checked,
    given,
    is_count,
    never,
    obj,
    object_of,
    one_of,
    or_empty,
    string,
    tagged,
    unread,
    whole_number,
)

if TYPE_CHECKING:
    from ..runtime.llm import LLM

# Routes whose requests have a seed.
SEEDED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
TEXT_MAX_TOKENS = 16  # OpenAI's default `max_tokens` of the completions endpoint
SEEDS = 2**64  # number of seeds
# Field of messages and deltas with the reasoning.
REASONING = "reasoning_content"
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
# Efforts that switch reasoning on or off; `minimal` leaves it to the chat template.
_THINK = {"none": False, "low": True, "medium": True, "high": True, "xhigh": True}
# Fields of messages that change nothing: identifiers and marks of other servers and clients.
IGNORED_FIELDS = ("annotations", "cache_control", "id", "status", "timestamp")

Message = dict[str, Any]


@dataclass(frozen=True)
class ReasoningFields:
    """Fields of a chat request about reasoning.

    Attributes:
        effort: `reasoning_effort`, or None.
        values: `chat_template_kwargs`: variables of the chat template.
        think: Whether the model reasons; None leaves it to the effort.
        budget: Maximum number of reasoning tokens of a model that reasons, or None.
    """

    effort: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    think: bool | None = None
    budget: int | None = None

    @property
    def names(self) -> dict[str, str]:
        """Option name -> field name, for errors."""
        return {"think": "reasoning_effort" if self.effort else "chat_template_kwargs"}

    def options(self, llm: LLM) -> dict[str, Any]:
        """Return the options of a generation with a model.

        A model without reasoning, or with a template that does not read the effort, ignores it.
        """
        values, effort = dict(self.values), self.effort
        if effort not in (None, "none") and "reasoning_effort" in llm.template_variables:
            values.setdefault("reasoning_effort", effort)
        think = _THINK.get(effort or "") if self.think is None else self.think
        think = think if llm.can_think else None
        return {"think": think, "chat_template_kwargs": values or None}


# Fields of a request without any.
NO_REASONING_FIELDS = ReasoningFields()


@dataclass(frozen=True)
class CompletionRequest:
    """Validated request for one or several completions.

    Attributes:
        prompts: Texts, token ids, or messages; each gets `n` choices.
        n: Number of choices for each prompt.
        sampling: Sampling options, including `logprobs`.
        speculation: Speculation options; None for the defaults of the server.
        stream: Whether the answer is sent in chunks.
        usage: Whether the last chunk of a stream contains the usage.
        shows_drafts: Whether the chunks of a stream mark the text that was drafted.
        echo: Whether the answer begins with the prompt.
        suffix: Text after the answer, for filling in the middle; None to continue the prompt.
        tools: Tools that the model may call, and how.
        names: Option name -> field name, for options whose field has another name.
        reasoning: Fields about reasoning.
        drops_oldest: Whether the oldest turns of a conversation that is too long are left out.
        more: What only the reply of its API needs.
    """

    prompts: tuple[Any, ...]
    n: int
    sampling: Sampling
    speculation: Speculation | None
    stream: bool
    usage: bool
    shows_drafts: bool
    echo: bool
    suffix: str | None
    tools: ToolUse
    names: dict[str, str]
    reasoning: ReasoningFields = NO_REASONING_FIELDS
    drops_oldest: bool = False
    more: Any = field(default=None, compare=False)

    @property
    def n_choices(self) -> int:
        """Number of choices of all prompts."""
        return self.n * len(self.prompts)

    @property
    def needs_grammar(self) -> bool:
        """Whether its schemas must be converted to a grammar."""
        has_schema = self.sampling.json_schema is not None or self.tools.has_grammar
        return has_schema and self.sampling.grammar is None

    @property
    def is_chat(self) -> bool:
        """Whether this is a chat request; its answer is then a message."""
        return self.names["prompt"] == "messages"


def seed_of(seed: int, i: int) -> int:
    """Return the seed of choice `i` of a prompt, from the seed of the request.

    Choice 0 has the seed of the request, and each further choice the next number modulo 2**64. A
    request for one choice with that seed gives the same text.
    """
    return (seed + i) % SEEDS


def parse(body: bytes) -> dict[str, Any]:
    """Parse the JSON object of a request body.

    Raises:
        ApiError: The body is not a JSON object in UTF-8, or a number in it is too large.
    """
    try:
        data = json.loads(body, parse_constant=_no_number)
        text = json.dumps(data, ensure_ascii=False)
        text.encode()  # rejects unpaired surrogates
    except (ValueError, RecursionError):
        raise ApiError("The body is not JSON in UTF-8.", None, "invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError("The body must be a JSON object.", None, "invalid_json")
    if "Infinity" in text:
        _check_finite(data)
    return data


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


def made(make: Callable[[], Any], names: dict[str, str]) -> Any:
    """Return the options that `make` creates.

    Raises:
        ApiError: An option is outside its range. The error names its field.
    """
    try:
        return make()
    except InvalidOptionError as error:
        raise option_refusal(error, names) from None
    except OverflowError:
        raise ApiError("A number is too large.", None, "invalid_value") from None


# ---- messages


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def _name(value: Any, at: str) -> str:
    name = string(value, at)
    if not _NAME.fullmatch(name):
        raise invalid_value(at, "must be 1 to 64 letters, digits, _ or -.")
    return name


def read_arguments(value: Any, at: str) -> dict[str, Any]:
    """Return the arguments of a call; they are an object as text, or empty.

    Raises:
        ApiError: They are not. The error names the field `at`.
    """
    try:
        arguments = json.loads(string(value, at) or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise invalid_value(at, "must be a JSON object as text.")
    return arguments


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
IMAGE_DATA = Shape(TEXT.schema, _image_of("an image in base64", image_of_base64))
_URL = Shape(TEXT.schema, _image_of("a data: URL", image_of_url))
_URL_OBJECT = obj({"url": _URL, "detail?": unread(TEXT.schema)}, empty=(None,))


def _read_image_url(value: Any, at: str) -> Any:
    """Return the image of a `data:` URL, or of an object with one in `url`, as at OpenAI."""
    return _URL_OBJECT.read(value, at)["url"] if isinstance(value, dict) else _URL.read(value, at)


IMAGE_URL = Shape({"anyOf": [_URL.schema, _URL_OBJECT.schema]}, _read_image_url)
FUNCTION_NAME = Shape({"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}, _name)


def _part(kind: str, shape: Shape) -> Shape:
    only = f"may contain only type and {kind}."
    return obj({"type": kind, kind: shape}, only=only, ignored=IGNORED_FIELDS)


def content_of(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return the content of a message: one text, or parts if there are images."""
    if any(part["type"] == "image_url" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def text_part(text: str) -> dict[str, Any]:
    """Return the part of a text."""
    return {"type": "text", "text": text}


def _content(may_be_empty: bool = False, **kinds: Shape) -> Shape:
    """Return the description of a content; it is read as one text, or parts if there are images."""
    parts = {kind: _part(kind, shape) for kind, shape in kinds.items()}
    part = tagged("type", parts, f"must be {' or '.join(kinds)}: other parts are not supported.")
    some = array(part, "must be a string, or an array of parts that is not empty.", 1)

    def read(value: Any, at: str) -> Any:
        if may_be_empty and (value is None or value == []):
            return ""
        return content_of(some.read(value, at)) if isinstance(value, list) else string(value, at)

    return Shape({"anyOf": [TEXT.schema, some.schema]}, read)


def _read_call(call: Any, at: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise invalid_value(at, "must be a call of the type function.")
    # The arguments stay an object: chat templates serialise them to JSON.
    arguments = read_arguments(function.get("arguments"), f"{at}.function.arguments")
    name = _name(function.get("name"), f"{at}.function.name")
    id_ = string(call.get("id"), f"{at}.id")
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


_CALLED = object_of({"name": FUNCTION_NAME, "arguments": TEXT})
_CALL = Shape(object_of({"id": TEXT, "type?": "function", "function": _CALLED}), _read_call)
_CALLS = array(_CALL, "must be an array with at least one call.", 1)
_OF_ASSISTANT = "is only allowed in a message of the assistant."


def _message(role: str, content: Shape, more: Fields | None = None, read_as: str = "") -> Shape:
    """Return the description of a message; templates read its role as `read_as`."""
    fields = {
        "role": Shape({"const": role}, lambda *_: read_as or role),
        f"{REASONING}?": never(_OF_ASSISTANT),
        "name?": or_empty(TEXT).hidden,
        "tool_calls?": never(_OF_ASSISTANT, []),
        "content": content,
        "tool_call_id?": never("is only allowed in a message of the role tool."),
    }
    return obj(fields | (more or {}), ignored=IGNORED_FIELDS)


def conversation(roles: Mapping[str, Shape]) -> Shape:
    """Return the description of messages, from those of the roles."""
    fact = f"must be one of {', '.join(roles)}."
    message = tagged("role", roles, fact, "invalid_value", "must be an object.")
    return array(message, "must be an array with at least one message.", 1)


_ONLY_TEXT, _MAYBE = _content(text=TEXT), _content(may_be_empty=True, text=TEXT)
_CALLS_OR_NONE = Shape(_CALLS.schema, lambda v, at: _CALLS.read(v, at) if v != [] else None)
# Messages, in the form that chat templates read: each has a role and a text as content, or an array
# of parts if there are images. Calls have arguments that are objects.
MESSAGES = conversation(
    {
        "system": _message("system", _ONLY_TEXT),
        "developer": _message("developer", _ONLY_TEXT, read_as="system"),  # unknown to templates
        "user": _message("user", _content(text=TEXT, image_url=IMAGE_URL)),
        "assistant": _message(
            "assistant", _MAYBE, {f"{REASONING}?": TEXT, "tool_calls?": _CALLS_OR_NONE}
        ),
        "tool": _message("tool", _MAYBE, {"tool_call_id": TEXT}),
    }
)


# ---- tools


FUNCTION_FIELDS = {
    "name": FUNCTION_NAME,
    "description?": or_empty(TEXT, ""),
    "parameters?": or_empty(JSON_SCHEMA, {}),
    "strict?": FLAG,
}
_FUNCTION = obj(FUNCTION_FIELDS, empty=())


def _read_tool(tool: Any, at: str) -> Any:
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        fact = f"{at}.type must be function: other tools are not supported."
        raise ApiError(fact, f"{at}.type", "unsupported_parameter")
    function = tool.get("function")
    if not isinstance(function, dict) or not tool.keys() <= {"type", "function", "cache_control"}:
        raise invalid_value(at, "may contain only type and function.")
    return _FUNCTION.read(function, f"{at}.function")


_TOOL = object_of({"type": "function", "function": _FUNCTION})
TOOLS = array(Shape(_TOOL, _read_tool), "must be an array of tools.")


def check_different(functions: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of functions.

    Raises:
        ApiError: Two have the same name.
    """
    names = [one["name"] for one in functions]
    if len(set(names)) < len(names):
        raise invalid_value("tools", "must have different names.")
    return names


def given_name(value: Any, names: Collection[str], at: str) -> str:
    """Return the name of a tool that a choice demands.

    Args:
        value: The name.
        names: Names of the given tools.
        at: Its place in the request.

    Raises:
        ApiError: There is no such tool. The error names the field `at`.
    """
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

    Raises:
        ApiError: A call is required, and there are no tools.
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


def _chosen(functions: list[dict[str, Any]], choice: Any, parallel: bool) -> ToolUse:
    """Return how the model may call tools, from the field `tool_choice` of a chat."""
    names = check_different(functions)
    if not functions and choice not in ("none", "auto", None):
        raise invalid_value("tool_choice", "requires tools.")
    if choice is None or choice in TOOL_CHOICES:
        return tool_use(functions, choice or "auto", None, parallel)
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(choice, dict) or choice.get("type") != "function" or not name:
        raise ApiError(
            "tool_choice must be none, auto, required, or an object with the name of a function.",
            "tool_choice",
            "unsupported_parameter",
        )
    return tool_use(functions, "required", given_name(name, names, "tool_choice"), parallel)


# ---- reasoning and the form of the answer


EFFORT = one_of(EFFORTS)
TEMPLATE_KWARGS = checked(
    {
        "type": "object",
        "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
    },
    lambda value: (
        isinstance(value, dict)
        and all(one is None or isinstance(one, (str, bool, int, float)) for one in value.values())
    ),
    "must be an object of plain values.",
)


def schema_of(value: Any, at: str) -> Any:
    """Return the JSON schema of a response format, or None if it has none."""
    if value == {"type": "text"}:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "json_object" and set(value) <= {"type", "schema"}:
        # llama-server's form has the schema here.
        return JSON_SCHEMA.read(value.get("schema") or {"type": "object"}, f"{at}.schema")
    if kind != "json_schema" or set(value) != {"type", "json_schema"}:
        raise invalid_value(at, "must be of the type text, json_object or json_schema.")
    inner, at = value["json_schema"], f"{at}.json_schema"
    name, schema = (inner.get("name"), inner.get("schema")) if isinstance(inner, dict) else (0, 0)
    if not isinstance(name, str) or not isinstance(schema, (dict, bool)):
        raise invalid_value(at, "must contain a name and a schema.")
    if not (
        isinstance(inner.get("strict"), (bool, type(None)))
        and isinstance(inner.get("description"), (str, type(None)))
        and set(inner) <= {"name", "schema", "strict", "description"}
    ):
        raise invalid_value(at, "may contain only name, schema, strict and description.")
    return schema  # always enforced, whatever the value of `strict`


NAMED_SCHEMA = {"name": TEXT, "schema": JSON_SCHEMA, "strict?": FLAG, "description?": TEXT}
PLAIN_FORMAT = object_of({"type": {"enum": ["text", "json_object"]}})
_SCHEMA_FORMAT = object_of({"type": "json_schema", "json_schema": object_of(NAMED_SCHEMA)})
RESPONSE_FORMAT = Shape({"oneOf": [PLAIN_FORMAT, _SCHEMA_FORMAT]}, schema_of)


# ---- bodies


_N = whole_number(1, CHOICES_MAX)
# Fields of the routes that may have several choices; `include_obfuscation` adds padding at OpenAI.
_CHOICES = {
    "n": Shape(_N.schema | {"default": 1}, _N.read),
    "stream_options": obj(
        {
            "include_usage?": FLAG,
            "include_speculation?": FLAG,
            "include_obfuscation?": unread(FLAG.schema),
        },
        only="may contain include_usage and include_speculation.",
    ),
}
_CHOICE = object_of({"type": "function", "function": object_of({"name": FUNCTION_NAME})})


def _prompts(value: Any, at: str) -> tuple[str | list[int], ...]:
    """Return the prompts: a text or token ids, or an array of these."""
    several = isinstance(value, list) and value and isinstance(value[0], (str, list))
    given = value if several else [value]
    for one in given:
        if not (isinstance(one, str) or (isinstance(one, list) and all(map(is_count, one)))):
            raise invalid_value(
                at, "must be a string, an array of token ids, or an array of these."
            )
    if len(given) > CHOICES_MAX:
        raise invalid_value(at, f"may contain at most {CHOICES_MAX} prompts.")
    return tuple(given)


_IDS = array_of(COUNT, least=1)
_PROMPT = {"anyOf": [TEXT.schema, _IDS, *(array_of(x, CHOICES_MAX, 1) for x in (TEXT, _IDS))]}
TEXT_BODY = Body(
    "text",
    SHARED
    | _CHOICES
    | {
        "prompt": Shape(_PROMPT, _prompts),
        "suffix": given(TEXT.schema),
        "best_of": given({"type": "integer", "description": "No effect. It must be equal to n."}),
        "echo": FLAG,
        "logprobs": LOGPROBS,
    },
    "prompt",
)
CHAT = Body(
    "chat",
    SHARED
    | _CHOICES
    | {
        "messages": MESSAGES,
        "logprobs": FLAG,
        "top_logprobs": given(LOGPROBS.schema),
        "tools": TOOLS,
        "tool_choice": given({"anyOf": [{"enum": [*TOOL_CHOICES]}, _CHOICE]}),
        "parallel_tool_calls": FLAG,
        "reasoning_effort": EFFORT,
        "chat_template_kwargs": TEMPLATE_KWARGS,
        "response_format": RESPONSE_FORMAT,
    },
    "messages",
)


def read_chat(data: dict[str, Any], default: Speculation, most: int | None) -> CompletionRequest:
    """Convert the body of a chat request.

    Args:
        data: The body.
        default: Speculation options of the server.
        most: Maximum length of an answer in tokens; None for no limit.

    Raises:
        ApiError: A field is invalid or not supported. The error names the field.
    """
    data, names = CHAT.read(data)
    parallel = data.get("parallel_tool_calls", True)
    tools = _chosen(data.get("tools", []), data.get("tool_choice"), parallel)
    wants, top = data.get("logprobs", False), data.get("top_logprobs", 0)
    if not (is_count(top) and 0 <= top <= TOP_LOGPROBS_MAX) or (top and not wants):
        raise invalid_value(
            "top_logprobs",
            f"must be a whole number from 0 to {TOP_LOGPROBS_MAX}, "
            "and requires logprobs to be true.",
        )
    reasoning = ReasoningFields(data.get("reasoning_effort"), data.get("chat_template_kwargs", {}))
    names |= {"prompt": "messages", "json_schema": "response_format"} | reasoning.names
    data |= {"tools": tools, "reasoning": reasoning, "logprobs": top if wants else None}
    return chat_request(data | {"json_schema": data.get("response_format")}, default, most, names)


def chat_request(
    data: dict[str, Any], default: Speculation, most: int | None, names: dict[str, str]
) -> CompletionRequest:
    """Return the request of a chat of any API.

    Args:
        data: Read fields: `SHARED`, `messages`, `tools` (a `ToolUse`), `reasoning` (as
            `ReasoningFields`), `json_schema`, and `logprobs` (None for none).
        default: Speculation options of the server.
        most: Maximum length of an answer in tokens; None for no limit.
        names: Option name -> field name, for options whose field has another name.

    Raises:
        ApiError: A field is invalid. The error names the field.
    """
    if "grammar" in data and data["json_schema"] is not None:
        raise invalid_value("grammar", f"cannot be combined with {names['json_schema']}.")
    if "grammar" in data and data["tools"].has_grammar:
        raise invalid_value("grammar", "cannot be combined with calls that follow a schema.")
    request = _request(data, (data["messages"],), default, most, names)
    return replace(request, tools=data["tools"], reasoning=data["reasoning"])


def read_text(data: dict[str, Any], default: Speculation, most: int | None) -> CompletionRequest:
    """Convert the body of a text completion request.

    Args:
        data: The body.
        default: Speculation options of the server.
        most: Maximum length of an answer in tokens; None for no limit.

    Raises:
        ApiError: A field is invalid or not supported. The error names the field.
    """
    data, names = TEXT_BODY.read(data)
    data.setdefault("max_tokens", min(TEXT_MAX_TOKENS, most or TEXT_MAX_TOKENS))
    given, echo, suffix = data["prompt"], data.get("echo", False), data.get("suffix", "")
    are_texts = all(isinstance(prompt, str) for prompt in given)
    if echo and ("logprobs" in data or not are_texts):
        raise invalid_value(
            "echo", "requires a prompt that is a string, and cannot be combined with logprobs."
        )
    if suffix != "" and not (isinstance(suffix, str) and are_texts and not echo):
        raise invalid_value(
            "suffix", "must be a string, requires a prompt that is one, and excludes echo."
        )
    request = _request(data, given, default, most, names | {"prompt": "prompt"})
    if not same(data.get("best_of", request.n), request.n):
        raise ApiError(
            "best_of is not supported but for the value of n.", "best_of", "unsupported_parameter"
        )
    return replace(request, echo=echo, suffix=suffix or None)


def _request(
    data: dict[str, Any],
    given: tuple[Any, ...],
    default: Speculation,
    most: int | None,
    names: dict[str, str],
) -> CompletionRequest:
    """Return the request that all APIs have in common, without tools; `given` are the prompts."""
    n, options = data.get("n", 1), data.get("stream_options", {})
    if n * len(given) > CHOICES_MAX:
        raise invalid_value("n", f"times the number of prompts may be at most {CHOICES_MAX}.")
    fields = {name: data[name] for name in (*SAME, "json_schema", "logprobs") if name in data}
    fields |= {"stop": data.get("stop", ()), "logit_bias": data.get("logit_bias", {})}
    fields["max_tokens"] = _max_tokens(data.get("max_tokens"), most, names)
    if names.get("repeat_penalty") == "repetition_penalty":  # it counts all tokens there
        fields.setdefault("penalty_last_n", -1)
    if is_count(fields.get("top_k")) and fields["top_k"] == -1:
        fields["top_k"] = 0
    return CompletionRequest(
        given,
        n,
        made(lambda: Sampling(**fields), names),
        _speculation(data.get("speculation"), default, names),
        data.get("stream", False),
        options.get("include_usage", False),
        options.get("include_speculation", False),
        echo=False,
        suffix=None,
        tools=NO_TOOLS,
        names=names,
    )


def _max_tokens(value: Any, most: int | None, names: dict[str, str]) -> Any:
    """Return the maximum length of the answer; -1 and 0 mean as much as the server allows."""
    if value is None or (is_count(value) and value in (-1, 0)):
        return most
    if most is not None and isinstance(value, int) and value > most:
        raise invalid_value(
            names.get("max_tokens", "max_tokens"),
            f"is {value} but the limit of this server is {most}.",
        )
    return value


def _speculation(value: Any, default: Speculation, names: dict[str, str]) -> Speculation | None:
    """Return the speculation options of a request; None for those of the server."""
    if value is None:
        return None
    if value == "off":
        return replace(default, k=0)
    if not isinstance(value, dict):
        raise invalid_value("speculation", 'must be an object, or "off".')
    for name in value:
        if name not in SPECULATION:
            raise unknown(f"speculation.{name[:100]}")
    given = {name: one for name, one in value.items() if one is not None}
    options: Speculation = made(lambda: replace(default, **given), names)
    return options
