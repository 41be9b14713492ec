"""Bodies of requests, limited in size and in time."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from .errors import ApiError, gone
from .settings import Settings

# How much of an oversized body is read, as a multiple of the size limit. A client that is still
# sending does not read the response; after this amount it can receive the error.
_MOST_READ = 8


async def read_body(request: Request, settings: Settings) -> bytes:
    """Return the body of a request.

    Raises:
        ApiError: The body is too large or arrives too slowly, or the client disconnected.
    """
    try:
        return await asyncio.wait_for(_read(request, settings.body_bytes), settings.timeout)
    except asyncio.TimeoutError:
        raise ApiError(
            "The body did not arrive in time.", None, "timeout", 408, {"Connection": "close"}
        ) from None
    except ClientDisconnect:
        raise gone() from None


async def _read(request: Request, most: int) -> bytes:
    n, parts = 0, []
    async for part in request.stream():
        n += len(part)
        if n <= most:
            parts.append(part)
        elif n > _MOST_READ * most:
            break
    if n > most:
        raise ApiError(f"The body has more than {most:,} bytes.", None, "request_too_large", 413)
    return b"".join(parts)
