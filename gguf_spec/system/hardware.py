"""How much memory this process has and may still take. llama.cpp does not ask: it is killed instead."""

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
        known.append(max(limit - max(used - _cgroup_files(), 0), 0))
    return min(known) if known else _physical()


def resident_bytes() -> int:
    """Return the memory that this process holds now; 0 where it is not known."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
    except (OSError, IndexError, ValueError, AttributeError):
        return 0


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


def _cgroup_files() -> int:
    """Return how much of what a container uses are pages of files, which the kernel drops when it needs room: a model loaded before, say."""
    try:
        lines = Path("/sys/fs/cgroup/memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(
        int(line.split()[1])
        for line in lines
        if line.startswith(("inactive_file ", "active_file "))
    )


def size(n_bytes: float) -> str:
    """Return a number of bytes as it is shown."""
    return (
        f"{n_bytes / 1e9:,.1f} GB"
        if n_bytes >= 1e9
        else f"{n_bytes / 1e6:,.0f} MB"
        if n_bytes >= 1e7
        else f"{n_bytes / 1e6:,.1f} MB"
    )
