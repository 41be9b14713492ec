"""Which of llama.cpp's CPU kernels give a row the same bits in passes of every width, as far as a file's header says.

On x86, products with K-quants and IQ types are computed in tiles from 8 rows on (`ggml-cpu/tiled`), and repacked Q4_K and Q2_K in blocks of four
rows: both add in another order than the product of a single row. The other types do not. What holds for a loaded model is measured
(`speculative.profiler`).
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping

from ..gguf.validation import Header

GRID = 64  # tokens; passes of this width and more use the same kernels for all their rows
_TILED_SWITCH = "GGML_CPU_TILED_MM"  # read once a process by llama.cpp, at the first product
# ggml types whose products do not depend on the number of rows: F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, BF16, MXFP4.
_SAME_IN_ANY_WIDTH = {0, 1, 2, 3, 6, 7, 8, 20, 30, 39}
_REPACKED = {10, 12}  # Q2_K, Q4_K
_ROWS_OF_A_BLOCK, _ROWS_OF_A_TILE = 4, 8
_ONLY_FOR_LOGITS = re.compile(
    r"^(output|token_embd)\.weight$"
)  # these products are made for rows whose logits are wanted, and kept in no cache

_decided: list[bool] = []  # whether tiles are switched off, once it is decided


def switch_tiles(headers: Iterable[Header]) -> None:
    """Switch tiled products off where no matrix but the output would use them: passes of 8 and more rows are exact then.

    A Q4_0 file usually has a Q6_K output matrix. Reading prompts is no slower, as it computes one row of logits. The first call in a process
    decides, as llama.cpp reads the switch once; a user's own setting stays.
    """
    if _decided:
        return
    if _TILED_SWITCH not in os.environ and all(_same_in_any_width(header) for header in headers):
        os.environ[_TILED_SWITCH] = "0"
    _decided.append(os.environ.get(_TILED_SWITCH) == "0")


def kernels_in_use() -> str:
    """Return what was decided in this process, for the names of files that keep measurements."""
    return "untiled" if _decided and _decided[0] else "tiled"


def has_exact_attention(flash_attention: str, kv_type: str, features: Mapping[str, str]) -> bool:
    """Return whether attention on this CPU gives a row the same bits in passes of all widths, at all depths, as far as is known without measuring.

    Args:
        flash_attention: `on` or `off`; `auto` stands for a build with a GPU, where it is not known.
        kv_type: Number type of the cache.
        features: What the build of llama.cpp can do: llamafile's products are used for the products of attention.
    """
    if flash_attention == "off":
        return features.get("LLAMAFILE", "0") == "0"
    return flash_attention == "on" and kv_type not in ("f16", "f32")


def has_exact_products(header: Header) -> bool:
    """Return whether what is read of a prompt has the same bits in passes of all widths, as far as is known without measuring."""
    return platform.machine().lower() in ("x86_64", "amd64") and _same_in_any_width(header)


def most_exact_rows(header: Header, extra_bufts: bool) -> int | None:
    """Return the most rows of a pass that can give each row the bits of a single-row pass; None where nothing speaks against any number.

    Measuring alone does not show it: sums that differ in the last bit are often the same once they are quantised for the next product.

    Args:
        header: Of the model.
        extra_bufts: Whether kernels are repacked.
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
