"""Prediction of exact CPU kernels from a file's header.

A kernel is exact if it gives a row the same bits in passes of every width.

On x86, products with K-quants and IQ types are computed in tiles from 8 rows on (`ggml-cpu/tiled`),
and repacked Q4_K and Q2_K in blocks of four rows. Both add in another order than the product of a
single row. The other types do not. The behaviour of a loaded model is measured in
`speculative.profiler`.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping

from ..gguf.validation import Header

# tokens; passes of at least this width use the same kernels for all their rows
GRID = 64
# environment variable; llama.cpp reads it once per process, at the first product
_TILED_SWITCH = "GGML_CPU_TILED_MM"
# ggml types whose products do not depend on the number of rows: F32, F16, Q4_0, Q4_1, Q5_0, Q5_1,
# Q8_0, IQ4_NL, BF16, MXFP4
_SAME_IN_ANY_WIDTH = {0, 1, 2, 3, 6, 7, 8, 20, 30, 39}
# ggml types with repacked kernels for blocks of rows: Q2_K, Q4_K
_REPACKED = {10, 12}
# rows of a repacked block, and of a tile
_ROWS_OF_A_BLOCK, _ROWS_OF_A_TILE = 4, 8
# matrices that are multiplied only for rows of logits; their products are not cached
_ONLY_FOR_LOGITS = re.compile(r"^(output|token_embd)\.weight$")

# whether tiles are off; empty until the decision
_decided: list[bool] = []


def switch_tiles(headers: Iterable[Header]) -> None:
    """Disable tiled products if no matrix but the output would use them.

    Passes of 8 and more rows are exact then. A Q4_0 file usually has a Q6_K output matrix. Prefill
    is not slower, as it computes one row of logits. The first call in a process decides, because
    llama.cpp reads the variable once. A value set by the user is kept.
    """
    if _decided:
        return
    if _TILED_SWITCH not in os.environ and all(_same_in_any_width(header) for header in headers):
        os.environ[_TILED_SWITCH] = "0"
    _decided.append(os.environ.get(_TILED_SWITCH) == "0")


def kernels_in_use() -> str:
    """Return the kernels chosen in this process, for the names of measurement files."""
    return "untiled" if _decided and _decided[0] else "tiled"


def has_exact_attention(flash_attention: str, kv_type: str, features: Mapping[str, str]) -> bool:
    """Return whether attention on this CPU gives a row the same bits at all widths and depths.

    This is a prediction without a measurement.

    Args:
        flash_attention: `on` or `off`; `auto` stands for a build with a GPU, where this is unknown.
        kv_type: Number type of the cache.
        features: Features of the llama.cpp build. With LLAMAFILE, attention uses llamafile's
            products.
    """
    if flash_attention == "off":
        return features.get("LLAMAFILE", "0") == "0"
    return flash_attention == "on" and kv_type not in ("f16", "f32")


def has_exact_products(header: Header) -> bool:
    """Return whether cached values of a prompt have the same bits in passes of all widths.

    This is a prediction without a measurement.
    """
    return platform.machine().lower() in ("x86_64", "amd64") and _same_in_any_width(header)


def most_exact_rows(header: Header, extra_bufts: bool) -> int | None:
    """Return the most rows of a pass that can each have the bits of a single-row pass.

    A measurement alone does not show it: sums that differ in the last bit are often equal after
    quantisation for the next product.

    Args:
        header: Header of the model.
        extra_bufts: Whether kernels are repacked.

    Returns:
        The number of rows; None if no limit is known.
    """
    types = {tensor.type for tensor in header.tensors if len(tensor.shape) > 1} - _SAME_IN_ANY_WIDTH
    if platform.machine().lower() not in ("x86_64", "amd64") or not types:
        return None
    if extra_bufts and types & _REPACKED:
        return _ROWS_OF_A_BLOCK - 1
    return None if kernels_in_use() == "untiled" else _ROWS_OF_A_TILE - 1


def _same_in_any_width(header: Header) -> bool:
    matrices = (
        tensor
        for tensor in header.tensors
        if len(tensor.shape) > 1 and not _ONLY_FOR_LOGITS.match(tensor.name)
    )
    return all(tensor.type in _SAME_IN_ANY_WIDTH for tensor in matrices)
