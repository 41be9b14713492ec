"""Total, free and used memory.

llama.cpp does not check it: the kernel kills the process instead.
"""

from __future__ import annotations

from pathlib import Path


def total_bytes() -> int | None:
    """Return the memory of the machine, or of the container if it is less; None if unknown."""
    known = [n for n in (_of_machine("total"), _cgroup("memory.max")) if n]
    return min(known) if known else None


def available_bytes() -> int | None:
    """Return the memory that is available without swapping, in bytes; None if unknown."""
    known = [n for n in (_of_machine("available"),) if n is not None]
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit and used is not None:
        known.append(max(limit - max(used - _cgroup_files(), 0), 0))
    return min(known) if known else None


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


def _cgroup(name: str) -> int | None:
    try:
        text = Path("/sys/fs/cgroup", name).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _cgroup_files() -> int:
    """Return the bytes of file pages in a container's memory use.

    The kernel drops them when memory is short. They may belong to a model that was loaded before.
    """
    try:
        lines = Path("/sys/fs/cgroup/memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(
        int(line.split()[1])
        for line in lines
        if line.startswith(("inactive_file ", "active_file "))
    )
