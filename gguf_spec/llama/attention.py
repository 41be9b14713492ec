"""Cost of attention by measurement.

A small model with the same attention is timed after few and after many cached tokens. The attention
of one layer does not depend on the rest of the model, so its cost times the number of layers is the
extra cost of a pass per cached token.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import GgufSpecError
from ..gguf import writing
from ..gguf.validation import Header
from ..gguf.writing import TensorInfo
from ..system.files import cache_file, read_json, this_machine, write_json
from ..system.machine import cores_are_shared
from .backend import library_parts, uses_gpu
from .context import Context
from .options import ContextOptions, Placement, physical_cores
from .own_kernels import flash_on_cpu
from .sequence import CachedSequence

# part of the cache key; changes with the format of the measurements
_VERSION = 2
# tokens of the timed passes
_WIDTHS = (1, 2, 4, 8, 32)
# cached tokens before the timed passes
_NEAR, _FAR = 32, 1024
# passes of each width; the shortest counts, because other programs only make a pass longer
_TIMES = 4
# Seconds after which no pass is repeated, and after which the measurement fails.
_PATIENCE_S, _MOST_S = (1.5, 6.0)
# transformer layers of the timed model
N_LAYERS = 2
# three control tokens and one per byte, which llama.cpp's SPM vocabulary requires
N_VOCAB = 3 + 256
_F32, _Q8_0 = 0, 8  # ggml types
# a block of Q8_0
_BLOCK = np.dtype([("scale", "<f2"), ("weights", "i1", 32)])
# channels and feed-forward units of the timed model: so few that attention dominates its passes
_WIDTH, _N_FF = 64, 32
_UNKNOWN, _CONTROL, _BYTE = 2, 3, 6  # token types


class AttentionShape(NamedTuple):
    """Parameters that determine the cost of attention."""

    n_head: int
    n_head_kv: int
    key_length: int
    value_length: int


def depth_costs(header: Header, options: ContextOptions, measures: bool = True) -> dict[int, float]:
    """Return pass width -> extra seconds of all layers of a model per cached token.

    The costs come from the user's cache, or if it `measures` they are measured now, in half a
    second to two seconds. They are empty if the shape is unknown, if the measurement fails, and
    while other programs use the cores; a later load measures then.
    """
    shape, n_layers = attention_shape(header), header.whole("block_count")
    if shape is None:
        return {}
    flash = options.flash_attention if uses_gpu(options) else flash_on_cpu(header, options)
    # all cores, even if other programs run now
    o = replace(options, flash_attention=flash, threads=options.threads or physical_cores())
    parts = [
        _VERSION,
        *(*this_machine(timed=True), *library_parts(), *shape),
        *(o.flash_attention, o.kv_type, o.threads, o.gpu_layers),
        *replace(o.placement, n_cpu_moe=0, overrides=()).parts,
    ]
    file = cache_file("attention", parts)
    costs = _parsed(read_json(file))
    if not costs:
        if not measures or cores_are_shared(o.threads or 1):
            return {}
        try:
            costs = _measure(shape, o)
        except (GgufSpecError, OSError, TimeoutError):
            return {}
        write_json(file, costs)
    return {width: seconds * n_layers for width, seconds in costs.items()}


def attention_shape(header: Header) -> AttentionShape | None:
    """Return the shape of a model's attention; None if the header lacks the usual keys."""
    n_head = max(header.by_layer("attention.head_count", 0), default=0)
    n_head_kv = max(header.by_layer("attention.head_count_kv", n_head), default=0) or n_head
    lengths = header.head_lengths()
    if (
        header.of_architecture("attention.key_length_mla")
        or not 0 < n_head <= 1024
        or not all(0 < n <= 1024 and n % 32 == 0 for n in lengths)
        or n_head % n_head_kv
    ):
        return None
    return AttentionShape(n_head, n_head_kv, *lengths)


def _parsed(data: Any) -> dict[int, float]:
    """Return the costs in the data of a file; empty if they are invalid."""
    try:
        costs = {int(width): float(seconds) for width, seconds in data.items()}
    except (AttributeError, TypeError, ValueError):
        return {}
    is_valid = set(costs) == set(_WIDTHS) and all(0 <= s < 1 for s in costs.values())
    return costs if is_valid else {}


def _measure(shape: AttentionShape, options: ContextOptions) -> dict[int, float]:
    n_ctx = _FAR + 256
    with tempfile.TemporaryDirectory(prefix="gguf-spec-") as folder:
        path = Path(folder) / "attention.gguf"
        write_probe_model(path, shape, n_ctx)
        placement = Placement(options.placement.devices)
        measured = replace(options, n_ctx=n_ctx, lora=(), verbose=False)
        model = Context(path, replace(measured, placement=placement)).sequences[0]
    try:
        text = [3 + i * 7 % (N_VOCAB - 3) for i in range(n_ctx)]
        if model.slow_first_pass:  # a driver compiles its kernels before the measurement
            model.read(text[:_FAR])
            for width in _WIDTHS:
                model.rollback(_NEAR)
                model.logits(text[_NEAR : _NEAR + width], width)
            model.rollback(0)
            model.busy_s = 0.0
        model.read(text[:_NEAR])
        near = _passes(model, text)
        model.read(text[_NEAR:_FAR])
        far = _passes(model, text)
    finally:
        model.close()
    return {
        width: max(0.0, far[width] - near[width]) / (_FAR - _NEAR) / N_LAYERS for width in _WIDTHS
    }


def _passes(model: CachedSequence, text: list[int]) -> dict[int, float]:
    """Return the shortest time of a pass of each width, after the tokens in the cache."""
    n_past, best = model.n_past, dict.fromkeys(_WIDTHS, float("inf"))
    for i in range(_TIMES):
        for width in _WIDTHS:
            if i and model.busy_s > _PATIENCE_S:
                return best
            started = time.perf_counter()
            model.logits(text[n_past : n_past + width], 1)
            best[width] = min(best[width], time.perf_counter() - started)
            model.rollback(n_past)
            if model.busy_s > _MOST_S:
                raise TimeoutError
    return best


def write_probe_model(path: Path, shape: AttentionShape, n_ctx: int) -> None:
    """Write a model of `N_LAYERS` layers with this attention and random weights.

    Args:
        n_ctx: Trained context length in its metadata, in positions.
    """
    numbers = {
        "llama.context_length": n_ctx,
        "llama.embedding_length": _WIDTH,
        "llama.block_count": N_LAYERS,
        "llama.feed_forward_length": _N_FF,
        "llama.attention.head_count": shape.n_head,
        "llama.attention.head_count_kv": shape.n_head_kv,
        "llama.attention.key_length": shape.key_length,
        "llama.attention.value_length": shape.value_length,
        "llama.rope.dimension_count": shape.key_length,
        "llama.vocab_size": N_VOCAB,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    words = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % i for i in range(256))]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL] + [_BYTE] * 256
    values = {
        "general.architecture": writing.encoded("llama"),
        **{key: writing.encoded(number) for key, number in numbers.items()},
        "llama.attention.layer_norm_rms_epsilon": writing.encoded(1e-5),
        "tokenizer.ggml.model": writing.encoded("llama"),
        "tokenizer.ggml.tokens": writing.encoded(words),
        "tokenizer.ggml.scores": writing.encoded([0.0] * N_VOCAB),
        "tokenizer.ggml.token_type": writing.encoded(kinds),
    }
    tensors = [*_tensors(shape)]
    with path.open("wb") as file:
        metadata = [writing.Value(*one) for one in values.items()]
        writing.write_head(file, metadata, [info for info, _ in tensors])
        for _, data in tensors:
            file.write(data.ljust(writing.padded(len(data)), b"\0"))


def _tensors(shape: AttentionShape) -> Iterator[tuple[TensorInfo, bytes]]:
    rng, width, n_ff = np.random.default_rng(1), _WIDTH, _N_FF
    n, n_kv, keys, values = shape
    sizes = {"attn_q": (n * keys, width), "attn_k": (n_kv * keys, width)}
    sizes |= {"attn_v": (n_kv * values, width), "attn_output": (width, n * values)}
    sizes |= {"ffn_gate": (n_ff, width), "ffn_up": (n_ff, width), "ffn_down": (width, n_ff)}
    matrices = {"token_embd": (N_VOCAB, width), "output": (N_VOCAB, width)}
    norms = ["output_norm"]
    for i in range(N_LAYERS):
        matrices |= {f"blk.{i}.{name}": size for name, size in sizes.items()}
        norms += [f"blk.{i}.attn_norm", f"blk.{i}.ffn_norm"]
    for name, (rows, columns) in matrices.items():
        blocks = np.empty(rows * columns // 32, _BLOCK)
        # scale for integers from -64 to 63: rows have a norm of about 1
        blocks["scale"] = 1 / (64 * columns**0.5)
        blocks["weights"] = rng.integers(-64, 64, (len(blocks), 32))
        info = TensorInfo(f"{name}.weight", (columns, rows), _Q8_0, blocks.nbytes)
        yield info, blocks.tobytes()
    for name in norms:
        info = TensorInfo(f"{name}.weight", (width,), _F32, 4 * width)
        yield info, np.ones(width, dtype="<f4").tobytes()
