"""A llama.cpp context of a loaded model: one or several sequences, and the passes over them.

A row has the same bits beside any other sequences, if the bits do not depend on the width of a
pass. llama.cpp decodes neighbouring sequences with equal numbers of tokens in one pass over the
weights, and all others in several. Therefore shorter parts and empty places are filled with tokens
that are removed after the pass. Narrow passes of a GPU are filled where that makes them exact.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..arrays import Logits
from ..errors import DecodeError, UnsupportedModelError
from ..gguf.adapters import check_adapter
from ..gguf.heads import is_head_alone
from ..gguf.validation import Header, ModelFile, check_written
from ..options import K_MAX
from ..passes import Exactness, ModelSequence, PassPart
from ..results import PassCounts
from ..system.files import read_json, write_json
from . import own_kernels, probe
from .backend import gpu_problem, library_parts, offloads, start_backend, uses_gpu
from .bindings import C
from .devices import start_numa
from .exactness import predicted
from .log import context_error, keep_last, keep_lines, log, verbose
from .memory import bytes_of_position, cpu_batch, fit_layers, padded
from .native import N_BATCH, Native, SequenceTokens
from .native_head import HiddenRows, TargetRows
from .options import FLASH_ATTENTION, KV_TYPES, ContextOptions, physical_cores
from .own_kernels import flash_on_cpu, has_own_attention
from .recurrent_state import RecurrentState
from .sequence import CachedSequence
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


class Context:
    """The context of a model: its sequences, and the only passes over them.

    Attributes:
        sequences: Its sequences, by their ids in llama.cpp.
        n_ctx: Capacity of each sequence, in positions.
        reads_at_once: Most tokens that one prefill pass decodes.
        most_with_rows: Most tokens of a pass that returns rows.
        widest: The same for all tokens of a pass over several sequences.
        weight_bytes: Size of the weights, adapters included.
        cached_bytes: Size of one token in the cache.
        flash_attention: `on` or `off`; `auto` on a GPU build.
        exactness: Which passes give a row the same bits.
        why_untrusted: Why nothing is drafted any more; empty unless a test of the rollback failed.
        threads: Threads of the last pass.
        n_decoded: Number of sequences of the last pass.
        slow_first_pass: Whether the first pass of a width takes longer than later ones, because the
            driver of a GPU compiles kernels for it.
        restores_windows: Whether a state of a text that is longer than a sliding window has the
            bits of the text.
        follows_machine: Whether the thread count adapts to the load of the machine. True only if
            the options give no count and the count changes no logit that matters: on a CPU, and not
            with llama.cpp's flash attention, unless it is a draft model.
    """

    most_with_rows: int
    cached_bytes: float
    sequences: list[CachedSequence]
    exactness: Exactness
    n_decoded: int
    weights: Weights

    n_ctx: int
    reads_at_once: int
    widest = K_MAX + 1
    why_untrusted = ""
    n_decoded = 0
    _rows: TargetRows | None = None

    def __init__(
        self,
        file: ModelFile | Path,
        options: ContextOptions,
        progress: Callable[[float], object] | None = None,
    ) -> None:
        """Load a GGUF file and open a context.

        Whether there is enough memory is not checked (`llama.memory.check_room`).

        Args:
            file: The file. A header that was read before is not read again.
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
        self.weights, self._owner = Weights(file, options), next(_OWNERS)
        self._n_passes = self._n_rows = 0  # those that returned rows
        self._whole: Logits = np.empty((0, 0), np.float32)
        if is_head_alone(header):
            what = f"{file.path.name} is a prediction head without the layers of its model."
            raise UnsupportedModelError(file.path, what, "use it as the draft of that model.")
        options.check_heads(header)
        check_written(header)
        for adapter in options.lora:
            check_adapter(adapter.path, header)
        start_backend()
        start_numa(options.placement.numa)
        self._know_passes(header, options)
        options.check_backend(offloads() or bool(options.rpc), gpu_problem)
        verbose.set() if options.verbose else verbose.clear()
        keep_lines()
        try:
            self.weights.load(header, progress)
            self.weight_bytes: int = header.file_bytes + sum(
                adapter.path.stat().st_size for adapter in options.lora
            )
            self._open(header)
        except BaseException:
            self.close()
            raise
        finally:
            keep_last()

    def _know_passes(self, header: Header, options: ContextOptions) -> None:
        """Determine how passes run, and which have the same bits; on a GPU this is measured."""
        on_gpu = uses_gpu(options)
        self.flash_attention: str = (
            options.flash_attention if on_gpu else flash_on_cpu(header, options)
        )
        self.threads: int = options.threads or physical_cores()
        may_vary = options.threads is None and not (on_gpu or options.rpc)
        takes_own, is_flash = has_own_attention(header, options), self.flash_attention == "on"
        self.follows_machine: bool = may_vary and (options.drafts or not is_flash or takes_own)
        # llama.cpp puts a window back into the first cells, where its own kernels add in another
        # order. The bits of a draft do not matter.
        self.restores_windows: bool = options.drafts or (is_flash and takes_own and not on_gpu)
        self._governor = shared_governor(self.threads) if self.follows_machine else None
        self.slow_first_pass = on_gpu
        self.exactness = predicted(header, options, self.flash_attention)

    def _open(self, header: Header) -> None:
        """Create the context; the passes of a model that generates no text are the `Embedder`'s."""
        weights, params = self.weights, C.llama_context_default_params()
        options, native, n_trained = weights.options, weights.native, weights.n_ctx_train
        params.n_ctx = options.positions(n_trained)
        if weights.file.embeds_only:
            # An encoder has no embeddings of later positions, and llama.cpp would abort.
            self.n_ctx = weights.n_ctx = min(params.n_ctx, n_trained or params.n_ctx)
            self.reads_at_once, self.cached_bytes, self.most_with_rows = N_BATCH, 0.0, 0
            self.sequences = [CachedSequence(self)]
            return
        self.reads_at_once = params.n_ubatch = (
            N_BATCH if uses_gpu(options) else cpu_batch(header, options, params.n_ctx)
        )
        # the widest verification pass may be wider than a prefill pass
        params.n_batch = max(self.reads_at_once, K_MAX + 1)
        self.most_with_rows = params.n_batch if options.parallel == 1 else K_MAX + 1
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
        # llama.cpp rounds the number up
        n_ctx = min(options.positions(n_trained), native.context(C.llama_n_ctx_seq))
        self.n_ctx = weights.n_ctx = n_ctx
        self.cached_bytes = bytes_of_position(header, options)
        self.sequences = [CachedSequence(self, i) for i in range(options.parallel)]
        if not (weights.can_roll_back or options.rpc):
            n_snapshots = native.context(C.llama_n_rs_seq)
            for one in self.sequences:
                one.recurrent = RecurrentState(native, n_snapshots, one.index)
        if options.head:
            self._rows = TargetRows(native, options.head_layers)
            self.sequences[0].hidden = HiddenRows(n_ctx, self._rows.width)
            self._rows.send(native)
        if options.lora:
            native.use_adapters([adapter.scale for adapter in options.lora])
        # a token that fills a pass leaves no trace, and no other request has a share
        cannot_fill = options.drafts or options.rpc or options.head or options.parallel > 1
        has_trace = native.model(C.llama_model_n_swa) or not weights.can_roll_back
        if self.slow_first_pass and not (cannot_fill or has_trace):
            self._fill_passes()

    def _fill_passes(self) -> None:
        """Decode a few tokens more in each narrow pass if that makes passes exact.

        Prompts are then read in passes of always the same width, because other widths may add in
        another order.
        """
        o = self.weights.options
        key: list[object] = [self.weights.file.content_id, self.n_ctx, o.flash_attention, o.kv_type]
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
        sequence = self.sequences[0]
        try:
            for depth in _GPU_DEPTHS:
                text = [i * 7919 % sequence.n_vocab for i in range(1, depth + _N_GPU_ROWS + 1)]
                if len(text) >= self.n_ctx:
                    return depth > _GPU_DEPTHS[0]
                sequence.rollback(0)
                sequence.read(text[:depth])
                alone: list[bytes] = []
                for width in range(1, most + 1):
                    sequence.rollback(depth)
                    of_width: list[bytes] = []
                    for at in range(depth, len(text), width):
                        rows = sequence.logits(part := text[at : at + width], len(part))
                        of_width += [row.tobytes() for row in rows]
                        if time.perf_counter() - began > _GPU_PATIENCE_S:
                            return False
                    alone = alone or of_width
                    if of_width != alone:
                        return False
        finally:
            self.exactness = before
            sequence.rollback(0)
        return True

    def without_head(self) -> None:
        """Send no rows to a prediction head any more."""
        if self._rows:
            self._rows.send(self.weights.native, False)
            self.sequences[0].hidden = self._rows = None

    @property
    def can_roll_back(self) -> bool:
        """Whether a sequence can drop its last tokens; not with recurrent layers."""
        return self.weights.can_roll_back

    def close(self) -> None:
        """Release the native memory, and reset the pass times; further calls have no effect."""
        self.weights.close()
        if self._governor:
            self._governor.forget(self._owner)

    # ---- passes

    @property
    def counts(self) -> PassCounts:
        """Passes that returned rows, and their rows, since the model was loaded."""
        return PassCounts(self._n_passes, self._n_rows)

    def decode_one(self, part: PassPart) -> Logits:
        """Decode the part of one sequence, and return its rows.

        On a GPU each row has its bits of a filled pass over one token. A filled pass over one of
        the last tokens before a multiple of `_KV_STEP` reaches beyond it. So these begin a pass,
        and no pass from before them contains them. The last positions of the context have no room
        for filling tokens; their tokens are always decoded alone.
        """
        one, tokens, n_rows = part
        least = self.exactness.least_rows
        if least == 1 or not (n_rows or len(tokens) == 1):
            return self._decode_alone(part)
        one.check_room(tokens)
        found, at, end = list[Logits](), one.n_past, one.n_past + len(tokens)
        first, last = end - n_rows, self.n_ctx - least + 1
        while at < end:
            cut = at + _KV_STEP - (at + least - 1) % _KV_STEP
            to = min(end, cut, max(last, at + 1))
            piece = tokens[len(tokens) - (end - at) : len(tokens) - (end - to)]
            part = PassPart(one, piece, max(0, to - max(at, first)))
            rows = self._decode_alone(part, least=1 if at >= last else least)
            found.append(rows if to == end else rows.copy())
            at = to
        return found[-1] if len(found) == 1 else np.concatenate(found)

    def _decode_alone(self, part: PassPart, holds: bool = False, least: int = 1) -> Logits:
        """Decode the part of one sequence in a pass of its own, as `decode` does.

        Args:
            least: Least number of tokens, and of computed rows.
        """
        given, tokens, n_rows = part
        given.check_room(tokens)
        sequence, native = self.sequences[given.index], self.weights.native
        one = self._tokens(part, least)
        if least > 1:  # the number of computed rows chooses kernels of a GPU, too
            n_computed = max(one.n_rows + one.n_more, least if one.n_rows else 0)
            one = one._replace(n_rows=n_computed, n_more=0)
        self.n_decoded, started = 1, time.perf_counter()
        cached = sequence.take_cached()
        if sequence.recurrent:
            self._settle([one], [cached], [one.sequence] if holds else [])
        code = self.decode_sequences([one])
        if code != 0:
            raise self._failed([part], code, len(cached))
        self._passed(one, cached, tokens, time.perf_counter() - started)
        self._n_passes += n_rows > 0
        self._n_rows += n_rows
        return self._logits(native, [(len(tokens) - n_rows, n_rows)])[0]

    def decode(
        self, parts: Sequence[PassPart], n_sequences: int = 0, holds: bool = False
    ) -> list[Logits]:
        """Decode parts of different sequences, and return the rows of each.

        While a pass runs, the contents of its caches are unknown: an interrupt empties them.

        Args:
            parts: The parts; together at most as many tokens as a batch holds.
            n_sequences: Number of sequences to decode; others fill the pass up to it, because
                kernels are faster with whole blocks of rows.
            holds: Others have passes before these sequences are rolled back, so their recurrent
                layers need a checkpoint.

        Returns:
            Views of shape `(n_rows, V)`, in the order of the parts. The next pass overwrites them.

        Raises:
            DecodeError: llama.cpp rejected the batch; the caches of these sequences are then empty.
        """
        if len(parts) == 1:
            return [self._decode_alone(parts[0], holds)]
        own, n_rows = dict[int, Sequence[int]](), 0
        for part in parts:
            part.sequence.check_room(part.tokens)
            own[part.sequence.index] = part.tokens
            n_rows += part.n_rows
        filled, moved = self._filled(parts, n_sequences)
        native, self.n_decoded, started = self.weights.native, len(filled), time.perf_counter()
        caches = [self.sequences[one.sequence].take_cached() for one in filled]
        if self.sequences[0].recurrent:
            self._settle(filled, caches, own.keys() if holds else moved)
        code = self.decode_sequences(filled)
        seconds = time.perf_counter() - started
        n_past, first, ends = max(map(len, caches)), 0, dict[int, int]()
        for one, cached in zip(filled, caches, strict=True):
            index = one.sequence
            tokens = own.get(index, ())  # none of a gap that is filled
            ends[index], first = first + len(tokens), first + len(one.tokens)
            if code == 0 or not tokens:
                self._passed(one, cached, tokens, seconds, index in moved)
        if code != 0:
            raise self._failed(parts, code, n_past)
        self._n_passes += n_rows > 0
        self._n_rows += n_rows
        places = [(ends[part.sequence.index] - part.n_rows, part.n_rows) for part in parts]
        return self._logits(native, places)

    def _logits(self, native: Native, places: Sequence[tuple[int, int]]) -> list[Logits]:
        """Return the rows of a pass; a token that has none in a trimmed draft has the logit -inf.

        Args:
            places: The first token in the batch and the number of rows, for each part.
        """
        n_vocab, kept = self.weights.n_vocab, self.weights.kept
        if kept is None:
            return [native.rows(first, n, n_vocab) for first, n in places]
        total, found = max(1, sum(n for _, n in places)), list[Logits]()
        if len(self._whole) < total:
            self._whole = np.full((total, n_vocab), -np.inf, np.float32)
        at = 0
        for first, n in places:
            found.append(self._whole[at : at + n])
            found[-1][:, kept] = native.rows(first, n, len(kept))
            at += n
        return found

    def _passed(
        self,
        one: SequenceTokens,
        cached: list[int],
        tokens: Sequence[int],
        seconds: float,
        is_moved: bool = False,
    ) -> None:
        """Record a pass for a sequence, and drop what only filled it.

        Args:
            one: What was decoded.
            cached: What was cached before.
            tokens: Those of its part.
            seconds: Seconds of the pass.
            is_moved: Its snapshots may be lost.
        """
        sequence, n, n_decoded = self.sequences[one.sequence], len(tokens), len(one.tokens)
        if sequence.recurrent:
            sequence.recurrent.passed(n_decoded)
            if is_moved:
                sequence.recurrent.pass_of_others()
        elif n < n_decoded:  # recurrent layers drop what filled a pass before the next
            native = self.weights.native
            native.cache(C.llama_memory_seq_rm, one.sequence, one.n_past + n or -1, -1)
        if self._rows and sequence.hidden:
            sequence.hidden.put(len(cached), self._rows.sent(self.weights.native, n))
        if tokens:
            cached += tokens
            sequence.busy_s += seconds
        sequence.put_cached(cached)

    def _failed(self, parts: Sequence[PassPart], code: int, n_past: int) -> DecodeError:
        """Empty the sequences of a pass that llama.cpp rejected, and return the error."""
        for part in parts:
            part.sequence.forget(data=True)
        return DecodeError(code, n_past, sum(len(part.tokens) for part in parts), log.last)

    def decode_sequences(self, parts: Sequence[SequenceTokens]) -> int:
        """Decode tokens of several sequences in one batch, and return llama.cpp's code.

        Each pass may have another number of threads, which the governor chooses.
        """
        native, governor = self.weights.native, self._governor
        native.batch.fill(parts)
        if not governor:
            return native.decode()
        n = n_rows = n_past = 0
        for part in parts:
            n, n_rows, n_past = n + len(part.tokens), n_rows + part.n_rows, n_past + part.n_past
        kind = PassKind(self._owner, n, n_rows, max(n_past, _SHALLOW).bit_length())
        threads = governor.choose(kind)
        if threads != self.threads:
            native.context(C.llama_set_n_threads, threads, threads)
            self.threads = threads
        started = time.perf_counter()
        code = native.decode()
        seconds = time.perf_counter() - started
        if code == 0:
            governor.observe(kind, threads, seconds)
        return code

    def finish_copies(self) -> bool:
        """Let llama.cpp do the copies that wait for a pass; return False without room for a token.

        It copies one sequence to another with the next pass.
        """
        native = self.weights.native
        if not native.has_copies:
            return True
        last = [native.cache(C.llama_memory_seq_pos_max, i) for i in range(len(self.sequences))]
        n_past = min(last) + 1
        if n_past >= self.n_ctx:
            return False
        sequence = last.index(n_past - 1)
        code = self.decode_sequences([SequenceTokens(sequence, n_past, [self.weights.start], 0)])
        native.cache(C.llama_memory_seq_rm, sequence, n_past or -1, -1)
        return code == 0

    def _settle(
        self, parts: Sequence[SequenceTokens], caches: Sequence[list[int]], held: Collection[int]
    ) -> None:
        """Carry out the postponed rollbacks of all sequences, because a pass may move any state."""
        decoded = {
            part.sequence: (part, len(cached)) for part, cached in zip(parts, caches, strict=True)
        }
        for i, sequence in enumerate(self.sequences):
            if not (recurrent := sequence.recurrent):
                continue
            if i not in decoded:
                sequence.settle()
                recurrent.pass_of_others()
                continue
            part, n_past = decoded[i]
            recurrent.settle(n_past)
            if part.n_rows > 1 and i in held:
                recurrent.hold(lasting=False)
            else:
                recurrent.prepare(part.n_rows + part.n_more - 1)

    def move(self, sequence: ModelSequence, free: ModelSequence) -> None:
        """Move a sequence to the place of a free one, whose cache is lost."""
        i, j = sequence.index, free.index
        moved, lost = self.sequences[i], self.sequences[j]
        lost.copy_from(moved)
        moved.index, lost.index = j, i
        self.sequences[j], self.sequences[i] = moved, lost
        lost.forget()

    def refill(self, sequence: ModelSequence, tokens: Sequence[int], n_read: int) -> None:
        """Decode the tokens of a lost cache again, in passes that give them the same bits.

        Args:
            sequence: The sequence, whose cache is empty.
            n_read: Length of the prefix that prefill passes decoded, on the grid.

        Raises:
            DecodeError: llama.cpp rejected a pass; the cache is then empty.
        """
        reads_at_once = self.reads_at_once
        in_any_width = sequence.exactness.in_any_width
        n_read, wide = (len(tokens), reads_at_once) if in_any_width else (n_read, self.widest)
        for start, end, at_once in ((0, n_read, reads_at_once), (n_read, len(tokens), wide)):
            for i in range(start, end, at_once):
                self.decode([PassPart(sequence, tokens[i : min(i + at_once, end)], 0)])
        self.sequences[sequence.index].n_read = n_read

    def _filled(
        self, parts: Sequence[PassPart], n_sequences: int
    ) -> tuple[list[SequenceTokens], set[int]]:
        """Return what llama.cpp decodes: the parts, made equally long, and without gaps.

        Returns:
            The tokens of each sequence in their order, and the sequences whose snapshots the pass
                may lose.
        """
        width = max(len(part.tokens) for part in parts)
        state = self.sequences[0].recurrent
        limit = state.n_snapshots + 1 if state else K_MAX + 1 if self.weights.can_roll_back else 0
        filled = [self._tokens(part, width if width <= limit else 0) for part in parts]
        if width <= limit and not state:
            taken = {one.sequence for one in filled}
            low, high = min(taken), max(taken) + 1
            n_more = max(0, n_sequences - (high - low))
            high = min(len(self.sequences), high + n_more)
            low = max(0, min(low, high - n_sequences))
            more = [i for i in range(low, high) if i not in taken]
            if not self._can_fill(more, width):
                more = [i for i in range(min(taken), max(taken)) if i not in taken]
            fits = width * (len(taken) + len(more)) <= self.widest
            if fits and 2 * len(more) <= len(taken) and self._can_fill(more, width):
                filled += [self._tokens(PassPart(self.sequences[i], [], 0), width) for i in more]
        filled = sorted(filled, key=lambda one: one.sequence)
        if not state:
            return filled, set()
        filled, moved = self._without_moves(filled)
        if moved:  # only snapshots drop what fills a pass
            filled, moved = self._without_moves(sorted(self._tokens(part, 0) for part in parts))
        return filled, moved

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
        if len(runs[0]) > 1 and (
            len(widths) > 1 or len(runs[0]) * max(widths) > self.reads_at_once
        ):
            return ordered, {one.sequence for one in parts}  # in several passes for any ids
        last = max((i for i, run in enumerate(runs) if len(run) > 1), default=0)
        return ordered, {one.sequence for run in runs[:last] for one in run}

    def _can_fill(self, indices: Sequence[int], width: int) -> bool:
        """Return whether sequences have room for `width` tokens that are removed after the pass."""
        return all(self.sequences[i].n_past + width <= self.n_ctx for i in indices)

    def _tokens(self, part: PassPart, width: int) -> SequenceTokens:
        """Return the tokens of a part, filled up to `width` where the context has room."""
        sequence, tokens, n_rows = self.sequences[part.sequence.index], part.tokens, part.n_rows
        n_past, n_more = sequence.n_past, 0
        if width > len(tokens):
            n_more = max(0, min(width, self.n_ctx - n_past) - len(tokens))
            tokens = [*tokens, *[self.weights.start] * n_more]
        position = sequence.position(n_past)
        return SequenceTokens(sequence.index, position, tokens, n_rows, n_more)
