"""Kernels on a CPU: which ones this process uses.

The own kernels are a library of `gguf_spec/kernels`. It enters itself into a list of llama.cpp,
which then asks it first for each matrix product with weights and for flash attention on the CPU.
The library is made for two versions of ggml, whose structures it looks up before it enters itself,
and for processors with AVX2 (x86-64) or with instructions for dot products (ARM). The first model
of a process decides whether it is used. On Windows it enters only a llama.cpp that MinGW or clang
for MinGW compiled, on macOS only where its instruction set is named: nobody ran it there.

Some builds of llama.cpp crash, or could compute wrong results, in the kernels that repack weights
for a CPU (AMX above all). If a probe fails, models are loaded with `use_extra_bufts=False`, which
is slower but correct.
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
from ..gguf.validation import Header
from ..options import checked
from ..system import subprogram
from ..system.files import this_machine
from ..system.machine import is_arm, is_x86
from ..system.process import renewed
from . import openmp, probe
from .bindings import CPU_LIBRARY, C, Tensors, attention, identities
from .options import KV_TYPES, ContextOptions, head_sizes

# environment variable with the value of the option `kernels`
_SWITCH = "GGUF_SPEC_KERNELS"
# environment variable with the path of another library, for tests
_OTHER_LIBRARY = "GGUF_SPEC_KERNELS_LIBRARY"
# ggml types of matrices with own kernels: F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K,
# Q5_K, Q6_K, IQ4_NL, BF16, MXFP4
TYPES = frozenset({0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 30, 39})

# beginning of the library's reason on a processor without the instructions
_LACKS = "this processor"
# beginning of its reason beside a llama.cpp with other structures
_MISFIT = "they do not fit this llama.cpp"
# functions that llama.cpp's CPU library calls -> those of ours that it calls to keep threads
_OF_THREADS = {
    "ggml_barrier": "gguf_spec_kernels_barrier",
    "ggml_graph_plan": "gguf_spec_kernels_plan",
    "pthread_cond_wait": "gguf_spec_kernels_wait",
}
# endings of the library's name, by `sys.platform`
_ENDINGS = {"linux": "so", "darwin": "dylib", "win32": "dll"}
# the list of llama.cpp that it enters itself into, as all compilers but MSVC name it
_LIST = "_Z39ggml_backend_cpu_get_extra_buffer_typesv"
# how to get the library and the version of llama-cpp-python that it is made for
_SET_UP = "in a clone, with a C++ compiler: scripts/run, or pip install . there."
_BY_HAND = "in a clone, with a C++ compiler for {}: python scripts/build/build_kernels.py."
_FITTING = (
    "use the llama.cpp that gguf-spec sets up: in a clone, scripts/run, or pip install . there."
)


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

# Largest accepted change of a logit. Repacked kernels add the same products in another order:
# logits moved by 0.0 with AVX2, and rounding cannot move them by more than a few hundredths
# elsewhere. A broken kernel is off by whole units (the logits of a row spread by 2 to 3).
_TOLERANCE = 0.5
# Time limit of a self-test in seconds.
_PATIENCE_S = 300

_lock = renewed(threading.Lock())
# the decision of this process; empty before it
decided: list[Kernels] = []
# not empty if llama.cpp's threads are kept
_keeps_threads: list[bool] = []


def start(asked: str = "auto") -> Kernels:
    """Use the own kernels from now on if they work here, and return the kernels of this process.

    Args:
        asked: The option `kernels`: `stock` for llama.cpp's kernels, or an instruction set. `auto`
            takes those that the process has, for its first model the value of the environment
            variable, otherwise the best kernels.

    Raises:
        InvalidOptionError: The value is unknown, or the process uses other kernels already.
    """
    with _lock:
        if decided and asked == "auto":
            return decided[0]
        wanted = checked("kernels", asked if asked != "auto" else os.environ.get(_SWITCH, "auto"))
        found = decided[0] if decided else _start(wanted)
        usable = found.name or "stock"
        if wanted not in ("auto", usable):
            why = found.reason or f"the first model of this process chose {found.name}"
            raise InvalidOptionError("kernels", wanted, f"{usable} or auto here: {why}")
        decided[:] = [found]
    return found


def in_use() -> Kernels:
    """Return the kernels of this process; those of llama.cpp before `start`."""
    return decided[0] if decided else Kernels("", "no model was loaded yet")


def parts() -> list[str]:
    """Return the identity of the own kernels, for the names of measurement files."""
    name = in_use().name
    return [name, *identities([path_of_library()])] if name else []


def path_of_library() -> Path:
    """Return where the library is expected."""
    name = f"libgguf_spec_kernels.{_ENDINGS.get(sys.platform, 'so')}"
    usual = Path(__file__).parents[1] / "kernels" / name
    return Path(os.environ.get(_OTHER_LIBRARY) or usual)


def _start(wanted: str) -> Kernels:
    stock = Kernels("", "switched off")
    there, has_list = path_of_library().is_file(), not CPU_LIBRARY or CPU_LIBRARY.has(_LIST)
    if missing := why_missing(sys.platform, platform.machine(), wanted, there, has_list):
        return stock if wanted == "stock" else missing
    if not CPU_LIBRARY:
        return Kernels("", "llama.cpp's CPU kernels are in an unknown library")
    tested = "auto" if wanted == "stock" else wanted
    problem = library_problem(tested, quietly=wanted == "stock")
    if can_keep_threads(problem):
        keep_threads()
    if wanted == "stock":
        return stock
    return failed(problem, tested) if problem else enter(wanted)


def why_missing(
    system: str, machine: str, wanted: str, there: bool, has_list: bool
) -> Kernels | None:
    """Return why there are no own kernels on a machine, as `sys.platform` and `platform` name it.

    None if the library is there, which may work.

    Args:
        wanted: The option `kernels`.
        there: Whether the library is there.
        has_list: Whether llama.cpp has the list by the name that the library looks for.
    """
    known = is_x86(machine) or (is_arm(machine) and system != "win32")
    if system not in _ENDINGS or not known:
        return Kernels("", "they are for x86-64, and for ARM with Linux or macOS")
    if system == "darwin" and wanted in ("auto", "stock"):
        names = "neoni8mm or neondot" if is_arm(machine) else "avx2"
        return Kernels("", f"on macOS nobody ran the own ones; the option kernels tries {names}")
    if system == "win32" and not has_list:
        return Kernels("", "MSVC compiled it, the own ones are for a llama.cpp by MinGW or clang")
    if there:
        return None
    compiler = {"win32": "MinGW", "darwin": "macOS"}.get(system)
    cure = _BY_HAND.format(compiler) if compiler else _SET_UP
    return Kernels("", "the library was not compiled", cure)


def can_keep_threads(problem: str) -> bool:
    """Return whether the library can keep threads, for which it needs no instructions."""
    return not problem or problem.startswith(_LACKS)


def failed(problem: str, wanted: str) -> Kernels:
    """Return what follows from a problem that the self-test of `wanted` found."""
    if problem.startswith(_LACKS):
        return Kernels("", problem)
    cure = f"make {path_of_library()} again: {_SET_UP}"
    cure = _FITTING if problem.startswith(_MISFIT) else cure
    again = f"To repeat the self-test, remove {library_result(wanted)}."
    return Kernels("", problem, f"{cure} {again}")


def library_result(wanted: str) -> Path:
    """Return the file of the result of `library_problem`."""
    return probe.result_file("kernels", *identities([path_of_library()]), wanted)


def library_problem(wanted: str, quietly: bool = False) -> str:
    """Return why the own kernels cannot be used, from a file or from a test; empty if they can.

    Args:
        wanted: An instruction set, or `auto` for the best one.
        quietly: Log no warning, as they are not wanted, and keep no problem.
    """
    if reason := subprogram.refusal():
        return reason

    def find() -> str:
        try:
            return str(probe.run("kernels", wanted, timeout_s=_PATIENCE_S))
        except probe.ProbeError as error:
            return f"the self-test failed: it {error}"

    warning = "" if quietly else "Own kernels are not used: %s."
    return probe.remembered(library_result(wanted), find, warning, keep=not quietly)


def extra_bufts_work() -> bool:
    """Return whether repacked weights can be used, from a file or from a test.

    A failure is logged as a warning when it is found.
    """
    return not probe.remembered(
        repacking_result(),
        repacking_problem,
        "llama.cpp's repacked kernels fail on this machine (%s). "
        "Models are loaded without them, which is slower but correct.",
    )


def repacking_result() -> Path:
    """Return the file of the result of `repacking_problem`."""
    return probe.result_file("repacking")


def repacking_problem() -> str:
    """Test repacked weights in a child process; return a description of the failure, or nothing."""
    if reason := subprogram.refusal():  # skip repacking only on machines with AMX
        return reason if "amx" in "".join(this_machine()) else ""
    try:
        difference = float(probe.run("repacking", timeout_s=_PATIENCE_S))
    except probe.ProbeError as error:
        return f"the self-test {error}"
    except (TypeError, ValueError) as error:
        return f"the self-test gave no number: {error}"
    return "" if difference <= _TOLERANCE else f"logits differ by {difference:.2g}"


def enter(wanted: str) -> Kernels:
    """Load the library and enter it into llama.cpp's list, without a self-test."""
    try:
        start = library().gguf_spec_kernels_start
    except (OSError, AttributeError) as error:
        return Kernels("", f"the library cannot be loaded: {error}")
    start.restype, start.argtypes = (
        ctypes.c_char_p,
        [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p],
    )
    name = "" if wanted == "auto" else wanted
    text = start(*_handles(), name.encode()).decode()
    return Kernels("", text[1:]) if text.startswith("!") else Kernels(text)


@cache
def keep_threads() -> None:
    """Keep llama.cpp's threads from pass to pass, and let them sleep at long waits; once a process.

    A build with OpenMP does so by itself (`openmp`). In another one each pass starts threads, and a
    thread that is late keeps the others' cores busy.
    """
    if not CPU_LIBRARY or CPU_LIBRARY.uses_openmp or not CPU_LIBRARY.calls(_OF_THREADS):
        return
    try:
        prepare = library().gguf_spec_kernels_keep_threads
        functions = {name: library()[own] for name, own in _OF_THREADS.items()}
    except (OSError, AttributeError):
        return
    prepare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    if prepare(*_handles(), openmp.spins()):
        for name, function in functions.items():
            CPU_LIBRARY.rebind(name, function)
        _keeps_threads.append(True)


def keeps_threads() -> bool:
    return bool(_keeps_threads)


def _handles() -> tuple[int, int]:
    """Return llama.cpp's loaded libraries with its CPU kernels and its tensors, for our library."""
    assert CPU_LIBRARY
    return CPU_LIBRARY.functions._handle, C._lib._handle


@cache
def library() -> Any:
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


def tiles() -> int:
    """Return 1 if products use tiles of AMX in this thread, -1 if the system refuses, else 0."""
    return int(library().gguf_spec_kernels_tiles())


def takes_attention(key_length: int, value_length: int, kv_kind: int) -> bool:
    """Return whether the own kernels compute flash attention with these heads.

    Args:
        kv_kind: ggml type of the cache.
    """
    return bool(in_use().name) and library_takes(key_length, value_length, kv_kind)


@cache
def library_takes(key_length: int, value_length: int, kv_kind: int) -> bool:
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


def has_own_attention(header: Header, options: ContextOptions) -> bool:
    """Return whether flash attention of a model on this CPU is computed by the own kernel."""
    kind, sizes = KV_TYPES[options.kv_type][0], head_sizes(header)
    return not options.rpc and all(takes_attention(*pair, kind) for pair in sizes)


def flash_on_cpu(header: Header, options: ContextOptions) -> str:
    """Return `on` or `off`: flash attention of a model on a CPU.

    `auto` is on with the own kernel, and where the cache needs it. Otherwise it is off, because
    rows then have the same bits in passes of all widths.
    """
    if options.flash_attention != "auto":
        return options.flash_attention
    needed = options.needs_flash_attention or has_own_attention(header, options)
    return "on" if needed else "off"
