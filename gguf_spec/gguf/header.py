"""The header of a GGUF file as data, and its reader with a limit on every size in the file.

No part of the file is trusted.

The limits are far above real models, and low enough that reading or rejecting a file takes less
than a second and less than 256 MiB.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..errors import NotAModelError
from .architectures import Architecture, architecture

# metadata key of the tokens
TOKENS = "tokenizer.ggml.tokens"
# metadata keys of a trimmed vocabulary: the kept token ids, the number of tokens of the whole one,
# and where behind the tensors the embeddings of all tokens are
IDS, SIZE, ROWS = "gguf_spec.trim.ids", "gguf_spec.trim.size", "gguf_spec.trim.rows"
# ggml type of tables of token ids
I64 = 27
# tensor of an EAGLE-3 head: for each of its tokens the id in the vocabulary
TOKEN_TABLE = "d2t"

# bytes of the file before the tensor data
MAX_HEADER = 64 << 20
# tensors, and key-value pairs
_MAX_TENSORS = _MAX_PAIRS = 1 << 16
# strings in all arrays together
_MAX_STRINGS = 1 << 21
# tokens; twice the size of the largest vocabularies
MAX_TOKENS = 1 << 19
# bytes of kept strings and of tokens together
_MAX_TEXT = 32 << 20
# numbers in all kept arrays together
_MAX_KEPT = 1 << 18
# numbers in a kept array
_MAX_ARRAY_KEPT = 1024
# values in one tensor
_MAX_VALUES = 1 << 63

# type of a metadata value -> (name, binary format)
_SCALARS = {
    kind: (name, struct.Struct("<" + form))
    for kind, name, form in (
        (0, "u8", "B"), (1, "i8", "b"), (2, "u16", "H"), (3, "i16", "h"), (4, "u32", "I"),
        (5, "i32", "i"), (6, "f32", "f"), (7, "bool", "?"), (10, "u64", "Q"), (11, "i64", "q"),
        (12, "f64", "d"),
    )
}  # fmt: skip
# further types of a metadata value
_STRING, _ARRAY = 8, 9
_U32, _U64 = _SCALARS[4][1], _SCALARS[10][1]
# ggml type -> (values per block, bytes per block). The size of a missing, newer type is unknown.
# fmt: off
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24),
    8: (32, 34), 9: (32, 36), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176),
    14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50),
    20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2),
    26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54),
    35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18),
}
# fmt: on
# ggml types that llama.cpp has removed
_REMOVED = {4, 5, 31, 32, 33, 36, 37, 38}
# ggml types that are not used for weights: formats of intermediate results, integers, doubles;
# llama.cpp cannot multiply with them
_NO_WEIGHTS = {9, 15, 24, 25, 27, 28}
# escaped bytes in the tokens of an RWKV vocabulary
_ESCAPES = {9: b"\\t", 10: b"\\n", 13: b"\\r", 39: b"\\'", 92: b"\\\\"}
# Tokenizers that need a token for each byte -> its possible spellings. Without such a token
# llama.cpp aborts the process or loops forever.
_SPELLED: dict[Any, Callable[[int], set[bytes]]] = {
    "llama": lambda byte: {b"<0x%02X>" % byte, bytes([byte])},
    "rwkv": lambda byte: {b"\\x%02x" % byte, _ESCAPES.get(byte, bytes([byte]))},
}


@dataclass(frozen=True)
class ArrayLength:
    """Length of an array whose values were not kept."""

    n: int


class Tensor(NamedTuple):
    """Position and type of a tensor.

    Attributes:
        shape: Size of each dimension; the first is the length of a row.
        type: Number of its ggml type.
        offset: Start of its data in bytes, relative to `data_at` of its file.
        n_bytes: Size of its data; 0 if its type is newer than this package.
        part: Index of the file of a split model that contains it, from 0.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    n_bytes: int
    part: int = 0


@dataclass(frozen=True)
class Header:
    """The header of a GGUF file, or the joined headers of a split model.

    Attributes:
        path: The file, or the first file of a split model.
        metadata: Its scalar values and strings. An array of at most 1,024 numbers is a tuple, and
            so are the kept ids of a trimmed vocabulary; any other array is an `ArrayLength`.
        file_bytes: Size of the file, or of all files of a split model, without the embeddings that
            a trimmed draft has behind its tensors: llama.cpp does not load these.
        kinds: The type of each value in llama.cpp's notation, such as `u32`; `[str]` for an array
            of strings.
        tensors: Positions and types of the tensors.
        tokens_at: Byte in the file at which the first token's string starts, with its length; None
            without tokens.
        data_at: Byte in the file at which the tensor data starts.
        parts: The files: one, or all files of a split model in order.
        parts_at: As `data_at`, for each of these files.
    """

    path: Path
    metadata: dict[str, Any]
    n_tensors: int
    file_bytes: int
    kinds: dict[str, str] = field(default_factory=dict)
    tensors: tuple[Tensor, ...] = ()
    tokens_at: int | None = None
    data_at: int = 0
    parts: tuple[Path, ...] = ()
    parts_at: tuple[int, ...] = ()

    @property
    def architecture(self) -> str:
        """Name of the model's architecture in llama.cpp."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def facts(self) -> Architecture:
        """Architecture facts that are not in the file."""
        return architecture(self.architecture)

    def tensor(self, name: str) -> Tensor | None:
        return next((one for one in self.tensors if one.name == name), None)

    def of_architecture(self, key: str, default: Any = None) -> Any:
        """Return the value of `<architecture>.<key>`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def whole(self, key: str, default: int = 0) -> int:
        """Return an integer of the architecture; the default if it is missing or out of range."""
        value = self.of_architecture(key)
        return value if isinstance(value, int) and 0 <= value < 1 << 40 else default

    def by_layer(self, key: str, default: int | list[int]) -> list[int]:
        """Return one integer of the architecture for each layer, from a scalar or an array."""
        n_layers = min(self.whole("block_count"), 512)
        value = self.of_architecture(key)
        if isinstance(value, tuple):
            numbers = [
                int(n) if isinstance(n, (int, float)) and 0 <= n < math.inf else 0 for n in value
            ]
            return [*numbers, *[0] * n_layers][:n_layers]
        if isinstance(value, int) and 0 <= value < 1 << 40:
            return [value] * n_layers
        return default if isinstance(default, list) else [default] * n_layers

    def n_values(self, key: str) -> int:
        """Return the length of an array of the metadata; 0 if it is missing or no array."""
        value = self.metadata.get(key)
        if isinstance(value, ArrayLength):
            return value.n
        return len(value) if isinstance(value, tuple) else 0

    def head_lengths(self, kind: str = "") -> tuple[int, int]:
        """Return the lengths of a head's keys and values; 0 if they are unknown.

        Args:
            kind: `_swa` for the layers with a sliding window.
        """
        heads = self.by_layer("attention.head_count", 0)
        width = self.whole("embedding_length") // heads[0] if heads and heads[0] else 0
        names = ("attention.key_length", "attention.value_length")
        key, value = (self.whole(name + kind, self.whole(name, width)) for name in names)
        return key, value


def damaged(path: Path, why: str) -> NotAModelError:
    return NotAModelError(
        path, f"{path.name} is a damaged GGUF file: {why}.", "download or convert it again."
    )


def shown(value: Any) -> str:
    """Return a value from a file for an error message: on one line, with limited length."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    return repr(value[:64] + "..." if isinstance(value, str) and len(value) > 64 else value)


class Reader:
    """Reads the header of an open file; NotAModelError where it is invalid or too large.

    The file is read, not mapped: with a mapping, a file that shrinks during the read would end the
    process.
    """

    at: int
    data: bytes
    file: BinaryIO
    file_bytes: int
    n_kept: int
    n_strings: int
    n_text: int
    path: Path

    def __init__(self, file: BinaryIO, path: Path, file_bytes: int) -> None:
        self.file, self.path, self.file_bytes = file, path, file_bytes
        self.data, self.at = b"", 0
        self.n_strings = self.n_text = self.n_kept = 0
        self.tokens_at: int | None = None
        self.known_tokens: set[bytes] = set()

    def damaged(self, why: str) -> NotAModelError:
        return damaged(self.path, why)

    def need(self, end: int) -> bytes:
        """Return the start of the file, at least up to byte `end`."""
        if end > len(self.data):
            limit = self.file_bytes
            if end <= limit:
                if end > MAX_HEADER:
                    raise self.damaged(f"its header takes more than {MAX_HEADER:,} bytes")
                goal = min(max(end, 2 * len(self.data), 1 << 18), MAX_HEADER, limit)
                self.data += self.file.read(goal - len(self.data))
                limit = len(self.data)
            if end > limit:
                error = self.damaged(f"its header ends at byte {limit:,}, before it is complete")
                error.hint = "download it again; the last download may not have finished."
                raise error
        return self.data

    def skip(self, n: int) -> None:
        self.need(self.at + n)
        self.at += n

    def take(self, form: struct.Struct) -> Any:
        start, self.at = self.at, self.at + form.size
        return form.unpack_from(self.need(self.at), start)[0]

    def count(self, what: str, most: int) -> int:
        n: int = self.take(_U64)
        if n > most:
            raise self.damaged(f"it claims {n:,} {what}")
        return n

    def string(self) -> bytes:
        n = self.count("bytes for one string", MAX_HEADER)
        self.keep_text(n)
        start = self.at
        self.skip(n)
        return self.data[start : self.at]

    def keep_text(self, n: int) -> None:
        self.n_text += n
        if self.n_text > _MAX_TEXT:
            raise self.damaged(f"it contains more than {_MAX_TEXT:,} bytes of names and texts")

    # ---- metadata

    def value(self, key: str) -> tuple[str, Any]:
        kind = self.take(_U32)
        if kind == _STRING:
            return "str", self.string().decode("utf-8", errors="replace")
        if kind in _SCALARS:
            name, form = _SCALARS[kind]
            return name, self.take(form)
        if kind != _ARRAY:
            raise self.damaged(f"it contains a value of the unknown type {kind}")
        return self.array(key)

    def array(self, key: str) -> tuple[str, Any]:
        kind, n = self.take(_U32), self.count("values in one array", MAX_HEADER)
        if kind == _STRING:
            self.n_strings += n
            if self.n_strings > _MAX_STRINGS or (key == TOKENS and n > MAX_TOKENS):
                raise self.damaged(f"it claims {n:,} strings in {shown(key)}")
            self.tokens(n) if key == TOKENS else self.skip_strings(n)
            return "[str]", ArrayLength(n)
        if kind not in _SCALARS:
            raise self.damaged(f"it contains an array of the unknown type {kind}")
        name, form = _SCALARS[kind]
        start = self.at
        self.skip(n * form.size)
        if n > (MAX_TOKENS if key == IDS else _MAX_ARRAY_KEPT):
            return f"[{name}]", ArrayLength(n)
        self.n_kept += 0 if key == IDS else n
        if self.n_kept > _MAX_KEPT:
            raise self.damaged(f"its short arrays contain more than {_MAX_KEPT:,} numbers")
        return f"[{name}]", struct.unpack_from(f"<{n}{form.format[1:]}", self.data, start)

    def skip_strings(self, n: int) -> None:
        """Skip an array of strings; without function calls, as there may be a million strings."""
        data, at, length = self.data, self.at, _U64.unpack_from
        end = len(data)
        for _ in range(n):
            if at + 8 > end:
                data = self.need(at + 8)
                end = len(data)
            at += 8 + length(data, at)[0]
        self.need(at)
        self.at = at

    def tokens(self, n: int) -> None:
        """Check that all tokens are distinct; llama.cpp aborts the process on duplicates."""
        self.tokens_at = self.at
        data, at, length = self.data, self.at, _U64.unpack_from
        end, left = len(data), _MAX_TEXT - self.n_text
        known = self.known_tokens
        for i in range(n):
            start = at + 8
            if start > end:
                data = self.need(start)
                end = len(data)
            at = start + length(data, at)[0]
            left -= at - start
            if at > end:
                if left < 0:
                    break
                data = self.need(at)
                end = len(data)
            known.add(data[start:at].partition(b"\0")[0] or b"[EMPTY_%d]" % i)
        self.keep_text(_MAX_TEXT - self.n_text - left)
        self.at = at
        if len(known) < n:
            raise self.damaged(f"{n - len(known):,} of its {n:,} tokens occur twice")

    def pairs(self, n: int) -> tuple[dict[str, Any], dict[str, str]]:
        metadata: dict[str, Any] = {}
        kinds: dict[str, str] = {}
        known: set[bytes] = set()
        for _ in range(n):
            raw = self.string()
            if raw in known:
                raise self.damaged(f"it contains {shown(raw)} twice")
            known.add(raw)
            key = raw.decode("utf-8", errors="replace")
            kinds[key], metadata[key] = self.value(key)
        return metadata, kinds

    # ---- tensors

    def tensors(self, n: int) -> list[Tensor]:
        found: list[Tensor] = []
        known: set[bytes] = set()
        for _ in range(n):
            raw, n_dims = self.string(), self.take(_U32)
            name = raw.decode("utf-8", errors="replace")
            if raw in known:
                raise self.damaged(f"it contains the tensor {shown(raw)} twice")
            known.add(raw)
            if not 0 < n_dims <= 4:
                raise self.damaged(f"the tensor {shown(raw)} has {n_dims:,} dimensions")
            shape = tuple(self.take(_U64) for _ in range(n_dims))
            kind, offset = self.take(_U32), self.take(_U64)
            is_table = (name, kind) == (TOKEN_TABLE, I64)
            n_bytes = self.n_bytes(shown(raw), shape, kind, is_table)
            found.append(Tensor(name, shape, kind, offset, n_bytes))
        return found

    def n_bytes(self, name: str, shape: tuple[int, ...], kind: int, is_table: bool) -> int:
        n_values = math.prod(shape)
        if not 0 < n_values < _MAX_VALUES:
            raise self.damaged(f"the tensor {name} has the shape {shape}")
        if kind in _REMOVED:
            what = "which llama.cpp no longer supports"
            raise self.damaged(f"the tensor {name} is of the type {kind}, {what}")
        if kind in _NO_WEIGHTS and not is_table:
            what = "which is not a type of weights"
            raise self.damaged(f"the tensor {name} is of the type {kind}, {what}")
        if kind not in _BLOCKS:
            return 0
        per_block, n_bytes = _BLOCKS[kind]
        if shape[0] % per_block:
            raise self.damaged(
                f"the tensor {name} has rows of {shape[0]:,} values, "
                f"not a multiple of the {per_block} values of a block"
            )
        return n_values // per_block * n_bytes

    def check_places(self, tensors: list[Tensor], alignment: int) -> None:
        """Check that the tensors follow each other and end within the file.

        After a tensor of unknown size, the gaps between tensors are not checked.
        """
        at: int | None = 0
        for tensor in tensors:
            if tensor.offset % alignment or at not in (None, tensor.offset):
                raise self.damaged(
                    f"the tensor {shown(tensor.name)} starts at byte {tensor.offset:,} of the data "
                    f"and not at {at or 0:,}"
                )
            known = at is not None and tensor.n_bytes
            at = tensor.offset - -tensor.n_bytes // alignment * alignment if known else None

    def place_of_rows(
        self, metadata: dict[str, Any], tensors: list[Tensor], needed: int, data_at: int
    ) -> int:
        """Return where the embeddings behind the tensors start; the end of the file without any."""
        if ROWS not in metadata:
            return self.file_bytes
        at, size = metadata[ROWS], metadata.get(SIZE)
        table = next((one for one in tensors if one.name == "token_embd.weight"), None)
        if not (isinstance(at, int) and isinstance(size, int) and table and 0 < size <= MAX_TOKENS):
            raise self.damaged("its embeddings of all tokens have no place")
        start, row = data_at + at, table.n_bytes // table.shape[-1]
        if not needed <= start or not row or start + size * row > self.file_bytes:
            raise self.damaged(
                f"it has {self.file_bytes:,} bytes, but embeddings of {size:,} tokens "
                f"from byte {start:,} on"
            )
        return start

    def check_bytes(self, tokenizer: Any) -> None:
        spelled = _SPELLED.get(tokenizer)
        if spelled is None or self.tokens_at is None:
            return
        for byte in range(256):
            if not spelled(byte) & self.known_tokens:
                raise self.damaged(f"no token stands for the byte {byte}")

    # ---- the whole header

    def header(self) -> Header:
        self.skip(4)
        version = self.take(_U32)
        if version not in (2, 3):
            what = f"is GGUF of version {version}; versions 2 and 3 can be read"
            hint = "use a newer file of this model, or convert it again with a current llama.cpp."
            if version and version & 0xFFFF == 0:
                what = "is a GGUF file for big-endian machines"
                hint = "use the usual file of this model, or run: gguf-convert-endian FILE little."
            elif version > 3:
                hint = "update gguf-spec, or use another file of this model."
            raise NotAModelError(self.path, f"{self.path.name} {what}.", hint)
        n_tensors = self.count("tensors", _MAX_TENSORS)
        n_pairs = self.count("metadata values", _MAX_PAIRS)
        metadata, kinds = self.pairs(n_pairs)
        self.check_bytes(metadata.get("tokenizer.ggml.model"))
        tensors = self.tensors(n_tensors)
        alignment = metadata.get("general.alignment", 32)
        is_u32 = kinds.get("general.alignment", "u32") == "u32"
        # llama.cpp supports no alignment below 32
        if not is_u32 or alignment < 32 or alignment & (alignment - 1):
            raise self.damaged(f"its alignment is {alignment!r}")
        data_at = -(-self.at // alignment) * alignment
        needed = data_at + max((tensor.offset + tensor.n_bytes for tensor in tensors), default=0)
        if tensors and needed > self.file_bytes:
            what = (
                f"{self.path.name} is cut short: it has {self.file_bytes:,} bytes "
                f"but its tensors need {needed:,}."
            )
            hint = "download it again; the last download did not finish."
            raise NotAModelError(self.path, what, hint)
        self.check_places(tensors, alignment)
        return Header(
            self.path, metadata, n_tensors,
            self.place_of_rows(metadata, tensors, needed, data_at), kinds,
            tensors=tuple(tensors), tokens_at=self.tokens_at, data_at=data_at, parts=(self.path,),
            parts_at=(data_at,),
        )  # fmt: skip
