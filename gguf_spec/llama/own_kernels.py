"""Kernels of this package, in place of those of llama.cpp: a library of `gguf_spec/kernels`.

It enters itself into a list of llama.cpp, which then asks it first for each matrix product with
weights and for flash attention on the CPU. A row of its results has the same bits in passes of any
width, at any depth and with any number of threads. The library is made for one version of ggml and
for x86-64 processors with AVX2. The first model of a process decides whether it is used.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InvalidOptionError
from ..options import checked
from . import selftest
from .bindings import LIBRARY_FOLDER, identities
from .ggml import Tensors, attention

# environment variable with the value of the option `kernels`
_SWITCH = "GGUF_SPEC_KERNELS"
# environment variable with the path of another library, for tests
_OTHER_LIBRARY = "GGUF_SPEC_KERNELS_LIBRARY"
# ggml types of matrices with own kernels: F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K,
# Q5_K, Q6_K, IQ4_NL, BF16, MXFP4
TYPES = frozenset({0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 30, 39})

# how to get the library and the version of llama-cpp-python that it is made for
_SET_UP = "in a clone, with a C++ compiler: scripts/run, or pip install . there."


class Kernels(NamedTuple):
    """Kernels of this process.

    Attributes:
        name: Instruction set of the own kernels; empty if those of llama.cpp are in use.
        reason: Why they are; empty if the own ones are in use.
        todo: How to get the own ones; empty if nothing is to be done.
    """

    name: str
    reason: str = ""
    todo: str = ""


# ggml types of caches without blocks of 32 values: F32, F16, BF16
_WITHOUT_BLOCKS = {0, 1, 30}
# elements; the library is not asked for longer heads
_LONGEST_HEAD = 1024

_lock = threading.Lock()
# the decision of this process; empty before it
_decided: list[Kernels] = []


def start(asked: str = "auto") -> Kernels:
    """Use the own kernels from now on if they work here, and return the kernels of this process.

    Args:
        asked: The option `kernels`: `stock` for llama.cpp's kernels, or an instruction set. `auto`
            takes the value of the environment variable, otherwise the best kernels.

    Raises:
        InvalidOptionError: The value is unknown, or the process uses other kernels already.
    """
    wanted = checked("kernels", asked if asked != "auto" else os.environ.get(_SWITCH, "auto"))
    with _lock:
        if not _decided:
            _decided.append(_start(wanted))
    found = _decided[0]
    if wanted not in ("auto", found.name or "stock"):
        why = found.reason or f"the first model of this process chose {found.name}"
        raise InvalidOptionError("kernels", wanted, f"{found.name or 'stock'} or auto here: {why}")
    return found


def in_use() -> Kernels:
    """Return the kernels of this process; those of llama.cpp before `start`."""
    return _decided[0] if _decided else Kernels("", "no model was loaded yet")


def parts() -> list[str]:
    """Return the identity of the own kernels, for the names of measurement files."""
    name = in_use().name
    return [name, *identities([path_of_library()])] if name else []


def path_of_library() -> Path:
    """Return where the library is expected."""
    usual = Path(__file__).parents[1] / "kernels" / "libgguf_spec_kernels.so"
    return Path(os.environ.get(_OTHER_LIBRARY) or usual)


def _start(wanted: str) -> Kernels:
    if wanted == "stock":
        return Kernels("", "switched off")
    if platform.machine().lower() not in ("x86_64", "amd64") or sys.platform != "linux":
        return Kernels("", "they are for Linux on x86-64 processors")
    if not path_of_library().is_file():
        return Kernels("", "the library was not compiled", _SET_UP)
    if problem := selftest.kernels_problem(path_of_library(), wanted):
        file = selftest.kernels_file(path_of_library(), wanted)
        return Kernels("", problem, f"{_SET_UP} To repeat the self-test, remove {file}.")
    return enter(wanted)


def enter(wanted: str) -> Kernels:
    """Load the library and enter it into llama.cpp's list, without a self-test."""
    try:
        start = library().gguf_spec_kernels_start
    except (OSError, AttributeError) as error:
        return Kernels("", f"the library cannot be loaded: {error}")
    start.restype, name = ctypes.c_char_p, "" if wanted == "auto" else wanted
    text = start(os.fsencode(LIBRARY_FOLDER), name.encode()).decode()
    return Kernels("", text[1:]) if text.startswith("!") else Kernels(text)


@cache
def library() -> Any:
    """Return the loaded library."""
    return ctypes.CDLL(str(path_of_library()))


@contextmanager
def switched_off() -> Iterator[None]:
    """Use llama.cpp's kernels in this block, in all contexts of the process."""
    library().gguf_spec_kernels_switch(0)
    try:
        yield
    finally:
        library().gguf_spec_kernels_switch(3)


def n_computed(attentions: bool) -> int:
    """Return the number of products, or of attentions, that the library computed so far."""
    count = library().gguf_spec_kernels_count
    count.restype = ctypes.c_long
    return int(count(int(attentions)))


def takes_attention(key_length: int, value_length: int, kv_kind: int) -> bool:
    """Return whether the own kernels compute flash attention with these heads.

    Args:
        key_length: Length of a key of one head.
        value_length: Length of a value of one head.
        kv_kind: ggml type of the cache.
    """
    return bool(in_use().name) and _library_takes(key_length, value_length, kv_kind)


@cache
def _library_takes(key_length: int, value_length: int, kv_kind: int) -> bool:
    """Return whether the library counts an operation of its own when one is computed."""
    lengths, has_blocks = (key_length, value_length), kv_kind not in _WITHOUT_BLOCKS
    if any(not 0 < n <= _LONGEST_HEAD or (has_blocks and n % 32) for n in lengths):
        return False
    tensors, n, n_before = Tensors(), 32, n_computed(attentions=True)
    inputs = [tensors.new(0, (key_length, 1, 1))]
    inputs += [tensors.new(kv_kind, (length, n, 1)) for length in lengths]
    inputs.append(tensors.new(1, (n, 1), bytes(2 * n)))
    tensors.compute(attention(tensors, inputs, 1.0), value_length)
    return n_computed(attentions=True) > n_before
