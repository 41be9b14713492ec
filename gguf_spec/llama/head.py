"""Prediction heads of a target, in the place of a draft model.

For each token a head (multi-token prediction, MTP) takes the target's hidden state before it, and
predicts the token after it. The target sends these rows (`llama.native_head`). Behind them, in a
draft, the head takes its own rows in their place. Cached tokens that were decoded with own rows are
dropped by any rollback and decoded again with those of the target, which are better.

Some models have several heads, each for one token further. Then step i of a draft runs head i over
all tokens of the draft.

Gemma 4's assistant (`SharedHead`) reads the cache of its target. It has no cache, so nothing is
read or dropped. All tokens of a draft are decoded at the position after the target's cache.

An EAGLE-3 head is a layer in a file of its own, which reads the inputs of three layers of a target.
It first projects the joined inputs to a row of its own width (`NativeHead.encode`). Then it takes
rows as an MTP head does, in pairs with the next token. In a draft its own rows take their place.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits
from ..errors import ClosedError, DecodeError, InvalidOptionError, NotAModelError
from ..gguf.heads import head_bytes, is_eagle, n_heads, shares_cache
from ..gguf.validation import ModelFile, check_written
from ..options import K_MAX
from ..passes import Exactness, TextPosition
from ..system import subprogram
from . import probe
from .backend import library_parts
from .bindings import C
from .log import context_error, load_error, log
from .memory import head_bytes as cache_bytes_of_head
from .native import N_BATCH
from .native_head import CONTEXT_OF_HEAD, MOST_ENCODED, NativeHead
from .options import FLASH_ATTENTION, KV_TYPES, ContextOptions
from .own_kernels import flash_on_cpu
from .sequence import CachedSequence

if TYPE_CHECKING:
    from pathlib import Path

    from .context import Context
    from .weights import Weights

# Tokens of a draft that are decoded one by one, each with the row of the one before it, if the head
# did not propose them. More are decoded together, without rows.
_MOST_GUESSED = 8


class Head(CachedSequence):
    """A prediction head with a cache of its own, in the place of a draft model.

    Attributes:
        drafter: Name of the drafter that uses it.
        n_heads: Number of heads, of which each predicts one token further; 1 for one head that
            predicts any number of tokens.
        text: Where the cache begins in the text; None for the text's start.
        shares_cache: It reads the cache of its target, and has none of its own.
        needs_token: It can propose nothing while the target's cache is empty.
        skipped: Number of tokens of the text that are left out before the next pass.
    """

    threads: int
    can_roll_back: bool
    context: Context
    n_ctx: int
    n_vocab: int
    options: ContextOptions
    path: Path
    slow_first_pass: bool
    start: int
    weights: Weights

    drafter = "mtp"
    shares_cache = needs_token = False
    context_type = CONTEXT_OF_HEAD
    exactness: Exactness = Exactness()
    why_plain: str = ""
    reads_at_once: int = 0
    busy_s: float
    _native: NativeHead | None = None

    def __init__(
        self, target: CachedSequence, options: ContextOptions, file: ModelFile | None
    ) -> None:
        """Open the head of a loaded target.

        Args:
            target: The target; its options say that a head is used.
            file: The head's own file; None if it is in that of the target.

        Raises:
            GgufSpecError: llama.cpp cannot load or use the head.
        """
        self.file: ModelFile = file or target.file
        self.path, self.options, self.can_roll_back = self.file.path, options, True
        self.context, self.weights = target.context, target.weights
        self._target, self._rows_of_target = target, target.hidden
        self.text: TextPosition | None = None
        self.skipped = 0
        self.n_heads: int = n_heads(self.file.header)
        self._open(file)
        self.n_vocab, self.start, self.n_ctx = target.n_vocab, target.start, target.n_ctx
        self.reads_at_once, self.slow_first_pass = target.reads_at_once, target.slow_first_pass
        self.weight_bytes: int = head_bytes(self.file.header)
        self.cached_bytes: float = (
            cache_bytes_of_head(self.file.header, options, self.n_ctx) / self.n_ctx
        )
        self._cached = []
        # number of first cached tokens that were decoded with rows of the target
        self._n_true = 0
        # The head's row of the last cached token, if it is the last that was decoded; and in a
        # draft of several heads, its tokens with the row before each.
        self._own: NDArray[np.float32] | None = None
        self._chain: list[tuple[int, NDArray[np.float32]]] = []

    def _open(self, file: ModelFile | None) -> None:
        """Load the file of the head, if it has its own, and open its context."""
        options = self.options
        log.clear()
        if file is not None:
            of_weights, layers = C.llama_model_default_params(), options.gpu_layers
            of_weights.n_gpu_layers = layers if isinstance(layers, int) else -1
            of_weights.use_extra_bufts = options.extra_bufts
            of_weights.load_mtp = True
            _ = file.content_id
            if not self._target.native.load(os.fsencode(file.path), of_weights):
                raise load_error(file.header, log)
            file.check_unchanged()
        target, params = self._target, C.llama_context_default_params()
        params.ctx_type = self.context_type
        params.n_ctx = target.n_ctx
        params.n_batch, params.n_ubatch = N_BATCH, target.reads_at_once
        params.n_seq_max, params.kv_unified = 1, True
        params.n_outputs_max = params.n_outputs_max_per_seq = K_MAX + 1
        params.n_threads = params.n_threads_batch = self.threads = target.context.threads
        # that of the target, unless the options of drafts need another
        is_free = options.flash_attention == "auto" and not options.needs_flash_attention
        self.flash_attention: str = (
            target.flash_attention
            if is_free or self.shares_cache
            else flash_on_cpu(self.file.header, options)
        )
        params.flash_attn_type = FLASH_ATTENTION[self.flash_attention]
        params.type_k = params.type_v = KV_TYPES[options.kv_type][0]
        log.clear()
        opened = target.native.open_head(params)
        if not opened:
            raise context_error(options, target.n_ctx, log)
        self._native = NativeHead(target.native, opened, self._width())

    @property
    def native(self) -> Any:
        _ = self.weights.native
        if self._native is None:
            raise ClosedError
        return self._native

    def close(self) -> None:
        """Release the context, unless a pass uses it; further calls have no effect."""
        self._native = None

    def _width(self) -> int:
        """Return the length of the rows that the head takes."""
        assert self._rows_of_target is not None
        return self._rows_of_target.width

    @property
    def is_ready(self) -> bool:
        """Whether it can propose a token now."""
        return not self.needs_token or self._target.n_past > 0

    @property
    def label(self) -> str:
        return f"{self.path.name} (prediction head)"

    @property
    def memory_bytes(self) -> int:
        """Approximate memory beside that of the target: its own file, cache and rows."""
        own = 0 if self.file is self._target.file else self.file.header.file_bytes
        rows: int = self._rows_of_target.width * 4 * self.n_ctx if self._rows_of_target else 0
        return own + rows + round(self.cached_bytes * self.n_ctx)

    # ---- interface of a draft model

    def restore(self, tokens: Sequence[int], n_read: int, state: Any) -> bool:
        """Restore the cache, as `CachedSequence`; the rows of the target are not restored."""
        done = super().restore(tokens, n_read, state)
        self._n_true = self.n_past
        return done

    def read(self, tokens: Sequence[int]) -> None:
        for i in range(0, len(tokens), self.reads_at_once):
            self._decode(tokens[i : i + self.reads_at_once], 0)

    def logits(self, tokens: Sequence[int], n_rows: int) -> Logits:
        if not 0 < n_rows <= min(len(tokens), K_MAX + 1):
            raise InvalidOptionError("n_rows", n_rows, f"from 1 to {len(tokens)}")
        if len(tokens) > N_BATCH:
            self.read(tokens[:-n_rows])
            tokens = tokens[-n_rows:]
        n_known = self._n_known(len(tokens))
        n_guessed = len(tokens) - n_known
        if n_rows > 1 or not 0 < n_guessed <= _MOST_GUESSED:
            return self._decode(tokens, n_rows)
        if n_known:
            rows = self._decode(tokens[:n_known], 1)
        for token in tokens[n_known:]:
            rows = self._guess(token)
        return rows

    def rollback(self, to: int) -> None:
        """Drop all cached tokens after the first `to`, and those decoded with own rows."""
        self._chain.clear()
        super().rollback(self._kept(to))

    def _kept(self, to: int) -> int:
        """Return the number of first tokens that a rollback to `to` keeps, and count them."""
        n = min(to, self._n_true)
        self._own, self._n_true = (self._own if n >= self.n_past else None), n
        return n

    def forget(self, data: bool = False) -> None:
        super().forget(data)
        self._n_true, self._own = 0, None
        self._chain.clear()

    # ---- passes

    def _position(self) -> int:
        """Return the position in the text of the next token."""
        return self.n_past + self.skipped + (self.text.offset if self.text else 0)

    def _rows_before(self, start: int, n: int) -> NDArray[np.float32]:
        """Return the rows before `n` positions; zeros where the target's are unknown."""
        assert self._rows_of_target is not None
        return self._rows_of_target.before(start, n)

    def _n_known(self, n: int) -> int:
        """Return how many of the next `n` tokens have a row of the target, or none at all."""
        end = self._rows_of_target.end if self._rows_of_target else 0
        return max(0, min(n, end + 1 - self._position()))

    def _decode(self, tokens: Sequence[int], n_rows: int) -> Logits:
        """Decode tokens with the rows of the target, or with zeros where they are unknown.

        A token whose own row is needed is decoded alone: some graphs of llama.cpp return the rows
        of the tokens with logits, and others the first rows of the pass.
        """
        if n_rows == 1 < len(tokens):
            self._decode(tokens[:-1], 0)
            tokens = tokens[-1:]
        rows = self._rows_before(self._position(), len(tokens))
        n_past, is_true = self.n_past, self._n_true == self.n_past
        # The first head comes last, because its logits are needed.
        for layer in reversed(range(self.n_heads)):
            self._pass(n_past, tokens, rows, n_rows, layer)
        if is_true:
            self._n_true = self.n_past
        if self.n_heads > 1:
            self._chain = [(tokens[-1], rows[-1])]
        return self._results(len(tokens), n_rows)

    def _guess(self, token: int) -> Logits:
        """Decode a token of a draft, behind the rows that the target has sent."""
        row = np.zeros(self._width(), np.float32) if self._own is None else self._own
        if self.n_heads == 1:
            self._pass(self.n_past, [token], row[None], 1, 0)
            return self._results(1, 1)
        self._chain.append((token, row))
        first = self.n_past + 1 - len(self._chain)
        if not 1 < len(self._chain) <= self.n_heads or first < 0:
            raise DecodeError(-1, self.n_past, 1, f"the draft is longer than {self.n_heads} tokens")
        tokens, rows = [one for one, _ in self._chain], np.stack([one for _, one in self._chain])
        # The cache of the first head misses these tokens from now on.
        self._n_true = min(self._n_true, first)
        # all rows are returned, as in `_decode`
        self._pass(first, tokens, rows, len(tokens), len(tokens) - 1)
        return self._results(len(tokens), len(tokens))[-1:]

    def _pass(
        self,
        first: int,
        tokens: Sequence[int],
        rows: NDArray[np.float32],
        n_rows: int,
        layer: int,
    ) -> None:
        """Decode tokens with their rows at position `first`, with one of the heads."""
        native = self.native
        if first + len(tokens) > self.n_ctx:
            raise DecodeError(1, first, len(tokens), f"the context holds {self.n_ctx}")
        if tokens and not 0 <= min(tokens) <= max(tokens) < self.n_vocab:
            raise InvalidOptionError("tokens", list(tokens), f"ids from 0 to {self.n_vocab - 1}")
        cached, started = self.take_cached(), time.perf_counter()
        if self.threads != self._target.context.threads:
            self.threads = self._target.context.threads
            native.context(C.llama_set_n_threads, self.threads, self.threads)
        if first < len(cached):
            native.cache(C.llama_memory_seq_rm, 0, first, -1)
        native.fill(tokens, rows, first, n_rows)
        code = native.decode(layer)
        self.busy_s += time.perf_counter() - started
        if code != 0:
            self.forget(data=True)
            raise DecodeError(code, first, len(tokens), log.last)
        self._cached = [*cached[:first], *tokens]

    def _results(self, n: int, n_rows: int) -> Logits:
        """Return the logits of the last pass, and keep the row of its last token."""
        if not n_rows:
            self._own = None
            return np.empty((0, self.n_vocab), np.float32)
        self._own = self.native.last_row()
        logits: Logits = self.native.logits(n - n_rows, n_rows, self.n_vocab)
        return logits


class SharedHead(Head):
    """A head without a cache; its tokens are only counted."""

    shares_cache = needs_token = True  # the mean of no cached tokens is not a number

    def read(self, tokens: Sequence[int]) -> None:
        self._cached = [*self.cached, *tokens]
        self._n_true, self._own = self.n_past, None

    def logits(self, tokens: Sequence[int], n_rows: int) -> Logits:
        """Return the logits after the last token.

        Raises:
            InvalidOptionError: More than one row is asked for.
            DecodeError: The context is full, or llama.cpp rejected the batch.
        """
        if n_rows != 1 or not tokens:
            raise InvalidOptionError("n_rows", n_rows, "1")
        n_known = self._n_known(len(tokens))
        if n_known:
            self.read(tokens[:n_known])
            rows = self._decode_at_end(tokens[n_known - 1], None)
        for token in tokens[n_known:]:
            self._cached = [*self.cached, token]
            rows = self._decode_at_end(token, self._own)
        return rows

    def rollback(self, to: int) -> None:
        self._cached = self.cached[: self._kept(to)]

    def state_bytes(self) -> int:
        return 0

    def restore(self, tokens: Sequence[int], n_read: int, state: Any) -> bool:
        self.rollback(0)
        self.read(tokens)
        return n_read == 0 and not len(state)

    def _decode_at_end(self, token: int, row: NDArray[np.float32] | None) -> Logits:
        """Decode a token behind the target's cache, with a row of the head or of the target."""
        assert self._rows_of_target is not None
        counted, self._cached = self.cached, []
        end = self._target.n_past
        rows = self._rows_of_target.before(end, 1) if row is None else row[None]
        self._pass(end, [token], rows, 1, 0)
        self._cached = counted
        return self._results(1, 1)

    def _clear(self, data: bool) -> None:
        """Do nothing: the cache is the target's."""


class EagleHead(Head):
    """A head that takes projected inputs of layers."""

    drafter = "eagle3"
    context_type = 0  # llama.cpp's LLAMA_CONTEXT_TYPE_DEFAULT
    needs_token = True  # it reads pairs of a row of the target and the next token

    busy_s: float

    def _width(self) -> int:
        return self.file.header.whole("embedding_length")

    def _rows_before(self, start: int, n: int) -> NDArray[np.float32]:
        rows, native = super()._rows_before(start, n), self.native
        parts, started = [], time.perf_counter()
        for i in range(0, n, MOST_ENCODED):
            code, encoded = native.encode(rows[i : i + MOST_ENCODED])
            if code != 0:
                raise DecodeError(code, start, n, log.last)
            parts.append(encoded)
        self.busy_s += time.perf_counter() - started
        return np.concatenate(parts)

    def _decode(self, tokens: Sequence[int], n_rows: int) -> Logits:
        """Decode tokens with the rows of the target, or with zeros where they are unknown.

        llama.cpp computes the logits of all tokens, and returns the first ones if only some are
        asked for.
        """
        if n_rows and len(tokens) > K_MAX + 1:
            self._decode(tokens[:-n_rows], 0)
            tokens = tokens[-n_rows:]
        n, n_past, position = len(tokens), self.n_past, self._position()
        if position == 0 and n > 1:  # the others do not see the first one
            first = self._decode(tokens[:1], int(n_rows == n)).copy()
            rest = self._decode(tokens[1:], min(n_rows, n - 1))
            return np.concatenate([first, rest]) if n_rows == n else rest
        is_true = self._n_true == n_past
        self._pass(n_past, tokens, self._rows_before(position, n), n if n_rows else 0, 0)
        if position == 0:
            # no row comes before the first token; it stays counted, as positions are the text's
            cached = self.take_cached()
            self.native.cache(C.llama_memory_seq_rm, 0, 0, 1)
            self._cached = cached
        if is_true:
            self._n_true = self.n_past
        results = self._results(n, n if n_rows else 0)
        return results[n - n_rows :] if n_rows else results


def open_head(target: CachedSequence, options: ContextOptions, file: ModelFile | None) -> Head:
    """Open the head of a loaded target; the arguments are those of `Head`.

    Raises:
        GgufSpecError: llama.cpp cannot load or use the head.
    """
    if file and is_eagle(file.header):
        return EagleHead(target, options, file)
    kind = SharedHead if file and shares_cache(file.header) else Head
    return kind(target, options, file)


def why_head_fails(target: ModelFile, head: ModelFile | None) -> str:
    """Return why llama.cpp cannot use a head, as a sentence; empty if it can.

    On a file that it does not support llama.cpp may end the process, so a head is tried in a child
    process before it is loaded.

    Args:
        head: The head's own file; None if it is in that of the target.
    """
    files = [target, *([head] if head else [])]
    try:
        check_written(files[-1].header)
    except NotAModelError as error:
        return error.message.removesuffix(".")

    def find() -> str:
        name = files[-1].path.name
        try:
            works = probe.run("head", *(one.path for one in files))
        except probe.ProbeError as error:
            return f"llama.cpp fails on the prediction head of {name} (a test {error})"
        return "" if works else f"llama.cpp cannot use the prediction head of {name}"

    file = probe.result_file("head", *library_parts(), *(one.content_id for one in files))
    return probe.remembered(file, find, alone=subprogram.refusal())
