"""Messages of a service to systemd: it is ready, it is alive, it stops (`sd_notify`)."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .thread import Server


def notify(message: str) -> bool:
    """Send a message to systemd; return False without `NOTIFY_SOCKET` in the environment."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    family = getattr(socket, "AF_UNIX", None)
    if family is None or not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # an abstract socket
        address = f"\0{address[1:]}"
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.sendto(message.encode(), address)
        return True
    return False


def watchdog_seconds() -> float | None:
    """Return the time within which systemd expects a sign of life; None without a watchdog."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        seconds = int(os.environ.get("WATCHDOG_USEC", "")) / 1e6
    except ValueError:
        return None
    return seconds if seconds > 0 else None


class Watchdog:
    """Decides at each tick whether the server is alive: it is idle, or has made a step."""

    def __init__(self, watched: Server) -> None:
        self._watched = watched
        self._last: int | None = None

    def tick(self) -> bool:
        """Send a sign of life if there was progress since the last tick; return whether."""
        now = self._watched.progress()
        is_alive = now is None or now != self._last
        self._last = now
        if is_alive:
            notify("WATCHDOG=1")
        return is_alive


@contextmanager
def systemd_service(watched: Server) -> Iterator[None]:
    """Tell systemd that a service is ready, then that it is alive, and at the end that it stops.

    Without systemd nothing is sent and no thread runs.
    """
    if not notify("READY=1"):
        yield
        return
    over, interval = threading.Event(), watchdog_seconds()
    thread = None
    if interval is not None:
        watchdog = Watchdog(watched)

        def watch(pause: float) -> None:
            while not over.wait(pause):
                watchdog.tick()

        thread = threading.Thread(
            target=watch, args=(interval / 3,), name="gguf-spec-watchdog", daemon=True
        )
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread:
            thread.join()
        notify("STOPPING=1")
