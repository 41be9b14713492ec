"""Writer of a small GGUF model of two layers, to time attention without the model itself."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# transformer layers of the model
N_LAYERS = 2

# three control tokens and one per byte, which llama.cpp's SPM vocabulary requires
N_VOCAB = 3 + 256
# bytes; alignment of tensor data
_ALIGN = 32
_F32, _Q8_0 = 0, 8  # ggml types
# weights of a block of Q8_0, and its bytes: a 16-bit scale is before them
_BLOCK, _BLOCK_BYTES = 32, 34
# channels and feed-forward units of the model: so few that attention dominates its passes
_WIDTH, _N_FF = 64, 32
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


def write_probe_model(path: Path, shape: AttentionShape, n_ctx: int) -> None:
    """Write a model of `N_LAYERS` layers with this attention and random weights.

    Args:
        path: The file to write.
        shape: Shape of the attention.
        n_ctx: Trained context length in its metadata, in positions.
    """
    rng, width, n_ff = np.random.default_rng(1), _WIDTH, _N_FF
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
        tensors += [_matrix(rng, f"blk.{i}.{name}.weight", size) for name, size in sizes.items()]
        tensors += [_norm(f"blk.{i}.{name}.weight", width) for name in ("attn_norm", "ffn_norm")]
    _write(path, metadata, tensors)


class _Tensor(NamedTuple):
    name: str
    shape: Sequence[int]  # rows last, as in GGUF
    kind: int
    data: bytes


def _norm(name: str, width: int) -> _Tensor:
    return _Tensor(name, [width], _F32, np.ones(width, dtype="<f4").tobytes())


def _matrix(rng: np.random.Generator, name: str, size: tuple[int, int]) -> _Tensor:
    rows, columns = size
    blocks = np.empty((rows * columns // _BLOCK, _BLOCK_BYTES), dtype=np.uint8)
    # scale for integers from -64 to 63: rows have a norm of about 1
    blocks[:, :2] = np.array([1 / (64 * columns**0.5)], dtype="<f2").view(np.uint8)
    blocks[:, 2:] = rng.integers(-64, 64, (len(blocks), _BLOCK)).astype(np.int8).view(np.uint8)
    return _Tensor(name, [columns, rows], _Q8_0, blocks.tobytes())


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
