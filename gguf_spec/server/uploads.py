"""Bodies of requests as they come: their size, time and encoding, and their conversion."""

from __future__ import annotations

import asyncio
import math
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from starlette.requests import Request

from ..protocols.bodies import n_values, parse
from ..protocols.errors import ApiError, client_closed, shutting_down
from .settings import Settings
from .turns import LARGE, in_turn

T = TypeVar("T")
# How much of an oversized body is read, as a multiple of the size limit. A client that is still
# sending does not read the response; after this amount it can receive the error.
_MOST_READ = 8
# Encodings of bodies, with the window of `zlib` for each; most of a body, and most parts of one.
_CODINGS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_MOST_CODINGS, _MOST_PARTS = 3, 64
# Key in the ASGI scope of a request: bytes that it takes in memory, about; and bytes of a value.
N_BYTES, _VALUE_BYTES = "gguf_spec.bytes", 16
# Bytes of a body that must arrive in each second after its first ones.
BODY_RATE = 4_000


def codings_of(headers: Iterable[str]) -> list[str]:
    """Return the encodings of a body by its headers `content-encoding`, in their order.

    Raises:
        ApiError: One of them is not known.
    """
    words = (word.strip().lower() for one in headers for word in one.split(","))
    found = [word.removeprefix("x-") for word in words if word not in ("", "identity")]
    for word in found:
        if word not in _CODINGS:
            fact = f"The content-encoding {word[:60]!r} is not supported: send gzip, deflate or no"
            known = {"Accept-Encoding": ", ".join(_CODINGS)}
            raise ApiError(f"{fact} encoding.", None, "unsupported_encoding", 415, known)
    if len(found) > _MOST_CODINGS:
        fact = f"The body has more than {_MOST_CODINGS} encodings."
        raise ApiError(fact, None, "unsupported_encoding", 415)
    return found


def unpacked(body: bytes, codings: Iterable[str], most: int) -> bytes:
    """Return a body without its encodings; at no time it has more than `most` bytes.

    Raises:
        ApiError: It is damaged or too large.
    """
    for coding in reversed([*codings]):
        try:
            body = _unpacked(body, coding, most)
        except (zlib.error, EOFError):
            fact = f"The body is not {coding}, as its content-encoding says, or it is cut."
            raise ApiError(fact, None, "invalid_encoding") from None
    return body


def _unpacked(body: bytes, coding: str, most: int) -> bytes:
    # Some clients send deflate without the head of zlib: its first two bytes are a multiple of 31.
    has_head = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    wbits = _CODINGS[coding] if coding == "gzip" or has_head else -zlib.MAX_WBITS
    found = b""
    for _ in range(_MOST_PARTS):  # files of gzip may follow each other
        part = zlib.decompressobj(wbits)
        found += part.decompress(body, most + 1 - len(found))
        if len(found) > most:
            fact = f"The body has more than {most:,} bytes when it is unpacked."
            raise ApiError(fact, None, "request_too_large", 413)
        body = part.unused_data
        if not part.eof:
            raise EOFError
        if not body:
            return found
    raise EOFError


class BodyReader:
    """Reads the bodies of the requests of a server.

    A large one is converted in a thread, so that other requests are answered. They take turns:
    several threads at once keep the interpreter from the event loop, and need memory for each.
    """

    def __init__(
        self,
        settings: Settings,
        is_ending: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._is_ending, self._clock = settings, is_ending, clock
        self.n_held: int = 0  # bytes of bodies that are being received
        self._converting = asyncio.Lock()

    async def read(self, request: Request, read: Callable[[dict[str, Any]], T]) -> T:
        """Return what `read` returns for the JSON object of a request, as `receive`."""
        body = await self.receive(request)
        return await self.convert(body, lambda: read(parse(body)))

    async def receive(self, request: Request) -> bytes:
        """Return the body of a request.

        Raises:
            ApiError: The body is too large, arrives too slowly or is compressed in an unknown way,
                the client disconnected, or the server is shutting down.
        """
        parts, codings = list[bytes](), codings_of(request.headers.getlist("content-encoding"))
        try:
            body = await self._read(request, parts)
            if codings:  # one at a time: each needs the memory of a whole body
                most = self._settings.body_bytes
                async with self._converting:
                    body = await asyncio.to_thread(unpacked, body, codings, most)
        except asyncio.TimeoutError:
            fact = "The body did not arrive in time."
            raise ApiError(fact, None, "timeout", 408, {"Connection": "close"}) from None
        finally:
            self.n_held -= sum(map(len, parts))
        if self._is_ending():
            raise shutting_down()
        request.scope[N_BYTES] = len(body) + _VALUE_BYTES * n_values(body)
        return body

    async def _read(self, request: Request, parts: list[bytes]) -> bytes:
        n, most, began_s = 0, self._settings.body_bytes, self._clock()
        is_whole = False
        while not is_whole:
            allowed_s = self._settings.limits.body_s + n / BODY_RATE
            allowed_s = min(allowed_s, self._settings.limit_s or math.inf)
            left_s = began_s + allowed_s - self._clock()
            message = await asyncio.wait_for(request.receive(), max(0.0, left_s))
            if message["type"] == "http.disconnect":
                raise client_closed()
            part, is_whole = message.get("body", b""), not message.get("more_body")
            n += len(part)
            if n <= most:
                parts.append(part)
                self._hold(len(part), n)
            elif n > _MOST_READ * most:
                break
        if n > most:
            fact = f"The body has more than {most:,} bytes."
            raise ApiError(fact, None, "request_too_large", 413)
        return b"".join(parts)

    def _hold(self, n_more: int, n: int) -> None:
        """Count bytes of a body, `n` so far; refuse it where with the others there are too many."""
        self.n_held += n_more
        if self.n_held > max(n, self._settings.limits.bodies_bytes):
            fact = "Too many large requests are being received. Try again later."
            headers = {"Retry-After": "5", "Connection": "close"}
            raise ApiError(fact, None, "too_many_uploads", 429, headers)

    async def convert(
        self, body: bytes, function: Callable[..., T], *given: object, n_more: int = 0
    ) -> T:
        """Return the result of a function that reads a body and does not use the event loop.

        It may read `n_more` bytes beside the body.
        """
        if (n_bytes := len(body) + n_more) <= LARGE:
            return function(*given)
        try:
            self._hold(len(body), len(body))
            return await in_turn(self._converting, n_bytes, function, *given)
        finally:
            self.n_held -= len(body)
