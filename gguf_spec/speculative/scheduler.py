"""Scheduler: runs the rounds of several requests, and joins their passes.

Each request is a task: a greenlet that runs the same code as a request alone, with a slot in place
of each model. A slot hands its pass to the scheduler and is resumed when the pass is done. All of
it is one thread, so there are no locks.

A step runs one pass. First come passes of draft models, each over the tasks whose next token is
expected to pay for all, until there is none, and the choice of the draft lengths; then pieces of
prompts; then one pass of the target for all tasks that decode. Tasks with grammars may compute
long between two passes. They rest again and again, and all together get a share of the time of the
passes, so that they delay the others by that share only.

Pieces of prompts are cut by their price, so that the tasks that decode wait at most a given time
for their next pass. The prompt with the shortest rest comes first, and the oldest one gets a share
of the time of reading: no prompt waits for a long one to end, and none waits for ever. Where a
piece ends has no influence on the bits (`passes.Exactness`).

The text of a request does not depend on its neighbours: the seed and the position decide each
random number, and a row has the same bits in any pass (`llama.context`). Where the machine has no
exact passes, near ties are counted, as for a request alone.

llama.cpp decodes sequences with consecutive ids in one pass, and others in several. Requests end in
any order, so the sequences of those that go on are moved together if that pays.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from ..arrays import Logits
from ..errors import DecodeError
from ..passes import ModelContext, PassPart, S
from .cost_model import (
    ALONE,
    BatchCosts,
    Batches,
    CostModel,
    DraftRequest,
    SharedPasses,
    best_drafting,
    common_rows,
)
from .drafters import FirstRead

if TYPE_CHECKING:
    from greenlet import greenlet

# Factor on the counts of the throughput of common passes at each of them.
_RATE_MEMORY = 0.95
# Number of passes whose saved time must pay for the moves.
_PASSES = 16


@dataclass
class SlotPair(Generic[S]):
    """The slots of one request.

    Attributes:
        target: Slot of the target.
        draft: Slot of the draft model, or None.
        batches: The requests that share passes with this one.
        first: The part of a text that the draft model reads.
        n_prompt: Number of tokens of the text that is read before the first round.
        task: The task that uses them, or None.
        used_at: Number of the last task that used them.
    """

    target: S
    draft: S | None
    batches: Batches = field(default_factory=Batches)
    first: FirstRead = field(default_factory=FirstRead)
    n_prompt: int = 0
    task: Task[S] | None = None
    used_at: int = 0

    @property
    def slots(self) -> list[S]:
        return [self.target, *([self.draft] if self.draft else [])]


class Task(Generic[S]):
    """One request in the scheduler.

    Attributes:
        number: Position in the order of arrival.
        pair: Its slots.
        body: The greenlet of the request.
        waits_for: What it waits for: a part of a pass, or the length of its draft; None if it can
            be resumed.
        is_parked: It is suspended until this is cleared.
        rests: It may compute long between two passes, and then calls `Scheduler.yield_to_others`.
        is_resting: It continues in its next turn.
        turn: Number of its last turn among the tasks that rest.
        answer: The result that it is resumed with.
        error: Raised in it when it is resumed; None for an answer.
    """

    body: greenlet
    number: int
    pair: SlotPair[S]

    def __init__(self, number: int, pair: SlotPair[S], body: greenlet) -> None:
        self.number, self.pair, self.body = number, pair, body
        self.waits_for: PassPart | DraftRequest | None = None
        self.is_parked = self.rests = self.is_resting = False
        self.turn = 0
        self.answer: Any = None
        self.error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return bool(self.body.dead)

    @property
    def can_go_on(self) -> bool:
        return self.waits_for is None and not self.is_parked and not self.is_done

    @property
    def part(self) -> PassPart:
        part = self.waits_for
        assert isinstance(part, PassPart)
        return part

    @property
    def draft_request(self) -> DraftRequest:
        """The tokens that it can decode: its draft, or the part that it waits for."""
        one = self.waits_for
        return one if isinstance(one, DraftRequest) else DraftRequest((), len(self.part.tokens))

    @property
    def reads(self) -> bool:
        """Whether it waits for a pass over a piece of its prompt, or has not begun."""
        part = self.waits_for
        if part is None:
            return not (self.body or self.body.dead)
        return isinstance(part, PassPart) and part.n_rows == 0

    @property
    def n_unread(self) -> int:
        """Number of tokens of its text that the model which reads does not have yet."""
        part, pair = self.part, self.pair
        end = pair.n_prompt - (0 if part.sequence is pair.target else pair.first.offset)
        return max(len(part.tokens), end - part.sequence.n_past)

    def suspend(self) -> Any:
        """Switch from its body to the scheduler; return the answer, or raise the error."""
        parent = self.body.parent
        assert parent
        parent.switch()
        error, self.error = self.error, None
        if error:
            raise error
        answer, self.answer = self.answer, None
        return answer

    def set_answer(self, answer: Any = None, error: Exception | None = None) -> None:
        """Set the answer; the task can be resumed from now on.

        Rows are copied for a task that rests, because others have passes before it has read them.
        """
        if self.rests and isinstance(answer, np.ndarray):
            answer = np.array(answer)
        self.waits_for, self.answer, self.error = None, answer, error


def mean_depth(tasks: Sequence[Task[S]]) -> int:
    return sum([task.pair.target.n_past for task in tasks]) // max(1, len(tasks))


class Side:
    """One of the two models: its context, the costs of its passes, and the passes of several tasks.

    Attributes:
        context: The context, whose sequences are the slots.
        base: Cost model of one sequence.
        costs: Costs of common passes.
        clock: Returns the time in seconds.
    """

    base: CostModel
    clock: Callable[[], float]
    context: ModelContext

    def __init__(
        self,
        context: ModelContext,
        base: CostModel,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.context, self.base, self.clock = context, base, clock
        most = len(context.sequences) if context.can_roll_back else 0
        self.costs: BatchCosts = BatchCosts(context.widest, most)

    def seconds(self, n: int, rows: int, n_past: int) -> float:
        return self.costs.seconds(self.base, n, rows, n_past)

    def pass_s(self, tasks: Sequence[Task[S]]) -> float:
        """Return the seconds of the passes that `run` makes for these tasks."""
        groups = [[len(task.part.tokens) for task in group] for group in self._groups(tasks)]
        return sum(self.seconds(len(one), max(one), mean_depth(tasks)) for one in groups)

    def reading_s(self, n: int, n_past: int) -> float:
        """Return the seconds of a pass that reads `n` tokens of one prompt."""
        return self.costs.reading_s(self.base, n, n_past)

    def n_in(self, seconds: float, n_past: int, most: int, grid: int) -> tuple[int, int]:
        """Return how many of `most` tokens can be read in some time, and the fewest of a piece.

        Pieces are whole blocks of rows. Where the ends of passes matter they end on the grid.
        """
        if self.reading_s(most, n_past) <= seconds:
            return most, most
        step = grid or _BLOCK
        sizes = range(step - (n_past % grid if grid else 0), most, step)
        n = bisect_right(sizes, seconds, key=lambda size: self.reading_s(size, n_past))
        return sizes[n - 1] if n else 0, sizes[0] if sizes else most

    def move_s(self) -> float:
        """Return the seconds to move a sequence: llama.cpp copies its whole cache.

        Copying reads and writes; a pass over one token reads the weights.
        """
        model = self.context
        share: float = 2 * model.cached_bytes * model.n_ctx / model.weight_bytes
        return share * self.base.seconds(1, 0)

    def run(self, tasks: Sequence[Task[S]]) -> None:
        groups = self._groups(tasks)
        for group in groups:
            self.run_one(group, holds=group is not groups[-1])
            # The next pass overwrites the rows.
            for task in group if group is not groups[-1] else ():
                task.answer = None if task.answer is None else np.array(task.answer)

    def _groups(self, tasks: Sequence[Task[S]]) -> list[list[Task[S]]]:
        """Divide tasks into common passes: all together, or each number of tokens by itself."""
        by_width = dict[int, list[Task[S]]]()
        for task in tasks:
            by_width.setdefault(len(task.part.tokens), []).append(task)
        if len(by_width) > 1:
            depth, widest = mean_depth(tasks), max(by_width)
            apart = sum(self.seconds(len(one), width, depth) for width, one in by_width.items())
            if self.seconds(len(tasks), widest, depth) < apart:
                by_width = {widest: list(tasks)}
        groups = []
        for width, some in by_width.items():
            at_once = max(1, self.costs.widest // width)
            groups += [some[i : i + at_once] for i in range(0, len(some), at_once)]
        return groups

    def run_one(self, tasks: Sequence[Task[S]], holds: bool = False) -> None:
        """Run one pass and answer its tasks; if it fails, run each of them alone.

        Args:
            tasks: The tasks.
            holds: Others have passes before the tasks go on.
        """
        parts, lost, widest, n_rows = [], [], 0, 0
        for task in tasks:
            part = task.part
            parts.append(part)
            # a pass that fails leaves the list as it is, and the sequence has another one then
            lost.append((part.sequence.cached, part.sequence.n_read))
            widest, n_rows = max(widest, len(part.tokens)), n_rows + part.n_rows
        depth, n_past = mean_depth(tasks), len(lost[0][0])
        started = self.clock()
        try:
            n = len(tasks)
            n_sequences = self.costs.best_n(self.base, n, widest, depth) if n > 1 else 0
            answers = self.context.decode(parts, n_sequences, holds)
        except DecodeError as error:
            for task, cache in zip(tasks, lost, strict=True):
                holds_too = holds or task is not tasks[-1]
                self._retry(task, *cache, error if len(tasks) == 1 else None, holds_too)
            return
        seconds = self.clock() - started
        if n_rows:
            self.costs.learn(self.base, self.context.n_decoded, widest, depth, seconds)
        elif len(parts) == 1:
            self.costs.learn_reading(self.base, widest, n_past, seconds)
        for task, rows in zip(tasks, answers, strict=True):
            task.set_answer(rows)

    def _retry(
        self, task: Task[S], lost: list[int], n_read: int, error: DecodeError | None, holds: bool
    ) -> None:
        """Read the tokens of a lost cache again and run a pass of one task alone."""
        part = task.part
        if error:
            task.set_answer(error=error)
            return
        try:
            self.context.refill(part.sequence, lost, n_read)
            rows = self.context.decode([part], 0, holds)[0]
            task.set_answer(np.array(rows))
        except DecodeError as alone:
            task.set_answer(error=alone)


# Longest time between two passes of the requests that decode, in seconds, if the user gives none.
MAX_GAP_S = 0.4
# Tokens; the least piece of a prompt, and the step of longer ones: kernels work on blocks of rows.
_BLOCK = 16
# Least time of reading between two of those passes, relative to theirs: where they alone take the
# longest time, prompts are read nevertheless.
_LEAST_READING = 0.5
# Longest piece while no request decodes, in longest times: a short prompt that comes waits for it.
_PIECE_ALONE = 4
# Share of the time of reading that the oldest prompt gets while shorter ones are read before it.
_OF_OLDEST = 0.25
# Time in which tasks that rest may compute, relative to the time of the passes; and in seconds,
# where there is no pass to run.
_COMPUTING, _COMPUTING_S = 0.5, 0.02


class _SharedBatch(SharedPasses):
    """Batch of the tasks while there are several."""

    is_alone = False

    def __init__(self, scheduler: Scheduler[S], side: Side, n: int) -> None:
        self._scheduler, self._costs, self.n = scheduler, side.costs, max(1, n)

    def learn(self, *_args: object, **_kwargs: object) -> None:
        """Learn nothing: the times are also those of the others."""

    def seconds(self, costs: CostModel, n: int, n_past: int) -> float:
        return self._costs.seconds(costs, self.n, n, n_past)

    def passes_s(self, costs: CostModel, first: int, n: int, n_past: int) -> list[float]:
        """Return the seconds of passes over `first`, `first` + 1, ... tokens, `n` values.

        The requests that draft share the time of the further rows.
        """
        passes_s = [self.seconds(costs, width, n_past) for width in range(first, first + n)]
        share = self._costs.drafting_share
        return [passes_s[0] + (one - passes_s[0]) / share for one in passes_s]

    def drafts_on(self, reaches: Sequence[float], chance: float) -> bool:
        """Return whether the running task drafts another token; the scheduler decides for all."""
        return bool(self._scheduler.agree(DraftRequest(reaches, chance=chance)))

    def agreed(self, reaches: Sequence[float], n: int) -> int:
        """Return the draft length on which the scheduler decides for all tasks."""
        del n
        return self._scheduler.agree(DraftRequest(reaches))


class Scheduler(Generic[S]):
    """Tasks and the slots that they use.

    Attributes:
        pairs: The slots.
        tasks: The running tasks, by arrival.
        on_lost: Called with free slots before their caches are overwritten.
    """

    pairs: list[SlotPair[S]]

    def __init__(
        self,
        pairs: Sequence[SlotPair[S]],
        target: Side,
        draft: Side | None,
        max_gap: float = MAX_GAP_S,
    ) -> None:
        """Prepare the slots.

        Args:
            pairs: The slots.
            target: Slots and costs of the target; its clock is that of the scheduler.
            draft: Those of the draft model, with as many slots; None without one.
            max_gap: Seconds between two passes of the requests that decode, at most, as far as
                pieces of prompts decide it.
        """
        self.target: Side = target
        self.draft: Side | None = draft
        self._max_gap, self._clock = max_gap, target.clock
        self.pairs = sorted(pairs, key=lambda one: one.target.index)
        for pair in self.pairs:
            pair.task, pair.used_at = None, 0
            for slot in pair.slots if draft else [pair.target]:
                slot.run = self._wait_for
        self.tasks: list[Task[S]] = []
        self.on_lost: Callable[[SlotPair[S]], None] = lambda _: None
        self._n_started = self._n_turns = 0
        self._running: Task[S] | None = None
        self._shared_by = -1  # for how many requests the slots are set; -1 where some read
        self._computing_s = _COMPUTING_S  # that are left; below 0 after a turn that took longer
        # Expected tokens of recent common passes, and those of plain decoding in the same time;
        # and seconds of drafting since the last such pass.
        self._emitted = self._plainly = self._drafting_s = 0.0
        # Since when requests wait for a pass with rows, and price of the pieces since then.
        self._passed_at, self._read_s = 0.0, 0.0
        # The oldest request that reads, and the time of reading that it has coming.
        self._oldest, self._owed_s = 0, 0.0

    # ---- tasks

    @property
    def free(self) -> list[SlotPair[S]]:
        return [pair for pair in self.pairs if pair.task is None]

    def is_of(self, costs: CostModel) -> bool:
        """Whether these are the costs of the target that its passes are chosen by."""
        return self.target.base is costs

    def forget(self) -> None:
        """Drop all tasks, and empty the caches of all slots."""
        self.tasks = []
        for pair in self.pairs:
            pair.task = None
        self._set_sharing()
        for slot in (slot for pair in self.pairs for slot in pair.slots):
            slot.forget()

    def start(self, pair: SlotPair[S], body: Callable[[], object]) -> Task[S]:
        """Start a task on free slots; it runs with the next step.

        `body` must not raise an exception.
        """
        from greenlet import greenlet

        self._n_started += 1
        task = Task(self._n_started, pair, greenlet(body))
        pair.task, pair.used_at = task, self._n_started
        self.tasks.append(task)
        self._set_sharing()
        return task

    def hold_rows(self) -> None:
        """Copy rows whose tasks have not read them, before passes of other code overwrite them."""
        for task in self.tasks:
            if isinstance(task.answer, np.ndarray):
                task.answer = np.array(task.answer)

    def park(self) -> None:
        """Suspend the running task until `is_parked` is cleared; called by its body."""
        task = self._the_running
        task.is_parked = True
        task.suspend()

    def yield_to_others(self) -> None:
        """Let others go on before the running task, which `rests`; called by its body."""
        task = self._the_running
        task.is_resting = True
        task.suspend()
        task.is_resting = False

    def agree(self, request: DraftRequest) -> int:
        """Return the draft length of the running task; called by its drafter.

        If the draft model can go on, return whether it drafts another token.
        """
        task = self._the_running
        task.waits_for = request
        return int(task.suspend())

    def _wait_for(self, part: PassPart) -> Logits:
        """Return the rows of a part of a pass; called by the slots of the running task."""
        task = self._running
        if task is None:  # not in a task: the caller has the turn
            return part.sequence.context.decode_one(part)
        part.sequence.check_room(part.tokens)
        task.waits_for = part
        rows: Logits = task.suspend()
        return rows

    @property
    def _the_running(self) -> Task[S]:
        assert self._running
        return self._running

    def _set_sharing(self) -> None:
        """Set the number of sharing requests in all slots."""
        active = [task for task in self.tasks if not task.is_parked]
        decoding = [task for task in active if not task.reads]
        together, reads = len(active) > 1, len(active) > len(decoding)
        if not reads and self._shared_by == len(active):
            return  # as before
        self._shared_by = -1 if reads else len(active)
        of_target, of_draft = (
            # Requests that read now decode soon, and then wait for the same passes.
            _SharedBatch(self, side, len(active)) if together and side else ALONE
            for side in (self.target, self.draft)
        )
        sides = [side for side in (self.target, self.draft) if side]
        # Tokens that a request hands over at once; `_next_piece` cuts them.
        most = [self._most_read(side, decoding) if reads else 0 for side in sides]
        for pair in self.pairs:
            pair.batches.target, pair.batches.draft = of_target, of_draft
            for slot, n in zip(pair.slots, most, strict=False):
                slot.most_read = n

    def _most_read(self, side: Side, decoding: Sequence[Task[S]]) -> int:
        """Return the most tokens of a piece beside these tasks; 0 for those of a whole pass."""
        whole, depth = side.context.reads_at_once, mean_depth(self.tasks)
        pass_s = self.target.seconds(len(decoding), 1, depth) if decoding else 0.0
        n, least = side.n_in(self._reading_s(pass_s, 0.0), depth, whole, 0)
        return 0 if n == whole else max(n, least)

    def _reading_s(self, pass_s: float, since_s: float) -> float:
        """Return the seconds that are left for reading before the next pass of other tasks.

        Args:
            pass_s: Seconds of the pass; 0 if no task decodes.
            since_s: Seconds since the last one.
        """
        if not pass_s:
            return _PIECE_ALONE * self._max_gap
        return max(self._max_gap - pass_s - since_s, _LEAST_READING * pass_s - self._read_s)

    # ---- steps

    def step(self) -> bool:
        """Resume all tasks that can go on, then run the next passes.

        Returns:
            Whether anything was done; False if there are no tasks or all are parked.
        """
        self._resume()
        started = self._clock()
        has_run = self._run()
        passed_s = _COMPUTING * (self._clock() - started) if has_run else _COMPUTING_S
        self._computing_s = min(0.0, self._computing_s) + passed_s
        return has_run or any(task.can_go_on for task in self.tasks)

    def _run(self) -> bool:
        """Run the next passes; return False if no task waits for one."""
        if self.draft and (drafting := self._waiting(self.draft, rows=True)):
            self.draft.run(drafting)
        elif offering := [task for task in self.tasks if isinstance(task.waits_for, DraftRequest)]:
            self._choose_lengths(offering)
        else:
            decoding = self._waiting(self.target, rows=True)
            reads = len(decoding) < len(self.tasks)
            if reads and (piece := self._next_piece(decoding)):
                self._read(*piece)
            elif decoding:
                self.target.run(decoding)
                self._passed_at, self._read_s = self._clock(), 0.0
            else:
                return False
        return True

    def _resume(self) -> None:
        for task in list(self.tasks):
            while task.can_go_on and not task.is_resting:
                self._switch(task)
        resting = [task for task in self.tasks if task.is_resting]
        while self._computing_s > 0 and (ready := [one for one in resting if one.can_go_on]):
            task = min(ready, key=lambda one: one.turn)
            self._n_turns += 1
            task.turn, started = self._n_turns, self._clock()
            self._switch(task)
            self._computing_s -= self._clock() - started
        if done := [task for task in self.tasks if task.is_done]:
            for task in done:
                task.pair.task = None
            self.tasks = [task for task in self.tasks if task not in done]
        self._close_gaps()
        self._set_sharing()

    def _switch(self, task: Task[S]) -> None:
        self._running = task
        try:
            task.body.switch()
        finally:
            self._running = None

    def _close_gaps(self) -> None:
        """Make the slots of the active tasks neighbours, if that pays."""
        active = [task for task in self.tasks if not task.is_parked]
        used = [task.pair.target.index for task in active]
        if not used or max(used) - min(used) < len(used) or not self.target.context.can_roll_back:
            return
        moved = moves(used, [pair.target.index for pair in self.free])
        depth = mean_depth(active)
        apart_s = sum(self.target.seconds(n, 1, depth) for n in runs(used))
        move_s = sum(side.move_s() for side in (self.target, self.draft) if side)
        if pays(apart_s, self.target.seconds(len(used), 1, depth), len(moved), move_s):
            for at, to in moved:
                self._move(self.pairs[at], self.pairs[to])

    def _move(self, pair: SlotPair[S], free: SlotPair[S]) -> None:
        self.on_lost(free)
        self.target.context.move(pair.target, free.target)
        if self.draft and pair.draft and free.draft:
            self.draft.context.move(pair.draft, free.draft)
        self.pairs = sorted(self.pairs, key=lambda one: one.target.index)

    def _waiting(self, side: Side | None, rows: bool) -> list[Task[S]]:
        """Return the tasks that wait for a pass of one model, with or without rows."""
        context = side.context if side else None
        return [
            task
            for task in self.tasks
            if context
            and isinstance(part := task.waits_for, PassPart)
            and bool(part.n_rows) == rows
            and part.sequence.context is context
        ]

    def _reader(self) -> tuple[Side, Task[S]] | None:
        """Return the task that reads next, and the model.

        It is the one with the shortest rest, or the oldest one if that has time coming.
        """
        found = [
            (side, task)
            for side in (self.target, self.draft)
            if side
            for task in self._waiting(side, rows=False)
        ]
        if not found:
            return None
        oldest = min(found, key=lambda one: one[1].number)
        if oldest[1].number != self._oldest:
            self._oldest, self._owed_s = oldest[1].number, 0.0
        if self._owed_s > 0:
            return oldest

        def rest_s(one: tuple[Side, Task[S]]) -> tuple[float, int]:
            side, task = one
            return side.reading_s(task.n_unread, task.part.sequence.n_past), task.number

        return min(found, key=rest_s)

    def _next_piece(self, decoding: Sequence[Task[S]]) -> tuple[Side, Task[S], int] | None:
        """Return the task that reads next, its model, and how many tokens of its part.

        None if no task reads, or if tasks that decode would wait too long; but between two of
        their passes at least one piece is read.
        """
        if not (reader := self._reader()):
            return None
        side, task = reader
        others = [one for one in self.tasks if not (one.is_parked or one.reads)]
        pass_s = (
            self.target.pass_s(decoding)
            if decoding
            else self.target.seconds(len(others), 1, mean_depth(others))
            if others
            else 0.0
        )
        since_s = max(self._clock() - self._passed_at, self._read_s)
        left_s = self._reading_s(pass_s, since_s)
        n, least = side.n_in(
            left_s,
            task.part.sequence.n_past,
            len(task.part.tokens),
            task.part.sequence.exactness.grid,
        )
        if not n and decoding and self._read_s:
            return None
        return side, task, n or least

    def _read(self, side: Side, task: Task[S], n: int) -> None:
        """Read the first `n` tokens of the part that a task waits for."""
        part = task.part
        price_s = side.reading_s(n, part.sequence.n_past)
        waits = any(not (one.is_parked or one.reads) for one in self.tasks)
        task.waits_for = part._replace(tokens=part.tokens[:n])
        side.run_one([task])
        if n < len(part.tokens) and not task.error:
            task.waits_for, task.answer = part._replace(tokens=part.tokens[n:]), None
        self._read_s += price_s
        if not waits:
            self._passed_at, self._read_s = self._clock(), price_s
        if task.number != self._oldest:
            self._owed_s += _OF_OLDEST * price_s
        else:  # what it read while it was the shortest, too, counts as one piece
            self._owed_s = max(self._owed_s, 0.0) - (1 - _OF_OLDEST) * price_s

    def _choose_lengths(self, offering: Sequence[Task[S]]) -> None:
        """Resume tasks that draft: those whose draft model goes on, or all with their lengths."""
        tasks = [*offering, *self._waiting(self.target, rows=True)]
        n, depth, requests = len(tasks), mean_depth(tasks), [task.draft_request for task in tasks]
        pass_s = cache(lambda rows: self.target.seconds(n, rows, depth))
        plain = n / pass_s(1)
        rate = plain * max(1.0, self._emitted / self._plainly if self._plainly else 0.0)
        if self.draft and any(one.chance for one in requests):
            n_read = sum(task.pair.draft.n_past for task in offering if task.pair.draft) // n
            draft_s = partial(self.draft.seconds, rows=1, n_past=n_read)
            drafting = best_drafting(requests, pass_s, draft_s, rate)
            self._drafting_s += draft_s(len(drafting)) if drafting else 0.0
            for i, (task, request) in enumerate(zip(offering, requests, strict=False)):
                if request.chance:
                    task.set_answer(i in drafting)
            return
        rows = common_rows(requests, pass_s, rate)
        emitted = sum(float(one.tokens(rows).sum()) for one in requests)
        self._emitted = _RATE_MEMORY * self._emitted + emitted
        self._plainly = _RATE_MEMORY * self._plainly + plain * (pass_s(rows) + self._drafting_s)
        self._drafting_s = 0.0
        self.target.costs.drafted(sum(bool(one.reaches) for one in requests), n)
        for task, request in zip(offering, requests, strict=False):
            task.set_answer(max(0, min(len(request.reaches), rows - request.n_pending)))


def moves(active: Sequence[int], free: Collection[int]) -> list[tuple[int, int]]:
    """Return the fewest moves after which the active sequences have consecutive ids.

    Args:
        active: Ids of the active sequences.
        free: Ids to which a sequence can be moved.

    Returns:
        Pairs of an active and a free id; empty if nothing need or can be moved.
    """
    places, n = {*active, *free}, len(active)
    windows = [
        window
        for low in sorted(places)
        if places.issuperset(window := range(low, low + n))
    ]  # fmt: skip
    if not active or not windows:
        return []
    best = max(windows, key=lambda window: (len(set(active).intersection(window)), -window[0]))
    outside = [i for i in sorted(active) if i not in best]
    return list(zip(outside, (i for i in best if i not in active), strict=True))


def runs(active: Sequence[int]) -> list[int]:
    """Return the lengths of the runs of consecutive ids."""
    ids = sorted(active)
    ends = [i for i in range(1, len(ids) + 1) if i == len(ids) or ids[i] != ids[i - 1] + 1]
    return [b - a for a, b in pairwise([0, *ends])]


def pays(apart_s: float, together_s: float, n_moves: int, move_s: float) -> bool:
    """Return whether moves take less time than the passes after them save.

    Args:
        apart_s: Seconds of a pass before the moves.
        together_s: Seconds of a pass after them.
        n_moves: Number of moves.
        move_s: Seconds of a move.
    """
    return n_moves * move_s < _PASSES * (apart_s - together_s)
