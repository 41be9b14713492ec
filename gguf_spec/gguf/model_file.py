"""A GGUF model on the disk: its path, its header and its fingerprints, each read once."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from ..system.cache import content_id
from .header import Header
from .validation import check_generates_text, read_header


class ModelFile:
    """A file with a model that generates text.

    The file is read on first use of a property; later uses take what was read.

    Attributes:
        path: The file, or the first file of a split model.
    """

    def __init__(self, path: Path) -> None:
        """Name a file. It is not opened yet."""
        self.path = path

    @cached_property
    def header(self) -> Header:
        """The header, after all checks.

        Raises:
            ModelError: The file is missing or damaged, or generates no text.
        """
        header = read_header(self.path)
        check_generates_text(header)
        return header

    @cached_property
    def content_id(self) -> str:
        """Hash of the content, under which measurements are stored."""
        return content_id(self.path)

    @cached_property
    def identity(self) -> tuple[str, int, int]:
        """Real path, size and modification time."""
        real = self.path.resolve()
        stat = real.stat()
        return str(real), stat.st_size, stat.st_mtime_ns
