"""Vocabulary of a GGUF file, read from its header without loading weights.

`check_vocabulary` compares vocabularies.
"""

from __future__ import annotations

import re
import struct
from functools import cached_property
from typing import Any

from ..errors import NotAModelError
from .header import TOKENS, ArrayLength, Header
from .validation import trimmed

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
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "jina-v5-nano", "tekken", "chameleon", "gemma4",
}  # fmt: skip
# tokenizer.ggml.pre of BPE vocabularies without a bos token
_WITHOUT_BOS = {"poro-chat", "chatglm-bpe", "glm4", "glm5"}
# a space, and the name of a single byte, in vocabularies that are not byte-level BPE
_SPACE, _BYTE = "▁".encode(), re.compile(rb"<0x([0-9A-Fa-f]{2})>")
# letter of byte-level BPE -> its byte
_OF_LETTERS = {chr(b): b for b in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))}
_OF_LETTERS |= {chr(0x100 + i): b for i, b in enumerate((*range(0x21), *range(0x7F, 0xA1), 0xAD))}


def _from_letters(text: bytes) -> bytes:
    """Return the bytes of a token of byte-level BPE; a text in other letters is its own bytes."""
    try:
        return bytes(map(_OF_LETTERS.__getitem__, text.decode()))
    except (KeyError, UnicodeDecodeError):
        return text


class FileVocabulary:
    """Properties of a file's vocabulary, with llama.cpp's defaults for missing values.

    Attributes:
        special_tokens: `type`, `add_bos`, `bos`, `add_eos`, `eos` and `size`, as in `Weights`.
            For a trimmed vocabulary those of the whole one.
        n_vocab: Number of tokens.
        kept: Ids of the tokens of a trimmed vocabulary, ascending; None if it is whole.
        reads_all: Whether a model with this vocabulary can read all its tokens.
    """

    n_vocab: int

    def __init__(self, header: Header) -> None:
        self._header, metadata = header, header.metadata
        table = trimmed(header)
        self.kept: tuple[int, ...] | None = table.ids if table else None
        self.reads_all: bool = table is None or table.rows_at is not None
        model = table.tokenizer if table else str(metadata.get("tokenizer.ggml.model", ""))
        pre = str(metadata.get("tokenizer.ggml.pre", ""))
        kind, bos, eos, add_bos, add_eos = _KINDS.get(model, (0, -1, -1, False, False))
        if kind == 2:
            pre = "gemma4" if model == "gemma4" else pre
            add_bos = pre in _BEGIN_WITH_BOS
            bos = -1 if pre in _WITHOUT_BOS else bos
        tokens = metadata.get(TOKENS)
        size = table.size if table else tokens.n if isinstance(tokens, ArrayLength) else 0
        self.n_vocab, self._has_spaces = size, kind != 2 or model == "gemma4"

        def special(name: str, default: int) -> int:
            default = default if default < size else -1
            value = metadata.get(f"tokenizer.ggml.{name}_token_id", default)
            return value if isinstance(value, int) and 0 <= value < size else default

        def flag(name: str, default: bool) -> bool:
            value = metadata.get(f"tokenizer.ggml.add_{name}_token", default)
            return value if isinstance(value, bool) else default

        self.special_tokens: dict[str, Any] = {
            "type": kind,
            "add_bos": flag("bos", add_bos) or pre == "gemma4",
            "bos": special("bos", bos),
            "add_eos": flag("eos", add_eos),
            "eos": special("eos", eos),
            "size": size,
        }

    def token_text(self, token: int) -> str:
        text = self._texts[self._rows[token] if self.kept else token].partition(b"\0")[0]
        return text.decode("utf-8", errors="replace") or f"[EMPTY_{token}]"

    @cached_property
    def by_bytes(self) -> dict[bytes, int]:
        """Ids of the tokens by the bytes that they stand for.

        Of several tokens with the same bytes the first counts; tokens for a single byte come last.
        """
        ids = self.kept or range(self.n_vocab)
        found: dict[bytes, int] = {}
        single: dict[bytes, int] = {}
        for token, stored in zip(ids, self._texts, strict=False):
            text = stored.partition(b"\0")[0]
            if not self._has_spaces:
                found.setdefault(_from_letters(text), token)
            elif match := _BYTE.fullmatch(text):
                single.setdefault(bytes([int(match[1], 16)]), token)
            else:
                found.setdefault(text.replace(_SPACE, b" "), token)
        found.pop(b"", None)
        return single | found

    @cached_property
    def _rows(self) -> dict[int, int]:
        return {token: i for i, token in enumerate(self.kept or ())}

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
