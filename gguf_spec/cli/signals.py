"""Signals that end a command: handled before its first slow step, and while native code runs.

A handler in Python waits for the end of a native call, and process 1 of a container has no default
action. So a thread, which C wakes, ends the process where the main thread does not.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ExtensionFileLoader
from typing import Any

# Seconds until the process ends in any state.
_PATIENCE_S = 0.9
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows lacks the last one
# Signal -> when the main thread handled it last, to go on or to end in its own time.
_handled: dict[int, float] = {}
_started: list[int] = []


def start() -> None:
    """End this program by signals from now on, with 128 and the number as the exit code.

    Signals that are ignored, as after nohup, stay so. Further calls have no effect.
    """
    if _started or threading.current_thread() is not threading.main_thread():
        return
    _started.append(1)
    sys.unraisablehook = _dropped
    for number in _numbers():
        signal.signal(number, _interrupt if number == signal.SIGINT else _end)
    if sys.platform != "win32":
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=_watch, args=(read,), daemon=True).start()


def handled(number: int) -> None:
    """Note that the main thread handles a signal: it ends in its own time, if it does."""
    _handled[number] = time.monotonic()


@contextmanager
def handlers(handler: Any, *names: str) -> Iterator[None]:
    """Handle signals during a block, except for those that are ignored.

    Args:
        handler: Called with the number and the frame.
        names: Names of the signals; none for all that end a program.
    """
    before = {number: signal.signal(number, handler) for number in _numbers(*names)}
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """End the process at once during a block, in which nothing needs to be cleaned up."""
    with handlers(_leave):
        yield


def _numbers(*names: str) -> list[int]:
    found = [getattr(signal, name) for name in names or _NAMES if hasattr(signal, name)]
    return [one for one in found if signal.getsignal(one) != signal.SIG_IGN]


def _leave(number: int, _frame: object) -> None:
    os._exit(128 + number)


def _interrupt(number: int, frame: Any) -> None:
    while frame and not isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
        frame = frame.f_back
    if not frame:  # else C code, which initialises a module, may drop it: then the watch ends all
        handled(number)
    raise KeyboardInterrupt


def _end(number: int, _frame: object) -> None:
    for one in _numbers("SIGTERM", "SIGHUP"):
        signal.signal(one, lambda *_: None)  # the clean-up goes on; the watch limits it
    raise SystemExit(128 + number)


def _dropped(told: Any) -> None:
    """Send a signal again whose exception Python dropped, as it does in `__del__` and callbacks."""
    error, number = told.exc_value, int(signal.SIGINT)
    code = error.code if isinstance(error, SystemExit) else None
    if isinstance(code, int) and code - 128 in _numbers():
        number = code - 128
        signal.signal(number, _end)
    elif not isinstance(error, KeyboardInterrupt):
        sys.__unraisablehook__(told)
        return
    handled(number)  # the watch waits for the signal that is sent again
    threading.Timer(0.01, os.kill, (os.getpid(), number)).start()


def _watch(read: int) -> None:
    """End the process some time after a signal that the main thread does not handle."""
    numbers = _numbers()
    while data := os.read(read, 1):
        before = time.monotonic() - _PATIENCE_S
        time.sleep(_PATIENCE_S)
        if data[0] in numbers and _handled.get(data[0], -math.inf) < before:
            _flush()
            os._exit(128 + data[0])


def _flush() -> None:
    """Write what is printed so far, unless somebody writes."""

    def flush() -> None:
        with suppress(Exception):
            sys.stdout.flush()

    thread = threading.Thread(target=flush, daemon=True)
    thread.start()
    thread.join(0.05)
