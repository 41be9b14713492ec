"""Ingress: sends each request to a replica, and again to another one if that replica is lost."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ..server.errors import SHUTTING_DOWN, ApiError
from ..server.settings import Settings
from ..server.wire import DATA_EVENTS, JSON_LINES, NAMED_EVENTS, read_body, refused
from .calls import Call, Head, path_of
from .continuation import (
    CONTINUED,
    AttemptLostError,
    ContinuedAnswer,
    DifferentTextError,
    error_event,
)

# A request that ends the process of a replica must not end those of all.
MOST_ATTEMPTS = 3
_STREAMS = tuple(form.media_type.encode() for form in (DATA_EVENTS, NAMED_EVENTS, JSON_LINES))
_log = logging.getLogger("gguf_spec.ray")

Parts = AsyncIterator[Head | bytes]


class Ingress:
    """Repeats requests whose replica is lost. The client sees one answer.

    A request without a seed gets one before its first attempt, so that a repetition has the same
    text. A streamed answer goes on after the text that the client already has.

    Attributes:
        n_repeated: Number of repeated attempts.
    """

    def __init__(self, open_: Callable[[Call], Parts], settings: Settings) -> None:
        """Create an ingress.

        Args:
            open_: Sends a request to a replica and yields the head and the body of the response.
                It raises `AttemptLostError` if the replica is lost, and `ApiError` if no replica
                takes the request.
            settings: Settings of the server.
        """
        self._open, self._settings = open_, settings
        self.n_repeated = 0

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        try:
            call = Call.of(request, await read_body(request, self._settings)).with_seed()
            return await self._answer(call)
        except ApiError as refusal:
            return refused(refusal, path_of(request))

    async def _answer(self, call: Call) -> Response:
        for n_left in reversed(range(MOST_ATTEMPTS)):
            try:
                parts = self._open(call)
                head = await _head(parts)
                if _is_stream(head):
                    continues = call.path in CONTINUED
                    rest = self._continued(call, parts, n_left) if continues else _body(parts)
                    return _response(head, StreamingResponse(rest))
                body = b"".join([part async for part in parts if isinstance(part, bytes)])
                if not _is_ending(head, body):
                    return _response(head, Response(body))
            except AttemptLostError:
                pass
            self._count(n_left)
        raise _lost()

    async def _continued(self, call: Call, parts: Parts, n_left: int) -> AsyncIterator[bytes]:
        """Yield the events of an answer, which another replica continues if one is lost."""
        answer = ContinuedAnswer()
        try:
            while True:
                try:
                    async for written in _events(parts):
                        if rest := answer.take(written):
                            yield rest
                except AttemptLostError:
                    pass
                if answer.is_complete:
                    return
                self._count(n_left)
                if not n_left:
                    raise _lost()
                n_left -= 1
                answer.repeat()
                parts = self._open(call)
        except DifferentTextError:
            message = "The replica was lost, and another one has a different text."
            yield error_event(ApiError(message, None, "replica_lost", 503).error)
        except ApiError as refusal:
            yield error_event(refusal.error)

    def _count(self, n_left: int) -> None:
        self.n_repeated += n_left > 0
        _log.warning("a replica was lost; %d more attempts", n_left)


async def _head(parts: Parts) -> Head:
    async for part in parts:
        if isinstance(part, Head):
            return part
    raise AttemptLostError


async def _body(parts: Parts) -> AsyncIterator[bytes]:
    """Yield the body of a stream that no other replica can continue.

    Raises:
        AttemptLostError: The replica is lost. The connection ends, so the client sees the loss.
    """
    async for part in parts:
        if isinstance(part, bytes):
            yield part


async def _events(parts: Parts) -> AsyncIterator[bytes]:
    """Yield the whole events of a body; the rest of one that was cut is dropped.

    Raises:
        ApiError: A repeated request was refused.
    """
    rest, head = b"", None
    async for part in parts:
        if isinstance(part, Head):
            head = part
            continue
        rest += part
        if head and not _is_stream(head):
            continue
        *events, rest = rest.split(b"\n\n")
        for one in events:
            yield one + b"\n\n"
    if head and not _is_stream(head):
        if _is_ending(head, rest):
            raise AttemptLostError
        raise ApiError("The request was refused when it was repeated.", None, None, head.status)


def _is_stream(head: Head) -> bool:
    return head.get(b"content-type").startswith(_STREAMS)


def _is_ending(head: Head, body: bytes) -> bool:
    """Return whether a replica refused or ended a request because it shuts down."""
    return head.status == 503 and f'"{SHUTTING_DOWN}"'.encode() in body


def _response(head: Head, response: Response) -> Response:
    response.status_code = head.status
    response.raw_headers = [
        *((name, value) for name, value in head.headers if name.lower() != b"content-length"),
        *((name, value) for name, value in response.raw_headers if name == b"content-length"),
    ]
    return response


def _lost() -> ApiError:
    return ApiError(
        f"The replica was lost in each of {MOST_ATTEMPTS} attempts.",
        None,
        "replica_lost",
        503,
        {"Retry-After": "5"},
    )
