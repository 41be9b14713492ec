"""Vocabulary methods of `llama_cpp.Llama`: its token functions and its tokenizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from llama_cpp import llama_cpp as C

from ..llama.model import Model


class Vocabulary(ABC):
    """Vocabulary methods of `Llama`.

    Attributes:
        metadata: Metadata of the file, with the values as text.
    """

    metadata: dict[str, str]

    @property
    @abstractmethod
    def _vocabulary(self) -> Model:
        """The target model, for vocabulary lookups only."""

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Return the token ids of a text in UTF-8.

        Args:
            text: The text.
            add_bos: Whether to begin with the BOS token.
            special: Whether to parse texts such as `<|im_end|>` as control tokens.
        """
        return self._vocabulary.tokenize_bytes(text, special=special, start=add_bos)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """Return the bytes of tokens.

        Args:
            tokens: Token ids.
            prev_tokens: Tokens before them; not used, because the bytes do not depend on them.
            special: Whether to include the texts of control tokens.
        """
        del prev_tokens
        target = self._vocabulary
        pieces = [
            target.piece(token) or (target.token_text(token).encode() if special else b"")
            for token in tokens
        ]
        starts = len(tokens) > 0 and tokens[0] == target.vocabulary["bos"]
        text = b"".join(pieces)
        return text[1:] if starts and text.startswith(b" ") else text

    def n_vocab(self) -> int:
        """Return the number of tokens in the vocabulary."""
        return self._vocabulary.n_vocab

    def token_bos(self) -> int:
        """Return the BOS token, which begins a text; -1 if the vocabulary has no such token."""
        return int(self._vocabulary.vocabulary["bos"])

    def token_eos(self) -> int:
        """Return the EOS token, which ends a text; -1 if the vocabulary has no such token."""
        return int(self._vocabulary.vocabulary["eos"])

    def _shown(self, token: int) -> str:
        return self.detokenize([token]).decode("utf-8", errors="ignore")

    def token_nl(self) -> int:
        """Return the newline token; -1 if the vocabulary has no such token."""
        return int(self._vocabulary.native.vocab(C.llama_vocab_nl))

    def n_embd(self) -> int:
        """Return the dimension of the embeddings of the model."""
        return int(self.metadata[f"{self.metadata['general.architecture']}.embedding_length"])

    def tokenizer(self) -> Tokenizer:
        """Return an object that encodes and decodes text."""
        return Tokenizer(self)

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """Return the length of the common prefix of two token sequences."""
        return next(
            (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
        )


class Tokenizer:
    """Tokenizer of a model, as returned by `llama_cpp.Llama.tokenizer`."""

    def __init__(self, llama: Vocabulary) -> None:
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
