"""State of a running batch, for its callback and its summary."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchProgress:
    """State of a batch.

    Attributes:
        n_lines: Number of lines that are not blank; None for a stream, before its end.
        n_done: Number of lines with a result, those of earlier runs included.
        n_failed: Number of those whose result is an error.
        n_before: Number of lines that had a result before this run.
        n_tokens: Number of tokens that this run has generated.
        seconds: Time since the begin of this run.
    """

    n_lines: int | None
    n_done: int
    n_failed: int
    n_before: int
    n_tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of this run, all requests together."""
        return self.n_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Expected time until the end, if the other lines take as long; None if it is unknown."""
        n_now = self.n_done - self.n_before
        if self.n_lines is None or not n_now:
            return None
        return (self.n_lines - self.n_done) * self.seconds / n_now
