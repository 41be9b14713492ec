"""The cache of a model: the tokens that it holds, and how the last ones are dropped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import RollbackError
from .bindings import C
from .native_head import HiddenRows
from .recurrent_state import RecurrentState, RollbackCounts
from .sequence_state import least_cut, put_state, state_bytes, take_state
from .weights import Weights


class Cache(Weights):
    """A model with the tokens in the first sequence of its context.

    Attributes:
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
    threads: int
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
        return self._cached or []

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
        """Take over the first sequence, which other code has changed.

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
        """Empty the first sequence, or the whole cache if the first is the only one."""
        if self.recurrent:
            self.recurrent.reset(0)
        if self.hidden:
            self.hidden.cut(0)
        if self.options.parallel > 1:
            self.native.cache(C.llama_memory_seq_rm, 0, -1, -1)
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
            recurrent or native.cache(C.llama_memory_seq_rm, 0, at, -1)
        ):
            self._cached = cached
            raise RollbackError(self.path.name, len(cached), n)
        self.n_read = min(self.n_read, n)
        del cached[n:]
        self._cached = cached

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
        return state_bytes(self, 0) if self.cached else 0

    def state(self) -> NDArray[np.uint8]:
        """Return the serialised cache of llama.cpp; an empty array for an empty cache."""
        self._settle()
        return take_state(self, 0) if self.state_bytes() else np.empty(0, dtype=np.uint8)

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
        if put_state(self, 0, state, self.position(len(tokens))):
            if self.recurrent:
                self.recurrent.reset(len(tokens))
            self.adopt(tokens, n_read, least_cut(self, len(tokens)))
            return True
        self._start_over(data=True)
        return False
