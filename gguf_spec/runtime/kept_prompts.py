"""Prompts that are kept on disk: the second level of the `PrefixStore`.

The tokens of a text are divided into blocks, and the state of each block is a piece in a folder
(`system.piece_folder`) behind that of the block before it. So texts that begin alike share pieces,
a longer text adds only what is new, and the longest known prefix is found by asking for one name
after the other. The last tokens of a text, which fill no block, are a shorter piece.

All names begin at a root, which contains all that decides the bits of a state: model, adapters,
type of the cache, kernels, processor. What has another root is never found.

A piece counts where reading has the same bits: where it matters how prompts are divided into
passes, pieces end on the grid of the passes. States of recurrent layers and windows of attention
belong to one place of the text. They are kept in the piece that ends there, at the end of a text
and at some of the checkpoints along it, and a text is used up to the last of these places.

A state is copied at the end of an answer, if that takes less time than it can save, and a thread
writes it.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GgufSpecError, InvalidOptionError
from ..llama.backend import uses_gpu
from ..llama.bindings import C
from ..llama.recurrent_state import Checkpoint, least_needed
from ..llama.sequence import CachedSequence
from ..llama.state_pieces import (
    Column,
    CutState,
    JoinedState,
    checkpoint,
    end_of,
    take_apart,
)
from ..options import IMAGE_IDS
from ..passes import Exactness
from ..registry.download import known_sum, sum_of
from ..results import POLL_S
from ..speculative.scheduler import SlotPair
from ..system.machine import available_bytes
from ..system.piece_folder import Piece, PieceFolder, folder_and_limit
from ..system.process import Held, before_end_of_threads
from ..vocabulary import common
from .prefix_cache import LEAST_COPIED, RESERVE, Found, Kept, SavedState
from .session_file import maker

_LOG = logging.getLogger("gguf_spec.kept")
# Tokens of a block, or a multiple of it where passes have a wider grid.
_BLOCK = 64
# Tokens that must be new for a text to be written again.
_LEAST_NEW = 8
# Most places of a text at which the state of recurrent layers is written.
_MOST_ENDS = 4
# Most pieces behind a parent whose tokens are compared.
_MOST_COMPARED = 64
# Threads that read and check pieces, and attempts to read a text of which some are damaged.
_READERS, _ATTEMPTS = 4, 3
# Results of searches that are remembered, because a waiting request asks again and again.
_MOST_REMEMBERED = 32
# Bytes of a model whose hash is waited for.
_SOON_READ = 256 << 20
# Seconds that the end of the program and of a model wait for pieces to be written.
_END_S = 60.0


def folder_of_option(given: object) -> PieceFolder | None:
    """Return the folder that the option `keep` names; None if nothing is kept.

    Raises:
        InvalidOptionError: It is neither a folder nor a size.
    """
    allowed = "a folder, a size such as 20GB, or both (FOLDER:20GB), or 0 for nothing"
    try:
        found = folder_and_limit(given)
    except (ValueError, RuntimeError):  # a user without a home folder
        raise InvalidOptionError("keep", given, allowed) from None
    if found and found[0].exists() and not found[0].is_dir():
        raise InvalidOptionError("keep", given, f"{allowed}; a file has this name")
    return PieceFolder(*found) if found else None


@dataclass(frozen=True)
class _Use:
    """Pieces of a text that can be used.

    Attributes:
        pieces: The pieces in their order; `ends` has the number of tokens up to each.
    """

    pieces: tuple[Piece, ...] = ()
    ends: tuple[int, ...] = ()

    @property
    def n(self) -> int:
        return self.ends[-1] if self.ends else 0


class Chain:
    """The pieces of the texts of one model."""

    def __init__(self, folder: PieceFolder, cache: CachedSequence, name: str) -> None:
        grid = cache.exactness.grid
        self.folder: PieceFolder = folder
        self.name: str = name
        self.exactness: Exactness = cache.exactness
        self.block: int = lcm(_BLOCK, grid or 1)
        n_window = cache.native.model(C.llama_model_n_swa)
        self.has_ends: bool = n_window > 0 or not cache.can_roll_back
        self.made_by: str = f"{self.block}\n{maker(cache, _kind(cache))}"
        self.root: str = ""

    def begin(self, sums: Sequence[str]) -> None:
        """Begin the chain, which has no pieces before.

        Args:
            sums: Hashes of whole files that decide the bits.
        """
        self.root = self.folder.name("", "\n".join([self.made_by, *sums]).encode())

    def _piece(self, parent: str, tokens: Sequence[int]) -> Piece:
        contents = np.asarray(tokens, dtype="<u4").tobytes()
        return Piece(parent, self.folder.name(parent, contents), len(tokens))

    def blocks(self, tokens: Sequence[int]) -> list[Piece]:
        """Return the pieces of all whole blocks of a text, which need not be there."""
        found, parent = list[Piece](), self.root
        for at in range(0, len(tokens) - self.block + 1, self.block):
            found.append(self._piece(parent, tokens[at : at + self.block]))
            parent = found[-1].name
        return found

    def last(self, blocks: Sequence[Piece], tokens: Sequence[int]) -> Piece:
        """Return the piece of the tokens behind the whole blocks, which may be none."""
        parent = blocks[-1].name if blocks else self.root
        return self._piece(parent, tokens[len(blocks) * self.block :])

    def find(self, tokens: Sequence[int]) -> _Use:
        """Return the pieces of the longest prefix of a text that is there."""
        chain, parent, folder = list[Piece](), self.root, self.folder
        if not parent:
            return _Use()
        for at in range(0, len(tokens) - self.block + 1, self.block):
            piece = self._piece(parent, tokens[at : at + self.block])
            if not folder.has(piece):
                break
            chain.append(piece)
            parent = piece.name
        ends = tuple(range(self.block, self.block * len(chain) + 1, self.block))
        if not chain:  # less than a block is read as fast
            return _Use()
        if self.has_ends:
            return self._find_end(chain, ends, tokens)
        rest = tokens[ends[-1] : ends[-1] + self.block]
        longest, n = self._longest(chain[-1].name, rest)
        n -= self.exactness.beyond(n)
        more = (longest,) if longest and n else ()
        return _Use((*chain, *more), (*ends, *(ends[-1] + n for _ in more)))

    def _longest(self, parent: str, rest: Sequence[int]) -> tuple[Piece | None, int]:
        """Return the piece behind a parent whose tokens begin most like `rest`, and how many do."""
        best: tuple[Piece | None, int] = (None, 0)
        for piece in self.folder.behind(parent)[:_MOST_COMPARED] if rest else ():
            n = common(self._tokens(piece), rest)
            best = (piece, n) if n > best[1] else best
        return best

    def _tokens(self, piece: Piece) -> list[int]:
        """Return the tokens of a piece, which its name confirms; none of one that is damaged.

        That is removed: nothing else would read it.
        """
        tokens = self.folder.about(piece).get("tokens")
        with suppress(TypeError, ValueError, OverflowError):  # something else than tokens
            if tokens and self._piece(piece.parent, tokens) == piece:
                return [*tokens]
        self.folder.remove(piece)
        return []

    def _find_end(self, chain: Sequence[Piece], ends: Sequence[int], tokens: Sequence[int]) -> _Use:
        """Return the pieces up to the last end of a text that `tokens` begins with."""
        for i in range(len(chain), 0, -1):
            start, parent = ends[i - 1], chain[i - 1].name
            behind = [one for one in self.folder.behind(parent) if one.n < self.block]
            for piece in sorted(behind, key=lambda one: -one.n):
                stop = start + piece.n
                if piece == self._piece(parent, tokens[start:stop]):
                    return _Use((*chain[:i], piece), (*ends[:i], stop))
        return _Use()

    # ---- reading

    def load(
        self, cache: CachedSequence, tokens: Sequence[int], use: _Use, until: float
    ) -> SavedState | None:
        """Return the state of the pieces, or of those before one that is missing; None if none.

        Args:
            until: Time after which no further piece is read, by the clock of `time.perf_counter`.
        """
        for _ in range(_ATTEMPTS):
            if not use.n:
                return None
            found, n_whole = self._read(cache, tokens, use, until)
            if found is not None or self.has_ends:
                return found
            use = _Use(use.pieces[:n_whole], use.ends[:n_whole])
            until = float("inf")  # they are in the memory of the system now
        return None

    def _read(
        self, cache: CachedSequence, tokens: Sequence[int], use: _Use, until: float
    ) -> tuple[SavedState | None, int]:
        """Return the state of all pieces, or None and how many of the first ones are whole."""
        last = self.folder.read(use.pieces[-1])
        if last is None:
            return None, len(use.pieces) - 1
        about, data = last
        columns = _columns(about.get("columns"))
        n_piece = sum(one.n_bytes(use.pieces[-1].n) for one in columns)
        if len(data) < n_piece or (self.has_ends and len(data) == n_piece):
            return None, len(use.pieces) - 1
        end = bytes(data[n_piece:])
        joined = JoinedState(cache, columns, use.n, end)

        def put(i: int) -> bool:
            start, stop = (use.ends[i - 1] if i else 0), use.ends[i]
            piece = use.pieces[i]
            one = last if piece is use.pieces[-1] else None
            if one is None:
                one = self.folder.read(piece) if time.perf_counter() < until else None
            if one is None or one[0].get("columns") != about["columns"]:
                return False
            if common(one[0].get("tokens", ()), tokens[start:stop]) < stop - start:
                return False
            joined.put(start, stop, one[1][: _n_bytes(columns, piece.n)], piece.n)
            return True

        with ThreadPoolExecutor(_READERS) as pool:
            are_there = [*pool.map(put, range(len(use.pieces)))]
        if not all(are_there):
            return None, are_there.index(False)
        self.folder.touch(use.pieces)
        points = [checkpoint(cache, use.n, end)] if cache.recurrent else []
        return SavedState([*tokens[: use.n]], use.n, joined.data, 0, points), len(use.pieces)

    # ---- writing

    def n_there(self, tokens: Sequence[int]) -> int:
        """Return how many first tokens of a text are there, and note that they were used."""
        use = self.find(tokens)
        self.folder.touch(use.pieces)
        return use.n

    def writing(
        self, cache: CachedSequence, n: int, state: NDArray[np.uint8]
    ) -> Callable[[], None] | None:
        """Return what writes the first `n` tokens of the present state; None without pieces."""
        cut = take_apart(cache, state)
        if cut is None or self.has_ends != bool(len(cut.end)):
            return None
        tokens, ends = [*cache.cached], dict[int, bytes]()
        if self.has_ends:
            ends = {one.n: end_of(one) for one in self._points(cache, n)}
            if n == len(tokens):
                ends[n] = cut.end.tobytes()
            n = max(ends, default=0)
        del tokens[n:]
        start = b"".join(cache.weights.piece(one) for one in tokens[:_BLOCK])
        title = " ".join(start.decode(errors="replace").split())
        return partial(self._write, cut, tokens, ends, title)

    def _write(
        self, cut: CutState, tokens: Sequence[int], ends: Mapping[int, bytes], title: str
    ) -> None:
        """Write the pieces of a text that are not there yet, the first ones first.

        Args:
            ends: What belongs to places of the text alone, by their numbers of tokens.
            title: The beginning of the text, for lists.
        """
        if not self.root:  # the file of the model cannot be read
            return
        blocks, size = self.blocks(tokens), self.block
        columns = [(one.head.hex(), one.rows, one.width) for one in cut.columns]
        about: dict[str, Any] = {"model": self.name, "columns": columns}
        wanted = [(piece, i * size, (i + 1) * size, b"") for i, piece in enumerate(blocks)]
        for stop in sorted(ends) if self.has_ends else (len(tokens),):
            start = stop - stop % size
            last = self.last(blocks[: start // size], tokens[:stop])
            if start and (last.n or self.has_ends):
                wanted.append((last, start, stop, ends.get(stop, b"")))
        for piece, start, stop, end in wanted:
            if not self.folder.has(piece):
                told = about | {"tokens": tokens[start:stop]} | ({} if start else {"title": title})
                if not self.folder.write(piece, told, [cut.piece(start, stop), end]):
                    return
        if not self.has_ends:
            self._remove_prefixes(blocks, tokens)

    def _points(self, cache: CachedSequence, n: int) -> list[Checkpoint]:
        """Return some of the checkpoints of a text, as those that are needed most."""
        kept = cache.recurrent.kept if cache.recurrent else ()
        fit = [one for one in kept if self.block <= one.n <= n and len(one.state)]
        fit = [one for one in fit if not self.exactness.beyond(one.n)]
        while len(fit) >= _MOST_ENDS:
            del fit[least_needed([one.n for one in fit], range(len(fit)))]
        return fit

    def _remove_prefixes(self, blocks: Sequence[Piece], tokens: Sequence[int]) -> None:
        """Remove short pieces that are the beginning of one that the text has now."""
        for i in (len(blocks) - 1, len(blocks)):
            parent = blocks[i - 1].name if i > 0 else ""
            mine = tokens[i * self.block : (i + 1) * self.block]
            for piece in self.folder.behind(parent)[:_MOST_COMPARED] if parent else ():
                if piece.n < len(mine) and piece == self._piece(parent, mine[: piece.n]):
                    self.folder.remove(piece)


def _columns(given: Any) -> list[Column]:
    return [Column(bytes.fromhex(head), rows, width) for head, rows, width in given]


def _n_bytes(columns: Sequence[Column], n: int) -> int:
    return sum(one.n_bytes(n) for one in columns)


def _kind(cache: CachedSequence) -> list[object]:
    """Return what decides the bits of a state besides the files and the options of the cache."""
    header, exactness = cache.file.header, cache.exactness
    rope = f"{header.architecture}.rope.scaling.original_context_length"
    n_short = header.metadata.get(rope)  # a longer context takes other factors for positions
    is_long = isinstance(n_short, int) and cache.n_ctx > n_short
    # attention that adds in another order with other numbers of threads, and passes of all widths
    threads = 0 if exactness.attention else cache.context.threads
    width = cache.reads_at_once if exactness.grid or cache.least_cut_of_state(cache.n_ctx) else 0
    layers = cache.options.gpu_layers if uses_gpu(cache.options) else 0
    is_packed = cache.options.extra_bufts
    name = type(cache).__name__
    return [name, exactness, is_long, threads, width, layers, is_packed]


class KeptPrompts:
    """The prompts of one LLM on disk. The thread that has the turn uses it.

    Attributes:
        folder: The folder of the pieces.
    """

    def __init__(
        self,
        folder: PieceFolder,
        target: CachedSequence,
        draft: CachedSequence | None,
        *,
        free: Callable[[], int | None] = available_bytes,
    ) -> None:
        self.folder: PieceFolder = folder
        self._free = free
        self._is_open = folder.open()
        self._target = Chain(folder, target, target.path.name)
        self._draft = Chain(folder, draft, draft.path.name) if draft else None
        self._found: OrderedDict[bytes, _Use] = OrderedDict()
        self._jobs: deque[Callable[[], None]] = deque()
        # No condition: Ctrl-C in its Python code leaves its lock taken.
        self._lock, self._is_writing = threading.RLock(), False
        self._file, adapters = target.file, target.options.lora
        self._files = [*target.file.paths, *(one.path for one in adapters)]
        _all.add(self)
        is_known = None not in map(known_sum, self._files)
        if self._is_open and (is_known or target.weight_bytes < _SOON_READ):
            self._begin()
        elif self._is_open:  # meanwhile nothing is found
            self._start(self._begin)

    def _begin(self) -> None:
        """Begin the chains. Samples of the target are not enough, as they decide no text.

        A draft model decides none.
        """
        try:
            sums = [*map(sum_of, self._files)]
            self._file.check_unchanged()  # they are those of the loaded file
        except (OSError, GgufSpecError) as error:
            self.folder.warn("%s.", str(error).rstrip("."))
            return
        if self._draft:
            self._draft.begin([])
        self._target.begin(sums)

    # ---- finding

    def find(self, tokens: Sequence[int]) -> Found:
        """Return how much of a text is there; `load` reads it."""
        if not self._is_open:
            return Found()
        key = hashlib.sha256(np.asarray(tokens, dtype="<u4").tobytes()).digest()
        use = self._found.get(key)
        if use is None:
            use = self._found[key] = self._target.find(tokens)
            with suppress(KeyError):  # the writing thread has emptied it
                while len(self._found) > _MOST_REMEMBERED:
                    self._found.popitem(last=False)
        return Found(use.n, None, on_disk=use.n > 0)

    def load(
        self, caches: SlotPair[CachedSequence], tokens: Sequence[int], reading_s: float | None
    ) -> Kept | None:
        """Return the states of what `find` has found; None if nothing of it is whole.

        Args:
            reading_s: Time in which the target reads the text, after which no more is loaded; None
                if that is not known.
        """
        until = float("inf") if reading_s is None else time.perf_counter() + reading_s
        use = self._target.find(tokens)
        free, n_bytes = self._free(), caches.target.cached_bytes * use.n
        if free is not None and free < n_bytes + RESERVE:
            return None
        self._found.clear()  # what is missing is not found again
        try:
            target = self._target.load(caches.target, tokens, use, until)
            draft = None
            if target and caches.draft and self._draft and not self._draft.has_ends:
                use = self._draft.find(target.tokens)
                draft = self._draft.load(caches.draft, target.tokens, use, until)
        except (MemoryError, RuntimeError, TypeError, ValueError) as error:
            _LOG.warning("a kept prompt cannot be used, and is read again (%s).", error)
            return None
        exactness = caches.target.exactness
        return Kept(target, draft, exactness, self._target.has_ends) if target else None

    # ---- keeping

    def keep(
        self,
        caches: SlotPair[CachedSequence],
        pays: Callable[[int, int], bool],
        learn: Callable[[int, float], None],
        is_last: bool = False,
    ) -> None:
        """Copy what is new of the caches, and let a thread write it.

        Args:
            pays: Returns whether a number of tokens is worth a copy of a number of bytes.
            learn: Told the bytes and the seconds of a copy.
            is_last: The models are about to be closed: nothing waits, so all is kept.
        """
        target, draft = caches.target, caches.draft
        if not self._is_open or not _can_copy(target):
            return
        n = len(target.cached) if target.exactness.in_any_width else target.n_read
        n -= target.exactness.beyond(n)
        n = next((i for i, one in enumerate(target.cached[:n]) if one >= IMAGE_IDS), n)
        is_kept = self._keep(self._target, target, n, pays, learn, is_last)
        if not (is_kept and draft and self._draft) or caches.first.failed or caches.first.offset:
            return
        n_common = common(draft.cached, target.cached[:n])
        if _can_copy(draft) and not self._draft.has_ends:
            self._keep(self._draft, draft, n_common, lambda *_: True, learn, is_last)

    def _keep(
        self,
        chain: Chain,
        cache: CachedSequence,
        n: int,
        pays: Callable[[int, int], bool],
        learn: Callable[[int, float], None],
        is_last: bool,
    ) -> bool:
        """Keep the first tokens of a cache; return whether there was something new."""
        if n < max(LEAST_COPIED, chain.block):
            return False
        n_new = n - chain.n_there(cache.cached[:n])
        if n_new < (1 if is_last else _LEAST_NEW):
            return False
        n_bytes, free = cache.state_bytes(), self._free()
        if not n_bytes or not (is_last or pays(n_new, n_bytes)):
            return False
        if len(self._jobs) > (8 if is_last else 1):  # the disk is slower than the requests
            return False
        if free is not None and free < 2 * n_bytes + RESERVE:
            return False
        started = time.perf_counter()
        state = cache.state()
        learn(n_bytes, time.perf_counter() - started)
        job = chain.writing(cache, n, state)
        if job:
            self._start(job)
        return job is not None

    def _start(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._jobs.append(job)
            if self._is_writing:
                return
            self._is_writing = True
        threading.Thread(target=self._write, name="gguf-spec-kept", daemon=True).start()

    def _write(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._is_writing = False
                    return
                job = self._jobs[0]
            try:
                job()
            except Exception as error:  # a full disk, no memory: the prompt is read again
                self.folder.warn("%s cannot be written (%s).", self.folder.path, error)
            self._found.clear()
            with self._lock:
                self._jobs.popleft()

    def flush(self, seconds: float = _END_S) -> bool:
        """Wait until all is written, at most some seconds; return whether it is."""
        end = time.monotonic() + seconds
        while self._is_writing and time.monotonic() < end:
            time.sleep(POLL_S)
        return not self._is_writing

    def forget(self) -> None:
        """Remove the kept prompts of these models."""
        self.flush()
        self._found.clear()
        if self._is_open:
            for one in filter(None, (self._target, self._draft)):
                self.folder.remove_below(one.root)


def _can_copy(cache: CachedSequence) -> bool:
    """Return whether a state can be copied now: without a pass, whose rows others may need.

    If a mapped file was changed, caches may be of both contents.
    """
    is_mapped = cache.options.placement.mmap is not False
    waits = getattr(cache.native, "has_copies", False)  # a head has no such copies
    return not (waits or (is_mapped and cache.file.is_rewritten()))


_all: Held[KeptPrompts] = Held()


def _flush_all() -> None:
    for one in _all:
        one.flush()


before_end_of_threads(_flush_all)
