"""Passes of one model for several tasks: which of them share a pass, and what a pass costs.

A pass that fails is run again for each task alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ..errors import DecodeError
from ..llama.slots import Slots
from .company import CompanyCosts
from .cost_model import CostModel
from .task import Task, mean_depth


class Side:
    """One of the two models: its slots, the costs of its passes, and the passes of several tasks.

    Attributes:
        slots: The slots.
        base: Cost model of one sequence.
        costs: Costs of common passes.
    """

    def __init__(self, slots: Slots, base: CostModel) -> None:
        self.slots, self.base = slots, base
        most = len(slots.all) if slots.model.can_roll_back else 0
        self.costs = CompanyCosts(slots.widest, most)

    def n_sequences(self, tasks: Sequence[Task]) -> int:
        """Return the number of sequences with which a pass of these tasks is fastest."""
        width = max(len(task.part.tokens) for task in tasks)
        return self.costs.best_n(self.base, len(tasks), width, mean_depth(tasks))

    def seconds(self, n: int, rows: int, n_past: int) -> float:
        """Return the seconds to decode `rows` tokens of each of `n` sequences."""
        return self.costs.seconds(self.base, n, rows, n_past)

    def move_s(self) -> float:
        """Return the seconds to move a sequence: llama.cpp copies its whole cache.

        Copying reads and writes; a pass over one token reads the weights.
        """
        model = self.slots.model
        share: float = 2 * model.cached_bytes * model.n_ctx / model.weight_bytes
        return share * self.base.seconds(1, 0)

    def run(self, tasks: Sequence[Task]) -> None:
        """Run the passes that tasks wait for, as common ones, and answer the tasks."""
        groups = self._groups(tasks)
        for group in groups:
            self.run_one(group)
            # The next pass overwrites the rows.
            for task in group if group is not groups[-1] else ():
                task.answer = None if task.answer is None else np.array(task.answer)

    def _groups(self, tasks: Sequence[Task]) -> list[list[Task]]:
        """Divide tasks into common passes: all together, or each number of tokens by itself."""
        depth, by_width = mean_depth(tasks), dict[int, list[Task]]()
        for task in tasks:
            by_width.setdefault(len(task.part.tokens), []).append(task)
        apart = sum(self.seconds(len(one), width, depth) for width, one in by_width.items())
        widest = max(by_width)
        if len(by_width) > 1 and self.seconds(len(tasks), widest, depth) < apart:
            by_width = {widest: list(tasks)}
        groups = []
        for width, some in by_width.items():
            at_once = max(1, self.costs.widest // width)
            groups += [some[i : i + at_once] for i in range(0, len(some), at_once)]
        return groups

    def run_one(self, tasks: Sequence[Task]) -> None:
        """Run one pass and answer its tasks; if it fails, run each of them alone."""
        parts = [task.part for task in tasks]
        lost = [([*part.slot.cached], part.slot.n_read) for part in parts]
        started = time.perf_counter()
        try:
            answers = self.slots.decode(parts, self.n_sequences(tasks) if len(tasks) > 1 else 0)
        except DecodeError as error:
            for task, cache in zip(tasks, lost, strict=True):
                self._retry(task, *cache, error if len(tasks) == 1 else None)
            return
        seconds = time.perf_counter() - started
        if any(part.n_rows for part in parts):
            widest = max(len(part.tokens) for part in parts)
            n = self.slots.n_decoded
            self.costs.learn(self.base, n, widest, mean_depth(tasks), seconds)
        for task, rows in zip(tasks, answers, strict=True):
            task.set_answer(rows)

    def _retry(self, task: Task, lost: list[int], n_read: int, error: DecodeError | None) -> None:
        """Read the tokens of a lost cache again and run a pass of one task alone."""
        part = task.part
        if error:
            task.set_answer(error=error)
            return
        try:
            self.slots.refill(part.slot, lost, n_read)
            rows = self.slots.decode([part])[0]
            task.set_answer(np.array(rows))
        except DecodeError as alone:
            task.set_answer(error=alone)
