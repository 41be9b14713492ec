"""Conversion of request bodies to options of the engine.

No field is silently ignored: an unknown or unsupported field is an error that names the field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InvalidOptionError
from ..options import SAMPLING, SPECULATION, Sampling, Speculation
from .errors import ApiError, bad, option_refusal
from .messages import read_messages, read_tools
from .reasoning import (
    NO_REASONING_FIELDS,
    REASONING_FIELDS,
    ReasoningFields,
    read_reasoning,
)

# Fields of `Sampling` that a body may hold under the same name.
SAME = tuple(name for name, rule in SAMPLING.items() if rule.in_requests)
# OpenAI fields that this server does not support -> values with no effect, which are accepted.
_NEUTRAL: dict[str, tuple[Any, ...]] = {"n": (1,)}
_NEUTRAL_CHAT = _NEUTRAL | {
    "store": (False,),
    "parallel_tool_calls": (True,),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
    "audio": (),
    "function_call": (),
    "functions": (),
    "metadata": (),
    "prediction": (),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "safety_identifier": (),
    "user": (),
    "verbosity": (),
    "web_search_options": (),
}
_NEUTRAL_TEXT = _NEUTRAL | {"suffix": ("",), "best_of": (1,), "user": ()}
_SHARED = {
    "model",
    "stream",
    "stream_options",
    "stop",
    "logit_bias",
    "logprobs",
    "speculation",
    *SAME,
}
_CHAT = _SHARED | {
    "messages",
    "max_completion_tokens",
    "top_logprobs",
    "response_format",
    "tools",
    "tool_choice",
    *REASONING_FIELDS,
}
_TEXT = _SHARED | {"prompt", "echo"}
# Limits: number of stop strings, characters per stop string, alternatives per token (logprobs).
STOPS_MAX, STOP_LENGTH_MAX, TOP_LOGPROBS_MAX = 16, 256, 20
TEXT_MAX_TOKENS = 16  # OpenAI's default `max_tokens` of the completions endpoint


@dataclass(frozen=True)
class CompletionRequest:
    """Validated request for a completion.

    Attributes:
        prompt: A text, token ids, or messages.
        sampling: Sampling options, including `logprobs`.
        speculation: Speculation options; None for the defaults of the server.
        stream: Whether the answer is sent in chunks.
        usage: Whether the last chunk of a stream contains the usage.
        shows_drafts: Whether the chunks of a stream mark the text that was drafted.
        echo: Whether the answer begins with the prompt.
        tools: Tools that the model may call.
        names: Option name -> field name, for options whose field has another name.
        reasoning: Fields about reasoning.
    """

    prompt: Any
    sampling: Sampling
    speculation: Speculation | None
    stream: bool
    usage: bool
    shows_drafts: bool
    echo: bool
    tools: list[dict[str, Any]]
    names: dict[str, str]
    reasoning: ReasoningFields = NO_REASONING_FIELDS

    @property
    def is_chat(self) -> bool:
        """Whether this is a chat request; its answer is then a message."""
        return self.names["prompt"] == "messages"


def parse(body: bytes) -> dict[str, Any]:
    """Parse the JSON object of a request body.

    Raises:
        ApiError: The body is not a JSON object in UTF-8.
    """
    try:
        data = json.loads(body, parse_constant=_no_number)
        json.dumps(data, ensure_ascii=False).encode()  # rejects unpaired surrogates
    except (ValueError, RecursionError):
        raise ApiError("The body is not JSON in UTF-8.", None, "invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError("The body must be a JSON object.", None, "invalid_json")
    return data


def _no_number(text: str) -> float:
    raise ValueError(text)


def read_chat(data: dict[str, Any], default: Speculation, most: int | None) -> CompletionRequest:
    """Convert the body of a chat request.

    Args:
        data: The body.
        default: Speculation options of the server.
        most: Maximum length of an answer in tokens; None for no limit.

    Raises:
        ApiError: A field is invalid or not supported. The error names the field.
    """
    data = _check_fields(data, _CHAT, _NEUTRAL_CHAT)
    tools = read_tools(data.get("tools"), data.get("tool_choice"))
    schema = _schema(data.get("response_format"))
    if schema is not None and tools:
        raise bad(
            "response_format",
            "cannot be combined with tools, because it would forbid their calls.",
        )
    if schema is not None and "grammar" in data:
        raise bad("grammar", "cannot be combined with response_format.")
    if "max_completion_tokens" in data:
        if (
            data.setdefault("max_tokens", data["max_completion_tokens"])
            != data["max_completion_tokens"]
        ):
            raise bad("max_tokens", "differs from max_completion_tokens.")
        names = {"max_tokens": "max_completion_tokens"}
    else:
        names = {}
    wants, top = _flag(data, "logprobs"), data.get("top_logprobs")
    if top is not None and not (wants and _is_count(top) and 0 <= top <= TOP_LOGPROBS_MAX):
        raise bad(
            "top_logprobs",
            f"must be a whole number from 0 to {TOP_LOGPROBS_MAX}, "
            "and requires logprobs to be true.",
        )
    sampling = {"json_schema": schema, "logprobs": (top or 0) if wants else None}
    reasoning = read_reasoning(data)
    names |= {"prompt": "messages", "json_schema": "response_format"} | reasoning.names
    messages = read_messages(data.get("messages"))
    asked = _asked(data, messages, sampling, default, most, names, tools=tools)
    return replace(asked, reasoning=reasoning)


def read_text(data: dict[str, Any], default: Speculation, most: int | None) -> CompletionRequest:
    """Convert the body of a text completion request.

    Args:
        data: The body.
        default: Speculation options of the server.
        most: Maximum length of an answer in tokens; None for no limit.

    Raises:
        ApiError: A field is invalid or not supported. The error names the field.
    """
    data = {"max_tokens": min(TEXT_MAX_TOKENS, most or TEXT_MAX_TOKENS)} | _check_fields(
        data, _TEXT, _NEUTRAL_TEXT
    )
    prompt, echo, logprobs = _prompt(data.get("prompt")), _flag(data, "echo"), data.get("logprobs")
    if logprobs is not None and not (_is_count(logprobs) and 0 <= logprobs <= TOP_LOGPROBS_MAX):
        raise bad("logprobs", f"must be a whole number from 0 to {TOP_LOGPROBS_MAX}.")
    if echo and (logprobs is not None or not isinstance(prompt, str)):
        raise bad(
            "echo", "requires a prompt that is a string, and cannot be combined with logprobs."
        )
    return _asked(
        data, prompt, {"logprobs": logprobs}, default, most, {"prompt": "prompt"}, echo=echo
    )


def _asked(
    data: dict[str, Any],
    prompt: Any,
    sampling: dict[str, Any],
    default: Speculation,
    most: int | None,
    names: dict[str, str],
    *,
    echo: bool = False,
    tools: list[dict[str, Any]] | None = None,
) -> CompletionRequest:
    stream, options = _flag(data, "stream"), data.get("stream_options", {})
    if (
        not isinstance(options, dict)
        or not set(options) <= {"include_usage", "include_speculation"}
        or (options and not stream)
    ):
        raise bad(
            "stream_options",
            "may contain include_usage and include_speculation, and requires stream to be true.",
        )
    n = data.get("max_tokens", most)
    if most is not None and isinstance(n, int) and n > most:
        raise bad(
            names.get("max_tokens", "max_tokens"),
            f"is {n} but the limit of this server is {most}.",
        )
    fields = {name: data[name] for name in SAME if name in data} | sampling
    fields |= {
        "stop": _stops(data.get("stop")),
        "logit_bias": _biases(data.get("logit_bias", {})),
        "max_tokens": n,
    }
    return CompletionRequest(
        prompt,
        _made(lambda: Sampling(**fields), names),
        _speculation(data.get("speculation"), default, names),
        stream,
        _flag(options, "include_usage", "stream_options."),
        _flag(options, "include_speculation", "stream_options."),
        echo,
        tools or [],
        names,
    )


def _check_fields(
    data: dict[str, Any], known: set[str], neutral: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """Return the known fields of a body, without those that are null.

    Raises:
        ApiError: A field is unknown, or has an unsupported value. The error names the field.
    """
    data = {name: value for name, value in data.items() if value is not None}
    for name in [name for name in data if name not in known]:
        if name not in neutral:
            raise ApiError(f"Unknown field: {name[:100]}.", name[:100], "unknown_parameter")
        value = data.pop(name)
        if not any(type(value) is type(one) and value == one for one in neutral[name]):
            allowed = "".join(f" but for {json.dumps(one)}" for one in neutral[name][:1])
            raise ApiError(f"{name} is not supported{allowed}.", name, "unsupported_parameter")
    if not isinstance(data.get("model", ""), str):
        raise bad("model", "must be a string.")
    return data


def _made(make: Callable[[], Any], names: dict[str, str]) -> Any:
    try:
        return make()
    except InvalidOptionError as error:
        raise option_refusal(error, names) from None
    except OverflowError:
        raise ApiError("A number is too large.", None, "invalid_value") from None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _flag(data: dict[str, Any], name: str, at: str = "") -> bool:
    value = data.get(name)
    if not (value is None or isinstance(value, bool)):
        raise bad(at + name, "must be true or false.")
    return bool(value)


def _stops(value: Any) -> tuple[str, ...]:
    stops = (
        ()
        if value is None
        else (value,)
        if isinstance(value, str)
        else tuple(value)
        if isinstance(value, list)
        else None
    )
    if (
        stops is None
        or len(stops) > STOPS_MAX
        or not all(isinstance(stop, str) and 0 < len(stop) <= STOP_LENGTH_MAX for stop in stops)
    ):
        raise bad(
            "stop",
            f"must be a string of 1 to {STOP_LENGTH_MAX} characters, "
            f"or an array of at most {STOPS_MAX} of them.",
        )
    return stops


def _biases(value: Any) -> dict[int, float]:
    if not isinstance(value, dict) or not all(
        token.isdecimal() and len(token) < 10 for token in value
    ):
        raise bad("logit_bias", "must be an object from token ids to numbers.")
    return {int(token): bias for token, bias in value.items()}


def _prompt(value: Any) -> str | list[int]:
    """Return the prompt: a text or token ids, given directly or as the only item of an array."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        value = value[0]
    if isinstance(value, str) or (isinstance(value, list) and all(map(_is_count, value))):
        return value
    raise bad("prompt", "must be one string or one array of token ids.")


def _schema(value: Any) -> Any:
    """Return the JSON schema of a response format, or None if it has none."""
    if value is None or value == {"type": "text"}:
        return None
    if value == {"type": "json_object"}:
        return {"type": "object"}
    if (
        not isinstance(value, dict)
        or value.get("type") != "json_schema"
        or set(value) != {"type", "json_schema"}
    ):
        raise bad("response_format", "must be of the type text, json_object or json_schema.")
    inner = value["json_schema"]
    if (
        not isinstance(inner, dict)
        or not isinstance(inner.get("name"), str)
        or not isinstance(inner.get("schema"), (dict, bool))
    ):
        raise bad("response_format.json_schema", "must contain a name and a schema.")
    if (
        inner.get("strict") not in (None, True, False)
        or inner.get("description")
        or not set(inner) <= {"name", "schema", "strict", "description"}
    ):
        raise bad("response_format.json_schema", "may contain only name, schema and strict.")
    return inner["schema"]  # always enforced, whatever the value of `strict`


def _speculation(value: Any, default: Speculation, names: dict[str, str]) -> Speculation | None:
    if value is None:
        return None
    if value == "off":
        return replace(default, k=0)
    if not isinstance(value, dict):
        raise bad("speculation", 'must be an object, or "off".')
    for name in value:
        if name not in SPECULATION:
            raise ApiError(
                f"Unknown field: speculation.{name[:100]}.",
                f"speculation.{name[:100]}",
                "unknown_parameter",
            )
    given = {name: one for name, one in value.items() if one is not None}
    made: Speculation = _made(lambda: replace(default, **given), names)
    return made
