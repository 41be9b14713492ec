"""A folder of pieces: files with a name that follows from their contents, checked, within a budget.

Each piece follows another one, its parent, or a root. Its name is a keyed hash of its parent's name
and of what it stands for, so a program that knows what comes next asks for it without a list: the
folder is the index. Pieces never change. Several processes may write and remove them at once.

A file has a format line, two lengths, what is known of the piece as JSON, its data, and a keyed
hash over all before it. A piece is used only if the hash was made with this user's key, and if it
stands under the name that belongs to it. Names and hashes tell others nothing of the contents.

The time of a file is that of its last use. Where the pieces take more than the budget, the least
recently used ones are removed. A time in the future, after a clock that jumped, counts as the
oldest. Every kind of pieces has a subfolder and shares the budget.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import shutil
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from .files import DISK_FULL, absolute, atomic_write, cache_folder
from .machine import format_bytes, parse_bytes

_LOG = logging.getLogger("gguf_spec.kept")
_FORMAT = b"gguf-spec piece 1\n"
_LENGTHS = struct.Struct("<IQ")  # of the JSON, and of the data
_HASH_BYTES = hashlib.sha256().digest_size
_MOST_ABOUT = 1 << 22  # largest JSON, in bytes
# Budget where none is given, in bytes.
DEFAULT_LIMIT = 10_000_000_000
# Digits of a name; the first ones of the parent's are a subfolder.
_DIGITS, _OF_FOLDER = 32, 3
_FILE = re.compile(rf"([0-9a-f]{{{_DIGITS - _OF_FOLDER}}})-([0-9a-f]{{{_DIGITS}}})-(\d+)")
_FOLDER = re.compile(rf"[0-9a-f]{{{_OF_FOLDER}}}")
# Where files are written before they get their names.
_NEW = "new"
# Share of the budget that is left after pieces were removed.
_KEPT_SHARE = 0.9
# Most files of a folder that are looked through for the pieces behind a parent.
_MOST_LISTED = 4096


def user_key() -> bytes | None:
    """Return this user's key, creating it on first use; None if it cannot be kept.

    If two processes create it at the same time, both use the key that is in the file afterwards.
    """
    path = cache_folder() / "session-key"
    with contextlib.suppress(OSError):
        for _ in range(3):
            with contextlib.suppress(FileNotFoundError):
                key = path.read_bytes()
                if len(key) == _HASH_BYTES:
                    return key
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as part:
                part.write_bytes(secrets.token_bytes(_HASH_BYTES))
    return None


class Piece(NamedTuple):
    """The name of a piece, without its contents.

    Attributes:
        parent: Name of the piece that it follows, or of a root.
        name: Its own name, for those that follow it.
        n: Number of items in it, such as tokens.
    """

    parent: str
    name: str
    n: int


class FoundFile(NamedTuple):
    """A file of a piece: its size, and the time of its last use in seconds."""

    piece: Piece
    path: Path
    n_bytes: int
    used_at: float


class PieceFolder:
    """One kind of pieces in a folder. Any thread may use it.

    Attributes:
        path: The folder of all kinds.
        limit: Largest size of all pieces of all kinds, in bytes.
        reserve: Disk space that stays free, in bytes.
    """

    reserve: int = 256 << 20

    def __init__(
        self,
        path: Path,
        limit: int,
        kind: str = "prompts",
        key: Callable[[], bytes | None] = user_key,
    ) -> None:
        """Name the folder, which need not exist. Of `prompts` the log has warnings.

        `key` returns the key of the files, or None if it cannot be kept.
        """
        self._find_key = key
        self._level: int = logging.WARNING if kind == "prompts" else logging.DEBUG
        self.path: Path = path
        self.limit: int = limit
        self._kind, self._key = kind, b""
        self._n_bytes: int | None = None  # of all pieces, as far as this process knows
        self._warned: set[str] = set()

    def open(self) -> bool:
        """Create the folder; return whether pieces can be kept there, with a line in the log."""
        key = self._find_key()
        if key is None:
            self.warn("%s cannot be written, where the key of the files is.", cache_folder())
            return False
        self._key = key
        try:
            for one in (self.path, self.path / _NEW, self.path / self._kind):
                one.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.path.stat()
        except OSError as error:
            self.warn("%s cannot be used (%s).", self.path, error.strerror or error)
            return False
        if found.st_uid not in (getattr(os, "geteuid", int)(), 0):
            self.warn("%s belongs to another user.", self.path)
            return False
        return True

    def warn(self, text: str, *values: object) -> None:
        """Write a line to the log, once for each text."""
        if text not in self._warned:
            self._warned.add(text)
            _LOG.log(self._level, f"{self._kind} are not kept on disk: {text}", *values)

    def name(self, parent: str, contents: bytes) -> str:
        """Return the name of the piece with these contents behind a parent; "" is no parent."""
        key = hashlib.blake2b(parent.encode(), digest_size=_DIGITS // 2, key=self._key)
        key.update(contents)
        return key.hexdigest()

    def _file(self, piece: Piece) -> Path:
        parent, n = piece.parent, _OF_FOLDER
        return self.path / self._kind / parent[:n] / f"{parent[n:]}-{piece.name}-{piece.n}"

    def has(self, piece: Piece) -> bool:
        try:
            return stat.S_ISREG(os.lstat(self._file(piece)).st_mode)
        except OSError:
            return False

    def behind(self, parent: str) -> list[Piece]:
        """Return the pieces that follow a parent; of very many in one folder only some."""
        found, n = list[Piece](), _OF_FOLDER
        with (
            contextlib.suppress(OSError),
            os.scandir(self.path / self._kind / parent[:n]) as there,
        ):
            for _, one in zip(range(_MOST_LISTED), there, strict=False):
                if one.name.startswith(parent[n:]) and (match := _FILE.fullmatch(one.name)):
                    found.append(Piece(parent, match[2], int(match[3])))
        return found

    # ---- reading

    def about(self, piece: Piece) -> dict[str, Any]:
        """Return what a file says of its piece, which is not checked; empty if it says nothing."""
        return about_file(self._file(piece))

    def read(self, piece: Piece) -> tuple[dict[str, Any], memoryview] | None:
        """Return what is known of a piece, and its data; None if there is none that is whole.

        What is not whole is removed, so that it is written again.
        """
        path = self._file(piece)
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
            with os.fdopen(handle, "rb") as file:
                size = os.fstat(handle).st_size
                data = memoryview(file.read())
        except (OSError, MemoryError):
            return None
        n_head = len(_FORMAT) + _LENGTHS.size
        with contextlib.suppress(ValueError, RecursionError):
            if len(data) == size >= n_head + _HASH_BYTES and data[: len(_FORMAT)] == _FORMAT:
                n_about, n_data = _LENGTHS.unpack_from(data, len(_FORMAT))
                if size == n_head + n_about + n_data + _HASH_BYTES:
                    digest = hmac.digest(self._key, data[:-_HASH_BYTES], "sha256")
                    if hmac.compare_digest(digest, data[-_HASH_BYTES:]):
                        about = json.loads(bytes(data[n_head : n_head + n_about]))
                        if about.get("is") == [*piece]:
                            return about, data[n_head + n_about : -_HASH_BYTES]
        text = "a kept prompt is damaged or foreign, and is read again (%s)."
        _LOG.log(self._level, text, path)
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def touch(self, pieces: Sequence[Piece]) -> None:
        """Note that pieces were used now; of a chain the first ones stay longest."""
        now = time.time_ns()
        for i, one in enumerate(pieces):
            with contextlib.suppress(OSError):
                os.utime(self._file(one), ns=(now, now - 1000 * i))

    # ---- writing

    def write(self, piece: Piece, about: Mapping[str, Any], data: Sequence[bytes]) -> bool:
        """Write a piece, completely or not at all; return whether it is there now.

        Without space or permission there is a line in the log, and it is not there.
        """
        path = self._file(piece)
        text = json.dumps({"is": piece, **about}, separators=(",", ":")).encode()
        n_bytes = sum(map(len, data))
        head = _FORMAT + _LENGTHS.pack(len(text), n_bytes) + text
        n_file = len(head) + n_bytes + _HASH_BYTES
        try:
            if not self._has_room(n_file):
                return False
            digest = hmac.new(self._key, head, "sha256")
            written = self.path / _NEW / secrets.token_hex(8)
            # after a loss of power it may be empty or torn, which is noticed
            with atomic_write(written, lasting=False, is_ours=True) as part:
                with part.open("wb") as file:
                    file.write(head)
                    for one in data:
                        file.write(one)
                        digest.update(one)
                    file.write(digest.digest())
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            written.replace(path)
        except OSError as error:
            full = "free disk space" if error.errno in DISK_FULL else "check its permissions"
            self.warn("%s cannot be written (%s; %s).", self.path, error.strerror or error, full)
            return False
        self._n_bytes = (self._n_bytes or 0) + n_file
        return True

    def _has_room(self, n_bytes: int) -> bool:
        """Make room in the budget; return whether there is room in it and on the disk."""
        if n_bytes > self.limit * (1 - _KEPT_SHARE):
            self.warn("a piece has %s, too much for the budget of %s.",
                      format_bytes(n_bytes), format_bytes(self.limit))  # fmt: skip
            return False
        if self._n_bytes is None or self._n_bytes + n_bytes > self.limit:
            self._n_bytes = self._shrink(n_bytes)
        free = shutil.disk_usage(self.path).free
        if free < n_bytes + self.reserve:
            self.warn("%s has only %s left on its disk.", self.path, format_bytes(free))
            return False
        return True

    def _shrink(self, n_more: int) -> int:
        """Remove the least recently used pieces if there is no room; return what all take."""
        remove_unfinished(self.path / _NEW)
        files = [*all_files(self.path)]
        n_bytes = sum(one.n_bytes for one in files)
        if n_bytes + n_more <= self.limit:
            return n_bytes
        now, left = time.time(), n_bytes - (self.limit * _KEPT_SHARE - n_more)
        files.sort(key=lambda one: one.used_at if one.used_at <= now else 0)
        sums = accumulate((one.n_bytes for one in files), initial=0)
        return n_bytes - remove_files(one for one, n in zip(files, sums, strict=False) if n < left)

    def remove(self, piece: Piece) -> None:
        with contextlib.suppress(OSError):
            self._file(piece).unlink()

    def remove_below(self, root: str) -> None:
        """Remove all pieces that follow a root, directly or behind others."""
        remove_files(behind(all_files(self.path), root))


def drafts_folder() -> Path:
    """Return the folder of texts for drafts where no prompts are kept."""
    return cache_folder() / "drafts"


def folder_and_limit(given: object) -> tuple[Path, int] | None:
    """Return folder and budget of a text such as `FOLDER`, `20GB` or `FOLDER:20GB`; None for none.

    Raises:
        ValueError: It is something else.
    """
    usual = cache_folder() / "kept"
    if given is None or given is False or given in (0, "", "0"):
        return None
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return usual, given
    if isinstance(given, os.PathLike):
        return absolute(Path(given).expanduser()), DEFAULT_LIMIT
    if not isinstance(given, str):
        raise ValueError(given)
    with contextlib.suppress(ValueError):
        return usual, _size(given)
    folder, _, size = given.rpartition(":")
    limit = DEFAULT_LIMIT
    with contextlib.suppress(ValueError):
        given, limit = (folder, _size(size)) if folder else (given, limit)
    if (
        re.fullmatch(r"[-+]?[\d.]+(e\d+)?\s*[A-Za-z]{0,4}", given) or "\0" in given
    ):  # a size that is none
        raise ValueError(given)
    return absolute(Path(given).expanduser()), limit


def _size(text: str) -> int:
    n_bytes = parse_bytes(text)
    if not n_bytes:
        raise ValueError(text)
    return n_bytes


def about_file(path: Path) -> dict[str, Any]:
    """Return what a file says of its piece, which is not checked; empty if it says nothing."""
    n_head = len(_FORMAT) + _LENGTHS.size
    with contextlib.suppress(OSError, ValueError, RecursionError), path.open("rb") as file:
        head = file.read(n_head)
        if head.startswith(_FORMAT) and len(head) == n_head:
            n_about, _ = _LENGTHS.unpack_from(head, len(_FORMAT))
            found = json.loads(file.read(min(n_about, _MOST_ABOUT)))
            return found if isinstance(found, dict) else {}
    return {}


def remove_unfinished(folder: Path) -> None:
    """Remove what a process wrote that ended before the file had its name."""
    old = time.time() - 3600
    with contextlib.suppress(OSError), os.scandir(folder) as there:
        for one in there:
            with contextlib.suppress(OSError):
                if not old < one.stat(follow_symlinks=False).st_mtime <= time.time():
                    Path(one.path).unlink()


def all_files(path: Path) -> Iterator[FoundFile]:
    """Yield the files of all pieces in a folder, of all kinds; other files do not count."""
    for folder in _folders(path):
        with contextlib.suppress(OSError), os.scandir(folder) as there:
            for one in there:
                match = _FILE.fullmatch(one.name)
                with contextlib.suppress(OSError):
                    if match and one.is_file(follow_symlinks=False):
                        found = one.stat(follow_symlinks=False)
                        piece = Piece(folder.name + match[1], match[2], int(match[3]))
                        size, used_at = found.st_size, found.st_mtime
                        yield FoundFile(piece, Path(one.path), size, used_at)


def _folders(path: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        kinds = [one for one in path.iterdir() if one.name != _NEW and not one.is_symlink()]
        for kind in kinds:
            with contextlib.suppress(OSError):
                yield from (one for one in kind.iterdir() if _FOLDER.fullmatch(one.name))


def behind(files: Iterable[FoundFile], root: str) -> Iterator[FoundFile]:
    """Yield the files of all pieces that follow a root, directly or behind others."""
    below: dict[str, list[FoundFile]] = {}
    for one in files:
        below.setdefault(one.piece.parent, []).append(one)
    left = [root]
    while left:
        found = below.pop(left.pop(), ())
        left += [one.piece.name for one in found]
        yield from found


def remove_files(files: Iterable[FoundFile]) -> int:
    """Remove files; return the freed bytes."""
    n_bytes = 0
    for one in files:
        with contextlib.suppress(OSError):
            one.path.unlink()
            n_bytes += one.n_bytes
    return n_bytes
