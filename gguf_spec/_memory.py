"""How much memory this process may still take. llama.cpp does not ask: it is killed instead."""

from __future__ import annotations

import os
from pathlib import Path


def total_bytes() -> int | None:
    """Return the memory of the machine, or of the container where that is less; None where it is not known."""
    known = [n for n in (_physical(), _cgroup("memory.max")) if n]
    return min(known) if known else None


def available_bytes() -> int | None:
    """Return the memory that can be had without pushing others out; None where it is not known."""
    known = []
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                known.append(int(line.split()[1]) * 1024)
    except OSError:
        pass  # not Linux
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit and used is not None:
        known.append(max(limit - used, 0))
    return min(known) if known else _physical()


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def _cgroup(name: str) -> int | None:
    try:
        text = Path("/sys/fs/cgroup", name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
