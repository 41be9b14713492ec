"""Drafters: protocols, plain decoding, draft model, prediction head, and drafts from the text."""

from __future__ import annotations

from .base import NO_DRAFT, Kind, NoDrafter, Proposal, TextDrafter, TokenDrafter
from .model import (
    MODELS,
    N_CONFIDENCE_BUCKETS,
    CoupledDraftSampler,
    DraftCorrection,
    DraftTeam,
    FirstRead,
    HeadDrafter,
    ModelDrafter,
    StochasticDraftSampler,
    drafter_of,
    failure,
    name_of,
    needs_rows,
)
from .ngram import NgramDrafter, RetryDrafter, SuffixAutomaton
from .store import DraftStore, StoreDrafter

__all__ = [
    "MODELS",
    "NO_DRAFT",
    "N_CONFIDENCE_BUCKETS",
    "CoupledDraftSampler",
    "DraftCorrection",
    "DraftStore",
    "DraftTeam",
    "FirstRead",
    "HeadDrafter",
    "Kind",
    "ModelDrafter",
    "NgramDrafter",
    "NoDrafter",
    "Proposal",
    "RetryDrafter",
    "StochasticDraftSampler",
    "StoreDrafter",
    "SuffixAutomaton",
    "TextDrafter",
    "TokenDrafter",
    "drafter_of",
    "failure",
    "name_of",
    "needs_rows",
]  # fmt: skip
