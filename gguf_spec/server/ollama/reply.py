"""Response objects of Ollama's routes for text, from the events of a job."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable
from typing import Any

from ...results import Part, Stats
from ...tools.source import parse
from ..answer_parts import AnswerParts
from ..error_formats import ollama_error
from ..errors import ApiError
from ..events import ChoiceEnded, ChunkEvent, Started, TokenInfo
from ..requests import CompletionRequest
from ..responses import finish_reason


def now() -> str:
    """Return the time in the form of Ollama's timestamps."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """Return a time in nanoseconds."""
    return round(seconds * 1e9)


class OllamaReply:
    """Converts the events of one job to the objects of `/api/chat` or `/api/generate`."""

    def __init__(
        self, asked: CompletionRequest, is_chat: bool, began_s: float, started: Started
    ) -> None:
        """Create a reply.

        Args:
            asked: The request.
            is_chat: Whether the route is `/api/chat`.
            began_s: Time when the request was read, by `time.perf_counter`.
            started: The first event of its job.
        """
        self._is_chat, self._began_s, self._model = is_chat, began_s, started.model
        self._load_s = time.perf_counter() - began_s  # with the time in the queue
        self._has_logprobs = asked.sampling.logprobs is not None
        self._parts = AnswerParts(started.family, asked.tools)

    # ---- complete responses

    def whole(self, said: Iterable[ChunkEvent], ended: Iterable[ChoiceEnded]) -> dict[str, Any]:
        """Return the complete response.

        Raises:
            ApiError: The answer was cancelled.
        """
        parts: list[Part] = []
        named: list[TokenInfo] = []
        for one in said:
            parts += self._parts.push(one.chunk)
            named += one.logprobs
        (last,) = ended
        parts += self._parts.finish()
        text = "".join(part.text for part in parts if part.kind == "text")
        thinking = "".join(part.text for part in parts if part.kind != "text")
        return self._object(text, thinking, named, self._calls()) | self._end(last)

    # ---- streamed responses

    def first(self) -> list[dict[str, Any]]:
        """Return no object: a stream begins with the first text."""
        return []

    def said(self, said: ChunkEvent) -> list[dict[str, Any]]:
        """Return an object for each part of a chunk; the first has the log-probabilities."""
        pieces = self._pieces(self._parts.push(said.chunk))
        if said.logprobs and self._has_logprobs:
            pieces = pieces or [self._object("") | {"done": False}]
            pieces[0]["logprobs"] = _logprobs(said.logprobs)
        return pieces

    def ended(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        """Return the remaining text, the tool calls, and the object with the counts.

        Raises:
            ApiError: The answer was cancelled.
        """
        end = self._end(ended)
        pieces = self._pieces(self._parts.finish())
        if calls := self._calls():
            pieces.append(self._object("", calls=calls) | {"done": False})
        return [*pieces, self._object("") | end]

    def finished(self) -> list[dict[str, Any]]:
        """Return no object: there is one choice."""
        return []

    def failed(self, refusal: ApiError) -> list[dict[str, Any]]:
        """Return the error that ends the stream."""
        return [ollama_error(refusal)]

    def _pieces(self, parts: Iterable[Part]) -> list[dict[str, Any]]:
        return [
            (self._object(part.text) if part.kind == "text" else self._object("", part.text))
            | {"done": False}
            for part in parts
        ]

    def _calls(self) -> list[dict[str, Any]]:
        """Return the tool calls of the answer, with arguments as objects."""
        functions = [call["function"] for call in self._parts.calls]
        return [
            {"function": {"name": one["name"], "arguments": parse(one["arguments"])}}
            for one in functions
        ]

    def _object(
        self,
        text: str,
        thinking: str = "",
        named: Iterable[TokenInfo] = (),
        calls: list[dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        about: dict[str, Any] = {"model": self._model, "created_at": now()}
        more: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if self._is_chat:
            more |= {"tool_calls": calls} if calls else {}
            about["message"] = {"role": "assistant", "content": text, **more}
        else:
            about |= {"response": text, **more}
        return about | ({"logprobs": _logprobs(named)} if named and self._has_logprobs else {})

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


def _logprobs(named: Iterable[TokenInfo]) -> list[dict[str, Any]]:
    return [one.to_dict() for one in named]
