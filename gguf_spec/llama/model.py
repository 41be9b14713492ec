"""A llama.cpp model with one context: decode tokens, read logits, roll the cache back.

llama.cpp aborts the process on a batch that is too long, so batch sizes are checked here first.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ..arrays import Logits
from ..errors import DecodeError, InvalidOptionError, UnsupportedModelError
from ..gguf.adapters import check_adapter
from ..gguf.heads import is_head_alone
from ..gguf.validation import Header, ModelFile
from ..options import K_MAX
from ..results import PassCounts
from . import own_kernels
from .backend import build_features, offloads, start_backend, uses_gpu
from .bindings import C
from .cache import Cache
from .devices import start_numa
from .log import context_error, keep_last, keep_lines, log, verbose
from .memory import bytes_of_position, cpu_batch, fit_layers, padded
from .native import (
    N_BATCH,
    WIDEST,
    Branches,
    Native,
    SequenceTokens,
    added_branches,
    check_branches,
    n_sequences,
)
from .native_head import HiddenRows, TargetRows
from .options import FLASH_ATTENTION, KV_TYPES, ContextOptions, physical_cores
from .own_kernels import (
    GRID,
    flash_on_cpu,
    has_exact_attention,
    has_exact_products,
    has_own_attention,
    most_exact_rows,
)
from .recurrent_state import RecurrentState
from .threads import PassKind, shared_governor

# cached tokens; a shallower cache adds little to the time of a pass
_SHALLOW = 256
# ids of models, for the thread governor
_OWNERS = itertools.count()


class Part(NamedTuple):
    """Part of a common pass: what one sequence decodes.

    Attributes:
        slot: The sequence.
        tokens: Token ids.
        n_rows: Number of last tokens whose logits are returned; 0 only reads.
    """

    slot: Model
    tokens: Sequence[int]
    n_rows: int


class Model(Cache):
    """A model with its vocabulary and one context: the cache of its decoded tokens.

    Attributes:
        weight_bytes: Size of the weights, adapters included.
        cached_bytes: Size of one token in the cache.
        flash_attention: `on` or `off`; `auto` on a GPU build.
        grid: Prefill passes end at multiples of this number of tokens. 0 if the ends do not matter,
            because rows have the same bits in passes of any width.
        exact_attention: Whether attention gives a row the same bits in passes of all widths and at
            all depths.
        exact_branches: Whether rows of branches have the bits of single-token passes. llama.cpp's
            attention, unless it is flash attention, adds up in the order of the cells of the cache.
        most_exact_rows: The largest number of tokens of a pass that can have the bits of
            single-token passes. Wider passes do not have them, even if a few measured rows agree.
        depth_costs: Tokens in a pass -> extra seconds per cached token. Empty without a
            measurement.
        counts: Passes that returned rows, and their rows, since the model was loaded.
        slow_first_pass: Whether the first pass of a width takes longer than later ones, because the
            driver of a GPU compiles kernels for it.
        follows_machine: Whether the thread count adapts to the load of the machine. True only if
            the options give no count and the count changes no logit that matters: on a CPU, and not
            with llama.cpp's flash attention, unless it is a draft model.
    """

    n_ctx: int
    cached_bytes: float
    _rows: TargetRows | None = None

    def __init__(
        self,
        file: ModelFile | Path,
        options: ContextOptions,
        progress: Callable[[float], object] | None = None,
    ) -> None:
        """Load a GGUF file.

        Whether there is enough memory is not checked (`llama.memory.check_room`).

        Args:
            file: The file. A header that was read before is not read again.
            options: Load and context options.
            progress: Called with the loaded fraction, 0 to 1.

        Raises:
            LoadCancelledError: `progress` returned False.
            ModelError: The file is missing or damaged, the model generates no text, or an adapter
                does not belong to the model.
            InvalidOptionError: The model or this build of llama.cpp does not support an option.
            NotEnoughMemoryError: llama.cpp could not allocate weights or cache.
        """
        file = file if isinstance(file, ModelFile) else ModelFile(file)
        header = file.header
        own_kernels.start(options.placement.kernels)
        ((_, options),) = fit_layers([(header, options)])
        super().__init__(file, options)
        self._cached = []
        self.depth_costs: Mapping[int, float] = MappingProxyType({})
        self.counts = PassCounts()
        self._owner = next(_OWNERS)
        self.flash_attention = (
            options.flash_attention if uses_gpu(options) else flash_on_cpu(header, options)
        )
        self.threads: int = options.threads or physical_cores()
        may_vary = options.threads is None and not (uses_gpu(options) or options.rpc)
        self.follows_machine = may_vary and (
            options.drafts or self.flash_attention == "off" or has_own_attention(header, options)
        )
        self._governor = shared_governor(self.threads) if self.follows_machine else None
        if is_head_alone(header):
            what = f"{self.path.name} is a prediction head without the layers of its model."
            raise UnsupportedModelError(self.path, what, "use it as the draft of that model.")
        options.check_heads(header)
        for adapter in options.lora:
            check_adapter(adapter.path, header)
        start_backend()
        start_numa(options.placement.numa)
        self._know_exactness(header)
        options.check_backend(offloads() or bool(options.rpc))
        verbose.set() if options.verbose else verbose.clear()
        keep_lines()
        try:
            self._load(header, progress)
            self._check_kind(header)
            self._adapt()
            self.weight_bytes = header.file_bytes + sum(
                adapter.path.stat().st_size for adapter in options.lora
            )
            if self.file.embeds_only:
                self._open_nothing()
            else:
                self._open(header)
        except BaseException:
            self.close()
            raise
        finally:
            keep_last()

    def _know_exactness(self, header: Header) -> None:
        """Know in which passes rows have the same bits; on a GPU only a measurement shows it."""
        options, features = self.options, build_features()
        self.slow_first_pass = uses_gpu(options)
        self.exact_attention = not self.slow_first_pass and has_exact_attention(
            header, options, self.flash_attention, features
        )
        self.exact_branches = self.exact_attention and self.flash_attention == "on"
        self.most_exact_rows = most_exact_rows(header, options, features) or K_MAX + 1
        is_exact = self.exact_attention and has_exact_products(header, options, features)
        self.grid = 0 if options.drafts or is_exact else GRID

    def _open_nothing(self) -> None:
        """Know the sizes of a model that generates no text; its passes are the `Embedder`'s."""
        n_ctx = self.options.positions(self.n_ctx_train)
        # An encoder has no embeddings of later positions, and llama.cpp would abort.
        self.n_ctx = min(n_ctx, self.n_ctx_train or n_ctx)
        self.reads_at_once = self._n_batch = N_BATCH
        self.cached_bytes = 0.0

    def _open(self, header: Header) -> None:
        params, options, native = C.llama_context_default_params(), self.options, self.native
        params.n_ctx = options.positions(self.n_ctx_train)
        self.reads_at_once = params.n_ubatch = (
            N_BATCH if uses_gpu(options) else cpu_batch(header, options, params.n_ctx)
        )
        # the widest verification pass may be wider than a prefill pass
        self._n_batch = params.n_batch = max(self.reads_at_once, WIDEST)
        if options.parallel > 1:  # each sequence has a cache of its own, so none changes another
            params.n_ctx, params.kv_unified = options.parallel * padded(params.n_ctx), False
            params.n_seq_max = options.parallel
        else:  # the sequences of branches share one cache
            params.kv_unified = self.can_roll_back
            params.n_seq_max = n_sequences(self.can_roll_back)
            params.n_rs_seq = options.n_snapshots
        params.n_outputs_max = params.n_outputs_max_per_seq = K_MAX + 1
        params.n_threads = params.n_threads_batch = options.threads or physical_cores()
        params.flash_attn_type = FLASH_ATTENTION[self.flash_attention]
        params.type_k = params.type_v = KV_TYPES[options.kv_type][0]
        log.clear()
        if not native.open(params, params.n_seq_max):
            raise context_error(options, params.n_ctx, log)
        if not (self.can_roll_back or options.parallel > 1 or options.rpc):
            self.recurrent = RecurrentState(native, native.context(C.llama_n_rs_seq))
        # llama.cpp rounds the number up
        self.n_ctx = min(options.positions(self.n_ctx_train), native.context(C.llama_n_ctx_seq))
        if options.head:
            self._rows = TargetRows(native, options.head_layers)
            self.hidden = HiddenRows(self.n_ctx, self._rows.width)
            self._rows.send(native)
        if options.lora:
            native.use_adapters([adapter.scale for adapter in options.lora])
        self.cached_bytes = bytes_of_position(header, options)

    def without_head(self) -> None:
        """Send no rows to a prediction head any more."""
        if self._rows:
            self._rows.send(self.native, False)
            self.hidden = self._rows = None

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of the weights and caches, in bytes."""
        return round(self.weight_bytes + self.parallel * self.cached_bytes * self.n_ctx)

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

    def check_room(self, tokens: Sequence[int]) -> None:
        """Reject tokens on which llama.cpp would abort.

        Raises:
            DecodeError: The context is full.
            InvalidOptionError: A token id is out of range.
        """
        if self.n_past + len(tokens) > self.n_ctx:
            what = f"the context holds {self.n_ctx}"
            raise DecodeError(1, self.n_past, len(tokens), what)
        if not 0 <= min(tokens, default=0) <= max(tokens, default=0) < self.n_vocab:
            raise InvalidOptionError("tokens", list(tokens), f"ids from 0 to {self.n_vocab - 1}")

    @property
    def model(self) -> Model:
        """The model that owns the context."""
        return self

    @property
    def reads_at_once(self) -> int:
        """Prompt tokens that one prefill pass decodes.

        Where the bits of a row depend on the width of its pass, the width is always the same.
        """
        whole = self._widest_read
        return min(self.most_read, whole) if self.most_read and not self.grid else whole

    @reads_at_once.setter
    def reads_at_once(self, n: int) -> None:
        self._widest_read = n

    def read(self, tokens: Sequence[int]) -> None:
        """Prefill tokens, `reads_at_once` per pass.

        No logits are computed.
        """
        # evaluated before the loop: `n_past` empties a cache with unknown contents
        on_grid = self.n_past == self.n_read
        at = 0
        while at < len(tokens):  # other requests change `reads_at_once`
            end = at + self.reads_at_once
            self._decode(tokens[at:end], 0)
            at = end
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
            if self.run:
                allowed = "empty in a context of several requests"
                raise InvalidOptionError("branches", branches, allowed)
            check_branches(branches, len(tokens))
        elif len(tokens) > (K_MAX + 1 if self.run else self._n_batch):
            self.read(tokens[:-n_rows])
            tokens = tokens[-n_rows:]
        return self._decode(tokens, n_rows, branches)

    def _decode(self, tokens: Sequence[int], n_rows: int, branches: Branches = ()) -> Logits:
        if self.run:
            return self.run(Part(self, tokens, n_rows))
        native, n_past = self.native, self.n_past
        ids = [*tokens, *(token for _, token in branches)]
        self.check_room(ids)
        at = self.position(n_past)
        native.batch.fill(tokens, n_rows, at)
        cached = self._in_doubt()
        if self.recurrent:
            self._prepare(self.recurrent, n_past, n_rows)
        kind = self._follow_machine(native, n_past, len(ids), n_rows)
        started = time.perf_counter()
        if branches:
            with added_branches(native, branches, len(tokens), at):
                code = self._observed_pass(native, kind)
        else:
            code = self._observed_pass(native, kind)
        self.busy_s += time.perf_counter() - started
        if code != 0:
            self._start_over(data=True)
            raise DecodeError(code, n_past, len(ids), log.last)
        if self.recurrent:
            self.recurrent.passed(len(tokens))
        if self.hidden and self._rows:
            self.hidden.put(n_past, self._rows.sent(native, len(tokens)))
        cached.extend(tokens)
        self._cached = cached
        self.counts = self.counts.plus(n_rows and n_rows + len(branches))
        if not n_rows:
            return np.empty((0, self.n_vocab), np.float32)
        return native.rows(len(tokens) - n_rows, n_rows + len(branches), self.n_vocab)

    def _prepare(self, recurrent: RecurrentState, n_past: int, n_rows: int) -> None:
        """Carry out a postponed rollback, and prepare one that drops all but the first row.

        The time counts as that of the pass.
        """
        started = time.perf_counter()
        recurrent.settle(n_past)
        recurrent.prepare(n_rows - 1)
        self.busy_s += time.perf_counter() - started

    def decode_sequences(self, parts: Sequence[SequenceTokens]) -> int:
        """Decode tokens of several sequences in one batch, and return llama.cpp's code."""
        native = self.native
        native.batch.fill_sequences(parts)
        n = sum(len(part.tokens) for part in parts)
        n_rows = sum(sum(part.outputs) for part in parts)
        kind = self._follow_machine(native, sum(part.n_past for part in parts), n, n_rows)
        return self._observed_pass(native, kind)

    def _observed_pass(self, native: Native, kind: PassKind) -> int:
        """Decode the batch, tell the governor the time, and return llama.cpp's code."""
        started = time.perf_counter()
        code = native.decode()
        seconds = time.perf_counter() - started
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

    def finish_copies(self) -> bool:
        """Let llama.cpp do the copies that wait for a pass; return False without room for a token.

        It copies one sequence to another with the next pass.
        """
        native = self.native
        if not native.has_copies:
            return True
        last = [native.cache(C.llama_memory_seq_pos_max, i) for i in range(self.parallel)]
        n_past = min(last) + 1
        if n_past >= self.n_ctx:
            return False
        sequence = last.index(n_past - 1)
        code = self.decode_sequences([SequenceTokens(sequence, n_past, [self.start], [False])])
        native.cache(C.llama_memory_seq_rm, sequence, n_past or -1, -1)
        return code == 0
