"""EAGLE-3 head: a layer in a file of its own, which reads the inputs of three layers of a target.

The head first projects the joined inputs to a row of its own width (`NativeHead.encode`). Then it
takes rows as an MTP head does, in pairs with the next token. In a draft its own rows take their
place.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits
from ..errors import DecodeError
from ..gguf.heads import is_eagle, shares_cache
from ..gguf.validation import ModelFile
from ..options import K_MAX
from .bindings import C
from .head import Head
from .log import log
from .model import Model
from .native_head import MOST_ENCODED, NativeHead
from .options import ContextOptions
from .shared_head import SharedHead

_CONTEXT = 0  # llama.cpp's LLAMA_CONTEXT_TYPE_DEFAULT


def open_head(target: Model, options: ContextOptions, file: ModelFile | None) -> Head:
    """Open the head of a loaded target; the arguments are those of `Head`.

    Raises:
        GgufSpecError: llama.cpp cannot load or use the head.
    """
    if file and is_eagle(file.header):
        return EagleHead(target, options, file)
    kind = SharedHead if file and shares_cache(file.header) else Head
    return kind(target, options, file)


class EagleHead(Head):
    """A head that takes projected inputs of layers."""

    context_type = _CONTEXT

    @property
    def is_ready(self) -> bool:
        """Whether the target has decoded a token; the head reads pairs with the next one."""
        return self._target.n_past > 0

    def _width(self) -> int:
        return self.file.header.whole("embedding_length")

    def _rows_before(self, start: int, n: int) -> NDArray[np.float32]:
        rows, native = super()._rows_before(start, n), cast("NativeHead", self.native)
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
            self._forget_first()
        if is_true:
            self._n_true = self.n_past
        results = self._results(n, n if n_rows else 0)
        return results[n - n_rows :] if n_rows else results

    def _forget_first(self) -> None:
        """Drop the first token of a text from llama.cpp's cache: no row comes before it.

        It stays counted, so that positions are those of the text.
        """
        cached = self._in_doubt()
        cast("NativeHead", self.native).cache(C.llama_memory_seq_rm, 0, 0, 1)
        self._cached = cached
