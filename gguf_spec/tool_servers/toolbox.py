"""The tools of some servers. What servers send is untrusted.

A child process reads it, one for each server, so its size, its time and its errors cannot harm this
process. Nothing here runs a tool by itself: whoever calls `Toolbox.call` has asked the user before.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from ..system.helper import Helper, HelperError
from . import ToolServer, check, session

__all__ = ["Found", "Result", "Tool", "Toolbox", "visible"]
# Tools of a server, and characters of a result.
TOOLS, CHARS = 64, 100_000
# Seconds for the start of a server with its list of tools.
START_S = 60.0
_END_S = 15.0  # for the end of a server, which is killed after some seconds
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_HIDDEN = re.compile(
    "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff]"
)
_MOST_NAME = 64  # characters of the name of a function


class Tool(NamedTuple):
    """A tool as models see it.

    Attributes:
        name: Its name for models, which no other tool has.
        server: The name of its server.
        parameters: JSON schema of its arguments.
    """

    name: str
    server: str
    description: str
    parameters: dict[str, Any]

    @property
    def function(self) -> dict[str, Any]:
        """The tool in OpenAI's format."""
        fields = {"name": self.name, "description": self.description}
        return {"type": "function", "function": {**fields, "parameters": self.parameters}}


class Found(NamedTuple):
    """The tools of all servers, and a line about each server that has a problem."""

    tools: list[Tool]
    notes: list[str]


class Result(NamedTuple):
    """What a call returned; with `is_error` a text for the model about what went wrong."""

    text: str
    is_error: bool


class Toolbox:
    """The tools of some servers, each of which is started when it is first needed.

    It can be used from any thread. Calls of one server wait for each other.

    Attributes:
        rounds: Most rounds of calls for one question of a user.
    """

    rounds = 8

    def __init__(self, servers: Sequence[ToolServer]) -> None:
        """Start nothing yet; raise what `check` raises."""
        check(servers)
        self._children = [_Child(one) for one in servers]
        self._known: dict[str, tuple[_Child, str]] = {}

    def find(self) -> Found:
        """Return the tools that the servers have now; those that are not running are started."""
        with ThreadPoolExecutor(len(self._children) or 1) as pool:
            answers = [*pool.map(_Child.list, self._children)]
        found, known = Found([], []), dict[str, tuple[_Child, str]]()
        for child, (tools, note) in zip(self._children, answers, strict=True):
            name = child.server.name
            if note:
                found.notes.append(f"Tool server {name}: {note}")
            for own_name, description, parameters in tools:
                unique = _unique(own_name, name, known)
                known[unique] = child, own_name
                found.tools.append(Tool(unique, name, description, parameters))
        self._known = known
        return found

    def call(self, name: str, arguments: str, most: int = CHARS) -> Result:
        """Call a tool; what goes wrong is a result for the model, too.

        Args:
            name: As in the last `find`.
            arguments: JSON text as the model wrote it.
            most: Characters of the result; further ones are left out, and the result says so.
        """
        if name not in self._known:
            return Result(f"There is no tool {name[:_MOST_NAME]}.", is_error=True)
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            return Result("The arguments are not a JSON object.", is_error=True)
        child, own_name = self._known[name]
        return child.call(own_name, given, max(1, min(most, CHARS)))

    def cancel(self) -> None:
        """End the calls that are running, with their servers. May be called from any thread."""
        for child in self._children:
            child.cancel()

    def close(self) -> None:
        """End the servers that were started."""
        with ThreadPoolExecutor(len(self._children) or 1) as pool:
            [*pool.map(_Child.close, self._children)]


class _Child:
    """A server behind a process that speaks with it."""

    def __init__(self, server: ToolServer) -> None:
        self.server = server
        self._helper, self._is_started, self._lock = Helper(), False, threading.Lock()

    def list(self) -> tuple[list[tuple[str, str, dict[str, Any]]], str]:
        try:
            tools, note = self._ask(START_S, session.list_tools, self.server, START_S, TOOLS)
        except HelperError as error:
            return [], f"it {error}."
        return tools, note

    def call(self, name: str, given: dict[str, Any], most: int) -> Result:
        server = self.server
        seconds = START_S + server.timeout
        try:
            text, is_error = self._ask(
                seconds, session.call_tool, server, START_S, name, given, most
            )
        except HelperError as error:
            return Result(f"The server of the tool {error}.", is_error=True)
        return Result(text, is_error)

    def _ask(self, seconds: float, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function in the child, which keeps to the time itself, or else is ended."""
        with self._lock:
            self._is_started = True
            return self._helper.call(seconds + _END_S, function, *given)

    def cancel(self) -> None:
        if self._lock.locked():
            self._helper.close()

    def close(self) -> None:
        # Not while a call runs: then the child ends at once, with the program.
        if self._is_started and self._lock.acquire(blocking=False):
            try:
                self._helper.call(_END_S, session.close)
            except HelperError:
                pass
            finally:
                self._lock.release()
        self._helper.close()


def visible(text: str) -> str:
    """Return a text in which characters that hide or turn others are written as escapes."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _unique(name: str, server: str, known: Mapping[str, object]) -> str:
    """Return a name for models: letters, digits, - and _, with that of the server if it is taken.

    Names are cut at 64 characters.
    """
    plain = _NO_NAME.sub("_", name)
    for wanted in (plain, f"{server}_{plain}", *(f"{server}_{n}_{plain}" for n in range(2, 999))):
        if (cut := wanted[:_MOST_NAME]) not in known:
            return cut
    return f"{server}_{len(known)}"
