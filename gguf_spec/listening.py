"""Functions that get the events of a generation, in the thread that computes it.

And work that goes on at the end of a generation, so that no thread waits for that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from .results import Answer, Chunk, Ended

R = TypeVar("R")

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


Work: TypeAlias = Generator[tuple[Answer, Callable[[Chunk], object]], None, R]
"""Yields each generation that it needs, with a function for its chunks, and goes on at its end.

An error of the generation is raised at the `yield`. The function is called by a thread of the
engine, and must not wait.
"""


def go_on(
    work: Work[Any],
    error: BaseException | None,
    on_ended: Callable[[BaseException | None], object],
) -> None:
    """Run a work until it needs a generation, and let the engine compute that.

    Args:
        work: The work.
        error: What its last generation ended with.
        on_ended: Called by a thread of the engine when the generation has ended, with its error.

    Raises:
        StopIteration: The work has ended, with this value; other errors are its own.
    """
    while True:
        answer, call = work.throw(error) if error else next(work)

        def came(event: Chunk | Ended, call: Callable[[Chunk], object] = call) -> None:
            if isinstance(event, Ended):
                on_ended(event.error)
            else:
                call(event)

        try:
            answer.listen(came)
            return
        except BaseException as raised:
            error = raised
