"""Slots: the sequences of one context, whose tokens are decoded in common passes.

Each slot has a cache of its own, so a row has the same bits whatever the other slots do, wherever
the bits do not depend on the width of a pass. llama.cpp decodes neighbouring sequences with equal
numbers of tokens in one pass over the weights, and all others in several. Therefore shorter parts
and empty places are filled with tokens that are removed after the pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..arrays import Logits
from ..errors import DecodeError
from ..options import K_MAX
from .bindings import C
from .log import log
from .model import Model, Part
from .native import SequenceTokens


class Slot(Model):
    """A further sequence of a loaded model, with a cache of its own.

    Weights, vocabulary, sizes and context are those of the model.
    """

    def __init__(self, model: Model, index: int) -> None:
        self._model, self.index = model, index
        self._cached = []
        self.busy_s = 0.0

    @property
    def model(self) -> Model:
        """The model."""
        return self._model

    def decode_sequences(self, parts: Sequence[SequenceTokens]) -> int:
        """Decode tokens of several sequences in one batch; the model keeps the thread count."""
        return self._model.decode_sequences(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


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
        model.index = 0
        self.all = [model, *(Slot(model, i) for i in range(1, model.options.parallel))]
        for slot in self.all:
            slot.run = self.decode_one

    def decode_one(self, part: Part) -> Logits:
        """Decode one part in a pass of its own, and return its rows."""
        return self.decode([part])[0]

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
            part.slot.check_room(part.tokens)
        filled = sorted(self._filled(parts, n_sequences), key=lambda one: one.sequence)
        first, firsts = 0, {}
        for one in filled:
            firsts[one.sequence] = first
            first += len(one.tokens)
        self.n_decoded = len(filled)
        started = time.perf_counter()
        slots = {one.sequence: self.all[one.sequence] for one in filled}
        try:
            code = self.model.decode_sequences(filled)
            seconds = time.perf_counter() - started
            if code == 0:
                for part in parts:
                    part.slot.cached.extend(part.tokens)
                    part.slot.busy_s += seconds
                for one in filled:
                    slot = slots[one.sequence]
                    if one.n_past + len(one.tokens) > slot.n_past:
                        self._remove(slot)
        except BaseException:  # Ctrl-C, where the thread of the caller decodes
            self._drop(slots.values(), parts)
            raise
        if code != 0:
            self._drop(slots.values(), parts)
            n_past = max(one.n_past for one in filled)
            raise DecodeError(code, n_past, first, log.last)
        self.model.counts = self.model.counts.plus(sum(part.n_rows for part in parts))
        return [self._rows(part, firsts[part.slot.index]) for part in parts]

    def move(self, slot: Model, free: Model) -> None:
        """Move a sequence to the place of a free one, whose cache is lost."""
        free.copy_from(slot)
        slot.index, free.index = free.index, slot.index
        self.all[slot.index], self.all[free.index] = slot, free
        free.forget()

    def refill(self, slot: Model, tokens: Sequence[int], n_read: int) -> None:
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

    def _drop(self, slots: Iterable[Model], parts: Sequence[Part]) -> None:
        """Undo a pass: empty the caches of its parts; those of gaps keep their tokens."""
        for slot in slots:
            self._remove(slot)
        for part in parts:
            part.slot.forget()

    def _remove(self, slot: Model) -> None:
        """Remove the tokens that only filled the pass."""
        self.model.native.cache(C.llama_memory_seq_rm, slot.index, slot.n_past or -1, -1)
