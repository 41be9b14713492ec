"""Id table of a draft model with a trimmed vocabulary, in the metadata of its file.

Such a file has rows for some tokens of a vocabulary only. Row i belongs to the token `ids[i]`.
`models trim` writes it; llama.cpp loads it as a model without a tokenizer.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from .header import IDS, TOKENS, Header, damaged

# metadata keys: tokenizer.ggml.model of the whole vocabulary, and its number of tokens
TOKENIZER, SIZE = "gguf_spec.trim.tokenizer", "gguf_spec.trim.size"
# largest number of tokens of a vocabulary, as for a header
_MAX_TOKENS = 1 << 19


@dataclass(frozen=True)
class Trimmed:
    """The kept part of a vocabulary.

    Attributes:
        ids: Ids of the kept tokens, ascending.
        tokenizer: `tokenizer.ggml.model` of the whole vocabulary.
        size: Number of tokens of the whole vocabulary.
    """

    ids: tuple[int, ...]
    tokenizer: str
    size: int


def trimmed(header: Header) -> Trimmed | None:
    """Return the id table of a file; None if its vocabulary is complete.

    Raises:
        NotAModelError: The table is invalid.
    """
    if IDS not in header.metadata:
        return None
    metadata = header.metadata
    ids, size, name = metadata[IDS], metadata.get(SIZE), metadata.get(TOKENIZER)
    n = len(ids) if isinstance(ids, tuple) else 0
    rows = next((one.shape[-1] for one in header.tensors if one.name == "token_embd.weight"), 0)
    n_vocab = header.of_architecture("vocab_size")
    if not (header.kinds[IDS] in ("[i32]", "[u32]") and isinstance(size, int) and n):
        raise damaged(header.path, "its table of kept tokens is no list of ids")
    if not 0 < size <= _MAX_TOKENS or not isinstance(name, str):
        raise damaged(header.path, f"its whole vocabulary has {size:,} tokens")
    if not (n == rows == header.n_values(TOKENS) and isinstance(n_vocab, int) and n == n_vocab):
        raise damaged(header.path, f"its table has {n:,} kept tokens, and its weights {rows:,}")
    ordered = all(a < b for a, b in itertools.pairwise(ids))
    if not (ordered and ids[0] >= 0 and ids[-1] < size):
        raise damaged(header.path, "the ids in its table of kept tokens are not ascending")
    return Trimmed(ids, name, size)
