"""The log of llama.cpp, one per process, and the errors that it explains.

llama.cpp calls back for each line, also while it decodes (`llama_set_n_threads` does). Where the
callback is a Python function, Python may handle Ctrl-C at its first bytecode, and ctypes drops the
KeyboardInterrupt. So while a model is loaded all lines are kept by a Python function. Afterwards
the callback is a method of `dict`, which runs no bytecode and keeps the last line of each level.
"""

from __future__ import annotations

import collections
import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..errors import (
    ContextFailedError,
    GgufSpecError,
    InvalidOptionError,
    NotEnoughMemoryError,
    Option,
    Text,
    UnsupportedModelError,
)
from ..gguf.validation import Header
from ..system.machine import available_bytes
from .bindings import C
from .options import Adapter, ContextOptions

# llama.cpp's log level of a warning
_WARNING = 3
# part of a line that names the file, but no reason
_FILE = "failed to load model from"
# a hint, and the option that shows llama.cpp's log
_SHOWN = "{}[; {verbose=True} shows llama.cpp's log]."


class Switch:
    """What may be set and cleared. An Event has a lock: Ctrl-C in its code leaves it taken."""

    _is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set


# whether the whole log goes to stderr
verbose: Switch = Switch()
_lines: collections.deque[str] = collections.deque(maxlen=20)
# level -> its last line after loading
_last: dict[int, bytes] = {}


class Log:
    """Last warnings and errors of llama.cpp since the last `clear`, for error messages."""

    def __iter__(self) -> Iterator[str]:
        return iter([*_lines, *map(_text, (_last[n] for n in sorted(_last) if n >= _WARNING))])

    @property
    def last(self) -> str:
        """The last line; empty if nothing was logged."""
        return next(reversed([*self]), "")

    def clear(self) -> None:
        _lines.clear()
        _last.clear()


def keep_lines() -> None:
    """Keep all warnings and errors from now on, for the time in which a model is loaded."""
    C.llama_log_set(lines_callback, None)


def add_lines(lines: Iterable[str]) -> None:
    """Add lines of llama.cpp's log in another process."""
    _lines.extend(lines)


def callback_of(loading: bool) -> Any:
    """Return the callback for other libraries that log like llama.cpp.

    Args:
        loading: As with `keep_lines`, otherwise as with `keep_last`.
    """
    return lines_callback if loading or verbose.is_set() else last_callback


def keep_last() -> None:
    """Keep the last line of each level from now on, without running Python code.

    With `verbose`, the whole log is written to stderr instead.
    """
    C.llama_log_set(lines_callback if verbose.is_set() else last_callback, None)


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").strip()


def _keep_line(level: int, line: bytes, _data: object) -> None:
    if verbose.is_set():
        os.write(2, line)
    if level >= _WARNING and line.strip():
        _lines.append(_text(line))


# kept here, as llama.cpp calls them until the process ends
lines_callback: Callable[..., object] = C.llama_log_callback(_keep_line)
# llama.cpp's third argument is left out: the caller passes it in a register, which is not read
_dict_callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p)(_last.__setitem__)
last_callback: Callable[..., object] = ctypes.cast(_dict_callback, C.llama_log_callback)

log: Log = Log()


def _reason(log: Iterable[str]) -> str:
    """Return the most informative line of llama.cpp's log, without the function name."""
    prefixes = ("llama_", "common_", "ggml_", "gguf_")
    lines = [line.split(": ", 1)[-1] if line.startswith(prefixes) else line for line in log]
    telling = [one for one in lines if "error loading model" in one and _FILE not in one]
    line = next(iter(telling or lines), "llama.cpp gave no reason")
    return line.removeprefix("error loading model: ").rstrip(".")


def too_large(what: str, needed: int | None = None) -> NotEnoughMemoryError:
    return NotEnoughMemoryError(what, needed, available_bytes())


def load_error(header: Header, log: Iterable[str]) -> GgufSpecError:
    reason, name = _reason(log), header.path.name
    if "alloc" in reason or "memory" in reason:
        return too_large(f"{name} does not fit into memory ({reason}).", header.file_bytes)
    if "unknown model architecture" in reason:
        what = f"{name} has the architecture {header.architecture!r}, which llama.cpp does not "
        supported = "use a model of an architecture that llama-cpp-python supports"
        hint = f"{supported}, or upgrade llama-cpp-python."
        return UnsupportedModelError(header.path, f"{what}support.", hint)
    with_log = Text(_SHOWN, "download or convert it again")
    return UnsupportedModelError(header.path, f"llama.cpp cannot load {name}: {reason}.", with_log)


def not_locked(header: Header, log: Iterable[str]) -> GgufSpecError:
    """Return the error for weights that the system did not lock in memory."""
    reason = _reason(log).removeprefix("warning: ")
    allowed = f"False: {header.path.name} cannot be locked in memory ({reason})"
    return InvalidOptionError(
        "mlock", True, allowed, "raise the limit of locked memory (ulimit -l)."
    )


def context_error(options: ContextOptions, n_ctx: int, log: Iterable[str]) -> GgufSpecError:
    log = list(log)
    if any("alloc" in line or "memory" in line for line in log):
        return too_large(f"there is not enough memory for a context of {n_ctx:,} tokens.")
    prefix = "draft_" if options.drafts else ""
    return ContextFailedError(
        n_ctx,
        Option(f"{prefix}kv_type", options.kv_type),
        Option(f"{prefix}flash_attention", options.flash_attention),
        _reason(log),
    )


def adapter_error(adapter: Adapter, log: Iterable[str]) -> GgufSpecError:
    name = adapter.path.name
    mark = "lora adapter: "
    found = [line.split(mark, 1)[-1] for line in log if "failed to apply " + mark in line]
    lines = found or ["llama.cpp gave no reason"]
    reason = lines[-1].rstrip(".")
    if "alloc" in reason:
        return too_large(f"the adapter {name} does not fit into memory ({reason}).")
    hint = Text(_SHOWN, "use an adapter that was made for this model")
    what = f"llama.cpp cannot use the adapter {name}: {reason}."
    return UnsupportedModelError(adapter.path, what, hint)
