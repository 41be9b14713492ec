"""llama.cpp's C functions, as `C`, those of ggml that it does not wrap, and its files.

Importing them from here sets the spin count first, and refuses a llama-cpp-python that does not fit
its library.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BindingError
from ..system.files import content_id
from .library import cpu_library, libraries, library_folder, load_own_libraries
from .openmp import spin_count_set
from .probe import driver_problem
from .structures import TESTED, misfit


def _version() -> str:
    try:
        return version("llama-cpp-python")
    except PackageNotFoundError:  # a frozen app without its metadata
        return "of unknown version"


if _crash := driver_problem():
    raise BindingError(
        _version(),
        f"llama.cpp {_crash}",
        TESTED,
        "update the driver of the GPU; to use the processor, in a clone scripts/run --ready-made, "
        f"elsewhere remove these files from {library_folder()}.",
    )
try:
    with spin_count_set():
        load_own_libraries()
        from llama_cpp import __version__, llama_cpp
# The library lacks a function that is declared; or it is missing, damaged or of another machine.
except (AttributeError, OSError, RuntimeError) as _error:
    _why = "its library cannot be loaded"
    if isinstance(_error, AttributeError):
        _why = "it does not fit its library"
    raise BindingError(_version(), f"{_why} ({_error})", TESTED) from _error

if _misfit := misfit(llama_cpp):
    raise BindingError(__version__, _misfit, TESTED)
C: Any = llama_cpp
# the folder of llama.cpp's shared libraries
LIBRARY_FOLDER = Path(C._base_path).absolute()
# the library with the CPU's kernels; None if it is unknown
CPU_LIBRARY = cpu_library(C._lib, LIBRARY_FOLDER)
if CPU_LIBRARY:
    CPU_LIBRARY.leave_out_llamafile()
_LIBRARIES = [*libraries(C._lib, LIBRARY_FOLDER, CPU_LIBRARY)]


def identities(files: Iterable[Path]) -> list[str]:
    """Return the names of files with hashes of their contents, wherever they lie."""
    stats = [(path, path.stat()) for path in files]
    return [f"{path.name} {_content(path, one.st_size, one.st_mtime_ns)}" for path, one in stats]


@cache
def _content(path: Path, n_bytes: int, _changed_at: int) -> str:
    if n_bytes > _LARGE:
        return content_id(path)
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def llama_parts() -> list[str]:
    """Return the identity of the llama.cpp build: its shared libraries, without unused kernels."""
    used = CPU_LIBRARY.path.name if CPU_LIBRARY else ""
    files = [path.resolve() for path in LIBRARY_FOLDER.iterdir() if path.is_file()]
    unused = [path for path in files if "ggml-cpu-" in path.name and path.name != used]
    return identities(sorted({*files} - {*unused}))


def call(name: str, *arguments: Any, result: Any = ctypes.c_void_p) -> Any:
    """Call a function of ggml; pointers are passed as numbers.

    Raises:
        AttributeError: This build of llama.cpp lacks it.
    """
    function = next(filter(None, (getattr(one, name, None) for one in _LIBRARIES)), None)
    if function is None:
        raise AttributeError(f"llama.cpp has no {name}")
    function.restype = result
    given = [
        ctypes.c_void_p(one) if isinstance(one, int) and one >= 1 << 20 else one
        for one in arguments
    ]
    return function(*given)


# bytes from which a library is identified by samples, such as one for a GPU
_LARGE = 32 << 20
# largest number of inputs of an operation
_MOST_INPUTS = 10


class _InitParams(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class Tensors:
    """Memory for some tensors and operations, which is freed with this object."""

    def __init__(self, n_bytes: int = 1 << 20, no_alloc: bool = False) -> None:
        self.context: int = call("ggml_init", _InitParams(n_bytes, None, no_alloc))

    def __del__(self) -> None:
        call("ggml_free", self.context, result=None)

    def new(self, kind: int, shape: Sequence[int], data: bytes | None = None) -> int:
        """Return a new tensor.

        Args:
            kind: ggml type.
            shape: Number of elements of each dimension, the fastest first.
            data: Its contents; None leaves them undefined.
        """
        sizes = (ctypes.c_int64 * len(shape))(*shape)
        tensor: int = call("ggml_new_tensor", self.context, kind, len(shape), sizes)
        if data is not None:
            ctypes.memmove(call("ggml_get_data", tensor), data, len(data))
        return tensor

    def compute(self, result: int, n_values: int, threads: int = 1) -> NDArray[np.float32]:
        graph = call("ggml_new_graph_custom", self.context, ctypes.c_size_t(_MOST_INPUTS), False)
        call("ggml_build_forward_expand", graph, result, result=None)
        call("ggml_graph_compute_with_ctx", self.context, graph, threads, result=ctypes.c_int)
        data = (ctypes.c_float * n_values).from_address(call("ggml_get_data", result))
        return np.array(data, dtype=np.float32)


def attention(
    tensors: Tensors,
    inputs: Sequence[int],
    scale: float,
    max_bias: float = 0.0,
    cap: float = 0.0,
) -> int:
    """Return the operation FLASH_ATTN_EXT.

    Args:
        inputs: Queries, keys, values and mask.
        max_bias: Largest slope of ALiBi; 0 for none.
        cap: Soft cap of the scores; 0 for none.
    """
    numbers = map(ctypes.c_float, (scale, max_bias, cap))
    return int(call("ggml_flash_attn_ext", tensors.context, *inputs, *numbers))
