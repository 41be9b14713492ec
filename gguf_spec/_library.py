"""The llama.cpp library as a whole, of which a process has one: its log, what its build can do, and how it is called safely."""

from __future__ import annotations

import collections
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TypeAlias

from ._exact_kernels import switch_tiles
from ._gguf import Header
from ._llama import C
from ._needs import features_of
from .errors import LoadCancelledError, NotEnoughMemoryError

_WARNING = 3

log: collections.deque[str] = collections.deque(maxlen=20)
verbose = threading.Event()  # llama.cpp has one log a process


def _keep_log(level: int, text: bytes, _data: object) -> None:
    """Keep what llama.cpp warns of, for error messages; write all of it to stderr when asked to."""
    if verbose.is_set():
        os.write(2, text)
    if level >= _WARNING and text.strip():
        log.append(text.decode("utf-8", errors="replace").strip())


_log_callback = C.llama_log_callback(_keep_log)  # llama.cpp calls it as long as the process lives


def start_backend(headers: Iterable[Header]) -> None:
    """Start llama.cpp, once a process, with the kernels that suit the first models."""
    switch_tiles(headers)
    _start()


@cache
def _start() -> None:
    C.llama_log_set(_log_callback, ctypes.c_void_p(0))
    C.llama_backend_init()


def build_features() -> dict[str, str]:
    """Return what this build of llama.cpp can do, by its own words."""
    return features_of(C.llama_print_system_info().decode())


def offloads() -> bool:
    """Return whether this build of llama.cpp can use a GPU, whose memory is not known here."""
    return bool(C.llama_supports_gpu_offload())


def library_parts() -> list[str]:
    """Return what tells builds of llama.cpp apart: its shared libraries, their sizes and times."""
    files = sorted(path for path in (Path(C.__file__).parent / "lib").iterdir() if path.is_file())
    return [f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]


_stack_lock = threading.Lock()


def on_deep_stack(n_bytes: int, call: Callable[[], int]) -> int:
    """Run `call`, which reads a text of `n_bytes`, where it cannot overflow the stack.

    For many vocabularies llama.cpp splits text by std::regex, which recurses for every character of a word, up to 500 bytes each:
    20,000 spaces would end the process.
    """
    if n_bytes < 1000:
        return call()
    result: list[int] = []
    thread = threading.Thread(target=lambda: result.append(call()))
    with _stack_lock:
        before = threading.stack_size()
        try:
            threading.stack_size((1 << 20) + (n_bytes >> 2 << 12))
            thread.start()
        except RuntimeError as error:
            raise NotEnoughMemoryError(f"there is no memory to read a text of {n_bytes:,} bytes.", n_bytes << 10) from error
        finally:
            threading.stack_size(before)
    thread.join()
    return result[0]


def apart(call: Callable[[], object]) -> None:
    """Run `call` in a thread of its own, where no signal is handled: llama.cpp may log, and Python drops what Ctrl-C raises in what C calls.

    Ctrl-C takes effect when it has ended.
    """
    ended: list[bool] = []

    def run() -> None:
        try:
            call()
        finally:
            ended.append(True)

    def wait() -> None:  # `Thread.join` takes an interrupt for the end of the thread
        while not ended:
            time.sleep(0.0005)

    try:
        threading.Thread(target=run, name="gguf-spec-apart").start()
    except RuntimeError:  # no thread can be had, or the program ends
        call()
        return
    try:
        wait()
    except BaseException:
        wait()
        raise


Progress: TypeAlias = Callable[[float], object]
"""Called with the share of the weights that is loaded, 0 to 1; to return False cancels."""


class Watch:
    """Calls `progress` from llama.cpp, which drops what Python raises there."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._cancelled = progress, False
        self._raised: BaseException | None = None

    def tell(self, share: float, _data: object) -> bool:
        """What llama.cpp calls; to return False ends the loading."""
        try:
            if self._progress:
                self._cancelled = self._progress(share) is False
        except BaseException as error:  # raised again by `check`
            self._raised = error
        return not (self._cancelled or self._raised)

    def check(self, path: Path) -> None:
        """Raise what `progress` raised, or LoadCancelledError where it cancelled."""
        if self._raised:
            raise self._raised
        if self._cancelled:
            raise LoadCancelledError(path.name)
