"""Streamed answers, for clients that may be slow or disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError, failure, log
from .events import ChoiceEnded, ChunkEvent, ErrorEvent, Event, Finished, Ping
from .jobs import Job
from .replies import Reply
from .requests import CompletionRequest
from .wire import StreamFormat


class AnswerStream(Response):
    """Streaming response that sends the events of a job.

    The engine never waits for the client: events that are not sent yet stay in the job's queue.
    """

    def __init__(
        self,
        job: Job,
        asked: CompletionRequest,
        reply: Reply,
        written: StreamFormat,
        patience: float,
        ping: float,
        close: Callable[[], None],
    ) -> None:
        """Create the response.

        Args:
            job: The job whose events are sent.
            asked: Its request.
            reply: Converts the events to response objects.
            written: Format of the stream.
            patience: Time limit in seconds for the client to accept one batch of data.
            ping: Seconds without data after which a ping is sent; 0 for never.
            close: Called when the response ends, for any reason.
        """
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=written.media_type)
        del self.headers["content-length"]
        self._job, self._reply, self._format = job, reply, written
        self._patience, self._ping, self._close = patience, ping, close
        self._n_open = asked.n_choices  # choices that have not ended
        self._failed = False  # whether a choice ended with an error

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the response through ASGI."""
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            async for data in self._safe_batches():
                await asyncio.wait_for(
                    send({"type": "http.response.body", "body": data, "more_body": True}),
                    self._patience,
                )
            await asyncio.wait_for(
                send({"type": "http.response.body", "body": b""}), self._patience
            )
        except asyncio.TimeoutError:
            pass  # uvicorn closes the connection because the response is incomplete
        finally:
            self._close()

    async def _safe_batches(self) -> AsyncIterator[bytes]:
        """Yield the encoded events; an unexpected error becomes the last one."""
        try:
            async for data in self._batches():
                yield data
        except Exception as error:
            log(error)
            yield self._bytes(self._reply.failed(failure(error)))

    async def _batches(self) -> AsyncIterator[bytes]:
        """Yield the encoded events; events that arrived during a slow send form one batch."""
        if data := self._bytes(self._reply.first()):
            yield data
        events, loop = self._job.events, asyncio.get_running_loop()
        while True:
            timer = self._ping and loop.call_later(self._ping, events.put_nowait, Ping())
            batch = [await events.get()]
            if timer:
                timer.cancel()
            while not events.empty():
                batch.append(events.get_nowait())
            if data := b"".join(self._written(one) for one in batch):
                yield data
            # A ping may come after the last event.
            if any(isinstance(one, (Finished, ErrorEvent)) for one in batch):
                return

    def _written(self, one: Event) -> bytes:
        if isinstance(one, ErrorEvent):
            return self._bytes(self._reply.failed(one.refusal))
        if isinstance(one, ChunkEvent):
            return self._bytes(self._reply.chunk(one))
        if isinstance(one, ChoiceEnded):
            return self._last_of(one)
        if isinstance(one, Ping):
            # In lines of JSON a ping is the beginning of a line, and no line follows.
            return self._format.ping if self._n_open else b""
        if isinstance(one, Finished) and not self._failed:
            return self._bytes(self._reply.finished()) + self._format.end
        return b""

    def _last_of(self, one: ChoiceEnded) -> bytes:
        self._n_open -= 1
        try:
            return self._bytes(self._reply.ended(one))
        except ApiError as refusal:
            self._failed = True
            return self._bytes(self._reply.failed(refusal))

    def _bytes(self, pieces: list[dict[str, Any]]) -> bytes:
        return b"".join(map(self._format.write, pieces))
