"""Slots: the sequences of one context, whose tokens are decoded in common passes.

Each slot has a cache of its own, so a row has the same bits whatever the other slots do, wherever
the bits do not depend on the width of a pass. llama.cpp decodes neighbouring sequences with equal
numbers of tokens in one pass over the weights, and all others in several. Therefore shorter parts
and empty places are filled with tokens that are removed after the pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits
from ..errors import DecodeError, InvalidOptionError, RollbackError
from ..options import K_MAX
from .bindings import C
from .cache import least_cut, put_state, state_bytes, take_state
from .log import log
from .model import Model
from .native import SequenceTokens


class Part(NamedTuple):
    """Part of a common pass: what one slot decodes.

    Attributes:
        slot: The slot.
        tokens: Token ids.
        n_rows: Number of last tokens whose logits are returned; 0 only reads.
    """

    slot: Slot
    tokens: Sequence[int]
    n_rows: int


class Slot:
    """One sequence of a model with several: tokens in, logits out, with its own cache.

    Its passes are run by `run`, which may wait for the parts of other slots.

    Attributes:
        index: Id of the sequence in llama.cpp.
        model: The model.
        run: Decodes a part and returns its rows; empty without rows.
        busy_s: Seconds of the passes that this slot took part in.
        n_read: Length of the prefix of the cache that prefill passes decoded, on the grid.
        least_cut: Shortest prefix, above 0, to which the cache can be cut.
        piece: Most prompt tokens that one prefill pass may decode, because other slots decode; 0
            without a limit.
    """

    def __init__(self, model: Model, index: int, run: Callable[[Part], Logits]) -> None:
        self.model, self.index, self.run = model, index, run
        self.cached: list[int] = []
        self.n_read = self.least_cut = 0
        self.busy_s = 0.0
        self.piece = 0
        self.n_vocab, self.n_ctx, self.start = model.n_vocab, model.n_ctx, model.start
        self.weight_bytes, self.cached_bytes = model.weight_bytes, model.cached_bytes

    @property
    def n_past(self) -> int:
        """Number of tokens in the cache."""
        return len(self.cached)

    @property
    def reads_at_once(self) -> int:
        """Prompt tokens that one prefill pass decodes.

        Where the bits of a row depend on the width of its pass, the width is always the same.
        """
        whole = self.model.reads_at_once
        return min(self.piece, whole) if self.piece and not self.grid else whole

    @property
    def grid(self) -> int:
        """As of `Model`."""
        return self.model.grid

    @property
    def can_roll_back(self) -> bool:
        """As of `Model`."""
        return self.model.can_roll_back

    @property
    def exact_attention(self) -> bool:
        """As of `Model`."""
        return self.model.exact_attention

    @property
    def slow_first_pass(self) -> bool:
        """As of `Model`."""
        return self.model.slow_first_pass

    @property
    def most_exact_rows(self) -> int:
        """As of `Model`."""
        return self.model.most_exact_rows

    @property
    def depth_costs(self) -> Mapping[int, float]:
        """As of `Model`."""
        return self.model.depth_costs

    @property
    def free_rollback(self) -> int:
        """As of `Model`."""
        return self.model.free_rollback

    def hold(self, lasting: bool = False) -> None:
        """Do nothing: a slot of a model with recurrent layers is not rolled back."""

    def is_end(self, token: int) -> bool:
        """Return whether a token ends a generation."""
        return self.model.is_end(token)

    def read(self, tokens: Sequence[int]) -> None:
        """Prefill tokens, `reads_at_once` per pass; no logits are computed."""
        on_grid = self.n_past == self.n_read
        at = 0
        while at < len(tokens):
            piece = tokens[at : at + self.reads_at_once]
            self.run(Part(self, piece, 0))
            at += len(piece)
        if on_grid:
            self.n_read = self.n_past

    def logits(
        self, tokens: Sequence[int], n_rows: int, branches: Sequence[tuple[int, int]] = ()
    ) -> Logits:
        """Decode tokens and return the logits after each of the last `n_rows` tokens.

        Args:
            tokens: Token ids.
            n_rows: Number of rows to return.
            branches: Must be empty: sequences with caches of their own cannot share tokens.

        Returns:
            A view of shape `(n_rows, V)` into llama.cpp's buffer. The next pass overwrites it.

        Raises:
            InvalidOptionError: `n_rows`, a branch or a token id is out of range.
            DecodeError: The context is full, or llama.cpp rejected the batch; in the second case
                the cache is empty.
        """
        if not 0 < n_rows <= min(len(tokens), K_MAX + 1):
            raise InvalidOptionError(
                "n_rows", n_rows, f"from 1 to {len(tokens)}, the number of tokens"
            )
        if branches:
            raise InvalidOptionError("branches", branches, "empty in a context of several requests")
        if len(tokens) > K_MAX + 1:
            self.read(tokens[:-n_rows])
            tokens = tokens[-n_rows:]
        return self.run(Part(self, tokens, n_rows))

    def check(self, part: Part) -> None:
        """Reject tokens on which llama.cpp would abort.

        Raises:
            DecodeError: The context is full.
            InvalidOptionError: A token id is out of range.
        """
        tokens = part.tokens
        if self.n_past + len(tokens) > self.n_ctx:
            raise DecodeError(1, self.n_past, len(tokens), f"the context holds {self.n_ctx}")
        if not 0 <= min(tokens, default=0) <= max(tokens, default=0) < self.n_vocab:
            raise InvalidOptionError("tokens", list(tokens), f"ids from 0 to {self.n_vocab - 1}")

    def rollback(self, to: int) -> None:
        """Drop all cached tokens after the first `to`; a shorter cache does not change.

        Raises:
            RollbackError: The model cannot drop part of its cache. The cache is unchanged.
        """
        if to >= self.n_past:
            return
        remove = partial(self.model.native.cache, C.llama_memory_seq_rm, self.index, to or -1, -1)
        if 0 < to < self.least_cut or not remove():
            raise RollbackError(self.model.path.name, self.n_past, to)
        self.n_read = min(self.n_read, to)
        self.least_cut = self.least_cut if to else 0
        del self.cached[to:]

    def copy_from(self, other: Slot) -> None:
        """Replace the cache by a copy of another slot's."""
        self.rollback(0)
        self.model.native.copy_sequence(other.index, self.index)
        self.adopt(other.cached, other.n_read, other.least_cut)

    def adopt(self, cached: Sequence[int], n_read: int, least_cut: int) -> None:
        """As of `Model`, for the sequence of the slot."""
        self.cached, self.n_read, self.least_cut = [*cached], n_read, least_cut

    def forget(self) -> None:
        """Empty the cache, whatever is in it."""
        self.model.native.cache(C.llama_memory_seq_rm, self.index, -1, -1)
        self.adopt([], 0, 0)

    @property
    def least_cut_of_state(self) -> int:
        """As of `Model`."""
        return least_cut(self.model, self.n_past)

    def state_bytes(self) -> int:
        """As of `Model`."""
        return state_bytes(self.model, self.index) if self.cached else 0

    def state(self) -> NDArray[np.uint8]:
        """As of `Model`."""
        if not self.cached:
            return np.empty(0, dtype=np.uint8)
        return take_state(self.model, self.index)

    def restore(self, tokens: Sequence[int], n_read: int, state: Any) -> bool:
        """As of `Model`."""
        self.forget()
        if not tokens or len(tokens) > self.n_ctx:
            return not tokens
        is_there = False
        try:
            is_there = put_state(self.model, self.index, state, len(tokens))
        finally:
            if not is_there:
                self.forget()
        if is_there:
            self.adopt(tokens, n_read, least_cut(self.model, len(tokens)))
        return is_there


class Slots:
    """The slots of a model, and common passes over several of them.

    Attributes:
        model: The model.
        widest: Largest number of tokens of a pass that returns rows.
        all: Its slots, by their ids.
        n_decoded: Number of sequences of the last pass.
    """

    def __init__(self, model: Model, widest: int = K_MAX + 1) -> None:
        self.model, self.widest = model, widest
        self.n_decoded = 0
        self.all = [
            Slot(model, i, lambda part: self.decode([part])[0])
            for i in range(model.options.parallel)
        ]

    def decode(self, parts: Sequence[Part], n_sequences: int = 0) -> list[Logits]:
        """Decode parts of different slots, and return the rows of each.

        Args:
            parts: The parts; together at most as many tokens as a batch holds.
            n_sequences: Number of sequences to decode; other slots fill the pass up to it, because
                kernels are faster with whole blocks of rows.

        Returns:
            Views of shape `(n_rows, V)`, in the order of the parts. The next pass overwrites them.

        Raises:
            DecodeError: llama.cpp rejected the batch; the caches of these slots are then empty.
        """
        for part in parts:
            part.slot.check(part)
        filled = sorted(self._filled(parts, n_sequences), key=lambda one: one.sequence)
        first, firsts = 0, {}
        for one in filled:
            firsts[one.sequence] = first
            first += len(one.tokens)
        self.n_decoded = len(filled)
        started = time.perf_counter()
        code = self.model.decode_sequences(filled)
        seconds = time.perf_counter() - started
        slots = {one.sequence: self.all[one.sequence] for one in filled}
        if code != 0:
            for slot in slots.values():  # those of gaps keep their tokens
                self._remove(slot)
            for part in parts:
                part.slot.forget()
            n_past = max(one.n_past for one in filled)
            raise DecodeError(code, n_past, first, log.last)
        self.model.counts = self.model.counts.plus(sum(part.n_rows for part in parts))
        for part in parts:
            part.slot.cached.extend(part.tokens)
            part.slot.busy_s += seconds
        for one in filled:
            slot = slots[one.sequence]
            if one.n_past + len(one.tokens) > slot.n_past:
                self._remove(slot)
        return [self._rows(part, firsts[part.slot.index]) for part in parts]

    def move(self, slot: Slot, free: Slot) -> None:
        """Move a sequence to the place of a free one, whose cache is lost."""
        free.copy_from(slot)
        slot.index, free.index = free.index, slot.index
        self.all[slot.index], self.all[free.index] = slot, free
        free.forget()

    def refill(self, slot: Slot, tokens: Sequence[int], n_read: int) -> None:
        """Decode the tokens of a lost cache again, in passes that give them the same bits.

        Args:
            slot: The slot, whose cache is empty.
            tokens: The tokens.
            n_read: Length of the prefix that prefill passes decoded, on the grid.

        Raises:
            DecodeError: llama.cpp rejected a pass; the cache is then empty.
        """
        reads_at_once = self.model.reads_at_once
        n_read, wide = (n_read, self.widest) if slot.grid else (len(tokens), reads_at_once)
        for start, end, at_once in ((0, n_read, reads_at_once), (n_read, len(tokens), wide)):
            for i in range(start, end, at_once):
                self.decode([Part(slot, tokens[i : min(i + at_once, end)], 0)])
        slot.n_read = n_read

    def _rows(self, part: Part, first: int) -> Logits:
        n_read, n_vocab = len(part.tokens) - part.n_rows, self.model.n_vocab
        if not part.n_rows:
            return np.empty((0, n_vocab), np.float32)
        return self.model.native.rows(first + n_read, part.n_rows, n_vocab)

    def _filled(self, parts: Sequence[Part], n_sequences: int) -> list[SequenceTokens]:
        """Return what llama.cpp decodes: the parts, made equally long, and without gaps."""
        width = max(len(part.tokens) for part in parts)
        equal = self.model.can_roll_back and len(parts) > 1 and width <= K_MAX + 1
        found = [self._tokens(part, width if equal else 0) for part in parts]
        if equal:
            taken = {one.sequence for one in found}
            low, high = min(taken), max(taken) + 1
            n_more = max(0, n_sequences - (high - low))
            high = min(len(self.all), high + n_more)
            low = max(0, min(low, high - n_sequences))
            more = [i for i in range(low, high) if i not in taken]
            if not self._can_fill(more, width):
                more = [i for i in range(min(taken), max(taken)) if i not in taken]
            fits = width * (len(taken) + len(more)) <= self.widest
            if fits and 2 * len(more) <= len(taken) and self._can_fill(more, width):
                found += [self._tokens(Part(self.all[i], [], 0), width) for i in more]
        return found

    def _can_fill(self, indices: Sequence[int], width: int) -> bool:
        """Return whether slots have room for `width` tokens that are removed after the pass."""
        return all(self.all[i].n_past + width <= self.model.n_ctx for i in indices)

    def _tokens(self, part: Part, width: int) -> SequenceTokens:
        """Return the tokens of a part, filled up to `width` where the context has room."""
        slot, n = part.slot, len(part.tokens)
        n_more = max(0, min(width, slot.n_ctx - slot.n_past) - n)
        outputs = [False] * (n - part.n_rows) + [True] * part.n_rows + [False] * n_more
        tokens = [*part.tokens, *[self.model.start] * n_more]
        return SequenceTokens(slot.index, slot.n_past, tokens, outputs)

    def _remove(self, slot: Slot) -> None:
        """Remove the tokens that only filled the pass."""
        self.model.native.cache(C.llama_memory_seq_rm, slot.index, slot.n_past or -1, -1)
