"""Embeddings and scores: a second context on the weights of a model.

It is created with the first texts, and again when a longer text comes. A pass of embeddings is one
whole text: llama.cpp pools over the tokens of one pass, and aborts the process if the tokens of an
encoder do not fit into one. Beside other texts the bits of its sums would depend on them. Texts
that are scored share the cells of the prompt before them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import (
    DecodeError,
    EmptyPromptError,
    InvalidOptionError,
    NoRankingError,
    TextTooLongError,
)
from ..gguf.validation import pooling_of, ranks
from ..options import K_MAX, POOLING
from ..system.process import OfOneProcess
from .backend import without_signals
from .bindings import C
from .log import context_error, keep_last, keep_lines, log
from .memory import (
    LEAST,
    check_room_to_embed,
    embedding_bytes,
    flash_attention,
    padded,
)
from .native import Native, SequenceTokens
from .options import FLASH_ATTENTION, KV_TYPES, physical_cores
from .own_kernels import has_own_attention
from .sequence import CachedSequence

Rows = NDArray[np.float32]

# Most texts of a pass that are scored.
_MOST_TEXTS = 64


class Embedder(OfOneProcess):
    """Computes embeddings with the weights of a model. One thread at a time may use it.

    Attributes:
        pooling: `none`, `mean`, `cls`, `last` or `rank`.
    """

    _most_at_once = 1 << 30  # tokens of a pass

    def __init__(self, model: CachedSequence) -> None:
        """Use a model; no context is created yet.

        Raises:
            NoRankingError: The options demand ranking, and the file cannot rank.
        """
        self._model, self._native, self._capacity = model, None, 0
        self.pooling: str = model.options.pooling or pooling_of(model.file.header)
        if self.pooling == "rank" and not ranks(model.file.header):
            raise NoRankingError(model.path, "the file has no classification head")

    _native: Native | None

    def _give_up(self) -> object:
        self._native = None
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._model.path.name}>"

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of the context."""
        if not self._capacity:
            return 0
        header, options = self._model.file.header, self._model.options
        return embedding_bytes(header, options, self._capacity, self._most_at_once)

    def close(self) -> None:
        """Free the context; further calls have no effect."""
        last, self._native, self._capacity = [self._native], None, 0
        try:
            if last[0]:
                without_signals(last.clear)
        finally:
            last.clear()

    def check(self, texts: Sequence[Sequence[int]]) -> None:
        """Reject token ids that cannot be embedded, on some of which llama.cpp would abort.

        Raises:
            EmptyPromptError, TextTooLongError, InvalidOptionError: A text is empty, too long, or
                contains an id that is not in the vocabulary.
        """
        model = self._model
        for index, ids in enumerate(texts):
            if not ids:
                raise EmptyPromptError(f"the text {index} is empty.", "leave it out.")
            if len(ids) > model.n_ctx:
                raise TextTooLongError(index, len(ids), model.n_ctx, model.weights.n_ctx_train)
            for token in ids:
                if not (isinstance(token, (int, np.integer)) and 0 <= token < model.n_vocab):
                    allowed = f"ids from 0 to {model.n_vocab - 1}"
                    hint = "take the ids from this model."
                    raise InvalidOptionError("texts", token, allowed, hint)

    def run(self, texts: Sequence[Sequence[int]], on_pass: Callable[[int], object]) -> list[Rows]:
        """Return the embedding of each text: a vector, scores, or rows with the pooling `none`.

        Args:
            texts: Token ids that were checked by `check`.
            on_pass: Called before each pass with the number of finished texts. An exception of it
                ends the call.

        Raises:
            NotEnoughMemoryError: The context does not fit; raised before it is created.
            DecodeError: llama.cpp rejected a batch.
        """
        # Long texts need flash attention, whose bits differ: they have a context of their own.
        by_flash = defaultdict[str, list[int]](list)
        for i, ids in enumerate(texts):
            by_flash[self._flash_of(self._room_for(len(ids)))].append(i)
        rows: dict[int, Rows] = {}
        for some in by_flash.values():
            native = self._opened(max(len(texts[i]) for i in some))
            for i in some:
                on_pass(len(rows))
                rows[i] = self.rows_of(native, texts[i])
        return [rows[i] for i in range(len(texts))]

    def rows_of(self, native: Native, ids: Sequence[int]) -> Rows:
        native.cache(C.llama_memory_clear, True)
        decode_parts(native, [SequenceTokens(0, 0, ids, len(ids))])
        n_values = native.model(
            C.llama_model_n_cls_out if self.pooling == "rank" else C.llama_model_n_embd_out
        )
        if self.pooling != "none":
            return native.embedding(0, n_values)
        return native.token_embeddings(len(ids), n_values)

    def _room_for(self, n_tokens: int) -> int:
        """Return the size of the context for a text."""
        return min(max(LEAST, 1 << (n_tokens - 1).bit_length()), padded(self._model.n_ctx))

    def _flash_of(self, capacity: int) -> str:
        return flash_attention(self._model.file.header, self._model.options, capacity)

    def _opened(self, longest: int) -> Native:
        """Return the context, with room for a text of `longest` tokens, and its attention."""
        model, options = self._model, self._model.options
        capacity = self._room_for(longest)
        is_same = self._flash_of(capacity) == self._flash_of(self._capacity)
        if self._native and longest <= self._capacity and is_same:
            return self._native
        self.close()
        if not options.rpc:  # that of the workers is not known
            check_room_to_embed(model.file.header, options, capacity, self._most_at_once)
        params = C.llama_context_default_params()
        params.n_ctx, params.kv_unified = capacity, True
        params.n_batch = params.n_ubatch = min(capacity, self._most_at_once)
        params.n_threads = params.n_threads_batch = options.threads or physical_cores()
        self._prepare(params)
        params.type_k = params.type_v = KV_TYPES[options.kv_type][0]
        native = model.native.share()
        keep_lines()
        try:
            log.clear()
            if not native.open(params, params.n_batch):
                raise context_error(options, capacity, log)
            if options.lora:
                native.use_adapters([adapter.scale for adapter in options.lora])
        finally:
            keep_last()
        self._native, self._capacity = native, capacity
        return native

    def _prepare(self, params: Any) -> None:
        params.flash_attn_type = FLASH_ATTENTION[self._flash_of(params.n_ctx)]
        params.embeddings, params.pooling_type = True, POOLING.index(self.pooling)
        params.n_seq_max = 1


class Scorer(Embedder):
    """Scores texts that continue a prompt, which is read once. One thread at a time may use it.

    Where the bits of a row do not depend on other cells and rows, as with the own kernels, a pass
    has several texts. Elsewhere each has its own, in cells directly behind the prompt. So a
    score never depends on the other texts.
    """

    def __init__(self, model: CachedSequence) -> None:
        """Use a model that generates text; no context is created yet."""
        self._model, self._native, self._capacity = model, None, 0
        self._most_at_once = max(model.reads_at_once, K_MAX + 1)
        exactness = model.exactness
        is_exact = exactness.attention and exactness.in_any_width and model.can_roll_back
        is_own = has_own_attention(model.file.header, model.options)
        is_apart = not (is_exact and is_own and model.flash_attention == "on")
        self._most = 1 if is_apart else _MOST_TEXTS

    def score(
        self,
        prompt: Sequence[int],
        texts: Sequence[Sequence[int]],
        on_pass: Callable[[int], object],
    ) -> Iterator[tuple[int, Rows]]:
        """Yield index of a text and row of logits, for each of its tokens in order.

        Args:
            prompt: Token ids, at least one.
            texts: Token ids of each text, at least one.
            on_pass: As for `run`.

        Raises:
            NotEnoughMemoryError, DecodeError: As for `run`.
        """
        model, last, n_vocab = self._model, len(prompt) - 1, self._model.n_vocab
        native, at_once = self._opened(len(prompt) + max(map(len, texts))), model.reads_at_once
        native.cache(C.llama_memory_clear, False)
        for at in range(0, last, at_once):
            on_pass(0)
            decode_parts(native, [SequenceTokens(0, at, prompt[at : min(at + at_once, last)], 0)])
        decode_parts(native, [SequenceTokens(0, last, prompt[last:], 1)])
        yield from ((i, native.rows(0, 1, n_vocab)[0]) for i in range(len(texts)))
        width, n_done = min(model.exactness.most_rows, self._capacity - len(prompt)), 0
        for group in _groups([ids[:-1] for ids in texts], width, self._most):
            for i in range(len(group)):
                native.cache(C.llama_memory_seq_cp, 0, i + 1, -1, -1)
            for at in range(0, max(map(len, group)), width):  # only a text alone is wider
                on_pass(n_done)
                pieces = [ids[at : at + width] for ids in group]
                sequences = [
                    SequenceTokens(i, len(prompt) + at, ids, len(ids))
                    for i, ids in enumerate(pieces, 1)
                    if ids
                ]
                decode_parts(native, sequences)
                owners = [i for i, ids in enumerate(pieces, n_done) for _ in ids]
                yield from zip(owners, native.rows(0, len(owners), n_vocab), strict=True)
            for i in range(len(group)):
                native.cache(C.llama_memory_seq_rm, i + 1, -1, -1)
            n_done += len(group)

    def _prepare(self, params: Any) -> None:
        params.flash_attn_type = FLASH_ATTENTION[self._model.flash_attention]
        params.n_outputs_max = params.n_outputs_max_per_seq = K_MAX + 1
        params.n_seq_max = 1 + self._most


def _groups(texts: Sequence[Sequence[int]], room: int, most: int) -> Iterator[list[Sequence[int]]]:
    """Yield the texts of each pass, at most `most`; several have at most `room` tokens."""
    group: list[Sequence[int]] = []
    n_tokens = 0
    for ids in texts:
        if group and (n_tokens + len(ids) > room or len(group) == most):
            yield group
            group, n_tokens = [], 0
        group.append(ids)
        n_tokens += len(ids)
    if group:
        yield group


def decode_parts(native: Native, parts: Sequence[SequenceTokens]) -> None:
    native.batch.fill(parts)
    log.clear()
    if code := native.decode():
        raise DecodeError(code, parts[0].n_past, sum(len(one.tokens) for one in parts), log.last)
