"""A llama.cpp model with its context: decode tokens, read logits, roll a cache back.

llama.cpp aborts the process on a batch that is too long, so batch sizes are checked here first.

A context has one sequence, or several (`Slots`), each with a cache of its own. A row then has the
same bits beside any other slots, if the bits do not depend on the width of a pass.
llama.cpp decodes neighbouring sequences with equal numbers of tokens in one pass over the weights,
and all others in several. Therefore shorter parts and empty places are filled with tokens that are
removed after the pass.

A state is the cache of a sequence as bytes in host memory. It has the bits of the cache, so a
sequence that is put back continues as if it had stayed. Two things need care:

- llama.cpp copies one sequence to another with the next pass. A state that is taken earlier would
  have the old contents, and a state that is put back earlier would be overwritten. A pass over one
  token is run first where a copy is pending.
- Of layers with sliding-window attention a state has only the tokens in the window of the last one.
  A shorter prefix would miss tokens there, so such a cache is cut to nothing or not at all.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits
from ..errors import DecodeError, InvalidOptionError, RollbackError, UnsupportedModelError
from ..gguf.adapters import check_adapter
from ..gguf.heads import is_head_alone
from ..gguf.validation import Header, ModelFile
from ..options import K_MAX, require
from ..results import PassCounts
from ..system.files import read_json, write_json
from . import own_kernels, probe
from .backend import library_parts, offloads, start_backend, uses_gpu
from .bindings import C
from .devices import start_numa
from .exactness import Exactness, predicted
from .log import context_error, keep_last, keep_lines, log, verbose
from .memory import bytes_of_position, cpu_batch, fit_layers, padded
from .native import N_BATCH, SequenceTokens
from .native_head import HiddenRows, TargetRows
from .options import FLASH_ATTENTION, KV_TYPES, ContextOptions, physical_cores
from .own_kernels import flash_on_cpu, has_own_attention
from .recurrent_state import RecurrentState, bytes_of
from .threads import PassKind, shared_governor
from .weights import Weights

# cached tokens; a shallower cache adds little to the time of a pass
_SHALLOW = 256
# ids of models, for the thread governor
_OWNERS = itertools.count()

# On a GPU a pass over one token has kernels of its own, and passes over a few tokens share theirs.
# CUDA's products of quantised weights add in one order for 2 to 4 rows and in another for 5 to 8
# (`ggml-cuda/mmvq.cu`), its flash attention in one for 3 and 4 or, with at most 2 query heads to a
# key-value head, for 2 to 4 (`ggml-cuda/fattn.cu`). So passes over `least` to `most` tokens are
# exact if further tokens fill the narrower ones. The first pair that a comparison finds equal is
# used.
_FILLED_PASSES = ((1, 8), (2, 4), (3, 4), (2, 2))
# cached tokens; llama.cpp's attention reads a cache in multiples of this, and adds in another order
# when the number changes
_KV_STEP = 256
# Cached tokens before the passes that are compared on a GPU, and the number of rows. They cross
# multiples of `_KV_STEP`.
_GPU_DEPTHS, _N_GPU_ROWS = (1, 240, 504, 1016), 24
# Seconds after which the comparison fails.
_GPU_PATIENCE_S = 10.0


class Cache(Weights):
    """A model with one sequence of its context, which is the slot of a request.

    Attributes:
        index: Id of the sequence in llama.cpp.
        run: Decodes a `Part` in a pass with other sequences; None if passes are of this one only.
        most_read: Most prompt tokens that one prefill pass may decode, because other sequences are
            decoded at the same time; 0 without a limit.
        n_ctx: Capacity, in positions; that of each sequence if there are several.
        n_read: Length of the prefix that was decoded by prefill passes, on the grid.
        least_cut: Shortest prefix, above 0, to which the cache can be cut.
        threads: Threads of the last pass.
        busy_s: Seconds spent inside llama.cpp since loading.
        recurrent: State of the recurrent layers; None without such layers, or on workers.
        hidden: Rows for a prediction head; None without one.
        why_untrusted: Why nothing is drafted any more; empty unless a test of the rollback failed.
    """

    n_ctx: int
    exactness: Exactness
    threads: int
    index = 0
    run: Callable[[Any], Logits] | None = None
    most_read = 0
    n_read = least_cut = 0
    busy_s = 0.0
    recurrent: RecurrentState | None = None
    hidden: HiddenRows | None = None
    why_untrusted: str
    # None while the contents are unknown
    _cached: list[int] | None = None

    @property
    def why_plain(self) -> str:
        """Reason why nothing can be drafted for this model or by it; empty if it can."""
        alone = self.options.parallel == 1
        if self.can_roll_back or (self.recurrent and (alone or self.recurrent.n_snapshots)):
            return self.why_untrusted
        needs = "on workers" if self.options.rpc else "with parallel requests"
        return f"{self.path.name} is recurrent or hybrid, and its state is not restored {needs}"

    @property
    def free_rollback(self) -> int:
        """Most tokens that a rollback drops without dropping others, to be decoded again."""
        return self.recurrent.n_snapshots if self.recurrent else self.n_ctx

    @property
    def cached(self) -> list[int]:
        """Ids of the tokens in the cache, position by position."""
        if self._cached is None:
            self.forget()
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

    def forget(self, data: bool = False) -> None:
        """Empty the sequence, also after an error.

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

    def copy_from(self, other: Cache) -> None:
        """Replace the cache by a copy of another sequence's."""
        self.rollback(0)
        self.native.has_copies = True  # until the next pass
        self.native.cache(C.llama_memory_seq_cp, other.index, self.index, -1, -1)
        self.adopt(other.cached, other.n_read, other.least_cut)

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
        if self.recurrent and not (off_grid or self.why_untrusted):
            started = time.perf_counter()
            self.settle()
            self.recurrent.keep()
            self.busy_s += time.perf_counter() - started

    def settle(self) -> None:
        """Carry out a postponed rollback of recurrent layers."""
        if self.recurrent:
            cached = self._in_doubt()
            self.recurrent.settle(len(cached))
            self._cached = cached

    # ---- states

    def finish_copies(self) -> bool:
        """Carry out postponed copies of sequences; return False if that is not possible now."""
        return True

    def least_cut_of_state(self, n_tokens: int) -> int:
        """Return the shortest prefix, above 0, to which a state of `n_tokens` can be cut.

        It is 0 where a state has all its tokens in all layers.
        """
        n_window = self.native.model(C.llama_model_n_swa)
        return n_tokens if 0 < n_window < n_tokens else 0

    def state_bytes(self) -> int:
        """Return the approximate size of `state`, in bytes; 0 if there is none."""
        if self.cached:
            self.settle()
        if not self.cached or not self.finish_copies():
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
        self._in_doubt()
        n = 0
        if self.finish_copies():
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
        exactness: Which passes give a row the same bits.
        parallel: Number of sequences of the context.
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
        self._cached, self.why_untrusted = [], ""
        self.depth_costs: Mapping[int, float] = MappingProxyType({})
        self.counts = PassCounts()
        self._owner, self.parallel = next(_OWNERS), options.parallel
        if is_head_alone(header):
            what = f"{self.path.name} is a prediction head without the layers of its model."
            raise UnsupportedModelError(self.path, what, "use it as the draft of that model.")
        options.check_heads(header)
        file.check_written()
        for adapter in options.lora:
            check_adapter(adapter.path, header)
        start_backend()
        start_numa(options.placement.numa)
        self._know_passes(header)
        options.check_backend(offloads() or bool(options.rpc))
        verbose.set() if options.verbose else verbose.clear()
        keep_lines()
        try:
            self._load(header, progress)
            self.weight_bytes = header.file_bytes + sum(
                adapter.path.stat().st_size for adapter in options.lora
            )
            self._open(header)
        except BaseException:
            self.close()
            raise
        finally:
            keep_last()

    def _know_passes(self, header: Header) -> None:
        """Determine how passes run, and which have the same bits; on a GPU this is measured."""
        options, on_gpu = self.options, uses_gpu(self.options)
        self.flash_attention = options.flash_attention if on_gpu else flash_on_cpu(header, options)
        self.threads: int = options.threads or physical_cores()
        may_vary = options.threads is None and not (on_gpu or options.rpc)
        self.follows_machine = may_vary and (
            options.drafts or self.flash_attention == "off" or has_own_attention(header, options)
        )
        self._governor = shared_governor(self.threads) if self.follows_machine else None
        self.slow_first_pass = on_gpu
        self.exactness = predicted(header, options, self.flash_attention)

    def _open(self, header: Header) -> None:
        """Create the context; the passes of a model that generates no text are the `Embedder`'s."""
        params, options, native = C.llama_context_default_params(), self.options, self.native
        params.n_ctx = options.positions(self.n_ctx_train)
        if self.file.embeds_only:
            # An encoder has no embeddings of later positions, and llama.cpp would abort.
            self.n_ctx = min(params.n_ctx, self.n_ctx_train or params.n_ctx)
            self.reads_at_once, self.cached_bytes = N_BATCH, 0.0
            return
        self.reads_at_once = params.n_ubatch = (
            N_BATCH if uses_gpu(options) else cpu_batch(header, options, params.n_ctx)
        )
        # the widest verification pass may be wider than a prefill pass
        self._n_batch = params.n_batch = max(self.reads_at_once, K_MAX + 1)
        if options.parallel > 1:  # each sequence has a cache of its own, so none changes another
            params.n_ctx, params.kv_unified = options.parallel * padded(params.n_ctx), False
            params.n_seq_max = options.parallel
        params.n_rs_seq = options.n_snapshots
        params.n_outputs_max = params.n_outputs_max_per_seq = K_MAX + 1
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = FLASH_ATTENTION[self.flash_attention]
        params.type_k = params.type_v = KV_TYPES[options.kv_type][0]
        log.clear()
        if not native.open(params):
            raise context_error(options, params.n_ctx, log)
        if not (self.can_roll_back or options.rpc):
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
        if self.slow_first_pass and self._may_fill():
            self._fill_passes()

    def _may_fill(self) -> bool:
        """Whether a token that fills a pass leaves no trace, and no other request has a share."""
        o = self.options
        windows = self.native.model(C.llama_model_n_swa)
        return self.can_roll_back and not (o.drafts or o.rpc or o.head or windows or o.parallel > 1)

    def _fill_passes(self) -> None:
        """Decode a few tokens more in each narrow pass if that makes passes exact.

        Prompts are then read in passes of always the same width, because other widths may add in
        another order.
        """
        o = self.options
        key: list[object] = [self.file.content_id, self.n_ctx, o.flash_attention, o.kv_type]
        key += [o.gpu_layers, o.threads or physical_cores(), *o.placement.parts]
        key += [part for one in o.lora for part in (one.content_id, one.scale)]
        file = probe.result_file("rows", *library_parts(), *key)
        match read_json(file):
            case [int(least), int(most)] if (least, most) in (*_FILLED_PASSES, (1, 1)):
                pass
            case _:
                began = time.perf_counter()
                equal = (one for one in _FILLED_PASSES if self._has_equal_rows(*one, began))
                least, most = next(equal, (1, 1))
                write_json(file, [least, most])
        if most > 1:
            self.exactness = Exactness(True, most, least, self.reads_at_once)

    def _has_equal_rows(self, least: int, most: int, began: float) -> bool:
        """Return whether passes that are filled up to `least` tokens give a row the same bits."""
        before, self.exactness = self.exactness, replace(self.exactness, least_rows=least)
        try:
            for depth in _GPU_DEPTHS:
                text = [i * 7919 % self.n_vocab for i in range(1, depth + _N_GPU_ROWS + 1)]
                if len(text) >= self.n_ctx:
                    return depth > _GPU_DEPTHS[0]
                self.rollback(0)
                self.read(text[:depth])
                alone: list[bytes] = []
                for width in range(1, most + 1):
                    self.rollback(depth)
                    found: list[bytes] = []
                    for at in range(depth, len(text), width):
                        rows = self.logits(part := text[at : at + width], len(part))
                        found += [row.tobytes() for row in rows]
                        if time.perf_counter() - began > _GPU_PATIENCE_S:
                            return False
                    alone = alone or found
                    if found != alone:
                        return False
        finally:
            self.exactness = before
            self.rollback(0)
        return True

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
        """Release the native memory, and reset the pass times; further calls have no effect."""
        super().close()
        if self._governor:
            self._governor.forget(self._owner)

    # ---- the cache

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
        narrow = self.most_read and self.exactness.in_any_width
        return min(self.most_read, whole) if narrow else whole

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
            self.keep_state()
            end = at + self.reads_at_once
            self._decode(tokens[at:end], 0)
            at = end
        if on_grid:
            self.n_read = self.n_past

    def logits(self, tokens: Sequence[int], n_rows: int) -> Logits:
        """Decode tokens and return the logits after each of the last `n_rows` tokens.

        Args:
            tokens: Token ids.
            n_rows: Number of rows to return.

        Returns:
            A view of shape `(n_rows, V)` into llama.cpp's buffer. The next call overwrites it.

        Raises:
            InvalidOptionError: `n_rows` or a token id is out of range.
            DecodeError: The context is full, or llama.cpp rejected the batch; in the second case
                the cache is empty.
        """
        n, most = len(tokens), K_MAX + 1
        allowed = f"from 1 to {n}, the number of tokens, and at most {most}"
        require("n_rows", n_rows, allowed, 0 < n_rows <= min(n, most))
        if n > (most if self.run else self._n_batch):
            self.read(tokens[:-n_rows])
            tokens = tokens[-n_rows:]
        return self._decode(tokens, n_rows)

    def _decode(self, tokens: Sequence[int], n_rows: int) -> Logits:
        if self.run:
            return self.run(Part(self, tokens, n_rows))
        if self.exactness.least_rows > 1 and (n_rows or len(tokens) == 1):
            return self._decode_filled(tokens, n_rows)
        return self._pass(tokens, n_rows)

    def _decode_filled(self, tokens: Sequence[int], n_rows: int) -> Logits:
        """Decode tokens in passes that give each row its bits of a filled pass over one token.

        A filled pass over one of the last tokens before a multiple of `_KV_STEP` reaches beyond it.
        So these begin a pass, and no pass from before them contains them. The last positions of the
        context have no room for filling tokens; their tokens are always decoded alone.
        """
        least, found = self.exactness.least_rows, list[Logits]()
        at, end = self.n_past, self.n_past + len(tokens)
        first, last = end - n_rows, self.n_ctx - least + 1
        self.check_room(tokens)
        while at < end:
            cut = at + _KV_STEP - (at + least - 1) % _KV_STEP
            to = min(end, cut, max(last, at + 1))
            part = tokens[len(tokens) - (end - at) : len(tokens) - (end - to)]
            n = max(0, to - max(at, first))
            rows = self._pass(part, n, 1 if at >= last else least)
            found.append(rows if to == end else rows.copy())
            at = to
        return found[-1] if len(found) == 1 else np.concatenate(found)

    def _pass(self, tokens: Sequence[int], n_rows: int, least: int = 1) -> Logits:
        """Decode tokens in one pass over at least `least` tokens, with as many rows of logits."""
        native, n_past, recurrent = self.native, self.n_past, self.recurrent
        self.check_room(tokens)
        n = len(tokens)
        filling = [self.start] * (least - n)
        n_computed = max(n_rows + len(filling), least if n_rows else 0)
        part = SequenceTokens(0, self.position(n_past), [*tokens, *filling], n_computed)
        cached, started = self._in_doubt(), time.perf_counter()
        if recurrent:  # carry out a postponed rollback, and prepare one of all rows but the first
            recurrent.settle(n_past)
            recurrent.prepare(n_rows - 1)
        code = self.decode_sequences([part])
        if filling and code == 0:
            native.cache(C.llama_memory_seq_rm, self.index, self.position(n_past + n), -1)
        self.busy_s += time.perf_counter() - started
        if code != 0:
            self.forget(data=True)
            raise DecodeError(code, n_past, n, log.last)
        if recurrent:
            recurrent.passed(n)
        if self.hidden and self._rows:
            self.hidden.put(n_past, self._rows.sent(native, n))
        cached.extend(tokens)
        self._cached = cached
        self.counts = self.counts.plus(n_rows)
        return native.rows(n - n_rows, n_rows, self.n_vocab)

    def decode_sequences(self, parts: Sequence[SequenceTokens]) -> int:
        """Decode tokens of several sequences in one batch, and return llama.cpp's code.

        Each pass may have another number of threads, which the governor chooses.
        """
        native, model = self.native, self.model
        native.batch.fill(parts)
        n, n_rows = sum(len(part.tokens) for part in parts), sum(part.n_rows for part in parts)
        n_past = sum(part.n_past for part in parts)
        kind = PassKind(model._owner, n, n_rows, max(n_past, _SHALLOW).bit_length())
        threads = model._governor.choose(kind) if model._governor else model.threads
        if threads != model.threads:
            native.context(C.llama_set_n_threads, threads, threads)
            model.threads = threads
        started = time.perf_counter()
        code = native.decode()
        seconds = time.perf_counter() - started
        if model._governor and code == 0:
            model._governor.observe(kind, threads, seconds)
        return code

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
        code = self.decode_sequences([SequenceTokens(sequence, n_past, [self.start], 0)])
        native.cache(C.llama_memory_seq_rm, sequence, n_past or -1, -1)
        return code == 0


class Slot(Model):
    """A further sequence of a loaded model, with a cache of its own.

    Weights, vocabulary, sizes and context are those of the model. An attribute with a value in the
    class `Cache` is the slot's own.
    """

    def __init__(self, model: Model, index: int) -> None:
        self._model, self.index = model, index
        self._cached = []
        self.busy_s = 0.0
        if state := model.recurrent:
            self.recurrent = RecurrentState(model.native, state.n_snapshots, index)

    @property
    def model(self) -> Model:
        """The model."""
        return self._model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Slots:
    """The slots of a model, and common passes over several of them.

    Attributes:
        model: The model.
        widest: Largest number of tokens of a pass that returns rows.
        all: Its slots, by their ids.
        n_decoded: Number of sequences of the last pass.
    """

    def __init__(self, model: Model, widest: int = K_MAX + 1) -> None:
        self.model, self.widest = model, widest
        self.n_decoded = 0
        model.index = 0
        self.all = [model, *(Slot(model, i) for i in range(1, model.options.parallel))]
        for slot in self.all:
            slot.run = self.decode_one
        # tokens of one pass of llama.cpp
        self._n_at_once = model.reads_at_once

    def decode_one(self, part: Part) -> Logits:
        """Decode one part in a pass of its own, and return its rows."""
        return self.decode([part])[0]

    def decode(
        self, parts: Sequence[Part], n_sequences: int = 0, holds: bool = False
    ) -> list[Logits]:
        """Decode parts of different slots, and return the rows of each.

        Args:
            parts: The parts; together at most as many tokens as a batch holds.
            n_sequences: Number of sequences to decode; other slots fill the pass up to it, because
                kernels are faster with whole blocks of rows.
            holds: Others have passes before these slots are rolled back, so their recurrent layers
                need a checkpoint.

        Returns:
            Views of shape `(n_rows, V)`, in the order of the parts. The next pass overwrites them.

        Raises:
            DecodeError: llama.cpp rejected the batch; the caches of these slots are then empty.
        """
        for part in parts:
            part.slot.check_room(part.tokens)
        filled, moved = self._filled(parts, n_sequences)
        first, firsts = 0, {}
        for one in filled:
            firsts[one.sequence] = first
            first += len(one.tokens)
        self.n_decoded = len(filled)
        started, slots = time.perf_counter(), [self.all[one.sequence] for one in filled]
        try:
            self._settle(filled, {one.sequence for one in filled} if holds else moved)
            code = self.model.decode_sequences(filled)
            seconds = time.perf_counter() - started
            if code != 0:
                raise DecodeError(code, max(one.n_past for one in filled), first, log.last)
            for part in parts:
                part.slot.cached.extend(part.tokens)
                part.slot.busy_s += seconds
            self._drop_filling(filled, moved)
        except BaseException:  # Ctrl-C, too, where the thread of the caller decodes
            for slot in slots:  # those of gaps keep their tokens
                self._remove(slot)
            for part in parts:
                part.slot.forget()
            raise
        self.model.counts = self.model.counts.plus(sum(part.n_rows for part in parts))
        ends = [firsts[part.slot.index] + len(part.tokens) for part in parts]
        rows, n_vocab = self.model.native.rows, self.model.n_vocab
        return [
            rows(end - one.n_rows, one.n_rows, n_vocab)
            for one, end in zip(parts, ends, strict=True)
        ]

    def _settle(self, parts: Sequence[SequenceTokens], held: Collection[int]) -> None:
        """Carry out the postponed rollbacks of all slots, because a pass may move any state.

        Args:
            parts: The parts to decode.
            held: Sequences that need a checkpoint if they may be rolled back after it.
        """
        if not self.model.recurrent:
            return
        decoded = {part.sequence: part for part in parts}
        for slot in self.all:
            if slot.recurrent:
                slot.settle()
                if not (part := decoded.get(slot.index)):
                    slot.recurrent.pass_of_others()
                elif part.n_rows > 1 and slot.index in held:
                    slot.recurrent.hold(lasting=False)
                else:
                    slot.recurrent.prepare(part.n_rows + part.n_more - 1)

    def _drop_filling(self, parts: Sequence[SequenceTokens], moved: Collection[int]) -> None:
        """Remove what filled a pass; recurrent layers drop it before the next one."""
        for one in parts:
            slot = self.all[one.sequence]
            if slot.recurrent:
                slot.recurrent.passed(len(one.tokens))
                if one.sequence in moved:
                    slot.recurrent.pass_of_others()
            elif one.n_past + len(one.tokens) > slot.n_past:
                self._remove(slot)

    def move(self, slot: Model, free: Model) -> None:
        """Move a sequence to the place of a free one, whose cache is lost."""
        free.copy_from(slot)
        slot.index, free.index = free.index, slot.index
        self.all[slot.index], self.all[free.index] = slot, free
        free.forget()

    def refill(self, slot: Model, tokens: Sequence[int], n_read: int) -> None:
        """Decode the tokens of a lost cache again, in passes that give them the same bits.

        Args:
            slot: The slot, whose cache is empty.
            tokens: The tokens.
            n_read: Length of the prefix that prefill passes decoded, on the grid.

        Raises:
            DecodeError: llama.cpp rejected a pass; the cache is then empty.
        """
        reads_at_once = self.model.reads_at_once
        in_any_width = slot.exactness.in_any_width
        n_read, wide = (len(tokens), reads_at_once) if in_any_width else (n_read, self.widest)
        for start, end, at_once in ((0, n_read, reads_at_once), (n_read, len(tokens), wide)):
            for i in range(start, end, at_once):
                self.decode([Part(slot, tokens[i : min(i + at_once, end)], 0)])
        slot.n_read = n_read

    def _filled(
        self, parts: Sequence[Part], n_sequences: int
    ) -> tuple[list[SequenceTokens], set[int]]:
        """Return what llama.cpp decodes: the parts, made equally long, and without gaps.

        Returns:
            The tokens of each sequence in their order, and the sequences whose snapshots the pass
                may lose.
        """
        width = max(len(part.tokens) for part in parts)
        state = self.model.recurrent
        most = state.n_snapshots + 1 if state else K_MAX + 1 if self.model.can_roll_back else 0
        equal = len(parts) > 1 and width <= most
        found = [self._tokens(part, width if equal else 0) for part in parts]
        if equal and not state:
            taken = {one.sequence for one in found}
            low, high = min(taken), max(taken) + 1
            n_more = max(0, n_sequences - (high - low))
            high = min(len(self.all), high + n_more)
            low = max(0, min(low, high - n_sequences))
            more = [i for i in range(low, high) if i not in taken]
            if not self._can_fill(more, width):
                more = [i for i in range(min(taken), max(taken)) if i not in taken]
            fits = width * (len(taken) + len(more)) <= self.widest
            if fits and 2 * len(more) <= len(taken) and self._can_fill(more, width):
                found += [self._tokens(Part(self.all[i], [], 0), width) for i in more]
        found = sorted(found, key=lambda one: one.sequence)
        if not state:
            return found, set()
        found, moved = self._without_moves(found)
        if moved:  # only snapshots drop what fills a pass
            found, moved = self._without_moves(sorted(self._tokens(part, 0) for part in parts))
        return found, moved

    def _without_moves(
        self, parts: Sequence[SequenceTokens]
    ) -> tuple[list[SequenceTokens], set[int]]:
        """Return parts in the order in which llama.cpp moves the fewest recurrent states.

        It decodes sequences with consecutive ids in one pass, and makes their states neighbours.
        That moves states of other sequences, without the snapshots of an earlier pass. A pass over
        one sequence moves nothing, so those come last.

        Returns:
            The parts, and the sequences whose snapshots may be lost.
        """
        runs: list[list[SequenceTokens]] = []
        for one in parts:
            if runs and one.sequence == runs[-1][-1].sequence + 1:
                runs[-1].append(one)
            else:
                runs.append([one])
        runs.sort(key=len, reverse=True)
        ordered = [one for run in runs for one in run]
        widths = {len(one.tokens) for one in parts}
        if len(runs[0]) > 1 and (len(widths) > 1 or len(runs[0]) * max(widths) > self._n_at_once):
            return ordered, {one.sequence for one in parts}  # in several passes for any ids
        last = max((i for i, run in enumerate(runs) if len(run) > 1), default=0)
        return ordered, {one.sequence for run in runs[:last] for one in run}

    def _can_fill(self, indices: Sequence[int], width: int) -> bool:
        """Return whether slots have room for `width` tokens that are removed after the pass."""
        return all(self.all[i].n_past + width <= self.model.n_ctx for i in indices)

    def _tokens(self, part: Part, width: int) -> SequenceTokens:
        """Return the tokens of a part, filled up to `width` where the context has room."""
        slot, n = part.slot, len(part.tokens)
        n_more = max(0, min(width, slot.n_ctx - slot.n_past) - n)
        tokens = [*part.tokens, *[self.model.start] * n_more]
        return SequenceTokens(slot.index, slot.n_past, tokens, part.n_rows, n_more)

    def _remove(self, slot: Model) -> None:
        """Remove the tokens that only filled the pass."""
        self.model.native.cache(C.llama_memory_seq_rm, slot.index, slot.n_past or -1, -1)
