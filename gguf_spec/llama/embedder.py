"""Embeddings: a second context on the weights of a model, whose passes hold several texts.

It is created with the first texts, and again when a longer text comes. A pass holds whole texts
only: llama.cpp pools over the tokens of one pass, and aborts the process if the tokens of an
encoder do not fit into one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

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
from ..options import POOLING
from .backend import apart
from .bindings import C
from .log import context_error, keep_last, keep_lines, log
from .memory import (
    LEAST,
    check_room_to_embed,
    embedding_bytes,
    flash_attention,
    padded,
)
from .model import Model
from .native import Native, SequenceTokens
from .options import FLASH_ATTENTION, KV_TYPES, physical_cores

Rows = NDArray[np.float32]

# Most texts of a pass. Recurrent and hybrid models read one: each of their sequences has a state.
_MOST_TEXTS = 64


class Embedder:
    """Computes embeddings with the weights of a model. One thread at a time may use it.

    Attributes:
        pooling: `none`, `mean`, `cls`, `last` or `rank`.
    """

    def __init__(self, model: Model) -> None:
        """Use a model; no context is created yet.

        Raises:
            NoRankingError: The options demand ranking, and the file cannot rank.
        """
        self._model, self._native, self._capacity = model, None, 0
        self.pooling = model.options.pooling or pooling_of(model.file.header)
        if self.pooling == "rank" and not ranks(model.file.header):
            raise NoRankingError(model.path, "the file has no classification head")

    _native: Native | None

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of the context."""
        if not self._capacity:
            return 0
        return embedding_bytes(self._model.file.header, self._model.options, self._capacity)

    def close(self) -> None:
        """Free the context; further calls do nothing."""
        last, self._native, self._capacity = [self._native], None, 0
        try:
            if last[0] and threading.current_thread() is threading.main_thread():
                apart(last.clear)
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
                raise EmptyPromptError
            if len(ids) > model.n_ctx:
                raise TextTooLongError(index, len(ids), model.n_ctx, model.n_ctx_train)
            for token in ids:
                if not (isinstance(token, (int, np.integer)) and 0 <= token < model.n_vocab):
                    allowed = f"ids from 0 to {model.n_vocab - 1}"
                    raise InvalidOptionError("texts", token, allowed)

    def run(
        self, texts: Sequence[Sequence[int]], on_pass: Callable[[int], object]
    ) -> Iterator[Rows]:
        """Yield the embedding of each text: a vector, scores, or rows with the pooling `none`.

        Args:
            texts: Token ids that were checked by `check`.
            on_pass: Called before each pass with the number of finished texts. An exception of it
                ends the call.

        Raises:
            NotEnoughMemoryError: The context does not fit; raised before it is created.
            DecodeError: llama.cpp rejected a batch.
        """
        longest = max(map(len, texts), default=0)
        native = self._opened(longest)
        n_done = 0
        for group in self._groups(texts):
            on_pass(n_done)
            yield from self._pass(native, group)
            n_done += len(group)

    def _groups(self, texts: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
        """Yield the texts of each pass."""
        most = _MOST_TEXTS if self._model.can_roll_back else 1
        group: list[Sequence[int]] = []
        n_tokens = 0
        for ids in texts:
            if group and (n_tokens + len(ids) > self._capacity or len(group) == most):
                yield group
                group, n_tokens = [], 0
            group.append(ids)
            n_tokens += len(ids)
        if group:
            yield group

    def _pass(self, native: Native, group: Sequence[Sequence[int]]) -> Iterator[Rows]:
        native.cache(C.llama_memory_clear, True)
        native.batch.fill([SequenceTokens(i, 0, ids, len(ids)) for i, ids in enumerate(group)])
        n_tokens = sum(map(len, group))
        log.clear()
        code = native.decode()
        if code != 0:
            raise DecodeError(code, 0, n_tokens, log.last)
        n_values = native.model(
            C.llama_model_n_cls_out if self.pooling == "rank" else C.llama_model_n_embd_out
        )
        if self.pooling != "none":
            yield from [native.embedding(i, n_values) for i in range(len(group))]
            return
        rows = native.token_embeddings(n_tokens, n_values)
        ends = np.cumsum([len(ids) for ids in group])[:-1]
        yield from np.split(rows, ends)

    def _opened(self, longest: int) -> Native:
        """Return the context, with room for a text of `longest` tokens."""
        if self._native and longest <= self._capacity:
            return self._native
        model, options = self._model, self._model.options
        capacity = min(max(LEAST, 1 << (longest - 1).bit_length()), padded(model.n_ctx))
        self.close()
        if not options.rpc:  # that of the workers is not known
            check_room_to_embed(model.file.header, options, capacity)
        params = C.llama_context_default_params()
        params.embeddings, params.pooling_type = True, POOLING.index(self.pooling)
        params.n_ctx = params.n_batch = params.n_ubatch = capacity
        params.n_seq_max = min(_MOST_TEXTS, capacity) if model.can_roll_back else 1
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = options.threads or physical_cores()
        flash = flash_attention(model.file.header, options, capacity)
        params.flash_attn_type = FLASH_ATTENTION[flash]
        params.type_k = params.type_v = KV_TYPES[options.kv_type][0]
        native = model.native.share()
        keep_lines()
        try:
            log.clear()
            if not native.open(params, capacity):
                raise context_error(options, capacity, log)
            if options.lora:
                native.use_adapters([adapter.scale for adapter in options.lora])
        finally:
            keep_last()
        self._native, self._capacity = native, capacity
        return native
