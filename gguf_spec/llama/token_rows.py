"""Rows of `token_embd.weight` as the input of a pass, in place of token ids.

A trimmed draft has fewer rows in its matrices than its vocabulary has tokens. llama.cpp could not
look up the others. So their embeddings are looked up here, in a copy of the whole table behind the
tensors of the file, with the bits that llama.cpp would have (`Architecture.takes_rows`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import NotAModelError
from .bindings import call

if TYPE_CHECKING:
    from ..gguf.header import Header

_F32 = 0


class _TypeTraits(ctypes.Structure):
    """ggml's `ggml_type_traits`."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    )


class TokenRows:
    """The embeddings of all tokens of a trimmed draft, mapped from its file.

    Attributes:
        width: Length of a row.
    """

    def __init__(self, header: Header, start: int, n_tokens: int) -> None:
        """Map the table of a file whose header was checked.

        Args:
            start: Byte of the file at which the table starts.

        Raises:
            NotAModelError: The file changed since its header was read.
        """
        tensor = header.tensor("token_embd.weight")
        assert tensor
        shape = n_tokens, tensor.n_bytes // tensor.shape[-1]
        try:
            self._stored = np.memmap(header.path, np.uint8, "r", start, shape)
        except (OSError, ValueError) as error:
            what = f"{header.path.name} changed while it was read."
            raise NotAModelError(header.path, what, "try again.") from error
        self.width: int = tensor.shape[0]
        self._scale = np.sqrt(np.float32(self.width)) if header.facts.takes_rows == "scaled" else 1
        self._to_float = None if tensor.type == _F32 else _to_float(tensor.type)

    def of(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the rows of tokens, shape `(n, width)`."""
        stored = self._stored[tokens]
        if self._to_float is None:
            rows = stored.view(np.float32)
        else:
            rows = np.empty((len(tokens), self.width), np.float32)
            self._to_float(stored.ctypes.data, rows.ctypes.data, rows.size)
        return rows if self._scale == 1 else rows * self._scale


def _to_float(kind: int) -> Callable[..., Any]:
    traits = _TypeTraits.from_address(call("ggml_get_type_traits", kind))
    convert: Callable[..., Any] = traits.to_float
    return convert
