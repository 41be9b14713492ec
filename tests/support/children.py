"""Programs that tests start: with default signals and a time limit; a failure shows their output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest

LIMIT_S = 180.0
_NUMBERS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGUSR1", "SIGUSR2")


def handle_ignored_signals() -> None:
    """Handle each signal that is ignored or blocked, as after nohup, `trap ''` or `&` in a script. Children inherit that, but no handler.

    What was to be survived still is, but for SIGINT: tests send it to their own process too.
    """
    for number in (getattr(signal, name) for name in _NUMBERS if hasattr(signal, name)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(
                number, signal.default_int_handler if number == signal.SIGINT else lambda *_: None
            )
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _word(word: str) -> bytes:
    """Return the bytes of an argument: a path as the system gave it, and a text in UTF-8, whatever the locale is."""
    with contextlib.suppress(UnicodeError):
        data = os.fsencode(word)
        data.decode("utf-8")  # where the locale is not UTF-8, only a path gives UTF-8 here
        return data
    return word.encode("utf-8", "surrogateescape")


class Child(subprocess.Popen):
    """A process that is killed when its time is over: reads from it end then, and `wait` and `communicate` fail."""

    def __init__(self, command: Any, *, limit_s: float = LIMIT_S, **options: Any) -> None:
        super().__init__(
            command if os.name == "nt" else [_word(str(one)) for one in command], **options
        )
        self._own_group = bool(options.get("start_new_session"))
        self._limit_s, self._overdue, self._asked = limit_s, False, False
        self._watch = threading.Timer(limit_s, self._end)
        self._watch.daemon = True
        self._watch.start()

    def wait(self, timeout: float | None = None) -> int:
        code = super().wait(timeout)
        self._watch.cancel()
        if not self._asked:
            self.check()
        return code

    def communicate(
        self, input: Any = None, timeout: float | None = None, said: tuple[Any, ...] = ()
    ) -> tuple[Any, Any]:
        self._asked = True  # it waits too, before it knows what was printed
        try:
            read = super().communicate(input, timeout or self._limit_s + 10)
        except subprocess.TimeoutExpired as error:
            self.kill()
            super().wait()
            raise AssertionError(
                f"{self.args} took more than {error.timeout:.0f} s; it had printed: {error.output} {error.stderr}"
            ) from None
        finally:
            self._asked = False
        self.check(*(said or read))
        return read

    def check(self, *said: Any) -> None:
        """Fail if the time was over, with what was printed.

        Raises:
            AssertionError: It was killed.
        """
        if self._overdue:
            self._overdue = False
            raise AssertionError(
                f"{self.args} took more than {self._limit_s:.0f} s and was killed; it had printed: {said}"
            )

    def _end(self) -> None:
        if self.poll() is None:
            self._overdue = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL) if self._own_group else self.kill()


def run(
    command: Any,
    *,
    input: Any = None,
    capture_output: bool = False,
    check: bool = False,
    limit_s: float = LIMIT_S,
    **options: Any,
) -> subprocess.CompletedProcess:
    """Do as `subprocess.run`, with a limit.

    Raises:
        AssertionError: It took too long, or failed and `check` is set; with what it printed.
    """
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Child(command, limit_s=limit_s, **options) as child:
        try:
            out, err = child.communicate(input)
        except BaseException:
            child.kill()
            raise
    if check and child.returncode:
        raise AssertionError(f"{child.args} ended with {child.returncode}: {out} {err}")
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def at_terminal(
    command: Any,
    *,
    typed: bytes = b"",
    ctrl_c_at: bytes | None = None,
    size: tuple[int, int] | None = None,
    **options: Any,
) -> tuple[int, bytes]:
    """Run a command at a pseudo-terminal of its own; return its exit code and all bytes it showed.

    Args:
        command: The command.
        typed: What is typed ahead.
        ctrl_c_at: Send SIGINT to the command and its children when this is seen.
        size: Rows and columns.
        options: For `Child`.
    """
    import fcntl
    import pty
    import struct
    import termios

    try:
        here, there = pty.openpty()
    except OSError as error:  # no /dev/pts, as in a chroot
        pytest.skip(f"this system has no terminal device: {error}")
    if size:
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    child = Child(
        command, stdin=there, stdout=there, stderr=there, start_new_session=True, **options
    )
    os.close(there)
    os.write(here, typed)
    seen = _screen_of(here, ctrl_c_at, lambda: os.killpg(child.pid, signal.SIGINT))
    child.communicate(said=(seen,))
    return child.returncode, seen


def _screen_of(here: int, until: bytes | None, then: Callable[[], object]) -> bytes:
    """Return all bytes that come out of a pseudo-terminal before its other end is closed, and close it.

    Args:
        here: Its file descriptor.
        until: Bytes to wait for.
        then: Called once when they are there.
    """
    seen = b""
    while True:
        try:
            data = os.read(here, 65536)
        except OSError:  # Linux: the other end was closed
            break
        if not data:
            break
        seen += data
        if until and until in seen:
            until = None
            then()
    os.close(here)
    return seen
