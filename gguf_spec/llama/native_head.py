"""Native side of prediction heads: their context, and the rows that a target sends to them.

An MTP head takes the state after the last layer of its target, an EAGLE-3 head the inputs of three
layers. The functions are experimental in llama.cpp (`llama-ext.h`), so a build may lack them.
llama-cpp-python wraps those of the first kind only; the others are C++ symbols, so their names
depend on the compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..options import K_MAX
from .bindings import C
from .native import N_BATCH, Native, SequenceTokens, TokenBatch, long_call

# llama.cpp's LLAMA_CONTEXT_TYPE_MTP
CONTEXT_OF_HEAD = 1
# most rows that one call of `NativeHead.encode` takes: as many as a pass may have outputs
MOST_ENCODED = K_MAX + 1


@cache
def extensions() -> Any:
    """Return llama-cpp-python's module of experimental functions, or None if the build has none."""
    try:
        from llama_cpp import llama_cpp_ext
    except (ImportError, AttributeError):
        return None
    return llama_cpp_ext


class NativeHead:
    """The context of a head on the weights of a target, or on those of a file of its own.

    `Native` owns the memory, and this object keeps it alive. `model`, `context` and `cache` call
    functions of llama.cpp, as its methods do.
    """

    def __init__(self, native: Native, opened: tuple[Any, Any, Any], width: int) -> None:
        self._native, (self._model, self._context, batch) = native, opened
        self.width = width
        self._memory = C.llama_get_memory(self._context)
        self._rows = np.zeros((N_BATCH, width), np.float32)
        # llama.cpp frees the original, which has no rows
        self._batch = type(batch).from_buffer_copy(batch)
        self._batch.embd = self._rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self._filled = TokenBatch(self._batch)
        self.context(extensions().llama_set_embeddings_nextn, True, True)

    def model(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self._model, *arguments)

    def context(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self._context, *arguments)

    def cache(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self._memory, *arguments)

    def fill(
        self, tokens: Sequence[int], rows: NDArray[np.float32], first: int, n_rows: int
    ) -> None:
        """Write tokens and the row for each of them.

        Args:
            rows: The rows, shape `(len(tokens), width)`.
            first: Position of the first token.
            n_rows: Number of last tokens whose logits and rows are computed.
        """
        self._rows[: len(tokens)] = rows
        self._filled.fill([SequenceTokens(0, first, tokens, n_rows)])

    def decode(self, layer: int = 0) -> int:
        """Decode the batch with one of the head's layers, wait, and return llama.cpp's code."""
        if layer:
            self.context(extensions().llama_set_nextn_layer_offset, layer)
        try:
            code: int = long_call(C.llama_decode, self._context, self._batch)
            long_call(C.llama_synchronize, self._context)
        finally:
            if layer:
                self.context(extensions().llama_set_nextn_layer_offset, 0)
        return code

    def encode(self, rows: NDArray[np.float32]) -> tuple[int, NDArray[np.float32]]:
        """Project rows of a target to rows of this head, as EAGLE-3 heads do.

        The cache is neither read nor changed.

        Args:
            rows: At most `MOST_ENCODED` rows of the target.

        Returns:
            llama.cpp's code, and the rows; they are undefined unless the code is 0.
        """
        n = len(rows)
        rows, outputs = np.ascontiguousarray(rows), np.ones(n, np.int8)
        batch = type(self._batch)(n_tokens=n)
        batch.embd = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        batch.logits = outputs.ctypes.data_as(type(batch.logits))
        code: int = long_call(C.llama_encode, self._context, batch)
        long_call(C.llama_synchronize, self._context)
        if code != 0:
            return code, rows
        encoded = self.context(extensions().llama_get_embeddings_nextn)
        return code, np.array(self._native.view(encoded, n, self.width))

    def logits(self, first: int, n_rows: int, n_vocab: int) -> NDArray[np.float32]:
        """Return a view of rows of logits, starting at the batch's token `first`."""
        return self._native.view(self.context(C.llama_get_logits_ith, first), n_rows, n_vocab)

    def last_row(self) -> NDArray[np.float32]:
        """Return a copy of the row of the last token."""
        get = extensions().llama_get_embeddings_nextn_ith
        last = self.context(get, self._batch.n_tokens - 1)
        return np.array(self._native.view(last, 1, self.width)[0])


# names of a symbol with the compilers of Linux and macOS, and of Windows
_SET = (
    "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
    "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
)
_GET = (
    "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
    "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
)


@cache
def layer_functions() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Return the functions on the inputs of layers, or None if the build has none.

    The first switches the input of a layer on or off, the second returns the rows of the last pass.
    """
    context, layer = C.llama_context_p_ctypes, ctypes.c_uint32
    switch, get = (
        next(filter(None, (getattr(C._lib, name, None) for name in names)), None)
        for names in (_SET, _GET)
    )
    if not (switch and get and extensions()):
        return None
    switch.argtypes, switch.restype = [context, layer, ctypes.c_bool], None
    get.argtypes, get.restype = [context, layer], ctypes.POINTER(ctypes.c_float)
    return switch, get


class TargetRows:
    """Rows that a target returns for a head: inputs of some layers, joined to one for each token.

    The number of the layer after the last one means the state after the last layer.
    """

    def __init__(self, native: Native, layers: Sequence[int]) -> None:
        """Choose the rows.

        Args:
            layers: Numbers of the layers; empty for the state after the last layer alone.
        """
        self._n_layers: int = native.model(C.llama_model_n_layer)
        self._layers = layers or (self._n_layers,)
        of_input, of_last = map(native.model, (C.llama_model_n_embd, C.llama_model_n_embd_out))
        self._widths = [of_input if i < self._n_layers else of_last for i in self._layers]
        self.width: int = sum(self._widths)
        # whether the build has them is checked before a head is loaded
        functions: tuple[Any, Any] = layer_functions() or (None, None)
        self._switch, self._get = functions

    def send(self, native: Native, send: bool = True) -> None:
        """Let the target return the rows of each pass, or stop that."""
        for layer in self._layers:
            if layer < self._n_layers:
                native.context(self._switch, layer, send)
            else:
                native.context(extensions().llama_set_embeddings_nextn, send, False)

    def sent(self, native: Native, n: int) -> NDArray[np.float32]:
        """Return the rows of the last pass, one for each of its first `n` tokens."""
        rows = []
        for layer, width in zip(self._layers, self._widths, strict=True):
            first = (
                native.context(self._get, layer)
                if layer < self._n_layers
                else native.context(extensions().llama_get_embeddings_nextn)
            )
            rows.append(native.view(first, n, width))
        return rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)


class HiddenRows:
    """One row for each token in the cache of a target, as far as they are known.

    A row depends on all tokens up to its own. Rows are overwritten when other tokens take their
    place; until then they belong to the text that the target decoded last.

    Attributes:
        first: First position whose row is known.
        end: The position after the last one whose row is known.
    """

    end: int
    first: int
    width: int

    def __init__(self, n_ctx: int, width: int) -> None:
        self.width, self.first, self.end = width, 0, 0
        # the system allocates pages when they are written
        self._rows = np.empty((n_ctx, width), np.float32)

    def put(self, at: int, rows: NDArray[np.float32]) -> None:
        """Store the rows of tokens decoded at position `at`; later rows become unknown."""
        if not self.first <= at <= self.end:
            self.first = at
        self.end = at + len(rows)
        self._rows[at : self.end] = rows

    def cut(self, n: int) -> None:
        """Drop the rows from position `n` on."""
        self.first, self.end = min(self.first, n), min(self.end, n)

    def before(self, start: int, n: int) -> NDArray[np.float32]:
        """Return the rows before `n` positions from `start` on; zeros where they are unknown."""
        rows = np.zeros((n, self.width), np.float32)
        first, end = max(start - 1, self.first), min(start - 1 + n, self.end)
        if first < end:
            rows[first - start + 1 : end - start + 1] = self._rows[first:end]
        return rows
