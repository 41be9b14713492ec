"""Model pair: target, optional draft model, their statistics, and the drafter of each request."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Generic, Protocol, cast

from ..drafters import kind_of
from ..errors import ClosedError, InvalidOptionError, NoSpeculationError, Text
from ..options import K_MAX, Speculation
from ..passes import S
from ..sampling.chain import Sampler
from .controller import DraftController
from .drafters import (
    CoupledDraftSampler,
    DraftCorrection,
    DraftStore,
    NoDrafter,
    StochasticDraftSampler,
    SuffixAutomaton,
    TextDrafter,
    drafter_of,
    failure,
    name_of,
    needs_rows,
)  # fmt: skip
from .pair_statistics import PairStatistics
from .profile import DEFAULT_PROFILE, Profile
from .scheduler import MAX_GAP_S, Scheduler, Side, SlotPair
from .translation import Translation, in_target_ids

_LOG = logging.getLogger(__name__)

# Why a request with a grammar drafts nothing beside others if its target has recurrent layers:
# others have passes while it computes, after which its own pass cannot be rolled back.
_RESTS = "a recurrent or hybrid model drafts nothing for a grammar with parallel requests"


def _sequences(model: S) -> Sequence[S]:
    # all sequences of a context have one type
    return cast("Sequence[S]", model.context.sequences)


@dataclass(frozen=True)
class Snapshot:
    """State that a model pair learns during use.

    Attributes:
        experiences: Cost models and acceptance rates, by the kind of text.
        calibration: Correction of the draft's logits; None keeps the one in use.
    """

    experiences: dict[str, PairStatistics]
    calibration: DraftCorrection | None = None


class PairFiles(Protocol):
    """Where the profile and the statistics of a pair are stored: `runtime.profile_files`."""

    def measure(self, with_draft: bool) -> Profile:
        """Measure and store a whole profile of the pair, or of the target alone."""

    def read_statistics(self, experiences: Mapping[str, PairStatistics]) -> None:
        """Restore the statistics of earlier runs; without a file they stay."""

    def write_statistics(self, experiences: Mapping[str, PairStatistics]) -> None:
        """Store the statistics."""

    def write_profile(self, profile: Profile) -> None:
        """Store a profile in place of an earlier one."""


class ModelPair(Generic[S]):
    """Target and optional draft model on this machine.

    Attributes:
        draft: The model that proposes, or a prediction head of the target, or None.
        reference: A text beside the request's own from which drafts may come, or None.
        store: What was read and written before, from which the drafts of all requests may come, or
            None.
        translation: Translation for a draft model with other token ids; None if they are the same.
        calibration: Correction of the draft's logits, learned from the target.
        slots: The sequences of both contexts, one pair for each request that runs at once.
        experiences: Cost models and acceptance rates, updated during use; one each for texts that
            are `greedy`, `sampled` and `drawn`.
        clock: Returns the time in seconds; passes and answers are timed by it.
    """

    experiences: dict[str, PairStatistics]
    calibration: DraftCorrection
    clock: Callable[[], float]
    draft: S | None
    profile: Profile
    reference: SuffixAutomaton | None
    store: DraftStore | None
    translation: Translation | None

    def __init__(
        self,
        target: S,
        draft: S | None,
        measure: Callable[[S, S | None], Profile] | None = None,
        reference: SuffixAutomaton | None = None,
        store: DraftStore | None = None,
        translation: Translation | None = None,
        files: PairFiles | None = None,
        max_gap: float = MAX_GAP_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Join two models.

        `measure` returns the profile of the pair, and is called when that is first needed; without
        it default costs are used. Without `files` nothing is stored. `max_gap` is that of the
        scheduler.
        """
        self.target, self.draft, self.reference = target, draft, reference
        self._files, self._max_gap, self.clock = files, max_gap, clock
        self.store, self.translation = store, translation
        self.calibration = DraftCorrection(target.n_vocab)
        drafts: Iterable[S | None] = itertools.repeat(None)
        if draft:
            drafts = [draft] if needs_rows(draft) else _sequences(draft)
        pairs = zip(_sequences(target), drafts, strict=False)
        self.slots: list[SlotPair[S]] = [SlotPair(*one) for one in pairs]
        self._measure = measure
        self._why_none = ""  # nothing is drafted: the reason
        self.use_profile(DEFAULT_PROFILE)

    def measure(self) -> None:
        """Measure the profile, unless that is done already."""
        if self._measure and not self.target.why_plain:
            self.use_profile(self._measured(self._measure))
            if self._files:
                self._files.read_statistics(self.experiences)

    def measure_whole(self) -> None:
        """Measure a profile where there is none, or its costs are guessed or those of answers."""
        files = self._files
        if files and not self.target.why_plain and not self.profile.is_whole:
            self.use_profile(self._measured(lambda _, draft: files.measure(draft is not None)))
            files.read_statistics(self.experiences)

    def _measured(self, measure: Callable[[S, S | None], Profile]) -> Profile:
        """Return the profile of the pair; if the draft model fails, that of the target.

        The costs of a failed draft model are estimated by its size. Each request tries the draft
        model again.
        """
        try:
            return measure(self.target, self.draft)
        except ClosedError:
            raise
        except Exception as error:
            if not self.draft:
                raise
            # If the target caused the failure, this fails again.
            profile = measure(self.target, None)
            failure(name_of(self.draft), error)
            self.slots[0].first.failed = True
            share = self.draft.weight_bytes / self.target.weight_bytes
            return replace(
                profile, draft={width: share * seconds for width, seconds in profile.target.items()}
            )

    def close(self) -> None:
        """Save the statistics and free both models. Further calls have no effect."""
        try:
            if self._files and self.profile is not DEFAULT_PROFILE:
                self._files.write_statistics(self.experiences)
                # The costs are those of all kinds of texts.
                known = max(self.experiences.values(), key=lambda one: one.n_emitted)
                has_learned = known.target.n_checks or not self.profile.is_whole
                if known.n_emitted and has_learned and not self.slots[0].first.failed:
                    self._files.write_profile(self.profile.corrected_by(known))
            if self.profile is not DEFAULT_PROFILE:
                self.use_profile(DEFAULT_PROFILE)
        finally:
            try:
                if self.draft:
                    self.draft.close()
            except Exception as error:
                failure(name_of(self.draft), error)
            finally:
                self.target.close()

    def use_profile(self, profile: Profile) -> None:
        self.profile, self.experiences = profile, profile.experiences()
        exactness, is_measured = self.target.exactness, profile is not DEFAULT_PROFILE
        if is_measured and profile.exact_width > K_MAX and exactness.attention:
            # All kernels of this machine are exact: the grid that the header suggests is not used.
            self.target.context.exactness = replace(exactness, grid=0)
        if not profile.restores:
            name = self.target.path.name
            self.target.context.why_untrusted = (
                f"llama.cpp did not restore the state of {name} in a test"
            )
        self._measure = None if is_measured else self._measure

    def _refute(self) -> None:
        """Draft no more, and let the next load measure which passes are exact."""
        name = self.target.path.name
        _LOG.warning(
            "Rows of %s changed with the width of a pass: drafts are off until it is loaded again.",
            name,
        )
        self._why_none = f"a pass over several tokens of {name} gave other rows than single ones"
        self.profile = replace(self.profile, exact_width=1, steady=False, checked=False)

    def snapshot(self) -> Snapshot:
        return deepcopy(Snapshot(self.experiences, self.calibration))

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the learned state by a copy of `snapshot`."""
        copy = deepcopy(snapshot)
        self.experiences = copy.experiences
        self.calibration = copy.calibration or self.calibration

    def logit_noise(self, speculation: Speculation) -> float:
        """Return an upper bound of the logit noise in the passes of `speculation`, in logits.

        The noise is the shift of logits against those of single-row passes.
        """
        # A common pass may have the largest width, for any draft of one request.
        shared, own = self.profile.widest(speculation.exact) - 1, self.most_drafted(speculation)
        return self.profile.logit_noise(shared if self.shares_passes else own)

    @property
    def shares_passes(self) -> bool:
        """Whether a pass may be for several requests."""
        return len(self.slots) > 1

    def scheduler(self, before: Scheduler[S] | None = None) -> Scheduler[S]:
        """Return the scheduler over the slots of the contexts.

        The one in use stays unless the costs were replaced. Another one learns the costs of common
        passes again, with empty caches except for the first.
        """
        known = self.experiences["sampled"]
        if before and before.is_of(known.target):
            return before
        # A model that cannot roll back is not measured.
        widest = self.profile.widest(exact=True)
        if self.target.why_plain:
            widest = min(widest, self.target.exactness.most_rows)
        self.target.context.widest = max(1, widest)
        target = Side(self.target.context, known.target, self.clock)
        draft = None
        if self.draft and known.draft:
            draft = Side(self.draft.context, known.draft, self.clock)
        for pair in self.slots[1:]:
            for slot in pair.slots:
                slot.forget()
        return Scheduler(self.slots, target, draft, self._max_gap)

    def most_drafted(self, speculation: Speculation) -> int:
        """Return the longest draft of a round, whose verify pass has one row more."""
        return min(speculation.k, self.profile.widest(speculation.exact) - 1)

    def check(self, speculation: Speculation) -> None:
        """Raise an error if the loaded models do not support the options.

        Raises:
            NoSpeculationError: The options request the draft model, and no draft is loaded.
            PluginError: They request a drafter of another distribution that cannot be imported.
            InvalidOptionError: The options need passes that this request has to itself, and
                requests share passes.
        """
        allowed = ""
        if self.shares_passes:
            allowed = "False with parallel requests: on this machine their passes are not exact"
        elif not (self.target.can_roll_back or self.target.why_plain):
            allowed = (
                "False for recurrent and hybrid models, unless passes are exact: their state is "
                "restored once per pass"
            )
        if allowed and speculation.strict and self.logit_noise(speculation):
            raise InvalidOptionError("strict", True, allowed)
        if speculation.k and not self.target.why_plain:
            self._check_drafter(speculation.drafter)

    def _check_drafter(self, name: str) -> None:
        needs, what = kind_of(name).needs, ""
        if needs == "head" and name != name_of(self.draft):
            what = "prediction head of this kind"
            hint = "set {draft='mtp'}" if name == "mtp" else "set {draft} to the file of one"
            hint += " when the model is loaded."
        elif needs == "model" and not self.draft:
            what, hint = "draft model", "set {draft} to a model."
        if what:
            message = f"the drafter {name} needs a {what}, and none is loaded."
            hint = Text("set {drafter='ngram'} | " + hint)
            raise NoSpeculationError("drafter", name, message, hint)

    def drafter(
        self,
        speculation: Speculation,
        sampler: Sampler,
        n_left: int,
        slots: SlotPair[S],
        before: DraftController | NoDrafter | None = None,
    ) -> DraftController | NoDrafter:
        """Return the drafter of one request.

        Args:
            sampler: The target's chain.
            n_left: Largest length of the answer, in tokens.
            before: Drafter of the first part of the same request; its counts are continued.
        """
        if not speculation.k:
            return NoDrafter()
        if why := self.target.why_plain or self._why_none:
            return NoDrafter(why)
        if slots.task and slots.task.rests and slots.target.recurrent:
            return NoDrafter(_RESTS)
        coupled, name = speculation.accept == "coupled", speculation.drafter
        if name == "auto":
            name = ("hybrid" if speculation.adaptive else "model") if self.draft else "ngram"
        kind = kind_of(name)
        model = None
        if slots.draft and kind.needs:
            view = in_target_ids(slots.draft, self.target, self.translation)
            guess = CoupledDraftSampler(sampler, self.calibration) if coupled else None
            chosen = guess or StochasticDraftSampler(sampler)
            model = drafter_of(view, chosen, self.target.n_vocab, slots.first)
        way = "drawn" if not coupled else "greedy" if sampler.sampling.greedy else "sampled"
        known, failures = self.experiences[way], dict[str, str]()
        texts: list[TextDrafter] = []
        try:
            texts = kind.drafters(self)
        except Exception as error:
            failures[name] = failure(name, error)
        known.chances.add({one.name: one.priors for one in texts})
        widest = self.profile.widest(speculation.exact)
        if self.shares_passes:
            widest = min(widest, slots.target.free_rollback + 1)
        controller = DraftController(
            slots.target,
            texts,
            model,
            known,
            n_left,
            fixed=not speculation.adaptive,
            widest=widest,
            batches=slots.batches,
            on_inexact=self._refute,
            clock=self.clock,
        )
        controller.switch_off(failures)
        if isinstance(before, DraftController):
            controller.continue_after(before)
        return controller
