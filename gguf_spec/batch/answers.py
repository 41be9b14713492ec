"""Results of the lines: answers and errors, as lines of the file with the results.

A result depends on its line, the options and the model only: no times, no random ids. A batch that
was interrupted therefore ends with the same file as one that was not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ClosedError, GgufSpecError
from ..results import Completion
from ..runtime.many import Cancellation, CancelledGenerationError
from ..server.errors import ApiError, as_refusal, refusal_of
from ..server.events import ChoiceEnded, ChunkEvent, Started, named
from ..server.jobs import ChoiceRequest, requests_of
from ..server.replies import ResponseBuilder, usage
from ..server.requests import CompletionRequest
from ..tools.families import family_of
from .defaults import LineDefaults
from .lines import Line
from .requests import LineHead, read_head, read_request

if TYPE_CHECKING:
    from ..runtime.llm import LLM

# Errors that end the batch, because they are not those of one line.
_OF_ALL = (CancelledGenerationError, ClosedError, MemoryError, OSError)
_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")


class LineResult(NamedTuple):
    """The result of a line.

    Attributes:
        number: Number of the line.
        data: Line of the file with the results, with its line feed.
        fault: What is wrong with the line; None if it was answered.
    """

    number: int
    data: bytes
    fault: str | None


@dataclass(frozen=True)
class Answerer:
    """Answers lines with a model, from any thread.

    Attributes:
        llm: The model.
        defaults: Options of the lines that do not set them.
        key: Returns the id of the result of a line.
        created: Time of the answers in OpenAI's format, in seconds since 1970.
        cancellation: Has the running streams.
        on_tokens: Called with the number of tokens of each round.
    """

    llm: LLM
    defaults: LineDefaults
    key: Callable[[Line], str]
    created: int
    cancellation: Cancellation
    on_tokens: Callable[[int], object]

    def answer(self, line: Line) -> LineResult:
        """Return the result of a line; an error of the line is its result."""
        head, data = read_head(line)
        key, names = self.key(line), dict[str, str]()
        try:
            if isinstance(data, ApiError):
                raise data
            speculation = self.llm.speculation
            asked = read_request(head, data, line.number, self.defaults, speculation)
            names = asked.names
            return LineResult(line.number, self._answer(head, key, asked), None)
        except _OF_ALL:
            raise
        except Exception as error:
            refusal = _refusal(error, names)
            return LineResult(line.number, _error(head, key, refusal), refusal.error["message"])

    def _answer(self, head: LineHead, key: str, asked: CompletionRequest) -> bytes:
        """Return the result of a line that is answered."""
        events = self._generate(asked)
        if head.is_plain:
            whole = {"request_id": key, "id": head.id} | _plain(*events)
        else:
            body = self._openai(asked, *events, key)
            response = {"status_code": 200, "request_id": _request_id(key), "body": body}
            whole = {"id": key, "custom_id": head.id, "response": response}
        return _encode(whole | {"error": None})

    def _generate(self, asked: CompletionRequest) -> tuple[list[ChunkEvent], list[ChoiceEnded]]:
        said, ended = list[ChunkEvent](), list[ChoiceEnded]()
        for request in requests_of(asked, self.llm):
            ended.append(ChoiceEnded(request.index, self._choose(request, said), None))
        return said, ended

    def _choose(self, request: ChoiceRequest, said: list[ChunkEvent]) -> Completion:
        """Generate one choice."""
        with self.cancellation.opened(lambda: request.open(self.llm)) as stream:
            for chunk in stream:
                said.append(ChunkEvent(chunk, named(self.llm, chunk), request.index))
                self.on_tokens(len(chunk.tokens))
        if self.cancellation.is_set:
            raise CancelledGenerationError
        return stream.result

    def _openai(
        self,
        asked: CompletionRequest,
        said: list[ChunkEvent],
        ended: list[ChoiceEnded],
        key: str,
    ) -> dict[str, Any]:
        """Return the body of a response as over HTTP, without what differs from run to run."""
        started = Started(self.llm.name, family_of(self.llm.chat_template or ""))
        body = ResponseBuilder(asked, started).whole(said, ended)
        random = key.rpartition("_")[2]
        body["id"] = f"{body['id'].partition('-')[0]}-{random}"
        body["created"] = self.created
        counts = usage([one.result for one in ended], asked.n)
        n_reasoning = counts["completion_tokens_details"]["reasoning_tokens"]
        body["usage"] = {name: counts[name] for name in _USAGE} | {
            "completion_tokens_details": {"reasoning_tokens": n_reasoning}
        }
        calls = [
            call
            for choice in body["choices"]
            for call in choice.get("message", {}).get("tool_calls", ())
        ]
        for i, call in enumerate(calls):
            call["id"] = f"call_{random}{i}"
        return body


def _plain(said: list[ChunkEvent], ended: list[ChoiceEnded]) -> dict[str, Any]:
    """Return the result of a plain line."""
    result = ended[0].result
    whole: dict[str, Any] = {"text": result.text}
    if result.reasoning:
        whole["reasoning"] = result.reasoning
    whole |= {
        "finish_reason": result.finish_reason,
        "seed": result.seed,
        "prompt_tokens": result.stats.n_prompt,
        "completion_tokens": result.stats.n_generated,
    }
    if result.logprobs:
        whole["logprobs"] = [
            {"token": one.text, "logprob": one.logprob}
            | ({"top": [[other.text, other.logprob] for other in one.top]} if one.top else {})
            for event in said
            for one in event.logprobs
        ]
    return whole


def _refusal(error: Exception, names: dict[str, str]) -> ApiError:
    """Return the error of a line; one of gguf-spec is explained, as no stranger reads it."""
    refusal = refusal_of(error, names)
    if refusal is None and isinstance(error, GgufSpecError):
        return ApiError(f"{error} {error.hint}", None, "internal_error", 500)
    return refusal or as_refusal(error, names)


def _error(head: LineHead, key: str, refusal: ApiError) -> bytes:
    """Return the result of a line that was not answered."""
    if head.is_plain:
        return _encode({"request_id": key, "id": head.id, "error": refusal.error})
    response = {
        "status_code": refusal.status,
        "request_id": _request_id(key),
        "body": {"error": refusal.error},
    }
    fault = {"code": refusal.error["code"], "message": refusal.error["message"]}
    return _encode({"id": key, "custom_id": head.id, "response": response, "error": fault})


def _request_id(key: str) -> str:
    return f"req_{key.rpartition('_')[2]}"


def _encode(whole: dict[str, Any]) -> bytes:
    return json.dumps(whole, ensure_ascii=False, allow_nan=False).encode() + b"\n"
