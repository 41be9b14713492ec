"""States of sequences: the cache of a sequence as bytes in host memory.

A state has the bits of the cache, so a sequence that is put back continues as if it had stayed. Two
things need care:

- llama.cpp copies one sequence to another with the next pass. A state that is taken earlier would
  have the old contents, and a state that is put back earlier would be overwritten. A pass over one
  token is run first where a copy is pending.
- Of layers with sliding-window attention a state has only the tokens in the window of the last one.
  A shorter prefix would miss tokens there, so such a cache is cut to nothing or not at all.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .bindings import C

if TYPE_CHECKING:
    from .cache import Cache

_BYTES = ctypes.POINTER(ctypes.c_uint8)


def state_bytes(model: Cache, sequence: int) -> int:
    """Return the approximate size of the state of a sequence, in bytes; 0 if it has none."""
    if not model.finish_copies():
        return 0
    return int(model.native.context(C.llama_state_seq_get_size, sequence))


def take_state(model: Cache, sequence: int) -> NDArray[np.uint8]:
    """Return the state of a sequence; an empty array if llama.cpp cannot give it.

    Raises:
        MemoryError: There is not enough memory for it.
    """
    state: NDArray[np.uint8] = np.empty(state_bytes(model, sequence), dtype=np.uint8)
    if len(state):
        pointer = state.ctypes.data_as(_BYTES)
        n = model.native.context(C.llama_state_seq_get_data, pointer, len(state), sequence)
        state = state[:n]
    return state


def put_state(model: Cache, sequence: int, state: Any, n_tokens: int) -> bool:
    """Put a state into a sequence, whose cache is empty.

    Args:
        model: The model.
        sequence: Id of the sequence in llama.cpp.
        state: The state, as bytes or an array.
        n_tokens: Number of its tokens.

    Returns:
        Whether llama.cpp accepted it. If not, the cache has unknown contents.
    """
    if not model.finish_copies():
        return False
    native, buffer = model.native, np.frombuffer(state, dtype=np.uint8)
    pointer = buffer.ctypes.data_as(_BYTES)
    n = native.context(C.llama_state_seq_set_data, pointer, len(buffer), sequence)
    return bool(n) and native.cache(C.llama_memory_seq_pos_max, sequence) == n_tokens - 1


def least_cut(model: Cache, n_tokens: int) -> int:
    """Return the shortest prefix, above 0, to which a state can be cut after it was put back.

    It is 0 where a state has all its tokens in all layers.
    """
    n_window = model.native.model(C.llama_model_n_swa)
    return n_tokens if 0 < n_window < n_tokens else 0
