"""Drafters of one request; a drafter that fails is switched off and the request continues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import ParamSpec, TypeVar

from ...errors import ClosedError
from .base import TokenDrafter
from .model import ModelDrafter

P = ParamSpec("P")
T = TypeVar("T")
_LOG = logging.getLogger("gguf_spec.drafters")
# Largest length of an error's text in a reason, in characters.
_LONGEST_REASON = 200


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
    def everyone(self) -> list[TokenDrafter]:
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
