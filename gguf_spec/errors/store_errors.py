"""Errors about models files, downloads and files on this disk."""

from __future__ import annotations

from pathlib import Path

from .base import GgufSpecError


class InvalidModelsFileError(GgufSpecError):
    """A models file is unreadable or contains an invalid value.

    Attributes:
        path: The file.
        line: Line number, from 1, or None if the error concerns the whole file.
        key: The key with its parent keys, as in `models.smollm2-1.7b.draft`, or None.
    """

    def __init__(
        self, path: Path, message: str, hint: str, line: int | None = None, key: str | None = None
    ) -> None:
        super().__init__(f"{path}{f', line {line}' if line else ''}: {message}", hint)
        self.path, self.line, self.key = path, line, key


class StoreError(GgufSpecError):
    """A model cannot be downloaded, or is not on this disk.

    Attributes:
        name: The model name as requested.
    """

    def __init__(self, name: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.name = name


class NotDownloadedError(StoreError):
    """The model, or one of its files, is not on this disk."""


class NotOnHubError(StoreError):
    """The hub has no such repository, revision or file.

    Attributes:
        what: The missing item: `repository`, `revision` or `file`.
    """

    def __init__(self, name: str, what: str, message: str, hint: str) -> None:
        super().__init__(name, message, hint)
        self.what = what


class AccessDeniedError(StoreError):
    """The hub denies this user access to the model.

    Causes: a licence that must be accepted first, a private repository, or an invalid token.
    """


class UnreachableError(StoreError):
    """The hub cannot be reached.

    Causes: no network, an unknown host, a proxy that refuses the connection, or a timeout.
    """


class HubError(StoreError):
    """The hub responded, but did not deliver the file.

    Attributes:
        status: The HTTP status, or None if the status is not the cause.
    """

    def __init__(self, name: str, status: int | None, message: str, hint: str) -> None:
        super().__init__(name, message, hint)
        self.status = status


class PackageError(StoreError):
    """A model cannot be taken from a package of pip's index.

    Attributes:
        what: The missing or wrong item: `pip`, `index`, `version`, `wheel` or `member`.
    """

    def __init__(self, name: str, what: str, message: str, hint: str) -> None:
        super().__init__(name, message, hint)
        self.what = what


class NoSpaceError(StoreError):
    """The disk is full, or the download would fill it.

    Attributes:
        needed_bytes: Bytes to be written, or None if unknown.
        free_bytes: Free bytes on the disk, or None if unknown.
    """

    def __init__(
        self,
        name: str,
        message: str,
        needed_bytes: int | None,
        free_bytes: int | None,
        variable: str = "HF_HOME",
    ) -> None:
        super().__init__(
            name, message, f"free disk space, or set {variable} to a folder on another disk."
        )
        self.needed_bytes, self.free_bytes = needed_bytes, free_bytes


class CorruptFileError(StoreError):
    """The size or checksum of a file is wrong.

    Attributes:
        expected: The expected size in bytes or sha256.
        found: The actual size in bytes or sha256.
    """

    def __init__(self, name: str, message: str, hint: str, expected: object, found: object) -> None:
        super().__init__(name, message, hint)
        self.expected, self.found = expected, found


class BatchFileError(GgufSpecError):
    """A file with requests or results cannot be used, or the two do not belong together.

    Attributes:
        path: The file.
        line: Line number, from 1, or None if the error concerns the whole file.
    """

    def __init__(self, path: Path, message: str, hint: str, line: int | None = None) -> None:
        super().__init__(message, hint)
        self.path, self.line = path, line
