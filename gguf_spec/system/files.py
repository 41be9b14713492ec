"""Files of this user: the folders, locks, atomic writes and the cache of measurements.

The folders are the platform's own. On Linux and macOS the XDG variables name others.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from .limits import processor_limit

_NAME = "gguf-spec"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# without locks, the leftovers of killed processes are not removed
_HAS_LOCKS = find_spec("fcntl") is not None
# folders of the cache, one for each kind of measurement
CacheFolder = Literal["attention", "builds", "experience", "pairs", "probe", "profiles", "verified"]
CACHE_FOLDERS: tuple[CacheFolder, ...] = get_args(CacheFolder)


def _folder(kind: str, program: str | None = _NAME) -> Path:
    import platformdirs

    try:
        path: Path = getattr(platformdirs, f"user_{kind}_path")(program, appauthor=False)
    except RuntimeError:  # this user has no home folder: nothing is there, nor can be
        return Path(os.devnull, kind)
    return path


# Measurements and other files that can be made again; the user's own settings; histories.
cache_folder: Callable[..., Path] = partial(_folder, "cache")
config_folder: Callable[..., Path] = partial(_folder, "config")
state_folder: partial[Path] = partial(_folder, "state")
# where other programs keep their cache folders
caches_of_others: partial[Path] = partial(_folder, "cache", None)


# ---- locks


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
        if not try_lock(file.fileno()):
            waiting()
            if sys.platform != "win32":
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
        yield (file.fileno(),) if _HAS_LOCKS else ()


def try_lock(handle: int) -> bool:
    """Lock a file without waiting; return False if another process holds the lock.

    Args:
        handle: Its file descriptor. Where the system has no locks, True is returned.
    """
    return _locked(handle) is not False


def _locked(handle: int) -> bool | None:
    """Lock a file without waiting; return None where its disk or the system has no locks."""
    if sys.platform == "win32" or not _HAS_LOCKS:
        return None
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


# ---- texts that others wrote

# Most bytes of a text that is read: more than any context holds, of tokens of 16 bytes.
MOST_TEXT = 1 << 26
_BOMS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # begins as UTF-16 does
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
# Share of zeros among the other bytes from which a text without a mark is UTF-16 or 32, as most
# letters of programs and logs are ASCII, and the fewest letters to tell.
_ZEROS, _PAIRS = 0.7, 8
# encoding, bytes of a unit, and which of them is the letter
_WITHOUT_MARK = (
    ("utf-32-le", 4, 0),
    ("utf-32-be", 4, 3),
    ("utf-16-le", 2, 0),
    ("utf-16-be", 2, 1),
)


def read_text(source: Path | BinaryIO) -> str:
    """Return a text without its byte order mark; what is not UTF-8, 16 or 32 is replaced.

    Args:
        source: A file, which may be endless, or a stream, which is read to its end.

    Raises:
        OSError: It cannot be read.
        ValueError: It is longer than any context.
    """
    if isinstance(source, Path):
        with source.open("rb") as file:
            data = file.read(MOST_TEXT + 1)
    else:
        data = source.read(MOST_TEXT + 1)
    if len(data) > MOST_TEXT:
        n = MOST_TEXT // 16
        raise ValueError(
            f"it has more than {MOST_TEXT:,} bytes, and no context holds {n:,} tokens of 16 bytes"
        )
    encoding, n_mark = encoding_of(data)
    return data[n_mark:].decode(encoding, errors="replace")


def encoding_of(data: bytes) -> tuple[str, int]:
    """Return the encoding of a text, from its first bytes, and the length of its mark."""
    for mark, encoding in _BOMS.items():
        if data.startswith(mark):
            return encoding, len(mark)
    start = data[:4096]
    for encoding, width, place in _WITHOUT_MARK:
        n = len(start) // width
        units = [start[i : n * width : width].count(0) for i in range(width)]
        is_ascii = units.pop(place) == 0 and min(units) >= _ZEROS * n
        if n >= _PAIRS and is_ascii:
            return encoding, 0
    return "utf-8", 0


# ---- atomic writes

# Names of what this process has open: what is written there goes into the stream.
_OPEN_FILES = re.compile(r"/dev/(std(in|out|err)|fd/\d+)|/proc/[\w-]+/(task/\d+/)?fd/\d+")


@contextmanager
def atomic_write(
    path: Path,
    *,
    private: bool = True,
    lasting: bool = True,
    is_ours: bool = False,
    in_place: bool = True,
    check: Callable[[], object] | None = None,
) -> Iterator[Path]:
    """Yield an empty temporary file beside `path`; rename it to `path` when the block succeeds.

    The file appears complete or not at all, however the writing process ends. The temporary file is
    removed when the block fails. Leftovers of killed processes beside `path` are removed, too.
    Files that other processes are writing are locked and stay.

    Of a link the file that it names is written. A file that is there keeps its owner, mode, access
    lists and extended attributes. Where a rename loses one of them or a further hard link, the
    complete data are copied into the file. Only then a killed process can leave a part of them.

    A device such as `/dev/stdout` or a pipe is never replaced: what was written is copied to it.

    Args:
        private: Whether only the user may read a file that is created. If not, the umask decides.
        lasting: Whether it must survive a loss of power, too. If not, it may be empty then, or have
            zeros in it.
        is_ours: Whether all files of the folder are this program's, with names that may never come
            again: leftovers of any of them are removed, and nothing of the old file is kept.
        in_place: Whether data may be copied into a file. If not, as processes may have mapped it,
            a rename keeps what it can.
        check: Called when only the rename is left to do; an error leaves the file as it is.

    Yields:
        The temporary file.

    Raises:
        OSError: The file cannot be written.
    """
    if is_device(path):
        import tempfile

        with tempfile.TemporaryDirectory(prefix="gguf-spec-") as folder:
            part = Path(folder, "part")
            part.touch()
            yield part
            with part.open("rb") as made, path.open("wb") as out:
                _copy(made, out)
        return
    is_there = not is_ours and is_writable(path)
    if not is_ours:
        path = path.resolve()
    _remove_leftovers(path, of_all=is_ours)
    part, handle = _begin(path, 0o600 if private or is_there else 0o666)
    try:
        yield part
        is_alike = not (is_there and path.exists()) or _make_alike(part, path) or not in_place
        if lasting:
            sync(handle)
        if check:
            check()
        if not _HAS_LOCKS:  # Windows renames no open file
            os.close(handle)
            handle = -1
        try:
            if is_alike:
                move(part, path, lasting=lasting)
        except OSError as error:
            if error.errno != errno.EBUSY or not in_place:  # a file that is mounted
                raise
            is_alike = False
        if not is_alike:
            _fill(path, part)
    finally:
        if handle >= 0:
            os.close(handle)
        with contextlib.suppress(OSError):
            part.unlink()


def is_device(path: Path) -> bool:
    """Return whether a path is a device, a pipe or a socket; `/dev/stdout` is one in any case."""
    if _OPEN_FILES.fullmatch(os.path.normpath(absolute(path))):
        return True
    if not version(path):
        return False
    if path.is_symlink():
        return is_device(path.parent / path.readlink())
    return not (path.is_file() or path.is_dir())


def is_writable(path: Path) -> bool:
    """Return whether a file is there.

    Raises:
        OSError: It must not be written: a rename would replace it all the same.
    """
    try:  # by the path itself: the system may refuse to follow the link of another user
        os.close(os.open(path, os.O_WRONLY))
    except FileNotFoundError:
        return False
    return True


def _make_alike(part: Path, path: Path) -> bool:
    """Give a file what another one has beside its data; return whether it has all of it."""
    kept, names = path.stat(), _attributes(path)
    with contextlib.suppress(OSError):
        if hasattr(os, "chown"):
            os.chown(part, kept.st_uid, kept.st_gid)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            for name in _attributes(part).keys() - names.keys():  # by rules of the folder
                os.removexattr(part, name)
            for name, value in names.items():
                os.setxattr(part, name, value)
    with contextlib.suppress(OSError):
        part.chmod(stat.S_IMODE(kept.st_mode))  # last, as a change of the owner clears bits
    made = part.stat()
    is_alike = all(getattr(made, one) == getattr(kept, one) for one in _KEPT)
    return is_alike and kept.st_nlink == 1 and _attributes(part) == names


_KEPT = ("st_mode", "st_uid", "st_gid")


def _attributes(path: Path) -> dict[str, bytes]:
    """Return the extended attributes of a file, access lists among them, where there are any."""
    if sys.platform != "linux":
        return {}
    try:
        return {name: os.getxattr(path, name) for name in os.listxattr(path)}
    except OSError:
        return {}


def _copy(made: BinaryIO, out: BinaryIO) -> None:
    while data := made.read(1 << 20):
        out.write(data)


def _fill(path: Path, part: Path) -> None:
    """Copy the data of a file into another one; what is full is noticed before anything changes."""
    kept, n_bytes = path.stat(), part.stat().st_size
    with part.open("rb") as made, path.open("rb+") as out:
        if n_bytes > kept.st_size and hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(out.fileno(), 0, n_bytes)
            except OSError as error:
                out.truncate(kept.st_size)
                if error.errno in DISK_FULL:
                    raise

        def copy() -> None:
            made.seek(0)
            out.seek(0)
            _copy(made, out)
            out.flush()
            out.truncate(n_bytes)

        try:
            copy()
        except BaseException:  # such as Ctrl-C: no file of two halves
            copy()
            raise
        finally:
            with contextlib.suppress(OSError):  # writing clears bits, too
                path.chmod(stat.S_IMODE(kept.st_mode))
            sync(out.fileno())


def sync(file: int | Path) -> None:
    """Wait until the data of a file, or of a file descriptor, are on the disk."""
    if isinstance(file, int):
        os.fsync(file)
        return
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())


def move(part: Path, path: Path, *, lasting: bool = True) -> None:
    """Give a written and synced file its place: after a loss of power it or the old one is there.

    Args:
        path: Its place on the same disk; a file there is replaced.
        lasting: Whether to wait until the new name is on the disk.
    """
    part.replace(path)
    if lasting and os.name == "posix":  # elsewhere folders cannot be opened
        with contextlib.suppress(OSError):
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def _begin(path: Path, mode: int) -> tuple[Path, int]:
    """Create an empty locked file and return it with the file descriptor that holds the lock."""
    while True:
        part = path.with_name(f"{_PART}{_tag(path)}-{secrets.token_hex(4)}.part")
        handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        if try_lock(handle) and part.exists():
            return part, handle
        # another process removed it as a leftover before it was locked
        os.close(handle)


# The name of a temporary file: no other program's, and short whatever the name of the file is.
_PART = f".{_NAME}-"


def _tag(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path.name)).hexdigest()[:12]


def _remove_leftovers(path: Path, *, of_all: bool) -> None:
    """Remove what killed processes left of a file, or of all files of its folder."""
    tag = "[0-9a-f]" * 12 if of_all else _tag(path)
    owners = {getattr(os, "geteuid", int)()}
    with contextlib.suppress(OSError):
        owners.add(path.stat().st_uid)  # it may have been given away already
    for leftover in path.parent.glob(f"{_PART}{tag}-{'[0-9a-f]' * 8}.part"):
        with contextlib.suppress(OSError):
            found = leftover.lstat()
            if not stat.S_ISREG(found.st_mode) or found.st_uid not in owners:
                continue
            handle = os.open(leftover, os.O_WRONLY)
            try:
                if _locked(handle):
                    leftover.unlink()
            finally:
                os.close(handle)


def existing(folder: Path) -> Path:
    """Return a folder, or the first one above it that exists."""
    return next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))


def files_below(folder: Path) -> list[Path]:
    """Return the files and links below a folder, sorted.

    What another program removes meanwhile is left out, where `rglob` may raise an error.
    """
    return sorted(Path(where) / name for where, _, names in os.walk(folder) for name in names)


def with_end(path: Path, end: str) -> Path:
    """Return a path whose name has something appended; a name that is too long is cut before."""
    name = os.fsencode(path.name)
    if len(name) + len(end) <= _MOST_NAME:
        return path.with_name(path.name + end)
    end = f"-{_tag(path)}{end}"
    return path.with_name(name[: _MOST_NAME - len(end)].decode("utf-8", "ignore") + end)


_MOST_NAME = 255  # bytes of a name, by most file systems


# ---- the cache


def cache_file(kind: CacheFolder, parts: Iterable[object]) -> Path:
    """Return the cache file for `parts`, the values that a measurement depends on."""
    name = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:24]
    return cache_folder() / kind / f"{name}.json"


def read_json(path: Path) -> Any:
    """Return the data of a JSON file; None if it is missing or invalid."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def write_json(path: Path, data: Any) -> bool:
    """Write data as JSON, atomically, and return whether it succeeded.

    After a loss of power it may be lost; `read_json` notices that, as JSON contains no zero bytes.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, lasting=False, is_ours=True) as part:
            part.write_text(json.dumps(data), encoding="utf-8")
    except OSError:
        return False
    return True


def this_machine(*, timed: bool = False) -> list[str]:
    """Return what results of this machine depend on: architecture, processor and its features.

    Its name is no part: each container and many a network give another one.

    Args:
        timed: For measured times, which a limit of processor time changes, too.
    """
    limit = processor_limit() if timed else None
    return [platform.machine(), _cpu(), *([f"{limit.processors:.3g}"] if limit else [])]


def absolute(path: Path) -> Path:
    """Return the path from the root; as it is where the working folder was removed."""
    try:
        return path.absolute()
    except OSError:
        return path


def remedy(error: OSError) -> str:
    """Return the advice for a file that cannot be written."""
    if error.errno in DISK_FULL:
        return "free disk space"
    if error.errno == errno.ENAMETOOLONG:
        return "choose a shorter name"
    if error.errno == errno.EPERM and sys.platform == "linux":  # permissions alone are EACCES
        return "see with lsattr whether it is immutable"
    return "check its folder and its permissions"


def version(path: Path) -> tuple[int, ...]:
    """Return the file's number, size, and times of its last changes; empty if it is missing.

    It may have a name that no file can have.
    """
    try:
        stat = path.stat()
    except (OSError, ValueError):  # a name with a zero byte raises ValueError
        return ()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def content_id(path: Path) -> str:
    """Return a hash of a large file's size, its start, its end and 15 samples in between."""
    n_parts = 16
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        digest.update(file.read(1 << 20))
        for i in range(1, n_parts + 1):
            file.seek(max(0, size * i // n_parts - 4096))
            digest.update(file.read(4096))
    return digest.hexdigest()


def _cpu() -> str:
    """Return the processor's name and features, which determine the kernels."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")
    except OSError:
        return _apple_cpu() if sys.platform == "darwin" else platform.processor()
    names = ("model name", "flags", "Features", "CPU")
    return "\n".join(line for line in first.splitlines() if line.startswith(names))


def _apple_cpu() -> str:
    """Return the name of the processor on macOS, where `platform.processor` tells only the kind."""
    import ctypes

    name, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    ask = ctypes.CDLL(None).sysctlbyname
    failed = ask(b"machdep.cpu.brand_string", name, ctypes.byref(size), None, ctypes.c_size_t(0))
    return platform.processor() if failed else name.value.decode()
