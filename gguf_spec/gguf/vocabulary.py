"""Vocabulary of a GGUF file, read from its header without loading weights.

`check_vocabulary` compares vocabularies.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import Any

from ..errors import NotAModelError
from .validation import ArrayLength, Header

TOKENS = "tokenizer.ggml.tokens"
# format of a string length, and the most bytes kept of a token
_LENGTH, _MOST = struct.Struct("<Q"), 1 << 24
# tokenizer.ggml.model -> (vocabulary type, default bos id, default eos id, add bos, add eos), the
# defaults of llama.cpp
_KINDS = {
    "llama": (1, 1, 2, True, False),
    "gpt2": (2, 11, 11, False, False),
    "hybriddna": (2, 11, 11, False, False),
    "whitespace": (2, 11, 11, False, False),
    "gemma4": (2, -1, -1, False, False),
    "bert": (3, 101, -1, True, False),
    "t5": (4, -1, 1, False, True),
    "rwkv": (5, -1, -1, False, False),
    "plamo2": (6, 1, 2, False, False),
}
# tokenizer.ggml.pre of BPE vocabularies that add bos by default
_BEGIN_WITH_BOS = {
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
    "tekken",
    "chameleon",
    "gemma4",
}
# tokenizer.ggml.pre of BPE vocabularies without a bos token
_WITHOUT_BOS = {"poro-chat", "chatglm-bpe", "glm4", "glm5"}


class FileVocabulary:
    """Properties of a file's vocabulary, with llama.cpp's defaults for missing values.

    Attributes:
        vocabulary: `type`, `add_bos`, `bos`, `add_eos`, `eos` and `size`, as in `Model.vocabulary`.
        n_vocab: Number of tokens.
    """

    def __init__(self, header: Header) -> None:
        self._header, metadata = header, header.metadata
        model, pre = (
            str(metadata.get("tokenizer.ggml.model", "")),
            str(metadata.get("tokenizer.ggml.pre", "")),
        )
        kind, bos, eos, add_bos, add_eos = _KINDS.get(model, (0, -1, -1, False, False))
        if kind == 2:
            pre = "gemma4" if model == "gemma4" else pre
            add_bos = pre in _BEGIN_WITH_BOS
            bos = -1 if pre in _WITHOUT_BOS else bos
        tokens = metadata.get(TOKENS)
        size = self.n_vocab = tokens.n if isinstance(tokens, ArrayLength) else 0

        def special(name: str, default: int) -> int:
            default = default if default < size else -1
            value = metadata.get(f"tokenizer.ggml.{name}_token_id", default)
            return value if isinstance(value, int) and 0 <= value < size else default

        def flag(name: str, default: bool) -> bool:
            value = metadata.get(f"tokenizer.ggml.add_{name}_token", default)
            return value if isinstance(value, bool) else default

        self.vocabulary: dict[str, Any] = {
            "type": kind,
            "add_bos": flag("bos", add_bos) or pre == "gemma4",
            "bos": special("bos", bos),
            "add_eos": flag("eos", add_eos),
            "eos": special("eos", eos),
            "size": size,
        }

    def token_text(self, token: int) -> str:
        """Return the text of a token in the vocabulary."""
        text = self._texts[token].partition(b"\0")[0]
        return text.decode("utf-8", errors="replace") or f"[EMPTY_{token}]"

    @cached_property
    def _texts(self) -> list[bytes]:
        return read_tokens(self._header)


def read_tokens(header: Header) -> list[bytes]:
    """Return the texts of all tokens, as stored in the file.

    Raises:
        NotAModelError: The file changed after its header was read.
    """
    tokens = header.metadata.get(TOKENS)
    texts = []
    try:
        with header.path.open("rb") as file:
            file.seek(header.tokens_at or 0)
            for _ in range(tokens.n if isinstance(tokens, ArrayLength) else 0):
                (n,) = _LENGTH.unpack(file.read(_LENGTH.size))
                texts.append(file.read(min(n, _MOST)))
    except (OSError, struct.error) as error:
        raise NotAModelError(
            header.path, f"{header.path.name} changed while it was read.", "try again."
        ) from error
    return texts
