"""OpenAI's dialect: bodies of chats and of text completions, and their answers.

The dialect of Ollama makes bodies of this one, and a batch has lines in it.
"""

from __future__ import annotations

import codecs
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..options import Speculation
from ..results import Completion, Stats
from ..tools.families import ToolUse
from ..tools.reader import Delta, ToolDeltas, whole_answer
from . import bodies
from . import schema as s
from .bodies import Body
from .errors import invalid_value
from .events import ChoiceEnded, ChunkEvent, PromptRead, Started, TokenInfo
from .fields import IGNORED_FIELDS, note, same
from .model import Message
from .replies import (
    FINGERPRINT,
    Reply,
    finish_reason,
    prompt_progress,
    sum_of,
    timings,
    usage,
)
from .request import REASONING, CompletionRequest, ReasoningFields, Show
from .schema import Fields, Shape

TEXT_MAX_TOKENS = 16  # OpenAI's default `max_tokens` of the completions endpoint


@dataclass(frozen=True)
class OpenAIShow(Show):
    """What an answer shows.

    Attributes:
        usage: Whether the last chunk of a stream contains the usage.
        shows_drafts: Whether the chunks of a stream mark the text that was drafted.
        shows_scores: Whether the answer has the scores of the prompt as vLLM writes them.
        counts: Whether each chunk of a stream contains the usage.
    """

    usage: bool = False
    shows_drafts: bool = False
    shows_scores: bool = False
    counts: bool = False


# ---- messages


def _part(kind: str, shape: Shape) -> Shape:
    return s.obj({"type": kind, kind: shape}, ignored=IGNORED_FIELDS)


def _content(may_be_empty: bool = False, is_result: bool = False, **kinds: Shape) -> Shape:
    """Return the description of a content; it is read as one text, or parts if there are images."""
    parts = {kind: _part(kind, shape) for kind, shape in kinds.items()}
    refusal = s.obj({"type": "refusal", "refusal": s.TEXT}, ignored=IGNORED_FIELDS).hidden
    parts["refusal"] = refusal.to(lambda part: {"type": "text", "text": part["refusal"]})
    part = s.tagged("type", parts, f"must be {' or '.join(kinds)}: other parts are not supported.")
    part = bodies.of_result(part, ("text", "refusal")) if is_result else part
    some = s.array(part, "must be a string, or an array of parts that is not empty.", 1)

    def read(value: Any, at: str) -> Any:
        if may_be_empty and (value is None or value == []):
            return ""
        return value if isinstance(value, str) else bodies.content_of(some.read(value, at))

    return Shape({"anyOf": [s.TEXT.schema, some.schema]}, read)


def _read_call(call: Any, at: str) -> dict[str, Any]:
    kind = call.get("type", "function") if isinstance(call, dict) else None
    function = call.get(kind) if kind in ("function", "custom") else None
    if not isinstance(function, dict):
        raise invalid_value(at, "must be a call of the type function.")
    if kind == "custom":
        text = s.TEXT.read(function.get("input"), f"{at}.custom.input")
        function = {"name": function.get("name"), "arguments": {"input": text}}
    # The arguments stay an object: chat templates serialise them to JSON.
    arguments = bodies.read_arguments(function.get("arguments"), f"{at}.function.arguments")
    name = bodies.FUNCTION_NAME.read(function.get("name"), f"{at}.function.name")
    id_ = s.TEXT.read(call.get("id"), f"{at}.id")
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


_CALLED = s.object_of({"name": bodies.FUNCTION_NAME, "arguments": s.TEXT})
_CALL = Shape(s.object_of({"id": s.TEXT, "type?": "function", "function": _CALLED}), _read_call)
_CALLS = s.array(_CALL, "must be an array with at least one call.", 1)
_OF_ASSISTANT = "is only allowed in a message of the assistant."


def _message(role: str, content: Shape, more: Fields | None = None, read_as: str = "") -> Shape:
    """Return the description of a message; templates read its role as `read_as`."""
    fields = {
        "role": Shape({"const": role}, lambda *_: read_as or role),
        f"{REASONING}?": s.never(_OF_ASSISTANT),
        "name?": s.or_empty(s.TEXT).hidden,
        "tool_calls?": s.never(_OF_ASSISTANT, []),
        "content": content,
        "tool_call_id?": s.never("is only allowed in a message of the role tool."),
    }
    return s.obj(fields | (more or {}), ignored=IGNORED_FIELDS)


def _with_reasoning(message: Message) -> Message:
    reasoning = message.pop("reasoning", "")
    return message | ({REASONING: reasoning} if reasoning and REASONING not in message else {})


_ONLY_TEXT, _MAYBE = _content(text=s.TEXT), _content(may_be_empty=True, text=s.TEXT)
_RESULT = _content(may_be_empty=True, is_result=True, text=s.TEXT, image_url=bodies.IMAGE_URL)
_CALLS_OR_NONE = Shape(_CALLS.schema, lambda v, at: _CALLS.read(v, at) if v != [] else None)
# Messages, in the form that chat templates read: each has a role and a text as content, or an array
# of parts if there are images. Calls have arguments that are objects.
MESSAGES = bodies.conversation(
    {
        "system": _message("system", _ONLY_TEXT),
        "developer": _message("developer", _ONLY_TEXT, read_as="system"),  # unknown to templates
        "user": _message("user", _content(text=s.TEXT, image_url=bodies.IMAGE_URL)),
        "assistant": _message(
            "assistant",
            _MAYBE,
            {f"{REASONING}?": s.TEXT, "reasoning?": s.TEXT, "tool_calls?": _CALLS_OR_NONE},
        ).to(_with_reasoning),
        "tool": _message("tool", _RESULT, {"tool_call_id": s.TEXT}),
    }
)


# ---- tools


_FUNCTION = s.obj(bodies.FUNCTION_FIELDS)


def _read_tool(tool: Any, at: str) -> Any:
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        raise s.unsupported(f"{at}.type", "must be function.")
    for name in tool.keys() - {"type", "function", *IGNORED_FIELDS}:
        note(f"{at}.{name[:100]}")
    if tool.get("function") is None:
        raise invalid_value(f"{at}.function", "is required.")
    return _FUNCTION.read(tool["function"], f"{at}.function")


_TOOL = s.object_of({"type": "function", "function": _FUNCTION})
TOOLS = Shape(
    s.array_of(_TOOL),
    lambda value, at: [_read_tool(one, place) for one, place in bodies.own(value, at)],
)


def _chosen(functions: list[dict[str, Any]], choice: Any, parallel: bool) -> ToolUse:
    names = bodies.check_different(functions)
    if not functions and choice not in ("none", "auto", None):
        raise invalid_value("tool_choice", "requires tools.")
    if choice is None or choice in bodies.TOOL_CHOICES:
        return bodies.tool_use(functions, choice or "auto", None, parallel)
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(choice, dict) or choice.get("type") != "function" or not name:
        fact = "must be none, auto, required, or an object with the name of a function."
        raise s.unsupported("tool_choice", fact)
    return bodies.tool_use(
        functions, "required", bodies.given_name(name, names, "tool_choice"), parallel
    )


# ---- bodies


_N = s.whole_number(1, bodies.CHOICES_MAX)
# Fields of the routes that may have several choices; `include_obfuscation` adds padding at OpenAI.
_CHOICES = bodies.FORMATS | {
    "n": Shape(_N.schema | {"default": 1}, _N.read),
    "stream_options": s.obj(
        {
            "include_usage?": s.FLAG,
            "include_speculation?": s.FLAG,
            "continuous_usage_stats?": s.FLAG,
            "include_obfuscation?": s.unread(s.FLAG.schema),
        },
    ),
}
_CHOICE = s.object_of({"type": "function", "function": s.object_of({"name": bodies.FUNCTION_NAME})})


# llama-server and user interfaces send a boolean.
_TEXT_LOGPROBS = Shape(
    bodies.LOGPROBS.schema,
    lambda value, at: (
        bodies.LOGPROBS.read(0 if value is True else value, at) if value is not False else None
    ),
)
TEXT_BODY = Body(
    "text",
    bodies.SHARED
    | _CHOICES
    | {
        "prompt": bodies.prompts(mixed=False),
        "suffix": s.given(s.TEXT.schema),
        "best_of": s.given({"type": "integer", "description": "No effect."}),
        "echo": s.FLAG,
        "logprobs": _TEXT_LOGPROBS,
        "prompt_logprobs": _TEXT_LOGPROBS,
    },
    "prompt",
)
CHAT = Body(
    "chat",
    bodies.SHARED
    | _CHOICES
    | {
        "messages": MESSAGES,
        "logprobs": s.FLAG,
        "top_logprobs": s.given(bodies.LOGPROBS.schema),
        "tools": TOOLS,
        "tool_choice": s.given({"anyOf": [{"enum": [*bodies.TOOL_CHOICES]}, _CHOICE]}),
        "parallel_tool_calls": s.FLAG,
        "reasoning_effort": bodies.EFFORT,
        "chat_template_kwargs": bodies.TEMPLATE_KWARGS,
        "continue_final_message": s.FLAG,
        "add_generation_prompt": s.FLAG,
    },
    "messages",
)


def read_chat(data: dict[str, Any], default: Speculation, most: int | None) -> CompletionRequest:
    data, names = CHAT.read(data)
    parallel = data.get("parallel_tool_calls", True)
    tools = _chosen(data.get("tools", []), data.get("tool_choice"), parallel)
    wants, top = data.get("logprobs", False), data.get("top_logprobs", 0)
    if not (s.is_count(top) and 0 <= top <= bodies.TOP_LOGPROBS_MAX) or (top and not wants):
        raise invalid_value(
            "top_logprobs",
            f"must be a whole number from 0 to {bodies.TOP_LOGPROBS_MAX}, "
            "and requires logprobs to be true.",
        )
    reasoning = data.get("_reasoning", {})
    effort, values = data.get("reasoning_effort"), data.get("chat_template_kwargs", {})
    effort = effort or reasoning.get("effort")
    names = {
        "prompt": "messages",
        "json_schema": "response_format",
        "think": "reasoning_effort" if effort else "chat_template_kwargs",
    } | names
    request = bodies.request_of(
        data | {"logprobs": top if wants else None, "json_schema": bodies.schema_in(data, names)},
        default,
        most,
        names,
        messages=data["messages"],
        tools=tools,
        reasoning=ReasoningFields(effort, values, reasoning.get("think"), reasoning.get("budget")),
        continues=_continues(data),
    )
    return _showing(request, data)


def _continues(data: dict[str, Any]) -> bool | None:
    """Return whether the last message must be continued; None: if it is of the assistant."""
    continues, begins = data.get("continue_final_message"), data.get("add_generation_prompt")
    if continues and begins:
        raise invalid_value("continue_final_message", "cannot be combined with a new message.")
    return continues if continues is not None else None if begins is None else not begins


def read_text(data: dict[str, Any], default: Speculation, most: int | None) -> CompletionRequest:
    data, names = TEXT_BODY.read(data)
    default_length = {"max_tokens"} - data.keys()
    data.setdefault("max_tokens", min(TEXT_MAX_TOKENS, most or TEXT_MAX_TOKENS))
    given, echo, suffix = data["prompt"], data.get("echo", False), data.get("suffix", "")
    are_texts = all(isinstance(prompt, str) for prompt in given)
    shown = data.get("prompt_logprobs")
    scored = [one for one in (shown, data.get("logprobs") if echo else None) if one is not None]
    whole = echo or shown is not None
    if suffix != "" and not (isinstance(suffix, str) and are_texts and not whole):
        fact = "must be a string, requires a prompt that is one, and excludes echo and its scores."
        raise invalid_value("suffix", fact)
    names = {"json_schema": "response_format"} | names | {"prompt": "prompt"}
    data["json_schema"] = bodies.schema_in(data, names)
    request = bodies.request_of(data, default, most, names, texts=given)
    if not same(data.get("best_of", request.n), request.n):
        note("best_of", "The choices are those of n.")
    return replace(
        _showing(request, data, shown is not None),
        echo=echo,
        suffix=suffix or None,
        given=request.given - default_length,
        n_scored=max(scored, default=None),
    )


def _showing(
    request: CompletionRequest, data: dict[str, Any], scores: bool = False
) -> CompletionRequest:
    options = data.get("stream_options", {})
    counts = options.get("continuous_usage_stats", False)
    show = OpenAIShow(
        options.get("include_usage", False),
        options.get("include_speculation", False),
        scores,
        counts,
    )
    each = request.each | ({"usage"} if counts else set())
    return replace(request, show=show, each=each)


# ---- answers


class ResponseBuilder(Reply):
    """Reply of OpenAI's chats and text completions, which may have several choices."""

    def __init__(self, request: CompletionRequest, started: Started) -> None:
        self._asked, self._family = request, started.family
        self._show = request.shown(OpenAIShow)
        kind = "chat.completion" if request.is_chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if request.is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": f"{kind}.chunk" if request.is_chat and request.stream else kind,
            "created": int(time.time()),
            "model": started.model,
            "system_fingerprint": FINGERPRINT,
        }
        self._tools: dict[int, ToolDeltas | None] = {}  # of the choices that have begun
        self._stats = Stats(n_prompt=started.n_prompt)  # up to the current chunk
        self._offsets: dict[int, _Offsets] = {}
        self._results: dict[int, Completion] = {}

    def complete(
        self, chunks: Sequence[ChunkEvent], ended: Iterable[ChoiceEnded]
    ) -> dict[str, Any]:
        ended = sorted(ended, key=lambda one: one.index)
        named: dict[int, list[TokenInfo]] = {}
        for event in chunks:
            named.setdefault(event.index, []).extend(event.logprobs)
        # Made when they are written: all at once they would need much memory.
        choices = (self._complete_choice(one, named.get(one.index, [])) for one in ended)
        results = [one.result for one in ended]
        counts = usage(results, self._asked.n)
        times = timings(sum_of([one.stats for one in results]))
        more = {"usage": counts, "timings": times, "seed": results[0].seed}
        return self._head | {"choices": choices} | more

    def _complete_choice(self, ended: ChoiceEnded, named: Iterable[TokenInfo]) -> dict[str, Any]:
        finish, text = finish_reason(ended.result.finish_reason, ended.why), ended.result.text
        choice: dict[str, Any] = {"index": ended.index}
        choice["logprobs"] = self._logprobs(ended.index, named)
        choice |= self._scores(ended.index)
        if self._asked.n_choices > 1:
            choice["seed"] = ended.result.seed
        if self._asked.is_chat:
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if ended.result.reasoning:
                message[REASONING] = ended.result.reasoning
            if self._asked.tools.tools:
                text, calls = whole_answer(text, self._family, self._asked.tools)
                message["content"] = text
                if calls:
                    message |= {"content": text or None, "tool_calls": calls}
                    finish = "tool_calls"
            choice["message"] = message
        else:
            choice["text"] = text
        return choice | {"finish_reason": finish}

    def first(self) -> list[dict[str, Any]]:
        return self._begun(0)

    def _begun(self, index: int) -> list[dict[str, Any]]:
        """Return the first chunks of a choice, if it has not begun."""
        if index in self._tools:
            return []
        tools = self._asked.tools
        self._tools[index] = ToolDeltas(self._family, tools) if tools.tools else None
        role = {"role": "assistant", "content": ""}
        return [self._piece(index, role)] if self._asked.is_chat else []

    def prompt(self, event: PromptRead) -> list[dict[str, Any]]:
        empty: str | Delta = {} if self._asked.is_chat else ""
        piece = self._piece(event.index, empty) | prompt_progress(event, self._asked)
        return [*self._begun(event.index), piece]

    def chunk(self, event: ChunkEvent) -> list[dict[str, Any]]:
        chunk, index, pieces = event.chunk, event.index, self._begun(event.index)
        tools = self._tools[index]
        deltas: list[str | Delta] = [*tools.push(chunk.text)] if tools else [chunk.text]
        self._stats = event.stats
        # The reasoning of a chunk is sent before its answer, in a response chunk of its own.
        if chunk.reasoning:
            pieces.append(self._piece(index, {REASONING: chunk.reasoning}))
        if not (any(deltas) or event.logprobs or self._show.shows_drafts):
            return pieces
        *before, last = deltas or [""]
        pieces += [self._piece(index, delta) for delta in before]
        piece = self._piece(index, last, logprobs=self._logprobs(index, event.logprobs))
        if self._show.shows_drafts:
            parts = [[part, accepted] for part, accepted in chunk.accepted_text]
            if tools:
                sent = (one.get("content", "") for one in deltas if isinstance(one, dict))
                parts = [["".join(sent), False]]
            piece["speculation"] = {
                "drafted": chunk.n_drafted,
                "accepted": chunk.n_accepted,
                "tokens": len(chunk.tokens),
                "text": parts,
            }
        return [*pieces, piece]

    def ended(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        index, result = ended.index, ended.result
        self._results[index] = result
        pieces, finish = [], finish_reason(result.finish_reason, ended.why)
        if tools := self._tools.get(index):
            pieces += [self._piece(index, delta) for delta in tools.finish()]
            finish = "tool_calls" if tools.has_call else finish
        self._stats = result.stats
        last = self._piece(index, {} if self._asked.is_chat else "", finish)
        last["choices"][0] |= self._scores(index)
        return [*pieces, last | {"seed": result.seed, "timings": timings(result.stats)}]

    def finished(self) -> list[dict[str, Any]]:
        if not self._show.usage:
            return []
        results = [self._results[index] for index in sorted(self._results)]
        times = timings(sum_of([one.stats for one in results]))
        counts = usage(results, self._asked.n)
        return [self._head | {"choices": [], "usage": counts, "timings": times}]

    def _piece(
        self,
        index: int,
        delta: str | Delta,
        finish: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "logprobs": logprobs, "finish_reason": finish}
        if self._asked.is_chat:
            choice["delta"] = {"content": delta} if isinstance(delta, str) else delta
        else:
            choice["text"] = delta
        piece = {**self._head, "choices": [choice]}
        if self._show.usage:
            piece["usage"] = None
        if self._show.counts:
            piece["usage"] = usage([Completion("", (), "stop", 0, self._stats)])
        if "timings" in self._asked.each:
            piece["timings"] = timings(self._stats)
        return piece

    def _logprobs(self, index: int, named: Iterable[TokenInfo]) -> dict[str, Any] | None:
        """Return the log-probabilities of some tokens; None unless requested."""
        most = self._asked.sampling.logprobs
        if most is None:
            return None
        if self._asked.is_chat:
            return {"content": [one.to_dict() for one in named], "refusal": None}
        begins = self._asked.echo and index not in self._offsets
        prompt = self._asked.scores.get(index // self._asked.n, ()) if begins else ()
        named, offsets = [*prompt, *named], self._offsets.setdefault(index, _Offsets())
        logprobs: list[float | None] = [one.logprob for one in named]
        tops: list[dict[str, float] | None] = [
            {one.text: one.logprob} | {text: x for text, _, x, _ in reversed(one.top[:most])}
            for one in named
        ]
        if prompt:  # nothing is before its first token
            logprobs[0] = tops[0] = None
        return {
            "tokens": [one.text for one in named],
            "token_logprobs": logprobs,
            "top_logprobs": tops if most else None,
            "text_offset": [offsets.of(one.piece) for one in named],
        }

    def _scores(self, index: int) -> dict[str, Any]:
        """Return the log-probabilities of the prompt in vLLM's form, if they were requested."""
        if not self._show.shows_scores:
            return {}
        found: list[dict[str, Any] | None] = []
        for one in self._asked.scores.get(index // self._asked.n, ()):
            some = {str(one.id): {"logprob": one.logprob, "decoded_token": one.text}}
            for i, (text, _, logprob, id_) in enumerate(one.top, 1):
                some[str(id_)] = {"logprob": logprob, "rank": i, "decoded_token": text}
            found.append(some if found else None)
        return {"prompt_logprobs": found}


class _Offsets:
    """Character offsets of tokens in the answer, from their bytes."""

    def __init__(self) -> None:
        self._decoder, self._n = codecs.getincrementaldecoder("utf-8")(errors="replace"), 0

    def of(self, piece: bytes) -> int:
        before = self._n
        self._n += len(self._decoder.decode(piece))
        return before
