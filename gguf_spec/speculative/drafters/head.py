"""Drafter with a prediction head of the target in place of a draft model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ...options import K_MAX
from ..interfaces import LanguageModel
from .base import Kind, Proposal
from .draft_sampler import DraftSampler
from .model import FirstRead, ModelDrafter

if TYPE_CHECKING:
    from ...llama.head import Head


class HeadDrafter(ModelDrafter):
    """Drafter that takes each token from a prediction head of the target.

    After a round the tokens of the draft are read again, with the target's rows, in the first pass
    of the next draft. So a head is always some tokens behind.
    """

    name = "mtp"
    far_behind = K_MAX + 1

    def __init__(
        self, head: Head, guess: DraftSampler, n_vocab: int, first: FirstRead | None = None
    ) -> None:
        """Make a drafter, as `ModelDrafter`."""
        super().__init__(head, guess, n_vocab, first)
        self._head = head
        self.can_review = not head.shares_cache
        head.text, head.skipped = self._first, 0

    def propose(self) -> Proposal | None:
        """Return the next token, as `ModelDrafter`; None if no head predicts so far ahead."""
        if not self._head.is_ready:
            return None
        if 1 < self._head.n_heads <= len(self._history) - self._n_known:
            return None
        return super().propose()

    def review(self, tokens: Sequence[int], n_read: int, n: int) -> list[tuple[Kind, bool]]:
        """Evaluate guesses on known text, as `ModelDrafter`."""
        self._head.skipped = max(0, len(tokens) - 1 - n_read - self.n_past)
        try:
            return super().review(tokens, n_read, n)
        finally:
            self._head.skipped = 0


class EagleDrafter(HeadDrafter):
    """Drafter that takes each token from an EAGLE-3 head."""

    name = "eagle3"


MODELS = (ModelDrafter.name, HeadDrafter.name, EagleDrafter.name)
"""Names of the drafters that take a token from a model, so that it costs a pass."""


def name_of(model: LanguageModel | None) -> str:
    """Return the name of the drafter of a draft model or of a prediction head."""
    return str(getattr(model, "drafter", ModelDrafter.name))


def drafter_of(
    model: LanguageModel, guess: DraftSampler, n_vocab: int, first: FirstRead | None = None
) -> ModelDrafter:
    """Return the drafter of a draft model or of a prediction head."""
    if not needs_rows(model):
        return ModelDrafter(model, guess, n_vocab, first)
    kind = EagleDrafter if name_of(model) == EagleDrafter.name else HeadDrafter
    return kind(cast("Head", model), guess, n_vocab, first)


def needs_rows(draft: LanguageModel) -> bool:
    """Return whether a draft predicts from rows that the target sends for the same text."""
    return name_of(draft) != ModelDrafter.name
