"""Files that appear under their names whole or not at all, whatever ends the process that writes them."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

_HAS_LOCKS = find_spec("fcntl") is not None  # elsewhere what a killed process left stays


@contextmanager
def atomic_write(path: Path, *, private: bool = True) -> Iterator[Path]:
    """Lend an empty file beside `path`, which takes its name when the block ends well and is gone when it fails.

    What processes that were killed have left beside `path` is removed; what others are writing just now is locked, and stays.

    Args:
        path: The file to be made or replaced.
        private: Only the user may read it; else the umask decides.

    Raises:
        OSError: There is no place for it.
    """
    _remove_leftovers(path)
    part, handle = _begin(path, 0o600 if private else 0o666)
    try:
        yield part
        part.replace(path)
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):
            part.unlink()


def _begin(path: Path, mode: int) -> tuple[Path, int]:
    """Make an empty file that is locked, and return it with the number that holds the lock."""
    while True:
        part = path.with_name(f"{path.name[:100]}.{secrets.token_hex(4)}.part")
        handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        if not _HAS_LOCKS or (_lock(handle) and part.exists()):
            return part, handle
        os.close(handle)  # another process took it for a leftover before it was locked


def _remove_leftovers(path: Path) -> None:
    with contextlib.suppress(OSError):
        for leftover in path.parent.glob(
            glob.escape(path.name[:100]) + "." + "[0-9a-f]" * 8 + ".part"
        ):
            handle = os.open(leftover, os.O_WRONLY)
            try:
                if _lock(handle):
                    leftover.unlink()
            finally:
                os.close(handle)


def _lock(handle: int) -> bool:
    """Return whether nobody else holds the file."""
    if not _HAS_LOCKS:
        return False
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
