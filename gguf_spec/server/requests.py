"""Conversion of request bodies to options of the engine.

No field that changes the answer is silently ignored: an unknown or unsupported field is an error
that names the field. `fields` has the tables of fields that have no effect.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from ..options import SAMPLING, Sampling, Speculation
from ..tools.use import NO_TOOLS, ToolUse
from .errors import ApiError, bad
from .fields import read_fields, same
from .messages import read_messages
from .reasoning import (
    NO_REASONING_FIELDS,
    REASONING_FIELDS,
    ReasoningFields,
    read_reasoning,
)
from .tools import read_tools
from .values import (
    CHOICES_MAX,
    TOP_LOGPROBS_MAX,
    biases,
    count,
    flag,
    is_count,
    made,
    prompts,
    schema,
    speculation,
    stops,
    string,
)

# Routes whose requests have a seed.
SEEDED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
# Fields of `Sampling` that a body may hold under the same name.
SAME = tuple(name for name, rule in SAMPLING.items() if rule.in_requests)
# Fields of every route that completes text.
SHARED = frozenset({"model", "stream", "stop", "logit_bias", "speculation", *SAME})
_CHAT = SHARED | {
    "n",
    "stream_options",
    "logprobs",
    "messages",
    "top_logprobs",
    "response_format",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    *REASONING_FIELDS,
}
_TEXT = SHARED | {"n", "stream_options", "logprobs", "prompt", "echo", "suffix", "best_of"}
# Keys of `stream_options`; the last one adds padding at OpenAI and has no effect here.
_STREAM_OPTIONS = {"include_usage", "include_speculation", "include_obfuscation"}
TEXT_MAX_TOKENS = 16  # OpenAI's default `max_tokens` of the completions endpoint
SEEDS = 2**64  # number of seeds


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
                raise bad(name[:100], "contains a number that is too large.") from None


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
    data, names = read_fields(data, _CHAT, "chat")
    parallel = data.get("parallel_tool_calls") is None or flag(data, "parallel_tool_calls")
    tools = read_tools(data.get("tools"), data.get("tool_choice"), parallel)
    form = schema(data.get("response_format"))
    if "grammar" in data and form is not None:
        raise bad("grammar", "cannot be combined with response_format.")
    if "grammar" in data and tools.has_grammar:
        raise bad("grammar", "cannot be combined with calls that follow a schema.")
    wants, top = flag(data, "logprobs"), data.get("top_logprobs", 0)
    if not (is_count(top) and 0 <= top <= TOP_LOGPROBS_MAX) or (top and not wants):
        raise bad(
            "top_logprobs",
            f"must be a whole number from 0 to {TOP_LOGPROBS_MAX}, "
            "and requires logprobs to be true.",
        )
    reasoning = read_reasoning(data)
    sampling = {"json_schema": form, "logprobs": top if wants else None}
    names |= {"prompt": "messages", "json_schema": "response_format"} | reasoning.names
    messages = read_messages(data.get("messages"))
    request = completion_request(data, (messages,), sampling, default, most, names)
    return replace(request, tools=tools, reasoning=reasoning)


def read_text(data: dict[str, Any], default: Speculation, most: int | None) -> CompletionRequest:
    """Convert the body of a text completion request.

    Args:
        data: The body.
        default: Speculation options of the server.
        most: Maximum length of an answer in tokens; None for no limit.

    Raises:
        ApiError: A field is invalid or not supported. The error names the field.
    """
    data, names = read_fields(data, _TEXT, "text")
    data.setdefault("max_tokens", min(TEXT_MAX_TOKENS, most or TEXT_MAX_TOKENS))
    given, logprobs = prompts(data.get("prompt")), data.get("logprobs")
    echo, suffix = flag(data, "echo"), data.get("suffix", "")
    are_texts = all(isinstance(prompt, str) for prompt in given)
    if logprobs is not None:
        count(logprobs, "logprobs", 0, TOP_LOGPROBS_MAX)
    if echo and (logprobs is not None or not are_texts):
        raise bad(
            "echo", "requires a prompt that is a string, and cannot be combined with logprobs."
        )
    if suffix != "" and not (isinstance(suffix, str) and are_texts and not echo):
        raise bad("suffix", "must be a string, requires a prompt that is one, and excludes echo.")
    sampling, names = {"logprobs": logprobs}, names | {"prompt": "prompt"}
    request = completion_request(data, given, sampling, default, most, names)
    if not same(data.get("best_of", request.n), request.n):
        raise ApiError(
            "best_of is not supported but for the value of n.", "best_of", "unsupported_parameter"
        )
    return replace(request, echo=echo, suffix=suffix or None)


def completion_request(
    data: dict[str, Any],
    given: tuple[Any, ...],
    sampling: dict[str, Any],
    default: Speculation,
    most: int | None,
    names: dict[str, str],
) -> CompletionRequest:
    """Return the request that the fields of any API have in common, without tools.

    Args:
        data: Fields under their names here.
        given: The prompts.
        sampling: Further options of `Sampling`.
        default: Speculation options of the server.
        most: Maximum length of an answer in tokens; None for no limit.
        names: Option name -> field name, for options whose field has another name.

    Raises:
        ApiError: A field is invalid. The error names the field.
    """
    string(data.get("model", ""), "model")
    stream, options = flag(data, "stream"), data.get("stream_options", {})
    if not isinstance(options, dict) or not set(options) <= _STREAM_OPTIONS:
        raise bad("stream_options", "may contain include_usage and include_speculation.")
    n = count(data.get("n", 1), "n", 1, CHOICES_MAX)
    if n * len(given) > CHOICES_MAX:
        raise bad("n", f"times the number of prompts may be at most {CHOICES_MAX}.")
    fields = {name: data[name] for name in SAME if name in data} | sampling
    fields |= {
        "stop": stops(data.get("stop")),
        "logit_bias": biases(data.get("logit_bias", {})),
        "max_tokens": _max_tokens(data.get("max_tokens"), most, names),
    }
    if names.get("repeat_penalty") == "repetition_penalty":  # it counts all tokens there
        fields.setdefault("penalty_last_n", -1)
    if is_count(fields.get("top_k")) and fields["top_k"] == -1:
        fields["top_k"] = 0
    return CompletionRequest(
        given,
        n,
        made(lambda: Sampling(**fields), names),
        speculation(data.get("speculation"), default, names),
        stream,
        flag(options, "include_usage", "stream_options."),
        flag(options, "include_speculation", "stream_options."),
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
        raise bad(
            names.get("max_tokens", "max_tokens"),
            f"is {value} but the limit of this server is {most}.",
        )
    return value
