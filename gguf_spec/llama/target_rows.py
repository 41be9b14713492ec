"""Rows that a target returns for a prediction head with each pass.

An MTP head takes the state after the last layer, an EAGLE-3 head the inputs of three layers. The
functions are experimental in llama.cpp (`llama-ext.h`). llama-cpp-python wraps those of the first
kind only; the others are C++ symbols, so their names depend on the compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .bindings import C
from .native import Native
from .native_head import extensions

# names of a symbol with the compilers of Linux and macOS, and of Windows
_SET = (
    "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
    "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
)
_GET = (
    "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
    "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
)


class _LayerFunctions(NamedTuple):
    """Functions on the inputs of layers: switch one on or off, and return the last pass's rows."""

    set: Callable[..., Any]
    get: Callable[..., Any]


@cache
def layer_functions() -> _LayerFunctions | None:
    """Return the functions on the inputs of layers, or None if the build has none."""
    context, layer = C.llama_context_p_ctypes, ctypes.c_uint32
    switch = _function(_SET, [context, layer, ctypes.c_bool], None)
    get = _function(_GET, [context, layer], ctypes.POINTER(ctypes.c_float))
    return _LayerFunctions(switch, get) if switch and get and extensions() else None


def _function(names: Sequence[str], arguments: list[Any], result: Any) -> Callable[..., Any] | None:
    function = next(filter(None, (getattr(C._lib, name, None) for name in names)), None)
    if function:
        function.argtypes, function.restype = arguments, result
    return function


class LastRows:
    """The state after the last layer of a target.

    Attributes:
        width: Length of a row.
    """

    def __init__(self, native: Native) -> None:
        self.width: int = native.model(C.llama_model_n_embd_out)

    def send(self, native: Native, send: bool = True) -> None:
        """Let the target return the rows of each pass, or stop that."""
        native.context(extensions().llama_set_embeddings_nextn, send, False)

    def sent(self, native: Native, n: int) -> NDArray[np.float32]:
        """Return the rows of the last pass, one for each of its first `n` tokens."""
        return native.view(native.context(extensions().llama_get_embeddings_nextn), n, self.width)


class LayerInputs:
    """The inputs of some layers of a target, joined to one row for each token.

    The number of the layer after the last one means the state after the last layer.

    Attributes:
        width: Length of a row.
    """

    def __init__(self, native: Native, layers: Sequence[int]) -> None:
        self._layers, self._n_layers = layers, native.model(C.llama_model_n_layer)
        self._last, self._of_layer = LastRows(native), native.model(C.llama_model_n_embd)
        self.width: int = len(layers) * self._of_layer

    def send(self, native: Native, send: bool = True) -> None:
        """Let the target return the rows of each pass, or stop that."""
        for layer in self._layers:
            if layer < self._n_layers:
                native.context(_functions().set, layer, send)
            else:
                self._last.send(native, send)

    def sent(self, native: Native, n: int) -> NDArray[np.float32]:
        """Return the rows of the last pass, one for each of its first `n` tokens."""
        return np.concatenate([self._sent(native, layer, n) for layer in self._layers], axis=1)

    def _sent(self, native: Native, layer: int, n: int) -> NDArray[np.float32]:
        if layer >= self._n_layers:
            return self._last.sent(native, n)
        return native.view(native.context(_functions().get, layer), n, self._of_layer)


def _functions() -> _LayerFunctions:
    functions = layer_functions()
    assert functions, "checked before a head is loaded"
    return functions
