"""Embedding models by their headers: how a file pools, and whether it can rank."""

from __future__ import annotations

from ..options import POOLING
from .header import TOKENS, Header, damaged, shown

# ggml type
_F32 = 0
# Special tokens of the tokenizer `bert`: metadata key -> default of llama.cpp.
_BERT_TOKENS = {
    "bos": 101,
    "unknown": 100,
    "seperator": 102,
    "padding": 0,
    "mask": 103,
}


def embeds_only(header: Header) -> bool:
    """Return whether a model computes embeddings and generates no text."""
    return (
        header.facts.output == "embeddings"
        or header.of_architecture("attention.causal", True) is False
        or header.of_architecture("pooling_type", 0) not in (0, None)
    )


def pooling_of(header: Header) -> str:
    """Return the pooling that the file names, otherwise `mean`."""
    number = header.of_architecture("pooling_type")
    known = isinstance(number, int) and 0 <= number < len(POOLING)
    return POOLING[number] if known else "mean"


def ranks(header: Header) -> bool:
    """Return whether the file has the classification head that ranking needs."""
    names = {tensor.name for tensor in header.tensors}
    if "cls.output.weight" in names:
        return True
    # Without the output layer llama.cpp takes the first values of the embedding as scores.
    n_scores = max(1, header.n_values(f"{header.architecture}.classifier.output_labels"))
    return "cls.weight" in names and n_scores <= header.whole("embedding_length")


def check_embeds(header: Header) -> None:
    """Reject numbers of an embedding model on which llama.cpp would abort the process.

    Raises:
        NotAModelError: The file is damaged.
    """
    _check_even_heads(header)
    if header.metadata["tokenizer.ggml.model"] == "bert":
        _check_special_tokens(header)
    for tensor in header.tensors:
        if tensor.name == "token_types.weight" and tensor.type != _F32:
            raise damaged(
                header.path, f"the tensor {shown(tensor.name)} is of the type {tensor.type}"
            )


def _check_even_heads(header: Header) -> None:
    width, heads = header.whole("embedding_length"), header.by_layer("attention.head_count", 0)
    if header.facts.output != "embeddings" or not (heads and heads[0] and width):
        return
    usual = width // heads[0]
    key, value = (header.whole(f"attention.{name}_length", usual) for name in ("key", "value"))
    if key != value or ("attention.key_length" not in header.metadata and width % heads[0]):
        raise damaged(
            header.path,
            f"its {heads[0]:,} heads have {key:,} and {value:,} of {width:,} dimensions",
        )


def _check_special_tokens(header: Header) -> None:
    """Check the tokens around a text: llama.cpp takes its defaults for missing or wrong ids."""
    size = header.n_values(TOKENS)
    for name, default in _BERT_TOKENS.items():
        token = header.metadata.get(f"tokenizer.ggml.{name}_token_id", default)
        known = isinstance(token, int) and 0 <= token < size
        if not known and default >= size:
            raise damaged(
                header.path, f"its vocabulary of {size:,} tokens lacks the token {name!r}"
            )
