"""The session with one tool server, in a child process; its functions import `mcp` when called.

The event loop runs only inside of calls. What a server sends in between waits in its pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import sys
import threading
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

from . import ToolServer

if TYPE_CHECKING:
    from mcp import Client

T = TypeVar("T")
# Pages of a list of tools; characters of a description, of a schema and of a fault.
_PAGES, _DESCRIPTION, _SCHEMA, _FAULT = 50, 1000, 20_000, 300
_LAST_BYTES = 2000  # of what a program writes to stderr
_REST_S = 1.0  # to read the rest of that; programs that it has started may hold the pipe
# Children have a limit of memory (system/helper.py), which is not for the program of the server.
_UNLIMITED = 'ulimit -S -v unlimited 2>/dev/null; exec "$@"'
_loop: list[asyncio.AbstractEventLoop] = []
_open: list[_Session] = []
# Own name, description and schema of a tool.
Listed = tuple[str, str, dict[str, Any]]


class _FaultError(Exception):
    """A server cannot be used; the message is a sentence about it."""


def list_tools(server: ToolServer, start_s: float, most: int) -> tuple[list[Listed], str]:
    """Return the tools of a server, and a note about what is wrong or left out."""
    try:
        return _run(_list(server, start_s, most))
    except _FaultError as error:
        return [], str(error)


def call_tool(
    server: ToolServer, start_s: float, name: str, given: dict[str, Any], most: int
) -> tuple[str, bool]:
    """Return the result of a call as text, and whether it is an error."""
    try:
        return _run(_call(server, start_s, name, given, most))
    except _FaultError as error:
        return f"The call failed: {error}", True


def close() -> None:
    """End the session, and the program of its server."""
    if _open:
        _run(_end())


def _run(work: Awaitable[T]) -> T:
    if not _loop:
        logging.disable(logging.CRITICAL)  # logs have traces, and quote what servers send
        _loop.append(asyncio.new_event_loop())
    return _loop[0].run_until_complete(work)


class _Session:
    """An open session; a task of its own holds it, because it must end where it began."""

    client: Client

    def __init__(self, server: ToolServer) -> None:
        self._server, self._leave = server, asyncio.Event()
        self._ready = asyncio.get_running_loop().create_future()
        self._last, self._reader = b"", threading.Thread()
        self.task = asyncio.create_task(self._hold())

    async def opened(self, seconds: float) -> None:
        """Wait for the session.

        Raises:
            _FaultError: It cannot be opened.
        """
        both: set[asyncio.Future[Any]] = {self._ready, self.task}
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done():
            return
        if not self.task.done():
            raise _FaultError(f"it did not answer in {seconds:g} s.{self._said()}")
        error = self.task.exception()
        raise _FaultError(f"it cannot be used: {_told(error)}.{self._said()}")

    async def _hold(self) -> None:
        from mcp import Client, Implementation

        own = Implementation(name="gguf-spec", version="")
        async with contextlib.AsyncExitStack() as stack:
            transport = await self._transport(stack)
            client = await stack.enter_async_context(Client(transport, client_info=own))
            self.client = client
            self._ready.set_result(None)
            await self._leave.wait()

    async def _transport(self, stack: contextlib.AsyncExitStack) -> Any:
        server = self._server
        if server.url:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            client = httpx2.AsyncClient(headers=dict(server.headers), timeout=server.timeout)
            await stack.enter_async_context(client)
            return streamable_http_client(server.url, http_client=client)
        from mcp import StdioServerParameters
        from mcp.client.stdio import get_default_environment, stdio_client

        name, *arguments = server.command
        environment = {**get_default_environment(), **server.env}
        program = shutil.which(name, path=environment.get("PATH"))
        if not program:
            raise _FaultError(f"there is no program {name}")
        if sys.platform != "win32":
            arguments = ["-c", _UNLIMITED, "sh", program, *arguments]
            program = "/bin/sh"
        asked = StdioServerParameters(command=program, args=arguments, env=environment)
        return stdio_client(asked, stack.enter_context(self._listening()))

    @contextlib.contextmanager
    def _listening(self) -> Any:
        """Yield a file for stderr, of which the end is kept."""
        reads, writes = os.pipe()

        def read() -> None:
            with os.fdopen(reads, "rb", 0) as pipe:
                while data := pipe.read(1 << 16):
                    self._last = (self._last + data)[-_LAST_BYTES:]

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()
        with os.fdopen(writes, "w") as file:
            yield file

    def _said(self) -> str:
        """Return the last line that the program wrote to stderr, as a sentence."""
        if self.task.done() and self._reader.ident:  # the pipe is closed: no more comes
            self._reader.join(_REST_S)
        lines = self._last.decode("utf-8", "replace").strip().splitlines()
        return f" It wrote: {_plain(lines[-1])}" if lines else ""

    async def end(self) -> None:
        """End the session; the program is killed if it does not end by itself."""
        self._leave.set()
        if not self._ready.done():
            self.task.cancel()
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.exception()  # it is of no interest any more


async def _session(server: ToolServer, seconds: float) -> _Session:
    """Return the open session, or open one.

    Raises:
        _FaultError: It cannot be opened.
    """
    if _open and _open[0].task.done():
        await _end()
    if not _open:
        one = _Session(server)
        _open.append(one)
        try:
            await one.opened(seconds)
        except BaseException:
            await _end()
            raise
    return _open[0]


async def _end() -> None:
    while _open:
        await _open.pop().end()


async def _list(server: ToolServer, start_s: float, most: int) -> tuple[list[Listed], str]:
    session = await _session(server, start_s)
    tools, n_left = list[Listed](), 0
    names = set[str]()
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await _answer(
            session.client.list_tools(cursor=cursor, cache_mode="refresh"), start_s
        )
        for tool in page.tools:
            names.add(tool.name)
            if server.only is not None and tool.name not in server.only:
                continue
            if len(tools) == most or not tool.name or not _is_small(tool.input_schema):
                n_left += 1
                continue
            description = (tool.description or tool.title or "")[:_DESCRIPTION]
            tools.append((tool.name, description, tool.input_schema))
        cursor = page.next_cursor
        if not cursor:
            break
    missing = [one for one in server.only or () if one not in names]
    notes = [f"it has no tool {_plain(', '.join(missing))}."] if missing else []
    if n_left:
        fact = f"{n_left:,} of its tools are left out: more than {most}, or too large."
        notes.append(f"{fact} Name those to use: tools = [...].")
    return tools, " ".join(notes)


def _is_small(schema: dict[str, Any]) -> bool:
    try:
        return len(json.dumps(schema)) <= _SCHEMA
    except (ValueError, RecursionError):
        return False


async def _call(
    server: ToolServer, start_s: float, name: str, given: dict[str, Any], most: int
) -> tuple[str, bool]:
    session = await _session(server, start_s)
    result = await _answer(session.client.call_tool(name, given), server.timeout)
    texts = [_text_of(one) for one in result.content]
    if not texts and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(texts)
    if len(text) > most:
        text = f"{text[:most]}\n(The first {most:,} of {len(text):,} characters.)"
    return text or "(no result)", bool(result.is_error)


def _text_of(block: Any) -> str:
    """Return a part of a result as text; of what is none, its kind and size."""
    if block.type == "text":
        return str(block.text)
    if block.type == "resource_link":
        return f"({block.uri})"
    inner = getattr(block, "resource", block)
    if isinstance(text := getattr(inner, "text", None), str):
        return text
    data = getattr(inner, "data", None) or getattr(inner, "blob", None) or ""
    return f"({block.type}, {len(data) * 3 // 4:,} bytes, which are left out)"


async def _answer(work: Awaitable[T], seconds: float) -> T:
    """Return what a server answers; one that does not answer well is ended.

    Raises:
        _FaultError: It does not answer in time, ends, or answers something else.
    """
    from mcp import MCPError

    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        await _end()
        raise _FaultError(f"it did not answer in {seconds:g} s. It was ended.") from None
    except Exception as error:
        session, is_over = _open[0] if _open else None, _is_over(error)
        is_answer = isinstance(error, MCPError) and not is_over
        said = session._said() if session and not is_answer else ""
        if not is_answer:
            await _end()
        if session and is_over:  # now all that it wrote is read
            said = session._said()
        raise _FaultError(f"{_told(error)}.{said}") from None


def _is_over(error: Any) -> bool:
    from mcp_types import CONNECTION_CLOSED

    return getattr(getattr(error, "error", error), "code", None) == CONNECTION_CLOSED


def _told(error: BaseException | None) -> str:
    """Return the message of an error without a trace; of a group, that of the first one in it."""
    while inner := getattr(error, "exceptions", None):
        error = inner[0]
    text = _plain(str(error)).rstrip(".")
    if isinstance(error, _FaultError):
        return text
    if type(error).__module__.startswith("pydantic"):
        return "what it sent is not an answer of the protocol"
    return text or type(error).__name__


def _plain(text: str) -> str:
    clean = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(clean.split())[:_FAULT]
