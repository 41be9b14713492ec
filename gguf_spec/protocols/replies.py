"""Answers as objects of an API, whole or as streams: the base, formats, OpenAI's completions."""

from __future__ import annotations

import asyncio
import codecs
import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from .. import __version__
from ..results import Chunk, Completion, FinishReason, Part, Stats
from ..tools.reader import Delta, ToolDeltas, call_of, reader_of, whole_answer
from ..tools.source import Event as ToolEvent
from .bodies import REASONING, CompletionRequest, in_turn
from .errors import (
    LOG,
    ApiError,
    anthropic_error,
    client_closed,
    failure,
    log,
    ollama_error,
    openai_error,
    shutting_down,
)
from .events import (
    ChoiceEnded,
    ChunkEvent,
    Done,
    ErrorEvent,
    Event,
    Ping,
    PromptRead,
    Started,
    TokenInfo,
    Why,
)

if TYPE_CHECKING:
    from ..server.jobs import Job


# Headers of an answer: the keywords of its schemas that no grammar follows, and those that the
# answer does not fulfil.
UNENFORCED, UNFULFILLED = "X-Schema-Unenforced", "X-Schema-Unfulfilled"
_MOST_OF_HEADER = 2000
# Events that are written before other requests have their turn: a slow client has many left.
_MOST_AT_ONCE = 64
# Values of JSON that are written at once: no other thread runs meanwhile. Bytes that are sent at
# once, and levels of arrays and objects that are written in parts.
_MOST_VALUES, _SENT_BYTES, _MOST_LEVELS = 2000, 1 << 18, 8
_TOKEN_BYTES = 64  # of a token or of an alternative in an answer, about
# What OpenAI's answers name as the version of the server.
FINGERPRINT = f"build-gguf-spec-{__version__}"
# First part of a path -> format of its errors. All other paths have that of OpenAI.
_FORMATS = {"/v1/messages": anthropic_error, "/api": ollama_error}


def refused(refusal: ApiError, path: str) -> JSONResponse:
    of = (form for start, form in _FORMATS.items() if path == start or path.startswith(f"{start}/"))
    body = next(of, openai_error)(refusal)
    return JSONResponse(body, refusal.status, refusal.headers)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def json_parts(
    value: Any, write: Callable[[Any], str] = _text, n_levels: int = _MOST_LEVELS
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
    if isinstance(value, Iterator):
        return _MOST_VALUES + 1
    if not isinstance(value, (dict, list, tuple)):
        return 1
    left, n = [value], 0
    while left and (n := n + 1) + len(left) <= _MOST_VALUES:
        one = left.pop()
        if isinstance(one, Iterator):
            return _MOST_VALUES + 1
        if isinstance(one, (dict, list, tuple)):
            left += one.values() if isinstance(one, dict) else one
    return _MOST_VALUES + 1 if left else n


class JsonAnswer(JSONResponse):
    """JSON that may be long: other threads run while it is written, others are answered between."""

    def render(self, content: Any) -> bytes:
        return "".join(json_parts(content)).encode()

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        body = bytes(self.body)
        for i in range(0, len(body), _SENT_BYTES):
            part, has_more = body[i : i + _SENT_BYTES], i + _SENT_BYTES < len(body)
            await send({"type": "http.response.body", "body": part, "more_body": has_more})
            await asyncio.sleep(0)  # a fast client takes each part at once


def weight(request: CompletionRequest, n_bytes: int, n_tokens: int) -> int:
    """Return the bytes of an answer, about, from those of its request and the generated tokens."""
    n_tokens += request.n * sum(map(len, request.scores.values()))
    n_tops = 1 + (request.sampling.logprobs or 0)
    return request.n_choices * n_bytes + _TOKEN_BYTES * n_tops * n_tokens


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

    def complete(
        self, chunks: Sequence[ChunkEvent], ended: Iterable[ChoiceEnded]
    ) -> dict[str, Any]:
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


class ResponseBuilder(Reply):
    """Reply of OpenAI's chats and text completions, which may have several choices."""

    def __init__(self, request: CompletionRequest, started: Started) -> None:
        self._asked, self._family = request, started.family
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
        times = timings(_sum([one.stats for one in results]))
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
        if not (any(deltas) or event.logprobs or self._asked.shows_drafts):
            return pieces
        *before, last = deltas or [""]
        pieces += [self._piece(index, delta) for delta in before]
        piece = self._piece(index, last, logprobs=self._logprobs(index, event.logprobs))
        if self._asked.shows_drafts:
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
        if not self._asked.usage:
            return []
        results = [self._results[index] for index in sorted(self._results)]
        times = timings(_sum([one.stats for one in results]))
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
        more: dict[str, Any] = {"usage": None} if self._asked.usage else {}
        if "usage" in self._asked.each:
            more["usage"] = usage([Completion("", (), "stop", 0, self._stats)])
        if "timings" in self._asked.each:
            more["timings"] = timings(self._stats)
        return self._head | {"choices": [choice]} | more

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
        if not self._asked.shows_scores:
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
    s = _sum([result.stats for result in results])
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


def _sum(every: Sequence[Stats]) -> Stats:
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


def schema_headers(job: Job) -> dict[str, str]:
    """Return the headers about what the schemas of a request demand and its answer does not.

    The log gets the same, without the values in the schemas: each keyword once.
    """
    if job.unenforced is None:
        return {}
    notes = job.unenforced.notes()
    for name, one in notes:
        _log_unenforced(f"{name}:{one.path}" if name else one.path, one.keyword, one.reason)
    texts = {UNENFORCED: job.unenforced.texts()}
    if job.faults:
        texts[UNFULFILLED] = job.faults
    return {
        name: "; ".join(some)[:_MOST_OF_HEADER].encode("ascii", "backslashreplace").decode()
        for name, some in texts.items()
    }


@lru_cache(maxsize=1000)
def _log_unenforced(path: str, keyword: str, reason: str) -> None:
    LOG.warning("A schema is not enforced whole: %s %s (%s).", path, keyword, reason)


class AnswerStream(StreamingResponse):
    """Streaming response that sends the events of a job.

    The engine never waits for the client: events that are not sent yet stay in the job's queue.
    Large events are written in a thread.
    """

    def __init__(
        self,
        job: Job,
        request: CompletionRequest,
        reply: Reply,
        written: StreamFormat,
        patience: float,
        ping: float,
        close: Callable[[], None],
        turn: asyncio.Lock,
    ) -> None:
        """Create the response.

        Args:
            patience: Time limit in seconds for the client to accept one batch of data.
            ping: Seconds without data after which a ping is sent; 0 for never.
            close: Called when the response ends, for any reason.
            turn: As in `in_turn`.
        """
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **schema_headers(job)}
        super().__init__(self._batches(), headers=headers, media_type=written.media_type)
        self._job, self._reply, self._format = job, reply, written
        self._patience, self._ping, self._close = patience, ping, close
        self._turn, self._asked, self._n_tokens = turn, request, 0
        self._n_open = request.n_choices  # choices that have not ended
        self._failed = False  # whether a choice ended with an error

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), self._patience)

        try:
            await self.stream_response(send_in_time)
        except asyncio.TimeoutError:
            pass  # uvicorn closes the connection because the response is incomplete
        finally:
            self._close()

    async def _batches(self) -> AsyncIterator[bytes]:
        """Yield the encoded events, many at once; an unexpected error is the last one."""
        events, loop, batch = self._job.events, asyncio.get_running_loop(), list[Event]()
        try:
            n_bytes = self._weight(())
            data = await in_turn(self._turn, n_bytes, lambda: self._bytes(self._reply.first()))
            for part in _cut(data):
                yield part
            # A ping may come after the last event.
            while not any(isinstance(one, (Done, ErrorEvent)) for one in batch):
                timer = self._ping and loop.call_later(self._ping, events.put_nowait, Ping())
                batch = [await events.get()]
                if timer:
                    timer.cancel()
                while not events.empty() and len(batch) < _MOST_AT_ONCE:
                    batch.append(events.get_nowait())
                n_bytes = self._weight(batch)
                for part in _cut(await in_turn(self._turn, n_bytes, self._all_written, batch)):
                    yield part
        except Exception as error:
            log(error)
            yield self._bytes(self._reply.failed(failure(error)))

    def _weight(self, batch: Sequence[Event]) -> int:
        """Return the bytes of the next events, about."""
        n_tokens = sum(len(one.chunk.tokens) for one in batch if isinstance(one, ChunkEvent))
        self._n_tokens += n_tokens
        if self._asked.scores or not all(isinstance(one, (ChunkEvent, Ping)) for one in batch):
            n_tokens = self._n_tokens  # the last events may have all of the answer
        elif batch:
            return weight(self._asked, 0, n_tokens)
        return weight(self._asked, self._job.n_bytes + self._reply.n_bytes, n_tokens)

    def _all_written(self, batch: Sequence[Event]) -> bytes:
        return b"".join(map(self._written, batch))

    def _written(self, one: Event) -> bytes:
        reply, pieces, end = self._reply, list[dict[str, Any]](), b""
        if isinstance(one, ErrorEvent):
            pieces = reply.failed(one.refusal)
        elif isinstance(one, ChunkEvent):
            pieces = reply.chunk(one)
        elif isinstance(one, PromptRead):
            pieces = reply.prompt(one)
        elif isinstance(one, ChoiceEnded):
            self._n_open -= 1
            try:
                pieces = reply.ended(one)
            except ApiError as refusal:
                self._failed = True
                pieces = reply.failed(refusal)
        elif isinstance(one, Ping) and self._n_open:
            # In lines of JSON a ping is the beginning of a line, and no line follows the last one.
            end = self._format.ping
        elif isinstance(one, Done) and not self._failed:
            pieces, end = reply.finished(), self._format.end
        return self._bytes(pieces) + end

    def _bytes(self, pieces: list[dict[str, Any]]) -> bytes:
        return b"".join(map(self._format.write, pieces))


def _cut(data: bytes) -> Iterator[bytes]:
    """Yield parts of some data that are sent at once."""
    return (data[i : i + _SENT_BYTES] for i in range(0, len(data), _SENT_BYTES))
