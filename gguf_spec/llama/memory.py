"""What models will take in main memory, from their headers alone, and whether that fits: llama.cpp does not ask, it is killed.

llama.cpp maps a file and reads all of it at once. Weights that it repacks for this CPU are copies beside that: both count for the peak, but the
kernel can drop the pages of the file they were copied from. The caches are as large as llama.cpp makes them; the rest follows measurements.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import NotEnoughMemoryError
from ..gguf.validation import ArrayLength, Header
from ..options import BRANCHES_MAX, K_MAX
from ..system.hardware import available_bytes, resident_bytes, total_bytes
from .options import KV_TYPES, ContextOptions

_BATCH, _LEAST_BATCH = 256, 64  # tokens of a prompt that are read in one pass on a CPU
_MOST_SCORES = (
    256 << 20
)  # bytes for the scores of a pass: without flash attention each token has one for each head and position
_ROWS = K_MAX + 1 + BRANCHES_MAX  # of logits that a pass has at most
_PAD = 256  # llama.cpp rounds contexts up to this many positions
_FLOAT = 4
_SMALL, _PER_TOKEN, _PER_MERGE = (
    6 << 20,
    150,
    140,
)  # measured: code and tables of llama.cpp, and what it keeps of a vocabulary
_RECURRENT = {"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"}
_HYBRID = {
    "jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "kimi-linear", "qwen3next", "qwen35",
    "qwen35moe", "minimax-01",
}  # fmt: skip
_SOME_ATTEND = {
    "qwen3next": 4,
    "qwen35": 4,
    "qwen35moe": 4,
    "minimax-01": 8,
}  # one layer of so many, where the file does not say
# ggml types that llama.cpp repacks -> what the rows of a matrix must be a multiple of; for AMX also the columns, and how much larger the copy is.
_AVX2 = {2: 8, 12: 8, 20: 8, 39: 8}
_AVX512 = {10: 8}
_DOTPROD = {2: 4, 8: 4, 12: 8, 13: 8, 14: 8, 20: 4, 39: 4}
_AMX = {
    1: (16, 1.0), 2: (32, 1.0), 3: (32, 1.0), 8: (32, 38 / 34), 12: (256, 148 / 144), 13: (256, 180 / 176), 14: (256, 1.0), 23: (256, 138 / 136),
}  # fmt: skip
# Tensors that are looked up or added, not multiplied with.
_NOT_MULTIPLIED = re.compile(
    r"^(token_embd(_norm)?|token_types|position_embd|per_layer_token_embd|rope_.*)\.|norm\.|\.bias$|conv1d|rope_freqs|shortconv\.conv\."
)


@dataclass(frozen=True)
class MemoryEstimate:
    """What a process takes at most, in bytes.

    Attributes:
        weights: The files, all of whose pages are read at once, and copies of what is repacked.
        caches: Keys and values of `n_ctx` positions, or the state of recurrent models.
        compute: Activations of a batch, logits, vocabularies.
        base: What the process takes already.
        copies: Of the weights, what is repacked, and adapters.
        idle: Of the weights, the pages that were copied from, which nobody reads again.
        n_ctx: Positions of the context, as asked for.
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
        """The peak of what is resident."""
        return self.weights + self.caches + self.compute + self.base

    @property
    def added(self) -> int:
        """What comes on top of what the process has, once idle pages are dropped."""
        return self.total - self.base - self.idle

    @property
    def own(self) -> int:
        """Of that, what no file backs: the kernel cannot drop it and read it again."""
        return self.copies + self.caches + self.compute

    def fits(self, free: int | None, total: int | None) -> bool:
        """Whether there is room: own memory must be free; pages of files may push others out, but the machine must hold them."""
        return not (
            (free is not None and self.own > free) or (total and self.base + self.added > total)
        )


def needs(
    models: Sequence[tuple[Header, ContextOptions]], features: Mapping[str, str]
) -> MemoryEstimate:
    """Return what models take when they are loaded together.

    Args:
        models: Header and options of the target, and of a draft, whose context is as long as the target's.
        features: What the build of llama.cpp can do, as `features_of` reads it.
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
    """Return the longest context that fits, at most the one asked for; 0 where none does."""

    def fits(n_ctx: int) -> bool:
        return needs(
            [(header, replace(options, n_ctx=n_ctx)) for header, options in models], features
        ).fits(free, total)

    asked = needs(models, features).n_ctx
    if fits(asked):
        return asked
    low, high = 0, asked // _PAD + 1  # in steps of the padding
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * _PAD) else (low, middle)
    return low * _PAD


def check_memory(
    models: Sequence[tuple[Header, ContextOptions]], features: Mapping[str, str]
) -> None:
    """Refuse what cannot fit into main memory: the kernel would kill the process instead.

    Args:
        models: As for `needs`.
        features: As for `needs`.

    Raises:
        NotEnoughMemoryError: Says what is needed, what is free, and the context that would fit.
    """
    all_of_it, free, total = needs(models, features), available_bytes(), total_bytes()
    if all_of_it.fits(free, total):
        return
    names = " and ".join(header.path.name for header, _ in models)
    verb = "need" if len(models) > 1 else "needs"
    wants = f"{names} {verb} {_gib(all_of_it.added)} of memory, {_gib(all_of_it.caches)} of it for a context of {all_of_it.n_ctx:,}"
    has = (
        f"{_gib(free)} are free"
        if free is not None and all_of_it.own > free
        else f"there are {_gib(total or 0)}"
    )
    raise NotEnoughMemoryError(
        f"{wants}; {has}: {_what_would_fit(models, features, free, total)}.", all_of_it.added, free
    )


def _what_would_fit(
    models: Sequence[tuple[Header, ContextOptions]],
    features: Mapping[str, str],
    free: int | None,
    total: int | None,
) -> str:
    if n_ctx := largest_ctx(models, features, free, total):
        return f"a context of {n_ctx:,} would fit"
    mapped = [(header, replace(options, extra_bufts=False)) for header, options in models]
    if n_ctx := largest_ctx(mapped, features, free, total):
        return f"the weights alone do not fit; with --no-extra-bufts, which does not copy them, a context of {n_ctx:,} would"
    return "the weights alone do not fit"


def _gib(n_bytes: int) -> str:
    return (
        f"{n_bytes / 2**30:,.1f} GiB" if n_bytes >= 0.1 * 2**30 else f"{n_bytes / 2**20:,.1f} MiB"
    )


# ---- weights


def features_of(system_info: str) -> dict[str, str]:
    """Return what a build of llama.cpp can do, by its own words: `CPU : AVX2 = 1 | REPACK = 1 | `."""
    pairs = (part.rpartition(" : ")[2].partition("=") for part in system_info.split("|"))
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}


def _repacked(header: Header, features: Mapping[str, str]) -> tuple[int, int]:
    """Return how many bytes of copies a file's weights are repacked into, and how many bytes of the file nobody reads after that."""
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
        is_output = (
            tied and tensor.name == "token_embd.weight"
        )  # multiplied with too, so it is both mapped and copied
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
    """Return the size of the cache that llama.cpp makes for `n_ctx` positions."""
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
        value = short_value = 0  # a view of the keys
    n_own = {"gemma3n": 20}.get(
        architecture, n_layers - _whole(header, "attention.shared_kv_layers")
    )  # the others look into those of the first
    slides = of("attention.sliding_window_pattern")
    short = [
        isinstance(slides, tuple) and i < len(slides) and bool(slides[i]) for i in range(n_layers)
    ]
    values = [
        n * (short_value if slide else value) for n, slide in zip(kv_heads, short, strict=True)
    ]
    if options.flash_on_cpu == "off" and values:
        values = [max(values)] * n_layers  # turned, with all layers as wide as the widest
    keys = [n * (short_key if slide else key) for n, slide in zip(kv_heads, short, strict=True)]
    a_position = sum(
        keys[i] + values[i] for i in range(min(n_trunk, n_own)) if both or not recurrent[i]
    )
    return total + int(_padded(n_ctx) * a_position * KV_TYPES[options.kv_type][1])


def _is_recurrent(header: Header, layer: int) -> bool:
    """Return whether a layer of a hybrid model keeps a state instead of keys and values."""
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
    """Return how many numbers a recurrent layer keeps."""
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
    """Return about what passes over as many rows as there ever are take, and what vocabulary and logits take."""
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
    # Which positions a row sees, in 16 bits; without flash attention in 32, and how well each head sees them.
    of_row += _padded(n_ctx) // 2 if options.flash_on_cpu == "on" else _padded(n_ctx) * (heads + 1)
    n_tokens, n_merges = (
        _length(header, "tokenizer.ggml.tokens"),
        _length(header, "tokenizer.ggml.merges"),
    )
    logits = 2 * _ROWS * n_tokens  # in the pass, and where they are read
    return (
        _SMALL
        + _FLOAT * (cpu_batch(header, options, n_ctx) * of_row + logits)
        + _PER_TOKEN * n_tokens
        + _PER_MERGE * n_merges
    )


def cpu_batch(header: Header, options: ContextOptions, n_ctx: int) -> int:
    """Return how many tokens of a prompt are read in one pass on a CPU: fewer where the scores of a long context would take much memory."""
    heads = max(_by_layer(header, "attention.head_count", 0), default=0)
    scores = _FLOAT * _padded(n_ctx) * max(heads, 1)
    batch = _BATCH
    while options.flash_on_cpu == "off" and batch > _LEAST_BATCH and batch * scores > _MOST_SCORES:
        batch //= 2
    return batch


def _padded(n_ctx: int) -> int:
    return -(-n_ctx // _PAD) * _PAD


def _whole(header: Header, key: str, default: int = 0) -> int:
    """Return a whole number of the architecture's; a default where there is none, or something else."""
    value = header.of_architecture(key)
    return value if isinstance(value, int) and 0 <= value < 1 << 40 else default


def _by_layer(header: Header, key: str, default: int | list[int]) -> list[int]:
    """Return a number for each layer, whether the file gives one or an array."""
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
