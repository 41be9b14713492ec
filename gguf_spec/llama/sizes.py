"""Sizes by llama.cpp's own formulas: its cache, copies of repacked weights, and offloaded parts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ..gguf.heads import n_heads, shares_cache
from ..gguf.validation import Header
from .options import KV_TYPES, ContextOptions
from .own_kernels import flash_on_cpu

# positions; llama.cpp rounds contexts up to a multiple
PAD = 256
# bytes of a float32
_FLOAT = 4
# copies of a state that `llama.recurrent_state` keeps
_CHECKPOINTS = 2


def cache_bytes(header: Header, options: ContextOptions, n_ctx: int) -> int:
    """Return the size of llama.cpp's cache for `n_ctx` positions, in bytes."""
    of, facts = header.of_architecture, header.facts
    n_layers = header.whole("block_count")
    heads = header.by_layer("attention.head_count", 0)
    n_trunk = n_layers - header.whole("nextn_predict_layers")
    recurrent = [_is_recurrent(header, i) for i in range(n_trunk)]
    n_snapshots = options.n_snapshots if facts.has_snapshots else 0
    total = (1 + n_snapshots) * state_bytes(header)
    if facts.cache == "recurrent":
        return total

    kv_heads = header.by_layer("attention.head_count_kv", heads)
    width = header.whole("embedding_length") // heads[0] if heads and heads[0] else 0
    key, value = (
        header.whole("attention.key_length", width),
        header.whole("attention.value_length", width),
    )
    short_key, short_value = (
        header.whole("attention.key_length_swa", key),
        header.whole("attention.value_length_swa", value),
    )
    if of("attention.key_length_mla") and of("attention.value_length_mla"):
        value = short_value = 0  # values are a view of the keys
    # the other layers use the cache of the first ones
    n_own = facts.own_kv_layers or n_layers - header.whole("attention.shared_kv_layers")
    slides = of("attention.sliding_window_pattern")
    short = [
        isinstance(slides, tuple) and i < len(slides) and bool(slides[i]) for i in range(n_layers)
    ]
    values = [
        n * (short_value if slide else value) for n, slide in zip(kv_heads, short, strict=True)
    ]
    if flash_on_cpu(header, options) == "off" and values:
        # values are transposed, and all layers are as wide as the widest
        values = [max(values)] * n_layers
    keys = [n * (short_key if slide else key) for n, slide in zip(kv_heads, short, strict=True)]
    a_position = sum(
        keys[i] + values[i]
        for i in range(min(n_trunk, n_own))
        if facts.caches_both or not recurrent[i]
    )
    return total + int(padded(n_ctx) * a_position * KV_TYPES[options.kv_type][1])


def head_bytes(header: Header, options: ContextOptions, n_ctx: int) -> int:
    """Return the size of the cache of prediction heads for `n_ctx` positions, in bytes."""
    if shares_cache(header):
        return 0
    n_layers, n = header.whole("block_count"), n_heads(header)
    heads = header.by_layer("attention.head_count", 0)
    kv_heads = header.by_layer("attention.head_count_kv", heads)[n_layers - n :]
    width = header.whole("embedding_length") // heads[0] if heads and heads[0] else 0
    values = sum(header.whole(f"attention.{name}_length", width) for name in ("key", "value"))
    return int(padded(n_ctx) * sum(kv_heads) * values * KV_TYPES[options.kv_type][1])


def hidden_bytes(header: Header, options: ContextOptions, n_ctx: int) -> int:
    """Return the size of the rows that a target sends to a prediction head, in bytes."""
    n_rows = max(1, len(options.head_layers))
    return _FLOAT * n_rows * header.whole("embedding_length") * n_ctx


def state_bytes(header: Header) -> int:
    """Return the size of the states of all recurrent layers, in bytes."""
    heads = header.by_layer("attention.head_count", 0)
    n_trunk = header.whole("block_count") - header.whole("nextn_predict_layers")
    n_recurrent = sum(_is_recurrent(header, i) for i in range(n_trunk))
    return _FLOAT * _state(header, heads[0] if heads else 0) * n_recurrent


def checkpoint_bytes(header: Header, options: ContextOptions) -> int:
    """Return the size of the copies of the state beside llama.cpp's cache, in bytes."""
    has_copies = options.parallel == 1 and not options.rpc
    return _CHECKPOINTS * state_bytes(header) if has_copies else 0


def _is_recurrent(header: Header, layer: int) -> bool:
    """Return whether a layer caches a state."""
    facts = header.facts
    if facts.cache != "hybrid" or facts.caches_both:
        return facts.cache == "recurrent" or facts.caches_both
    layers = header.of_architecture("attention.recurrent_layers")
    if isinstance(layers, tuple) and layer < len(layers):
        return bool(layers[layer])
    if facts.attention_every:
        every = header.whole("full_attention_interval", facts.attention_every)
        return bool((layer + 1) % max(every, 1))
    none = header.by_layer("attention.head_count_kv", 0)[layer] == 0
    has_feed_forward = header.by_layer("feed_forward_length", 0)[layer] > 0
    return none and not (facts.feed_forward_alone and has_feed_forward)


def _state(header: Header, n_heads: int) -> int:
    """Return the number of values in the state of a recurrent layer."""
    embedding, wkv = header.whole("embedding_length"), header.whole("wkv.head_size")
    if wkv:
        return embedding * (header.whole("token_shift_count", 2) + wkv)
    if kernel := header.whole("shortconv.l_cache"):
        return embedding * (kernel - 1)
    inner, state, convolution = (
        header.whole("ssm.inner_size"),
        header.whole("ssm.state_size"),
        header.whole("ssm.conv_kernel"),
    )
    if head := header.whole("kda.head_dim"):
        return 3 * (convolution - 1 if convolution else 3) * n_heads * head + head * head * n_heads
    if header.facts.linear_attention:
        head = header.whole("attention.key_length", embedding // max(n_heads, 1))
        return head * head * n_heads
    return (
        max(convolution - 1, 0) * (inner + 2 * header.whole("ssm.group_count") * state)
        + state * inner
    )


def padded(n_ctx: int) -> int:
    """Return a context length as llama.cpp rounds it up."""
    return -(-n_ctx // PAD) * PAD


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


def repacked_bytes(header: Header, features: Mapping[str, str]) -> tuple[int, int]:
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


class Offloaded(NamedTuple):
    """The part of a model that is on devices.

    Attributes:
        n_bytes: Bytes of its weights.
        share: Share of the layers, and so of the cache, from 0 to 1.
        has_output: Whether the output matrix is there, which computes the logits.
    """

    n_bytes: int
    share: float
    has_output: bool


def offloaded(header: Header, options: ContextOptions) -> Offloaded:
    """Return the part of a model that is on devices with a number of layers; all layers for `auto`.

    llama.cpp offloads the output first, as if it were the last layer, then the layers from the last
    to the first. The token embeddings stay here; tied ones are copied for the output.
    """
    n_layers = max(1, header.whole("block_count"))
    n = options.gpu_layers
    n_there = n if isinstance(n, int) and 0 <= n <= n_layers else n_layers + 1
    first = n_layers + 1 - n_there
    places = options.placement.places(tensor.name for tensor in header.tensors)
    tied = not any(tensor.name == "output.weight" for tensor in header.tensors)
    n_bytes = 0
    for tensor in header.tensors:
        kind, _, rest = tensor.name.partition(".")
        number = rest.partition(".")[0]
        if tensor.name in places:
            there = places[tensor.name] != "CPU"
        elif kind == "blk" and number.isdecimal():
            there = int(number) >= first
        else:
            is_output = kind.startswith("output") or (tied and kind == "token_embd")
            there = is_output and n_there > 0
        n_bytes += tensor.n_bytes if there else 0
    return Offloaded(n_bytes, (n_layers - min(first, n_layers)) / n_layers, n_there > 0)
