"""A child process that computes for this one, and is ended where it takes too long.

A regular expression keeps the lock of Python until it returns: no thread can end it, and all others
wait. The child is started by the first call, answers one call after the other, and ends with this
process.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from . import subprogram
from .process import OfOneProcess

T = TypeVar("T")
# Bytes of memory of the child, where the system can limit it.
MEMORY = 1 << 30


class HelperError(Exception):
    """A call took too long, or too much memory; the message has no subject."""


class Helper(OfOneProcess):
    """Calls functions in a child process."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def _give_up(self) -> object:
        kept, self._process, self._lock = self._process, None, threading.Lock()
        return kept

    def call(self, seconds: float, function: Callable[..., T], *arguments: Any) -> T:
        """Return the result of a function, which must be that of a module; it raises its errors.

        Calls of several threads wait for each other. Where no child can be started, the function
        runs in this process, and is not cut off.

        Raises:
            HelperError: It takes more time or memory than it may; the child is ended.
        """
        if subprogram.refusal():
            return function(*arguments)
        with self._lock:
            task = pickle.dumps((seconds, function, arguments))
            is_good, result = self._answer(seconds, task)
        if not is_good:
            raise result
        value: T = result
        return value

    def _answer(self, seconds: float, task: bytes) -> tuple[bool, Any]:
        process = self._process = self._process or _started()
        assert process.stdin and process.stdout
        is_over = False

        def stop() -> None:
            nonlocal is_over
            is_over = True
            _kill(process)

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        try:
            process.stdin.write(task)
            process.stdin.flush()
            process.stdout.read(1)  # it has imported what it needs
            timer.start()
            answer: tuple[bool, Any] = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            self._end()
            what = f"more than {seconds:g} s" if is_over else "too much memory"
            raise HelperError(f"takes {what}") from None
        except BaseException:  # what comes next from this child is no answer to the next call
            self._end()
            raise
        finally:
            timer.cancel()
        return answer

    def _end(self) -> None:
        process, self._process = self._process, None
        if process:
            _kill(process)
            with contextlib.suppress(OSError), process:  # closes the pipes, and waits
                pass

    def close(self) -> None:
        """End the child, also inside of a call; a later call starts another one."""
        if process := self._process:
            _kill(process)
        with self._lock:
            self._end()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a child, and what its functions have started."""
    import psutil

    started = list[Any]()
    with contextlib.suppress(psutil.Error):
        started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for one in started:
        with contextlib.suppress(psutil.Error):
            one.kill()


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        subprogram.command(__name__),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )


def main() -> None:
    """Answer calls from stdin at stdout, until stdin ends."""
    _limit_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end ends stdin
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints is no answer
    while True:
        try:
            seconds, function, arguments = pickle.load(calls)
        except EOFError:
            return
        if hasattr(signal, "alarm"):  # ends this process where the parent is no longer there
            signal.alarm(math.ceil(seconds) + 1)
        answers.write(b".")
        answers.flush()
        try:
            answer = pickle.dumps((True, function(*arguments)))
        except MemoryError:
            answer = pickle.dumps((False, HelperError("takes too much memory")))
        except Exception as error:
            answer = pickle.dumps((False, error))
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        answers.write(answer)
        answers.flush()


def _limit_memory() -> None:
    if sys.platform == "win32":
        return
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


if __name__ == "__main__":
    # The errors in its answers have the name of the module.
    importlib.import_module("gguf_spec.system.helper").main()
