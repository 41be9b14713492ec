"""Read the header of a GGUF file and refuse what llama.cpp would choke on. Nothing in the file is trusted."""

from __future__ import annotations

import collections
import math
import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ModelNotFoundError, NotAModelError, UnsupportedModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# ggml type -> (values in a block, bytes of a block); a type that is not here is newer than this table and its size is not checked.
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36), 10: (256, 84), 11: (256, 110),
    12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50),
    20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8),
    29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip
_MAX_STRING, _MAX_COUNT, _MAX_ENTRIES = 1 << 24, 1 << 24, 1 << 17
_NO_WEIGHTS = {24, 25, 27, 28}  # whole numbers and doubles: llama.cpp multiplies none of them
_LENGTH = struct.Struct("<Q")
_TOKENS = "tokenizer.ggml.tokens"
_EMBEDS = {
    "bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert", "gemma-embedding", "llama-embed",
}  # fmt: skip
_ENCODES = {"t5", "t5encoder", "clip", "wavtokenizer-dec"}


@dataclass(frozen=True)
class ArrayLength:
    """Stands for an array that was not kept."""

    n: int


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself.

    Attributes:
        path: The file.
        metadata: Its scalar values and strings; an array of at most 1,024 numbers as a tuple, of others an `ArrayLength`.
        n_tensors: How many tensors it holds.
        file_bytes: Its size.
    """

    path: Path
    metadata: dict[str, Any]
    n_tensors: int
    file_bytes: int

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
        values = n_kv * (number("attention.key_length", width) + number("attention.value_length", width))
        return int(n_layer * n_ctx * values * bytes_per_value)


class _Reader:
    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at = data, path, 0

    def damaged(self, why: str) -> NotAModelError:
        return NotAModelError(self.path, f"{self.path.name} is a damaged GGUF file: {why}.", "download or convert it again.")

    def cut_short(self) -> NotAModelError:
        return self.damaged(f"its header ends at byte {len(self.data):,}, before it is complete")

    def take(self, form: str) -> Any:
        n = struct.calcsize("<" + form)
        if self.at + n > len(self.data):
            raise self.cut_short()
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += n
        return value

    def skip(self, n: int) -> None:
        if self.at + n > len(self.data):
            raise self.cut_short()
        self.at += n

    def count(self, what: str, most: int = _MAX_COUNT) -> int:
        n: int = self.take("Q")
        if n > most:
            raise self.damaged(f"it claims {n:,} {what}")
        return n

    def string(self) -> str:
        n = self.count("bytes for one string", _MAX_STRING)
        start = self.at
        self.skip(n)
        return self.data[start : start + n].decode("utf-8", errors="replace")

    def strings(self, n: int) -> Iterator[bytes]:
        """Yield an array of `n` strings; without calls, as there may be half a million of them."""
        data, at, end = self.data, self.at, len(self.data)
        for _ in range(n):
            start = at + 8
            if start > end:
                raise self.cut_short()
            at = start + _LENGTH.unpack_from(data, start - 8)[0]
            if at > end:
                raise self.cut_short()
            yield data[start:at]
        self.at = at

    def value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.take(_SCALARS[kind])
        if kind != _ARRAY:
            raise self.damaged(f"it holds a value of the unknown type {kind}")
        inner, n = self.take("I"), self.count("values in one array")
        if inner in _SCALARS:
            if n <= 1024:
                return tuple(self.take(_SCALARS[inner]) for _ in range(n))
            self.skip(n * struct.calcsize("<" + _SCALARS[inner]))
        elif inner == _STRING:
            if key == _TOKENS:  # as llama.cpp tells them apart, which ends the process where two are the same
                known = {text.partition(b"\0")[0] or b"[EMPTY_%d]" % i for i, text in enumerate(self.strings(n))}
                if len(known) < n:
                    raise self.damaged(f"{n - len(known):,} of its {n:,} tokens are there twice")
            else:
                collections.deque(self.strings(n), maxlen=0)
        else:
            raise self.damaged(f"it holds an array of the unknown type {inner}")
        return ArrayLength(n)

    def tensor_end(self) -> int:
        """Read one tensor's entry; return the offset after its data, from the start of the data part."""
        name, n_dims = self.string(), self.take("I")
        if not 0 < n_dims <= 4:
            raise self.damaged(f"tensor {name!r} has {n_dims} dimensions")
        n_values = 1
        for _ in range(n_dims):
            n_values *= self.count("rows", 1 << 40)
        kind, offset = self.take("I"), self.take("Q")
        if kind in _NO_WEIGHTS:
            raise self.damaged(f"tensor {name!r} holds numbers of the type {kind}, which no model computes with")
        per_block, n_bytes = _BLOCKS.get(kind, (1, 0))
        return int(offset + n_values // per_block * n_bytes)


def read_header(path: Path) -> Header:
    """Read and check the header of a GGUF file, and that the file is as long as its tensors need.

    Raises:
        ModelNotFoundError: There is no such file.
        NotAModelError: It is a directory, no GGUF file, unreadable, or cut short.
    """
    if not path.exists():
        raise ModelNotFoundError(path, f"there is no file {path}.", "give a GGUF file or a name from the registry, such as tales.")
    if path.is_dir():
        raise NotAModelError(path, f"{path} is a directory.", "name the .gguf file inside it.")
    if not path.is_file():  # reading a pipe would wait for ever
        raise NotAModelError(path, f"{path} is no regular file.", "give the path of a GGUF file on a disk.")
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise NotAModelError(path, f"{path.name} is not a GGUF file.", "give a file in the GGUF format; others need converting first.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(data, path)
    except OSError as error:
        raise NotAModelError(path, f"{path} cannot be read: {error.strerror}.", "check its permissions.") from error


def _parse(data: mmap.mmap, path: Path) -> Header:
    reader = _Reader(data, path)
    reader.skip(4)
    version = reader.take("I")
    if version not in (2, 3):
        raise NotAModelError(
            path, f"{path.name} is GGUF of version {version}; versions 2 and 3 can be read.", "convert it again with a current llama.cpp."
        )
    n_tensors, n_pairs = reader.count("tensors", _MAX_ENTRIES), reader.count("metadata values", _MAX_ENTRIES)
    metadata: dict[str, Any] = {}
    for _ in range(n_pairs):
        key = reader.string()
        metadata[key] = reader.value(reader.take("I"), key)
    ends = [reader.tensor_end() for _ in range(n_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise reader.damaged(f"its alignment is {alignment!r}")
    needed = -(-reader.at // alignment) * alignment + max(ends, default=0)
    if ends and needed > len(data):
        raise NotAModelError(
            path,
            f"{path.name} is cut short: it has {len(data):,} bytes but its tensors need {needed:,}.",
            "download it again; the last download did not finish.",
        )
    return Header(path, metadata, n_tensors, len(data))


def check_generates_text(header: Header) -> None:
    """Refuse files that cannot generate text, by what their header says.

    Raises:
        UnsupportedModelError: An adapter, a projector, an encoder, an embedding model, no tokenizer, a later part of a split model.
    """
    name, metadata = header.path.name, header.metadata

    def refuse(what: str, hint: str) -> UnsupportedModelError:
        return UnsupportedModelError(header.path, f"{name} {what}.", hint)

    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise refuse(f"holds no model but is of type {kind!r}", "give the file of the language model itself.")
    if not header.architecture:
        raise refuse("does not name its architecture", "convert it again with a current llama.cpp.")
    if isinstance(metadata.get("split.no"), int) and metadata["split.no"] > 0:
        raise refuse(
            f"is part {metadata['split.no'] + 1} of {metadata.get('split.count', '?')} of a split model",
            "give the first part, the one named -00001-of-.",
        )
    if header.architecture in _ENCODES:
        raise refuse(f"is an encoder ({header.architecture}), not a text generator", "give a chat or base model.")
    if (
        header.architecture in _EMBEDS
        or header.of_architecture("attention.causal", True) is False
        or header.of_architecture("pooling_type", 0) not in (0, None)
    ):
        raise refuse(f"is an embedding model ({header.architecture}), not a text generator", "give a chat or base model.")
    if metadata.get("tokenizer.ggml.model", "no_vocab") in ("no_vocab", "none") or metadata.get(_TOKENS, ArrayLength(0)) == ArrayLength(0):
        raise refuse("has no tokenizer", "convert it again without --vocab-only or --no-vocab options.")
    if header.n_tensors == 0:
        raise refuse("has a vocabulary but no weights", "give the full model file.")
    _check_numbers(header)


def _check_numbers(header: Header) -> None:
    """Refuse numbers on which llama.cpp ends the whole process instead of saying what is wrong."""

    def check(key: str, ok: Callable[[Any], bool]) -> None:
        value = header.of_architecture(key)
        if value is not None and not isinstance(value, (tuple, ArrayLength)) and not ok(value):
            what = f"{header.path.name} is a damaged GGUF file: its {header.architecture}.{key} is {value!r}."
            raise NotAModelError(header.path, what, "download or convert it again.")

    def number(key: str) -> Any:
        value = header.of_architecture(key, 0)
        return value if isinstance(value, int) else 0

    n_experts = number("expert_count")
    check("block_count", lambda n: isinstance(n, int) and 0 < n <= 512)
    check("nextn_predict_layers", lambda n: isinstance(n, int) and n <= number("block_count"))
    check("expert_count", lambda n: isinstance(n, int) and n <= 1024)
    check("expert_used_count", lambda n: isinstance(n, int) and min(n_experts, 1) <= n <= n_experts)
    check("expert_group_count", lambda n: isinstance(n, int) and (n == 0 or n < n_experts))
    check("rope.scaling.type", lambda kind: kind in ("none", "linear", "yarn", "longrope"))
    for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
        check(key, lambda x: isinstance(x, float) and 0 <= x < math.inf)
