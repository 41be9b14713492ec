"""Drafters: protocols, plain decoding, draft model, prediction head, and drafts from the text."""

from __future__ import annotations

from .base import Drafter, Kind, NoDrafter, Proposal, TokenDrafter
from .draft_sampler import (
    N_CONFIDENCE_BUCKETS,
    CoupledDraftSampler,
    DraftCorrection,
    DraftSampler,
    StochasticDraftSampler,
)
from .head import MODELS, EagleDrafter, HeadDrafter, drafter_of, name_of, needs_rows
from .model import FirstRead, ModelDrafter
from .ngram import NgramDrafter, RetryDrafter
from .shared_texts import SharedTexts
from .suffix_automaton import SuffixAutomaton
from .team import DraftTeam, failure

__all__ = [
    "MODELS",
    "N_CONFIDENCE_BUCKETS",
    "CoupledDraftSampler",
    "DraftCorrection",
    "DraftSampler",
    "DraftTeam",
    "Drafter",
    "EagleDrafter",
    "FirstRead",
    "HeadDrafter",
    "Kind",
    "ModelDrafter",
    "NgramDrafter",
    "NoDrafter",
    "Proposal",
    "RetryDrafter",
    "SharedTexts",
    "StochasticDraftSampler",
    "SuffixAutomaton",
    "TokenDrafter",
    "drafter_of",
    "failure",
    "name_of",
    "needs_rows",
]  # fmt: skip
