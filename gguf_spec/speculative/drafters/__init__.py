"""Drafters: protocols, plain decoding, draft model, and drafts from the text."""

from __future__ import annotations

from .base import Drafter, NoDrafter, Proposal, TokenDrafter
from .draft_sampler import (
    N_CONFIDENCE_BUCKETS,
    CoupledDraftSampler,
    DraftCorrection,
    DraftSampler,
    StochasticDraftSampler,
)
from .model import FirstRead, ModelDrafter, check_vocabulary
from .ngram import NgramDrafter, RetryDrafter
from .suffix_automaton import SuffixAutomaton
from .team import DraftTeam, failure

__all__ = [
    "N_CONFIDENCE_BUCKETS",
    "CoupledDraftSampler",
    "DraftCorrection",
    "DraftSampler",
    "DraftTeam",
    "Drafter",
    "FirstRead",
    "ModelDrafter",
    "NgramDrafter",
    "NoDrafter",
    "Proposal",
    "RetryDrafter",
    "StochasticDraftSampler",
    "SuffixAutomaton",
    "TokenDrafter",
    "check_vocabulary",
    "failure",
]  # fmt: skip
