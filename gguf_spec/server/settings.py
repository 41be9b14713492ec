"""Server settings: address, access control and limits."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InvalidOptionError, Text
from ..options import named
from ..tool_servers import ToolServer

# Seconds within which a client must take some data where answers have no time limit.
PATIENCE_S = 600.0
# Waiting requests.
QUEUE = 1000


@dataclass(frozen=True)
class Limits:
    """What clients can use up at the most, beyond what options set.

    Times are in seconds.

    Attributes:
        connections: Connections; one address gets half of them.
        head_s: For the head of a request, from the start of the connection or the end of the answer
            before it. The same time is left for a body that was not read before its answer.
        look_s: Between two looks at the connections, at least.
        parts: Parts of a body that may be of any size; beyond these they have a mean size.
        body_s: For a body, before it must keep a rate.
        bodies_bytes: Of all bodies that are being received or wait for their conversion; a body of
            any size may come alone.
        waiting_bytes: Of all requests that wait, about, as they are held in memory.
        still_s: Without a step, at least, after which a request no longer waits for its answer.
        kept_s: For which an answer in the background is kept that nobody reads.
        kept: Answers in the background that run at once.
        kept_bytes: Of the events of all answers in the background.
        document_bytes: Of a document, unless bodies may have more.
        document_chars: Of the text of a document.
        document_pages: Of a document.
        document_s: For reading a document.
        plan_s: For one look at the text of an edit. Those of the largest size take a part of it.
        calls: Calls of tools at once, those that wait included.
        counted: Tokens that are counted or returned, if the context is smaller.
    """

    connections: int = 1000
    head_s: float = 15.0
    look_s: float = 0.5
    parts: int = 10_000
    body_s: float = 20.0
    bodies_bytes: int = 1 << 28
    waiting_bytes: int = 1 << 28
    still_s: float = 60.0
    kept_s: float = 60.0
    kept: int = 64
    kept_bytes: int = 64 << 20
    document_bytes: int = 32 << 20
    document_chars: int = 1 << 20
    document_pages: int = 5000
    document_s: float = 30.0
    plan_s: float = 10.0
    calls: int = 16
    counted: int = 1 << 17


LIMITS = Limits()


@named
@dataclass(frozen=True)
class Settings:
    """Address, access control and limits of the server.

    Attributes:
        host: Address to listen on. `api_key` is required unless it is a loopback address
            (`127.0.0.1`, `::1`, `localhost`).
        port: Port to listen on; 0 selects a free one.
        api_key: Key that clients must send as `Authorization: Bearer ...`; None requires no key.
        cors_origins: Origins whose pages may use the server, such as `http://localhost:3000`,
            `http://localhost:*`, `https://*.example.org` or `chrome-extension://*`; `*` for all.
        allowed_hosts: Host names that requests may have on a loopback address, beside those of this
            machine: those of a proxy that keeps them, such as `ai.example.org` or `*.example.org`;
            `*` for all, which requires `api_key`.
        queue: Maximum number of waiting requests, in addition to the running ones.
            Further requests get status 429, also where those that wait need 256 MiB.
        max_tokens: Maximum length of an answer in tokens; None limits it only by the context.
        timeout: Time limit in seconds for an answer, from its start, and for the arrival of a
            request body; 0 or None for no limit. An answer that reaches the limit is returned as
            generated so far; where there is nothing yet, the request fails with status 408.
        body_bytes: Maximum size of a request body in bytes.
        grace: Seconds that running answers have to finish when the server shuts down.
        ping: Seconds without data after which a stream sends some, so that proxies do not close the
            connection while a long prompt is read; 0 for never.
        any_model: Whether a request with an unknown model name gets the default model. If not, it
            gets status 404. None allows it only on a loopback address.
        listed: Whether `gguf-spec ps` of the same user finds this server.
        tool_servers: Servers of tools (MCP) that the page offers to models. Its user is asked
            before each call.
    """

    host: str = "127.0.0.1"
    port: int = 0
    api_key: str | None = None
    cors_origins: Sequence[str] = ()
    allowed_hosts: Sequence[str] = ()
    queue: int = QUEUE
    max_tokens: int | None = None
    timeout: float | None = 600.0
    body_bytes: int = 4 << 20
    grace: float = 5.0
    ping: float = 15.0
    any_model: bool | None = None
    listed: bool = False
    tool_servers: Sequence[ToolServer] = ()

    def __post_init__(self) -> None:
        for name, allowed, ok in (
            ("host", "one host name or address", re.fullmatch(r"[^\s,/]+", self.host) is not None),
            ("port", "from 0 to 65535", 0 <= self.port <= 65535),
            ("queue", "a whole number, 0 or more", self.queue >= 0),
            (
                "max_tokens",
                "a whole number above 0",
                self.max_tokens is None or self.max_tokens > 0,
            ),
            ("timeout", "seconds, or 0 for no limit", self.timeout is None or self.timeout >= 0),
            ("body_bytes", "a whole number above 0", self.body_bytes > 0),
            ("grace", "seconds, 0 or more", 0 <= self.grace < math.inf),
            ("ping", "seconds, 0 or more", 0 <= self.ping < math.inf),
        ):
            check(name, getattr(self, name), allowed, ok)
        _ = self.origins  # checks them
        for name in self.allowed_hosts:
            allowed = "a host name without a port, such as ai.example.org, *.example.org or *"
            is_name = isinstance(name, str) and _HOST_NAME.fullmatch(name)
            check("allowed_hosts", name, allowed, bool(is_name))
        if (key := self.api_key) is not None:  # the message omits the value: it is a secret
            is_valid = key.isascii() and "".join(key.split()) == key != ""
            check("api_key", "..." if key else "", "ASCII text without spaces", is_valid)
        if "*" in self.allowed_hosts and not self.api_key:
            hint = Text("name the hosts, or set {api_key}.")
            fact = "with all host names any web page could use the server by DNS rebinding."
            raise InvalidOptionError("allowed_hosts", "*", "", hint, message=fact)
        if not (self.is_local or self.api_key):
            raise InvalidOptionError(
                "api_key",
                None,
                hint=Text("set {api_key}, or use the host 127.0.0.1."),
                message=f"other machines can reach the server at {self.host}, so it needs an API "
                "key.",
            )

    @property
    def limits(self) -> Limits:
        """What clients can use up at the most, beyond these settings."""
        return LIMITS

    @property
    def limit_s(self) -> float | None:
        """The time limit of an answer; None for no limit."""
        return None if self.timeout in (None, 0, math.inf) else self.timeout

    @property
    def patience_s(self) -> float:
        """Seconds within which a client must take some data."""
        return self.limit_s or PATIENCE_S

    @property
    def origins(self) -> re.Pattern[str] | None:
        """Pattern of the origins that may use the server, beside its own page; None for none.

        Raises:
            InvalidOptionError: One of `cors_origins` is not an origin.
        """
        given = self.cors_origins
        return re.compile("|".join(map(_origin, given))) if given else None

    def takes_host(self, host: str | None) -> bool:
        """Return whether a request with this Host header may be answered.

        DNS rebinding: a page whose host name resolves to this machine must not get access. Browsers
        always send a host; probes of proxies in HTTP/1.0 have none.
        """
        if not self.is_local or host is None:
            return True
        name = host_name(host)
        allowed = [one.lower().rstrip(".") for one in (self.host, *self.allowed_hosts)]
        starred = (one.removeprefix("*") for one in allowed if one.startswith("*"))
        return bool(name) and (
            name in allowed or name.endswith(tuple(starred)) or _is_this_machine(name)
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


# A Host header, and a name of `allowed_hosts`.
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s/\\@:?#\[\]]+)(?::\d*)?", re.I)
_HOST_NAME = re.compile(r"\*|(\*\.)?[\w-]+(\.[\w-]+)*\.?|\[[0-9a-f:.]+\]", re.I)


def host_name(host: str) -> str:
    """Return the name in a Host header, without port and final dot; empty if it has none."""
    found = _HOST.fullmatch(host)
    name = found[1].lower().rstrip(".") if found else ""
    return name if len(name) < 254 and _HOST_NAME.fullmatch(name) and "*" not in name else ""


def _is_this_machine(name: str) -> bool:
    """Return whether a host name is this machine for every browser, in all networks."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


# An origin, or a pattern of origins: the scheme, the host, the port. A slash at its end is common.
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([^/\s@:?#]+|\[[0-9a-f:]+\])?(?::(\d+|\*))?/?", re.I)
_PORTS = {"http": "80", "https": "443"}  # ports that browsers leave out


def _origin(given: str) -> str:
    """Return a regular expression for an origin, as browsers write it."""
    if given == "*":
        return ".*"
    if given == "null":  # of a file
        return given
    found = _ORIGIN.fullmatch(given) if isinstance(given, str) else None
    if not found or not found[2]:
        allowed = "a scheme and a host, such as http://localhost:3000 or chrome-extension://*"
        hint = "write what the browser sends as Origin, without a path."
        if isinstance(given, str) and re.fullmatch(r"[\w.*-]+(:(\d+|\*))?/?", given):
            hint = f"write http://{given.rstrip('/')} or https://{given.rstrip('/')}."
        raise InvalidOptionError("cors_origins", given, allowed, hint)
    scheme, host, port = (part and part.lower() for part in found.groups())
    end = f":{port}" if port and port != _PORTS.get(scheme) else ""
    end = r"(:\d+)?" if port == "*" else end
    # In an extension's pattern the host is all that follows.
    return f"{scheme}://" + re.escape(host).replace(r"\*", "[^/@]*") + end


def check(option: str, value: object, allowed: str, ok: bool) -> None:
    if not ok:
        raise InvalidOptionError(option, value, allowed)
