"""Checksums of model files, and their cache: a sum is computed once for each version of a file."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

from ..results import OnProgress, Progress
from ..system.files import cache_file, read_json, version, write_json

_CHUNK = 1 << 20  # read size in bytes


def mark_of(path: Path) -> Path:
    """Return the path of a file's cached sum; it changes with the file."""
    return cache_file("verified", [path.resolve(), *version(path)[1:]])


def known_sum(path: Path) -> str | None:
    """Return the cached sum of a file, or None."""
    kept = read_json(mark_of(path))
    return kept.get("sha256") if isinstance(kept, dict) else None


def sum_of(path: Path) -> str:
    """Return the sha256 of a file, computed where it is not known.

    Raises:
        OSError: The file cannot be read, or was changed meanwhile.
    """
    mark = mark_of(path)
    found = known_sum(path)
    if found is None:
        found = checksum(path, lambda _: None, 0, 0)
        if mark != mark_of(path):
            raise OSError(errno.EBUSY, "it was changed meanwhile", str(path))
        write_json(mark, {"sha256": found})
    return found


def checksum(path: Path, tell: OnProgress, done: int, total: int) -> str:
    """Return the sha256 of a file; `done` of `total` bytes were read before."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            tell(Progress("checksum", done, total, "bytes"))
    return digest.hexdigest()
