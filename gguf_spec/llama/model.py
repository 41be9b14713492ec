"""A llama.cpp model with one context: decode tokens, read logits, roll the cache back.

llama.cpp aborts the process on a batch that is too long, so batch sizes are checked here first.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits
from ..errors import DecodeError, InvalidOptionError, RollbackError
from ..gguf.lora import check_adapter
from ..gguf.model_file import ModelFile
from ..gguf.validation import Header
from ..options import K_MAX
from ..results import PassCounts
from .backend import build_features, offloads, start_backend
from .bindings import C
from .branches import Branches, added_branches, check_branches, n_sequences
from .cache_size import padded
from .exact_kernels import GRID, has_exact_attention, has_exact_products, most_exact_rows
from .log import keep_last, keep_lines, log, verbose
from .memory import cpu_batch
from .native import N_BATCH, WIDEST, Native, SequenceTokens
from .options import FLASH_ATTENTION, KV_TYPES, ContextOptions, context_error, physical_cores
from .threads import PassKind, shared_governor
from .weights import Weights

# cached tokens; a shallower cache adds little to the time of a pass
_SHALLOW = 256
# ids of models, for the thread governor
_OWNERS = itertools.count()


class Model(Weights):
    """A model with its vocabulary and one context: the cache of its decoded tokens.

    Attributes:
        n_ctx: Capacity of the cache, in positions; that of each sequence if there are several.
        busy_s: Seconds spent inside llama.cpp since loading.
        weight_bytes: Size of the weights, adapters included.
        cached_bytes: Size of one token in the cache.
        flash_attention: `on` or `off`; `auto` on a GPU build without a measurement.
        reads_at_once: Tokens of a prompt that one prefill pass decodes.
        grid: Prefill passes end at multiples of this number of tokens. 0 if the ends do not matter,
            because rows have the same bits in passes of any width.
        n_read: Length of the prefix of the cache that was decoded by prefill passes, on the grid.
        exact_attention: Whether attention gives a row the same bits in passes of all widths and at
            all depths.
        most_exact_rows: The largest number of tokens of a pass that can have the bits of
            single-token passes. Wider passes do not have them, even if a few measured rows agree.
        depth_costs: Tokens in a pass -> extra seconds per cached token. Empty without a
            measurement.
        counts: Passes that returned rows, and their rows, since the model was loaded.
        threads: Threads of the last pass.
        follows_machine: Whether the thread count adapts to the load of the machine. True only if
            the options give no count and the count changes no logit that matters: on a CPU, without
            flash attention or for a draft model.
    """

    depth_costs: Mapping[int, float] = MappingProxyType({})

    def __init__(
        self,
        file: ModelFile | Path,
        options: ContextOptions,
        progress: Callable[[float], object] | None = None,
        flash_attention: str | None = None,
    ) -> None:
        """Load a GGUF file.

        Whether there is enough memory is not checked (`llama.backend.check_room`).

        Args:
            file: The file. A header that was read before is not read again.
            options: Load and context options.
            progress: Called with the loaded fraction, 0 to 1.
            flash_attention: Measured value for `auto`; None without a measurement.

        Raises:
            LoadCancelledError: `progress` returned False.
            ModelError: The file is missing or damaged, the model generates no text, or an adapter
                does not belong to the model.
            InvalidOptionError: The model or this build of llama.cpp does not support an option.
            NotEnoughMemoryError: llama.cpp could not allocate weights or cache.
        """
        super().__init__(file if isinstance(file, ModelFile) else ModelFile(file), options)
        self.flash_attention = flash_attention or (
            options.flash_attention if offloads() else options.flash_on_cpu
        )
        # None while the contents of the cache are unknown
        self._cached: list[int] | None = []
        self.n_read = 0
        self.busy_s = 0.0
        self.counts = PassCounts()
        self._owner = next(_OWNERS)
        self.threads = options.threads or physical_cores()
        self.follows_machine = (
            options.threads is None
            and not (offloads() or options.rpc)
            and (options.drafts or self.flash_attention == "off")
        )
        self._governor = shared_governor(self.threads) if self.follows_machine else None
        header = self.file.header
        options.check_heads(header)
        for adapter in options.lora:
            check_adapter(adapter.path, header)
        start_backend([header])
        self.exact_attention = has_exact_attention(
            self.flash_attention, options.kv_type, build_features()
        )
        self.most_exact_rows = most_exact_rows(header, options.repacks) or K_MAX + 1
        self.grid = (
            0 if options.drafts or (self.exact_attention and has_exact_products(header)) else GRID
        )
        options.check_backend(offloads() or bool(options.rpc))
        verbose.set() if options.verbose else verbose.clear()
        keep_lines()
        try:
            self._load(header, progress)
            self._check_kind(header)
            self._adapt()
            self._open(header)
        except BaseException:
            self.close()
            raise
        finally:
            keep_last()

    def _open(self, header: Header) -> None:
        params, options, native = C.llama_context_default_params(), self.options, self.native
        params.n_ctx = options.positions(self.n_ctx_train)
        self.reads_at_once = params.n_ubatch = (
            N_BATCH if offloads() else cpu_batch(header, options, params.n_ctx)
        )
        # the widest verification pass may be wider than a prefill pass
        self._n_batch = params.n_batch = max(self.reads_at_once, WIDEST)
        if options.parallel > 1:  # each sequence has a cache of its own, so none changes another
            params.n_ctx, params.kv_unified = options.parallel * padded(params.n_ctx), False
            params.n_seq_max = options.parallel
        else:  # the sequences of branches share one cache
            params.kv_unified = self.can_roll_back
            params.n_seq_max = n_sequences(self.can_roll_back)
        params.n_outputs_max = params.n_outputs_max_per_seq = K_MAX + 1
        params.n_threads = params.n_threads_batch = options.threads or physical_cores()
        params.flash_attn_type = FLASH_ATTENTION[self.flash_attention]
        params.type_k = params.type_v = KV_TYPES[options.kv_type][0]
        log.clear()
        if not native.open(params, params.n_seq_max):
            raise context_error(options, params.n_ctx, log)
        # llama.cpp rounds the number up
        self.n_ctx: int = min(
            options.positions(self.n_ctx_train), native.context(C.llama_n_ctx_seq)
        )
        if options.lora:
            native.use_adapters([adapter.scale for adapter in options.lora])
        self.weight_bytes = header.file_bytes + sum(
            adapter.path.stat().st_size for adapter in options.lora
        )
        self.cached_bytes = options.kv_bytes(header, self.n_ctx_train) / self.n_ctx

    def close(self) -> None:
        """Release the native memory.

        Further calls do nothing.

        The memory is freed as soon as no call of another thread uses it.
        """
        super().close()
        if self._governor:
            self._governor.forget(self._owner)

    # ---- the cache

    @property
    def parallel(self) -> int:
        """Number of sequences of the context."""
        return self.options.parallel

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

    def adopt(self, cached: Sequence[int], n_read: int) -> None:
        """Take over the first sequence, which other code has changed.

        Args:
            cached: Ids of its cached tokens.
            n_read: Length of the prefix that prefill passes decoded, on the grid.
        """
        self._cached, self.n_read = [*cached], n_read

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
        self.n_read = 0
        self._cached = []

    def _clear(self, data: bool) -> None:
        """Empty the first sequence, or the whole cache if the first is the only one."""
        if self.options.parallel > 1:
            self.native.cache(C.llama_memory_seq_rm, 0, -1, -1)
        else:
            self.native.cache(C.llama_memory_clear, data)

    def read(self, tokens: Sequence[int]) -> None:
        """Prefill tokens, `reads_at_once` per pass.

        No logits are computed.
        """
        # evaluated before the loop: `n_past` empties a cache with unknown contents
        on_grid = self.n_past == self.n_read
        for i in range(0, len(tokens), self.reads_at_once):
            self._decode(tokens[i : i + self.reads_at_once], 0)
        if on_grid:
            self.n_read = self.n_past

    def logits(self, tokens: Sequence[int], n_rows: int, branches: Branches = ()) -> Logits:
        """Decode tokens and return the logits after each of the last `n_rows` tokens.

        Args:
            tokens: Token ids.
            n_rows: Number of rows to return.
            branches: Alternative tokens, at most 3: an index into `tokens`, above 0, and the id of
                the alternative at that index. They are not cached.

        Returns:
            A view of shape `(n_rows + len(branches), V)` into llama.cpp's buffer. The next call
            overwrites it.

        Raises:
            InvalidOptionError: `n_rows`, a branch or a token id is out of range.
            DecodeError: The context is full, or llama.cpp rejected the batch; in the second case
                the cache is empty.
        """
        if not 0 < n_rows <= min(len(tokens), K_MAX + 1 - len(branches)):
            raise InvalidOptionError(
                "n_rows",
                n_rows,
                f"from 1 to {len(tokens)}, the number of tokens, and with the branches at most "
                f"{K_MAX + 1}",
            )
        if branches:
            check_branches(branches, len(tokens))
        elif len(tokens) > self._n_batch:
            self.read(tokens[:-n_rows])
            tokens = tokens[-n_rows:]
        self._decode(tokens, n_rows, branches)
        return self.native.rows(len(tokens) - n_rows, n_rows + len(branches), self.n_vocab)

    def _decode(self, tokens: Sequence[int], n_rows: int, branches: Branches = ()) -> None:
        native, n_past = self.native, self.n_past
        ids = [*tokens, *(token for _, token in branches)]
        if n_past + len(ids) > self.n_ctx:
            raise DecodeError(1, n_past, len(ids), f"the context holds {self.n_ctx}")
        if ids and not 0 <= min(ids) <= max(ids) < self.n_vocab:
            raise InvalidOptionError("tokens", ids, f"ids from 0 to {self.n_vocab - 1}")
        native.batch.fill(tokens, n_rows, n_past)
        cached = self._in_doubt()
        kind = self._follow_machine(native, n_past, len(ids), n_rows)
        if branches:
            with added_branches(native, branches, len(tokens), n_past):
                code = self._timed_pass(native, kind)
        else:
            code = self._timed_pass(native, kind)
        if code != 0:
            self._start_over(data=True)
            raise DecodeError(code, n_past, len(ids), log.last)
        cached.extend(tokens)
        self._cached = cached
        self.counts = self.counts.plus(n_rows and n_rows + len(branches))

    def decode_sequences(self, parts: Sequence[SequenceTokens]) -> int:
        """Decode tokens of several sequences in one batch, and return llama.cpp's code."""
        native = self.native
        native.batch.fill_sequences(parts)
        n = sum(len(part.tokens) for part in parts)
        n_rows = sum(sum(part.outputs) for part in parts)
        kind = self._follow_machine(native, sum(part.n_past for part in parts), n, n_rows)
        return self._timed_pass(native, kind)

    def _timed_pass(self, native: Native, kind: PassKind) -> int:
        """Decode the batch and return llama.cpp's code."""
        started = time.perf_counter()
        code = native.decode()
        seconds = time.perf_counter() - started
        self.busy_s += seconds
        if self._governor and code == 0:
            self._governor.observe(kind, self.threads, seconds)
        return code

    def _follow_machine(self, native: Native, n_past: int, n: int, n_rows: int) -> PassKind:
        """Set the thread count for a pass of `n` tokens and return the kind of the pass."""
        kind = PassKind(self._owner, n, n_rows, max(n_past, _SHALLOW).bit_length())
        threads = self._governor.choose(kind) if self._governor else self.threads
        if threads != self.threads:
            native.context(C.llama_set_n_threads, threads, threads)
            self.threads = threads
        return kind

    def rollback(self, to: int) -> None:
        """Drop all cached tokens after the first `to`.

        A shorter cache does not change.

        Raises:
            RollbackError: The model cannot drop part of its cache. The cache is unchanged.
        """
        if to >= self.n_past:
            return
        native, cached = self.native, self._in_doubt()
        if to == 0:
            self._clear(data=False)
        elif not native.cache(C.llama_memory_seq_rm, 0, to, -1):
            self._cached = cached
            raise RollbackError(self.path.name, len(cached), to)
        self.n_read = min(self.n_read, to)
        del cached[to:]
        self._cached = cached

    def state_bytes(self) -> int:
        """Return the approximate size of `state`, in bytes."""
        return int(self.native.context(C.llama_state_seq_get_size, 0)) if self.cached else 0

    def state(self) -> NDArray[np.uint8]:
        """Return the serialised cache of llama.cpp; an empty array for an empty cache."""
        state = np.empty(self.state_bytes(), dtype=np.uint8)
        if len(state):
            n = self.native.context(
                C.llama_state_seq_get_data,
                state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)),
                len(state),
                0,
            )
            state = state[:n]
        return state

    def restore(self, tokens: Sequence[int], n_read: int, state: bytes) -> bool:
        """Restore the cache from a serialised state.

        Args:
            tokens: The token ids that were in the cache when `state` was called.
            n_read: Number of tokens at the start that were decoded by prefill passes.
            state: The result of `state`.

        Returns:
            Whether llama.cpp accepted the state. If not, the cache is empty.
        """
        self.rollback(0)
        if not tokens or len(tokens) > self.n_ctx:
            return not tokens
        native = self.native
        self._in_doubt()
        buffer = np.frombuffer(state, dtype=np.uint8)
        n = native.context(
            C.llama_state_seq_set_data,
            buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)),
            len(buffer),
            0,
        )
        if n and native.cache(C.llama_memory_seq_pos_max, 0) == len(tokens) - 1:
            self.n_read = n_read
            self._cached = [*tokens]
            return True
        self._start_over(data=True)
        return False
