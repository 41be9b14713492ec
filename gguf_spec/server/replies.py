"""Answers as objects of an API: the interface, and OpenAI's chats and text completions."""

from __future__ import annotations

import codecs
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, Protocol

from ..results import Chunk, Completion, FinishReason, Part, Stats
from ..tools.families import Family, ToolUse
from ..tools.reader import Delta, ToolDeltas, ToolReader, call_of, whole_answer
from ..tools.source import Event
from .errors import ApiError, client_closed, shutting_down
from .events import ChoiceEnded, ChunkEvent, Started, TokenInfo, Why
from .requests import REASONING, CompletionRequest
from .wire import openai_error


class Reply(Protocol):
    """Converts the events of one job to objects of an API format.

    For an answer that is not streamed only `complete` is called. For a stream the other methods
    return the objects to send, in the order of the events; each list may be empty.
    """

    def complete(
        self, chunks: Iterable[ChunkEvent], ended: Iterable[ChoiceEnded]
    ) -> dict[str, Any]:
        """Return the complete response.

        Args:
            chunks: All chunk events of the answer.
            ended: The final event of each choice, in any order.

        Raises:
            ApiError: The answer was cancelled.
        """

    def first(self) -> list[dict[str, Any]]:
        """Return the objects before the first text."""

    def chunk(self, event: ChunkEvent) -> list[dict[str, Any]]:
        """Return the objects for a chunk."""

    def ended(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        """Return the last objects of a choice.

        Raises:
            ApiError: The answer was cancelled.
        """

    def finished(self) -> list[dict[str, Any]]:
        """Return the objects after all choices."""

    def failed(self, refusal: ApiError) -> list[dict[str, Any]]:
        """Return the objects for an error that ends the stream."""


class ResponseBuilder:
    """Converts the events of one job to response objects."""

    def __init__(self, asked: CompletionRequest, started: Started) -> None:
        """Create a builder.

        Args:
            asked: The request.
            started: The first event of its job.
        """
        self._asked, self._family = asked, started.family
        kind = "chat.completion" if asked.is_chat else "text_completion"
        self._head = {
            "id": f"{'chatcmpl' if asked.is_chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": f"{kind}.chunk" if asked.is_chat and asked.stream else kind,
            "created": int(time.time()),
            "model": started.model,
        }
        self._choices: dict[int, _Choice] = {}
        self._results: dict[int, Completion] = {}

    def _choice(self, index: int) -> _Choice:
        if index not in self._choices:
            self._choices[index] = _Choice(index, self._asked, self._family)
        return self._choices[index]

    # ---- complete responses

    def complete(
        self, chunks: Iterable[ChunkEvent], ended: Iterable[ChoiceEnded]
    ) -> dict[str, Any]:
        """Return the complete response.

        Args:
            chunks: All chunk events of the answer.
            ended: The final event of each choice, in any order.

        Raises:
            ApiError: The server shut down before the answer was complete, or the client
                disconnected.
        """
        ended = sorted(ended, key=lambda one: one.index)
        named: dict[int, list[TokenInfo]] = {}
        for event in chunks:
            named.setdefault(event.index, []).extend(event.logprobs)
        choices = [self._choice(one.index).complete(one, named.get(one.index, [])) for one in ended]
        results = [one.result for one in ended]
        return self._head | {
            "choices": choices,
            "usage": usage(results, self._asked.n),
            "seed": results[0].seed,
        }

    # ---- streamed responses

    def first(self) -> list[dict[str, Any]]:
        """Return the chunks that are sent before the first text: the role, for a chat."""
        return self._role(0)

    def _role(self, index: int) -> list[dict[str, Any]]:
        choice = self._choice(index)
        role = {"role": "assistant", "content": ""}
        return [self._piece(choice.piece(role))] if self._asked.is_chat else []

    def chunk(self, event: ChunkEvent) -> list[dict[str, Any]]:
        """Return the response chunks for one chunk event; may be empty."""
        pieces = self._role(event.index) if event.index not in self._choices else []
        choice, chunk = self._choice(event.index), event.chunk
        *before, last = choice.push(chunk.text) or [""]
        # The reasoning of a chunk is sent before its answer, in a response chunk of its own.
        if chunk.reasoning:
            pieces.append(self._piece(choice.piece({REASONING: chunk.reasoning})))
        if not (last or event.logprobs or self._asked.shows_drafts):
            return pieces
        pieces += [self._piece(choice.piece(delta)) for delta in before]
        piece = self._piece(choice.piece(last, logprobs=choice.logprobs(event.logprobs)))
        if self._asked.shows_drafts:
            parts = (
                [[choice.text_of([*before, last]), False]]
                if choice.reads_tools
                else [[part, accepted] for part, accepted in chunk.accepted_text]
            )
            piece["speculation"] = {
                "drafted": chunk.n_drafted,
                "accepted": chunk.n_accepted,
                "tokens": len(chunk.tokens),
                "text": parts,
            }
        return [*pieces, piece]

    def ended(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        """Return the last chunks of a choice: remaining text, tool calls and finish reason.

        Raises:
            ApiError: The server shut down before the answer was complete, or the client
                disconnected.
        """
        self._results[ended.index] = ended.result
        *pieces, last = map(self._piece, self._choice(ended.index).last(ended))
        return [*pieces, last | {"seed": ended.result.seed}]

    def finished(self) -> list[dict[str, Any]]:
        """Return the chunk after all choices: the usage, if it was requested."""
        if not self._asked.usage:
            return []
        results = [self._results[index] for index in sorted(self._results)]
        return [self._head | {"choices": [], "usage": usage(results, self._asked.n)}]

    def failed(self, refusal: ApiError) -> list[dict[str, Any]]:
        """Return the error that ends the stream."""
        return [openai_error(refusal)]

    def _piece(self, choice: dict[str, Any]) -> dict[str, Any]:
        return self._head | {"choices": [choice]} | ({"usage": None} if self._asked.usage else {})


class _Choice:
    """Converts the events of one choice to the choice objects of a response."""

    def __init__(self, index: int, asked: CompletionRequest, family: Family) -> None:
        self._index, self._asked, self._family = index, asked, family
        self._tools = ToolDeltas(family, asked.tools) if asked.tools.tools else None
        self._offsets = _Offsets()

    @property
    def reads_tools(self) -> bool:
        """Whether the text is searched for tool calls."""
        return self._tools is not None

    def push(self, text: str) -> Sequence[str | Delta]:
        """Return the texts and deltas that a new text completes."""
        if self._tools is None:
            return [text]
        return self._tools.push(text)

    @staticmethod
    def text_of(deltas: Iterable[str | Delta]) -> str:
        """Return the text among deltas."""
        return "".join(one if isinstance(one, str) else one.get("content") or "" for one in deltas)

    def complete(self, ended: ChoiceEnded, named: Iterable[TokenInfo]) -> dict[str, Any]:
        """Return the complete choice."""
        finish, text = finish_reason(ended.result.finish_reason, ended.why), ended.result.text
        choice: dict[str, Any] = {"index": self._index, "logprobs": self.logprobs(named)}
        if self._asked.n_choices > 1:
            choice["seed"] = ended.result.seed
        if self._asked.is_chat:
            message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
            if ended.result.reasoning:
                message[REASONING] = ended.result.reasoning
            if self._tools:
                text, calls = whole_answer(text, self._family, self._asked.tools)
                message["content"] = text
                if calls:
                    message |= {"content": text or None, "tool_calls": calls}
                    finish = "tool_calls"
            choice["message"] = message
        else:
            choice["text"] = text
        return choice | {"finish_reason": finish}

    def last(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        """Return the choice objects of the last chunks."""
        pieces, finish = [], finish_reason(ended.result.finish_reason, ended.why)
        if self._tools:
            pieces += [self.piece(delta) for delta in self._tools.finish()]
            if self._tools.has_call:
                finish = "tool_calls"
        return [*pieces, self.piece({} if self._asked.is_chat else "", finish)]

    def piece(
        self,
        delta: str | dict[str, Any],
        finish: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the choice object of a chunk."""
        choice: dict[str, Any] = {
            "index": self._index,
            "logprobs": logprobs,
            "finish_reason": finish,
        }
        if self._asked.is_chat:
            return choice | {"delta": {"content": delta} if isinstance(delta, str) else delta}
        return choice | {"text": delta}

    def logprobs(self, named: Iterable[TokenInfo]) -> dict[str, Any] | None:
        """Return the log-probabilities of some tokens; None unless requested."""
        if self._asked.sampling.logprobs is None:
            return None
        if self._asked.is_chat:
            return {
                "content": [one.to_dict() for one in named],
                "refusal": None,
            }
        named = list(named)
        tops = [{other.text: other.logprob for other in reversed((*one.top, one))} for one in named]
        return {
            "tokens": [one.text for one in named],
            "token_logprobs": [one.logprob for one in named],
            "top_logprobs": tops if self._asked.sampling.logprobs else None,
            "text_offset": [self._offsets.of(one.piece) for one in named],
        }


class _Offsets:
    """Character offsets of tokens in the answer, from their bytes."""

    def __init__(self) -> None:
        self._decoder, self._n = codecs.getincrementaldecoder("utf-8")(errors="replace"), 0

    def of(self, piece: bytes) -> int:
        before = self._n
        self._n += len(self._decoder.decode(piece))
        return before


class AnswerParts:
    """Reads the chunks of one choice as parts. Text that may begin a tool call is held back.

    Attributes:
        calls: The complete tool calls in OpenAI's format.
    """

    def __init__(self, family: Family, use: ToolUse) -> None:
        """Start an answer.

        Args:
            family: Syntax of the tool calls.
            use: The tools that may be called.
        """
        most = None if use.parallel else 1
        self._tools = ToolReader(family, use.schemas, most) if use.tools else None
        self._family = family
        self._name, self._arguments = "", ""
        self.calls: list[dict[str, Any]] = []

    def push(self, chunk: Chunk) -> Iterator[Part]:
        """Yield the parts of a chunk that can be sent now."""
        for part in chunk.parts:
            if part.kind == "text" and self._tools:
                yield from self._read(self._tools.push(part.text))
            elif part.text:
                yield part

    def finish(self) -> Iterator[Part]:
        """Yield the text that was held back and is not a call."""
        if self._tools:
            yield from self._read(self._tools.finish())

    def _read(self, events: Sequence[Event]) -> Iterator[Part]:
        """Yield the text of events, that of broken calls included; collect the calls."""
        for event in events:
            if event.kind == "call":
                self._name, self._arguments = event.text, ""
            elif event.kind == "arguments":
                self._arguments += event.text
            elif event.kind == "end":
                self.calls.append(call_of(self._family, self._name, self._arguments))
            elif event.text:
                yield Part("text", event.text)


def finish_reason(reason: FinishReason, why: Why | None) -> str:
    """Return the finish reason of an answer; a timeout is reported as `length`.

    Raises:
        ApiError: The server shut down before the answer was complete, or the client disconnected.
    """
    if reason != "cancelled":
        return reason
    if why == "timeout":
        return "length"
    raise client_closed() if why == "client_closed" else shutting_down()


def usage(results: Sequence[Completion], n: int = 1) -> dict[str, Any]:
    """Return the usage object: token counts, and statistics of the speculation.

    Args:
        results: The completions.
        n: Number of completions for each prompt; a prompt is counted once.
    """
    s = reduce(_sum, (result.stats for result in results))
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


def _sum(one: Stats, other: Stats) -> Stats:
    """Return the statistics of two generations together; the first token is that of the first."""
    numbers = {
        name: value + getattr(other, name)
        for name, value in vars(one).items()
        if isinstance(value, (int, float))
    }
    names = {*one.drafters, *other.drafters}
    zero = (0, 0)
    pairs = {name: (one.drafters.get(name, zero), other.drafters.get(name, zero)) for name in names}
    drafters = {name: (a + c, b + d) for name, ((a, b), (c, d)) in pairs.items()}
    why = one.why_none or other.why_none
    return Stats(**(numbers | {"ttft_s": one.ttft_s}), drafters=drafters, why_none=why)
