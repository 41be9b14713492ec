"""Copy of a GGUF file with other metadata and fewer rows of some tensors.

Rows of a tensor are contiguous, so quantised rows are copied as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from gguf_spec.errors import NotAModelError
from gguf_spec.gguf.header import Header, Reader, Tensor
from gguf_spec.gguf.writing import TensorInfo, Value, padded, write_head

# bytes of an array before its items: two types and a length
_HEAD = 16
# bytes that are copied at once
_PIECE = 1 << 20


def array_items(value: bytes, size: int) -> list[bytes]:
    """Return the items of an array of numbers with `size` bytes each."""
    return [value[at : at + size] for at in range(_HEAD, len(value), size)]


class _Values(Reader):
    """Reads a header, and notes where its metadata stand: key -> start and end in the file."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        super().__init__(file, path, path.stat().st_size)
        self.places: dict[str, tuple[int, int]] = {}

    def value(self, key: str) -> tuple[str, Any]:
        start, found = self.at, super().value(key)
        self.places[key] = start, self.at
        return found


def read_values(header: Header) -> list[Value]:
    """Return the metadata of a file whose header was read before.

    Raises:
        NotAModelError: The file changed after that.
    """
    try:
        with header.path.open("rb") as file:
            reader = _Values(file, header.path)
            now = reader.header()
    except (OSError, NotAModelError) as error:
        raise _changed(header.path) from error
    if [*now.metadata] != [*header.metadata] or now.data_at != header.data_at:
        raise _changed(header.path)
    return [Value(key, reader.data[start:end]) for key, (start, end) in reader.places.items()]


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
                raise _changed(header.path)
            out.write(piece)
            left -= len(piece)
        done += row
    return done


def _changed(path: Path) -> NotAModelError:
    """Return the error for a file that changed after its header was read."""
    return NotAModelError(path, f"{path.name} changed while it was read.", "try again.")
