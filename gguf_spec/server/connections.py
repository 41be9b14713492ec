"""Connections of the server: their number, and the time that a client has for its turn.

A client that sends or reads nothing, or a byte now and then, keeps a place for a limited time. The
number of places is below the limit of open files, and one address gets half of them. Where there
is none left, the connection that has waited longest for a request of the same address is closed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import sys
from collections import Counter
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any, cast

import h11
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from ..protocols.errors import ApiError
from .settings import Settings
from .streams import refused

# Files that are kept for models, child processes and connections that are being accepted;
# connections that are accepted at once.
SPARE, AT_ONCE = 96, 8
# Bytes that are read from a connection before others have their turn.
_AT_A_TIME = 1 << 16
# Mean size of the parts of a body that has more of them than may be of any size.
PART_BYTES = 16
# Key in the ASGI scope of a request on a connection without a place: why it is refused.
REFUSAL = "gguf_spec.refusal"


def most_connections(most: int) -> int:
    """Return how many connections, up to `most`, this process can hold with its open files."""
    if sys.platform == "win32":  # 512 sockets can be waited for
        return min(most, 400)
    import resource

    limit: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return most
    try:
        n_open = len([*Path("/dev/fd").iterdir()])
    except OSError:
        n_open = 32
    return min(most, max(8, limit - n_open - min(SPARE, limit // 4)))


class _Parser(h11.Connection):
    """Parser that refuses a body in tiny chunks: a chunk takes as long as a thousand bytes."""

    _n_parts = _n_bytes = 0

    def __init__(self, most_parts: int) -> None:
        super().__init__(h11.SERVER)
        self._most_parts = most_parts

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._n_parts = self._n_bytes = 0
        elif isinstance(event, h11.Data):
            self._n_parts, self._n_bytes = self._n_parts + 1, self._n_bytes + len(event.data)
            if self._n_parts > self._most_parts + self._n_bytes // PART_BYTES:
                fact = f"The body has more than {self._most_parts:,} chunks of a few bytes."
                raise h11.RemoteProtocolError(fact, error_status_hint=413)
        return event


class Connection(H11Protocol):
    """Connection with limits.

    Attributes:
        address: Address of the client; of IPv6 the network, which one client has to itself.
        since: Begin of the client's turn, or the last time when it took data, in seconds of the
            event loop.
    """

    since: float
    transport: asyncio.Transport
    address: object = None
    since = 0.0

    def __init__(self, most: int, settings: Settings, **given: Any) -> None:
        """Create a connection, one of `most`."""
        super().__init__(**given)
        self._most, self._n_unsent = most, 0
        self._patience_s, self._head_s = settings.patience_s, settings.limits.head_s
        self.conn: _Parser = _Parser(settings.limits.parts)

    # The attributes of the base are without types.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, which may be that of another connection."""
        super().connection_made(transport)
        transport.max_size = _AT_A_TIME  # type: ignore[attr-defined]
        self.address, self.since = network(self.client), self.loop.time()
        others = cast("Collection[Connection]", self.connections)
        if len(others) <= self._most // 2:
            return
        counts = Counter(one.address for one in others)
        address = self.address
        if counts[address] <= self._most // 2:
            if len(others) <= self._most:
                return
            ((address, _),) = counts.most_common(1)
        idle = (one for one in others if one.address == address and one.is_idle and one is not self)
        if oldest := min(idle, key=lambda one: one.since, default=None):
            oldest.transport.abort()
        else:
            self.app: Any = partial(_refuse, self.app, counts[address])

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request whose head has not arrived."""
        is_done = self.cycle is None or self.cycle.response_complete
        is_sending = self.transport.get_write_buffer_size() > 0
        return is_done and not is_sending and not self.transport.is_closing()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def look(self, now_s: float) -> None:
        """Close the connection if its client has waited too long."""
        n_unsent = self.transport.get_write_buffer_size()
        is_waiting = n_unsent > 0 and n_unsent == self._n_unsent
        self._n_unsent = n_unsent
        if not (is_waiting or self.is_idle):
            self.since = now_s
        elif now_s - self.since > (self._patience_s if is_waiting else self._head_s):
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Answer a request that is not HTTP, or is too large, in the form of the other errors."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # an answer has begun
            return
        error = sys.exc_info()[1]
        status = getattr(error, "error_status_hint", 400)
        fact = {
            413: str(error),
            431: "The URL and the headers of a request may have 16 KiB.",
        }.get(status, "The request is not HTTP/1.1.")
        body = refused(ApiError(fact, None, "invalid_request", status), "").body
        headers = [("content-type", "application/json"), ("connection", "close")]
        headers.append(("content-length", str(len(body))))
        reason = STATUS_PHRASES[status]
        head = h11.Response(status_code=status, headers=headers, reason=reason)
        events = head, h11.Data(data=bytes(body)), h11.EndOfMessage()
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()


async def _refuse(app: Any, n: int, scope: Scope, receive: Receive, send: Send) -> None:
    """Call the application for a connection without a place."""
    fact = f"{n:,} connections of this address are open. Close some, or try again later."
    headers = {"Retry-After": "5", "Connection": "close"}
    scope[REFUSAL] = ApiError(fact, None, "too_many_connections", 429, headers)
    await app(scope, receive, send)


def network(client: tuple[str, int] | None) -> object:
    """Return the address whose connections are counted together."""
    try:
        address = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return client and client[0]
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return address.ipv4_mapped or int(address) >> 64


class LimitedUvicorn(uvicorn.Server):
    """uvicorn that looks at its connections, at most each `look_s` seconds."""

    def __init__(self, config: uvicorn.Config, look_s: float) -> None:
        super().__init__(config)
        self._look_s, self._looked_s = look_s, 0.0

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(128)  # uvicorn has set it to the number that is accepted at once

    async def on_tick(self, counter: int) -> bool:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._looked_s >= self._look_s:
            self._looked_s = now_s
            for one in [*self.server_state.connections]:
                cast("Connection", one).look(now_s)
        return await super().on_tick(counter)
