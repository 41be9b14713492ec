"""Processor and memory of this machine: programs that use them, free memory, sizes as texts.

llama.cpp does not check the memory: the kernel kills the process instead. Nothing is measured while
other programs use the processor, because the results would not describe this machine.
"""

from __future__ import annotations

import math
import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from .limits import MemoryLimit, memory_limits

# kernel statistics, with the number of running tasks
_STAT = Path("/proc/stat")
# Number of samples and seconds between them. The smallest sample counts: a program that only wakes
# up for a moment is ignored.
_SAMPLES, _PAUSE_S = 4, 0.005
_MIB, _GIB = 1 << 20, 1 << 30
# Bytes that are read to measure the memory: more than a cache of some cores holds.
_READ = 256 * _MIB
# Unit of a size in lower case -> its bytes. Units without "i" are decimal if they end with "b".
_UNITS = {"b": 1} | {
    f"{letter}{end}": (1000 if end == "b" else 1024) ** power
    for power, letter in enumerate("kmgt", 1)
    for end in ("", "b", "ib")
}


def others_running(stat: Path = _STAT, wait: Callable[[float], object] = time.sleep) -> int:
    """Return the number of tasks of other programs that run or wait for a core now.

    The result is 0 if it is unknown (not Linux).

    Args:
        stat: The kernel statistics.
        wait: Waits for a number of seconds.
    """
    counts: list[int] = []
    for i in range(_SAMPLES):
        if i:
            wait(_PAUSE_S)
        try:
            lines = stat.read_text(encoding="ascii").splitlines()
            counts += [int(line.split()[1]) for line in lines if line.startswith("procs_running ")]
        except (OSError, ValueError, IndexError):
            return 0
    return max(0, min(counts, default=0) - 1)  # except this thread


def cores_are_shared(threads: int, n_others: int | None = None, n_cores: int | None = None) -> bool:
    """Return whether `threads` threads of this process would share cores with other programs.

    Args:
        n_others: Number of tasks of other programs; None for those of now.
        n_cores: Number of cores; None for those of this machine.
    """
    n_others = others_running() if n_others is None else n_others
    return n_others + threads > max(threads, n_cores or os.cpu_count() or threads)


def is_x86(machine: str = "") -> bool:
    """Return whether a machine, or this one, has an x86-64 processor."""
    return (machine or platform.machine()).lower() in ("x86_64", "amd64")


def is_arm(machine: str = "") -> bool:
    return (machine or platform.machine()).lower() in ("aarch64", "arm64")


def total_bytes(limits: Sequence[MemoryLimit] | None = None) -> int | None:
    """Return the memory of the machine, or the smallest limit of it; None if unknown.

    Args:
        limits: The limits; None for those of this process.
    """
    limits = memory_limits() if limits is None else limits
    known = [_of_machine("total"), *(limit.n_bytes for limit in limits)]
    return min((n for n in known if n is not None), default=None)


def part_to_read(n_cores: int, free: int | None) -> int:
    """Return how many numbers of eight bytes each core reads when the memory is measured.

    They fit into no cache, and into a quarter of what is free, in bytes.
    """
    return max(1, min(_READ, _READ if free is None else free // 4) // (8 * n_cores))


@cache
def read_speed() -> float:
    """Return the bytes that all cores together read from memory in a second, at least.

    Each core reads a part of its own, so that no cache answers for the memory.
    """
    import numpy as np

    n = min(8, os.cpu_count() or 1)
    parts = np.ones(part_to_read(n, available_bytes()) * n, np.uint64).reshape(n, -1)
    with ThreadPoolExecutor(n) as pool:
        best = math.inf
        for _ in range(8):
            began = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))
            best = min(best, time.perf_counter() - began)
    return parts.nbytes / best


def available_bytes(limits: Sequence[MemoryLimit] | None = None) -> int | None:
    """Return the memory that is available without swapping, in bytes; None if unknown.

    Args:
        limits: The limits; None for those of this process.
    """
    limits = memory_limits() if limits is None else limits
    known = [_of_machine("available"), *(limit.left for limit in limits)]
    return min((n for n in known if n is not None), default=None)


def limit_of(free: int) -> str:
    """Return the limit that leaves so little free memory, for a message; empty without one."""
    limit = min(memory_limits(), key=lambda one: one.left, default=None)
    if not limit or limit.left > free:
        return ""
    return f" (the limit is {format_bytes(limit.n_bytes)}: {limit.source})"


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes; 0 if unknown."""
    import psutil

    try:
        return int(psutil.Process().memory_info().rss)
    except (OSError, psutil.Error):
        return 0


def _of_machine(name: str) -> int | None:
    import psutil

    try:
        return int(getattr(psutil.virtual_memory(), name))
    except (OSError, psutil.Error):
        return None


def format_bytes(n_bytes: float) -> str:
    """Format a number of bytes for display, in binary units: `2.6 MiB`, `120 MiB`, `1.1 GiB`."""
    if n_bytes >= _GIB:
        return f"{n_bytes / _GIB:,.1f} GiB"
    return f"{n_bytes / _MIB:,.{0 if n_bytes >= 10 * _MIB else 1}f} MiB"


def parse_bytes(text: str) -> int:
    """Return the bytes of a size such as `500MB`, `1.5 GiB`, `2G` or `0`.

    Raises:
        ValueError: It is not a size. A number above 0 needs a unit.
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]*)", text.strip().lower())
    if not found or (found[2] and found[2] not in _UNITS):
        raise ValueError(text)
    number = float(found[1])
    if number and not found[2]:
        raise ValueError(text)
    return int(number * _UNITS.get(found[2], 1))
