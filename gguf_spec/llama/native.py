"""What llama.cpp has allocated for one model, and when it is freed.

`Native` is freed when nothing refers to it any more: not the model, no call that runs, no row of logits. Each call goes through a method of it and
so holds it. A `close` in another thread frees nothing under a call, no lock is needed, and an exception at any point leaves nothing locked.
"""

from __future__ import annotations

import atexit
import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..options import BRANCHES_MAX, K_MAX
from .bindings import C

N_BATCH = 512  # tokens of a batch at most
_BRANCHED = K_MAX + 1 + BRANCHES_MAX  # tokens of a batch with branches at most

_frees: set[weakref.ref[Native]] = set()
atexit.register(
    _frees.clear
)  # at the end of the process the system takes all of it, while llama.cpp's threads may still run


class Native:
    """The pointers of one model: its weights, adapters, context and batch."""

    def __init__(self) -> None:
        self._models: list[Any] = []
        self._adapters: list[Any] = []
        self._contexts: list[Any] = []
        self._batches: list[Any] = []
        self._vocab: Any = None
        self._memory: Any = None
        self.batch: Batch
        for gone in [one for one in [*_frees] if one() is None]:
            _frees.discard(gone)
        # In C from the first to the last, as Ctrl-C between two of them would leave the rest in memory: `filter` asks for all, as none is true.
        freed = chain(
            map(C.llama_batch_free, self._batches),
            map(C.llama_free, filter(None, self._contexts)),
            map(C.llama_adapter_lora_free, filter(None, self._adapters)),
            map(C.llama_model_free, filter(None, self._models)),
        )
        _frees.add(weakref.ref(self, partial(next, filter(None, freed))))

    # ---- making

    def load(self, path: bytes, params: Any) -> bool:
        """Load the weights; return whether llama.cpp could."""
        _keep(self._models, C.llama_model_load_from_file, path, params)
        if self._models[0]:
            self._vocab = C.llama_model_get_vocab(self._models[0])
        return bool(self._models[0])

    def adapt(self, path: bytes) -> bool:
        """Load an adapter; return whether llama.cpp could."""
        _keep(self._adapters, C.llama_adapter_lora_init, self._models[0], path)
        return bool(self._adapters[-1])

    def open(self, params: Any, n_sequences: int) -> bool:
        """Make the context and a batch for it; return whether llama.cpp could."""
        _keep(self._contexts, C.llama_init_from_model, self._models[0], params)
        if not self._contexts[0]:
            return False
        self._memory = C.llama_get_memory(self._contexts[0])
        _keep(self._batches, C.llama_batch_init, N_BATCH, 0, n_sequences)
        self.batch = Batch(self._batches[0])
        return True

    def use_adapters(self, scales: Sequence[float]) -> None:
        """Use all adapters, each with its scale."""
        n = len(self._adapters)
        C.llama_set_adapters_lora(
            self._contexts[0],
            (C.llama_adapter_lora_p_ctypes * n)(*self._adapters),
            n,
            (ctypes.c_float * n)(*scales),
        )

    # ---- calling

    def model(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of llama.cpp with the model before the arguments."""
        return function(self._models[0], *arguments)

    def vocab(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of llama.cpp with the vocabulary before the arguments."""
        return function(self._vocab, *arguments)

    def context(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of llama.cpp with the context before the arguments."""
        return function(self._contexts[0], *arguments)

    def cache(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of llama.cpp with the context's cache before the arguments."""
        return function(self._memory, *arguments)

    def decode(self) -> int:
        """Decode the batch, and wait for it; return llama.cpp's code."""
        code: int = C.llama_decode(self._contexts[0], self._batches[0])
        C.llama_synchronize(self._contexts[0])  # a GPU may still be at it
        return code

    def rows(self, first: int, n_rows: int, n_vocab: int) -> NDArray[np.float32]:
        """Return a view of the logits after the batch's token `first`, and of the `n_rows - 1` rows behind them. It keeps this object alive."""
        row = C.llama_get_logits_ith(self._contexts[0], first)
        values: Any = (ctypes.c_float * (n_rows * n_vocab)).from_address(
            ctypes.addressof(row.contents)
        )
        values.native = self
        return np.frombuffer(values, np.float32).reshape(n_rows, n_vocab)


def _keep(made: list[Any], function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function and keep what it makes, in C: Ctrl-C during the call takes effect behind it, and not before the pointer is kept."""
    made.extend(starmap(function, [arguments]))


class Batch:
    """Tokens for one pass."""

    def __init__(self, batch: Any) -> None:
        """Write to a `llama_batch` of `N_BATCH` tokens."""
        self._batch = batch
        self._tokens = np.ctypeslib.as_array(batch.token, (N_BATCH,))
        self._positions = np.ctypeslib.as_array(batch.pos, (N_BATCH,))
        self._outputs = np.ctypeslib.as_array(batch.logits, (N_BATCH,))
        self._n_sequences = np.ctypeslib.as_array(batch.n_seq_id, (N_BATCH,))
        self._branched = False  # whether tokens may belong to other sequences than the first
        self._put_into_first(N_BATCH)

    def fill(
        self, tokens: Sequence[int], n_rows: int, branches: Sequence[tuple[int, int]], n_past: int
    ) -> tuple[int, int]:
        """Write tokens that follow `n_past` others, then the branches. Rows are wanted of the last `n_rows` tokens and of all branches.

        Returns:
            The lowest and the highest id.
        """
        if self._branched:
            self._put_into_first(_BRANCHED)
            self._branched = False
        n_cached, n = len(tokens), len(tokens) + len(branches)
        self._tokens[:n] = [*tokens, *(token for _, token in branches)]
        self._positions[:n_cached] = np.arange(n_past, n_past + n_cached)
        self._outputs[: n_cached - n_rows] = 0
        self._outputs[n_cached - n_rows : n] = 1
        self._batch.n_tokens = n
        if branches:
            self._branched = True
            self._give_sequences(n_cached, branches, n_past)
        return (int(self._tokens[:n].min()), int(self._tokens[:n].max())) if n else (0, 0)

    def _give_sequences(
        self, n_cached: int, branches: Sequence[tuple[int, int]], n_past: int
    ) -> None:
        """Give each branch a sequence of its own, which the first tokens of the batch belong to as well."""
        for i in range(n_cached):
            beyond = [s for s, (at, _) in enumerate(branches, 1) if i < at]
            self._n_sequences[i] = 1 + len(beyond)
            for place, s in enumerate(beyond, 1):
                self._batch.seq_id[i][place] = s
        for s, (at, _) in enumerate(branches, 1):
            self._positions[n_cached + s - 1] = n_past + at
            self._batch.seq_id[n_cached + s - 1][0] = s

    def _put_into_first(self, n: int) -> None:
        """Put the first `n` tokens into the first sequence alone."""
        self._n_sequences[:n] = 1
        for i in range(n):
            self._batch.seq_id[i][0] = 0
