"""Tiny GGUF files of embedding models with random weights: a BERT, and a BERT that ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

N_EMBD, N_FF, N_CTX, N_LAYER = 64, 96, 64, 2
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "the", "cat", "dog", "sat", "ran", "on", "mat", "moon", "sun", "is", "hello", "world", "who", "what",
]  # fmt: skip
# WordPiece as llama.cpp stores it: the start of a word has a mark, the rest has none.
TOKENS = [*SPECIAL, *("▁" + word for word in WORDS), *("▁" + c for c in "abcdefghijklmnopqrstuvwxyz,.!?"), *"abcdefghijklmnopqrstuvwxyz"]  # fmt: skip
PAD, UNK, CLS, SEP, MASK = range(5)


def bert(
    pooling: int | None = 1,
    seed: int = 0,
    ranks: bool = False,
    words: Sequence[str] = (),
    n_ctx: int = N_CTX,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return metadata, tokenizer included, and tensors of a BERT with four heads of 16.

    Args:
        pooling: llama.cpp's number of the pooling; None leaves it out.
        seed: Seed of the weights.
        ranks: Whether it has a classification head.
        words: Further words of its vocabulary.
        n_ctx: Its longest text, in tokens.
    """
    tokens = [*TOKENS, *("▁" + word for word in words)]
    rng = np.random.default_rng(seed)
    metadata: dict[str, Any] = {
        "general.architecture": "bert", "bert.context_length": n_ctx, "bert.embedding_length": N_EMBD, "bert.block_count": N_LAYER,
        "bert.feed_forward_length": N_FF, "bert.attention.head_count": 4, "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False, "bert.pooling_type": pooling, "tokenizer.ggml.token_type_count": 2,
    } | vocabulary(tokens)  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (len(tokens), N_EMBD), "token_types.weight": (2, N_EMBD), "position_embd.weight": (n_ctx, N_EMBD),
        "token_embd_norm.weight": (N_EMBD,), "token_embd_norm.bias": (N_EMBD,),
    }  # fmt: skip
    for i in range(N_LAYER):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes |= {
                f"blk.{i}.{name}.weight": (N_EMBD, N_EMBD),
                f"blk.{i}.{name}.bias": (N_EMBD,),
            }
        for name in ("attn_output_norm", "layer_output_norm"):
            shapes |= {f"blk.{i}.{name}.weight": (N_EMBD,), f"blk.{i}.{name}.bias": (N_EMBD,)}
        shapes |= {
            f"blk.{i}.ffn_up.weight": (N_FF, N_EMBD), f"blk.{i}.ffn_up.bias": (N_FF,),
            f"blk.{i}.ffn_down.weight": (N_EMBD, N_FF), f"blk.{i}.ffn_down.bias": (N_EMBD,),
        }  # fmt: skip
    if ranks:
        shapes |= {
            "cls.weight": (N_EMBD, N_EMBD), "cls.bias": (N_EMBD,), "cls.output.weight": (1, N_EMBD), "cls.output.bias": (1,),
        }  # fmt: skip
    return metadata, {
        name: np.ones(shape, np.float32)
        if name.endswith("norm.weight")
        else rng.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def vocabulary(tokens: Sequence[str] = TOKENS) -> dict[str, Any]:
    """Return the metadata of the tokenizer; it replaces that of `tiny`."""
    return {
        "tokenizer.ggml.model": "bert", "tokenizer.ggml.pre": None, "tokenizer.ggml.merges": None, "tokenizer.chat_template": None,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)), "tokenizer.ggml.tokens": [*tokens],
        "tokenizer.ggml.bos_token_id": CLS, "tokenizer.ggml.eos_token_id": SEP, "tokenizer.ggml.seperator_token_id": SEP,
        "tokenizer.ggml.unknown_token_id": UNK, "tokenizer.ggml.padding_token_id": PAD, "tokenizer.ggml.mask_token_id": MASK,
        "tokenizer.ggml.cls_token_id": CLS, "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True,
    }  # fmt: skip


def write(
    path: Any,
    *,
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Write a BERT; `metadata` and `tensors` are changes, None leaves one out."""
    from tests.support import tiny

    own, weights = bert(**options)
    return tiny.write(path, ({}, weights), metadata=own | (metadata or {}), tensors=tensors or {})
