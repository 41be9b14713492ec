"""Atomic writes: a file appears complete or not at all, however the writing process ends."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from .file_lock import try_lock

# without locks, the leftovers of killed processes are not removed
_HAS_LOCKS = find_spec("fcntl") is not None


@contextmanager
def atomic_write(path: Path, *, private: bool = True) -> Iterator[Path]:
    """Yield an empty temporary file beside `path`; rename it to `path` when the block succeeds.

    The temporary file is removed when the block fails. Leftovers of killed processes beside `path`
    are removed, too. Files that other processes are writing are locked and stay.

    Args:
        path: The file to create or replace.
        private: Whether only the user may read it. If not, the umask decides.

    Yields:
        The temporary file.

    Raises:
        OSError: The file cannot be written.
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
    """Create an empty locked file and return it with the file descriptor that holds the lock."""
    while True:
        part = path.with_name(f"{path.name[:100]}.{secrets.token_hex(4)}.part")
        handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        if not _HAS_LOCKS or (_lock(handle) and part.exists()):
            return part, handle
        # another process removed it as a leftover before it was locked
        os.close(handle)


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
    """Lock a file and return whether it succeeded; another process may hold the lock."""
    return _HAS_LOCKS and try_lock(handle)
