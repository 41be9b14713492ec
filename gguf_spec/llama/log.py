"""The log of llama.cpp: one per process.

llama.cpp calls back for each line, also while it decodes (`llama_set_n_threads` does). Where the
callback is a Python function, Python may handle Ctrl-C at its first bytecode, and ctypes drops the
KeyboardInterrupt. So while a model is loaded all lines are kept by a Python function. Afterwards
the callback is a method of `dict`, which runs no bytecode and keeps the last line of each level.
"""

from __future__ import annotations

import collections
import ctypes
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from .bindings import C

# llama.cpp's log level of a warning
_WARNING = 3

# whether the whole log goes to stderr
verbose = threading.Event()
_lines: collections.deque[str] = collections.deque(maxlen=20)
# level -> its last line after loading
_last: dict[int, bytes] = {}


class Log:
    """Last warnings and errors of llama.cpp since the last `clear`, for error messages."""

    def __iter__(self) -> Iterator[str]:
        """Iterate over the lines, oldest first."""
        return iter([*_lines, *map(_text, (_last[n] for n in sorted(_last) if n >= _WARNING))])

    @property
    def last(self) -> str:
        """The last line; empty if nothing was logged."""
        return next(reversed([*self]), "")

    def clear(self) -> None:
        """Drop all lines."""
        _lines.clear()
        _last.clear()


def keep_lines() -> None:
    """Keep all warnings and errors from now on, for the time in which a model is loaded."""
    C.llama_log_set(_lines_callback, None)


def add_lines(lines: Iterable[str]) -> None:
    """Add lines of llama.cpp's log in another process."""
    _lines.extend(lines)


def callback_of(loading: bool) -> Any:
    """Return the callback for other libraries that log like llama.cpp.

    Args:
        loading: As with `keep_lines`, otherwise as with `keep_last`.
    """
    return _lines_callback if loading or verbose.is_set() else _last_callback


def keep_last() -> None:
    """Keep the last line of each level from now on, without running Python code.

    With `verbose`, the whole log is written to stderr instead.
    """
    C.llama_log_set(_lines_callback if verbose.is_set() else _last_callback, None)


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").strip()


def _keep_line(level: int, line: bytes, _data: object) -> None:
    if verbose.is_set():
        os.write(2, line)
    if level >= _WARNING and line.strip():
        _lines.append(_text(line))


# kept here, as llama.cpp calls them until the process ends
_lines_callback = C.llama_log_callback(_keep_line)
# llama.cpp's third argument is left out: the caller passes it in a register, which is not read
_dict_callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p)(_last.__setitem__)
_last_callback = ctypes.cast(_dict_callback, C.llama_log_callback)

log = Log()
