"""The cache of one sequence: the tokens that it holds, how the last ones are dropped, its state.

A state is the cache as bytes in host memory. It has the bits of the cache, so a sequence that is
put back continues as if it had stayed. Two things need care:

- llama.cpp copies one sequence to another with the next pass. A state that is taken earlier would
  have the old contents, and a state that is put back earlier would be overwritten. A pass over one
  token is run first where a copy is pending.
- Of layers with sliding-window attention a state has only the tokens in the window of the last one.
  A shorter prefix would miss tokens there, so such a cache is cut to nothing or not at all.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits
from ..errors import RollbackError
from .bindings import C
from .native_head import HiddenRows
from .recurrent_state import RecurrentState, RollbackCounts
from .weights import Weights


class Cache(Weights):
    """A model with one sequence of its context, which is the slot of a request.

    Attributes:
        index: Id of the sequence in llama.cpp.
        run: Decodes a `Part` in a pass with other sequences; None if passes are of this one only.
        most_read: Most prompt tokens that one prefill pass may decode, because other sequences are
            decoded meanwhile; 0 without a limit.
        n_ctx: Capacity, in positions; that of each sequence if there are several.
        n_read: Length of the prefix that was decoded by prefill passes, on the grid.
        least_cut: Shortest prefix, above 0, to which the cache can be cut.
        threads: Threads of the last pass.
        busy_s: Seconds spent inside llama.cpp since loading.
        recurrent: State of the recurrent layers; None without such layers, or with several
            sequences.
        hidden: Rows for a prediction head; None without one.
    """

    n_ctx: int
    grid: int
    threads: int
    index = 0
    run: Callable[[Any], Logits] | None = None
    most_read = 0
    n_read = least_cut = 0
    busy_s = 0.0
    recurrent: RecurrentState | None = None
    hidden: HiddenRows | None = None
    _why_untrusted = ""
    # None while the contents are unknown
    _cached: list[int] | None = None

    @property
    def why_plain(self) -> str:
        """Reason why nothing can be drafted for this model or by it; empty if it can."""
        if self.can_roll_back or self.recurrent:
            return self._why_untrusted
        needs = "on workers" if self.options.rpc else "with parallel requests"
        return f"{self.path.name} is recurrent or hybrid, and its state is not restored {needs}"

    @property
    def free_rollback(self) -> int:
        """Most tokens that a rollback drops without dropping others, to be decoded again."""
        return self.recurrent.n_snapshots if self.recurrent else self.n_ctx

    @property
    def rollback_counts(self) -> RollbackCounts:
        """How often the state of recurrent layers was restored."""
        return self.recurrent.counts if self.recurrent else RollbackCounts()

    def distrust(self, why: str) -> None:
        """Draft nothing any more, because a test of the rollback failed."""
        self._why_untrusted = why

    @property
    def cached(self) -> list[int]:
        """Ids of the tokens in the cache, position by position."""
        if self._cached is None:
            self._start_over()
        assert self._cached is not None
        return self._cached

    @property
    def n_past(self) -> int:
        """Number of tokens in the cache."""
        return len(self.cached)

    @property
    def n_cached(self) -> int:
        """Number of tokens in the cache; 0 during a pass. For other threads: it changes nothing."""
        return len(self._cached or ())

    def position(self, n: int) -> int:
        """Return llama.cpp's position of the token after the first `n` cached ones."""
        return n

    def adopt(self, cached: Sequence[int], n_read: int, least_cut: int) -> None:
        """Take over the sequence, which other code has changed.

        Args:
            cached: Ids of its cached tokens.
            n_read: Length of the prefix that prefill passes decoded, on the grid.
            least_cut: Shortest prefix, above 0, to which the cache can be cut.
        """
        self._cached, self.n_read, self.least_cut = [*cached], n_read, least_cut

    def _in_doubt(self) -> list[int]:
        """Return the cached tokens and mark the cache as unknown until `_cached` is set."""
        cached, self._cached = self.cached, None
        return cached

    def _start_over(self, data: bool = False) -> None:
        """Empty a cache with unknown contents, after an exception during a change.

        Args:
            data: Whether to erase the memory of the cache, too.
        """
        native = self.native
        native.context(C.llama_synchronize)
        self._clear(data)
        native.context(C.llama_set_n_threads, self.threads, self.threads)
        self.n_read = self.least_cut = 0
        self._cached = []

    def _clear(self, data: bool) -> None:
        """Empty the sequence, or the whole cache if it is the only one."""
        if self.recurrent:
            self.recurrent.reset(0)
        if self.hidden:
            self.hidden.cut(0)
        if self.options.parallel > 1:
            self.native.cache(C.llama_memory_seq_rm, self.index, -1, -1)
        else:
            self.native.cache(C.llama_memory_clear, data)

    def rollback(self, to: int) -> None:
        """Drop all cached tokens after the first `to`.

        A shorter cache does not change. A model with recurrent layers may drop more tokens, which
        must then be decoded again.

        Raises:
            RollbackError: The model cannot drop part of its cache. The cache is unchanged.
        """
        if to >= self.n_past:
            return
        recurrent = self.recurrent
        n = recurrent.nearest(to) if recurrent and to else to
        if n is None:
            raise RollbackError(self.path.name, self.n_past, to)
        native, at, cached = self.native, self.position(n), self._in_doubt()
        if self.hidden:
            self.hidden.cut(to)
        if n == 0:
            self._clear(data=False)
            self.least_cut = 0
        elif n < self.least_cut or not (
            recurrent or native.cache(C.llama_memory_seq_rm, self.index, at, -1)
        ):
            self._cached = cached
            raise RollbackError(self.path.name, len(cached), n)
        self.n_read = min(self.n_read, n)
        del cached[n:]
        self._cached = cached

    def forget(self) -> None:
        """Empty the sequence, whatever is in it."""
        self._start_over()

    def copy_from(self, other: Cache) -> None:
        """Replace the cache by a copy of another sequence's."""
        self.rollback(0)
        self.native.copy_sequence(other.index, self.index)
        self.adopt(other.cached, other.n_read, other.least_cut)

    def hold(self, lasting: bool = False) -> None:
        """Make it possible to roll back to the present number of tokens.

        Models that can roll back to any number do nothing.

        Args:
            lasting: Until the next call with `lasting`; else until the next pass with several rows,
                or the next call.
        """
        if self.recurrent:
            started, cached = time.perf_counter(), self._in_doubt()
            self.recurrent.settle(len(cached))
            self.recurrent.hold(lasting)
            self._cached = cached
            self.busy_s += time.perf_counter() - started

    def _settle(self) -> None:
        """Carry out a postponed rollback."""
        if self.recurrent and self.n_past:
            cached = self._in_doubt()
            self.recurrent.settle(len(cached))
            self._cached = cached

    # ---- states

    def finish_copies(self) -> bool:
        """Carry out postponed copies of sequences; return False if that is not possible now."""
        return True

    @property
    def least_cut_of_state(self) -> int:
        """Value of `least_cut` after the present state was restored."""
        return least_cut(self, self.n_past)

    def state_bytes(self) -> int:
        """Return the approximate size of `state`, in bytes."""
        self._settle()
        return state_bytes(self, self.index) if self.cached else 0

    def state(self) -> NDArray[np.uint8]:
        """Return the serialised cache of llama.cpp; an empty array for an empty cache."""
        return take_state(self, self.index) if self.state_bytes() else np.empty(0, dtype=np.uint8)

    def restore(self, tokens: Sequence[int], n_read: int, state: Any) -> bool:
        """Restore the cache from a serialised state.

        Args:
            tokens: The token ids that were in the cache when `state` was called.
            n_read: Number of tokens at the start that were decoded by prefill passes.
            state: The result of `state`, or its bytes.

        Returns:
            Whether llama.cpp accepted the state. If not, the cache is empty.
        """
        self.rollback(0)
        if not tokens or len(tokens) > self.n_ctx:
            return not tokens
        self._in_doubt()
        if put_state(self, self.index, state, self.position(len(tokens))):
            if self.recurrent:
                self.recurrent.reset(len(tokens))
            self.adopt(tokens, n_read, least_cut(self, len(tokens)))
            return True
        self._start_over(data=True)
        return False


_BYTES = ctypes.POINTER(ctypes.c_uint8)


def state_bytes(model: Cache, sequence: int) -> int:
    """Return the approximate size of the state of a sequence, in bytes; 0 if it has none."""
    if not model.finish_copies():
        return 0
    return int(model.native.context(C.llama_state_seq_get_size, sequence))


def take_state(model: Cache, sequence: int) -> NDArray[np.uint8]:
    """Return the state of a sequence; an empty array if llama.cpp cannot give it.

    Raises:
        MemoryError: There is not enough memory for it.
    """
    state: NDArray[np.uint8] = np.empty(state_bytes(model, sequence), dtype=np.uint8)
    if len(state):
        pointer = state.ctypes.data_as(_BYTES)
        n = model.native.context(C.llama_state_seq_get_data, pointer, len(state), sequence)
        state = state[:n]
    return state


def put_state(model: Cache, sequence: int, state: Any, n_tokens: int) -> bool:
    """Put a state into a sequence, whose cache is empty.

    Args:
        model: The model.
        sequence: Id of the sequence in llama.cpp.
        state: The state, as bytes or an array.
        n_tokens: Number of its tokens.

    Returns:
        Whether llama.cpp accepted it. If not, the cache has unknown contents.
    """
    if not model.finish_copies():
        return False
    native, buffer = model.native, np.frombuffer(state, dtype=np.uint8)
    pointer = buffer.ctypes.data_as(_BYTES)
    n = native.context(C.llama_state_seq_set_data, pointer, len(buffer), sequence)
    return bool(n) and native.cache(C.llama_memory_seq_pos_max, sequence) == n_tokens - 1


def least_cut(model: Cache, n_tokens: int) -> int:
    """Return the shortest prefix, above 0, to which a state can be cut after it was put back.

    It is 0 where a state has all its tokens in all layers.
    """
    n_window = model.native.model(C.llama_model_n_swa)
    return n_tokens if 0 < n_window < n_tokens else 0
