"""Size and checksum verification of downloaded files.

Each file is read once. Its sum is cached until the file changes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from ..errors import CorruptFileError, Pull, Text
from ..results import OnProgress, Progress
from ..system.cache import cache_file, read_json, write_json
from . import hub, package
from .hub_errors import explained
from .resolve import Entry, Part

Verified = Literal["sha256", "size and etag", "size", "nothing", "local"]
_RANKS: tuple[Verified, ...] = ("nothing", "size", "size and etag", "sha256")  # weakest first
_CHUNK = 1 << 20  # read size in bytes


def verify(
    entry: Entry, paths: Sequence[Path], remotes: Mapping[str, hub.Remote], tell: OnProgress
) -> Verified:
    """Check size and sha256 of every part; return the weakest verification over all parts.

    Args:
        entry: The model.
        paths: Its files, one per part.
        remotes: The hub's metadata by file name, for files without a declared size.
        tell: Called with the progress.

    Raises:
        CorruptFileError: The size or sha256 of a file is wrong. The file was deleted from the
            cache.
    """
    verdicts: list[Verified] = []
    total, done = sum(path.stat().st_size for path in paths), 0
    for part, path in zip(entry.parts, paths, strict=True):
        there, remote = path.stat().st_size, remotes.get(part.file)
        size = part.size_bytes if part.size_bytes is not None or not remote else remote.size
        if size not in (None, there):
            raise _refused(entry, path, f"has {there:,} bytes, not {size:,}", size, there)
        wanted, found = part.sha256 or _etag(path), known_sum(path)
        if wanted and not found:
            with explained(entry, part):
                found = _sum(path, tell, done, total)
        if wanted and found != wanted:
            raise _refused(entry, path, f"has the sha256 {found}, not {wanted}", wanted, found)
        verdicts.append(_verdict(part, path, size is not None))
        done += there
    return min(verdicts, key=_RANKS.index)


def verified(entry: Entry, paths: Sequence[Path]) -> Verified | None:
    """Return the weakest cached verification over all parts, or None. Reads no part."""
    if not all(known_sum(path) for path in paths):
        return None
    return min(
        (
            _verdict(part, path, part.size_bytes is not None)
            for part, path in zip(entry.parts, paths, strict=True)
        ),
        key=_RANKS.index,
    )


def _verdict(part: Part, path: Path, has_size: bool) -> Verified:
    """Return the verification level of a file, using its cached sum if there is one."""
    found = known_sum(path)
    if found and found == part.sha256:
        return "sha256"
    if found and not part.sha256 and found == _etag(path):
        return "size and etag"
    return "size" if has_size else "nothing"


def _refused(
    entry: Entry, path: Path, what: str, expected: object, found: object
) -> CorruptFileError:
    """Delete a corrupt file so that later runs do not use it, and return the error."""
    try:
        package.delete(entry.parts[0]) if entry.package else hub.delete([path])
        kept = "it was deleted"
    except OSError as error:
        kept = f"it cannot be deleted ({error.strerror}); do not use it"
    return CorruptFileError(
        entry.name,
        f"{path} {what}: {kept}.",
        Text("to download it again, use {}.", Pull(entry.name, force=True)),
        expected,
        found,
    )


def is_sum(text: str) -> bool:
    """Return whether a text is a sha256, as the etags of large files are."""
    return re.fullmatch(r"[0-9a-f]{64}", text) is not None


def _etag(path: Path) -> str | None:
    """Return the sha256 that the hub gave for a cached file, or None.

    The link target of a cached file is named by its etag.
    """
    name = hub.blob(path).name
    return name if is_sum(name) else None


def _mark(path: Path) -> Path:
    """Return the path of a file's cached sum; it changes when the file changes."""
    stat = path.stat()
    return cache_file("verified", [path.resolve(), stat.st_size, stat.st_mtime_ns])


def known_sum(path: Path) -> str | None:
    """Return the cached sum of a file, or None."""
    kept = read_json(_mark(path))
    return kept.get("sha256") if isinstance(kept, dict) else None


def _sum(path: Path, tell: OnProgress, done: int, total: int) -> str:
    """Return the sha256 of a file, and cache it.

    Args:
        path: The file.
        tell: Progress callback.
        done: Bytes that were verified before this file.
        total: Bytes of all files.
    """
    mark, digest = _mark(path), hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            tell(Progress("checksum", done, total, "bytes"))
    write_json(mark, {"sha256": digest.hexdigest()})
    return digest.hexdigest()
