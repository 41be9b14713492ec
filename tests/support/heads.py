"""Prediction heads that are trained on the texts of their target, without a framework: one linear layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gguf_spec.llama.context import Context
from gguf_spec.llama.options import ContextOptions
from tests.support import families, tiny
from tests.support.tiny import N_EMBD

_EPS = 1e-5  # of the norms


def trained(
    folder: Path, name: str = "qwen35", n_texts: int = 12, n_steps: int = 200
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a model of `families` with a head that predicts the model's text.

    The head's attention and feed-forward part add nothing; only the projection of the token before and of the target's row is trained,
    by Adam on the cross-entropy of the target's own next token.
    """
    metadata, tensors = families.with_head(families.family(name))
    first = metadata[f"{name}.block_count"] - 1
    for part in ("attn_output", "ffn_down"):
        tensors[f"blk.{first}.{part}.weight"] *= 0
    inputs, said = _said(
        tiny.write(folder / f"{name}-untrained.gguf", (metadata, tensors)), n_texts
    )
    projection = f"blk.{first}.nextn.eh_proj.weight"
    tensors[projection] = _fit(tensors, inputs, said, n_steps)
    return metadata, tensors


def _said(path: Path, n_texts: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of a token with the row before it, normalised, and the target's next token."""
    model = Context(
        path, ContextOptions(n_ctx=256, threads=1, extra_bufts=False, head="own")
    ).sequences[0]
    embedding = families.family("qwen35")[1]["token_embd.weight"]
    inputs, said = [], []
    rng = np.random.default_rng(11)
    for _ in range(n_texts):
        model.rollback(0)
        text = [int(rng.integers(26, 90))]
        for _ in range(60):
            row = np.array(model.logits(text[-1:], 1)[0])
            text.append(int(np.argmax(row + rng.gumbel(0, 0.5, len(row)))))
        rows = model.hidden.before(0, 60)
        inputs.append(np.concatenate([_normalised(embedding[text[:60]]), _normalised(rows)], 1))
        said.append(text[1:61])
    model.close()
    return np.concatenate(inputs), np.concatenate(said)


def _fit(tensors: dict[str, Any], inputs: np.ndarray, said: np.ndarray, n_steps: int) -> np.ndarray:
    output = tensors["output.weight"].astype(np.float32)
    rng = np.random.default_rng(2)
    weights = rng.normal(0, 0.05, (N_EMBD, 2 * N_EMBD)).astype(np.float32)
    inputs = inputs.astype(np.float32)
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(1, n_steps + 1):
        at = rng.integers(0, len(said), 96)
        x = inputs[at]
        y = x @ weights.T
        size = np.sqrt((y**2).mean(1, keepdims=True) + _EPS)
        z = y / size
        logits = z @ output.T
        error = np.exp(logits - logits.max(1, keepdims=True))
        error /= error.sum(1, keepdims=True)
        error[np.arange(len(at)), said[at]] -= 1
        of_z = error @ output / len(at)
        of_y = (of_z - z * (of_z * z).mean(1, keepdims=True)) / size
        gradient = of_y.T @ x
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.99 * square + 0.01 * gradient**2
        rate = 0.01 * (1 - step / n_steps) + 1e-4
        weights -= rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-8)
    return weights


def _normalised(rows: np.ndarray) -> np.ndarray:
    return rows / np.sqrt((rows**2).mean(1, keepdims=True) + _EPS)
