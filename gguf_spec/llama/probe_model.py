"""Writer of a small GGUF model of two layers, to time kernels without the model itself.

With the default weights, attention dominates its passes. With the weights of a real model's layers,
their products do.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

# transformer layers of the model
N_LAYERS = 2

# three control tokens and one per byte, which llama.cpp's SPM vocabulary requires
N_VOCAB = 3 + 256
# bytes; alignment of tensor data
_ALIGN = 32
_F32, _Q8_0 = 0, 8  # ggml types
# ggml type -> weights of a block, its bytes, bytes at which its 16-bit scales start
_BLOCKS = {
    _Q8_0: (32, 34, (0,)),
    10: (256, 84, (80, 82)),  # Q2_K
    11: (256, 110, (108,)),  # Q3_K
    12: (256, 144, (0, 2)),  # Q4_K
    13: (256, 176, (0, 2)),  # Q5_K
    14: (256, 210, (208,)),  # Q6_K
}
# bytes of random weights that are repeated
_RANDOM_BYTES = 1 << 20
_U32, _I32, _F32_KEY, _STRING, _ARRAY = 4, 5, 6, 8, 9  # types of metadata values
_UNKNOWN, _CONTROL, _BYTE = 2, 3, 6  # token types


class AttentionShape(NamedTuple):
    """Parameters that determine the cost of attention.

    Attributes:
        n_head: Query heads.
        n_head_kv: Key-value heads.
        key_length: Length of a key vector of one head.
        value_length: Length of a value vector of one head.
    """

    n_head: int
    n_head_kv: int
    key_length: int
    value_length: int


class LayerWeights(NamedTuple):
    """Parameters that determine the cost of a layer's products.

    Attributes:
        width: Channels.
        n_ff: Feed-forward units.
        types: ggml type of each matrix of a layer, of `attn_q`, `ffn_down` and so on; matrices that
            are not named have Q8_0.
    """

    width: int = 64
    n_ff: int = 32
    types: Mapping[str, int] = MappingProxyType({})


def can_be_written(kind: int) -> bool:
    """Return whether a probe model can have weights of this ggml type."""
    return kind in _BLOCKS


def write_probe_model(
    path: Path, shape: AttentionShape, n_ctx: int, weights: LayerWeights | None = None
) -> None:
    """Write a model of `N_LAYERS` layers with this attention and random weights.

    Args:
        path: The file to write.
        shape: Shape of the attention.
        n_ctx: Trained context length in its metadata, in positions.
        weights: Sizes and types of its matrices; None stands for the smallest, of Q8_0.
    """
    weights = weights or LayerWeights()
    rng, width, n_ff = np.random.default_rng(1), weights.width, weights.n_ff
    metadata: list[tuple[str, int, Any]] = [
        ("general.architecture", _STRING, "llama"),
        ("llama.context_length", _U32, n_ctx),
        ("llama.embedding_length", _U32, width),
        ("llama.block_count", _U32, N_LAYERS),
        ("llama.feed_forward_length", _U32, n_ff),
        ("llama.attention.head_count", _U32, shape.n_head),
        ("llama.attention.head_count_kv", _U32, shape.n_head_kv),
        ("llama.attention.key_length", _U32, shape.key_length),
        ("llama.attention.value_length", _U32, shape.value_length),
        ("llama.attention.layer_norm_rms_epsilon", _F32_KEY, 1e-5),
        ("llama.rope.dimension_count", _U32, shape.key_length),
        ("llama.vocab_size", _U32, N_VOCAB),
        ("tokenizer.ggml.model", _STRING, "llama"),
        (
            "tokenizer.ggml.tokens",
            _STRING,
            ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))],
        ),
        ("tokenizer.ggml.scores", _F32_KEY, [0.0] * N_VOCAB),
        ("tokenizer.ggml.token_type", _I32, [_UNKNOWN, _CONTROL, _CONTROL] + [_BYTE] * 256),
        ("tokenizer.ggml.bos_token_id", _U32, 1),
        ("tokenizer.ggml.eos_token_id", _U32, 2),
    ]
    queries, keys, values = (
        shape.n_head * shape.key_length,
        shape.n_head_kv * shape.key_length,
        shape.n_head_kv * shape.value_length,
    )
    sizes = {"attn_q": (queries, width), "attn_k": (keys, width), "attn_v": (values, width)}
    sizes |= {"attn_output": (width, shape.n_head * shape.value_length)}
    sizes |= {"ffn_gate": (n_ff, width), "ffn_up": (n_ff, width), "ffn_down": (width, n_ff)}
    tensors = [
        _matrix(rng, name, (N_VOCAB, width)) for name in ("token_embd.weight", "output.weight")
    ]
    tensors.append(_norm("output_norm.weight", width))
    for i in range(N_LAYERS):
        tensors += [
            _matrix(rng, f"blk.{i}.{name}.weight", size, weights.types.get(name, _Q8_0))
            for name, size in sizes.items()
        ]
        tensors += [_norm(f"blk.{i}.{name}.weight", width) for name in ("attn_norm", "ffn_norm")]
    _write(path, metadata, tensors)


class _Tensor(NamedTuple):
    name: str
    shape: Sequence[int]  # rows last, as in GGUF
    kind: int
    data: bytes


def _norm(name: str, width: int) -> _Tensor:
    return _Tensor(name, [width], _F32, np.ones(width, dtype="<f4").tobytes())


def _matrix(
    rng: np.random.Generator, name: str, size: tuple[int, int], kind: int = _Q8_0
) -> _Tensor:
    rows, columns = size
    n_weights, n_bytes, scales = _BLOCKS[kind]
    n_blocks = rows * columns // n_weights
    n_random = min(n_blocks, _RANDOM_BYTES // n_bytes)
    blocks = rng.integers(0, 256, (n_random, n_bytes), dtype=np.uint8)
    if kind == _Q8_0:
        blocks[:, 2:] = rng.integers(-64, 64, (n_random, 32)).astype(np.int8).view(np.uint8)
    # scale for integers from -64 to 63: rows have a norm of about 1
    scale = np.array([1 / (64 * columns**0.5)], dtype="<f2").view(np.uint8)
    for start in scales:
        blocks[:, start : start + 2] = scale
    data = blocks.tobytes() * -(-n_blocks // n_random)
    return _Tensor(name, [columns, rows], kind, data[: n_blocks * n_bytes])


def _write(
    path: Path, metadata: Sequence[tuple[str, int, Any]], tensors: Sequence[_Tensor]
) -> None:
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for name, kind, value in metadata:
        head.append(_string(name))
        if isinstance(value, list):
            head.append(struct.pack("<IIQ", _ARRAY, kind, len(value)))
            head += [_value(kind, one) for one in value]
        else:
            head += [struct.pack("<I", kind), _value(kind, value)]
    offset = 0
    for tensor in tensors:
        head.append(
            _string(tensor.name)
            + struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        )
        head.append(struct.pack("<IQ", tensor.kind, offset))
        offset += len(tensor.data) + -len(tensor.data) % _ALIGN
    start = b"".join(head)
    with path.open("wb") as file:
        file.write(start + bytes(-len(start) % _ALIGN))
        for tensor in tensors:
            file.write(tensor.data + bytes(-len(tensor.data) % _ALIGN))


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind: int, value: Any) -> bytes:
    return (
        _string(value)
        if kind == _STRING
        else struct.pack({_U32: "<I", _I32: "<i", _F32_KEY: "<f"}[kind], value)
    )
