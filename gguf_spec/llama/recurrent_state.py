"""State of recurrent layers, and how the last tokens of a context are dropped from it.

Such a state cannot be computed backwards. llama.cpp offers two ways to restore an earlier one:

- Snapshots (`n_rs_seq`): the states after the last tokens of each pass are kept. They serve one
  rollback, up to the next pass, and reach back into the last pass only.
- Checkpoints: a copy of the state, taken before a pass. Tokens after it must be decoded again.

A rollback is therefore postponed until the next pass. Several rollbacks become one, and only the
last position counts.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import DecodeError
from .bindings import C
from .native import Native

# flag of llama.cpp: only the states, not the keys and values of attention layers
_PARTIAL_ONLY = 1


class RollbackCounts(NamedTuple):
    """Number of times that a state was restored.

    Attributes:
        snapshots: From a snapshot.
        checkpoints: From a checkpoint.
        copies: Number of checkpoints that were taken.
    """

    snapshots: int = 0
    checkpoints: int = 0
    copies: int = 0


class _Checkpoint(NamedTuple):
    """A copy of the state after `n` tokens; empty for no tokens."""

    n: int
    state: NDArray[np.uint8]


class RecurrentState:
    """The state of one sequence of a context.

    Attributes:
        n_snapshots: Number of tokens that a snapshot can drop.
        counts: How often the state was restored.
    """

    def __init__(self, native: Native, n_snapshots: int, sequence: int = 0) -> None:
        self._native, self.n_snapshots, self._sequence = native, n_snapshots, sequence
        self.counts = RollbackCounts()
        self.reset(0)

    def reset(self, n: int) -> None:
        """Take the cache to hold `n` tokens, of which none can be dropped."""
        # tokens in llama.cpp's cache, and the fewest that a snapshot can restore
        self._n, self._least = n, n
        # before the last verification (False), and at a place to which a later request may return
        self._saved: dict[bool, _Checkpoint] = {}

    def nearest(self, to: int) -> int | None:
        """Return the most tokens, up to `to`, whose state can be restored; None if there are none.

        A result below `to` means that the tokens after it must be decoded again.
        """
        if self._least <= to:
            return to
        return max((one.n for one in self._saved.values() if one.n <= to), default=None)

    def settle(self, n: int) -> None:
        """Carry out a postponed rollback to `n` tokens, a result of `nearest`."""
        if n == self._n:
            return
        counts = self.counts
        if n >= self._least:
            self.counts = counts._replace(snapshots=counts.snapshots + 1)
        else:
            state = next(one.state for one in self._saved.values() if one.n == n)
            if len(state) and not self._native.context(
                C.llama_state_seq_set_data_ext,
                bytes_of(state),
                len(state),
                self._sequence,
                _PARTIAL_ONLY,
            ):
                raise DecodeError(-1, self._n, 0, "it cannot restore the copy of a state")
            self.counts = counts._replace(checkpoints=counts.checkpoints + 1)
        if not self._native.cache(C.llama_memory_seq_rm, self._sequence, n or -1, -1):
            raise DecodeError(-1, n, 0, "it cannot restore a state")
        self._n = self._least = n
        # without those whose text is no longer in the cache
        self._saved = {key: one for key, one in self._saved.items() if one.n <= n}

    def prepare(self, n_dropped: int) -> None:
        """Take a checkpoint if the next pass may drop more tokens than snapshots can."""
        if n_dropped > self.n_snapshots:
            self.hold(lasting=False)

    def hold(self, lasting: bool) -> None:
        """Take a checkpoint.

        Args:
            lasting: Keep it until another lasting one is taken; else until the next checkpoint.
        """
        saved = next((one for one in self._saved.values() if one.n == self._n), None)
        if not saved:
            native, state = self._native, np.empty(0, dtype=np.uint8)
            if self._n:
                at = self._sequence
                size = native.context(C.llama_state_seq_get_size_ext, at, _PARTIAL_ONLY)
                state = np.empty(size, dtype=np.uint8)
                get = C.llama_state_seq_get_data_ext
                n = native.context(get, bytes_of(state), size, at, _PARTIAL_ONLY)
                state = state[:n]
            self.counts = self.counts._replace(copies=self.counts.copies + 1)
            saved = _Checkpoint(self._n, state)
        self._saved[lasting] = saved

    def pass_of_others(self) -> None:
        """Forget the snapshots: a pass of other sequences may have moved the state."""
        self._least = self._n

    def passed(self, n: int) -> None:
        """Count the tokens of a pass; its last tokens have snapshots."""
        before, self._n = self._n, self._n + n
        self._least = max(before + 1, self._n - self.n_snapshots)


def bytes_of(values: NDArray[np.uint8]) -> object:
    """Return a pointer to the first of some bytes, for llama.cpp."""
    return values.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
