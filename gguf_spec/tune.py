"""Thorough measurement of pass costs, and whether drafting with the model is faster.

Returns data and prints nothing. Notation: V(n) is the time of a target pass over n tokens, c the
acceptance rate per token. A round with k draft tokens takes V(k + 1) plus the time of k draft
tokens, and emits 1 + c + c^2 + ... + c^k tokens on average.

Source: Leviathan et al. 2022, arXiv:2211.17192, section 3, with measured costs in place of
proportional ones.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from .errors import UnsupportedModelError
from .results import OnProgress, Progress
from .runtime.llm import LLM
from .runtime.profile_files import of_this_build, write_profile
from .speculative.cost_model import interpolate, interpolate_depth
from .speculative.profile import WORTH_SAYING, Profile
from .speculative.profiler import measure
from .speculative.translation import in_target_ids

__all__ = ["Tuning", "milliseconds", "tune"]


# Cost of a pass over several tokens, in passes over one, below which the measurement was disturbed.
_IMPOSSIBLE = 0.8


@dataclass(frozen=True)
class Tuning:
    """Measured costs of a model pair and their interpretation.

    Attributes:
        draft: File name of the draft, or None.
        profile: Measured costs and agreement.
        kept: Whether the profile was saved for later loads.
    """

    target: str
    draft: str | None
    profile: Profile
    kept: bool = True

    def target_s(self, n: int) -> float:
        """Return the seconds of a target pass over `n` tokens."""
        return interpolate(self.profile.target, n)

    def draft_s(self, n: int) -> float:
        """Return the seconds of a draft pass over `n` tokens.

        It is 0 without a draft model, because drafts from earlier text cost nothing.
        """
        return interpolate(self.profile.draft, n) if self.profile.draft else 0.0

    def target_depth_s(self, n: int) -> float:
        """Return the seconds that each cached token adds to a target pass over `n` tokens."""
        return interpolate_depth(self.profile.target_depth, n)

    def draft_depth_s(self, n: int) -> float:
        """Return the seconds that each cached token adds to a draft pass over `n` tokens."""
        return interpolate_depth(self.profile.draft_depth, n)

    @property
    def pays(self) -> bool:
        """Whether drafting with the model is faster than plain decoding."""
        return (
            self.draft is not None and self.profile.best(self.profile.agreement)[0] >= WORTH_SAYING
        )

    @property
    def sentence(self) -> str:
        """Interpretation of the measurement in a few sentences."""
        return f"{self._costs} {self.profile.disturbed}".rstrip()

    @property
    def _costs(self) -> str:
        one, agreement = self.target_s(1), self.profile.agreement
        if min(self.target_s(4), self.target_s(8)) < _IMPOSSIBLE * one:
            return "The measured costs cannot be: several tokens took less time than one."
        text = (
            f"A token of the target takes {milliseconds(one)}; checking 4 takes as long as "
            f"{self.target_s(4) / one:.1f}, 8 as long as {self.target_s(8) / one:.1f}."
        )
        needed = self.profile.needed
        if self.draft is None:
            pays = "would bring no gain even if they were always right"
            if needed is not None:
                pays = f"bring a gain if more than {needed:.0%} of them are right"
            return f"{text} Drafts from the text {pays}."
        speedup, k = self.profile.best(agreement)
        tokens = f"{k} token{'s' if k > 1 else ''} a round"
        text += f" A token of the draft takes {milliseconds(self.draft_s(1))}."
        if self.pays:
            return (
                f"{text} At the measured {agreement:.0%} agreement drafting {tokens} should be "
                f"{speedup:.1f} times as fast as plain decoding."
            )
        enough = "not even 100%" if needed is None else f"{needed:.0%}"
        return (
            f"{text} Drafting with the model brings no gain here: at the measured {agreement:.0%} "
            f"agreement {tokens} would be {speedup:.2f} times as fast as plain decoding, and "
            f"{enough} would be enough."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        speedup, k = self.profile.best(self.profile.agreement) if self.draft else (None, None)
        return {
            "sentence": self.sentence,
            "target": self.target,
            "draft": self.draft,
            "kept": self.kept,
            "pays": self.pays,
            "agreement": self.profile.agreement if self.draft else None,
            "best_k": k,
            "speedup": speedup,
            "needed": self.profile.needed,
            "profile": self.profile.to_dict(),
        }


def tune(llm: LLM, *, progress: OnProgress = lambda _: None) -> Tuning:
    """Measure the pass costs and the acceptance rate of a pair, and replace its saved profile.

    Args:
        llm: The models. The LLM uses the new profile from now on.
        progress: Called with the finished passes.

    Raises:
        UnsupportedModelError: The target is decoded plainly, so there is nothing to measure.
        BusyError, ClosedError: As for a generation.
    """
    with llm.models() as (target, draft):
        if target.why_plain:
            message = f"{target.why_plain}, so there is nothing to tune."
            raise UnsupportedModelError(target.path, message, "use another model.")
        found = measure(
            target,
            draft and in_target_ids(draft, target, llm.translation),
            thorough=True,
            on_step=lambda done, total: progress(Progress("tune", done, total, "passes")),
            clock=llm.engine.pair.clock,
        )
        profile = replace(of_this_build(found), measured_at=time.time(), final=True)
        kept = write_profile(target, draft, profile)
    llm.use_profile(profile)
    return Tuning(llm.name, llm.draft_name, profile, kept)


def milliseconds(seconds: float) -> str:
    """Return a time in seconds as text in milliseconds."""
    ms = seconds * 1000
    return f"{ms:,.0f} ms" if ms >= 10 else f"{ms:.1f} ms" if ms >= 1 else f"{ms:.2f} ms"
