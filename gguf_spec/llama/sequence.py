"""A sequence of a llama.cpp context: decode tokens, read logits, roll the cache back.

llama.cpp aborts the process on a batch that is too long, so batch sizes are checked here first.

A state is the cache of a sequence as bytes in host memory. It has the bits of the cache, so a
sequence that is put back continues as if it had stayed. Two things need care:

- llama.cpp copies one sequence to another with the next pass. A state that is taken earlier would
  have the old contents, and a state that is put back earlier would be overwritten. A pass over one
  token is run first where a copy is pending.
- Of layers with sliding-window attention a state has only the tokens in the window of the last one.
  A shorter prefix would miss tokens there, so such a cache is cut to nothing or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits
from ..errors import DecodeError, InvalidOptionError, RollbackError
from ..options import K_MAX, require
from ..passes import Exactness, PassPart
from . import own_kernels
from .bindings import C
from .native import Native
from .native_head import HiddenRows
from .recurrent_state import RecurrentState, bytes_of

if TYPE_CHECKING:
    from pathlib import Path

    from ..gguf.validation import ModelFile
    from .context import Context
    from .options import ContextOptions
    from .weights import Weights


class CachedSequence:
    """A sequence of a context: its cached tokens, and passes over the tokens after them.

    Attributes:
        index: Id of the sequence in llama.cpp.
        run: Decodes a part; the pass may have parts of other sequences.
        n_ctx: Capacity, in positions.
        most_read: Most prompt tokens that one prefill pass may decode, because other sequences are
            decoded at the same time; 0 without a limit.
        n_read: Length of the prefix that was decoded by prefill passes, on the grid.
        least_cut: Shortest prefix, above 0, to which the cache can be cut.
        busy_s: Seconds spent inside llama.cpp since loading.
        recurrent: State of the recurrent layers; None without such layers, or on workers.
        hidden: Rows for a prediction head; None without one.
        weight_bytes: Size of the weights, adapters and a projector included.
        cached_bytes: Size of one token in the cache.
        depth_costs: Tokens in a pass -> extra seconds per cached token. Empty without a
            measurement.
    """

    cached_bytes: float
    can_roll_back: bool
    file: ModelFile
    n_ctx: int
    n_vocab: int
    options: ContextOptions
    path: Path
    start: int
    weight_bytes: int
    weights: Weights
    run: Callable[[PassPart], Logits]
    index: int = 0
    most_read: int = 0
    n_read: int = 0
    least_cut: int = 0
    busy_s: float = 0.0
    recurrent: RecurrentState | None = None
    hidden: HiddenRows | None = None
    depth_costs: Mapping[int, float] = MappingProxyType({})
    # None while the contents are unknown
    _cached: list[int] | None

    def __init__(self, context: Context, index: int = 0) -> None:
        """Begin an empty sequence of an open context."""
        self.context: Context = context
        self.weights, self.index = context.weights, index
        self.run, self._cached = context.decode_one, []
        self.file, self.path = self.weights.file, self.weights.path
        self.options, self.can_roll_back = self.weights.options, self.weights.can_roll_back
        self.n_vocab, self.start = self.weights.n_vocab, self.weights.start
        self.n_ctx = context.n_ctx
        self.weight_bytes, self.cached_bytes = context.weight_bytes, context.cached_bytes
        self.flash_attention: str = context.flash_attention
        self.slow_first_pass: bool = context.slow_first_pass

    def is_end(self, token: int) -> bool:
        return self.weights.is_end(token)

    @property
    def n_ctx_limit(self) -> int | None:
        """Longest context that the model can have here; None if unknown."""
        return self.weights.n_ctx_limit

    @property
    def native(self) -> Native:
        """The native objects of llama.cpp; an error if they are closed."""
        return self.weights.native

    @property
    def kernels(self) -> Any:
        """The library of the own kernels; None where those of llama.cpp are used."""
        return own_kernels.library() if own_kernels.in_use().name else None

    @property
    def label(self) -> str:
        return self.path.name

    @property
    def exactness(self) -> Exactness:
        """Which passes give a row the same bits."""
        return self.context.exactness

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of the weights and caches, in bytes."""
        return round(self.weight_bytes + self.options.parallel * self.cached_bytes * self.n_ctx)

    @property
    def reads_at_once(self) -> int:
        """Prompt tokens that one prefill pass decodes.

        Where the ends of passes matter, it is a multiple of their grid.
        """
        most, whole, grid = self.most_read, self.context.reads_at_once, self.exactness.grid
        if grid and most:
            most = max(grid, most - most % grid)
        return min(most, whole) if most else whole

    def close(self) -> None:
        """Release the native memory of the model; further calls have no effect."""
        self.context.close()

    # ---- the cache

    @property
    def why_plain(self) -> str:
        """Reason why nothing can be drafted for this model or by it; empty if it can."""
        alone = self.options.parallel == 1
        if self.can_roll_back or (self.recurrent and (alone or self.recurrent.n_snapshots)):
            return self.context.why_untrusted
        needs = "on workers" if self.options.rpc else "with parallel requests"
        return f"{self.path.name} is recurrent or hybrid, and its state is not restored {needs}"

    @property
    def free_rollback(self) -> int:
        """Most tokens that a rollback drops without dropping others, to be decoded again."""
        return self.recurrent.n_snapshots if self.recurrent else self.n_ctx

    @property
    def cached(self) -> list[int]:
        """Ids of the tokens in the cache, position by position."""
        cached = self._cached
        if cached is None:
            self.forget()
            cached = self._cached
            assert cached is not None
        return cached

    @property
    def n_past(self) -> int:
        """Number of tokens in the cache."""
        cached = self._cached
        return len(self.cached if cached is None else cached)

    @property
    def n_cached(self) -> int:
        """Number of tokens in the cache; 0 during a pass. For other threads: it changes nothing."""
        return len(self._cached or ())

    def position(self, n: int) -> int:
        """Return llama.cpp's position of the token after the first `n` cached ones."""
        return n

    def adopt(self, cached: Sequence[int], n_read: int, least_cut: int) -> None:
        """Take over the sequence, which other code has changed."""
        self._cached, self.n_read, self.least_cut = [*cached], n_read, least_cut

    def take_cached(self) -> list[int]:
        """Return the cached tokens; the contents of the cache are unknown until `put_cached`."""
        cached, self._cached = self.cached, None
        return cached

    def put_cached(self, cached: list[int]) -> None:
        self._cached = cached

    def forget(self, data: bool = False) -> None:
        """Empty the sequence, also after an error.

        Args:
            data: Whether to erase the memory of the cache, too.
        """
        native, threads = self.native, self.context.threads
        native.context(C.llama_synchronize)
        self._clear(data)
        native.context(C.llama_set_n_threads, threads, threads)
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
        native, at, cached = self.native, self.position(n), self.take_cached()
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

    def copy_from(self, other: CachedSequence) -> None:
        self.rollback(0)
        cached = other.cached  # empties one with unknown contents
        self.native.has_copies = True  # until the next pass
        self.native.cache(C.llama_memory_seq_cp, other.index, self.index, -1, -1)
        self.adopt(cached, other.n_read, other.least_cut)

    def hold(self, lasting: bool = False) -> None:
        """Make it possible to roll back to the present number of tokens.

        Models that can roll back to any number do nothing.

        Args:
            lasting: Until the next call with `lasting`; else until the next pass with several rows,
                or the next call.
        """
        if self.recurrent:
            started = time.perf_counter()
            self.settle()
            self.recurrent.hold(lasting)
            self.busy_s += time.perf_counter() - started

    def keep_state(self) -> None:
        """Keep a checkpoint of recurrent layers here while there is memory for it.

        No prompt returns to a place off the grid.
        """
        off_grid = self.exactness.beyond(self.n_past)
        if self.recurrent and not (off_grid or self.context.why_untrusted):
            started = time.perf_counter()
            self.settle()
            self.recurrent.keep()
            self.busy_s += time.perf_counter() - started

    def settle(self) -> None:
        """Carry out a postponed rollback of recurrent layers."""
        if self.recurrent:
            cached = self.take_cached()
            self.recurrent.settle(len(cached))
            self._cached = cached

    # ---- states

    def least_cut_of_state(self, n_tokens: int) -> int:
        """Return the shortest prefix, above 0, to which a state of `n_tokens` can be cut.

        It is 0 where a state has all its tokens in all layers.
        """
        n_window = self.native.model(C.llama_model_n_swa)
        return n_tokens if 0 < n_window < n_tokens else 0

    def state_bytes(self) -> int:
        """Return the approximate size of `state`, in bytes; 0 if there is none.

        There is none where a restored one would give other bits (`Context.restores_windows`).
        """
        if self.cached:
            self.settle()
        if self.least_cut_of_state(len(self.cached)) and not self.context.restores_windows:
            return 0
        if not self.cached or not self.context.finish_copies():
            return 0
        return int(self.native.context(C.llama_state_seq_get_size, self.index))

    def state(self) -> NDArray[np.uint8]:
        """Return the serialised cache of llama.cpp; an empty array if there is none.

        Raises:
            MemoryError: There is not enough memory for it.
        """
        state: NDArray[np.uint8] = np.empty(self.state_bytes(), dtype=np.uint8)
        if len(state):
            pointer, get = bytes_of(state), C.llama_state_seq_get_data
            state = state[: self.native.context(get, pointer, len(state), self.index)]
        return state

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
        self.take_cached()
        n = 0
        if self.context.finish_copies():
            buffer, put = np.frombuffer(state, dtype=np.uint8), C.llama_state_seq_set_data
            n = self.native.context(put, bytes_of(buffer), len(buffer), self.index)
        end = self.position(len(tokens)) - 1
        if not n or self.native.cache(C.llama_memory_seq_pos_max, self.index) != end:
            self.forget(data=True)
            return False
        if self.recurrent:
            self.recurrent.reset(len(tokens))
        self.adopt(tokens, n_read, self.least_cut_of_state(len(tokens)))
        return True

    # ---- passes

    def check_room(self, tokens: Sequence[int]) -> None:
        """Reject tokens on which llama.cpp would abort.

        Raises:
            DecodeError: The context is full.
            InvalidOptionError: A token id is out of range.
        """
        n = len(tokens)
        if self.n_past + n > self.n_ctx:
            what = f"the context holds {self.n_ctx}"
            raise DecodeError(1, self.n_past, n, what)
        if n == 1:  # plain decoding
            is_known = 0 <= tokens[0] < self.n_vocab
        else:
            is_known = 0 <= min(tokens, default=0) <= max(tokens, default=0) < self.n_vocab
        if not is_known:
            raise InvalidOptionError("tokens", list(tokens), f"ids from 0 to {self.n_vocab - 1}")

    def read(self, tokens: Sequence[int]) -> None:
        """Prefill tokens, `reads_at_once` per pass.

        No logits are computed.
        """
        # evaluated before the loop: `n_past` empties a cache with unknown contents
        on_grid = self.n_past == self.n_read
        at = 0
        while at < len(tokens):  # other requests change `reads_at_once`
            self.keep_state()
            end = at + self.reads_at_once
            self._decode(tokens[at:end], 0)
            at = end
        if on_grid:
            self.n_read = self.n_past

    def logits(self, tokens: Sequence[int], n_rows: int) -> Logits:
        """Decode tokens and return the logits after each of the last `n_rows` tokens.

        Returns:
            A view of shape `(n_rows, V)` into llama.cpp's buffer. The next call overwrites it.

        Raises:
            InvalidOptionError: `n_rows` or a token id is out of range.
            DecodeError: The context is full, or llama.cpp rejected the batch; in the second case
                the cache is empty.
        """
        n, most = len(tokens), K_MAX + 1
        if not 0 < n_rows <= min(n, most):
            allowed = f"from 1 to {n}, the number of tokens, and at most {most}"
            require("n_rows", n_rows, allowed, False)
        if n > self.context.most_with_rows:
            self.read(tokens[:-n_rows])
            tokens = tokens[-n_rows:]
        return self._decode(tokens, n_rows)

    def _decode(self, tokens: Sequence[int], n_rows: int) -> Logits:
        return self.run(PassPart(self, tokens, n_rows))
