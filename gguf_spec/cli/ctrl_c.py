"""Ctrl-C while models are loaded, and while an answer is generated."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .. import Stream


@contextlib.contextmanager
def ends_process() -> Iterator[None]:
    """End the process at once on Ctrl-C.

    A KeyboardInterrupt could arrive in llama.cpp's log callback, where Python discards it. Nothing
    needs to be cleaned up while models are loaded.
    """
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def cancels(stream: Stream) -> Iterator[None]:
    """Cancel a stream on Ctrl-C; a second one does not wait for the end of the round."""
    before = signal.getsignal(signal.SIGINT)

    def stop(_number: int, _frame: object) -> None:
        stream.cancel()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
