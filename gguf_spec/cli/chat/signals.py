"""Signals of the chat: Ctrl-C, and requests to end the program."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ... import Turn


class Signals:
    """Signal handlers of the chat, for Ctrl-C and requests to end the program.

    A signal takes effect at once while the chat waits for a line. At other times the running
    operation ends first; an answer is cancelled after its round. After Ctrl-C the chat continues,
    unless it runs in a pipe. An editor must not be left by an exception at any of its instructions:
    some of them catch it, and then the chat would wait for ever for a terminal that is closed.

    Attributes:
        code: Exit code if a signal ended the program, otherwise 0.
    """

    def __init__(self, keep_on: bool) -> None:
        self.code = 0
        self._ending = [
            name
            for name in ("SIGTERM", "SIGHUP", *(() if keep_on else ("SIGINT",)))
            if hasattr(signal, name)
        ]
        self._before: dict[int, Any] = {}
        self._turn: Turn | None = None
        self._interrupt: Callable[[BaseException], object] | None = None
        self._came = False

    def wait(
        self, read: Callable[[], str | None], interrupt: Callable[[BaseException], object]
    ) -> str | None:
        """Call `read` and return its result; signals take effect at once.

        Args:
            read: Waits for a line.
            interrupt: Called by the signal handler; lets `read` raise an exception.

        Raises:
            KeyboardInterrupt, SystemExit: A signal arrived.
        """
        self._came, self._turn, self._interrupt = False, None, interrupt
        try:
            line = None if self.code else read()
        finally:
            self._interrupt = None
        if self.code:
            raise SystemExit(self.code)
        return line

    def open(self, start: Callable[[], Turn]) -> Turn:
        """Call `start` and return its turn, which signals cancel from now on.

        A signal that arrived since the last line, or arrives during the call, cancels it, too.
        """
        turn = self._turn = start()
        if self._came:
            turn.cancel()
        return turn

    @property
    def came(self) -> bool:
        """Whether a signal arrived since the last line."""
        return self._came

    def _arrived(self, number: int, _frame: object) -> None:
        if signal.Signals(number).name in self._ending:
            self.code = 128 + number
        if self._interrupt:
            self._interrupt(SystemExit(self.code) if self.code else KeyboardInterrupt())
            return
        self._came = True
        if self._turn:
            self._turn.cancel()

    def __enter__(self) -> Signals:
        for name in {*self._ending, "SIGINT"}:
            number = getattr(signal, name)
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
