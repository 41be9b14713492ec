"""Weights that llama.cpp repacks for this CPU: copies beside the mapped file."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..gguf.validation import Header

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
