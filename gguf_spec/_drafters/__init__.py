"""Where drafts come from: the protocol, no draft at all, and a small model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .._accept import Draft
from .._sampling import Logits
from ._guess import Calibration, CoupledGuess, DrawnGuess, Guess
from ._model import ModelDrafter, check_vocabulary

__all__ = ["Calibration", "CoupledGuess", "Drafter", "DrawnGuess", "Guess", "ModelDrafter", "NoDrafter", "check_vocabulary"]


class Drafter(Protocol):
    """Proposes tokens. Like a model it is fed by position: it sees all tokens and reads those it has not read.

    Attributes:
        busy_s: Seconds it has spent inside a model, since it was made.
    """

    @property
    def busy_s(self) -> float: ...

    def read(self, tokens: Sequence[int]) -> None:
        """Catch up with the first tokens, the prompt's, without drafting."""

    def draft(self, tokens: Sequence[int], k: int, /) -> Draft:
        """Propose at most `k` tokens to follow `tokens`; fewer, or none, are fine."""

    def learn(self, tokens: Sequence[int], rows: Logits, /) -> None:
        """Take note of the tokens that did follow where the last draft began, and of the target's rows there, shape `(n, V)`, n >= len(tokens)."""

    def rollback(self, to: int) -> None:
        """Forget what was read beyond the first `to` tokens."""


class NoDrafter:
    """Proposes nothing: plain decoding."""

    busy_s = 0.0

    def read(self, tokens: Sequence[int]) -> None:
        """Do nothing."""

    def draft(self, _tokens: Sequence[int], _k: int, /) -> Draft:
        """Return an empty draft."""
        return Draft([], [])

    def learn(self, _tokens: Sequence[int], _rows: Logits, /) -> None:
        """Do nothing."""

    def rollback(self, to: int) -> None:
        """Do nothing."""
