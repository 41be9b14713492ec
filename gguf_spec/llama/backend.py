"""The llama.cpp library, one per process: its start, the features of its build, and safe calls."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from ..errors import LoadCancelledError, NotEnoughMemoryError
from ..gguf.validation import Header
from . import own_kernels
from .bindings import C, llama_parts
from .log import keep_lines
from .memory import (
    ample_parallel,
    check_memory,
    features_of,
    fitting_snapshots,
    usual_prefix_memory,
)
from .options import ContextOptions
from .rpc import has_gpu, has_rpc

# Snapshots of a recurrent state that are kept at most. Each lengthens a pass by about 1 %; longer
# drafts use a copy of the state.
_SNAPSHOTS = 8


@cache
def start_backend() -> None:
    """Start llama.cpp, once per process."""
    keep_lines()
    C.llama_backend_init()


def build_features() -> dict[str, str]:
    """Return the features of this build of llama.cpp, from its own report."""
    return features_of(C.llama_print_system_info().decode())


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


def check_room(models: Sequence[tuple[Header, ContextOptions]]) -> None:
    """Reject models that do not fit into memory together, before any of them is loaded.

    Models that may use a GPU are not checked.

    Args:
        models: Headers and options of the target and of its draft, if there is one.

    Raises:
        NotEnoughMemoryError: The models do not fit.
    """
    if not any(uses_gpu(options) for _, options in models):
        check_memory(models, build_features())


def has_room(models: Sequence[tuple[Header, ContextOptions]]) -> bool:
    """Return whether `check_room` accepts the models."""
    try:
        check_room(models)
    except NotEnoughMemoryError:
        return False
    return True


def parallel_in_room(models: Sequence[tuple[Header, ContextOptions]], most: int) -> int | None:
    """Return for how many requests at once there is ample memory, at least 1 and at most `most`.

    It is None if that is unknown, as for models that may use a GPU.

    Args:
        models: As for `check_room`.
        most: The largest number to return.
    """
    if any(uses_gpu(options) for _, options in models):
        return None
    return ample_parallel(models, build_features(), most)


def prefix_memory_in_room(models: Sequence[tuple[Header, ContextOptions]]) -> int:
    """Return the memory for kept prefixes if the user gives none, in bytes.

    Args:
        models: As for `check_room`.
    """
    return usual_prefix_memory(models, build_features())


def with_snapshots(
    models: Sequence[tuple[Header, ContextOptions]], k: int
) -> list[tuple[Header, ContextOptions]]:
    """Return the models with options for snapshots of the target's state.

    They serve drafts of up to `k` tokens, as far as they fit into memory. Models that may use a GPU
    are not checked.

    Args:
        models: As for `check_room`.
        k: Longest draft that is wanted, in tokens.
    """
    (header, options), *others = models
    wanted = min(k, _SNAPSHOTS) if options.parallel == 1 and header.facts.has_snapshots else 0
    asked = [(header, replace(options, n_snapshots=wanted)), *others]
    n = wanted if uses_gpu(options) or not wanted else fitting_snapshots(asked, build_features())
    return [(header, replace(options, n_snapshots=n)), *others]


def library_parts() -> list[str]:
    """Return the identity of the llama.cpp build and of the own kernels in use."""
    return [*llama_parts(), *own_kernels.parts()]


_stack_lock = threading.Lock()


def run_with_large_stack(n_bytes: int, call: Callable[[], int]) -> int:
    """Run `call`, which processes a text of `n_bytes`, with a stack that cannot overflow.

    For many vocabularies llama.cpp splits text with std::regex, which recurses for every character
    of a word, up to 500 bytes each: 20,000 spaces would abort the process.
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
            raise NotEnoughMemoryError(
                f"there is not enough memory to tokenise a text of {n_bytes:,} bytes.",
                n_bytes << 10,
            ) from error
        finally:
            threading.stack_size(before)
    thread.join()
    return result[0]


def apart(call: Callable[[], object]) -> None:
    """Run `call` in a separate thread, where Python handles no signal.

    llama.cpp may log during the call, and Python drops a KeyboardInterrupt inside a C callback.
    An interrupt takes effect when the call has ended.
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


class LoadProgress:
    """Progress callback for llama.cpp.

    Keeps exceptions, which llama.cpp would drop.
    """

    def __init__(self, progress: Callable[[float], object] | None) -> None:
        """Set the callback.

        Args:
            progress: Called with the loaded share of the weights, 0 to 1; returning False cancels.
        """
        self._progress, self._cancelled = progress, False
        self._raised: BaseException | None = None

    def tell(self, share: float, _data: object) -> bool:
        """Report progress to the caller; called by llama.cpp.

        A result of False stops the loading.
        """
        try:
            if self._progress:
                self._cancelled = self._progress(share) is False
        except BaseException as error:  # raised again by `check`
            self._raised = error
        return not (self._cancelled or self._raised)

    def check(self, path: Path) -> None:
        """Raise the exception of `progress`, or LoadCancelledError if it cancelled."""
        if self._raised:
            raise self._raised
        if self._cancelled:
            raise LoadCancelledError(path.name)
