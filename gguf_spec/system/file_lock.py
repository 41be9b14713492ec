"""Lock files: one process at a time does a piece of work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

_HAS_LOCKS = find_spec("fcntl") is not None


@contextmanager
def exclusive(path: Path, waiting: Callable[[], object]) -> Iterator[tuple[int, ...]]:
    """Hold a lock during the block; wait for other processes that hold it.

    Args:
        path: The lock file; it is created and stays.
        waiting: Called once if another process holds the lock.

    Yields:
        The file descriptors that children must inherit so that the lock lasts until they end.

    Raises:
        OSError: The file cannot be created.
    """
    with path.open("ab") as file:
        if _HAS_LOCKS:
            _lock(file, waiting)
        yield (file.fileno(),) if _HAS_LOCKS else ()


def try_lock(handle: int) -> bool:
    """Lock a file without waiting; return False if another process holds the lock.

    Args:
        handle: Its file descriptor. Where the system has no locks, True is returned.
    """
    if not _HAS_LOCKS:
        return True
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _lock(file: BinaryIO, waiting: Callable[[], object]) -> None:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(file, fcntl.LOCK_EX)
