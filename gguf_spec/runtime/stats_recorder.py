"""Recorder of the token counts and times of a stream."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from ..results import Stats
from ..speculative.controller import DraftController
from ..speculative.drafters import NoDrafter
from ..speculative.engine import Round
from ..speculative.interfaces import LanguageModel

_LOG = logging.getLogger(__name__)


class StatsRecorder:
    """Token counts and times of a stream: time inside the models, and total running time.

    Attributes:
        stats: Counts and times after the last round.
    """

    def __init__(self, n_prompt: int) -> None:
        """Create the stats of a stream over a prompt of `n_prompt` tokens."""
        self.stats = Stats(n_prompt=n_prompt)
        self._models: tuple[LanguageModel | None, ...] = ()
        self._busy: tuple[float, ...] = (0.0, 0.0)
        self._since = self._total_s = self._prompt_s = 0.0
        self._is_read = False
        self._logs = _LOG.isEnabledFor(logging.DEBUG)  # asked once per request

    def start(self, target: LanguageModel, draft: LanguageModel | None) -> None:
        """Begin timing.

        Args:
            target: The model that decides.
            draft: The draft model, or None.
        """
        self._models = (draft, target)
        self._busy = self._busy_now()
        self.resume()

    def resume(self) -> None:
        """Continue timing after the caller has processed a chunk."""
        self._since = time.perf_counter()

    def prompt_is_read(self, n_cached: int) -> None:
        """Count all time so far as prefill time; a later prefill counts as generation time.

        Args:
            n_cached: Number of tokens that the cache had before.
        """
        if self._is_read:
            return
        self._is_read = True
        self.stats = replace(self.stats, n_cached=n_cached)
        self._pause()
        self._prompt_s, self._busy = self._total_s, self._busy_now()
        self.resume()

    def round_is_done(
        self, one: Round, n_emitted: int, drafter: DraftController | NoDrafter
    ) -> None:
        """Add a round to the stats, and pause timing until `resume`.

        Args:
            one: The round.
            n_emitted: Number of its tokens that were emitted.
            drafter: The drafter of the round.
        """
        self._pause()
        old = self.stats
        controller = drafter if isinstance(drafter, DraftController) else None
        draft_s, verify_s = (
            now - before for now, before in zip(self._busy_now(), self._busy, strict=True)
        )
        self.stats = Stats(
            n_prompt=old.n_prompt,
            n_cached=old.n_cached,
            n_generated=old.n_generated + n_emitted,
            n_drafted=old.n_drafted + one.n_drafted,
            n_accepted=old.n_accepted + one.n_accepted,
            n_near_ties=old.n_near_ties + sum(i < n_emitted for i in one.near_ties),
            n_decided_again=old.n_decided_again + one.decided_again,
            rounds=old.rounds + 1,
            prompt_s=self._prompt_s,
            draft_s=draft_s,
            verify_s=verify_s,
            other_s=self._total_s - self._prompt_s - draft_s - verify_s,
            ttft_s=old.ttft_s or self._total_s,
            total_s=self._total_s,
            forecast_s=controller.forecast.rounds_s if controller else 0.0,
            plain_s=controller.forecast.plain_s if controller else 0.0,
            drafters=dict(controller.counts) if controller else {},
            why_none=drafter.why_none,
        )
        if self._logs:
            _log_round(old, self.stats)

    def _pause(self) -> None:
        self._total_s += time.perf_counter() - self._since

    def _busy_now(self) -> tuple[float, ...]:
        return tuple(model.busy_s if model else 0.0 for model in self._models)


def _log_round(before: Stats, after: Stats) -> None:
    """Log a round: the draft and its drafters, what was accepted, and the time.

    Measured is the time of the round without reading the prompt. There is no prediction (0) where
    nothing may be drafted.
    """
    by = ", ".join(
        f"{name} {n - before.drafters.get(name, (0, 0))[0]}"
        for name, (n, _) in after.drafters.items()
        if n > before.drafters.get(name, (0, 0))[0]
    )
    _LOG.debug(
        "round %d: drafted %d (%s), accepted %d, predicted %.2f ms, measured %.2f ms",
        after.rounds,
        after.n_drafted - before.n_drafted,
        by or "no drafter",
        after.n_accepted - before.n_accepted,
        1000 * (after.forecast_s - before.forecast_s),
        1000 * (after.total_s - after.prompt_s - before.total_s + before.prompt_s),
    )
