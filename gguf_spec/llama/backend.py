"""The llama.cpp library, one per process: its start, the features of its build, and safe calls."""

from __future__ import annotations

import _thread
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from ..errors import ClosedError, NotEnoughMemoryError
from ..system.process import renewed
from . import own_kernels
from .bindings import LIBRARY_FOLDER, C, call, llama_parts
from .devices import has_gpu, has_rpc
from .library import gpu_backends
from .log import keep_last, keep_lines, log
from .options import ContextOptions


@cache
def start_backend() -> None:
    """Start llama.cpp, once per process."""
    keep_lines()
    C.llama_backend_init()


def build_features() -> dict[str, str]:
    """Return the features of this build of llama.cpp, from its own report."""
    return features_of(C.llama_print_system_info().decode())


def features_of(system_info: str) -> dict[str, str]:
    """Parse llama.cpp's report of its build: `CPU : AVX2 = 1 | REPACK = 1 | `."""
    pairs = (part.rpartition(" : ")[2].partition("=") for part in system_info.split("|"))
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}


def has_llamafile() -> bool:
    """Return whether this is a build for a CPU that lacks `-DGGML_LLAMAFILE=OFF`.

    llamafile's products round a row differently in passes over several tokens.
    """
    return not offloads() and build_features().get("LLAMAFILE", "0") != "0"


def uses_gpu(options: ContextOptions) -> bool:
    """Return whether a model with these options may use a GPU of this machine."""
    return offloads() and options.placement.uses_gpu


def offloads() -> bool:
    """Return whether this build of llama.cpp can use a GPU."""
    return bool(C.llama_supports_gpu_offload()) and (not has_rpc() or has_gpu())


def gpu_problem() -> str:
    """Return why the libraries for GPUs of this build are of no use, by their own words.

    It is empty if there are none, or if one found a GPU.
    """
    return "" if offloads() else "; ".join(map(_why_unused, gpu_backends(LIBRARY_FOLDER)))


def _why_unused(path: Path) -> str:
    loaded = {
        call(
            "ggml_backend_reg_name",
            call("ggml_backend_reg_get", ctypes.c_size_t(i)),
            result=ctypes.c_char_p,
        )
        for i in range(call("ggml_backend_reg_count", result=ctypes.c_size_t))
    }
    name = path.name.partition("ggml-")[2].partition(".")[0].lower().encode()
    if name in {one.lower() for one in loaded}:
        return f"{path.name} finds no GPU"
    # llama.cpp tried when it was loaded, and kept silent
    keep_lines()
    found = call("ggml_backend_load", os.fsencode(path))
    keep_last()
    said = next((one for one in reversed([*log]) if path.name in one), "")
    reason = said.partition(f"{path}: ")[2] or said or "llama.cpp gave no reason"
    return f"{path.name} finds no GPU" if found else f"{path.name} cannot be loaded: {reason}"


def library_parts() -> list[str]:
    """Return the identity of the llama.cpp build and of the own kernels in use."""
    return [*llama_parts(), *own_kernels.parts()]


_stack_lock = renewed(threading.Lock())


def run_with_large_stack(n_bytes: int, call: Callable[[], int]) -> int:
    """Run `call`, which processes a text of `n_bytes`, with a stack that cannot overflow.

    For many vocabularies llama.cpp splits text with std::regex, which recurses for every character
    of a word, up to 500 bytes each: 20,000 spaces would abort the process.
    """
    if n_bytes < 1000:
        return call()
    if sys.is_finalizing():  # a thread would never run
        raise ClosedError
    result: list[int] = []
    thread = threading.Thread(target=lambda: result.append(call()))
    with _stack_lock:
        before = threading.stack_size()
        try:
            # macOS takes multiples of its page alone, 16 KiB
            threading.stack_size((1 << 20) + (-(-n_bytes // 64) << 16))
            thread.start()
        except (RuntimeError, ValueError) as error:  # Windows takes less than 256 MiB
            raise NotEnoughMemoryError(
                f"there is not enough memory to tokenise a text of {n_bytes:,} bytes.",
                n_bytes << 10,
            ) from error
        finally:
            threading.stack_size(before)
    thread.join()
    return result[0]


def without_signals(call: Callable[[], object]) -> None:
    """Run `call` where Python handles no signal: the main thread lets another one do it.

    llama.cpp may log during the call, and Python drops a KeyboardInterrupt inside a C callback.
    An interrupt takes effect when the call has ended.
    """
    is_main = threading.current_thread() is threading.main_thread()
    # at the end the thread would never run, and nobody waits for an interrupt
    if not is_main or sys.is_finalizing():
        call()
        return
    ended: list[bool] = []

    def run() -> None:
        try:
            call()
        finally:
            ended.append(True)

    def wait() -> None:  # `Thread.join` takes an interrupt for the end of the thread
        while not ended:
            time.sleep(0.0005)

    started: list[int] = []
    try:
        # one C call: Ctrl-C comes before it or after it, not between the start and the note of it
        started.extend(map(_thread.start_new_thread, (run,), ((),)))
        wait()
    except RuntimeError:  # no thread can be started, or the interpreter is shutting down
        call()
    except BaseException:
        if started:
            wait()
        raise
