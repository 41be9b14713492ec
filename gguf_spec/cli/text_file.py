"""A text file: read as text, and replaced at once or not at all."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import GgufSpecError
from ..system.files import is_device

__all__ = ["TextFile", "is_device"]

# No context holds a longer text; a byte is rarely more than one token.
MOST_BYTES = 4_000_000
_BOM = "\ufeff"


def read_any(source: Path | BinaryIO) -> str:
    """Return the text of a file or stream in any encoding, as `system.files.read_text`.

    Raises:
        OSError, ValueError: It cannot be read, or is longer than any context.
    """
    from ..system.files import read_text

    return read_text(source)


class TextFile:
    """A text file: its text with line feeds, and how it is stored.

    Attributes:
        path: The file; a link is followed.
        text: The text, without a byte order mark and with line feeds only.
    """

    def __init__(self, path: Path) -> None:
        """Read a file.

        Raises:
            GgufSpecError: It cannot be read, is empty or too long, or is not text in UTF-8.
        """
        self.path = path
        try:
            self.path = path.resolve(strict=True)
            with self.path.open("rb") as file:  # a device has no size, nor an end
                self._data = file.read(MOST_BYTES + 1)
            if len(self._data) > MOST_BYTES:
                n = max(self.path.stat().st_size, len(self._data))
                raise GgufSpecError(
                    f"{path} has {n:,} bytes, which no context holds.", "split the file."
                )
        except OSError as error:
            raise GgufSpecError(
                f"{path} cannot be read: {error.strerror}.", "check the file and its permissions."
            ) from None
        text = self._decoded(path)
        self._bom = _BOM if text.startswith(_BOM) else ""
        text = text[len(self._bom) :]
        n_crlf = text.count("\r\n")
        self._newline = "\r\n" if 2 * n_crlf > text.count("\n") else "\n"
        self.text = text.replace("\r\n", "\n") if n_crlf else text
        if not self.text.strip():
            raise GgufSpecError(f"{path} is empty.", "name a file with text.")

    def _decoded(self, path: Path) -> str:
        if b"\0" not in self._data:
            with contextlib.suppress(UnicodeDecodeError):
                return self._data.decode("utf-8")
        from ..system.files import encoding_of

        found, _ = encoding_of(self._data)
        what = f"a text file in {found.upper()}, not" if found != "utf-8" else "not a text file in"
        raise GgufSpecError(f"{path} is {what} UTF-8.", "name a text file, or convert it to UTF-8.")

    def encoded(self, text: str) -> bytes:
        """Return the bytes of a new text, stored as the old one."""
        text = text.encode("utf-8", errors="replace").decode("utf-8")
        return (self._bom + text.replace("\n", self._newline)).encode("utf-8")

    def check_place(self, path: Path | None = None) -> None:
        """Check that the file, or another one, can be written.

        Raises:
            GgufSpecError: It cannot.
        """
        from tempfile import TemporaryFile

        with self._place(path) as target:
            if not is_device(target):
                TemporaryFile(dir=target.parent).close()

    def write(self, text: str, path: Path | None = None) -> None:
        """Replace the file, or write another one, completely or not at all.

        Args:
            text: The new text, with line feeds.
            path: Another file; None replaces the file itself.

        Raises:
            GgufSpecError: The file cannot be written, or another program has changed it.
        """
        from ..system.files import atomic_write

        with self._place(path) as target:
            if path is None and self.path.read_bytes() != self._data:
                raise GgufSpecError(
                    f"another program has changed {self.path}; nothing was written.",
                    "run the command again.",
                )
            with atomic_write(target, private=False) as part:
                part.write_bytes(self.encoded(text))
                if target.exists() and not is_device(target):
                    shutil.copymode(target, part)

    @contextlib.contextmanager
    def _place(self, path: Path | None) -> Iterator[Path]:
        """Yield the file to write; errors of the system name it."""
        target = self.path if path is None else path
        with contextlib.suppress(OSError):
            target = target if is_device(target) else target.resolve()
        try:
            yield target
        except OSError as error:
            raise GgufSpecError(
                f"{target} cannot be written: {error.strerror}.",
                "check its folder and its permissions, or name another file with --output.",
            ) from None
