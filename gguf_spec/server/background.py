"""Responses in the background: answers that go on without their client, who may come back.

As in OpenAI's API a request with `background: true` asks for it, and its id, which nobody can
guess, is what one needs to read the answer from any event on, or to cancel it. What nobody reads
for a minute is cancelled, or forgotten if it has ended; the response itself is then in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..protocols.errors import ApiError, failure, invalid_value, log
from ..protocols.events import Started
from ..protocols.replies import NAMED_EVENTS
from ..protocols.request import CompletionRequest
from ..protocols.responses import ResponseReply
from ..tools.families import family_of
from .jobs import Job
from .responses import ResponseStore
from .settings import Settings
from .streams import JsonAnswer, PatientStream
from .worker import Worker

_MOST_AT_ONCE = 64  # events that are sent at once
_END = b"\n\n"  # of an event
# Returns the reply to a request and the bytes of its events, once the first one is there.
Begun: TypeAlias = Awaitable[tuple[ResponseReply, AsyncIterator[bytes]]]


class Background:
    """The answers of a server that go on without their clients."""

    def __init__(
        self,
        store: ResponseStore,
        worker: Worker,
        settings: Settings,
        is_ending: Callable[[], bool],
    ) -> None:
        self._store, self._worker, self._settings = store, worker, settings
        self._is_ending = is_ending
        self._kept: dict[str, _Answer] = {}
        path = "/v1/responses/{id}"
        self.routes: list[Route] = [
            Route(path, self._get, methods=["GET"]),
            Route(path, self._delete, methods=["DELETE"]),
            Route(f"{path}/cancel", self._cancel, methods=["POST"]),
        ]

    def check(self) -> None:
        """Refuse a further answer where as many as may be are running."""
        most = self._settings.limits.kept
        if sum(not one.is_over for one in self._kept.values()) >= most:
            fact = f"{most} responses are running in the background. Try again later."
            raise ApiError(fact, None, "too_many_responses", 429, {"Retry-After": "5"})

    def begin(
        self, request: Request, job: Job, asked: CompletionRequest, begun: Begun, end: ExitStack
    ) -> Response:
        """Return the first answer to a request: the response that waits, or all of its events.

        Args:
            job: Its job, which was submitted.
            end: Closed when the answer is complete.
        """
        one = _Answer(job, ResponseReply(asked, Started(job.model.id, family_of(""))))
        self._kept[one.id] = one
        self._store.open.add(one.id)
        one.task = asyncio.create_task(self._write(one, begun, end))
        return self._stream(request, one, 0) if asked.stream else JSONResponse(self._now(one))

    async def _write(self, one: _Answer, begun: Begun, end: ExitStack) -> None:
        try:
            reply, parts = await begun
            one.reply = reply
            async for data in parts:
                one.add(data)
                self._make_room()
        except Exception as error:
            refusal = error if isinstance(error, ApiError) else failure(error)
            if refusal is not error:
                log(error)
            one.add(b"".join(map(NAMED_EVENTS.write, one.reply.failed(refusal))))
        finally:
            end.close()
            one.end()
            self._store.open.discard(one.id)
            if one.is_removed:
                self._store.discard(one.id)
            self._wait(one)

    def _make_room(self) -> None:
        """Forget answers that have ended, the oldest first, and end the largest one."""
        most = self._settings.limits.kept_bytes
        while sum(one.n_bytes for one in self._kept.values()) > most:
            ended = next((one for one in self._kept.values() if one.is_over), None)
            if not ended:
                largest = max(self._kept.values(), key=lambda one: one.n_bytes)
                fact = f"The answers in the background have more than {most:,} bytes."
                largest.job.fail(ApiError(fact, None, "response_too_large", 503))
                return
            del self._kept[ended.id]

    # ---- clients

    def _wait(self, one: _Answer) -> None:
        """Give the clients of an answer some time to come back, if there are none now."""
        if one.timer:
            one.timer.cancel()
            one.timer = None
        if not one.n_readers:
            one.timer = asyncio.get_running_loop().call_later(
                self._settings.limits.kept_s, self._give_up, one
            )

    def _give_up(self, one: _Answer) -> None:
        if one.is_over:
            self._kept.pop(one.id, None)
        else:
            self._worker.cancel(one.job, "client_closed")

    def _now(self, one: _Answer) -> dict[str, Any]:
        self._wait(one)
        response = one.reply.response
        return response | {"output": [*response["output"]]}

    def _stream(self, request: Request, one: _Answer, start: int) -> Response:
        one.n_readers += 1
        self._wait(one)
        is_gone = asyncio.Event()

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            if not self._is_ending():  # some versions of uvicorn then say so to every request
                is_gone.set()
                one.wake()

        watching = asyncio.create_task(watch())

        def close() -> None:
            watching.cancel()
            one.n_readers -= 1
            self._wait(one)

        parts = one.read(start, self._settings.ping, is_gone)
        return PatientStream(parts, NAMED_EVENTS.media_type, self._settings.patience_s, close)

    async def _get(self, request: Request) -> Response:
        query, id_ = request.query_params, request.path_params["id"]
        one = self._kept.get(id_)
        is_optional = query.get("optional") == "true"
        if is_optional and not one and not self._store.has(id_):
            return JSONResponse({"id": id_, "object": "response", "status": "gone"})
        if query.get("stream", "false") == "false" or (is_optional and not one):
            now = self._now(one) if one else self._store.get(id_, "id").response
            return await asyncio.to_thread(JsonAnswer, now)
        if not one:
            self._store.get(id_, "id")
            kept_s = self._settings.limits.kept_s
            fact = f"must be false: only what was asked for in the background, {kept_s:g} s before "
            raise invalid_value("stream", f"{fact}at the most, has its events.")
        after = query.get("starting_after", "-1")
        if not (after == "-1" or (after.isascii() and after.isdecimal() and len(after) < 16)):
            raise invalid_value("starting_after", "must be the number of an event.")
        return self._stream(request, one, int(after) + 1)

    async def _cancel(self, request: Request) -> Response:
        id_ = request.path_params["id"]
        if one := self._kept.get(id_):
            await self._stop(one)
            return await asyncio.to_thread(JsonAnswer, self._now(one))
        found = self._store.get(id_, "id").response
        if not found["background"]:
            raise ApiError("Only responses in the background can be cancelled.", "id", "no_cancel")
        return await asyncio.to_thread(JsonAnswer, found)

    async def _stop(self, one: _Answer) -> None:
        if not one.is_over:
            self._worker.cancel(one.job, "client_closed")
            await asyncio.shield(one.task)

    async def _delete(self, request: Request) -> Response:
        id_ = request.path_params["id"]
        one = self._kept.pop(id_, None)
        if one and not one.is_over:
            one.is_removed = True
            await self._stop(one)
        elif one:
            self._store.discard(id_)
        else:
            self._store.remove(id_, "id")
        return JSONResponse({"id": id_, "object": "response", "deleted": True})


class _Answer:
    """One answer with its events so far; each is the one of its number.

    Attributes:
        reply: What makes the response; until the answer begins, one that is only waiting.
        n_readers: Streams that send it now.
        timer: Ends the time that clients have to come back.
        is_removed: Whether its response must not stay in the store.
    """

    task: asyncio.Task[None]

    def __init__(self, job: Job, reply: ResponseReply) -> None:
        self.job, self.reply = job, reply
        self.n_readers, self.n_bytes = 0, 0
        self.timer: asyncio.TimerHandle | None = None
        self.is_over = self.is_removed = False
        self._events: list[bytes] = []
        self._rest, self._grown = b"", asyncio.Event()
        self.add(b"".join(map(NAMED_EVENTS.write, reply.queued())))

    @property
    def id(self) -> str:
        found: str = self.reply.response["id"]
        return found

    def add(self, data: bytes) -> None:
        """Add the bytes of events, of which the last one may be cut."""
        *events, self._rest = (self._rest + data).split(_END)
        self._events += [one + _END for one in events]
        self.n_bytes += len(data)
        self.wake()

    def end(self) -> None:
        self.is_over = True
        self.wake()

    def wake(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

    async def read(self, start: int, ping_s: float, is_gone: asyncio.Event) -> AsyncIterator[bytes]:
        """Yield the events from a number on, and a ping after each `ping_s` without any."""
        while not is_gone.is_set():
            grown, some = self._grown, self._events[start : start + _MOST_AT_ONCE]
            start += len(some)
            if some:
                yield b"".join(some)
            elif self.is_over:
                return
            else:
                try:
                    await asyncio.wait_for(grown.wait(), ping_s or None)
                except asyncio.TimeoutError:
                    yield NAMED_EVENTS.ping
