"""Prediction heads (MTP and EAGLE-3) in a file, and whether llama.cpp can use them for a target.

A head is one more layer after those of the model. From the hidden state of a token and the next
token it predicts the token after that. A file has one beside the model's layers, or it has nothing
else (a file for the head alone). Heads for multi-token prediction (MTP) are trained with their
model. EAGLE-3 heads are trained for a model afterwards. They are a layer in a file of its own, read
the inputs of three layers of their target, and may use its embedding and output. llama.cpp ends the
process on most EAGLE-3 heads that do not fit, so all numbers are compared here first.
"""

from __future__ import annotations

import numpy as np

from .architectures import LAST_ROWS, LAYER_INPUTS
from .header import I64, TOKEN_TABLE, TOKENS, Header, Tensor

# layers of the target that an EAGLE-3 head reads
_N_LAYERS = 3
# tensors of every MTP head, and of one that reads the cache of its target
_PARTS = ("eh_proj", "enorm", "hnorm")
_OF_SHARED = ("nextn.pre_projection.weight", "nextn.post_projection.weight")


def is_eagle(header: Header) -> bool:
    return header.facts.heads == "layers"


def target_layers(header: Header) -> tuple[int, ...]:
    """Return the layers of the target that a head reads; empty if the file does not name three."""
    layers = header.of_architecture("target_layers")
    is_valid = isinstance(layers, tuple) and len(layers) == _N_LAYERS
    return layers if is_valid and all(isinstance(one, int) for one in layers) else ()


def _why_damaged(header: Header) -> str:
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
    return _why_no_table(header, header.tensor(TOKEN_TABLE), header.tensor("output.weight"))


def _why_no_table(header: Header, table: Tensor | None, output: Tensor | None) -> str:
    """Return why the token table of a head is invalid; empty if it is valid.

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


def _why_no_fit(header: Header, target: Header) -> str:
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
        if own != width and header.tensor(part) is None:
            return (
                f"{name} uses the {what} of its target with rows of {own:,} values, and {where} "
                f"has rows of {width:,}"
            )
    embedding, n_tokens = header.tensor("token_embd.weight"), target.n_values(TOKENS)
    n_known = embedding.shape[-1] if embedding else n_tokens
    return "" if n_known >= n_tokens else f"{name} has an embedding of {n_known:,} tokens only"


def n_heads(header: Header) -> int:
    """Return the number of prediction heads whose weights are in a file."""
    n = header.whole("nextn_predict_layers")
    first = header.whole("block_count") - n
    names = {tensor.name for tensor in header.tensors}
    if is_eagle(header):
        return int("fc.weight" in names)
    if header.facts.heads == "shared":
        return int(n > 0 and names.issuperset(_OF_SHARED))
    has_all = all(
        f"blk.{first + i}.nextn.{part}.weight" in names for i in range(n) for part in _PARTS
    )
    return n if first >= 0 and has_all else 0


def head_kind(header: Header) -> str:
    """Return the name of the drafter that uses the head in a file."""
    return "eagle3" if is_eagle(header) else "mtp"


def described(header: Header) -> str:
    """Return what the heads in a file are, and for which models."""
    if is_eagle(header):
        layers = ", ".join(map(str, target_layers(header)))
        return (
            f"an EAGLE-3 head for models with rows of {header.whole('target_hidden_size'):,} "
            f"values (it reads their layers {layers or 'unknown'})"
        )
    architecture = header.facts.head_of if shares_cache(header) else header.architecture
    return f"an MTP head for the architecture {architecture}"


def is_head_alone(header: Header) -> bool:
    """Return whether a file holds prediction heads without the layers of their model."""
    if header.facts.heads in ("shared", "layers"):
        return True
    names = {tensor.name for tensor in header.tensors}
    return n_heads(header) > 0 and "blk.0.attn_norm.weight" not in names


def shares_cache(header: Header) -> bool:
    """Return whether the head in a file reads the cache of its target, and has none."""
    return header.facts.heads == "shared"


def why_no_head(header: Header) -> str:
    """Return why a file has no head that llama.cpp can use, as a sentence; empty if it has one."""
    name, n = header.path.name, n_heads(header)
    if not n:
        return f"{name} has no prediction head"
    if is_eagle(header):
        return _why_damaged(header)
    if not header.facts.heads:
        return f"llama.cpp does not use prediction heads of the architecture {header.architecture}"
    if header.facts.heads == "one" and n > 1:
        return (
            f"llama.cpp uses one prediction head of the architecture {header.architecture}, and "
            f"{name} has {n}"
        )
    return ""


def why_misfit(header: Header, target: Header) -> str:
    """Return why a head alone does not belong to a target, as a sentence; empty if it may."""
    name, where = f"the prediction head {header.path.name}", target.path.name
    if is_eagle(header):
        if why := _why_no_fit(header, target):
            return why
    else:
        architecture, width = header.architecture, header.whole("embedding_length")
        if shares_cache(header):
            architecture = header.facts.head_of
            width = header.whole("embedding_length_out", width)
        if architecture != target.architecture:
            of = target.architecture
            return f"{name} is for the architecture {architecture}, and {where} is of {of}"
        if width != (own := target.whole("embedding_length")):
            return f"{name} is for rows of {width:,} values, and {where} has rows of {own:,}"
    if header.n_values(TOKENS) != target.n_values(TOKENS):
        return (
            f"{name} has a vocabulary of {header.n_values(TOKENS):,} tokens, and {where} of "
            f"{target.n_values(TOKENS):,}"
        )
    return ""


def head_bytes(header: Header) -> int:
    """Return the bytes that a pass of a head reads: those of its layer and of the output.

    The output is not counted for an EAGLE-3 head.
    """
    if is_eagle(header):
        embedding = header.tensor("token_embd.weight")
        return header.file_bytes - (embedding.n_bytes if embedding else 0)
    if shares_cache(header):
        return header.file_bytes
    first = header.whole("block_count") - header.whole("nextn_predict_layers")
    outputs = ("output.weight", f"blk.{first}.nextn.shared_head_head.weight")
    sizes = {tensor.name: tensor.n_bytes for tensor in header.tensors}
    output = sizes.get(outputs[1]) or sizes.get(outputs[0]) or sizes.get("token_embd.weight", 0)
    layer = sum(
        size
        for name, size in sizes.items()
        if name.startswith(f"blk.{first}.") and name not in outputs
    )
    return layer + output
