"""The header of a GGUF file as data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import NotAModelError
from .architectures import Architecture, architecture

# metadata key of the tokens
TOKENS = "tokenizer.ggml.tokens"
# metadata key of the kept token ids of a trimmed vocabulary
IDS = "gguf_spec.trim.ids"
# ggml type of tables of token ids
I64 = 27
# tensor of an EAGLE-3 head: for each token that it knows its id in the vocabulary
TOKEN_TABLE = "d2t"


@dataclass(frozen=True)
class ArrayLength:
    """Length of an array whose values were not kept.

    Attributes:
        n: Number of values.
    """

    n: int


class Tensor(NamedTuple):
    """Position and type of a tensor.

    Attributes:
        name: Its name.
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
        n_tensors: Number of tensors.
        file_bytes: Size of the file, or of all files of a split model.
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
        """Facts about the architecture that the file does not tell."""
        return architecture(self.architecture)

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

    def kv_bytes(self, n_ctx: int, bytes_per_value: float) -> int:
        """Return the estimated size of the key-value cache for `n_ctx` positions, in bytes.

        The result is 0 if the architecture caches other data.
        """

        def number(key: str, default: float) -> float:
            value = self.of_architecture(key, default)
            if isinstance(value, tuple) and value:  # one number per layer
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
    """Return the error for a damaged GGUF file."""
    return NotAModelError(
        path, f"{path.name} is a damaged GGUF file: {why}.", "download or convert it again."
    )


def shown(value: Any) -> str:
    """Return a value from a file for an error message: on one line, with limited length."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    return repr(value[:64] + "..." if isinstance(value, str) and len(value) > 64 else value)
