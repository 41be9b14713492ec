"""What passes cost here, measured thoroughly, and whether drafting by the model pays; returns data, prints nothing.

A round over k drafted tokens takes V(k + 1) and k tokens of the draft, and brings 1 + c + c^2 + ... + c^k tokens, if each is right with the
chance c.

Source: Leviathan et al. 2022, arXiv:2211.17192, section 3, with measured costs in place of proportional ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .errors import UnsupportedModelError
from .runtime.llm import LLM
from .speculative.cost_model import interpolate
from .speculative.profile import WORTH_SAYING, Profile, write_profile
from .speculative.profiler import measure

Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class Tuning:
    """What was measured, and what it means.

    Attributes:
        target: Name of the model.
        draft: File name of the draft, or None.
        profile: What was measured of them.
        kept: Whether it could be kept, for every load from now on.
    """

    target: str
    draft: str | None
    profile: Profile
    kept: bool = True

    def target_s(self, n: int) -> float:
        """Return the seconds of a pass of the target over `n` tokens."""
        return interpolate(self.profile.target, n)

    def draft_s(self, n: int) -> float:
        """Return the seconds of a pass of the draft over `n` tokens; 0 without one, for drafts taken from the text cost nothing."""
        return interpolate(self.profile.draft, n) if self.profile.draft else 0.0

    @property
    def pays(self) -> bool:
        """Whether drafting by the model does."""
        return (
            self.draft is not None and self.profile.best(self.profile.agreement)[0] >= WORTH_SAYING
        )

    @property
    def sentence(self) -> str:
        """What it means, in a few plain sentences."""
        one, agreement = self.target_s(1), self.profile.agreement
        said = f"A token of the target takes {milliseconds(one)}; "
        said += f"checking 4 takes as long as {self.target_s(4) / one:.1f}, 8 as long as {self.target_s(8) / one:.1f}."
        if self.draft is None:
            needed = self.profile.needed
            pays = (
                "would not pay if they were always right"
                if needed is None
                else f"pay where more than {needed:.0%} of them are right"
            )
            return f"{said} Drafts from the text itself {pays}."
        speedup, k = self.profile.best(agreement)
        tokens = f"{k} token{'s' if k > 1 else ''} a round"
        said += f" A token of the draft takes {milliseconds(self.draft_s(1))}."
        if self.pays:
            return f"{said} At the measured {agreement:.0%} agreement drafting {tokens} should be {speedup:.1f} times as fast as plain decoding."
        said += f" Drafting by the model does not pay here: at the measured {agreement:.0%} agreement {tokens} would be {speedup:.2f} times as fast as "
        return f"{said}plain decoding, and {'not even 100%' if self.profile.needed is None else f'{self.profile.needed:.0%}'} would be enough."

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        speedup, k = self.profile.best(self.profile.agreement) if self.draft else (None, None)
        return {
            "sentence": self.sentence, "target": self.target, "draft": self.draft, "kept": self.kept, "pays": self.pays,
            "agreement": self.profile.agreement if self.draft else None, "best_k": k, "speedup": speedup, "needed": self.profile.needed,
            "profile": self.profile.to_dict(),
        }  # fmt: skip


def tune(llm: LLM, *, progress: Progress = lambda _done, _total: None) -> Tuning:
    """Measure what the passes of a pair cost and how often its draft is right, and keep that in place of what was kept.

    Args:
        llm: The models. It goes by what was measured from now on.
        progress: Called with passes done and all passes.

    Raises:
        UnsupportedModelError: The target cannot go back a token: it is decoded plainly, and there is nothing to measure.
        BusyError, ClosedError: As for a generation.
    """
    with llm.models() as (target, lent):
        draft = lent if lent is not target else None
        if not target.can_roll_back:
            message = f"{target.path.name} cannot go back a token (it is recurrent or hybrid): it is decoded plainly, and there is nothing to tune."
            raise UnsupportedModelError(target.path, message, "tune a model of another kind.")
        profile = replace(
            measure(target, draft, thorough=True, on_step=progress), measured_at=time.time()
        )
        kept = write_profile(target, draft, profile)
        llm._pair.know(profile)
    return Tuning(llm.name, llm.draft_name, profile, kept)


def milliseconds(seconds: float) -> str:
    """Return a time as it is shown."""
    ms = seconds * 1000
    return f"{ms:,.0f} ms" if ms >= 10 else f"{ms:.1f} ms" if ms >= 1 else f"{ms:.2f} ms"
