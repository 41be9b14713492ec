"""Lines of a batch: read as requests, answered, and written as results."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ..errors import BatchFileError, ClosedError, GgufSpecError
from ..options import Sampling, Speculation
from ..protocols.bodies import SEEDS, made, parse
from ..protocols.errors import ApiError, as_refusal, invalid_value, refusal_of, unknown
from ..protocols.events import ChoiceEnded, ChunkEvent, Started, named
from ..protocols.fields import OTHER_NAMES
from ..protocols.fit import requests_of
from ..protocols.openai import ResponseBuilder, read_chat, read_text
from ..protocols.replies import usage
from ..protocols.request import CompletionRequest
from ..protocols.schema import FLAG, is_count
from ..results import Work
from ..runtime.many import Cancellation, CancelledGenerationError
from ..tools.families import family_of

if TYPE_CHECKING:
    from ..engine import Answer
    from ..results import Chunk
    from ..runtime.client import Client

# Maximum length of a line in bytes: that of a request body over HTTP.
LINE_BYTES = 4 << 20
# Bytes of a line behind which its end is not searched: a device, or a damaged file.
_ENDLESS = 64 * LINE_BYTES
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Line:
    """A line that is not blank.

    Attributes:
        number: Its number, from 1; blank lines count.
        data: Its bytes without white space around them; None if it is longer than `LINE_BYTES`.
        digest: SHA-256 of number and bytes, in hexadecimal digits.
    """

    number: int
    data: bytes | None
    digest: str


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """Yield the lines of a file that are not blank; only one of them is in memory.

    Raises:
        BatchFileError: A line seems to be endless.
    """
    number = 0
    while data := file.readline(LINE_BYTES + 1):
        number += 1
        hashed, is_whole = hashlib.sha256(b"%d:" % number), len(data) <= LINE_BYTES
        if is_whole:
            data = data.removeprefix(_BOM) if number == 1 else data
            data = data.strip()
        hashed.update(data)
        if not is_whole:
            n = len(data)
            while data and not data.endswith(b"\n"):
                data = file.readline(LINE_BYTES)
                hashed.update(data)
                n += len(data)
                if n > _ENDLESS:
                    fact = f"line {number:,} has more than {_ENDLESS:,} bytes, and may be endless."
                    hint = "give a file with one request in each line."
                    raise BatchFileError(Path(str(getattr(file, "name", "-"))), fact, hint, number)
        if data or not is_whole:
            yield Line(number, data if is_whole else None, hashed.hexdigest())


_ALL = frozenset(one.name for one in fields(Sampling))
# Field of a body -> option that it sets, if they have different names.
_SETS = OTHER_NAMES | {"response_format": "json_schema", "top_logprobs": "logprobs"}
_SEED_BYTES = 6  # every JSON reader keeps such a number exactly


@dataclass(frozen=True)
class LineDefaults:
    """Options of a batch that apply to the lines which do not set them.

    Attributes:
        sampling: Sampling options. Its seed is not that of the lines: each line without a seed gets
            its own, made from this one and the number of the line.
        given: Fields of `sampling` that also apply to lines in OpenAI's format. Without them, a
            body means the same as over HTTP. A seed always applies.
        chat: Whether the text of `prompt` in a plain line is a message for the chat template.
        system: System message of plain lines without one, or None.
        think: Whether the model reasons before its answers; None leaves it to the model.
        others: Other settings that the texts depend on. Results of other settings are refused.
    """

    sampling: Sampling = field(default_factory=Sampling)
    given: frozenset[str] = frozenset()
    chat: bool = False
    system: str | None = None
    think: bool | None = None
    others: Mapping[str, Any] = field(default_factory=dict)

    def digest(self, llm: Client[Answer]) -> str:
        """Return the SHA-256 of all that decides the texts of a line, in hexadecimal digits."""
        try:
            size = llm.path.stat().st_size
        except OSError:
            size = 0
        known = asdict(self) | {"given": sorted(self.given), "model": llm.name, "size": size}
        known["accept"] = llm.speculation.accept
        if llm.speculation.accept != "coupled":  # then the texts depend on the drafts
            known |= {"speculation": asdict(llm.speculation), "draft": llm.draft_name}
        return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()

    def check(self, llm: Client[Answer]) -> None:
        """Check the options with a model, before a line is answered.

        Raises:
            GgufSpecError: An option is invalid for the model.
        """
        if self.think:
            llm.chat(think=True)
        reasons = self.sampling.think_budget is not None or None
        llm.stream([0], self.sampling, reasoning=reasons).close()

    def apply(
        self, asked: CompletionRequest, body: Mapping[str, Any], number: int, is_plain: bool
    ) -> CompletionRequest:
        """Return a request with the defaults of the options that its body does not set.

        Raises:
            ApiError: The body and a default cannot be combined.
        """
        sets = {_SETS.get(name, name) for name, value in body.items() if value is not None}
        if {"grammar", "json_schema"} & sets or asked.tools.tools:
            sets |= {"grammar", "json_schema", "overflow"}
        missing = (_ALL if is_plain else self.given) - sets - {"seed"}
        values = {name: getattr(self.sampling, name) for name in missing}
        if "repetition_penalty" in body:  # it counts all tokens there
            values.pop("penalty_last_n", None)
        seed = self.sampling.seed
        if seed is not None and "seed" not in sets:
            values["seed"] = seed_of_line(seed, number)
        sampling = made(lambda: replace(asked.sampling, **values), asked.names)
        asked = replace(asked, sampling=sampling)
        given = asked.reasoning
        if not asked.is_chat or given.think is not None or given.effort or given.values:
            return asked
        return replace(asked, reasoning=replace(given, think=self.think))


def seed_of_line(seed: int, number: int) -> int:
    """Return the seed of a line, from the seed of the batch and the number of the line."""
    digest = hashlib.sha256(b"%d:%d" % (seed, number)).digest()
    return int.from_bytes(digest[:_SEED_BYTES], "big") % SEEDS


_FIELDS = ("custom_id", "method", "url", "body")
_CHAT_URL, _TEXT_URL = "/v1/chat/completions", "/v1/completions"
_READERS = {_CHAT_URL: read_chat, _TEXT_URL: read_text}
# Fields of a plain line that make its prompt a text in any case: over HTTP too, a chat has none.
_OF_TEXTS = frozenset({"echo", "suffix"})


@dataclass(frozen=True)
class LineHead:
    """Form and id of a line.

    Attributes:
        is_plain: Whether it is a plain line, and not one in OpenAI's format.
        id: Its id: `custom_id` or None, or `id` of a plain line or the number of the line. What is
            no text, number or truth value, and infinity, which no JSON can have, is left out.
    """

    is_plain: bool
    id: Any


def read_head(line: Line) -> tuple[LineHead, dict[str, Any] | ApiError]:
    """Return the form of a line, and its JSON object or a description of the error."""
    found: dict[str, Any] = {}
    data: dict[str, Any] | ApiError = found
    if line.data is None:
        fault = f"The line has more than {LINE_BYTES:,} bytes."
        data = ApiError(fault, None, "request_too_large", 413)
    else:
        try:
            data = found = parse(line.data)
        except ApiError:
            data = ApiError("The line is not a JSON object in UTF-8.", None, "invalid_json")
    # An invalid line has a form too, because its result has one.
    is_plain = not found.keys() & {*_FIELDS}
    if data is not found:
        is_plain = b'"custom_id"' not in (line.data or b"")
    own = found.get("id" if is_plain else "custom_id")
    if not isinstance(own, (str, int, float)) or own in (math.inf, -math.inf):
        own = None
    return LineHead(is_plain, line.number if is_plain and own is None else own), data


def read_request(
    head: LineHead,
    data: dict[str, Any],
    number: int,
    defaults: LineDefaults,
    speculation: Speculation,
) -> CompletionRequest:
    body = _plain_body(data, defaults) if head.is_plain else _openai_body(data)
    if FLAG.read(body.get("stream"), "stream"):
        raise ApiError(
            "stream is not supported: a batch has whole answers.", "stream", "unsupported_parameter"
        )
    url = data["url"] if not head.is_plain else _CHAT_URL if "messages" in body else _TEXT_URL
    request = _READERS[url](body, speculation, None)
    if head.is_plain and len(request.prompts) * request.n != 1:
        name = "n" if request.n > 1 else "prompt"
        raise invalid_value(
            name, "gives several answers, which only lines in OpenAI's format may have."
        )
    if head.is_plain and request.tools.tools:
        raise invalid_value("tools", "are supported in lines in OpenAI's format only.")
    return defaults.apply(request, body, number, head.is_plain)


def _openai_body(data: dict[str, Any]) -> dict[str, Any]:
    for name in data:
        if name not in _FIELDS:
            raise unknown(name[:100])
    custom_id, body = data.get("custom_id"), data.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise invalid_value("custom_id", "must be a string that is not empty.")
    if data.get("method") != "POST":
        raise invalid_value("method", "must be POST.")
    url = data.get("url")
    if not isinstance(url, str) or url not in _READERS:
        raise invalid_value("url", f"must be {' or '.join(_READERS)}.")
    if not isinstance(body, dict):
        raise invalid_value("body", "must be an object.")
    return body


def _plain_body(data: dict[str, Any], defaults: LineDefaults) -> dict[str, Any]:
    """Return the body of a plain line, with the system message of the batch if it has none."""
    body = {name: value for name, value in data.items() if name != "id"}
    if not isinstance(data.get("id"), (str, type(None))) and not is_count(data.get("id")):
        raise invalid_value("id", "must be a string or a whole number.")
    if ("prompt" in body) == ("messages" in body):
        raise invalid_value("prompt", "or messages is required, and excludes the other.")
    if isinstance(body.get("prompt"), str) and defaults.chat and not _OF_TEXTS & body.keys():
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    messages = body.get("messages")
    if isinstance(messages, list) and defaults.system is not None:
        # a list and not a set: what is no text may have no hash
        roles = [one.get("role") for one in messages if isinstance(one, dict)]
        if not ("system" in roles or "developer" in roles):
            body["messages"] = [{"role": "system", "content": defaults.system}, *messages]
    return body


# Errors that end the batch, because they are not those of one line.
_OF_ALL = (CancelledGenerationError, ClosedError, MemoryError, OSError)
_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")


class LineResult(NamedTuple):
    """The result of a line.

    Attributes:
        data: Line of the file with the results, with its line feed.
        fault: Description of the error; None if the line was answered.
    """

    number: int
    data: bytes
    fault: str | None


@dataclass(frozen=True)
class Answerer:
    """Answers lines with a model.

    Attributes:
        created: Time of the answers in OpenAI's format, in seconds since 1970.
        cancellation: Has the running streams.
        on_chunk: Called with each chunk, by a thread of the engine.
    """

    llm: Client[Answer]
    defaults: LineDefaults
    created: int
    cancellation: Cancellation
    on_chunk: Callable[[Chunk], object]

    def answer(self, line: Line, key: str) -> Work[LineResult]:
        """Return the result of a line with the id `key`; an error of the line is its result."""
        head, data = read_head(line)
        names = dict[str, str]()
        ids = {"id": key, "custom_id": head.id}
        if head.is_plain:
            ids = {"request_id": key, "id": head.id}

        def written(rest: dict[str, Any], fault: str | None = None) -> LineResult:
            text = json.dumps(ids | rest, ensure_ascii=False, allow_nan=False)
            return LineResult(line.number, text.encode() + b"\n", fault)

        try:
            if isinstance(data, ApiError):
                raise data
            speculation = self.llm.speculation
            request = read_request(head, data, line.number, self.defaults, speculation)
            names = request.names
            chunks, ended, notes = yield from self._generate(request)
            if head.is_plain:
                return written(_plain(chunks, ended) | {"error": None} | notes)
            body = self._openai(request, chunks, ended, key)
            return written(_response(200, key, body) | {"error": None} | notes)
        except _OF_ALL:
            raise
        except Exception as error:
            refusal = _refusal(error, names)
            rest = {"error": refusal.error}
            if not head.is_plain:
                shown = {name: refusal.error[name] for name in ("code", "message")}
                rest = _response(refusal.status, key, rest) | {"error": shown}
            return written(rest, refusal.error["message"])

    def _generate(
        self, request: CompletionRequest
    ) -> Work[tuple[list[ChunkEvent], list[ChoiceEnded], dict[str, list[str]]]]:
        """Return the events, and what is not enforced of the schemas and not fulfilled."""
        chunks, ended = list[ChunkEvent](), list[ChoiceEnded]()
        notes = dict[str, list[str]]()
        for choice in requests_of(request, self.llm):

            def came(chunk: Chunk, index: int = choice.index) -> None:
                chunks.append(ChunkEvent(chunk, named(self.llm, chunk), index))
                self.on_chunk(chunk)

            with self.cancellation.opened(choice.open) as stream:
                yield stream, came
            if self.cancellation.is_set:
                raise CancelledGenerationError
            ended.append(ChoiceEnded(choice.index, stream.result, None))
            if choice.unenforced:
                notes["unenforced"] = choice.unenforced.texts()
            if faults := choice.faults(stream.result, self.llm):
                notes.setdefault("unfulfilled", []).extend(faults)
        return chunks, ended, notes

    def _openai(
        self,
        request: CompletionRequest,
        chunks: list[ChunkEvent],
        ended: list[ChoiceEnded],
        key: str,
    ) -> dict[str, Any]:
        """Return the body of a response as over HTTP, without what differs from run to run."""
        started = Started(self.llm.name, family_of(self.llm.chat_template or ""))
        body = ResponseBuilder(request, started).complete(chunks, ended)
        body["choices"] = [*body["choices"]]
        del body["timings"]  # the same request has the same line
        random = key.rpartition("_")[2]
        body["id"] = f"{body['id'].partition('-')[0]}-{random}"
        body["created"] = self.created
        counts = usage([one.result for one in ended], request.n)
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


def _plain(chunks: list[ChunkEvent], ended: list[ChoiceEnded]) -> dict[str, Any]:
    result = ended[0].result
    found: dict[str, Any] = {"text": result.text}
    if result.reasoning:
        found["reasoning"] = result.reasoning
    found |= {
        "finish_reason": result.finish_reason,
        "seed": result.seed,
        "prompt_tokens": result.stats.n_prompt,
        "completion_tokens": result.stats.n_generated,
    }
    if result.logprobs:
        found["logprobs"] = [
            {"token": one.text, "logprob": one.logprob}
            | ({"top": [[text, x] for text, _, x, _ in one.top]} if one.top else {})
            for event in chunks
            for one in event.logprobs
        ]
    return found


def _refusal(error: Exception, names: dict[str, str]) -> ApiError:
    """Return the error of a line. It may quote the request, because the user owns the file."""
    refusal = refusal_of(error, names)
    if refusal is None and isinstance(error, GgufSpecError):
        return ApiError(f"{error} {error.hint}", None, "internal_error", 500)
    return refusal or as_refusal(error, names)


def _response(status: int, key: str, body: dict[str, Any]) -> dict[str, Any]:
    request_id = f"req_{key.rpartition('_')[2]}"
    return {"response": {"status_code": status, "request_id": request_id, "body": body}}
