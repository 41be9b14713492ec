"""Token functions of `llama_cpp.Llama`: its tokenizer, and members that are not supported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from llama_cpp import llama_cpp as C

from ..llama.model import Model

_DECODING = (
    "use generate_tokens or stream_tokens of gguf_spec.LLM, which take token ids; on_token gets "
    "each token."
)
_STATE = "use gguf_spec.load(...).chat() and Chat.save to save a conversation."
_EMBEDDING = "use llama_cpp.Llama(embedding=True) for embeddings."
_NATIVE = "use llama_cpp.Llama where llama.cpp's own objects are needed."
# Members of `llama_cpp.Llama` that are not supported -> hint for the error.
NOT_HERE = {
    "eval": _DECODING,
    "sample": _DECODING,
    "eval_tokens": _DECODING,
    "eval_logits": _DECODING,
    "input_ids": _DECODING,
    "scores": _DECODING,
    "logits_to_logprobs": "request logprobs in a completion.",
    "save_state": _STATE,
    "load_state": _STATE,
    "embed": _EMBEDDING,
    "pooling_type": _EMBEDDING,
    "ctx": _NATIVE,
    "model": _NATIVE,
}


def line_end(model: Model) -> int:
    """Return the newline token; -1 if the vocabulary has no such token."""
    return int(model.native.vocab(C.llama_vocab_nl))


class _Vocabulary(Protocol):
    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]: ...

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes: ...


class Tokenizer:
    """Tokenizer of a model, as returned by `llama_cpp.Llama.tokenizer`."""

    def __init__(self, llama: _Vocabulary) -> None:
        """Create a tokenizer with the vocabulary of `llama`."""
        self._llama = llama

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Return the token ids of a text in UTF-8."""
        return self._llama.tokenize(text, add_bos, special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Return the bytes of tokens."""
        return self._llama.detokenize(tokens, prev_tokens, special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """Return the token ids of a text."""
        return self.tokenize(text.encode("utf-8", errors="ignore"), add_bos, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return self.detokenize(tokens).decode("utf-8", errors="ignore")
