"""Estimate of the main memory that models need, from their headers alone, and a check of it.

llama.cpp does not check: the kernel kills the process. llama.cpp maps a file and reads all of it at
once. Weights that it repacks for this CPU are additional copies. Both count for the peak, but the
kernel can drop the file pages that were copied. Cache sizes follow llama.cpp's formulas; the rest
follows measurements.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import NotEnoughMemoryError
from ..errors.texts import Option, Text
from ..gguf.validation import ArrayLength, Header
from ..options import BRANCHES_MAX, K_MAX
from ..system.hardware import available_bytes, resident_bytes, total_bytes
from .options import KV_TYPES, ContextOptions

# tokens of a prefill pass on a CPU: default and minimum
_BATCH, _LEAST_BATCH = 256, 64
# bytes; largest attention scores of a pass (tokens x heads x positions, without flash attention)
_MOST_SCORES = 256 << 20
# largest number of rows of logits of a pass
_ROWS = K_MAX + 1 + BRANCHES_MAX
# positions; llama.cpp rounds contexts up to a multiple
_PAD = 256
# bytes of a float32
_FLOAT = 4
# Measured, in bytes: llama.cpp's code and tables, and its vocabulary data per token and per merge.
_SMALL, _PER_TOKEN, _PER_MERGE = 6 << 20, 150, 140
# architectures whose layers are all recurrent
_RECURRENT = {"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"}
# architectures with recurrent and attention layers
_HYBRID = {
    "jamba",
    "falcon-h1",
    "plamo2",
    "granitehybrid",
    "lfm2",
    "lfm2moe",
    "nemotron_h",
    "nemotron_h_moe",
    "kimi-linear",
    "qwen3next",
    "qwen35",
    "qwen35moe",
    "minimax-01",
}
# interval of attention layers if the file does not give it
_SOME_ATTEND = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "minimax-01": 8}
# Repacked ggml types -> divisor of the number of rows of a matrix. For AMX: divisor of the number
# of columns, and size of the copy relative to the original.
_AVX2 = {2: 8, 12: 8, 20: 8, 39: 8}
_AVX512 = {10: 8}
_DOTPROD = {2: 4, 8: 4, 12: 8, 13: 8, 14: 8, 20: 4, 39: 4}
_AMX = {
    1: (16, 1.0),
    2: (32, 1.0),
    3: (32, 1.0),
    8: (32, 38 / 34),
    12: (256, 148 / 144),
    13: (256, 180 / 176),
    14: (256, 1.0),
    23: (256, 138 / 136),
}
# tensors that are looked up or added, not multiplied
_NOT_MULTIPLIED = re.compile(
    r"^(token_embd(_norm)?|token_types|position_embd|per_layer_token_embd|rope_.*)\."
    r"|norm\.|\.bias$|conv1d|rope_freqs|shortconv\.conv\."
)


@dataclass(frozen=True)
class MemoryEstimate:
    """Estimated peak memory of a process, in bytes.

    Attributes:
        weights: The files, whose pages are all read at once, and the repacked copies.
        caches: Keys and values of `n_ctx` positions, or the state of recurrent models.
        compute: Activations of a batch, logits, vocabularies.
        base: Memory in use before loading.
        copies: Part of `weights`: repacked copies and adapters.
        idle: Part of `weights`: file pages that were copied and are not read again.
        n_ctx: Requested positions of the context.
    """

    weights: int
    caches: int
    compute: int
    base: int
    copies: int
    idle: int
    n_ctx: int

    @property
    def total(self) -> int:
        """Peak of the resident memory."""
        return self.weights + self.caches + self.compute + self.base

    @property
    def added(self) -> int:
        """Memory in addition to `base`, after idle pages are dropped."""
        return self.total - self.base - self.idle

    @property
    def own(self) -> int:
        """Part of `added` without a file behind it: the kernel cannot drop it and read it again."""
        return self.copies + self.caches + self.compute

    def fits(self, free: int | None, total: int | None) -> bool:
        """Return whether there is enough memory.

        `own` must be free. File pages may displace other pages, but the machine must hold them.

        Args:
            free: Free memory; None if unknown.
            total: Memory of the machine; None if unknown.
        """
        return not (
            (free is not None and self.own > free) or (total and self.base + self.added > total)
        )


def needs(
    models: Sequence[tuple[Header, ContextOptions]], features: Mapping[str, str]
) -> MemoryEstimate:
    """Return the memory that models need if they are loaded together.

    Args:
        models: Header and options of the target, and of a draft, whose context is as long as the
            target's.
        features: Features of the llama.cpp build, from `features_of`.
    """
    header, options = models[0]
    n_ctx = options.positions(_whole(header, "context_length"))
    weights = caches = compute = copies = idle = 0
    for header, options in models:
        copied, of = _repacked(header, features) if options.extra_bufts else (0, 0)
        adapters = sum(
            adapter.path.stat().st_size for adapter in options.lora if adapter.path.exists()
        )
        weights, copies, idle = weights + header.file_bytes, copies + copied + adapters, idle + of
        caches += cache_bytes(header, options, n_ctx)
        compute += _compute_bytes(header, options, n_ctx)
    return MemoryEstimate(weights + copies, caches, compute, resident_bytes(), copies, idle, n_ctx)


def largest_ctx(
    models: Sequence[tuple[Header, ContextOptions]],
    features: Mapping[str, str],
    free: int | None,
    total: int | None,
) -> int:
    """Return the longest context that fits, at most the requested one; 0 if none fits."""

    def fits(n_ctx: int) -> bool:
        return needs(
            [(header, replace(options, n_ctx=n_ctx)) for header, options in models], features
        ).fits(free, total)

    asked = needs(models, features).n_ctx
    if fits(asked):
        return asked
    low, high = 0, asked // _PAD + 1  # in multiples of _PAD
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * _PAD) else (low, middle)
    return low * _PAD


def check_memory(
    models: Sequence[tuple[Header, ContextOptions]], features: Mapping[str, str]
) -> None:
    """Reject models that do not fit into main memory.

    The kernel would kill the process instead.

    Args:
        models: As for `needs`.
        features: As for `needs`.

    Raises:
        NotEnoughMemoryError: The models do not fit. It contains the required and the free memory
            and the context that would fit.
    """
    all_of_it, free, total = needs(models, features), available_bytes(), total_bytes()
    if all_of_it.fits(free, total):
        return
    names = " and ".join(header.path.name for header, _ in models)
    verb = "need" if len(models) > 1 else "needs"
    wants = (
        f"{names} {verb} {_gib(all_of_it.added)} of memory, "
        f"{_gib(all_of_it.caches)} of it for a context of {all_of_it.n_ctx:,}"
    )
    has = (
        f"{_gib(free)} are free"
        if free is not None and all_of_it.own > free
        else f"this machine has {_gib(total or 0)}"
    )
    n_ctx = largest_ctx(models, features, free, total)
    would_fit = (
        f"a context of {n_ctx:,} would fit"
        if n_ctx
        else _without_copies(models, features, free, total)
    )
    raise NotEnoughMemoryError(
        Text(f"{wants}; {has}: ", would_fit, "."), all_of_it.added, free, n_ctx or None
    )


def _without_copies(
    models: Sequence[tuple[Header, ContextOptions]],
    features: Mapping[str, str],
    free: int | None,
    total: int | None,
) -> str:
    """Return what would fit if the weights, which do not fit, were not copied."""
    mapped = [(header, replace(options, extra_bufts=False)) for header, options in models]
    if n_ctx := largest_ctx(mapped, features, free, total):
        return Text(
            "the weights alone do not fit; with ",
            Option("extra_bufts", False),
            f", which does not copy them, a context of {n_ctx:,} would fit",
        )
    return "the weights alone do not fit"


def _gib(n_bytes: int) -> str:
    return (
        f"{n_bytes / 2**30:,.1f} GiB" if n_bytes >= 0.1 * 2**30 else f"{n_bytes / 2**20:,.1f} MiB"
    )


# ---- weights


def features_of(system_info: str) -> dict[str, str]:
    """Parse llama.cpp's report of its build: `CPU : AVX2 = 1 | REPACK = 1 | `."""
    pairs = (part.rpartition(" : ")[2].partition("=") for part in system_info.split("|"))
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}


def _repacked(header: Header, features: Mapping[str, str]) -> tuple[int, int]:
    """Return the bytes of repacked copies and the bytes of the file that are not read again."""
    has = {name for name, value in features.items() if value != "0"}
    rows: dict[int, int] = {}
    if "REPACK" in has:
        rows = (
            (_AVX2 if "AVX2" in has else {})
            | (_AVX512 if "AVX512" in has else {})
            | (_DOTPROD if {"NEON", "DOTPROD"} <= has else {})
        )
    amx = _AMX if {"AMX_INT8", "AVX512_VNNI"} <= has else {}
    copies = idle = 0
    tied = not any(tensor.name == "output.weight" for tensor in header.tensors)
    for tensor in header.tensors:
        # tied embeddings are multiplied, too, so they are both mapped and copied
        is_output = tied and tensor.name == "token_embd.weight"
        n_dims = len(tensor.shape)
        if n_dims < 2 or (_NOT_MULTIPLIED.search(tensor.name) and not is_output):
            continue
        columns, growth = amx.get(tensor.type, (0, 0.0))
        if columns and n_dims == 2 and not (tensor.shape[1] % 32 or tensor.shape[0] % columns):
            copies += int(tensor.n_bytes * growth)
        elif tensor.type in rows and not tensor.shape[1] % rows[tensor.type]:
            copies += tensor.n_bytes
        else:
            continue
        idle += 0 if is_output else tensor.n_bytes
    return copies, idle


# ---- caches


def cache_bytes(header: Header, options: ContextOptions, n_ctx: int) -> int:
    """Return the size of llama.cpp's cache for `n_ctx` positions, in bytes."""
    of, architecture = header.of_architecture, header.architecture
    n_layers = _whole(header, "block_count")
    heads = _by_layer(header, "attention.head_count", 0)
    n_trunk = n_layers - _whole(header, "nextn_predict_layers")
    recurrent = [
        architecture in _RECURRENT or (architecture in _HYBRID and _is_recurrent(header, i))
        for i in range(n_trunk)
    ]
    both = architecture == "falcon-h1"
    total = 4 * _state(header, heads[0] if heads else 0) * sum(recurrent)
    if architecture in _RECURRENT:
        return total

    kv_heads = _by_layer(header, "attention.head_count_kv", heads)
    width = _whole(header, "embedding_length") // heads[0] if heads and heads[0] else 0
    key, value = (
        _whole(header, "attention.key_length", width),
        _whole(header, "attention.value_length", width),
    )
    short_key, short_value = (
        _whole(header, "attention.key_length_swa", key),
        _whole(header, "attention.value_length_swa", value),
    )
    if of("attention.key_length_mla") and of("attention.value_length_mla"):
        value = short_value = 0  # values are a view of the keys
    # the other layers use the cache of the first ones
    n_own = {"gemma3n": 20}.get(
        architecture, n_layers - _whole(header, "attention.shared_kv_layers")
    )
    slides = of("attention.sliding_window_pattern")
    short = [
        isinstance(slides, tuple) and i < len(slides) and bool(slides[i]) for i in range(n_layers)
    ]
    values = [
        n * (short_value if slide else value) for n, slide in zip(kv_heads, short, strict=True)
    ]
    if options.flash_on_cpu == "off" and values:
        # values are transposed, and all layers are as wide as the widest
        values = [max(values)] * n_layers
    keys = [n * (short_key if slide else key) for n, slide in zip(kv_heads, short, strict=True)]
    a_position = sum(
        keys[i] + values[i] for i in range(min(n_trunk, n_own)) if both or not recurrent[i]
    )
    return total + int(_padded(n_ctx) * a_position * KV_TYPES[options.kv_type][1])


def _is_recurrent(header: Header, layer: int) -> bool:
    """Return whether a layer of a hybrid model caches a state instead of keys and values."""
    said = header.of_architecture("attention.recurrent_layers")
    if isinstance(said, tuple) and layer < len(said):
        return bool(said[layer])
    if header.architecture in _SOME_ATTEND:
        every = _whole(header, "full_attention_interval", _SOME_ATTEND[header.architecture])
        return bool((layer + 1) % max(every, 1))
    none = _by_layer(header, "attention.head_count_kv", 0)[layer] == 0
    if header.architecture.startswith("nemotron_h"):
        return none and _by_layer(header, "feed_forward_length", 0)[layer] == 0
    return none or header.architecture == "falcon-h1"


def _state(header: Header, n_heads: int) -> int:
    """Return the number of values in the state of a recurrent layer."""
    embedding, wkv = _whole(header, "embedding_length"), _whole(header, "wkv.head_size")
    if wkv:
        return embedding * (_whole(header, "token_shift_count", 2) + wkv)
    if kernel := _whole(header, "shortconv.l_cache"):
        return embedding * (kernel - 1)
    inner, state, convolution = (
        _whole(header, "ssm.inner_size"),
        _whole(header, "ssm.state_size"),
        _whole(header, "ssm.conv_kernel"),
    )
    if head := _whole(header, "kda.head_dim"):
        return 3 * (convolution - 1 if convolution else 3) * n_heads * head + head * head * n_heads
    if header.architecture == "minimax-01":
        head = _whole(header, "attention.key_length", embedding // max(n_heads, 1))
        return head * head * n_heads
    return (
        max(convolution - 1, 0) * (inner + 2 * _whole(header, "ssm.group_count") * state)
        + state * inner
    )


# ---- the rest


def _compute_bytes(header: Header, options: ContextOptions, n_ctx: int) -> int:
    """Return the approximate bytes of the widest pass, the vocabulary and the logits."""
    embedding = _whole(header, "embedding_length")
    heads = max(_by_layer(header, "attention.head_count", 0), default=0)
    experts = _whole(header, "expert_used_count")
    ff = max(
        *_by_layer(header, "feed_forward_length", 0),
        experts * _whole(header, "expert_feed_forward_length"),
        2 * _whole(header, "ssm.inner_size"),
        0,
    )
    of_row = 4 * embedding + 3 * ff + experts * embedding
    # Attention mask of a row: 16 bits per position. Without flash attention 32 bits, and a score
    # for each head and position.
    of_row += _padded(n_ctx) // 2 if options.flash_on_cpu == "on" else _padded(n_ctx) * (heads + 1)
    n_tokens, n_merges = (
        _length(header, "tokenizer.ggml.tokens"),
        _length(header, "tokenizer.ggml.merges"),
    )
    logits = 2 * _ROWS * n_tokens  # in the pass, and in the output buffer
    return (
        _SMALL
        + _FLOAT * (cpu_batch(header, options, n_ctx) * of_row + logits)
        + _PER_TOKEN * n_tokens
        + _PER_MERGE * n_merges
    )


def cpu_batch(header: Header, options: ContextOptions, n_ctx: int) -> int:
    """Return the number of tokens of a prefill pass on a CPU.

    It is smaller if the attention scores of a long context would need much memory.
    """
    heads = max(_by_layer(header, "attention.head_count", 0), default=0)
    scores = _FLOAT * _padded(n_ctx) * max(heads, 1)
    batch = _BATCH
    while options.flash_on_cpu == "off" and batch > _LEAST_BATCH and batch * scores > _MOST_SCORES:
        batch //= 2
    return batch


def _padded(n_ctx: int) -> int:
    return -(-n_ctx // _PAD) * _PAD


def _whole(header: Header, key: str, default: int = 0) -> int:
    """Return an integer of the architecture's metadata; the default if it is missing or invalid."""
    value = header.of_architecture(key)
    return value if isinstance(value, int) and 0 <= value < 1 << 40 else default


def _by_layer(header: Header, key: str, default: int | list[int]) -> list[int]:
    """Return one number per layer, from a scalar or an array."""
    n_layers = min(_whole(header, "block_count"), 512)
    value: Any = header.of_architecture(key)
    if isinstance(value, tuple):
        numbers = [
            int(n) if isinstance(n, (int, float)) and 0 <= n < math.inf else 0 for n in value
        ]
        return [*numbers, *[0] * n_layers][:n_layers]
    if isinstance(value, int) and 0 <= value < 1 << 40:
        return [value] * n_layers
    return default if isinstance(default, list) else [default] * n_layers


def _length(header: Header, key: str) -> int:
    value = header.metadata.get(key)
    return (
        value.n if isinstance(value, ArrayLength) else len(value) if isinstance(value, tuple) else 0
    )
