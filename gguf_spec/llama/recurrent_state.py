"""State of recurrent layers, and how the last tokens of a context are dropped from it.

Such a state cannot be computed backwards. llama.cpp offers two ways to restore an earlier one:

- Snapshots (`n_rs_seq`): the states after the last tokens of each pass are kept. They serve one
  rollback, up to the next pass, and reach back into the last pass only.
- Checkpoints: a copy of the state, taken before a pass. Tokens after it must be decoded again.

A rollback is therefore postponed until the next pass. Several rollbacks become one, and only the
last position counts.

Checkpoints are also kept along the text, at the end of a prompt and every `SPACING` tokens of it: a
prompt that begins like the last one is read from the last of them before the first other token. In
a limited memory they lie the closer together, the nearer they are to the end. What is read again
for nothing then is at most a multiple of what must be read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import DecodeError
from .bindings import C
from .native import Native

# flag of llama.cpp: only the states, not the keys and values of attention layers
PARTIAL_ONLY = 1
# tokens between two checkpoints of a prompt
SPACING = 256


class RollbackCounts(NamedTuple):
    """Number of times that a state was restored.

    Attributes:
        copies: Number of checkpoints that were taken.
    """

    snapshots: int = 0
    checkpoints: int = 0
    copies: int = 0


class Checkpoint(NamedTuple):
    """A copy of the state after `n` tokens; empty for no tokens."""

    n: int
    state: NDArray[np.uint8]


class RecurrentState:
    """The state of one sequence of a context.

    Attributes:
        n_snapshots: Number of tokens that a snapshot can drop.
        counts: How often the state was restored.
        kept: The checkpoints that are kept along the text, by their positions.
        limit: Largest memory of `kept`, in bytes, without that of the last lasting one.
        spacing: Number of tokens between two of `kept`, at least.
    """

    kept: list[Checkpoint]
    counts: RollbackCounts
    limit: int
    n_snapshots: int
    spacing: int = SPACING

    def __init__(self, native: Native, n_snapshots: int, index: int = 0) -> None:
        self._native, self.n_snapshots, self._index = native, n_snapshots, index
        self.counts, self.limit = RollbackCounts(), 0
        self.reset(0)

    def reset(self, n: int, kept: Sequence[Checkpoint] = ()) -> None:
        """Take the cache to hold `n` tokens, of which none can be dropped without a checkpoint."""
        # tokens in llama.cpp's cache, and the fewest that a snapshot can restore
        self._n, self._least = n, n
        # before the last verification, and the position of the last lasting checkpoint
        self._before: Checkpoint | None = None
        self.kept, self._lasting = [*kept], -1

    @property
    def n_bytes(self) -> int:
        """Memory of the kept checkpoints. It may be called from any thread."""
        return sum(one.state.nbytes for one in self.kept)

    @property
    def _all(self) -> list[Checkpoint]:
        return [*self.kept, *([self._before] if self._before else [])]

    def nearest(self, to: int) -> int | None:
        """Return the most tokens, up to `to`, whose state can be restored; None if there are none.

        A result below `to` means that the tokens after it must be decoded again.
        """
        if self._least <= to:
            return to
        return max((one.n for one in self._all if one.n <= to), default=None)

    def settle(self, n: int) -> None:
        """Carry out a postponed rollback to `n` tokens, a result of `nearest`."""
        if n == self._n:
            return
        counts = self.counts
        if n >= self._least:
            self.counts = counts._replace(snapshots=counts.snapshots + 1)
        else:
            state = next(one.state for one in self._all if one.n == n)
            put, index = C.llama_state_seq_set_data_ext, self._index
            if len(state) and not self._native.context(
                put, bytes_of(state), len(state), index, PARTIAL_ONLY
            ):
                raise DecodeError(-1, self._n, 0, "it cannot restore the copy of a state")
            self.counts = counts._replace(checkpoints=counts.checkpoints + 1)
        if not self._native.cache(C.llama_memory_seq_rm, self._index, n or -1, -1):
            raise DecodeError(-1, n, 0, "it cannot restore a state")
        self._n = self._least = n
        # without those whose text is no longer in the cache
        self.kept = [one for one in self.kept if one.n <= n]
        self._before = self._before if self._before and self._before.n <= n else None

    def prepare(self, n_dropped: int) -> None:
        """Take a checkpoint if the next pass may drop more tokens than snapshots can."""
        if n_dropped > self.n_snapshots:
            self.hold(lasting=False)

    def hold(self, lasting: bool) -> None:
        """Take a checkpoint.

        Args:
            lasting: Keep it until another lasting one is taken; else until the next checkpoint.
        """
        if lasting:
            self._lasting = self._n
            self._keep()
        else:
            self._before = self._copy()

    def keep(self) -> None:
        """Take a checkpoint along the text if the last one is far enough before it."""
        last = self.kept[-1].n if self.kept else 0
        if self.limit and self._n - last >= self.spacing:
            self._keep()

    def _keep(self) -> None:
        """Take a checkpoint, and drop those for which there is no room."""
        one = self._copy()
        kept = [*(other for other in self.kept if other.n != one.n), one]
        while True:
            free = [i for i, other in enumerate(kept) if other.n != self._lasting]
            if sum(kept[i].state.nbytes for i in free) <= self.limit:
                break
            del kept[least_needed([other.n for other in kept], free, self.spacing)]
        self.kept = kept

    def _copy(self) -> Checkpoint:
        for one in self._all:
            if one.n == self._n:
                return one
        native, index, state = self._native, self._index, np.empty(0, dtype=np.uint8)
        if self._n:
            size = native.context(C.llama_state_seq_get_size_ext, index, PARTIAL_ONLY)
            state = np.empty(size, dtype=np.uint8)
            get = C.llama_state_seq_get_data_ext
            n = native.context(get, bytes_of(state), size, index, PARTIAL_ONLY)
            state = state[:n]
        self.counts = self.counts._replace(copies=self.counts.copies + 1)
        return Checkpoint(self._n, state)

    def pass_of_others(self) -> None:
        """Drop the snapshots: a pass of other sequences may have moved the state."""
        self._least = self._n

    def passed(self, n: int) -> None:
        """Count the tokens of a pass; its last tokens have snapshots."""
        before, self._n = self._n, self._n + n
        self._least = max(before + 1, self._n - self.n_snapshots)


def least_needed(positions: Sequence[int], free: Sequence[int], spacing: int = SPACING) -> int:
    """Return the index of the checkpoint without which the least must be read again.

    A text that changes just before the next checkpoint is read from the one before: more by the
    gap, relative to what must be read in any case. The last checkpoint is dropped last.

    Args:
        positions: Positions of the checkpoints, ascending.
        free: Indices of those that may be dropped.
        spacing: Number of tokens between two checkpoints, at least.
    """
    ends = [0, *positions]

    def loss(i: int) -> float:
        if i + 1 == len(positions):
            return float("inf")
        return (positions[i + 1] - ends[i]) / (positions[-1] - positions[i + 1] + spacing)

    return min(free, key=loss)


def bytes_of(values: NDArray[np.uint8]) -> object:
    """Return a pointer to the first of some bytes, for llama.cpp."""
    return values.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
