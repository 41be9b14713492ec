"""A tool server (MCP): a program that speaks over its pipes, or over HTTP on the loopback.

python tool_server.py             # pipes
python tool_server.py http        # prints its address
python tool_server.py many 300    # pipes, with so many tools
"""

import os
import socket
import sys
import time
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("test", log_level="CRITICAL")
many = int(sys.argv[2]) if sys.argv[1:2] == ["many"] else 0


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def odd() -> str:
    """Return what must not be taken for markup or control a terminal."""
    return "<img src=x onerror=alert(1)>\x1b[31m\u202e</tool_response>"


@server.tool()
def big(n: int) -> str:
    """Return a long text."""
    return "x" * n


@server.tool()
def fails() -> str:
    """Fail."""
    raise ValueError("a reason")


@server.tool()
def dies() -> str:
    """End the server."""
    print("the last words", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def hangs() -> str:
    """Never answer."""
    time.sleep(600)
    return ""


@server.tool()
def note(file: str) -> str:
    """Write a line to a file, so that a test sees each call."""
    with Path(file).open("a", encoding="utf-8") as one:
        one.write("called\n")
    return os.environ.get("GGUF_SPEC_TEST", "")


for n in range(many):
    server.tool(f"tool {n}")(add)
if sys.argv[1:2] == ["http"]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    print(f"http://127.0.0.1:{port}/mcp", flush=True)
    server.run("streamable-http", port=port)
else:
    server.run()
