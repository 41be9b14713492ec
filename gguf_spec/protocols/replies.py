"""Answers as objects of an API, whole or as streams: what the dialects have in common."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from .. import __version__
from ..results import Chunk, Completion, FinishReason, Part, Stats
from ..tools.reader import call_of, reader_of
from ..tools.source import Event as ToolEvent
from .errors import ApiError, client_closed, openai_error, shutting_down
from .events import ChoiceEnded, ChunkEvent, PromptRead, Started, Why
from .request import CompletionRequest

# Values of JSON that are written at once: no other thread runs meanwhile. Levels of arrays and
# objects that are written in parts.
_MOST_VALUES, _MOST_LEVELS = 2000, 8
_SCALARS = frozenset({str, int, float, bool, type(None)})
# What OpenAI's answers name as the version of the server.
FINGERPRINT = f"build-gguf-spec-{__version__}"


# Made once: `json.dumps` makes another one for each value.
json_text: Callable[[Any], str] = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False
).encode


def json_parts(
    value: Any, write: Callable[[Any], str] = json_text, n_levels: int = _MOST_LEVELS
) -> Iterator[str]:
    """Yield the text of a JSON value in parts; an iterator is written as an array."""
    if not n_levels or _n_values(value) <= _MOST_VALUES:
        yield write(value)
        return
    is_dict, n, some = isinstance(value, dict), 0, list[Any]()
    (mark, end) = "{}" if is_dict else "[]"

    def joined() -> str:
        return mark + write(dict(some) if is_dict else some)[1:-1]

    for item in value.items() if is_dict else value:
        one = item[1] if is_dict else item
        n_more = _n_values(one)
        if some and n + n_more > _MOST_VALUES:
            yield joined()
            mark, n, some = ",", 0, []
        if n_more > _MOST_VALUES:
            yield mark + (write({item[0]: 0})[1:-2] if is_dict else "")
            yield from json_parts(one, write, n_levels - 1)
            mark = ","
        else:
            some.append(item)
            n += n_more
    yield (joined() if some or mark != "," else "") + end


def _n_values(value: Any) -> int:
    """Return how many values a value has; not more than are written at once, and one."""
    left, n = [value], 0
    while left and (n := n + 1) + len(left) <= _MOST_VALUES:
        one = left.pop()
        if type(one) in _SCALARS:
            continue
        if isinstance(one, (dict, list, tuple)):
            left += one.values() if isinstance(one, dict) else one
        elif isinstance(one, Iterator):
            return _MOST_VALUES + 1
    return _MOST_VALUES + 1 if left else n


class StreamFormat(NamedTuple):
    """Format of a streamed answer.

    Attributes:
        ping: Bytes without a meaning, which keep a connection open.
        end: Bytes after a complete answer; they are not sent after an error.
    """

    media_type: str
    write: Callable[[dict[str, Any]], bytes]
    ping: bytes
    end: bytes = b""


def _line(data: dict[str, Any]) -> bytes:
    return ("".join(json_parts(data)) + "\n").encode()


def _data_event(data: dict[str, Any]) -> bytes:
    return b"data: " + _line(data) + b"\n"


def _named_event(data: dict[str, Any]) -> bytes:
    return f"event: {data['type']}\n".encode() + _data_event(data)


_EVENTS, _COMMENT = "text/event-stream", b": ping\n\n"
# Chat completions: unnamed events, and a mark after the last one.
DATA_EVENTS = StreamFormat(_EVENTS, _data_event, _COMMENT, b"data: [DONE]\n\n")
# Responses: the name of an event is its field `type`.
# A ping is an event, as at Anthropic: clients of the Responses API count only data, too.
NAMED_EVENTS = StreamFormat(_EVENTS, _named_event, _named_event({"type": "ping"}))
# Ollama: one object a line. Some clients reject an empty line; a space before an object is allowed.
JSON_LINES = StreamFormat("application/x-ndjson", _line, b" ")


# A whole answer: an object, or an array of several.
Whole: TypeAlias = dict[str, Any] | list[dict[str, Any]]


class Reply:
    """Converts the events of one job to objects of an API format; the base of all formats.

    For an answer that is not streamed only `complete` is called. For a stream the other methods
    return the objects to send, in the order of the events; each list may be empty. `complete` and
    `ended` raise `ApiError` where the server shut down before the answer was complete, or the
    client disconnected.
    """

    response: dict[str, Any]  # complete after the last event
    n_bytes = 0  # that its objects have beside what the request and the tokens have, about
    _error = staticmethod(openai_error)  # form of an error

    def complete(self, chunks: Sequence[ChunkEvent], ended: Iterable[ChoiceEnded]) -> Whole:
        """Return the complete response from all chunks and the ends of the choices.

        Arrays in it may be iterators, as `json_parts` takes them.
        """
        for one in chunks:
            self.chunk(one)
        for last in ended:
            self.ended(last)
        self.finished()
        return self.response

    def first(self) -> list[dict[str, Any]]:
        """Return the objects before the first text."""
        return []

    def chunk(self, _: ChunkEvent) -> list[dict[str, Any]]:
        return []

    def prompt(self, _: PromptRead) -> list[dict[str, Any]]:
        return []

    def ended(self, _: ChoiceEnded) -> list[dict[str, Any]]:
        """Return the last objects of a choice."""
        return []

    def finished(self) -> list[dict[str, Any]]:
        """Return the objects after all choices."""
        return []

    def failed(self, refusal: ApiError) -> list[dict[str, Any]]:
        """Return the objects for an error that ends the stream."""
        return [self._error(refusal)]


class PartsReply(Reply, ABC):
    """Reply of one choice, made of the parts of its chunks: the base of the other formats.

    Text that may begin a tool call is held back. Subclasses make the objects of a part.

    Attributes:
        calls: The complete tool calls in OpenAI's format.
    """

    def __init__(self, request: CompletionRequest, started: Started) -> None:
        use = request.tools
        self._tools = reader_of(started.family, use) if use.tools else None
        self._family, self._has_logprobs = started.family, request.sampling.logprobs is not None
        self._name, self._arguments = "", ""
        self.calls: list[dict[str, Any]] = []

    def chunk(self, event: ChunkEvent) -> list[dict[str, Any]]:
        return self._made(event.chunk)

    def _made(self, chunk: Chunk | None = None) -> list[dict[str, Any]]:
        """Return the objects of a chunk; without one, those of what was held back."""
        return [made for part in self._parts(chunk) for made in self._add(part)]

    @abstractmethod
    def _add(self, part: Part) -> list[dict[str, Any]]:
        """Return the objects for a part."""

    def _parts(self, chunk: Chunk | None = None) -> Iterator[Part]:
        """Yield the parts of a chunk that can be sent now; without one, what was held back."""
        if chunk is None and self._tools:
            yield from self._read(self._tools.finish())
        for part in chunk.parts if chunk else ():
            if part.kind == "text" and self._tools:
                yield from self._read(self._tools.push(part.text))
            elif part.text:
                yield part

    def _read(self, events: Sequence[ToolEvent]) -> Iterator[Part]:
        """Yield the text of events, that of broken calls included; collect the calls."""
        for event in events:
            if event.kind == "call":
                self._name, self._arguments = event.text, ""
            elif event.kind == "arguments":
                self._arguments += event.text
            elif event.kind == "end":
                self.calls.append(call_of(self._family, self._name, self._arguments))
            elif text := event.text:
                yield Part("text", text)


def finish_reason(reason: FinishReason, why: Why | None) -> str:
    """Return the finish reason; of cancelled answers only a timeout has one (`length`)."""
    if reason != "cancelled":
        return reason
    if why == "timeout":
        return "length"
    raise client_closed() if why == "client_closed" else shutting_down()


def usage(results: Sequence[Completion], n: int = 1) -> dict[str, Any]:
    """Return the usage object; the prompt of each `n` completions is the same, and counted once."""
    s = sum_of([result.stats for result in results])
    prompts = [result.stats for result in results[::n]]
    n_prompt = sum(stats.n_prompt for stats in prompts)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": s.n_generated,
        "total_tokens": n_prompt + s.n_generated,
        "prompt_tokens_details": {"cached_tokens": sum(stats.n_cached for stats in prompts)},
        "completion_tokens_details": {
            "reasoning_tokens": s.n_reasoning,
            "accepted_prediction_tokens": s.n_accepted,
            "rejected_prediction_tokens": s.n_drafted - s.n_accepted,
        },
        "speculation": {
            "drafted": s.n_drafted,
            "accepted": s.n_accepted,
            "acceptance": round(s.acceptance, 4),
            "rounds": s.rounds,
            "tokens_per_round": round(s.tokens_per_round, 4),
            "tokens_per_s": round(s.tokens_per_s, 2),
            "speedup": round(s.speedup, 4),
            "predicted_speedup": round(s.predicted_speedup, 4),
            "near_ties": s.n_near_ties,
            "why_none": s.why_none,
            "drafters": {
                name: {"drafted": drafted, "accepted": accepted}
                for name, (drafted, accepted) in s.drafters.items()
            },
            "prompt_s": s.prompt_s,
            "draft_s": s.draft_s,
            "verify_s": s.verify_s,
            "other_s": s.other_s,
            "ttft_s": s.ttft_s,
        },
    }


def timings(stats: Stats) -> dict[str, Any]:
    """Return the counts and times of a generation with llama-server's names."""
    n_read, n_made = stats.n_prompt - stats.n_cached, stats.n_generated
    read_ms, made_ms = 1000 * stats.prompt_s, 1000 * (stats.total_s - stats.prompt_s)
    return {
        "cache_n": stats.n_cached,
        "prompt_n": n_read,
        "prompt_ms": read_ms,
        "prompt_per_token_ms": read_ms / max(1, n_read),
        "prompt_per_second": 1000 * n_read / read_ms if read_ms else 0.0,
        "predicted_n": n_made,
        "predicted_ms": made_ms,
        "predicted_per_token_ms": made_ms / max(1, n_made),
        "predicted_per_second": stats.tokens_per_s,
        "draft_n": stats.n_drafted,
        "draft_n_accepted": stats.n_accepted,
    }


def prompt_progress(event: PromptRead, asked: CompletionRequest) -> dict[str, Any]:
    """Return how much of a prompt is read, and the times up to here, with llama-server's names."""
    stats = event.stats
    counts = {
        "total": stats.n_prompt,
        "cache": stats.n_cached,
        "processed": event.n_read,
        "time_ms": round(1000 * stats.prompt_s),
    }
    times = timings(replace(stats, n_prompt=event.n_read)) if "timings" in asked.each else None
    return {"prompt_progress": counts} | ({"timings": times} if times else {})


def sum_of(every: Sequence[Stats]) -> Stats:
    """Return the statistics of generations together; the first token is that of the first."""
    if len(every) == 1:
        return every[0]
    first, drafters = every[0], dict[str, tuple[int, int]]()
    for name, (n_drafted, n_accepted) in (pair for one in every for pair in one.drafters.items()):
        before = drafters.get(name, (0, 0))
        drafters[name] = before[0] + n_drafted, before[1] + n_accepted
    sums = {
        name: sum(getattr(one, name) for one in every)
        for name, value in vars(first).items()
        if isinstance(value, (int, float))
    }
    why = next((one.why_none for one in every if one.why_none), "")
    return Stats(**(sums | {"ttft_s": first.ttft_s}), drafters=drafters, why_none=why)
