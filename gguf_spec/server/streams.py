"""Answers over HTTP: errors, whole answers and streams of the events of a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache
from typing import Any

from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from ..protocols.errors import LOG, ApiError, failure, log, openai_error
from ..protocols.events import ChoiceEnded, ChunkEvent, PromptRead
from ..protocols.messages import anthropic_error
from ..protocols.ollama import ollama_error
from ..protocols.replies import Reply, StreamFormat, json_parts
from ..protocols.request import CompletionRequest
from .jobs import Done, ErrorEvent, Event, Job, Ping
from .turns import Alarm, in_turn

# Headers of an answer: the keywords of its schemas that no grammar follows, and those that the
# answer does not fulfil.
UNENFORCED, UNFULFILLED = "X-Schema-Unenforced", "X-Schema-Unfulfilled"
_MOST_OF_HEADER = 2000
# Events that are written before other requests have their turn: a slow client has many left.
_MOST_AT_ONCE = 64
_SENT_BYTES = 1 << 18  # that are sent at once
_TOKEN_BYTES = 64  # of a token or of an alternative in an answer, about
# First part of a path -> format of its errors. All other paths have that of OpenAI.
_FORMATS = {"/v1/messages": anthropic_error, "/api": ollama_error}


def refused(refusal: ApiError, path: str) -> JSONResponse:
    of = (form for start, form in _FORMATS.items() if path == start or path.startswith(f"{start}/"))
    body = next(of, openai_error)(refusal)
    return JSONResponse(body, refusal.status, refusal.headers)


class JsonAnswer(JSONResponse):
    """JSON that may be long: other threads run while it is written, others are answered between."""

    def render(self, content: Any) -> bytes:
        return "".join(json_parts(content)).encode()

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        body = bytes(self.body)
        left = len(body)
        async for part in _cut(body):
            left -= len(part)
            await send({"type": "http.response.body", "body": part, "more_body": left > 0})


def weight(request: CompletionRequest, n_bytes: int, n_tokens: int) -> int:
    """Return the bytes of an answer, about, from those of its request and the generated tokens."""
    n_tokens += request.n * sum(map(len, request.scores.values()))
    n_tops = 1 + (request.sampling.logprobs or 0)
    return request.n_choices * n_bytes + _TOKEN_BYTES * n_tops * n_tokens


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


class PatientStream(StreamingResponse):
    """Streaming response whose client must take data in time."""

    def __init__(
        self,
        parts: AsyncIterator[bytes],
        media_type: str,
        patience: float,
        close: Callable[[], object],
        headers: dict[str, str] | None = None,
    ) -> None:
        """Create the response.

        Args:
            patience: Time limit in seconds for the client to accept one batch of data.
            close: Called when the response ends, for any reason.
        """
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})}
        super().__init__(parts, headers=headers, media_type=media_type)
        self._patience, self._close = patience, close

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task
        late = Alarm(self._patience, task.cancel)

        async def send_in_time(message: Message) -> None:
            late.begin()
            await send(message)
            late.end()

        try:
            await self.stream_response(send_in_time)
        except asyncio.CancelledError:
            if not late.has_rung:
                raise
            # uvicorn closes the connection because the response is incomplete
            getattr(task, "uncancel", int)()
        finally:
            late.stop()
            self._close()


class AnswerStream(PatientStream):
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
            ping: Seconds without data after which a ping is sent; 0 for never.
            turn: As in `in_turn`.
        """
        of_job = schema_headers(job)
        super().__init__(self._batches(), written.media_type, patience, close, of_job)
        self._job, self._reply, self._format, self._ping = job, reply, written, ping
        self._turn, self._asked, self._n_tokens = turn, request, 0
        self._n_open = request.n_choices  # choices that have not ended
        self._failed = False  # whether a choice ended with an error

    async def _batches(self) -> AsyncIterator[bytes]:
        """Yield the encoded events, many at once; an unexpected error is the last one."""
        events, batch = self._job.events, list[Event]()
        silent = Alarm(self._ping, lambda: events.put_nowait(Ping()))
        try:
            n_bytes = self._weight(())
            data = await in_turn(self._turn, n_bytes, lambda: self._bytes(self._reply.first()))
            async for part in _cut(data):
                yield part
            # A ping may come after the last event.
            while not any(isinstance(one, (Done, ErrorEvent)) for one in batch):
                if not events.empty():  # else `get` waits: the send of a fast client does not
                    await asyncio.sleep(0)
                silent.begin()
                batch = [await events.get()]
                silent.end()
                while not events.empty() and len(batch) < _MOST_AT_ONCE:
                    batch.append(events.get_nowait())
                n_bytes = self._weight(batch)
                data = await in_turn(self._turn, n_bytes, self._all_written, batch)
                async for part in _cut(data):
                    yield part
        except Exception as error:
            log(error)
            yield self._bytes(self._reply.failed(failure(error)))
        finally:
            silent.stop()

    def _weight(self, batch: Sequence[Event]) -> int:
        """Return the bytes of the next events, about."""
        n_tokens, has_others = 0, False
        for one in batch:
            if isinstance(one, ChunkEvent):
                n_tokens += len(one.chunk.tokens)
            elif not isinstance(one, Ping):
                has_others = True
        self._n_tokens += n_tokens
        if self._asked.scores or has_others:
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


async def _cut(data: bytes) -> AsyncIterator[bytes]:
    """Yield parts of some data that are sent at once; other requests have their turn between."""
    for i in range(0, len(data), _SENT_BYTES):
        if i:
            await asyncio.sleep(0)
        yield data[i : i + _SENT_BYTES]
