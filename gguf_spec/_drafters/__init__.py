"""Where drafts come from: the protocols, no draft at all, a small model, and the text itself."""

from __future__ import annotations

from ._guess import SURENESSES, Calibration, CoupledGuess, DrawnGuess, Guess
from ._model import FirstRead, ModelDrafter, check_vocabulary
from ._ngram import NgramDrafter, RetryDrafter
from ._protocol import Drafter, NoDrafter, Proposal, TokenDrafter
from ._suffixes import Suffixes
from ._team import DraftTeam, failure

__all__ = [
    "SURENESSES", "Calibration", "CoupledGuess", "DraftTeam", "Drafter", "DrawnGuess", "FirstRead", "Guess", "ModelDrafter", "NgramDrafter",
    "NoDrafter", "Proposal", "RetryDrafter", "Suffixes", "TokenDrafter", "check_vocabulary", "failure",
]  # fmt: skip
