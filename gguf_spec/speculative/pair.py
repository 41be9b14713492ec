"""A target, perhaps a draft model, and what is known of them: from that each request gets its drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import ClosedError, InvalidOptionError
from ..llama.model import Model
from ..options import K_MAX, Speculation
from ..sampling.chain import Sampler
from .controller import DraftController
from .drafters import (
    CoupledDraftSampler,
    DraftCorrection,
    FirstRead,
    ModelDrafter,
    NgramDrafter,
    NoDrafter,
    RetryDrafter,
    StochasticDraftSampler,
    SuffixAutomaton,
    TokenDrafter,
    failure,
)  # fmt: skip
from .profile import DEFAULT_PROFILE, Profile, read_statistics, write_statistics


class ModelPair:
    """Two models on this machine.

    Attributes:
        target: The model that decides.
        draft: The model that proposes, or None.
        profile: What was measured of them.
        reference: A text beside the request's own that drafts may come from, or None.
        calibration: What the draft has learned of the target.
        experiences: What is known of costs and chances; it learns. One for texts that are `greedy`, `sampled`, and `drawn`.
    """

    def __init__(
        self,
        target: Model,
        draft: Model | None,
        measure: Callable[[Model, Model | None], Profile] | None = None,
        reference: SuffixAutomaton | None = None,
    ) -> None:
        """Join two models; `measure` gives their profile when it is first needed. Without it nothing is known of their costs."""
        self.target, self.draft, self.reference = target, draft, reference
        self.calibration = DraftCorrection(target.n_vocab)
        self._draft_first = FirstRead()
        self._measure = measure
        self.know(DEFAULT_PROFILE)

    def measure(self) -> None:
        """Get the profile, if it is not there yet."""
        if self._measure and self.target.can_roll_back:
            self.know(self._measured(self._measure))
            read_statistics(self.target, self.draft, self.experiences)

    def _measured(self, measure: Callable[[Model, Model | None], Profile]) -> Profile:
        """Return the profile; where the draft fails, that of the target alone, with costs of the draft by its size. It is tried in each request."""
        try:
            return measure(self.target, self.draft)
        except ClosedError:
            raise
        except Exception as error:
            if not self.draft:
                raise
            profile = measure(self.target, None)  # if it was the target that failed, it fails again
            failure(ModelDrafter.name, error)
            self._draft_first.failed = True
            share = self.draft.weight_bytes / self.target.weight_bytes
            return replace(
                profile, draft={width: share * seconds for width, seconds in profile.target.items()}
            )

    def close(self) -> None:
        """Keep what was learned, and free both models; more than once does nothing."""
        try:
            if self.profile is not DEFAULT_PROFILE:
                write_statistics(self.target, self.draft, self.experiences)
                self.know(DEFAULT_PROFILE)
        finally:
            try:
                if self.draft:
                    self.draft.close()
            except Exception as error:
                failure(ModelDrafter.name, error)
            finally:
                self.target.close()

    def know(self, profile: Profile) -> None:
        """Go by a profile from now on."""
        self.profile, self.experiences = profile, profile.experiences()
        if (
            profile is not DEFAULT_PROFILE
            and profile.exact_width > K_MAX
            and self.target.exact_attention
        ):
            self.target.grid = (
                0  # all kernels of this machine are exact, whatever the header suggests
            )
        self._measure = None if profile is not DEFAULT_PROFILE else self._measure

    def logit_noise(self, speculation: Speculation) -> float:
        """Return how far logits of the passes that `speculation` may make move against those of single-row passes, at most."""
        return self.profile.logit_noise(self.most_drafted(speculation))

    def most_drafted(self, speculation: Speculation) -> int:
        """Return how many tokens a round may draft: no more than passes that verify have rows for, beside the one before them."""
        return min(speculation.k, self.profile.widest(speculation.exact) - 1)

    def check(self, speculation: Speculation) -> None:
        """Refuse what these models cannot do.

        Raises:
            InvalidOptionError: The draft model is asked for, and there is none.
        """
        if (
            speculation.k
            and speculation.drafter in ("model", "hybrid")
            and not self.draft
            and self.target.can_roll_back
        ):
            raise InvalidOptionError(
                "drafter", speculation.drafter, "auto or ngram: no draft model is loaded"
            )

    def drafter(
        self,
        speculation: Speculation,
        sampler: Sampler,
        n_left: int,
        before: DraftController | NoDrafter | None = None,
    ) -> DraftController | NoDrafter:
        """Return the drafter of one request, whose answer has at most `n_left` tokens; it goes on with the counts of the one `before`."""
        if not speculation.k:
            return NoDrafter()
        if not self.target.can_roll_back:
            return NoDrafter("the model cannot go back a token (it is recurrent or hybrid)")
        coupled, who = speculation.accept == "coupled", speculation.drafter
        if who == "auto":
            who = ("hybrid" if speculation.adaptive else "model") if self.draft else "ngram"
        guess = (
            CoupledDraftSampler(sampler, self.calibration)
            if coupled
            else StochasticDraftSampler(sampler)
        )
        model = (
            ModelDrafter(self.draft, guess, self.target.n_vocab, self._draft_first)
            if self.draft and who != "ngram"
            else None
        )
        texts: list[TokenDrafter] = (
            [] if who == "model" else [NgramDrafter(self.reference), RetryDrafter()]
        )
        way = "drawn" if not coupled else "greedy" if sampler.sampling.greedy else "sampled"
        controller = DraftController(
            self.target, texts, model, self.experiences[way], n_left,
            fixed=not speculation.adaptive, tree=speculation.tree, widest=self.profile.widest(speculation.exact),
        )  # fmt: skip
        if isinstance(before, DraftController):
            controller.go_on_from(before)
        return controller
