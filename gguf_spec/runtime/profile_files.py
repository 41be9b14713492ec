"""Files of profiles and statistics: what was measured of a pair on this machine, and when again.

A file belongs to the models, their load options, the libraries and the machine. What a profile
says is `speculative.profile`, how it is measured `speculative.profiler`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ..gguf.validation import ModelFile
from ..llama.attention import depth_costs
from ..llama.backend import has_llamafile, library_parts, uses_gpu
from ..llama.options import ContextOptions, physical_cores
from ..llama.sequence import CachedSequence
from ..speculative.pair_statistics import PairStatistics
from ..speculative.profile import Profile
from ..speculative.profiler import can_learn, guess, measure
from ..speculative.translation import Translation, in_target_ids
from ..system.files import CacheFolder, cache_file, read_json, this_machine, write_json
from ..system.machine import cores_are_shared

# Version of the stored files; files of another version are ignored.
VERSION = 11


class ModelKey(NamedTuple):
    """Model file and its load options: together they identify a stored profile."""

    file: ModelFile
    options: ContextOptions


Keyed: TypeAlias = CachedSequence | ModelKey


def read_profile(target: Keyed, draft: Keyed | None) -> Profile | None:
    """Return the stored profile of these models, or None."""
    data = read_json(profile_file(target, draft))
    try:
        if data["version"] != VERSION:
            return None
        return of_this_build(Profile.from_dict(data))
    except (KeyError, TypeError, ValueError):
        return None


def write_profile(target: Keyed, draft: Keyed | None, profile: Profile) -> bool:
    """Store a profile in place of an earlier one; return whether it could be written."""
    match read_json(_speed_file()):
        case [int(known), _]:
            pass
        case _:
            known = 0
    n_bytes = target.file.header.file_bytes
    if n_bytes >= known and not profile.disturbed:
        write_json(_speed_file(), [n_bytes, profile.target[1]])
    return write_json(profile_file(target, draft), {"version": VERSION, **profile.to_dict()})


_LARGE = 512 << 20  # bytes of a model


def _speed_file() -> Path:
    return cache_file("probe", ["speed", *this_machine(timed=True)])


def measured_speed() -> float | None:
    """Return the bytes of weights that a pass over one token reads in a second on this machine.

    It is that of the largest model that was measured, if that is large: in a small one other work
    takes more than half of the time. None before.
    """
    try:
        n_bytes, seconds = read_json(_speed_file())
        return float(n_bytes / seconds) if n_bytes >= _LARGE else None
    except (TypeError, ValueError, ZeroDivisionError):
        return None


class PairFiles:
    """The files of a loaded pair; implements `speculative.pair.PairFiles`."""

    def __init__(
        self,
        target: CachedSequence,
        draft: CachedSequence | None,
        translation: Translation | None = None,
    ) -> None:
        self._target, self._draft, self._translation = target, draft, translation

    def measure(self, with_draft: bool) -> Profile:
        draft = self._draft if with_draft else None
        return profile_of(self._target, draft, None, self._translation, whole=True)

    def read_statistics(self, experiences: Mapping[str, PairStatistics]) -> None:
        """Restore acceptance statistics of earlier runs.

        A damaged file is ignored, and replaced when the models are closed.
        """
        data = read_json(profile_file(self._target, self._draft, "experience"))
        try:
            if data["version"] == VERSION:
                for way, one in experiences.items():
                    answer = float(data[way]["answer"])
                    # This also fails for a number that is not finite.
                    if not 1 <= answer < 1e9:
                        raise ValueError(answer)
                    one.chances.recall(data[way]["seen"])
                    one.answer = min(answer, 1e6)
        except (KeyError, TypeError, ValueError):
            pass

    def write_statistics(self, experiences: Mapping[str, PairStatistics]) -> None:
        """Store the acceptance statistics if any token was emitted."""
        if any(one.n_emitted for one in experiences.values()):
            learned = {
                way: {"answer": one.answer, "seen": one.chances.to_list()}
                for way, one in experiences.items()
            }
            path = profile_file(self._target, self._draft, "experience")
            write_json(path, {"version": VERSION, **learned})

    def write_profile(self, profile: Profile) -> None:
        write_profile(self._target, self._draft, profile)


def profile_file(target: Keyed, draft: Keyed | None, kind: CacheFolder = "profiles") -> Path:
    parts: list[object] = [VERSION, *this_machine(timed=True), *library_parts()]
    for model in [target, draft] if draft else [target]:
        o = model.options
        parts += [model.file.content_id, o.threads or physical_cores(), o.flash_attention]
        parts += [o.kv_type, o.gpu_layers, o.extra_bufts, *o.rpc, *filter(None, [o.head])]
        parts += [*o.placement.parts, *(["shared"] if o.parallel > 1 and uses_gpu(o) else [])]
        parts += [(adapter.content_id, adapter.scale) for adapter in o.lora]
    return cache_file(kind, parts)


# Bytes of weights that a pass over one token reads in a second, where nothing was measured.
_USUAL_SPEED = 1e10
# Budget in seconds while other programs run; such a profile is measured again later.
_BUSY_BUDGET_S = 0.3
# Age from which a profile is measured again, in seconds; and that of one which other programs
# disturbed.
_OLD_S, _DISTURBED_OLD_S = 30 * 24 * 3600.0, 24 * 3600.0


class Means(NamedTuple):
    """What a profile is kept and measured with.

    Attributes:
        read: Returns the stored profile of two models, or None.
        write: Stores a profile of two models.
        measure: Measures two models, as `profiler.measure` does.
        is_busy: Returns whether so many threads would share cores with other programs.
        now: Returns the time in seconds since 1970.
    """

    read: Callable[..., Profile | None]
    write: Callable[..., object]
    measure: Callable[..., Profile]
    is_busy: Callable[[int], bool]
    now: Callable[[], float]


def profile_of(
    target: CachedSequence,
    draft: CachedSequence | None,
    on_measure: Callable[[], object] | None = None,
    translation: Translation | None = None,
    whole: bool = False,
    means: Means | None = None,
) -> Profile:
    """Return the stored profile of these models, or one to begin with, or measure and store it.

    Where it is known without passes which of them are exact, answers begin with guessed costs, or
    with old or disturbed ones, and their passes correct these (`ModelPair.close` stores them).

    Elsewhere, and where several requests may share passes, a profile is measured first. It is
    measured again if it is a month old. One that other programs disturbed is measured again at the
    next load, and the better one of the two is used for a day. One "from the future" stays: the
    clock of a machine without a battery starts in 1970. While another program runs, several
    requests begin with guessed costs, too, as a server does that starts with its machine; where
    that is not possible, only the fewest passes are made.

    Args:
        on_measure: Called before a measurement.
        translation: That of a draft with other token ids.
        whole: A measurement is wanted, not costs that answers corrected.
        means: What to keep and to measure with; None for the cache folder and this machine.
    """
    if means is None:
        means = Means(read_profile, write_profile, measure, cores_are_shared, time.time)
    kept, now = means.read(target, draft), means.now()
    # The number of requests at once, and their turns, follow the costs of several rows.
    is_shared = len(target.context.sequences) > 1
    # Costs measured beside another program would hold for the life of a server.
    is_busy = is_shared and means.is_busy(target.context.threads)
    may_learn = can_learn(target) and (is_busy or not is_shared)
    for model in filter(None, (target, draft)):
        if isinstance(model, CachedSequence) and model.options.head != "self":
            header = model.file.header
            model.depth_costs = depth_costs(header, model.options, whole or not may_learn)
    is_wanted = whole or (is_shared and not is_busy)
    if kept and not kept.is_whole and (is_wanted or kept.disturbed):
        kept = None  # a measurement is wanted, or other programs disturbed the answers
    if kept and is_busy and may_learn and kept.disturbed and not kept.final:
        kept = None  # a guess is nearer
    old_s = _OLD_S if kept and kept.steady else _DISTURBED_OLD_S
    learns = may_learn and not (kept and kept.exact_width == 1)
    is_usable = kept and (kept.steady or kept.final or (learns and kept.checked))
    if kept and is_usable and now - kept.measured_at < old_s:
        known = _with_depth(kept, target, draft)
        if known != kept:
            means.write(target, draft, known)
        return known
    if learns and not whole:
        if not kept:
            single_s = target.weight_bytes / (measured_speed() or _USUAL_SPEED)
            kept = of_this_build(guess(target, draft, single_s))
        return replace(kept, checked=False, final=False, measured_at=now)
    if on_measure:
        on_measure()
    profile = replace(_measured(target, draft, translation, kept, means), measured_at=now)
    means.write(target, draft, profile)
    return profile


def _measured(
    target: CachedSequence,
    draft: CachedSequence | None,
    translation: Translation | None,
    kept: Profile | None,
    means: Means,
) -> Profile:
    """Measure a pair; return that or the stored profile, if that is better."""
    view = draft and in_target_ids(draft, target, translation)
    if means.is_busy(target.context.threads):
        profile = replace(means.measure(target, view, budget_s=_BUSY_BUDGET_S), steady=False)
    else:
        profile = means.measure(target, view)
    profile = of_this_build(profile)
    if not kept or profile.steady:
        return profile
    # The machine is busy now: the profile of the idle machine is more accurate.
    return kept if kept.steady else replace(_less_disturbed(kept, profile), final=True)


def of_this_build(profile: Profile) -> Profile:
    """Return a profile that says what the loaded llama.cpp was built with."""
    return replace(profile, llamafile=has_llamafile())


def _less_disturbed(first: Profile, second: Profile) -> Profile:
    """Return the profile with the lower costs, because another program only makes a pass longer."""
    tables = ((first.target, second.target), (first.draft, second.draft))
    common = [(a[n], b[n]) for a, b in tables for n in a.keys() & b.keys()]
    return first if sum(a for a, _ in common) <= sum(b for _, b in common) else second


def _with_depth(kept: Profile, target: CachedSequence, draft: CachedSequence | None) -> Profile:
    """Return a profile with the known depth costs in place of estimates."""
    guess, draft_guess = kept.guesses_depth
    if guess and target.depth_costs:
        kept, guess = replace(kept, target_depth=dict(target.depth_costs)), False
    if draft_guess and draft and draft.depth_costs:
        kept, draft_guess = replace(kept, draft_depth=dict(draft.depth_costs)), False
    return replace(kept, guesses_depth=(guess, draft_guess))
