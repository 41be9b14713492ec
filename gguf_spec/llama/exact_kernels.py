"""Prediction of exact CPU kernels from a file's header.

A kernel is exact if it gives a row the same bits in passes of every width.

The own kernels are (`llama.own_kernels`). Among those of llama.cpp on x86, products with K-quants
and IQ types are computed in tiles from 8 rows on (`ggml-cpu/tiled`), and repacked Q4_K and Q2_K in
blocks of four rows. Both add in another order than the product of a single row. The other types do
not. The behaviour of a loaded model is measured in `speculative.profiler`.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping

from ..gguf.validation import Header
from . import own_kernels
from .options import KV_TYPES, ContextOptions, head_sizes

# tokens; passes of at least this width use the same kernels for all their rows
GRID = 64
# ggml types whose products in llama.cpp do not depend on the number of rows: F32, F16, Q4_0, Q4_1,
# Q5_0, Q5_1, Q8_0, IQ4_NL, BF16, MXFP4
_SAME_IN_ANY_WIDTH = frozenset({0, 1, 2, 3, 6, 7, 8, 20, 30, 39})
# ggml types with repacked kernels for blocks of rows: Q2_K, Q4_K
_REPACKED = {10, 12}
# rows of a repacked block, and of a tile
_ROWS_OF_A_BLOCK, _ROWS_OF_A_TILE = 4, 8
# matrices that are multiplied only for rows of logits; their products are not cached
_ONLY_FOR_LOGITS = re.compile(r"^(output|token_embd)\.weight$")


def has_own_attention(header: Header, options: ContextOptions) -> bool:
    """Return whether flash attention of a model on this CPU is computed by the own kernel."""
    kind, sizes = KV_TYPES[options.kv_type][0], head_sizes(header)
    return not options.rpc and all(own_kernels.takes_attention(*pair, kind) for pair in sizes)


def flash_on_cpu(header: Header, options: ContextOptions) -> str:
    """Return `on` or `off`: flash attention of a model on a CPU.

    `auto` is on with the own kernel, and where the cache needs it. Otherwise it is off, because
    rows then have the same bits in passes of all widths.
    """
    if options.flash_attention != "auto":
        return options.flash_attention
    needed = options.needs_flash_attention or has_own_attention(header, options)
    return "on" if needed else "off"


def has_exact_attention(
    header: Header, options: ContextOptions, flash_attention: str, features: Mapping[str, str]
) -> bool:
    """Return whether attention on this CPU gives a row the same bits at all widths and depths.

    This is a prediction without a measurement.

    Args:
        header: Header of the model.
        options: Its options.
        flash_attention: `on` or `off`; `auto` stands for a build with a GPU, where this is unknown.
        features: Features of the llama.cpp build. With LLAMAFILE, attention uses llamafile's
            products.
    """
    if flash_attention == "off":
        return features.get("LLAMAFILE", "0") == "0"
    return flash_attention == "on" and (
        options.kv_type not in ("f16", "f32") or has_own_attention(header, options)
    )


def has_exact_products(
    header: Header, options: ContextOptions, features: Mapping[str, str]
) -> bool:
    """Return whether cached values of a prompt have the same bits in passes of all widths.

    This is a prediction without a measurement.
    """
    matrices = {
        tensor.type
        for tensor in header.tensors
        if len(tensor.shape) > 1 and not _ONLY_FOR_LOGITS.match(tensor.name)
    }
    return _is_x86() and matrices <= _exact_types(options, features)


def most_exact_rows(
    header: Header, options: ContextOptions, features: Mapping[str, str]
) -> int | None:
    """Return the most rows of a pass that can each have the bits of a single-row pass.

    A measurement alone does not show it: sums that differ in the last bit are often equal after
    quantisation for the next product.

    Returns:
        The number of rows; None if no limit is known.
    """
    types = {tensor.type for tensor in header.tensors if len(tensor.shape) > 1}
    types -= _exact_types(options, features)
    if not _is_x86() or not types:
        return None
    return (_ROWS_OF_A_BLOCK if options.repacks and types & _REPACKED else _ROWS_OF_A_TILE) - 1


def _exact_types(options: ContextOptions, features: Mapping[str, str]) -> frozenset[int]:
    """Return the ggml types with exact products on this CPU.

    llama.cpp's AMX kernels and workers keep their own products.
    """
    has_amx = options.repacks and features.get("AMX_INT8", "0") != "0"
    is_own = own_kernels.in_use().name and not has_amx and not options.rpc
    return own_kernels.TYPES if is_own else _SAME_IN_ANY_WIDTH


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")
