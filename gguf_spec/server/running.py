"""Running servers of this user: each writes a small file, from which the others find it."""

from __future__ import annotations

import contextlib
import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..system.files import atomic_write, state_folder

_TIMEOUT_S = 2.0  # for the answer of a server
_MOST_BYTES = 1 << 20  # of that answer
# Addresses that mean all addresses of a machine -> the one to connect to.
_CONNECT = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


@dataclass(frozen=True)
class RunningServer:
    """A running server.

    Attributes:
        url: Base URL.
        pid: Number of its process.
        models: The models in memory, as the route `/api/ps` lists them.
    """

    url: str
    pid: int
    models: tuple[dict[str, Any], ...]


def _folder() -> Path:
    return state_folder() / "servers"


@contextmanager
def listed(url: str, token: str) -> Iterator[None]:
    """List a server of this process for `running_servers`; without a writable folder, do nothing.

    Args:
        url: Base URL of the server.
        token: Token that opens its route `/api/ps`.
    """
    file = None
    with contextlib.suppress(OSError, RuntimeError):
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = folder / f"{os.getpid()}-{url.rpartition(':')[2]}.json"
        entry = {"url": url, "pid": os.getpid(), "token": token}
        with atomic_write(file, lasting=False) as part:
            part.write_text(json.dumps(entry), encoding="utf-8")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if file:
                file.unlink()


def running_servers() -> list[RunningServer]:
    """Return the running servers of this user that are listed, with their loaded models.

    Files of servers that do not answer are ignored, and deleted if their process has ended.
    """
    found = []
    with contextlib.suppress(OSError, RuntimeError):
        for file in sorted(_folder().glob("*.json")):
            server = _read(file)
            if server:
                found.append(server)
    return found


def _read(file: Path) -> RunningServer | None:
    try:
        entry = json.loads(file.read_text(encoding="utf-8"))
        url, pid, token = str(entry["url"]), int(entry["pid"]), str(entry["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        return RunningServer(url, pid, _ask(url, token))
    except (OSError, ValueError, KeyError, TypeError):
        import psutil

        if not psutil.pid_exists(pid):
            with contextlib.suppress(OSError):
                file.unlink()
        return None


def _ask(url: str, token: str) -> tuple[dict[str, Any], ...]:
    for anywhere, here in _CONNECT.items():
        url = url.replace(f"//{anywhere}:", f"//{here}:")
    if not url.startswith("http://"):
        raise ValueError(url)
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/api/ps", headers=headers)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=_TIMEOUT_S) as response:
        models = json.loads(response.read(_MOST_BYTES))["models"]
    return tuple(dict(model) for model in models)
