"""Stored profile of a pair: when it is used as it is, and when the pair is measured again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ..llama.head import Head
from ..llama.model import Model
from ..system.machine import cores_are_shared
from .profile import Profile, read_profile, write_profile
from .profiler import measure
from .translated_model import in_target_ids
from .translation import Translation

# Budget in seconds while other programs run; such a profile is measured again later.
_BUSY_BUDGET_S = 0.3
# Age from which a profile is measured again, in seconds.
_OLD_S = 30 * 24 * 3600.0


def profile_of(
    target: Model,
    draft: Model | Head | None,
    on_measure: Callable[[], object] | None = None,
    translation: Translation | None = None,
) -> Profile:
    """Return the stored profile of these models, or measure and store it.

    A profile is measured again if it is a month old or was measured beside another program. While
    another program runs, only the fewest passes are made. `on_measure` is called before a
    measurement. `translation` is that of a draft with other token ids.
    """
    kept, now = read_profile(target, draft), time.time()
    if kept and kept.steady and 0 <= now - kept.measured_at < _OLD_S:
        known = _with_depth(kept, target, draft)
        if known != kept:
            write_profile(target, draft, known)
        return known
    if on_measure:
        on_measure()
    view = draft and in_target_ids(draft, target, translation)
    if cores_are_shared(target.threads):
        profile = replace(
            measure(target, view, budget_s=_BUSY_BUDGET_S), steady=False, measured_at=now
        )
    else:
        profile = replace(measure(target, view), measured_at=now)
    if kept and kept.steady and not profile.steady:
        # The machine is busy now: the profile of the idle machine is more accurate.
        profile = replace(kept, measured_at=now)
    write_profile(target, draft, profile)
    return profile


def _with_depth(kept: Profile, target: Model, draft: Model | Head | None) -> Profile:
    """Return a profile with the known depth costs in place of estimates."""
    guess, draft_guess = kept.guesses_depth
    if guess and target.depth_costs:
        kept, guess = replace(kept, target_depth=dict(target.depth_costs)), False
    if draft_guess and draft and draft.depth_costs:
        kept, draft_guess = replace(kept, draft_depth=dict(draft.depth_costs)), False
    return replace(kept, guesses_depth=(guess, draft_guess))
