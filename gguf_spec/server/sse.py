"""Server-sent events: an answer, piece by piece, to a client that may be slow or go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError
from .responses import ResponseBuilder
from .worker import ChunkEvent, ErrorEvent, Event, Finished, Job, Started


class EventStream(Response):
    """Sends what a job posts. The engine never waits for it: what the client does not take yet stays here."""

    media_type = "text/event-stream"

    def __init__(
        self, job: Job, reply: ResponseBuilder, patience: float, close: Callable[[], None]
    ) -> None:
        """Make the response; `patience` is how many seconds a client may take nothing, and `close` is called at the end, however it comes."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._job, self._reply, self._patience, self._close = job, reply, patience, close

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer as ASGI wants it."""
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
            pass  # a response that is not complete closes the connection
        finally:
            self._close()

    async def _batches(self) -> AsyncIterator[bytes]:
        """Yield what there is, as it comes; a client that is slow gets more at once."""
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
        if isinstance(one, Started):
            return b""
        if isinstance(one, ErrorEvent):
            return event({"error": one.refusal.error})
        if isinstance(one, ChunkEvent):
            return b"".join(map(event, self._reply.said(one)))
        try:
            return b"".join(map(event, self._reply.ended(one))) + b"data: [DONE]\n\n"
        except ApiError as refusal:
            return event({"error": refusal.error})


def event(data: dict[str, Any]) -> bytes:
    """Return one event."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'), allow_nan=False)}\n\n".encode()
