"""Prefix cache: caches of earlier texts in host memory, and the slots of a new request.

If prompts are kept, texts on disk are a second level (`kept_prompts`): it is searched, too, and has
the texts of all answers.

A cache is saved when another text is about to take its place, and only if copying it to and fro
takes less time than reading it. The texts are kept sorted: among all of them one of the two
neighbours of a prompt has its longest prefix, so a search takes a few comparisons of bytes. A tree
would save no memory, because each state has the bits of its whole text.

Half of the memory belongs to the checkpoints of recurrent layers, if a model has such
(`llama.recurrent_state`). A text is kept with its checkpoints.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import GgufSpecError, RollbackError
from ..passes import Exactness
from ..results import PrefixMemory
from ..speculative.prefix import reusable
from ..speculative.scheduler import SlotPair
from ..system.machine import available_bytes
from ..vocabulary import common

if TYPE_CHECKING:
    from ..llama.recurrent_state import Checkpoint, RecurrentState
    from ..llama.sequence import CachedSequence
    from .kept_prompts import KeptPrompts

# Tokens; a copy must save reading at least as many.
LEAST_COPIED = 64
# Bytes of free memory that are left to other programs.
RESERVE = 256 << 20
# A cache is copied only where reading its text again would take this many times as long as saving
# and restoring, because some copies are never used.
_GAIN = 2.0
# Weight of one measurement in a rate.
_STEP = 0.3
# Bytes of a token in a key.
_ID_BYTES = 4


@dataclass(frozen=True)
class SavedState:
    """A saved cache.

    Attributes:
        tokens: Ids of its tokens.
        n_read: Length of the prefix that prefill passes decoded, on the grid.
        data: llama.cpp's bytes.
        offset: Position in the text of the first token.
        checkpoints: Those of recurrent layers, to which the cache can be cut.
    """

    tokens: list[int]
    n_read: int
    data: NDArray[np.uint8]
    offset: int = 0
    checkpoints: Sequence[Checkpoint] = ()

    @property
    def n_bytes(self) -> int:
        return self.data.nbytes + sum(one.state.nbytes for one in self.checkpoints)


@dataclass(frozen=True)
class Kept:
    """A kept text.

    Attributes:
        target: State of the target.
        draft: State of the draft model, or None.
        exactness: That of the target's passes.
        is_whole: Whether the state is of use only for texts that begin with all of its tokens, or
            with all before a checkpoint.
    """

    target: SavedState
    draft: SavedState | None
    exactness: Exactness
    is_whole: bool

    @property
    def n_bytes(self) -> int:
        return self.target.n_bytes + (self.draft.n_bytes if self.draft else 0)

    def reusable(self, tokens: Sequence[int]) -> int:
        """Return how many tokens of a text need not be read with these states."""
        mine = self.target.tokens
        same = self.exactness.same_bits(mine, self.target.n_read, tokens)
        if not self.is_whole or same == len(mine):
            return same
        return max((one.n for one in self.target.checkpoints if one.n <= same), default=0)


class Found(NamedTuple):
    """Result of a search.

    Attributes:
        n: Number of tokens that need not be read.
        kept: The text that has them; None if no text in memory has so many.
        on_disk: They are on the disk, and are not read yet.
    """

    n: int = 0
    kept: Kept | None = None
    on_disk: bool = False


class _Rate:
    """Moving average of the seconds for one unit; None before the first measurement."""

    def __init__(self) -> None:
        self._value: float | None = None

    def learn(self, n: int, seconds: float) -> None:
        if n > 0 and seconds > 0:
            old = seconds / n if self._value is None else self._value
            self._value = old + _STEP * (seconds / n - old)

    def seconds(self, n: int) -> float | None:
        return None if self._value is None else n * self._value


class PrefixStore:
    """Kept texts, least recently used ones out.

    One thread at a time uses it; `memory` may be called from any.

    Attributes:
        reading: Time in which the target reads the tokens of a prompt; it learns from each prompt.
        disk: Further texts, which outlive the process; None if none are kept.
    """

    reading: _Rate
    disk: KeptPrompts | None = None

    def __init__(
        self,
        limit_bytes: int,
        states: Sequence[RecurrentState] = (),
        *,
        free: Callable[[], int | None] = available_bytes,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Create an empty store.

        Args:
            limit_bytes: Largest memory of the states; 0 keeps nothing.
            states: Recurrent layers, which share half of it for their checkpoints.
            free: Returns the free memory in bytes, or None if it is unknown.
            now: Returns the clock, in seconds.
        """
        self._states, self._free, self._now = states, free, now
        for one in states:
            one.limit = limit_bytes // (2 * len(states))
        self._limit, self._all = (limit_bytes // 2 if states else limit_bytes), limit_bytes
        self._keys: list[bytes] = []  # sorted
        self._kept: OrderedDict[bytes, Kept] = OrderedDict()  # least recently used first
        self._n_bytes = self._n_saved = self._n_restored = self._n_tokens = 0
        self.reading, self._save, self._restore = _Rate(), _Rate(), _Rate()

    def memory(self) -> PrefixMemory:
        return PrefixMemory(
            self._all,
            self._n_bytes + sum(one.n_bytes for one in self._states),
            len(self._keys),
            self._n_saved,
            self._n_restored,
            self._n_tokens,
        )

    def forget(self) -> None:
        """Drop all texts, those on the disk, too."""
        self._forget()
        if self.disk:
            self.disk.forget()

    def _forget(self) -> None:
        self._keys.clear()
        self._kept.clear()
        self._n_bytes = 0

    def close(self, pairs: Sequence[SlotPair[CachedSequence]]) -> None:
        """Drop the texts in memory, before the models are closed; those of slots go to the disk."""
        self._forget()
        for caches in pairs:
            self.answered(caches, is_last=True)
        if self.disk:
            self.disk.flush()

    def answered(self, caches: SlotPair[CachedSequence], is_last: bool = False) -> None:
        """Keep the text of an answer on the disk, if it is worth a copy."""
        if self.disk:
            with suppress(GgufSpecError, MemoryError):
                self.disk.keep(caches, self.pays, self._save.learn, is_last)

    def find(self, tokens: Sequence[int]) -> Found:
        """Return the kept text that saves most of the reading of a text, in memory or on disk."""
        best, on_disk = self._find(tokens), self.disk.find(tokens) if self.disk else Found()
        return on_disk if on_disk.n - best.n >= LEAST_COPIED else best

    def _find(self, tokens: Sequence[int]) -> Found:
        key, best = _key(tokens), Found()
        at = bisect_left(self._keys, key)
        near = [*self._keys[max(0, at - 1) : at + 1], *self._prefixes(key)]
        for kept in (self._kept[one] for one in near):
            n = kept.reusable(tokens)
            if n > best.n:
                best = Found(n, kept)
        return best

    def save_and_restore(
        self, caches: SlotPair[CachedSequence], tokens: Sequence[int], found: Found | None = None
    ) -> None:
        """Prepare the caches for a text: save what they lose, and restore a kept text that helps.

        Args:
            caches: The caches that will read the text.
            tokens: The text.
            found: The result of `find` for it, or None.
        """
        if not (self._limit or self.disk):
            return
        found = found or (self.find(tokens) if self._keys or self.disk else Found())
        n_same = reusable(caches.target, tokens)
        if found.n - n_same < LEAST_COPIED:
            found = Found()
        if found.kept:  # before another one is dropped
            self._kept.move_to_end(_key(found.kept.target.tokens))
        self._save_before(caches, n_same)
        if found.on_disk:
            found = self._loaded(caches, tokens, found.n - n_same)
        if found.kept and found.n - n_same >= LEAST_COPIED:
            self._restore_into(caches, found.kept, found.n, n_same)

    def _loaded(self, caches: SlotPair[CachedSequence], tokens: Sequence[int], n_new: int) -> Found:
        """Return a text that was loaded from the disk, or else the best one in memory."""
        reading_s = self.reading.seconds(n_new)
        kept = self.disk.load(caches, tokens, reading_s) if self.disk else None
        return Found(len(kept.target.tokens), kept) if kept else self._find(tokens)

    # ---- saving

    def all_of(self, pairs: Sequence[SlotPair[CachedSequence]]) -> list[Kept]:
        """Save all caches, and return all texts, least recently used first."""
        for caches in pairs if self._limit else ():
            self._save_before(caches, 0)
        return [*self._kept.values()]

    def add_all(self, texts: Sequence[Kept]) -> None:
        """Keep texts of another store, the last ones if there is not room for all."""
        for kept in texts:
            if self._make_room(kept.n_bytes):
                self._add(_key(kept.target.tokens), kept)

    def _save_before(self, caches: SlotPair[CachedSequence], n_same: int) -> None:
        """Save caches of which only the first `n_same` tokens stay."""
        target = caches.target
        n_useful = len(target.cached) if target.exactness.in_any_width else target.n_read
        if n_useful - n_same < LEAST_COPIED or not self._limit:
            return
        # A kept text may begin with all of its tokens.
        key = _key(target.cached[:n_useful])
        for near in self._keys[bisect_left(self._keys, key) :][:1]:
            if near == key or (near.startswith(key) and not self._kept[near].is_whole):
                self._kept.move_to_end(near)
                return
        with suppress(MemoryError, RollbackError):
            target.rollback(n_useful)  # the rest cannot be used again
            self._save_all(caches, n_useful - n_same)

    def _save_all(self, caches: SlotPair[CachedSequence], n_lost: int) -> None:
        target, draft = caches.target, caches.draft
        if draft:  # it may still have another text
            offset = 0 if caches.first.failed else caches.first.offset
            n_common = common(draft.cached, target.cached[offset:])
            draft = None if caches.first.failed or n_common < LEAST_COPIED else draft
        if draft:
            draft.rollback(n_common)
        caches_to_save = [target, *([draft] if draft else [])]
        n_bytes = sum(one.state_bytes() for one in caches_to_save)
        room = n_bytes + sum(one.recurrent.n_bytes for one in caches_to_save if one.recurrent)
        if not (n_bytes and self.pays(n_lost, n_bytes) and self._make_room(room)):
            return
        started = self._now()
        kept = Kept(
            _state(target),
            _state(draft, caches.first.offset) if draft else None,
            target.exactness,
            not target.can_roll_back or target.least_cut_of_state(len(target.cached)) > 0,
        )
        self._save.learn(n_bytes, self._now() - started)
        if len(kept.target.data):
            self._add(_key(kept.target.tokens), kept)

    def pays(self, n_tokens: int, n_bytes: int, saved: bool = False) -> bool:
        """Return whether copies of states take less time than reading tokens.

        Before a rate is known they do: the first copy measures it.

        Args:
            n_tokens: Number of tokens that need not be read.
            n_bytes: Size of the states.
            saved: They are saved already, and are only restored.
        """
        reading_s, saving_s = self.reading.seconds(n_tokens), self._save.seconds(n_bytes)
        restoring_s = self._restore.seconds(n_bytes) or saving_s
        if reading_s is None or saving_s is None or restoring_s is None:
            return True
        return reading_s > (restoring_s if saved else _GAIN * (saving_s + restoring_s))

    def _make_room(self, n_bytes: int) -> bool:
        """Drop texts until there is room; return False, and drop none, if there is never enough."""
        free = self._free()
        limit = self._limit
        if free is not None:
            limit = min(limit, self._n_bytes + max(0, free - RESERVE))
        if n_bytes > limit:
            return False
        while self._n_bytes + n_bytes > limit:
            self._drop(next(iter(self._kept)))
        return True

    def _add(self, key: bytes, kept: Kept) -> None:
        """Keep a text in place of its prefixes."""
        for prefix in [*self._prefixes(key)]:
            if not self._kept[prefix].is_whole:
                self._drop(prefix)
        self._kept[key] = kept
        self._keys.insert(bisect_left(self._keys, key), key)
        self._n_bytes += kept.n_bytes
        self._n_saved += 1

    def _drop(self, key: bytes) -> None:
        del self._keys[bisect_left(self._keys, key)]
        self._n_bytes -= self._kept.pop(key).n_bytes

    def _prefixes(self, key: bytes) -> Iterator[bytes]:
        """Yield the keys of the kept texts that are prefixes of a text, the longest first."""
        while key:
            at = bisect_right(self._keys, key) - 1
            if at < 0:
                return
            near = self._keys[at]
            if key.startswith(near):
                yield near
                key = near[:-_ID_BYTES]
            else:
                n_bytes = common(near, key)
                key = key[: n_bytes - n_bytes % _ID_BYTES]

    # ---- restoring

    def _restore_into(
        self, caches: SlotPair[CachedSequence], kept: Kept, n: int, n_same: int
    ) -> None:
        """Restore a kept text with `n` useful tokens, `n_same` of which the caches have."""
        n_bytes = kept.target.data.nbytes + (kept.draft.data.nbytes if kept.draft else 0)
        if not self.pays(n - n_same, n_bytes, saved=True):
            return
        started = self._now()
        if not _put(caches.target, kept.target):
            key = _key(kept.target.tokens)
            if key in self._kept:  # saving the caches may have dropped it
                self._drop(key)
            return
        if caches.draft and kept.draft:
            is_there = _put(caches.draft, kept.draft)
            caches.first.offset = kept.draft.offset if is_there else 0
            caches.first.failed = False
        self._restore.learn(n_bytes, self._now() - started)
        self._n_restored += 1
        self._n_tokens += n - n_same


def _key(tokens: Sequence[int]) -> bytes:
    """Return bytes that sort like the tokens, and whose prefixes are those of the tokens."""
    return np.asarray(tokens, dtype=f">u{_ID_BYTES}").tobytes()


def _state(cache: CachedSequence, offset: int = 0) -> SavedState:
    checkpoints = cache.recurrent.kept if cache.recurrent else []
    return SavedState([*cache.cached], cache.n_read, cache.state(), offset, checkpoints)


def _put(cache: CachedSequence, state: SavedState) -> bool:
    try:
        is_there = cache.restore(state.tokens, state.n_read, state.data)
    except MemoryError:
        return False
    if is_there and cache.recurrent:
        cache.recurrent.reset(len(state.tokens), state.checkpoints)
    return is_there


def prepare_slot(
    pairs: Sequence[SlotPair[CachedSequence]], prompt: Sequence[int], kept: PrefixStore
) -> SlotPair[CachedSequence]:
    """Return free slots for a prompt, with as much of it in their caches as possible.

    A prefix that only another slot holds, such as a common system prompt, is copied; one that only
    the store holds is restored. Without any common prefix the slots that were not used for the
    longest time are taken, the lowest first: neighbouring slots are cheaper in common passes.

    Args:
        pairs: All slots, at least one of them free.
        prompt: Token ids.
        kept: Texts that no slot holds any more; a text that loses its slots goes there.
    """
    tokens = prompt[:-1]  # the last token is decoded with the answer
    same = {id(pair): reusable(pair.target, tokens) for pair in pairs}
    free = [pair for pair in pairs if pair.task is None]
    best = max(free, key=lambda pair: (same[id(pair)], -pair.used_at, -pair.target.index))
    source, found = max(pairs, key=lambda pair: same[id(pair)]), kept.find(tokens)
    n_copied = same[id(source)] if source.target.can_roll_back else 0
    if max(n_copied, found.n) - same[id(best)] < LEAST_COPIED:
        kept.save_and_restore(best, tokens, Found())
        return best
    to = min(free, key=lambda pair: (pair.used_at, pair.target.index))
    if found.n > n_copied:
        kept.save_and_restore(to, tokens, found)
    else:
        kept.save_and_restore(to, tokens, Found())
        to.target.copy_from(source.target)
        to.target.rollback(n_copied)
        if to.draft and source.draft:
            to.draft.copy_from(source.draft)
            to.first.offset, to.first.failed = source.first.offset, source.first.failed
    return to


def reads_prefix(
    pairs: Sequence[SlotPair[CachedSequence]],
    others: Iterable[Sequence[int]],
    prompt: Sequence[int],
    kept: PrefixStore,
) -> bool:
    """Return whether another request is about to read a prefix of a prompt that can be copied then.

    Args:
        pairs: All slots.
        others: Prompts of the running requests.
        prompt: Token ids.
        kept: Texts that no slot holds any more.
    """
    if not pairs[0].target.can_roll_back:
        return False
    tokens = prompt[:-1]
    known = max(kept.find(tokens).n, *(common(pair.target.cached, tokens) for pair in pairs))
    return any(common(other[:-1], tokens) >= known + LEAST_COPIED for other in others)
