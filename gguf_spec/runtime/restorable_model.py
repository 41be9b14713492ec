"""State of a loaded model: its caches and what was learned, saved, restored and cleared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..options import Speculation
from ..speculative.pair import Snapshot
from ..speculative.profile import Profile
from .session_file import restore as restore_session
from .session_file import save as save_session
from .shared_model import SharedModel
from .turns import Ticket


class RestorableModel(SharedModel):
    """A loaded model whose caches and learned statistics can be saved, restored and cleared."""

    def forget(self) -> None:
        """Clear the caches and the kept texts: the next prompt is prefilled from its start.

        The texts do not change; only the cost of the next prompt does.

        Raises:
            BusyError, ClosedError: As for a generation.
        """

        def empty(_: Ticket) -> None:
            for model in filter(None, (self._target, self._draft)):
                model.rollback(0)
            self._kept.forget()
            if self._runner:
                self._runner.forget()

        self._in_turn(empty)

    def save_session(self, path: str | Path, data: Mapping[str, Any]) -> None:
        """Write both caches and the given data to a file, completely or not at all.

        Raises:
            SessionError: The file cannot be written.
            BusyError, ClosedError: As for a generation.
        """
        self._in_turn(lambda _: save_session(Path(path), data, self._target, self._draft))

    def restore_session(self, path: str | Path) -> tuple[dict[str, Any], str]:
        """Restore both caches from a file that `save_session` wrote, and return its data.

        Returns:
            The data, and the reason why the caches could not be restored, so that the models must
            prefill again; empty if they were restored.

        Raises:
            SessionError: The file is missing, damaged, or not a session file.
            BusyError, ClosedError: As for a generation.
        """
        return self._in_turn(lambda _: restore_session(Path(path), self._target, self._draft))

    def logit_noise(self, k: int, exact: bool = True) -> float:
        """Return the largest logit shift that the pass width causes on this machine, in logits.

        The profile measures it over a few rows and doubles it. A decision with a smaller margin is
        a near tie. It is 0 if k is 0, and if the passes in use give rows that are bit-identical to
        those of single-token passes.

        Args:
            k: Maximum number of draft tokens per round.
            exact: As in `Speculation`.
        """
        return self._pair.logit_noise(Speculation(k, exact=exact))

    @property
    def profile(self) -> Profile:
        """Costs and agreement measured for the models on this machine."""
        return self._pair.profile

    def use_profile(self, profile: Profile) -> None:
        """Use other costs from now on, and forget the statistics learned with the old ones.

        Raises:
            BusyError, ClosedError: As for a generation.
        """
        self._in_turn(lambda _: self._pair.use_profile(profile))

    def snapshot(self) -> Snapshot:
        """Return a copy of what was learned during use: costs, acceptance rates, correction.

        It changes the speed of later requests, not their texts.

        Raises:
            BusyError, ClosedError: As for a generation.
        """
        return self._in_turn(lambda _: self._pair.snapshot())

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to the learned state of a `snapshot`, which may be used again.

        Raises:
            BusyError, ClosedError: As for a generation.
        """
        self._in_turn(lambda _: self._pair.restore(snapshot))
