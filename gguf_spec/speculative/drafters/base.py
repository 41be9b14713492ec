"""What the engine asks of a drafter, and what a window asks of those that propose token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ...arrays import Logits
from ...sampling.chain import Distribution
from ..acceptance import Draft
from ..acceptance_rates import Kind


class Drafter(Protocol):
    """Proposes drafts. Like a model it is fed by position: it sees all tokens and reads those it has not read."""

    def keep(self, prompt: Sequence[int]) -> None:
        """Forget all that was read but the longest beginning of `prompt`: a request begins."""

    def read(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> None:
        """Catch up with the first tokens, the prompt's, if they are going to be needed, pass by pass until `cancelled()`."""

    def draft(self, tokens: Sequence[int], k: int, /) -> Draft:
        """Propose at most `k` tokens to follow `tokens`; fewer, or none, are fine."""

    def learn(self, tokens: Sequence[int], rows: Logits, /) -> None:
        """Take note of the tokens that did follow where the last draft began, and of the target's rows there, shape `(n, V)`, n >= len(tokens)."""

    def rollback(self, to: int) -> None:
        """Forget what was read beyond the first `to` tokens."""


class NoDrafter:
    """Proposes nothing: plain decoding."""

    def __init__(self, why_none: str = "speculation is switched off") -> None:
        """Take the reason."""
        self.why_none = why_none

    def keep(self, prompt: Sequence[int]) -> None:
        """Do nothing."""

    def read(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> None:
        """Do nothing."""

    def draft(self, _tokens: Sequence[int], _k: int, /) -> Draft:
        """Return an empty draft."""
        return Draft([], [])

    def learn(self, _tokens: Sequence[int], _rows: Logits, /) -> None:
        """Do nothing."""

    def rollback(self, to: int) -> None:
        """Do nothing."""


class Proposal(NamedTuple):
    """One token to follow.

    Attributes:
        token: Its id.
        kind: Who proposes it, and how sure that is.
        q: The law it was drawn from, where the acceptance rule asks for it; None where there was no choice.
        second: The next best token, or None.
    """

    token: int
    kind: Kind
    q: Distribution | None = None
    second: int | None = None


class TokenDrafter(Protocol):
    """Proposes one token at a time, so that several can take turns in one draft.

    Attributes:
        name: Unlike that of the others.
    """

    name: str

    def begin(self, tokens: Sequence[int], /) -> None:
        """Begin a draft that follows `tokens`."""

    def propose(self) -> Proposal | None:
        """Return the next token of the draft, or None."""

    def follow(self, token: int, /) -> None:
        """Go on after `token`, whoever proposed it."""

    def learn(self, start: int, tokens: Sequence[int], rows: Logits, /) -> None:
        """Take note of the tokens that did follow the first `start`, and of the target's rows there."""
