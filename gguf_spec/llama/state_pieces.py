"""States in pieces: what a range of tokens has of a state, and a state made of pieces.

llama.cpp gives the state of a whole sequence. Its keys and values lie layer by layer, with a row
(or, for transposed values, a column) for each token, so a range of tokens is cut out of each array.
Pieces of different states of one text fit together, because the values of a token depend on those
before it only. What belongs to the end of the text alone stays whole: states of recurrent layers,
and the window of sliding-window attention.

A state begins with a mark of llama.cpp and the id of its sequence, and has its cells in one of as
many streams as requests can run at once. Pieces have neither.

A state that has another form than this file knows, or whose cells are not in the order of the text,
is not taken apart.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .bindings import C
from .recurrent_state import PARTIAL_ONLY, Checkpoint
from .sequence import CachedSequence

_WORD = struct.Struct("<I")
# The mark at the start of a state, before the id of the sequence.
_MARK = 0xAF143CD8
_HEAD = struct.Struct("<II")
# Type and size of a row; type, size of an element and number of rows of transposed values.
_ROW, _ROWS = struct.Struct("<iQ"), struct.Struct("<iII")
# Bytes of a cell: position, number of sequences and sequence; those of models with positions in
# images have two or three numbers more.
_CELL_BYTES = (12, 20, 24)


class Column(NamedTuple):
    """An array of a state: `rows` rows of `width` bytes for each token.

    Attributes:
        head: The bytes before it.
    """

    head: bytes
    rows: int
    width: int

    def n_bytes(self, n_tokens: int) -> int:
        return self.rows * n_tokens * self.width


class CutState:
    """A state that was taken apart.

    Attributes:
        columns: Its arrays.
        end: What belongs to its end.
    """

    def __init__(self, columns: Sequence[Column], body: NDArray[np.uint8], n: int) -> None:
        self.columns: tuple[Column, ...] = tuple(columns)
        self._arrays: list[NDArray[np.uint8]] = []
        at = 0
        for one in columns:
            at += len(one.head)
            array = body[at : at + one.n_bytes(n)].reshape(one.rows, n, one.width)
            self._arrays.append(array)
            at += array.nbytes
        self.end: NDArray[np.uint8] = body[at:]

    def piece(self, start: int, stop: int) -> bytes:
        """Return what the tokens from `start` to `stop` have of all arrays."""
        return b"".join(np.ascontiguousarray(one[:, start:stop]).data for one in self._arrays)


class JoinedState:
    """A state that is put together from pieces.

    Attributes:
        data: Its bytes, complete once each token was put.
    """

    def __init__(
        self, cache: CachedSequence, columns: Sequence[Column], n: int, end: bytes
    ) -> None:
        n_before, n_after = _streams(cache, 0)
        self._columns, self._arrays = columns, list[NDArray[np.uint8]]()
        heads = [_HEAD.pack(_MARK, cache.index)]
        heads += [_WORD.pack(n_before + n_after + 1), _WORD.pack(n)] if columns else []
        if end and _end_has_streams(cache):
            end = _WORD.pack(n_after + 1) + end + bytes(4 * n_after)
        tail = bytes(4 * n_after) + end if columns else end
        n_bytes = sum(len(one.head) + one.n_bytes(n) for one in columns)
        self.data: NDArray[np.uint8] = np.empty(
            sum(map(len, heads)) + n_bytes + len(tail), dtype=np.uint8
        )
        at = self._put(0, b"".join(heads))
        for one in columns:
            at = self._put(at, one.head)
            array = self.data[at : at + one.n_bytes(n)].reshape(one.rows, n, one.width)
            self._arrays.append(array)
            at += array.nbytes
        self._put(at, tail)

    def _put(self, at: int, data: bytes) -> int:
        self.data[at : at + len(data)] = np.frombuffer(data, dtype=np.uint8)
        return at + len(data)

    def put(self, start: int, stop: int, piece: memoryview, n_piece: int) -> None:
        """Put the first `stop - start` of the `n_piece` tokens of a piece to their place."""
        values, at = np.frombuffer(piece, dtype=np.uint8), 0
        for one, array in zip(self._columns, self._arrays, strict=True):
            part = values[at : at + one.n_bytes(n_piece)].reshape(one.rows, n_piece, one.width)
            array[:, start:stop] = part[:, : stop - start]
            at += part.nbytes


def checkpoint(cache: CachedSequence, n: int, end: bytes) -> Checkpoint:
    """Return the checkpoint of recurrent layers that belongs to the end of a text."""
    return Checkpoint(n, np.frombuffer(_HEAD.pack(_MARK, cache.index) + end, dtype=np.uint8))


def end_of(checkpoint: Checkpoint) -> bytes:
    """Return what belongs to the end of a text in a checkpoint there."""
    return checkpoint.state[_HEAD.size :].tobytes()


def take_apart(cache: CachedSequence, state: NDArray[np.uint8]) -> CutState | None:
    """Return the present state of a cache in pieces; None if its form is not known."""
    n, columns = len(cache.cached), list[Column]()
    if len(state) < _HEAD.size or _HEAD.unpack_from(state.data)[0] != _MARK:
        return None
    state = state[_HEAD.size :]
    n_window = cache.native.model(C.llama_model_n_swa)
    if n_window and cache.recurrent:
        return None
    n_end = 0
    if n_window or cache.recurrent:
        size = C.llama_state_seq_get_size_ext
        n_end = cache.native.context(size, cache.index, PARTIAL_ONLY) - _HEAD.size
    start, end = state[: len(state) - n_end], state[len(state) - n_end :]
    if len(start):
        body = _without_streams(cache, start)
        if body is None or _WORD.unpack_from(body.data)[0] != n:
            return None
        body = body[_WORD.size :]
        found = next(filter(None, (_columns(body, n, width) for width in _CELL_BYTES)), None)
        if found is None:
            return None
        columns, start = found, body
    if n_end and _end_has_streams(cache):
        inner = _without_streams(cache, end)
        if inner is None:
            return None
        end = inner
    return CutState(columns, np.concatenate([start, end]) if n_end else start, n)


def _end_has_streams(cache: CachedSequence) -> bool:
    return not cache.recurrent


def _streams(cache: CachedSequence, index: int) -> tuple[int, int]:
    """Return how many streams a state has before that of a sequence, and behind it."""
    return index, cache.options.parallel - 1 - index


def _without_streams(cache: CachedSequence, part: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    n_before, n_after = _streams(cache, cache.index)
    n_head, n_tail = 4 * (1 + n_before), 4 * n_after
    if len(part) < n_head + 4 + n_tail:
        return None
    head, tail = part[:n_head].tobytes(), part[len(part) - n_tail :]
    if head != _WORD.pack(1 + n_before + n_after) + bytes(4 * n_before) or tail.any():
        return None
    return part[n_head : len(part) - n_tail]


def _columns(body: NDArray[np.uint8], n: int, cell_bytes: int) -> list[Column] | None:
    """Return the arrays of `n` cells that are in the order of the text; None if it is not so."""
    at, n_bytes = n * cell_bytes, len(body)
    if at + 2 * _WORD.size > n_bytes:
        return None
    cells = body[:at].reshape(n, cell_bytes)
    numbers = np.ascontiguousarray(cells[:, :8]).view("<i4")
    if (numbers[:, 0] != np.arange(n)).any() or (numbers[:, 1] != 1).any():
        return None
    found, head = [Column(b"", 1, cell_bytes)], 2 * _WORD.size
    is_transposed, n_layers = struct.unpack_from("<II", body.data, at)
    if not n_layers:  # all layers have windows
        found.append(Column(body[at:].tobytes(), 0, 0))
        return found if at + head == n_bytes else None
    for i in range(2 * n_layers):
        if i >= n_layers and at == n_bytes:  # values that are computed from the keys
            break
        is_values = is_transposed and i >= n_layers
        kind = _ROWS if is_values else _ROW
        if at + head + kind.size > n_bytes:
            return None
        _, *sizes = kind.unpack_from(body.data, at + head)
        width, rows = (*sizes, 1)[:2]
        one = Column(body[at : at + head + kind.size].tobytes(), rows, width)
        at += len(one.head) + one.n_bytes(n)
        if not (rows and width) or at > n_bytes:
            return None
        found.append(one)
        head = 0
    return found if at == n_bytes else None
