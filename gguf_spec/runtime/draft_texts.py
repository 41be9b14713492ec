"""The store of texts and counts for drafts: the option, its file, and the files of a folder.

The file is a piece beside the kept prompts (`system.piece_folder`), one for each target with its
quantisation and adapters. It is read when the model is loaded and written when it is closed, as a
whole. If another process has written or removed it meanwhile, what this one added joins what is
there. One that is torn, foreign, or cannot be written is no error: drafts begin without it.
"""

from __future__ import annotations

import logging
import os
import secrets
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import InvalidOptionError
from ..gguf.validation import ModelFile
from ..llama.sequence import CachedSequence
from ..speculative.drafters import DraftStore
from ..system.files import absolute, read_text
from ..system.piece_folder import Piece, PieceFolder, drafts_folder

_LOG = logging.getLogger("gguf_spec.kept")
WORDS = ("off", "memory", "disk")
# Bytes of all stores in the cache folder, and of a file whose text is read.
_LIMIT, _MOST_FILE = 1_000_000_000, 1 << 20
# Files of a folder that are read, and their bytes in all; newer ones are read first.
_MOST_FILES, _MOST_BYTES = 10_000, 8 << 20
# Newest tokens that are counted again in the file of another process.
_MOST_COUNTED = 20_000
# Folders that have no texts of the user.
_SKIPPED = frozenset(("node_modules", "__pycache__", "site-packages", "target", "build", "dist"))


def folder_of_option(given: object) -> Path | None:
    """Return the folder or the file that the option `draft_texts` names; None for a word.

    Raises:
        InvalidOptionError: It is neither a word nor there.
    """
    if given in WORDS:
        return None
    if isinstance(given, (str, os.PathLike)) and given:
        with suppress(OSError, ValueError, RuntimeError):
            path = Path(given).expanduser()
            if path.exists():
                return absolute(path)
    allowed = "off, memory, disk, or a folder or file with texts"
    raise InvalidOptionError("draft_texts", given, allowed)


class DraftTexts:
    """A store and its file."""

    def __init__(self, given: object, keep: PieceFolder | None, target: CachedSequence) -> None:
        """Open the store of a target.

        Args:
            given: The option; not `off`.
            keep: The folder of kept prompts, which then has the store; None for none.
        """
        source = folder_of_option(given)
        self.store: DraftStore = DraftStore()
        self._target = target
        self._files: dict[str, list[int]] = {}
        self._new_files: dict[str, list[int]] = {}
        self._written = ""  # name of what the file held when it was read or written
        self._folder: PieceFolder | None = None
        if keep or given != "memory":
            path, limit = (keep.path, keep.limit) if keep else (drafts_folder(), _LIMIT)
            folder = PieceFolder(path, limit, "drafts")
            self._folder = folder if folder.open() else None
        if self._folder:
            adapters = [(one.content_id, one.scale) for one in target.options.lora]
            self._piece = _piece_of(self._folder, target.file, adapters)
            self._read(self._folder)
        if source:
            self._add_files(source)
        self._n_written: int = self.store.n_added

    def _read(self, folder: PieceFolder) -> None:
        """Take over the store of an earlier process, if it is whole."""
        found = folder.read(self._piece) if folder.has(self._piece) else None
        if found is None:
            return
        about, data = found
        try:
            n = int(about["n_bytes"])
            self.store.restore(data[:n], data[n:])
            self._files = {str(name): [*map(int, one)] for name, one in about["files"].items()}
            self._written = str(about["written"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _LOG.debug("the texts for drafts cannot be used (%s).", error)
            self.store.clear()
            self._files = {}

    def _join(self, folder: PieceFolder) -> None:
        """Add what is new here to the file of another process; if it was removed, to nothing."""
        if self._written == str(folder.about(self._piece).get("written", "")):
            return
        n_new = self.store.n_added - self._n_written
        new = self.store.texts.newest()[-n_new:]
        self.store.clear()
        self._files = {}
        self._read(folder)
        self.store.add(new)
        n_left_out = max(len(new) - _MOST_COUNTED, 0)
        for i in range(n_left_out + 3, len(new)):
            self.store.count(new[i - 3 : i], new[i])
        self._files |= self._new_files

    def _add_files(self, source: Path) -> None:
        """Add the texts of files that were not added before, as they are now."""
        n_left = _MOST_BYTES
        for path, size, changed in sorted(_files(source), key=lambda one: -one[2]):
            n_left -= size
            if n_left < 0:
                return
            if self._files.get(str(path)) == [size, changed]:
                continue
            with suppress(OSError, ValueError):
                with path.open("rb") as file:
                    if b"\0" in file.read(1024):
                        continue
                tokens = self._target.weights.tokenize(read_text(path), special=False, start=False)
                self.store.add([int(token) for token in tokens])
                self._files[str(path)] = self._new_files[str(path)] = [size, changed]

    def close(self) -> None:
        """Write the store if it has changed."""
        folder, store = self._folder, self.store
        if folder is None or store.n_added == self._n_written:
            return
        self._join(folder)
        written = secrets.token_hex(8)
        tokens, entries = store.to_bytes()
        about: dict[str, Any] = {
            "model": self._target.path.name,
            "title": "(texts for drafts)",
            "n_bytes": len(tokens),
            "files": self._files,
            "written": written,
        }
        if folder.write(self._piece, about, [tokens, entries]):
            self._n_written, self._written = store.n_added, written

    def forget(self) -> None:
        """Remove all texts and counts."""
        self.store.clear()
        self._files, self._new_files, self._n_written, self._written = {}, {}, 0, ""
        if self._folder:
            self._folder.remove(self._piece)


def _piece_of(
    folder: PieceFolder, target: ModelFile, adapters: Sequence[tuple[str, float]] = ()
) -> Piece:
    root = folder.name("", repr((target.content_id, [*adapters])).encode())
    return Piece(root, folder.name(root, b"drafts"), 0)


def stored_tokens(target: ModelFile) -> list[int]:
    """Return the tokens that the cache folder has of a target without adapters, the oldest first.

    None are there if the store was never used, or is not whole.
    """
    path = drafts_folder()
    folder = PieceFolder(path, _LIMIT, "drafts")
    if not (path.is_dir() and folder.open()):
        return []
    piece = _piece_of(folder, target)
    about, data = (folder.read(piece) if folder.has(piece) else None) or ({}, memoryview(b""))
    try:
        kept = array("i", bytes(data[: int(about["n_bytes"])]))
    except (KeyError, TypeError, ValueError):
        return []
    return kept.tolist()


def _files(source: Path) -> Iterator[tuple[Path, int, int]]:
    """Yield the files of a folder, their sizes and times of change; hidden ones are left out."""
    n = 0
    for folder, below, names in (
        os.walk(source) if source.is_dir() else [(str(source.parent), [], [source.name])]
    ):
        below[:] = sorted(one for one in below if one not in _SKIPPED and one[0] != ".")
        for name in sorted(names):
            path = Path(folder, name)
            with suppress(OSError):
                found = path.stat(follow_symlinks=False)
                if path.is_file() and not path.is_symlink() and found.st_size <= _MOST_FILE:
                    yield path, found.st_size, found.st_mtime_ns
                    n += 1
            if n >= _MOST_FILES:
                return
