"""Copy of a GGUF file with other metadata and fewer rows of some tensors.

Rows of a tensor are contiguous, so quantised rows are copied as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..errors import NotAModelError, OutputFileError, Text
from ..system.files import is_device
from .header import Header, Tensor

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_STRING, _ARRAY, _TYPE_U32, _TYPE_I32, _TYPE_F32 = 8, 9, 4, 5, 6
# bytes of an array before its items: two types and a length
_HEAD = 16
# bytes that are copied at once
_PIECE = 1 << 20


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
    if any(target.exists() and target.samefile(file) for file in header.parts):
        raise refuse("is the model itself", "choose another name.")
    if target.exists() and not target.is_file():
        raise refuse("is not a file", "name the file to write, such as small.gguf.")
    if target.exists() and not force:
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
        return _U32.pack(_STRING) + _counted(value)
    if isinstance(value, int):
        return struct.pack("<II", _TYPE_U32, value)
    if isinstance(value, float):
        return struct.pack("<If", _TYPE_F32, value)
    if isinstance(value[0], bytes):
        kind, items = _STRING, b"".join(map(_counted, value))
    else:
        kind, form = (_TYPE_I32, "i") if isinstance(value[0], int) else (_TYPE_F32, "f")
        items = struct.pack(f"<{len(value)}{form}", *value)
    return struct.pack("<IIQ", _ARRAY, kind, len(value)) + items


def array_items(value: bytes, size: int) -> list[bytes]:
    """Return the items of an array of numbers with `size` bytes each."""
    return [value[at : at + size] for at in range(_HEAD, len(value), size)]


def read_values(header: Header) -> list[Value]:
    """Return the metadata of a file whose header was read before.

    Raises:
        NotAModelError: The file changed after that.
    """
    try:
        with header.path.open("rb") as file:
            data = file.read(header.data_at)
    except OSError as error:
        raise changed(header.path) from error
    for key, (start, _) in header.places.items():
        begin = _counted(key)
        if "\N{REPLACEMENT CHARACTER}" not in key and data[start - len(begin) : start] != begin:
            raise changed(header.path)
    return [Value(key, data[start:end]) for key, (start, end) in header.places.items()]


def write_with_rows(
    header: Header,
    out: BinaryIO,
    values: Sequence[Value],
    rows: Mapping[str, Sequence[int]],
    on_tensor: Callable[[int], object],
) -> None:
    """Write a GGUF file.

    Args:
        header: Header of the source; its files are read.
        rows: Name of a tensor -> ascending numbers of the rows to keep; others are kept whole.
        on_tensor: Called with the number of written tensors.

    Raises:
        NotAModelError: The source changed after its header was read.
        OSError: A file cannot be read or written.
    """
    alignment = int(header.metadata.get("general.alignment", 32))
    tensors = []
    for tensor in header.tensors:
        kept = rows.get(tensor.name)
        shape = tensor.shape if kept is None else (*tensor.shape[:-1], len(kept))
        n_bytes = tensor.n_bytes // tensor.shape[-1] * shape[-1]
        tensors.append(TensorInfo(tensor.name, shape, tensor.type, n_bytes))
    write_head(out, values, tensors, alignment)
    files = [path.open("rb") for path in header.parts]
    try:
        for i, tensor in enumerate(header.tensors, 1):
            source = files[tensor.part]
            n = _copy(source, tensor, rows.get(tensor.name), out, header)
            out.write(b"\0" * (padded(n, alignment) - n))
            on_tensor(i)
    finally:
        for file in files:
            file.close()


def write_head(
    out: BinaryIO, values: Sequence[Value], tensors: Sequence[TensorInfo], alignment: int = 32
) -> None:
    """Write all of a GGUF file that comes before the data of its first tensor."""
    head = [b"GGUF", _U32.pack(3), _U64.pack(len(tensors)), _U64.pack(len(values))]
    head += [_counted(value.key) + value.data for value in values]
    offset = 0
    for tensor in tensors:
        head += [_counted(tensor.name), _U32.pack(len(tensor.shape))]
        head += [*map(_U64.pack, tensor.shape), _U32.pack(tensor.type), _U64.pack(offset)]
        offset += padded(tensor.n_bytes, alignment)
    data = b"".join(head)
    out.write(data.ljust(padded(len(data), alignment), b"\0"))


def _copy(
    source: BinaryIO, tensor: Tensor, kept: Sequence[int] | None, out: BinaryIO, header: Header
) -> int:
    """Copy a tensor, or some of its rows, and return the number of bytes."""
    row = tensor.n_bytes // tensor.shape[-1] if kept is not None else tensor.n_bytes
    start, done = header.parts_at[tensor.part] + tensor.offset, 0
    for number in kept if kept is not None else (0,):
        source.seek(start + number * row)
        left = row
        while left:
            piece = source.read(min(left, _PIECE))
            if not piece:
                raise changed(header.path)
            out.write(piece)
            left -= len(piece)
        done += row
    return done


def changed(path: Path) -> NotAModelError:
    """Return the error for a file that changed after its header was read."""
    return NotAModelError(path, f"{path.name} changed while it was read.", "try again.")


def _counted(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return _U64.pack(len(data)) + data


def padded(n: int, alignment: int = 32) -> int:
    """Return a number of bytes, rounded up."""
    return -(-n // alignment) * alignment
