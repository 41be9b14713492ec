"""Tools of other programs, by the Model Context Protocol (MCP); needs the extra `[mcp]`.

A tool server is a program that is started here, or an address. The config file names them, one
table `[mcp.NAME]` for each; this file reads the tables, `toolbox.py` uses the servers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from ..errors import GgufSpecError, NotInstalledError
from ..system import subprogram

__all__ = ["ToolServer", "check"]
_SERVERS = 16
# Seconds that a call may take, unless a table says another number; at most.
CALL_S, _MOST_S = 60.0, 3600.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_KEYS = {
    "command": "a text", "args": "a list of texts", "env": "a table of texts", "url": "a text",
    "headers": "a table of texts", "tools": "a list of texts", "timeout": "seconds",
}  # fmt: skip


@dataclass(frozen=True)
class ToolServer:
    """A server of tools: a program, or an address.

    Attributes:
        command: The program and its arguments; empty for an address.
        env: Variables of its environment, which otherwise has only `PATH`, `HOME` and the like.
        url: Address of a server that speaks streamable HTTP.
        headers: Headers of each request to it.
        only: Names of the tools that may be used; None for all.
        timeout: Seconds that a call may take.
    """

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    only: tuple[str, ...] | None = None
    timeout: float = CALL_S

    @classmethod
    def read(cls, name: str, table: Mapping[str, Any]) -> ToolServer:
        """Return the server that a table of the config file describes.

        Raises:
            GgufSpecError: The name, a key or a value is wrong.
        """
        if not _NAME.fullmatch(name):
            raise GgufSpecError(
                f"{name!r} cannot name a tool server.",
                "use up to 32 letters, digits, - and _: [mcp.files].",
            )
        for key, value in table.items():
            if key not in _KEYS:
                hint = f"the keys are {', '.join(_KEYS)}."
                raise GgufSpecError(f"[mcp.{name}] has no key {key}.", hint)
            if not _fits(value, _KEYS[key]):
                fact = f"[mcp.{name}] {key} must be {_KEYS[key]}."
                raise GgufSpecError(fact, f"correct [mcp.{name}] {key}.")
        given = dict(table)
        if ("command" in given) == ("url" in given):
            fact = f"[mcp.{name}] needs either command, a program, or url, an address."
            raise GgufSpecError(fact, f'write [mcp.{name}] url = "http://127.0.0.1:8000/mcp".')
        for key, needed in (("args", "command"), ("env", "command"), ("headers", "url")):
            if key in given and needed not in given:
                fact = f"[mcp.{name}] {key} has no effect without {needed}."
                raise GgufSpecError(fact, f"remove {key}.")
        url = given.get("url", "")
        if url and not re.fullmatch(r"https?://[^\s/@]+(/\S*)?", url):
            fact = f"[mcp.{name}] url must begin with http:// or https:// and name a host."
            raise GgufSpecError(fact, "put keys into headers, not into the address.")
        command = (given["command"], *given.get("args", ())) if "command" in given else ()
        only = given.get("tools")
        return cls(
            name,
            command,
            given.get("env", {}),
            url,
            given.get("headers", {}),
            None if only is None else tuple(only),
            float(given.get("timeout", CALL_S)),
        )


def _fits(value: object, kind: str) -> bool:
    if kind == "a text":
        return isinstance(value, str) and bool(value.strip()) and "\0" not in value
    if kind == "seconds":
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return 0 < value <= _MOST_S
    if kind == "a list of texts":
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())


def check(servers: Sequence[ToolServer]) -> None:
    """Check that tool servers can be used here.

    Raises:
        GgufSpecError: There are too many servers, or no child process can be started.
        NotInstalledError: The package `mcp` is missing.
    """
    if len(servers) > _SERVERS:
        fact = f"the config file has {len(servers)} tool servers, more than {_SERVERS}."
        raise GgufSpecError(fact, "remove some of the sections [mcp.NAME].")
    if why := subprogram.refusal():
        raise GgufSpecError(f"tools cannot be used here: {why}.", "leave the tools out.")
    if not find_spec("mcp"):
        raise NotInstalledError("a tool server", "mcp", "mcp")
