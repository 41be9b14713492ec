"""Checks of `doctor` for the memory, the disk and the cache of measurements."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..system.files import CACHE_FOLDERS, cache_file, cache_folder, read_json, write_json
from ..system.machine import available_bytes, format_bytes, total_bytes
from .check import Check

# bytes of free disk and memory below which a check warns
_LITTLE_DISK, _LITTLE_MEMORY = 100e6, 500e6


def memory() -> Check:
    """Check that some memory is free."""
    free, total = available_bytes(), total_bytes()
    if free is None or not total:
        return Check("memory", "ok", "unknown")
    found = f"{format_bytes(free)} of {format_bytes(total)} are free"
    return (
        Check("memory", "ok", found)
        if free >= _LITTLE_MEMORY
        else Check("memory", "warn", found, "close other programs.")
    )


def disk() -> Check:
    """Check that the disk has space for the caches."""
    folder = cache_folder()
    there = next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))
    try:
        free = shutil.disk_usage(there).free
    except OSError as error:
        return Check(
            "disk",
            "warn",
            f"{there} cannot be examined: {error.strerror}",
            "set XDG_CACHE_HOME to another folder.",
        )
    found = f"{format_bytes(free)} are free in {folder}"
    return (
        Check("disk", "ok", found)
        if free >= _LITTLE_DISK
        else Check(
            "disk",
            "warn",
            found,
            "free disk space, or set XDG_CACHE_HOME to a folder on another disk.",
        )
    )


def cache() -> Check:
    """Check that measurements can be cached."""
    bad = []
    for kind in CACHE_FOLDERS:
        file = cache_file(kind, ["doctor", os.getpid()])
        if not write_json(file, kind) or read_json(file) != kind:
            bad.append(kind)
        with contextlib.suppress(OSError):
            file.unlink()
    if bad:
        found = (
            "nothing can be saved in "
            f"{' and '.join(str(cache_file(kind, []).parent) for kind in bad)}: "
            "each load measures again"
        )
        return Check(
            "cache",
            "warn",
            found,
            "change its permissions, or set XDG_CACHE_HOME to another folder.",
        )
    folder = cache_folder()
    return Check(
        "cache",
        "ok",
        f"{folder} can be written and read; "
        f"it contains {format_bytes(sum(file_sizes(folder / kind for kind in CACHE_FOLDERS)))}",
    )


def file_sizes(folders: Iterable[Path]) -> Iterator[int]:
    """Yield the sizes of the files in folders, without subfolders."""
    for folder in folders:
        if folder.is_dir():
            with os.scandir(folder) as there:
                yield from (
                    one.stat(follow_symlinks=False).st_size
                    for one in there
                    if one.is_file(follow_symlinks=False)
                )
