"""A request in the scheduler: its slots, what it waits for, and what it is resumed with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..llama.slots import Part, Slot
from .company import Companies, Offer
from .drafters import FirstRead

if TYPE_CHECKING:
    from greenlet import greenlet


@dataclass
class SlotPair:
    """The slots of one request.

    Attributes:
        target: Slot of the target.
        draft: Slot of the draft model, or None.
        company: The requests that share passes with this one.
        first: What the draft model reads of a text.
        task: The task that uses them, or None.
        used_at: Number of the last task that used them.
    """

    target: Slot
    draft: Slot | None
    company: Companies = field(default_factory=Companies)
    first: FirstRead = field(default_factory=FirstRead)
    task: Task | None = None
    used_at: int = 0

    @property
    def slots(self) -> list[Slot]:
        """Both slots, the target's first."""
        return [self.target, *([self.draft] if self.draft else [])]


class Task:
    """One request in the scheduler.

    Attributes:
        number: Position in the order of arrival.
        pair: Its slots.
        body: The greenlet of the request.
        waits_for: What it waits for: a part of a pass, or the length of its draft; None if it can
            be resumed.
        is_parked: It has nothing to do until this is cleared.
        rests: It may compute long between two passes, and then calls `Scheduler.rest`.
        is_resting: It goes on with its work in its next turn.
        turn: Number of its last turn among the tasks that rest.
        answer: What it is resumed with.
        error: Raised in it when it is resumed; None for an answer.
    """

    def __init__(self, number: int, pair: SlotPair, body: greenlet) -> None:
        self.number, self.pair, self.body = number, pair, body
        self.waits_for: Part | Offer | None = None
        self.is_parked = self.rests = self.is_resting = False
        self.turn = 0
        self.answer: Any = None
        self.error: Exception | None = None

    @property
    def is_done(self) -> bool:
        """Whether the request has ended."""
        return bool(self.body.dead)

    @property
    def can_go_on(self) -> bool:
        """Whether it can be resumed."""
        return self.waits_for is None and not self.is_parked and not self.is_done

    @property
    def part(self) -> Part:
        """The part of a pass that it waits for."""
        assert isinstance(self.waits_for, Part)
        return self.waits_for

    @property
    def offer(self) -> Offer:
        """What it can decode: its draft, or the part that it waits for."""
        one = self.waits_for
        return one if isinstance(one, Offer) else Offer((), len(self.part.tokens))

    @property
    def reads(self) -> bool:
        """Whether it waits for a pass of the target over a piece of its prompt."""
        part = self.waits_for
        return isinstance(part, Part) and part.n_rows == 0 and part.slot is self.pair.target

    def suspend(self) -> Any:
        """Switch from its body to the scheduler; return what it is resumed with, or raise that."""
        parent = self.body.parent
        assert parent
        parent.switch()
        error, self.error = self.error, None
        if error:
            raise error
        answer, self.answer = self.answer, None
        return answer

    def set_answer(self, answer: Any = None, error: Exception | None = None) -> None:
        """Set what it is resumed with; it can be resumed from now on.

        Rows are copied for a task that rests, because others have passes before it has read them.
        """
        if self.rests and isinstance(answer, np.ndarray):
            answer = np.array(answer)
        self.waits_for, self.answer, self.error = None, answer, error


def mean_depth(tasks: Sequence[Task]) -> int:
    """Return the mean number of tokens that the target has cached for each task."""
    return sum(task.pair.target.n_past for task in tasks) // max(1, len(tasks))
