"""Tiny projector files (mmproj) with random weights, for the tiny models of `tiny`, and images."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from gguf_spec.errors import InvalidOptionError
from gguf_spec.llama.vision import mtmd

from . import tiny

# Pixels of a side, pixels of a patch, embeddings of an image.
SIDE, PATCH = 56, 14
N_TOKENS = (SIDE // PATCH) ** 2
_WIDTH, _N_FF, _N_LAYERS = 32, 64, 2


def has_mtmd() -> bool:
    """Return whether this build of llama-cpp-python can read images."""
    try:
        mtmd(Path())
    except InvalidOptionError:
        return False
    return True


def llava(
    n_embd: int = tiny.N_EMBD, seed: int = 5, scale: float = 0.3
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return metadata and tensors of a LLaVA projector: a ViT of two layers and an MLP."""
    metadata = {
        "general.architecture": "clip", "general.type": "mmproj",
        "clip.has_vision_encoder": True, "clip.projector_type": "mlp", "clip.use_gelu": True,
        "clip.vision.image_size": SIDE, "clip.vision.patch_size": PATCH,
        "clip.vision.embedding_length": _WIDTH, "clip.vision.feed_forward_length": _N_FF,
        "clip.vision.block_count": _N_LAYERS, "clip.vision.attention.head_count": 2,
        "clip.vision.projection_dim": n_embd, "clip.vision.attention.layer_norm_epsilon": 1e-5,
        "clip.vision.image_mean": [0.5, 0.5, 0.5], "clip.vision.image_std": [0.5, 0.5, 0.5],
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (_WIDTH, 3, PATCH, PATCH),
        "v.position_embd.weight": (N_TOKENS, _WIDTH),
        "mm.0.weight": (n_embd, _WIDTH), "mm.0.bias": (n_embd,),
        "mm.2.weight": (n_embd, n_embd), "mm.2.bias": (n_embd,),
    }  # fmt: skip
    for i in range(_N_LAYERS):
        shapes |= {
            f"v.blk.{i}.{name}.weight": shape
            for name, shape in {
                "attn_q": (_WIDTH, _WIDTH), "attn_k": (_WIDTH, _WIDTH), "attn_v": (_WIDTH, _WIDTH),
                "attn_out": (_WIDTH, _WIDTH), "ffn_up": (_N_FF, _WIDTH),
                "ffn_down": (_WIDTH, _N_FF), "ln1": (_WIDTH,), "ln2": (_WIDTH,),
            }.items()
        }  # fmt: skip
        shapes |= {
            f"v.blk.{i}.{name}.bias": (n,)
            for name, n in {
                "attn_q": _WIDTH, "attn_k": _WIDTH, "attn_v": _WIDTH, "attn_out": _WIDTH,
                "ffn_up": _N_FF, "ffn_down": _WIDTH, "ln1": _WIDTH, "ln2": _WIDTH,
            }.items()
        }  # fmt: skip
    rng = np.random.default_rng(seed)
    tensors = {
        name: np.ones(shape, np.float32)
        if ".ln" in name and name.endswith("weight")
        else rng.normal(0, scale, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    return metadata, tensors


def qwen2vl(seed: int = 6) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return metadata and tensors of a projector of Qwen2-VL, whose images are of any size."""
    metadata, tensors = llava(seed=seed)
    metadata |= {"clip.projector_type": "qwen2vl_merger"}
    rng = np.random.default_rng(seed)
    whole = 4 * _WIDTH
    del tensors["v.position_embd.weight"]
    for name, shape in {
        "v.patch_embd.weight.1": (_WIDTH, 3, PATCH, PATCH),
        "mm.0.weight": (whole, whole), "mm.0.bias": (whole,),
        "mm.2.weight": (tiny.N_EMBD, whole), "mm.2.bias": (tiny.N_EMBD,),
        "v.post_ln.weight": (_WIDTH,), "v.post_ln.bias": (_WIDTH,),
    }.items():  # fmt: skip
        tensors[name] = rng.normal(0, 0.3, shape).astype(np.float32)
    return metadata, tensors


def qwen2vl_model(seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return metadata and tensors of a language model of Qwen2-VL, with M-RoPE."""
    metadata, tensors = tiny.llama(n_layer=2, seed=seed)
    metadata = {key.replace("llama.", "qwen2vl."): value for key, value in metadata.items()}
    metadata |= {"general.architecture": "qwen2vl", "qwen2vl.rope.dimension_sections": [8, 4, 4, 0]}
    rng = np.random.default_rng(seed)
    for i in range(2):
        for name, n in (("q", 64), ("k", 32), ("v", 32)):
            tensors[f"blk.{i}.attn_{name}.bias"] = rng.normal(0, 0.3, n).astype(np.float32)
    return metadata, tensors


def write(
    path: Path, model: tuple[dict[str, Any], dict[str, Any]] | None = None, **changes: Any
) -> Path:
    """Write a projector file; `changes` are those of `tiny.write`, without a vocabulary."""
    metadata, tensors = model or llava()
    missing = dict.fromkeys(tiny.vocabulary())
    return tiny.write(
        path,
        (metadata, tensors),
        metadata={**missing, **changes.get("metadata", {})},
        tensors=changes.get("tensors", {}),
    )


def png(seed: int = 0, width: int = 40, height: int = 30) -> bytes:
    """Return a PNG image of random colours."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return png_of(width, height, b"".join(b"\0" + row.tobytes() for row in pixels))


def png_of(width: int, height: int, rows: bytes) -> bytes:
    """Return a PNG file with a given size in its header and given rows."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
