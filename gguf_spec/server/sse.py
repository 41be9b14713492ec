"""Server-sent events: a streamed answer for a client that may be slow or disconnect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError
from .events import ChoiceEnded, ChunkEvent, ErrorEvent, Event, Finished
from .jobs import Job
from .responses import ResponseBuilder

# The last event of a complete answer.
DONE = b"data: [DONE]\n\n"


class EventStream(Response):
    """Streaming response that sends the events of a job.

    The engine never waits for the client: events that are not sent yet stay in the job's queue.
    """

    media_type = "text/event-stream"

    def __init__(
        self, job: Job, reply: ResponseBuilder, patience: float, close: Callable[[], None]
    ) -> None:
        """Create the response.

        Args:
            job: The job whose events are sent.
            reply: Converts the events to response objects.
            patience: Time limit in seconds for the client to accept one batch of data.
            close: Called when the response ends, for any reason.
        """
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._job, self._reply, self._patience, self._close = job, reply, patience, close
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
            async for data in self._batches():
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

    async def _batches(self) -> AsyncIterator[bytes]:
        """Yield the encoded events; events that arrived during a slow send form one batch."""
        for piece in self._reply.first():
            yield event(piece)
        events = self._job.events
        while True:
            batch = [await events.get()]
            while not events.empty():
                batch.append(events.get_nowait())
            if data := b"".join(self._written(one) for one in batch):
                yield data
            if isinstance(batch[-1], (Finished, ErrorEvent)):
                return

    def _written(self, one: Event) -> bytes:
        if isinstance(one, ErrorEvent):
            return event({"error": one.refusal.error})
        if isinstance(one, ChunkEvent):
            return b"".join(map(event, self._reply.said(one)))
        if isinstance(one, ChoiceEnded):
            return self._last_of(one)
        if isinstance(one, Finished) and not self._failed:
            return b"".join(map(event, self._reply.finished())) + DONE
        return b""

    def _last_of(self, one: ChoiceEnded) -> bytes:
        try:
            return b"".join(map(event, self._reply.ended(one)))
        except ApiError as refusal:
            self._failed = True
            return event({"error": refusal.error})


def event(data: dict[str, Any]) -> bytes:
    """Return one server-sent event with `data` as JSON."""
    return (
        f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'), allow_nan=False)}\n\n"
    ).encode()
