"""Server settings: address, access control and limits."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InvalidOptionError, Text


@dataclass(frozen=True)
class Settings:
    """Address, access control and limits of the server.

    Attributes:
        host: Address to listen on. `api_key` is required unless it is a loopback address
            (`127.0.0.1`, `::1`, `localhost`).
        port: Port to listen on; 0 selects a free one.
        api_key: Key that clients must send as `Authorization: Bearer ...`; None requires no key.
        cors_origins: Origins whose pages may use the server, such as `http://localhost:3000`;
            `*` for all.
        queue: Maximum number of waiting requests, in addition to the running ones.
            Further requests get status 429.
        max_tokens: Maximum length of an answer in tokens; None limits it only by the context.
        timeout: Time limit in seconds for an answer, from its start, and for the arrival of a
            request body. An answer that reaches the limit is returned as generated so far.
        body_bytes: Maximum size of a request body in bytes.
        grace: Seconds that running answers have to finish when the server shuts down.
        ping: Seconds without data after which a stream sends some, so that proxies do not close the
            connection while a long prompt is read; 0 for never.
        any_model: Whether a request with an unknown model name gets the default model. If not, it
            gets status 404. None allows it only on a loopback address.
        listed: Whether `gguf-spec ps` of the same user finds this server.
    """

    host: str = "127.0.0.1"
    port: int = 0
    api_key: str | None = None
    cors_origins: Sequence[str] = ()
    queue: int = 16
    max_tokens: int | None = None
    timeout: float = 600.0
    body_bytes: int = 4 << 20
    grace: float = 5.0
    ping: float = 15.0
    any_model: bool | None = None
    listed: bool = False

    def __post_init__(self) -> None:
        for name, allowed, ok in (
            ("host", "a host name or an address", bool(self.host)),
            ("port", "from 0 to 65535", 0 <= self.port <= 65535),
            ("queue", "a whole number, 0 or more", self.queue >= 0),
            (
                "max_tokens",
                "a whole number above 0",
                self.max_tokens is None or self.max_tokens > 0,
            ),
            ("timeout", "seconds above 0", 0 < self.timeout < math.inf),
            ("body_bytes", "a whole number above 0", self.body_bytes > 0),
            ("grace", "seconds, 0 or more", 0 <= self.grace < math.inf),
            ("ping", "seconds, 0 or more", 0 <= self.ping < math.inf),
        ):
            check(name, getattr(self, name), allowed, ok)
        if (key := self.api_key) is not None:  # the message omits the value: it is a secret
            is_valid = key.isascii() and "".join(key.split()) == key != ""
            check("api_key", "..." if key else "", "ASCII text without spaces", is_valid)
        if not (self.is_local or self.api_key):
            raise InvalidOptionError(
                "api_key",
                None,
                hint=Text("set {api_key}, or use the host 127.0.0.1."),
                message=f"other machines can reach the server at {self.host}, so it needs an API "
                "key.",
            )

    @property
    def takes_any_model(self) -> bool:
        """Whether unknown model names mean the default model."""
        return self.is_local if self.any_model is None else self.any_model

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def check(option: str, value: object, allowed: str, ok: bool) -> None:
    """Raise the error of an option, unless its value is valid (`ok`).

    Raises:
        InvalidOptionError: It is not; `allowed` are the valid values.
    """
    if not ok:
        raise InvalidOptionError(option, value, allowed)
