"""The vocabulary of a model, as texts, grammars and sampling see it; and beginnings in common.

This file knows texts and token ids, and no weights, file format or library.
`llama.weights.Weights` implements the protocol, and so does the fake model of the tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class Tokens(Protocol):
    """Texts and token ids of a model, which may be in another process.

    Each method raises ClosedError after the model was closed, unless the answer is cached.
    """

    def tokenize(
        self, text: str | bytes, *, special: bool, start: bool = True, most: int | None = None
    ) -> list[int]:
        """Return the ids of a text.

        Args:
            text: The text.
            special: Whether names such as `<|im_start|>` are parsed as control tokens.
            start: Whether to add the model's tokens for the start of a text (BOS).
            most: Most tokens that are of use; None for any number.

        Raises:
            PromptTooLongError: The text has many more than `most` tokens.
        """

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token; empty for control tokens and images."""

    def token_text(self, token: int) -> str:
        """Return the name of a token in the vocabulary; empty for images."""

    def is_end(self, token: int) -> bool:
        """Return whether a token ends a generation."""


class Vocabulary(Tokens, Protocol):
    """Tokens of a loaded model: their ids, and the texts and bytes that they stand for."""

    @property
    def path(self) -> Path:
        """The file of the model, for errors."""

    @property
    def n_vocab(self) -> int:
        """V, the number of tokens."""

    @property
    def n_ctx(self) -> int:
        """Capacity of the context, in tokens; 0 without one."""

    @property
    def n_ctx_train(self) -> int:
        """Length of the context with which it was trained, in tokens."""

    @property
    def n_ctx_limit(self) -> int | None:
        """Longest context that the model can have here, in tokens; None if unknown."""

    @property
    def special_tokens(self) -> Mapping[str, Any]:
        """The ids `bos` and `eos`, negative if missing, and whether texts get them: `add_bos`."""

    @property
    def end_of_turn(self) -> int:
        """The id of the token that ends a turn of a chat; negative if missing."""

    @property
    def infill_marks(self) -> tuple[int, ...] | None:
        """Tokens before prefix, suffix and middle of a text that is filled in; None without."""

    @property
    def file_marks(self) -> tuple[int, ...]:
        """Tokens before a repository and before a file of it; negative if missing."""

    @property
    def ends(self) -> Sequence[int]:
        """All ids that end a generation."""

    @property
    def chat_template(self) -> str | None:
        """The Jinja template of the model, or None."""

    def check_length(self, text: bytes, most: int, *, special: bool) -> None:
        """Raise PromptTooLongError for a text that has many more than `most` tokens."""


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # comparing slices is faster than comparing items
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def n_open(text: str, words: Iterable[str]) -> int:
    """Return the length of the longest end of a text that begins one of some words."""
    longest = 0
    for word in words:
        lengths = range(min(len(word) - 1, len(text)), longest, -1)
        longest = next((n for n in lengths if text.endswith(word[:n])), longest)
    return longest
