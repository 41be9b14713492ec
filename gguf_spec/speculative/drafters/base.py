"""Drafters of one request: their protocols, plain decoding, and what happens when one fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, Protocol, TypeVar

from ...arrays import Logits
from ...errors import ClosedError
from ...sampling.chain import Distribution
from ..acceptance import Draft

Kind = tuple[str, int]
"""A drafter's name, and the number of a bucket of its proposals, higher for surer ones."""

if TYPE_CHECKING:
    from .model import ModelDrafter

P = ParamSpec("P")
T = TypeVar("T")
_LOG = logging.getLogger("gguf_spec.drafters")
# Largest length of an error's text in a reason, in characters.
_LONGEST_REASON = 200


class Drafter(Protocol):
    """Source of drafts.

    Like a model it is addressed by position: it receives all tokens and reads those that it has not
    read yet.
    """

    def keep(self, prompt: Sequence[int]) -> None:
        """Retain the longest prefix of `prompt` that was read, at the start of a request."""

    def read(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> None:
        """Read the prompt if it is expected to be used, pass by pass until `cancelled()`."""

    def draft(self, tokens: Sequence[int], k: int, /) -> Draft:
        """Propose at most `k` tokens to follow `tokens`; fewer or none are allowed."""

    def learn(self, tokens: Sequence[int], rows: Logits, /) -> None:
        """Observe the emitted tokens that followed the start of the last draft.

        Args:
            tokens: The emitted token ids.
            rows: The target's rows at these positions, shape `(n, V)`, n >= len(tokens).
        """

    def rollback(self, to: int) -> None:
        """Remove from the cache all tokens after the first `to`."""


class NoDrafter:
    """Drafter without proposals: plain decoding."""

    def __init__(self, why_none: str = "speculation is switched off") -> None:
        """Set the reason why nothing is drafted."""
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
    """Proposal of one draft token.

    Attributes:
        token: Its id.
        kind: Its drafter and bucket, for the acceptance rate.
        q: The distribution it was drawn from, if the acceptance rule needs it; None if it was not
            drawn.
        second: The second-best token, or None.
    """

    token: int
    kind: Kind
    q: Distribution | None = None
    second: int | None = None


class TokenDrafter(Protocol):
    """Drafter that proposes one token at a time, so that several can contribute to one draft.

    Attributes:
        name: Unique name.
    """

    name: str

    def begin(self, tokens: Sequence[int], /) -> None:
        """Begin a draft that follows `tokens`."""

    def propose(self) -> Proposal | None:
        """Return the next token of the draft, or None."""

    def follow(self, token: int, /) -> None:
        """Append `token` to the draft, whichever drafter proposed it."""

    def learn(self, start: int, tokens: Sequence[int], rows: Logits, /) -> None:
        """Observe the emitted tokens after the first `start`, and the target's rows there."""


class DraftTeam:
    """Drafters of one request.

    Attributes:
        texts: Active drafters without drafting cost.
        model: The draft model's drafter; None without one, or if it is switched off.
        failures: Name of a drafter that was switched off -> reason, as a sentence without a full
            stop.
    """

    def __init__(self, texts: Sequence[TokenDrafter], model: ModelDrafter | None) -> None:
        self.texts, self.model = texts, model
        self.failures: dict[str, str] = {}

    @property
    def active(self) -> list[TokenDrafter]:
        """All drafters that are not switched off."""
        return [*self.texts, *([self.model] if self.model else [])]

    def attempt(
        self, drafter: TokenDrafter, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """Return the result of a call in which only `drafter` can fail.

        If it fails, switch the drafter off and return None.

        Raises:
            ClosedError: The models were closed.
        """
        try:
            return call(*args, **kwargs)
        except ClosedError:
            raise
        except Exception as error:
            self.switch_off({drafter.name: failure(drafter.name, error)})
            return None

    def switch_off(self, failures: Mapping[str, str]) -> None:
        """Switch off the named drafters, for the given reasons."""
        self.failures |= failures
        self.texts = [one for one in self.texts if one.name not in failures]
        if self.model and self.model.name in failures:
            self.model.give_up()
            self.model = None


def failure(name: str, error: Exception) -> str:
    """Return a sentence on the failure of a drafter, without a full stop.

    Each sentence is logged once.
    """
    what = " ".join(str(error).split())[:_LONGEST_REASON].rstrip(".")
    reason = (
        f"the {name} drafter failed and was switched off "
        f"({type(error).__name__}{what and ': ' + what})"
    )
    _log(reason)
    return reason


@lru_cache(maxsize=64)
def _log(reason: str) -> None:
    _LOG.warning("%s.", reason[0].upper() + reason[1:])
