"""Native objects of one llama.cpp model and their lifetime.

`Native` is freed when nothing refers to it any more: no model, no running call, no row of logits.
Every call goes through one of its methods and so holds a reference. A `close` in another thread
therefore frees nothing under a running call, no lock is needed, and an exception at any point
leaves nothing locked.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, starmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ForkedError
from ..system.process import OfOneProcess
from .bindings import C
from .devices import apply_placement
from .options import Placement
from .token_rows import TokenRows

Names = Sequence[str]
N_BATCH = 512  # largest number of tokens in a batch

# references to the live objects, with the functions that free their memory
_frees: set[weakref.ref[Native]] = set()
# calls that take long, by threads other than the main one
long_calls: set[object] = set()
# not empty from the end of the program on
_ends: list[bool] = []
_PATIENCE_S = 10.0  # most that the end of the program waits for them
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=long_calls.clear)


@atexit.register
def _wait() -> None:
    """Wait for the passes, loads and frees of other threads, and let no further ones begin.

    The end of a process destroys objects that llama.cpp's kernels use: a pass would crash. Python
    ends a thread that returns to it then; from a callback, with frames of C++ below, that aborts
    the process.
    """
    _ends.append(True)
    _frees.clear()  # the operating system frees all of it
    until = time.monotonic() + _PATIENCE_S
    while long_calls and time.monotonic() < until:
        time.sleep(0.002)


def long_call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of llama.cpp that takes long; the end of the program waits for it.

    That of the main thread is not counted: Ctrl-C may come before its end is.

    Raises:
        SystemExit: As `end_with_program`.
    """
    if threading.get_ident() == threading.main_thread().ident:
        return function(*arguments)
    key = object()
    try:
        long_calls.add(key)
        if _ends:
            end_with_program()
        return function(*arguments)
    finally:
        long_calls.discard(key)


def end_with_program() -> None:
    """End a thread other than the main one if the program is at its end.

    Raises:
        SystemExit: It is. A thread ends by it without a word.
    """
    if _ends and threading.current_thread() is not threading.main_thread():
        raise SystemExit


# processes that used llama.cpp: this one, and those of which it is a child by fork
users: set[int] = set()


class Native(OfOneProcess):
    """The pointers of one model: its weights, adapters, context and batch.

    A prediction head (`llama.native_head`) adds a context, and its own file the weights in it.

    Attributes:
        batch: The tokens of the next pass.
        has_copies: Whether copies of sequences wait for the next pass.
        token_rows: What the passes take in place of token ids; None for the ids.
    """

    has_copies: bool
    token_rows: TokenRows | None = None

    def __init__(self, weights: Native | None = None) -> None:
        """Create an object without pointers.

        Args:
            weights: Another object whose weights and adapters are used; None to load own ones.

        Raises:
            ForkedError: The threads of OpenMP were lost in a fork: a pass would wait for them.
        """
        users.add(os.getpid())
        if len(users) > 1 and b"OPENMP = 1" in C.llama_print_system_info():
            raise ForkedError(
                "this build of llama.cpp uses OpenMP, which does not survive a fork after its use.",
                "start processes with spawn, or fork before the first model is loaded.",
            )
        self._weights = weights
        self._models: list[Any] = weights._models if weights else []
        self._adapters: list[Any] = weights._adapters if weights else []
        self._contexts: list[Any] = []
        self._heads: list[Any] = []
        self._batches: list[Any] = []
        self._vocab: Any = None
        self._memory: Any = None
        self.batch: TokenBatch
        self.has_copies = False
        # by address and shape; most passes return the same ones
        self._views: dict[tuple[int, int, int], weakref.ref[NDArray[np.float32]]] = {}
        for dead in [one for one in [*_frees] if one() is None]:
            _frees.discard(dead)
        # All frees run inside one C call, as Ctrl-C between two of them would leave the rest
        # allocated.
        # `next` on `filter` calls every function, because each returns None.
        key = [object()]
        freed = chain(
            map(long_calls.add, key),
            map(C.llama_batch_free, self._batches),
            # a head may use the cache of the context
            map(C.llama_free, filter(None, self._heads)),
            map(C.llama_free, filter(None, self._contexts)),
            map(C.llama_adapter_lora_free, filter(None, [] if weights else self._adapters)),
            map(C.llama_model_free, filter(None, [] if weights else self._models)),
            map(long_calls.discard, key),
        )
        _frees.add(weakref.ref(self, partial(next, filter(None, freed))))

    def _give_up(self) -> object:
        return self  # never freed

    # ---- creation

    def share(self) -> Native:
        """Return an object for a further context on the same weights."""
        return Native(self)

    def load(
        self, path: bytes, params: Any, placement: Placement | None = None, names: Names = ()
    ) -> bool:
        """Load the weights, or those of a prediction head, and return whether llama.cpp succeeded.

        Args:
            placement: Devices and memory of the weights; None for llama.cpp's choice.
        """
        # llama.cpp reads them until the end of the call
        arrays = apply_placement(placement, params, names) if placement else []
        long_call(keep, self._models, C.llama_model_load_from_file, path, params)
        if self._models[0]:
            self._vocab = C.llama_model_get_vocab(self._models[0])
        del arrays
        return bool(self._models[-1])

    def adapt(self, path: bytes) -> bool:
        """Load an adapter and return whether llama.cpp succeeded."""
        long_call(keep, self._adapters, C.llama_adapter_lora_init, self._models[0], path)
        return bool(self._adapters[-1])

    def open(self, params: Any, n_batch: int = N_BATCH) -> bool:
        """Create the context and its batch and return whether llama.cpp succeeded."""
        long_call(keep, self._contexts, C.llama_init_from_model, self._models[0], params)
        if not self._contexts[0]:
            return False
        self._memory = C.llama_get_memory(self._contexts[0])
        width = self.token_rows.width if self.token_rows else 0
        keep(self._batches, C.llama_batch_init, n_batch, width, 1)
        self.batch = TokenBatch(self._batches[0], n_batch, self.token_rows)
        return True

    def open_head(self, params: Any) -> tuple[Any, Any, Any] | None:
        """Create the context of a prediction head beside this one's.

        Returns:
            The weights that it uses, the context, and a batch of one sequence; None if llama.cpp
                failed.
        """
        params.ctx_other = self._contexts[0]
        keep(self._heads, C.llama_init_from_model, self._models[-1], params)
        if not self._heads[-1]:
            return None
        keep(self._batches, C.llama_batch_init, N_BATCH, 0, 1)
        return self._models[-1], self._heads[-1], self._batches[-1]

    def use_adapters(self, scales: Sequence[float]) -> None:
        n = len(self._adapters)
        C.llama_set_adapters_lora(
            self._contexts[0],
            (C.llama_adapter_lora_p_ctypes * n)(*self._adapters),
            n,
            (ctypes.c_float * n)(*scales),
        )

    # ---- calls

    def model(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a llama.cpp function with the model as the first argument."""
        return function(self._models[0], *arguments)

    def vocab(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a llama.cpp function with the vocabulary as the first argument."""
        return function(self._vocab, *arguments)

    def context(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a llama.cpp function with the context as the first argument."""
        return function(self._contexts[0], *arguments)

    def cache(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a llama.cpp function with the context's cache as the first argument."""
        return function(self._memory, *arguments)

    def decode(self) -> int:
        """Decode the batch, wait until it is done, and return llama.cpp's code."""
        self.has_copies = False
        code: int = long_call(_decode_and_wait, self._contexts[0], self._batches[0])
        return code

    def rows(self, first: int, n_rows: int, n_vocab: int) -> NDArray[np.float32]:
        """Return a view of `n_rows` rows of logits, starting at the batch's token `first`.

        The view keeps this object alive.
        """
        if not n_rows:
            return np.empty((0, n_vocab), np.float32)
        return self.view(C.llama_get_logits_ith(self._contexts[0], first), n_rows, n_vocab)

    def view(self, first: Any, n_rows: int, width: int) -> NDArray[np.float32]:
        """Return a view of rows that begin at a pointer; it keeps this object alive."""
        key = ctypes.addressof(first.contents), n_rows, width
        known = self._views.get(key)
        rows = known() if known else None
        if rows is None:
            values: Any = (ctypes.c_float * (n_rows * width)).from_address(key[0])
            values.native = self
            rows = np.frombuffer(values, np.float32).reshape(n_rows, width)
            self._views[key] = weakref.ref(rows)
        return rows

    def embedding(self, sequence: int, n_values: int) -> NDArray[np.float32]:
        """Return a copy of the pooled embedding of a sequence."""
        values = C.llama_get_embeddings_seq(self._contexts[0], sequence)
        row: NDArray[np.float32] = np.ctypeslib.as_array(values, (n_values,)).copy()
        return row

    def token_embeddings(self, n_tokens: int, n_values: int) -> NDArray[np.float32]:
        """Return a copy of the embeddings of the batch's tokens, in their order."""
        values = C.llama_get_embeddings(self._contexts[0])
        rows: NDArray[np.float32] = np.ctypeslib.as_array(values, (n_tokens * n_values,)).copy()
        return rows.reshape(n_tokens, -1)


def _decode_and_wait(context: Any, batch: Any) -> int:
    code: int = C.llama_decode(context, batch)
    C.llama_synchronize(context)  # a GPU may still be computing
    return code


def keep(made: list[Any], function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function and append its result to `made`, both inside one C call.

    Ctrl-C during the call takes effect only after the pointer is kept.
    """
    made.extend(starmap(function, [arguments]))


class SequenceTokens(NamedTuple):
    """Tokens of one sequence in a pass.

    Attributes:
        sequence: Its id in llama.cpp.
        n_past: Number of its cached tokens.
        n_rows: Number of last tokens whose logits are computed.
        n_more: Number of further tokens at the end, without logits.
    """

    sequence: int
    n_past: int
    tokens: Sequence[int]
    n_rows: int
    n_more: int = 0


class TokenBatch:
    """The tokens of one pass."""

    def __init__(
        self, batch: Any, size: int = N_BATCH, token_rows: TokenRows | None = None
    ) -> None:
        """Wrap a `llama_batch` with room for `size` tokens, or for that many rows."""
        self._batch, self._token_rows = batch, token_rows
        if token_rows:
            self._rows = np.ctypeslib.as_array(batch.embd, (size, token_rows.width))
            self._tokens = np.empty(size, np.int32)
        else:
            self._tokens = np.ctypeslib.as_array(batch.token, (size,))
        self._positions = np.ctypeslib.as_array(batch.pos, (size,))
        self._outputs = np.ctypeslib.as_array(batch.logits, (size,))
        np.ctypeslib.as_array(batch.n_seq_id, (size,))[:] = 1
        self._sequences = [batch.seq_id[i] for i in range(size)]

    def fill(self, parts: Sequence[SequenceTokens]) -> None:
        """Write tokens of sequences; those of a sequence follow its cached tokens."""
        row = 0
        for sequence, n_past, tokens, n_rows, n_more in parts:
            end = row + len(tokens)
            if end == row + 1:  # plain decoding: slices take ten times as long
                self._tokens[row] = tokens[0]
                self._positions[row] = n_past
                self._outputs[row] = n_rows
                self._sequences[row][0] = sequence
                row = end
                continue
            self._tokens[row:end] = tokens
            self._positions[row:end] = np.arange(n_past, n_past + end - row)
            self._outputs[row:end] = 0
            self._outputs[end - n_more - n_rows : end - n_more] = 1
            for ids in self._sequences[row:end]:
                ids[0] = sequence
            row = end
        if self._token_rows:
            self._rows[:row] = self._token_rows.of(self._tokens[:row])
        self._batch.n_tokens = row
