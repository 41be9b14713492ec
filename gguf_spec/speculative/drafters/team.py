"""The drafters of one request: one that fails is switched off, and the others and the text go on."""

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
_LONGEST_REASON = 200  # characters of what an error says


class DraftTeam:
    """The drafters of one request.

    Attributes:
        texts: Drafters that cost nothing and are not switched off.
        model: The draft model's drafter; None without one, or where it is switched off.
        failures: Name of a drafter that was switched off -> why, as a sentence without its full stop.
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
        """Return what a call gives that only `drafter` can fail in; if it fails, switch the drafter off and return None.

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
        """Go on without the drafters named, for the reasons given."""
        self.failures |= failures
        self.texts = [one for one in self.texts if one.name not in failures]
        if self.model and self.model.name in failures:
            self.model.give_up()
            self.model = None


def failure(name: str, error: Exception) -> str:
    """Return a sentence on the failure of a drafter, without its full stop. The first time that it is said it is logged, too."""
    what = " ".join(str(error).split())[:_LONGEST_REASON].rstrip(".")
    reason = f"the {name} drafter failed and was switched off ({type(error).__name__}{what and ': ' + what})"
    _log(reason)
    return reason


@lru_cache(maxsize=64)
def _log(reason: str) -> None:
    _LOG.warning("%s.", reason[0].upper() + reason[1:])
