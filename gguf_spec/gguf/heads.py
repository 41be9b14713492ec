"""Prediction heads (MTP and EAGLE-3) in a file, and whether llama.cpp can use them for a target.

A head is one more layer after those of the model. From the hidden state of a token and the next
token it predicts the token after that. A file has one beside the model's layers, or it has nothing
else (a file for the head alone). Heads for multi-token prediction (MTP) are trained with their
model. EAGLE-3 heads (`gguf.eagle`) are trained for a model afterwards.
"""

from __future__ import annotations

from . import eagle
from .header import TOKENS, Header

# tensors of every MTP head, and of one that reads the cache of its target
_PARTS = ("eh_proj", "enorm", "hnorm")
_OF_SHARED = ("nextn.pre_projection.weight", "nextn.post_projection.weight")


def n_heads(header: Header) -> int:
    """Return the number of prediction heads whose weights are in a file."""
    n = header.whole("nextn_predict_layers")
    first = header.whole("block_count") - n
    names = {tensor.name for tensor in header.tensors}
    if eagle.is_eagle(header):
        return int("fc.weight" in names)
    if header.facts.heads == "shared":
        return int(n > 0 and names.issuperset(_OF_SHARED))
    has_all = all(
        f"blk.{first + i}.nextn.{part}.weight" in names for i in range(n) for part in _PARTS
    )
    return n if first >= 0 and has_all else 0


def head_kind(header: Header) -> str:
    """Return the name of the drafter that uses the head in a file."""
    return "eagle3" if eagle.is_eagle(header) else "mtp"


def described(header: Header) -> str:
    """Return what the heads in a file are, and for which models."""
    if eagle.is_eagle(header):
        layers = ", ".join(map(str, eagle.target_layers(header)))
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
    if eagle.is_eagle(header):
        return eagle.why_damaged(header)
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
    if eagle.is_eagle(header):
        if why := eagle.why_misfit(header, target):
            return why
    elif why := _why_not_of_model(header, target):
        return f"{name} is {why}"
    if header.n_values(TOKENS) != target.n_values(TOKENS):
        return (
            f"{name} has a vocabulary of {header.n_values(TOKENS):,} tokens, and {where} of "
            f"{target.n_values(TOKENS):,}"
        )
    return ""


def _why_not_of_model(header: Header, target: Header) -> str:
    """Return for which other model an MTP head is; empty if it may be for the target."""
    architecture, width = header.architecture, header.whole("embedding_length")
    if shares_cache(header):
        architecture = header.facts.head_of
        width = header.whole("embedding_length_out", width)
    own = target.whole("embedding_length")
    if architecture != target.architecture:
        return (
            f"for the architecture {architecture}, and {target.path.name} is of "
            f"{target.architecture}"
        )
    if width != own:
        return f"for rows of {width:,} values, and {target.path.name} has rows of {own:,}"
    return ""


def head_bytes(header: Header) -> int:
    """Return the bytes that a pass of a head reads: those of its layer and of the output."""
    if eagle.is_eagle(header):
        return eagle.head_bytes(header)
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
