"""A text file: read as text, replaced at once or not at all, and its old text kept for an undo.

Also which other files of a project have a name. What an edit is, other modules know.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..edit import hunks_between
from ..errors import GgufSpecError
from ..system.files import (
    atomic_write,
    encoding_of,
    is_device,
    is_writable,
    read_text,
    remedy,
    state_folder,
    version,
    with_end,
)

__all__ = ["TextFile", "encoding_of", "files_with", "is_device", "read_text", "version"]

# No context holds a longer text; a byte is rarely more than one token.
MOST_BYTES = 4_000_000
_BOM = "\ufeff"
# earlier texts that are kept for --undo: that many, and that many bytes of them
_MOST_KEPT, _MOST_KEPT_BYTES = 50, 64 << 20


class TextFile:
    """A text file: its text with line feeds, and how it is stored.

    Attributes:
        data: Its bytes when it was read.
        is_undoable: Whether the text before the last `write` was kept.
        text: The text, without a byte order mark and with line feeds only.
    """

    path: Path
    is_undoable: bool

    def __init__(self, path: Path) -> None:
        """Read a file.

        Raises:
            GgufSpecError: It cannot be read, is empty or too long, or is not text in UTF-8.
        """
        self.path = path
        self.is_undoable = False
        self._written: bytes | None = None
        try:
            self.path = path.resolve(strict=True)
            with self.path.open("rb") as file:  # a device has no size, nor an end
                self.data: bytes = file.read(MOST_BYTES + 1)
            if len(self.data) > MOST_BYTES:
                n = max(self.path.stat().st_size, len(self.data))
                fact = f"{path} has {n:,} bytes, which no context holds."
                raise GgufSpecError(fact, "split the file.")
        except OSError as error:
            fact = f"{path} cannot be read: {error.strerror}."
            raise GgufSpecError(fact, "check the file and its permissions.") from None
        text = self._decoded(path)
        self._bom = _BOM if text.startswith(_BOM) else ""
        text = text[len(self._bom) :]
        self.text: str = text.replace("\r\n", "\n")
        if not self.text.strip():
            raise GgufSpecError(f"{path} is empty.", "name a file with text.")
        if "\n" not in self.text and self.text.count("\r") > 1:
            fact = f"{path} ends its lines with a carriage return alone."
            raise GgufSpecError(fact, "convert it to line feeds.")

    def _decoded(self, path: Path) -> str:
        if b"\0" not in self.data:
            with contextlib.suppress(UnicodeDecodeError):
                return self.data.decode("utf-8")
        found, _ = encoding_of(self.data)
        what = f"a text file in {found.upper()}, not" if found != "utf-8" else "not a text file in"
        raise GgufSpecError(f"{path} is {what} UTF-8.", "name a text file, or convert it to UTF-8.")

    def encoded(self, text: str) -> bytes:
        """Return the bytes of a new text; lines that did not change keep theirs, and their ends.

        A new line ends as the one that it replaces, or as the one above it.
        """
        text = text.encode("utf-8", errors="replace").decode("utf-8")
        stored = self.data.removeprefix(self._bom.encode()).split(b"\n")
        old = self.text.split("\n")
        lines = [
            (data[:n], data[n:] + b"\n")
            for data, n in zip(stored, (len(one.encode()) for one in old), strict=True)
        ]
        # nothing ends the last line; if it is no longer the last, it ends as the others
        lines[-1] = (lines[-1][0], lines[-2:][0][1])
        for hunk in reversed(hunks_between(old, text.split("\n"))):
            ends = [end for _, end in lines[hunk.start : hunk.end]]
            ends = ends or [lines[max(0, hunk.start - 1)][1]]
            ends += ends[-1:] * (len(hunk.new) - len(ends))
            lines[hunk.start : hunk.end] = [
                (line.encode(), end) for line, end in zip(hunk.new, ends, strict=False)
            ]
        return self._bom.encode() + b"".join(one + end for one, end in lines)[: -len(lines[-1][1])]

    def check_place(self, path: Path | None = None) -> None:
        """Raise a GgufSpecError if the file, or another one, cannot be written."""
        from tempfile import TemporaryFile

        with self._place(path) as target:
            if not is_device(target):
                is_writable(target)
                TemporaryFile(dir=target.parent).close()

    def write(self, text: str, path: Path | None = None) -> None:
        """Replace the file, or write another one, completely or not at all.

        Args:
            text: The new text, with line feeds.
            path: Another file; None replaces the file itself.

        Raises:
            GgufSpecError: The file cannot be written, or another program has changed it.
        """
        with self._place(path) as target:
            data = self.encoded(text)
            if path is None:
                self._check_unchanged(self.data)
                self._written = data
                self.is_undoable = Undo().keep(self.path, self.data, data)
            _replace(target, data, None if path else lambda: self._check_unchanged(self.data))

    def take_back(self) -> None:
        """Give the file the bytes that it had when it was read, unless it still has them.

        Raises:
            GgufSpecError: It cannot be written, or another program has changed it since `write`.
        """
        with self._place(None) as target:
            if (written := self._written) is not None and target.read_bytes() != self.data:
                self._check_unchanged(written)
                _replace(target, self.data, lambda: self._check_unchanged(written))

    def _check_unchanged(self, data: bytes) -> None:
        if self.path.read_bytes() != data:
            fact = f"another program has changed {self.path}; nothing was written."
            raise GgufSpecError(fact, "run the command again.")

    @contextlib.contextmanager
    def _place(self, path: Path | None) -> Iterator[Path]:
        """Yield the file to write; errors of the system name it."""
        target = self.path if path is None else path
        with contextlib.suppress(OSError):
            target = target if is_device(target) else target.resolve()
        try:
            yield target
        except OSError as error:
            fact = f"{target} cannot be written: {error.strerror}."
            hint = f"{remedy(error)}, or name another file with --output."
            raise GgufSpecError(fact, hint) from None


def _replace(target: Path, data: bytes, check: Callable[[], object] | None = None) -> None:
    with atomic_write(target, private=False, check=check) as part:
        part.write_bytes(data)


class Undo:
    """Texts of files before they were changed, in the folder of this user's state."""

    def __init__(self, most: int = _MOST_KEPT, now: Callable[[], int] = time.time_ns) -> None:
        """Use the folder; nothing is read yet.

        Args:
            most: Largest number of texts, and of patches, that are kept.
            now: Returns the clock, in nanoseconds.
        """
        self.folder: Path = state_folder() / "edits"
        self._most, self._now = most, now

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries, oldest first; one that is not whole is left out."""
        found = []
        for path in sorted(self.folder.glob(f"{'[0-9]' * 20}.json")):
            with contextlib.suppress(OSError, ValueError):
                entry = json.loads(path.read_text(encoding="utf-8"))
                if isinstance(entry, dict) and {"path", "before", "after"} <= entry.keys():
                    found.append(entry | {"name": path.stem, "text": path.with_suffix(".text")})
        return found

    def keep(self, path: Path, before: bytes, after: bytes) -> bool:
        """Keep the text of a file before a change; return whether that was possible."""
        last = max((int(one["name"]) for one in self.entries()), default=0)
        name = f"{max(self._now(), last + 1):020}"  # also if the clock was set back
        entry = {"path": str(path), "before": _hash(before), "after": _hash(after)}
        try:
            self._put(f"{name}.text", before)
            self._put(f"{name}.json", json.dumps(entry).encode())
            self._tidy()
        except OSError:
            return False
        return True

    def keep_patch(self, name: str, changes: bytes) -> Path | None:
        """Keep a patch that was not written; return its place, or None if that is not possible."""
        path = with_end(self.folder / name, ".patch")
        try:
            self._put(path.name, changes)
            others = [one for one in self.folder.glob("*.patch") if one != path]
            for other in sorted(others, key=lambda one: one.stat().st_mtime_ns)[: 1 - self._most]:
                other.unlink(missing_ok=True)
        except OSError:
            return None
        return path

    def _put(self, name: str, data: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic_write(self.folder / name, is_ours=True) as part:
            part.write_bytes(data)

    def _tidy(self) -> None:
        """Remove texts that are too old, and those of processes that ended between two files."""
        n_bytes, oldest = 0, ""
        for entry in reversed(self.entries()[-self._most :]):
            n_bytes += entry["text"].stat().st_size if entry["text"].exists() else 0
            if oldest and n_bytes > _MOST_KEPT_BYTES:
                break
            oldest = entry["name"]
        for path in self.folder.glob(f"{'[0-9]' * 20}.*"):
            if path.suffix in {".json", ".text"} and path.stem < oldest:
                path.unlink(missing_ok=True)

    def restore(self, path: Path) -> bool:
        """Give a file the text before its last change; a second call takes that back.

        Returns:
            Whether it can: the text that it had now could be kept.

        Raises:
            GgufSpecError: No change of it is kept, it was changed since, or it cannot be written.
        """
        with contextlib.suppress(OSError):
            path = path.resolve()
        entries = [one for one in self.entries() if one["path"] == str(path)]
        if not entries:
            fact = f"no change of {path} by this command is kept."
            raise GgufSpecError(fact, "use the history of your editor or of git.")
        entry = entries[-1]

        def check() -> None:
            if _hash(path.read_bytes()) != entry["after"]:
                raise GgufSpecError(f"{path} was changed since; nothing was written.", hint)

        try:
            now = path.read_bytes()
            # the last change that led to this text; later ones may not have been written
            entry = next((one for one in reversed(entries) if one["after"] == _hash(now)), entry)
            hint = f"the old text is {entry['text']}."
            before = entry["text"].read_bytes()
            check()
        except OSError as error:
            fact = f"{path} cannot be restored: {error.strerror}."
            raise GgufSpecError(fact, f"the old text is {entry['text']}.") from None
        if _hash(before) != entry["before"]:
            fact = f"the text of {path} that was kept is damaged; nothing was written."
            raise GgufSpecError(fact, f"use the history of your editor or of git; {hint}")
        is_kept = self.keep(path, now, before)
        try:
            _replace(path, before, check)
        except OSError as error:
            fact = f"{path} cannot be written: {error.strerror}."
            raise GgufSpecError(fact, f"{remedy(error)}.") from None
        return is_kept


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---- other files of a project

# Folders that hold what others wrote or a program made.
_NOT_OWN = {
    "__pycache__", "bower_components", "build", "dist", "node_modules", "site-packages", "target",
    "vendor", "venv",
}  # fmt: skip
# Endings of files that use each other's names; every other ending stands for itself.
_FAMILIES = (
    {".py", ".pyi", ".pyx"},
    {".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".mts", ".cts", ".vue", ".svelte"},
    {".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".hxx", ".m", ".mm", ".ino"},
    {".java", ".kt", ".kts", ".scala", ".groovy"},
)
# Entries of folders that are looked at, bytes that are read, and those of a file.
_MOST_ENTRIES, _MOST_SEARCHED, _MOST_FILE_BYTES = 20_000, 64 << 20, 1_000_000


def files_with(name: str, path: Path, most: int = _MOST_ENTRIES) -> set[Path]:
    """Return other source files that have a name of a file, and seem to know that file.

    They stand in its folder, or have its name or the one of its folder in their text. Files of the
    same work tree of git are looked at, without one those of the folder. A tree may be a whole home
    folder, so the search ends after `most` entries of folders, or 64 MiB of text.

    Args:
        name: A name of the file at `path`, which is absolute.
    """
    tree = next((one for one in path.parents if (one / ".git").exists()), None)
    ending = path.suffix.lower()
    endings = next((family for family in _FAMILIES if ending in family), {ending})
    word = re.compile(rb"(?<!\w)%b(?!\w)" % re.escape(name.encode()))
    near = re.compile(rb"(?<!\w)(?:%b|%b)(?!\w)" % (
        re.escape(path.stem.encode()), re.escape(path.parent.name.encode())
    ))  # fmt: skip
    found, n_seen, n_bytes = set[Path](), 0, 0
    for where, folders, names in os.walk(tree or path.parent):
        n_seen += len(folders) + len(names)
        is_own = (one for one in folders if one not in _NOT_OWN and not one.startswith("."))
        folders[:] = sorted(is_own) if tree else []
        for other in (Path(where, one) for one in sorted(names)):
            if other.suffix.lower() not in endings or other == path or other.is_symlink():
                continue
            with contextlib.suppress(OSError):
                size = other.stat().st_size  # 0 of a pipe, which would not end
                data = other.read_bytes() if 0 < size <= _MOST_FILE_BYTES else b""
                n_bytes += len(data)
                if word.search(data) and (other.parent == path.parent or near.search(data)):
                    found.add(other)
        if n_seen > most or n_bytes > _MOST_SEARCHED:
            break
    return found
