"""Small EAGLE-3 heads, and what they compute, by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support import tiny
from tests.support.tiny import N_CTX, N_EMBD, N_FF

_N_VOCAB, _HEAD, _EPS = len(tiny.TOKENS), 32, 1e-5
Parts = tuple[dict[str, Any], dict[str, Any]]


def head(
    width: int = N_EMBD,
    layers: tuple[int, ...] = (0, 1, 1),
    known: list[int] | None = None,
    own: bool = True,
    n_target: int = N_EMBD,
    seed: int = 3,
) -> Parts:
    """Return a head of random weights.

    Args:
        width: Length of its rows.
        layers: Layers of the target that it reads.
        known: Ids of the tokens that it knows; all where they are not given.
        own: Whether it has an embedding and an output of its own.
        n_target: Length of the target's rows.
        seed: Seed of the weights.
    """
    of = {
        "context_length": N_CTX, "embedding_length": width, "block_count": 1, "feed_forward_length": N_FF, "attention.head_count": 2,
        "attention.head_count_kv": 1, "attention.key_length": _HEAD, "attention.value_length": _HEAD, "rope.dimension_count": _HEAD,
        "attention.layer_norm_rms_epsilon": _EPS, "target_layers": list(layers), "target_hidden_size": n_target,
    }  # fmt: skip
    shapes = {
        "fc.weight": (width, 3 * n_target), "output_norm.weight": (width,), "blk.0.attn_norm.weight": (width,),
        "blk.0.attn_norm_2.weight": (width,), "blk.0.attn_q.weight": (2 * _HEAD, 2 * width), "blk.0.attn_k.weight": (_HEAD, 2 * width),
        "blk.0.attn_v.weight": (_HEAD, 2 * width), "blk.0.attn_output.weight": (width, 2 * _HEAD), "blk.0.ffn_norm.weight": (width,),
        "blk.0.ffn_gate.weight": (N_FF, width), "blk.0.ffn_up.weight": (N_FF, width), "blk.0.ffn_down.weight": (width, N_FF),
    }  # fmt: skip
    if own:
        n = _N_VOCAB if known is None else len(known)
        shapes |= {"token_embd.weight": (_N_VOCAB, width), "output.weight": (n, width)}
    rng = np.random.default_rng(seed)
    tensors = {
        name: 1 + 0.1 * rng.normal(0, 1, shape).astype(np.float32)
        if "norm" in name
        else rng.normal(0, 0.2, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    if known is not None:
        tensors["d2t"] = np.array(known, np.int64)
    metadata = {"general.architecture": "eagle3"} | {
        f"eagle3.{key}": one for key, one in of.items()
    }
    return metadata, tensors


def guesser(target: Parts, known: list[int] | None = None) -> Parts:
    """Return a head that is often right for a model of `families`: it predicts the token that the target's output prefers.

    Each token attends to itself; the rows of target and draft have almost no weight.
    """
    metadata, tensors = head(known=known)
    metadata["eagle3.norm_before_residual"] = True
    tensors["blk.0.attn_norm_2.weight"] = np.full(N_EMBD, 1e-3, np.float32)
    tensors["blk.0.attn_norm.weight"] = np.ones(N_EMBD, np.float32)
    tensors["blk.0.ffn_down.weight"] *= 0
    rng = np.random.default_rng(1)
    ways = rng.normal(0, 1, (_HEAD, N_EMBD)).astype(np.float32)
    of_token = np.concatenate([ways, np.zeros_like(ways)], 1)
    tensors["blk.0.attn_k.weight"] = tensors["blk.0.attn_v.weight"] = of_token
    tensors["blk.0.attn_q.weight"] = np.concatenate([of_token, of_token])
    output = np.zeros((N_EMBD, 2 * _HEAD), np.float32)
    output[:_HEAD, :_HEAD] = np.eye(_HEAD)
    tensors["blk.0.attn_output.weight"] = output
    embedding = target[1]["token_embd.weight"]
    tensors["token_embd.weight"] = embedding
    after = np.argmax(embedding @ target[1]["output.weight"].T, axis=1)
    letters = np.arange(26, 90)
    seen = _norm(embedding[letters], np.ones(N_EMBD)) @ ways.T
    logits_of = np.zeros((_N_VOCAB, N_EMBD), np.float32)
    logits_of[after[letters], :_HEAD] = seen / np.sqrt((seen**2).sum(1, keepdims=True))
    tensors["output.weight"] = logits_of if known is None else logits_of[known]
    return metadata, tensors


def logits(model: Parts, tokens: list[int], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits and the own rows of a head with its own embedding and output.

    Args:
        model: The head.
        tokens: Tokens of a text from the second one on.
        rows: For each of them the row before it: inputs of the layers, or rows of the head.
    """
    metadata, of = model
    position = np.arange(1, 1 + len(tokens))
    g = rows @ of["fc.weight"].T if rows.shape[1] != of["fc.weight"].shape[0] else rows
    x = np.concatenate(
        [
            _norm(of["token_embd.weight"][tokens], of["blk.0.attn_norm.weight"]),
            _norm(g, of["blk.0.attn_norm_2.weight"]),
        ],
        1,
    )
    q, k, v = (x @ of[f"blk.0.attn_{name}.weight"].T for name in "qkv")
    q = _rope(q.reshape(-1, 2, _HEAD), position)
    k = _rope(k.reshape(-1, 1, _HEAD), position)[:, 0]
    scores = np.einsum("ihd,jd->hij", q, k) / np.sqrt(_HEAD)
    scores[:, np.triu_indices(len(tokens), 1)[0], np.triu_indices(len(tokens), 1)[1]] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    seen = np.einsum("hij,jd->ihd", shares, v).reshape(-1, 2 * _HEAD)
    residual = g
    if metadata.get("eagle3.norm_before_residual"):
        residual = _norm(g, of["blk.0.attn_norm_2.weight"])
    own = residual + seen @ of["blk.0.attn_output.weight"].T
    y = _norm(own, of["blk.0.ffn_norm.weight"])
    gate = y @ of["blk.0.ffn_gate.weight"].T
    own = own + (gate / (1 + np.exp(-gate)) * (y @ of["blk.0.ffn_up.weight"].T)) @ of["blk.0.ffn_down.weight"].T  # fmt: skip
    found = _norm(own, of["output_norm.weight"]) @ of["output.weight"].T
    if "d2t" in of:
        some, found = found, np.full((len(tokens), _N_VOCAB), -np.inf)
        found[:, of["d2t"]] = some
    return found, own


def _norm(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + _EPS) * weights


def _rope(x: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Turn neighbouring pairs of values."""
    angle = position[:, None, None] * 10000.0 ** (-np.arange(0, _HEAD, 2) / _HEAD)
    a, b = x[..., 0::2], x[..., 1::2]
    turned = np.stack(
        [a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1
    )
    return turned.reshape(x.shape)
