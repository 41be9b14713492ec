"""What a GGUF file says of itself, read with a bound on everything that it can ask for. Nothing in the file is trusted.

The bounds lie far above what models have, and low enough that no file takes a second or 256 MB to be read or refused.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..errors import NotAModelError

MAX_HEADER = 64 << 20  # bytes of the file in front of the tensors' data
_MAX_TENSORS = _MAX_PAIRS = 1 << 16
_MAX_STRINGS = 1 << 21  # in all arrays together
_MAX_TOKENS = 1 << 19  # twice what the largest vocabularies hold
_MAX_TEXT = 32 << 20  # bytes of strings that are kept, and of tokens
_MAX_KEPT = 1 << 18  # numbers in arrays that are kept
_MAX_ARRAY_KEPT = 1024
_MAX_VALUES = 1 << 63  # in one tensor

_SCALARS = {
    kind: (name, struct.Struct("<" + form))
    for kind, name, form in (
        (0, "u8", "B"), (1, "i8", "b"), (2, "u16", "H"), (3, "i16", "h"), (4, "u32", "I"), (5, "i32", "i"), (6, "f32", "f"), (7, "bool", "?"),
        (10, "u64", "Q"), (11, "i64", "q"), (12, "f64", "d"),
    )
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_U32, _U64 = _SCALARS[4][1], _SCALARS[10][1]
# ggml type -> (values in a block, bytes of a block); a type that is not here is newer than this table and its size is not known.
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36), 10: (256, 84), 11: (256, 110),
    12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50),
    20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8),
    29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18),
}  # fmt: skip
_REMOVED = {4, 5, 31, 32, 33, 36, 37, 38}
_NO_WEIGHTS = {
    9,
    15,
    24,
    25,
    27,
    28,
}  # what results are rounded to on the way, whole numbers, doubles: llama.cpp multiplies with none of them
TOKENS = "tokenizer.ggml.tokens"
_ESCAPES = {9: b"\\t", 10: b"\\n", 13: b"\\r", 39: b"\\'", 92: b"\\\\"}
# Tokenizers that must know each byte by itself, and how they spell it: without one, llama.cpp ends the process or reads on for ever.
_SPELLED: dict[Any, Callable[[int], set[bytes]]] = {
    "llama": lambda byte: {b"<0x%02X>" % byte, bytes([byte])},
    "rwkv": lambda byte: {b"\\x%02x" % byte, _ESCAPES.get(byte, bytes([byte]))},
}


@dataclass(frozen=True)
class ArrayLength:
    """Stands for an array that was not kept."""

    n: int


class Tensor(NamedTuple):
    """Where a tensor lies and what it holds.

    Attributes:
        name: Its name.
        shape: Values in each dimension, the row first.
        type: Number of its ggml type.
        offset: Where it begins, from `data_at` of its file.
        n_bytes: What it takes; 0 where its type is newer than this package.
        part: Which file of a split model holds it, from 0.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    n_bytes: int
    part: int = 0


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself, or the first file of a split model with what the others add.

    Attributes:
        path: The file.
        metadata: Its scalar values and strings; an array of at most 1,024 numbers as a tuple, of others an `ArrayLength`.
        n_tensors: How many tensors it holds.
        file_bytes: Its size; of a split model that of all files.
        kinds: The type of each value as llama.cpp names it, such as `u32`; `[str]` for an array of strings.
        tensors: Where they lie.
        tokens_at: Where in the file the first token's string begins, with its length; None where there are none.
        data_at: Where in the file the data of the tensors begins.
        parts: The files: one, or all of a split model in order.
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

    @property
    def architecture(self) -> str:
        """The model's architecture, as llama.cpp names it."""
        return str(self.metadata.get("general.architecture", ""))

    def of_architecture(self, key: str, default: Any = None) -> Any:
        """Return the value of `<architecture>.<key>`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def kv_bytes(self, n_ctx: int, bytes_per_value: float) -> int:
        """Return an estimate of the key-value cache's size for `n_ctx` positions; 0 where the architecture keeps something else there."""

        def number(key: str, default: float) -> float:
            value = self.of_architecture(key, default)
            if isinstance(value, tuple) and value:  # one number a layer
                value = sum(value) / len(value)
            return value if isinstance(value, (int, float)) and 0 < value < math.inf else default

        if self.of_architecture("attention.kv_lora_rank") or self.of_architecture("ssm.state_size"):
            return 0

        n_layer, n_head = number("block_count", 0), number("attention.head_count", 1)
        width = number("embedding_length", 0) / n_head
        n_kv = number("attention.head_count_kv", n_head)
        values = n_kv * (
            number("attention.key_length", width) + number("attention.value_length", width)
        )
        return int(n_layer * n_ctx * values * bytes_per_value)


def damaged(path: Path, why: str) -> NotAModelError:
    """Return the error for a file that is GGUF and wrong."""
    return NotAModelError(
        path, f"{path.name} is a damaged GGUF file: {why}.", "download or convert it again."
    )


def parse(file: BinaryIO, path: Path, file_bytes: int) -> Header:
    """Read the header of an open file that begins with GGUF's magic.

    The file is read, not mapped: a file that grows shorter meanwhile would end the process.

    Raises:
        NotAModelError: Anything is wrong with it.
    """
    return _Reader(file, path, file_bytes).header()


class _Reader:
    def __init__(self, file: BinaryIO, path: Path, file_bytes: int) -> None:
        self.file, self.path, self.file_bytes = file, path, file_bytes
        self.data, self.at = b"", 0
        self.n_strings = self.n_text = self.n_kept = 0
        self.tokens_at: int | None = None
        self.known_tokens: set[bytes] = set()

    def damaged(self, why: str) -> NotAModelError:
        return damaged(self.path, why)

    def need(self, end: int) -> bytes:
        """Return the file's bytes to `end` or beyond."""
        if end > len(self.data):
            if end > self.file_bytes:
                raise self.damaged(
                    f"its header ends at byte {self.file_bytes:,}, before it is complete"
                )
            if end > MAX_HEADER:
                raise self.damaged(f"its header takes more than {MAX_HEADER:,} bytes")
            more = min(max(end, 2 * len(self.data), 1 << 18), MAX_HEADER, self.file_bytes) - len(
                self.data
            )
            self.data += self.file.read(more)
            if end > len(self.data):
                raise self.damaged(
                    f"its header ends at byte {len(self.data):,}, before it is complete"
                )
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
            raise self.damaged(f"it holds more than {_MAX_TEXT:,} bytes of names and texts")

    # ---- metadata

    def value(self, key: str) -> tuple[str, Any]:
        kind = self.take(_U32)
        if kind == _STRING:
            return "str", self.string().decode("utf-8", errors="replace")
        if kind in _SCALARS:
            name, form = _SCALARS[kind]
            return name, self.take(form)
        if kind != _ARRAY:
            raise self.damaged(f"it holds a value of the unknown type {kind}")
        return self.array(key)

    def array(self, key: str) -> tuple[str, Any]:
        kind, n = self.take(_U32), self.count("values in one array", MAX_HEADER)
        if kind == _STRING:
            self.n_strings += n
            if self.n_strings > _MAX_STRINGS or (key == TOKENS and n > _MAX_TOKENS):
                raise self.damaged(f"it claims {n:,} strings in {shown(key)}")
            self.tokens(n) if key == TOKENS else self.skip_strings(n)
            return "[str]", ArrayLength(n)
        if kind not in _SCALARS:
            raise self.damaged(f"it holds an array of the unknown type {kind}")
        name, form = _SCALARS[kind]
        start = self.at
        self.skip(n * form.size)
        if n > _MAX_ARRAY_KEPT:
            return f"[{name}]", ArrayLength(n)
        self.n_kept += n
        if self.n_kept > _MAX_KEPT:
            raise self.damaged(f"its short arrays hold more than {_MAX_KEPT:,} numbers")
        return f"[{name}]", struct.unpack_from(f"<{n}{form.format[1:]}", self.data, start)

    def skip_strings(self, n: int) -> None:
        """Pass over an array of strings; without calls, as there may be a million of them."""
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
        """Check the tokens: where two are the same, as llama.cpp tells them apart, it ends the process."""
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
            raise self.damaged(f"{n - len(known):,} of its {n:,} tokens are there twice")

    def pairs(self, n: int) -> tuple[dict[str, Any], dict[str, str]]:
        metadata: dict[str, Any] = {}
        kinds: dict[str, str] = {}
        known: set[bytes] = set()
        for _ in range(n):
            raw = self.string()
            if raw in known:
                raise self.damaged(f"it holds {shown(raw)} twice")
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
                raise self.damaged(f"it holds the tensor {shown(raw)} twice")
            known.add(raw)
            if not 0 < n_dims <= 4:
                raise self.damaged(f"the tensor {shown(raw)} has {n_dims:,} dimensions")
            shape = tuple(self.take(_U64) for _ in range(n_dims))
            kind, offset = self.take(_U32), self.take(_U64)
            found.append(Tensor(name, shape, kind, offset, self.n_bytes(shown(raw), shape, kind)))
        return found

    def n_bytes(self, name: str, shape: tuple[int, ...], kind: int) -> int:
        n_values = math.prod(shape)
        if not 0 < n_values < _MAX_VALUES:
            raise self.damaged(f"the tensor {name} has the shape {shape}")
        if kind in _REMOVED:
            raise self.damaged(
                f"the tensor {name} is of the type {kind}, which llama.cpp knows no longer"
            )
        if kind in _NO_WEIGHTS:
            raise self.damaged(
                f"the tensor {name} holds numbers of the type {kind}, which no model computes with"
            )
        if kind not in _BLOCKS:
            return 0
        per_block, n_bytes = _BLOCKS[kind]
        if shape[0] % per_block:
            raise self.damaged(
                f"the tensor {name} has rows of {shape[0]:,} values, no multiple of the {per_block} in a block of its type"
            )
        return n_values // per_block * n_bytes

    def check_places(self, tensors: list[Tensor], alignment: int) -> None:
        """Check that the tensors follow each other and end within the file; of those behind one of an unknown size only the end."""
        at: int | None = 0
        for tensor in tensors:
            if tensor.offset % alignment or at not in (None, tensor.offset):
                raise self.damaged(
                    f"the tensor {shown(tensor.name)} lies at byte {tensor.offset:,} of the data and not at {at or 0:,}"
                )
            at = (
                tensor.offset - -tensor.n_bytes // alignment * alignment
                if at is not None and tensor.n_bytes
                else None
            )

    def check_bytes(self, tokenizer: Any) -> None:
        spelled = _SPELLED.get(tokenizer)
        if spelled is None or self.tokens_at is None:
            return
        for byte in range(256):
            if not spelled(byte) & self.known_tokens:
                raise self.damaged(f"none of its tokens stands for the byte {byte}")

    # ---- all of it

    def header(self) -> Header:
        self.skip(4)
        version = self.take(_U32)
        if version not in (2, 3):
            big = version & 0xFFFF == 0
            what = (
                "is a GGUF file for big-endian machines"
                if big
                else f"is GGUF of version {version}; versions 2 and 3 can be read"
            )
            raise NotAModelError(
                self.path, f"{self.path.name} {what}.", "convert it again with a current llama.cpp."
            )
        n_tensors, n_pairs = (
            self.count("tensors", _MAX_TENSORS),
            self.count("metadata values", _MAX_PAIRS),
        )
        metadata, kinds = self.pairs(n_pairs)
        self.check_bytes(metadata.get("tokenizer.ggml.model"))
        tensors = self.tensors(n_tensors)
        alignment = metadata.get("general.alignment", 32)
        if (
            kinds.get("general.alignment", "u32") != "u32"
            or alignment < 32
            or alignment & (alignment - 1)
        ):  # llama.cpp maps nothing below 32
            raise self.damaged(f"its alignment is {alignment!r}")
        data_at = -(-self.at // alignment) * alignment
        needed = data_at + max((tensor.offset + tensor.n_bytes for tensor in tensors), default=0)
        if tensors and needed > self.file_bytes:
            raise NotAModelError(
                self.path,
                f"{self.path.name} is cut short: it has {self.file_bytes:,} bytes but its tensors need {needed:,}.",
                "download it again; the last download did not finish.",
            )
        self.check_places(tensors, alignment)
        return Header(
            self.path,
            metadata,
            n_tensors,
            self.file_bytes,
            kinds,
            tuple(tensors),
            self.tokens_at,
            data_at,
            (self.path,),
        )


def shown(value: Any) -> str:
    """Return what a file holds as an error message may show it: on one line, and not too long."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    return repr(value[:64] + "..." if isinstance(value, str) and len(value) > 64 else value)
