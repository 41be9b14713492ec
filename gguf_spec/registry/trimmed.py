"""Trimmed copies of downloaded drafts: where they are, which one belongs to a model, their removal.

A copy has a folder of its own in the cache, named by the contents of the model, with a record of
what was measured. It is used only if it is the file of that record: one that is torn, or whose
model was replaced, is not found. `runtime.trimmed_drafts` makes it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..system.files import cache_folder, content_id, read_json
from .download import sum_of

VERSION = 1
"""Version of the record, and of what a copy contains; those of other versions are not used."""


def trimmed_folder(paths: Sequence[Path]) -> Path:
    """Return the folder of the trimmed copy of a model; there may be none.

    Args:
        paths: The files of the model.

    Raises:
        OSError: One of them cannot be read.
    """
    contents = " ".join(map(sum_of, paths))
    name = hashlib.sha256(contents.encode()).hexdigest()[:24]
    return _models() / f"{_n_bytes(paths)}-{name}.trimmed"


def record_of(folder: Path) -> dict[str, Any]:
    """Return what was measured of a model; empty if nothing was, or if it cannot be used.

    The record has `file`, the name of the copy, or None where the whole model is used.
    """
    found = read_json(folder / "record.json")
    try:
        if found["version"] != VERSION:
            return {}
        if found["file"] is not None and state_of(folder / found["file"]) != found["state"]:
            return {}
    except (OSError, TypeError, KeyError):
        return {}
    return dict(found)


def state_of(copy: Path) -> list[object]:
    """Return what a copy must have to be that of a record: its size, its time, samples of it."""
    found = copy.stat()
    return [found.st_size, found.st_mtime_ns, content_id(copy)]


def trimmed_copy(paths: Sequence[Path]) -> Path | None:
    """Return the trimmed copy of a model; None if there is none, or the whole model is used."""
    folder = existing_folder(paths)
    name = record_of(folder).get("file") if folder else None
    return folder / name if folder and name else None


def existing_folder(paths: Sequence[Path]) -> Path | None:
    """Return the folder of the trimmed copy of a model, or None if there is none.

    The names begin with sizes, so that models without a copy need not be read.
    """
    try:
        if any(_models().glob(f"{_n_bytes(paths)}-*.trimmed")):
            folder = trimmed_folder(paths)
            return folder if folder.is_dir() else None
    except OSError:
        pass
    return None


def remove_trimmed(folder: Path) -> int:
    """Remove a trimmed copy with its record, and return the size of the copy."""
    n_bytes = _n_bytes([*folder.glob("*.gguf")])
    shutil.rmtree(folder, ignore_errors=True)
    return n_bytes


def _models() -> Path:
    return cache_folder() / "models"


def _n_bytes(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
