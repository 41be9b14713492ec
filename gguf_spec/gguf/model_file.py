"""A GGUF model on the disk: its path, its header and its fingerprints, each read once."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from ..system.cache import content_id
from .embeddings import embeds_only
from .header import Header
from .validation import check_generates_text, check_model, read_header


class ModelFile:
    """A file with a model.

    The file is read on first use of a property; later uses take what was read.

    Attributes:
        path: The file, or the first file of a split model.
    """

    def __init__(self, path: Path, *, may_embed: bool = False, as_draft: bool = False) -> None:
        """Name a file. It is not opened yet.

        Args:
            path: The file.
            may_embed: Whether it may be a model that computes embeddings only.
            as_draft: The model only drafts, so its vocabulary may be trimmed.
        """
        self.path, self._may_embed, self._as_draft = path, may_embed, as_draft

    @cached_property
    def header(self) -> Header:
        """The header, after all checks.

        Raises:
            ModelError: The file is missing or damaged, or generates no text.
        """
        header = read_header(self.path)
        if self._may_embed:
            check_model(header)
        else:
            check_generates_text(header, self._as_draft)
        return header

    @cached_property
    def embeds_only(self) -> bool:
        """Whether the model computes embeddings and generates no text."""
        return embeds_only(self.header)

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
