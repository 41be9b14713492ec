"""Which passes of a model give a row the same bits, by its header and its kernels.

A kernel is exact if it gives a row the same bits in passes of every width. The own kernels are, at
any depth and with any number of threads. Among those of llama.cpp on x86, products with K-quants
and IQ types are computed in tiles from 8 rows on (`ggml-cpu/tiled`), and repacked Q4_K and Q2_K in
blocks of four rows. Both add in another order than the product of a single row. The other types do
not. `predicted` knows this from a file's header; the behaviour of a loaded model is measured in
`speculative.profiler`, and on a GPU by `Context`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ..gguf.validation import Header, Tensor
from ..options import K_MAX
from ..passes import Exactness
from ..system.machine import is_x86
from .backend import build_features, uses_gpu
from .options import ContextOptions
from .own_kernels import TYPES, has_own_attention, in_use

# tokens; passes of at least this width use the same kernels for all their rows
_GRID = 64
# ggml types whose products in llama.cpp do not depend on the number of rows: F32, F16, Q4_0, Q4_1,
# Q5_0, Q5_1, Q8_0, IQ4_NL, BF16, MXFP4
_SAME_IN_ANY_WIDTH = frozenset({0, 1, 2, 3, 6, 7, 8, 20, 30, 39})
# ggml types with repacked kernels for blocks of rows: Q2_K, Q4_K
_REPACKED = {10, 12}
# rows of a repacked block, and of a tile
_ROWS_OF_A_BLOCK, _ROWS_OF_A_TILE = 4, 8
# matrices that are multiplied only for rows of logits; their products are not cached
_ONLY_FOR_LOGITS = re.compile(r"^(output|token_embd)\.weight$")


def predicted(header: Header, options: ContextOptions, flash_attention: str) -> Exactness:
    """Return what the header and the kernels of this process promise; nothing for a GPU."""
    attention = not uses_gpu(options) and has_exact_attention(
        header, options, flash_attention, build_features()
    )
    is_exact = attention and has_exact_products(header, options)
    grid = 0 if options.drafts or is_exact else _GRID
    promised = attention and not _inexact_types(header.tensors, options)
    return Exactness(attention, most_exact_rows(header, options), grid=grid, promised=promised)


def has_exact_attention(
    header: Header, options: ContextOptions, flash_attention: str, features: Mapping[str, str]
) -> bool:
    """Return whether attention on this CPU gives a row the same bits at all widths and depths."""
    if flash_attention == "off":  # it uses llamafile's products, if the build has them
        return features.get("LLAMAFILE", "0") == "0"
    return flash_attention == "on" and (
        options.kv_type not in ("f16", "f32") or has_own_attention(header, options)
    )


def has_exact_products(header: Header, options: ContextOptions) -> bool:
    """Return whether cached values of a prompt have the same bits in passes of all widths."""
    cached = [one for one in header.tensors if not _ONLY_FOR_LOGITS.match(one.name)]
    return not _inexact_types(cached, options)


def most_exact_rows(header: Header, options: ContextOptions) -> int:
    """Return the most rows of a pass that can each have the bits of a single-row pass.

    A measurement alone does not show it: sums that differ in the last bit are often equal after
    quantisation for the next product.
    """
    types = _inexact_types(header.tensors, options)
    if not is_x86() or not types:
        return K_MAX + 1
    return (_ROWS_OF_A_BLOCK if options.repacks and types & _REPACKED else _ROWS_OF_A_TILE) - 1


def _inexact_types(tensors: Iterable[Tensor], options: ContextOptions) -> set[int]:
    """Return the ggml types of matrices whose products are not exact on this CPU.

    Workers keep llama.cpp's products.
    """
    is_own = in_use().name and not options.rpc
    types = {tensor.type for tensor in tensors if len(tensor.shape) > 1}
    if is_own:
        return types - TYPES
    return types - _SAME_IN_ANY_WIDTH if is_x86() else types
