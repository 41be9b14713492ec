"""Protocols of drafters of single tokens, and plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ...arrays import Logits
from ...sampling.chain import Distribution
from ..acceptance import Draft

Kind = tuple[str, int]
"""A drafter's name, and the number of a bucket of its proposals, higher for surer ones."""


NO_DRAFT = Draft([], [])


class NoDrafter:
    """Drafter without proposals: plain decoding."""

    def __init__(self, why_none: str = "speculation is switched off") -> None:
        self.why_none = why_none

    def keep(self, prompt: Sequence[int]) -> None:
        """Do nothing."""

    def read(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> None:
        """Do nothing."""

    def draft(self, _tokens: Sequence[int], _k: int, /) -> Draft:
        return NO_DRAFT

    def learn(self, _tokens: Sequence[int], _rows: Logits, /) -> None:
        """Do nothing."""

    def rollback(self, to: int) -> None:
        """Do nothing."""


class Proposal(NamedTuple):
    """Proposal of one draft token.

    Attributes:
        kind: Its drafter and bucket, for the acceptance rate.
        q: The distribution it was drawn from, if the acceptance rule needs it.
    """

    token: int
    kind: Kind
    q: Distribution | None = None


class TokenDrafter(Protocol):
    """Drafter that proposes one token at a time, so that several contribute to one draft."""

    name: str

    def begin(self, tokens: Sequence[int], /) -> None:
        """Begin a draft that follows `tokens`."""

    def propose(self) -> Proposal | None:
        """Return the next token of the draft, or None."""

    def follow(self, token: int, /) -> None:
        """Append `token` to the draft, whichever drafter proposed it."""

    def learn(self, start: int, tokens: Sequence[int], rows: Logits, /) -> None:
        """Observe the emitted tokens after the first `start`, and the target's rows there."""


class TextDrafter(TokenDrafter, Protocol):
    """Token drafter without passes of a model, so that its proposals cost nothing."""

    @property
    def priors(self) -> Sequence[float]:
        """Prior acceptance rate of each bucket of its proposals."""
