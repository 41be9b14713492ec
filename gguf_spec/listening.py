"""Functions that get the events of a generation, in the thread that computes it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .results import Chunk, Ended

_LOG = logging.getLogger(__name__)

# Seconds after which it is asked again whether a reader that was behind has read.
POLL_S = 0.01


class Listener(NamedTuple):
    """The arguments of `Answer.listen`."""

    call: Callable[[Chunk | Ended], object]
    is_full: Callable[[], bool] = bool

    def read(
        self,
        chunks: Iterable[Chunk],
        is_cancelled: Callable[[], bool],
        close: Callable[[], object],
    ) -> None:
        """Read a generation to its end, in this thread.

        Args:
            chunks: The chunks; reading them computes or receives them.
            is_cancelled: Whether the generation is cancelled: then nobody waits for its reader.
            close: Closes the generation after an error.
        """
        error: BaseException | None = None
        try:
            for chunk in chunks:
                self.call(chunk)
                while self.is_full() and not is_cancelled():
                    time.sleep(POLL_S)
        except BaseException as raised:  # a function of the user may raise anything
            error = raised
            close()
        self.end(error)

    def end(self, error: BaseException | None) -> None:
        """Tell it the end. What it raises is only logged: others may use this thread."""
        try:
            self.call(Ended(error))
        except BaseException:
            _LOG.exception("A function that listens to a generation failed at its end.")
