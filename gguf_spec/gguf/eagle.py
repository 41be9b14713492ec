"""EAGLE-3 heads: what their files say, and whether a head fits a target.

An EAGLE-3 head is a layer in a file of its own. It reads the inputs of three layers of its target,
and may use the embedding and the output of its target. llama.cpp ends the process on most heads
that do not fit, so all numbers are compared here first.
"""

from __future__ import annotations

import numpy as np

from .architectures import LAST_ROWS, LAYER_INPUTS
from .header import I64, TOKEN_TABLE, TOKENS, Header, Tensor

# layers of the target that a head reads
_N_LAYERS = 3


def is_eagle(header: Header) -> bool:
    """Return whether a file is an EAGLE-3 head."""
    return header.facts.heads == "layers"


def target_layers(header: Header) -> tuple[int, ...]:
    """Return the layers of the target that a head reads; empty if the file does not name three."""
    layers = header.of_architecture("target_layers")
    is_valid = isinstance(layers, tuple) and len(layers) == _N_LAYERS
    return layers if is_valid and all(isinstance(one, int) for one in layers) else ()


def why_damaged(header: Header) -> str:
    """Return why llama.cpp cannot use an EAGLE-3 head for any target; empty if it may."""
    name, width = header.path.name, header.whole("embedding_length")
    n_layers = header.whole("block_count")
    n_heads = max(1, header.whole("attention.head_count", 1))
    key, value = (
        header.whole(f"attention.{one}_length", width // n_heads) for one in ("key", "value")
    )
    if not target_layers(header):
        return f"{name} does not name the three layers of its target that it reads"
    if n_layers != 1:
        return f"{name} has {n_layers:,} layers; llama.cpp uses EAGLE-3 heads of one layer"
    if key != value:
        return f"{name} has keys of {key:,} and values of {value:,} values"
    if not header.whole("target_hidden_size"):
        return f"{name} does not give the length of its target's rows"
    return _why_no_table(header, _tensor(header, TOKEN_TABLE), _tensor(header, "output.weight"))


def _why_no_table(header: Header, table: Tensor | None, output: Tensor | None) -> str:
    """Return what is wrong with the table of the tokens that a head knows; empty if nothing is.

    llama.cpp ends the process on ids that are out of range. With an id that occurs twice the
    logits of a pass would depend on the order of its threads.
    """
    name, n_tokens = header.path.name, header.n_values(TOKENS)
    if table is None:
        n = output.shape[1] if output and len(output.shape) > 1 else n_tokens
        return "" if n == n_tokens else f"{name} has an output of {n:,} tokens and no table of them"
    if output is None or table.type != I64 or table.shape != output.shape[1:]:
        return f"the table of {name} (d2t) does not belong to its output"
    try:
        with header.parts[table.part].open("rb") as file:
            file.seek(header.data_at + table.offset)
            ids = np.frombuffer(file.read(table.n_bytes), "<i8")
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    if len(ids) < table.shape[0] or ids.min() < 0 or ids.max() >= n_tokens:
        return f"the table of {name} (d2t) names tokens that are not in its vocabulary"
    return "" if len(np.unique(ids)) == len(ids) else f"the table of {name} (d2t) repeats tokens"


def why_misfit(header: Header, target: Header) -> str:
    """Return why an EAGLE-3 head cannot draft for a target; empty if it may."""
    name, where = header.path.name, target.path.name
    of = target.architecture
    if of not in LAYER_INPUTS:
        return f"llama.cpp gives no inputs of layers to a head for the architecture {of} ({where})"
    width, hidden = target.whole("embedding_length"), header.whole("target_hidden_size")
    if hidden != width:
        return f"{name} is for rows of {hidden:,} values, and {where} has rows of {width:,}"
    n_layers = target.whole("block_count") - target.whole("nextn_predict_layers")
    last = n_layers - (of not in LAST_ROWS)
    for layer in target_layers(header):
        if not 0 <= layer <= last:
            return f"{name} reads layer {layer:,}, and {where} has layers 0 to {last:,} for it"
    own = header.whole("embedding_length")
    for part, what in (("token_embd.weight", "embedding"), ("output.weight", "output")):
        if own != width and _tensor(header, part) is None:
            return (
                f"{name} uses the {what} of its target with rows of {own:,} values, and {where} "
                f"has rows of {width:,}"
            )
    embedding, n_tokens = _tensor(header, "token_embd.weight"), target.n_values(TOKENS)
    n_known = embedding.shape[-1] if embedding else n_tokens
    return "" if n_known >= n_tokens else f"{name} has an embedding of {n_known:,} tokens only"


def head_bytes(header: Header) -> int:
    """Return the bytes that a pass of a head reads, without the output of its target."""
    embedding = _tensor(header, "token_embd.weight")
    return header.file_bytes - (embedding.n_bytes if embedding else 0)


def _tensor(header: Header, name: str) -> Tensor | None:
    return next((one for one in header.tensors if one.name == name), None)
