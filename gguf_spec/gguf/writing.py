"""GGUF files that are written here, and where."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..errors import OutputFileError, Text
from ..system.files import is_device, version
from .header import Header

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_STRING, _ARRAY, _TYPE_U32, _TYPE_I32, _TYPE_F32 = 8, 9, 4, 5, 6


def check_place(header: Header, target: Path, force: bool) -> None:
    """Reject a target that must not be overwritten.

    Args:
        force: Whether an existing file may be replaced.

    Raises:
        OutputFileError: The target is no device, and its folder does not exist, it is a part of
            the source or not a file, or it exists without `force`.
    """

    def refuse(fact: str, hint: str) -> OutputFileError:
        return OutputFileError("target", target, f"{target} {fact}.", hint)

    if is_device(target):
        return
    if not target.parent.is_dir():
        raise refuse("is in a folder that does not exist", f"create the folder {target.parent}.")
    is_there = bool(version(target))
    if any(is_there and target.samefile(file) for file in header.parts):
        raise refuse("is the model itself", "choose another name.")
    if is_there and not target.is_file():
        raise refuse("is not a file", "name the file to write, such as small.gguf.")
    if is_there and not force:
        hint = Text("choose another name, or set {force=True} to replace the file.")
        raise refuse("exists", hint)


class Value(NamedTuple):
    """A metadata value as stored: its key, and the bytes of its type and value."""

    key: str
    data: bytes


class TensorInfo(NamedTuple):
    """Description of a tensor: its name, shape (columns first), ggml type and size."""

    name: str
    shape: Sequence[int]
    type: int
    n_bytes: int


def encoded(value: str | float | Sequence[Any]) -> bytes:
    """Return a metadata value: a text, a number, or a not empty array of bytes or numbers.

    Integers are stored as u32, those of an array as i32, and other numbers as f32.
    """
    if isinstance(value, str):
        return _U32.pack(_STRING) + counted(value)
    if isinstance(value, int):
        return struct.pack("<II", _TYPE_U32, value)
    if isinstance(value, float):
        return struct.pack("<If", _TYPE_F32, value)
    if isinstance(value[0], bytes):
        kind, items = _STRING, b"".join(map(counted, value))
    else:
        kind, form = (_TYPE_I32, "i") if isinstance(value[0], int) else (_TYPE_F32, "f")
        items = struct.pack(f"<{len(value)}{form}", *value)
    return struct.pack("<IIQ", _ARRAY, kind, len(value)) + items


def write_head(
    out: BinaryIO, values: Sequence[Value], tensors: Sequence[TensorInfo], alignment: int = 32
) -> None:
    """Write all of a GGUF file that comes before the data of its first tensor."""
    head = [b"GGUF", _U32.pack(3), _U64.pack(len(tensors)), _U64.pack(len(values))]
    head += [counted(value.key) + value.data for value in values]
    offset = 0
    for tensor in tensors:
        head += [counted(tensor.name), _U32.pack(len(tensor.shape))]
        head += [*map(_U64.pack, tensor.shape), _U32.pack(tensor.type), _U64.pack(offset)]
        offset += padded(tensor.n_bytes, alignment)
    data = b"".join(head)
    out.write(data.ljust(padded(len(data), alignment), b"\0"))


def counted(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return _U64.pack(len(data)) + data


def padded(n: int, alignment: int = 32) -> int:
    """Return a number of bytes, rounded up."""
    return -(-n // alignment) * alignment
