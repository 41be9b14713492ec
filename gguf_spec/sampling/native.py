"""The sampler in the library of the kernels: the same choices as `chain`, in one call a round.

`kernels/sampling.h` has the structures. The rows are read where llama.cpp wrote them.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_int64, c_uint8
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits
from ..errors import NoTokenLeftError
from ..results import TokenLogprob
from .chain import COLDEST, MOST_XTC, Sampler
from .near_ties import limits_of, scaled_noise

if TYPE_CHECKING:
    from ..grammar.automaton import Automaton
    from ..options import Sampling


class _Limits(Structure):
    _fields_ = (("top_p", c_double), ("log_min_p", c_double), ("typical_p", c_double))


class _Chain(Structure):
    _fields_ = (
        ("temperature", c_double),
        ("sigma", c_double),
        ("usual", _Limits),
        ("tight", _Limits),
        ("loose", _Limits),
        ("xtc_probability", c_double),
        ("xtc_threshold", c_double),
        ("noise", c_double),
        ("frequency", c_double),
        ("presence", c_double),
        ("repeat", c_float),
        ("penalises", c_int32),
        ("last_n", c_int32),
        ("is_greedy", c_int32),
        ("top_k", c_int32),
        ("n_top", c_int32),
        ("n_biases", c_int32),
        ("n_ends", c_int32),
        ("bias_ids", POINTER(c_int32)),
        ("biases", POINTER(c_float)),
        ("ends", POINTER(c_int32)),
        ("bans_ends", c_int32),
    )


class _Rows(Structure):
    _fields_ = (
        ("chain", POINTER(_Chain)),
        ("logits", ctypes.c_void_p),
        ("n_vocab", c_int64),
        ("n_rows", c_int32),
        ("n_history", c_int32),
        ("history", POINTER(c_int32)),
        ("draft", POINTER(c_int32)),
        ("keys", ctypes.c_char_p),
        ("dry_ids", POINTER(c_int32)),
        ("dry", POINTER(c_double)),
        ("n_dry", c_int32),
        ("checks", c_int32),
        ("masks", POINTER(ctypes.c_char_p)),
        ("work", ctypes.c_void_p),
        ("n_tokens", c_int32),
        ("tokens", POINTER(c_int32)),
        ("near_ties", POINTER(c_uint8)),
        ("logprobs", POINTER(c_double)),
        ("n_named", POINTER(c_int32)),
        ("named", POINTER(c_int32)),
        ("named_logprobs", POINTER(c_double)),
    )


class _Tree(Structure):
    _fields_ = (
        ("n_nodes", c_int64),
        ("bytes", ctypes.c_void_p),
        ("depths", ctypes.c_void_p),
        ("nexts", ctypes.c_void_p),
        ("longests", ctypes.c_void_p),
        ("firsts", ctypes.c_void_p),
    )


class _Walk(Structure):
    _fields_ = (
        ("tree", POINTER(_Tree)),
        ("tokens", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("at", c_int64),
        ("longer_than", c_int32),
        ("states", ctypes.c_void_p),
        ("used", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
    )


class Chosen(NamedTuple):
    """Tokens of a round: the target's own up to the first one that is not the draft's.

    Attributes:
        near_ties: Indices of those that were decided by less than the noise.
        logprobs: Their log-probabilities, if the options ask for them.
    """

    tokens: list[int]
    near_ties: list[int]
    logprobs: list[TokenLogprob]


# Work memory that is kept for the next rows, in pieces for one thread.
_MOST_FREE = 2
_NO_MEMORY = np.zeros(0, np.uint8)


class Library:
    """The sampler's functions of a loaded library of kernels."""

    def __init__(self, library: Any) -> None:
        self._sample: Any = library.gguf_spec_sample
        self.compute: Any = library.gguf_spec_sampling_compute
        self.compute.argtypes = (ctypes.c_int, ctypes.c_void_p, c_int64)
        self.grow: Any = library.gguf_spec_grow
        self.grow.argtypes = (POINTER(_Tree), ctypes.c_char_p, ctypes.c_void_p, c_int64)
        self.walk: Any = library.gguf_spec_walk
        self._bytes = library.gguf_spec_sampling_bytes
        self._bytes.restype, self._bytes.argtypes = c_int64, (c_int64,)
        # work memory that is not in use
        self._free: list[NDArray[np.uint8]] = []

    def sample(self, rows: _Rows, given: Any) -> None:
        """Sample the rows of one request, with work memory that no other thread uses.

        Args:
            given: The array of one pointer to the rows, made once.
        """
        n_bytes = self._bytes(rows.n_vocab)
        try:
            memory = self._free.pop()
        except IndexError:
            memory = _NO_MEMORY
        if len(memory) != n_bytes:
            memory = np.zeros(n_bytes, np.uint8)
        rows.work = memory.__array_interface__["data"][0]
        self._sample(given, 1)
        if len(self._free) < _MOST_FREE:
            self._free.append(memory)


class Tree:
    """The tokens of a vocabulary in a tree of their bytes; implements `grammar.TokenTree`."""

    def __init__(
        self, library: Library, texts: bytes, ends: NDArray[np.int64], tokens: NDArray[np.int32]
    ) -> None:
        """Make a tree of sorted texts.

        Args:
            library: The functions.
            texts: The texts, one after the other; none is empty.
            ends: The end of each text, shape `(n,)`.
            tokens: Their tokens, shape `(n,)`.
        """
        self._walk, self._tokens = library.walk, tokens
        room = len(texts) + 1
        self._bytes = np.empty(room, np.uint8)
        self._depths, self._nexts, longests, firsts = np.empty((4, room), np.int32)
        self._kept = arrays = (self._bytes, self._depths, self._nexts, longests, firsts)
        self._tree = _Tree(0, *[one.ctypes.data for one in arrays])
        library.grow(self._tree, texts, ends.ctypes.data, len(ends))
        self._n_bytes = int(tokens.max(initial=0)) // 8 + 1
        self._n_deep = 1 + int(self._depths[: self._tree.n_nodes].max(initial=0))

    def accepted(
        self, automaton: Automaton, start: int, most: int, longer_than: int = 0
    ) -> tuple[NDArray[np.uint8], list[int]] | None:
        states, mask = np.empty(self._n_deep, np.int32), np.zeros(self._n_bytes, np.uint8)
        states[0], used = start, np.zeros(0, np.uint8)
        walk = _Walk(
            tree=ctypes.pointer(self._tree),
            tokens=self._tokens.ctypes.data,
            longer_than=longer_than,
            states=states.ctypes.data,
            mask=mask.ctypes.data,
        )
        unknown = start
        while unknown >= 0:
            if automaton.work > most:
                return None
            addresses = automaton.known.addresses
            used = np.concatenate((used, np.zeros(len(addresses) - len(used), np.uint8)))
            walk.rows, walk.used = addresses.ctypes.data, used.ctypes.data
            unknown = self._walk(ctypes.byref(walk))
            if unknown >= 0:
                automaton.row(unknown)
        return mask, np.flatnonzero(used).tolist()


@cache
def functions(library: Any) -> Library | None:
    """Return the functions of a loaded library; None if it lacks them."""
    return Library(library) if hasattr(library, "gguf_spec_sample") else None


def is_possible(sampler: Sampler) -> bool:
    """Return whether the library has all filters of a request; NumPy's rule is used if not."""
    return not (sampler.filters.reasoning or sampler.filters.infill)


def chooser(library: Any, sampler: Sampler, noise: float) -> Callable[..., Chosen | None] | None:
    """Return the sampler of a library of kernels; None where it has not all of a chain.

    The grammar of the chain makes its masks by the library from now on.
    """
    found = functions(library)
    if not found:
        return None
    if sampler.filters.grammar:
        sampler.filters.grammar.make_masks_by(partial(Tree, found))
    if not is_possible(sampler):
        return None
    one = NativeSampler(found, sampler, noise)
    return one.choose if sampler.filters.dry else one.choose_together


class NativeSampler:
    """The chain of one generation."""

    def __init__(self, library: Library, sampler: Sampler, noise: float) -> None:
        """Prepare the options.

        Args:
            library: The functions.
            sampler: A sampler for which `is_possible` is true.
            noise: Largest change of logits that a near tie allows for; 0 where none is looked for.
        """
        s = self._s = sampler.sampling
        self._library, self._sampler = library, sampler
        self._keys = sampler.rng.keys
        self._is_drawn, self._n_top = not s.greedy, -1 if s.logprobs is None else s.logprobs
        penalises = s.repeat_penalty != 1 or s.frequency_penalty != 0 or s.presence_penalty != 0
        self._n_last = s.penalty_last_n if penalises else 0
        noise = scaled_noise(s, noise)
        ends = sampler.filters.ends
        self._chain = _Chain(
            temperature=max(s.temperature, COLDEST),
            sigma=s.top_n_sigma,
            usual=_limits(s),
            tight=_limits(limits_of(s, -noise)),
            loose=_limits(limits_of(s, noise)),
            xtc_probability=s.xtc_probability if s.xtc_threshold <= MOST_XTC else 0,
            xtc_threshold=s.xtc_threshold,
            noise=noise,
            frequency=s.frequency_penalty,
            presence=s.presence_penalty,
            repeat=s.repeat_penalty,
            penalises=self._n_last != 0,
            last_n=self._n_last,
            is_greedy=s.greedy,
            top_k=min(s.top_k, 2**31 - 1),
            n_top=self._n_top,
            n_biases=len(s.logit_bias),
            n_ends=len(ends),
            bias_ids=(c_int32 * len(s.logit_bias))(*s.logit_bias),
            biases=(c_float * len(s.logit_bias))(*s.logit_bias.values()),
            ends=(c_int32 * len(ends))(*ends),
            bans_ends=s.ignore_eos,
        )
        self._rows, self._room = _Rows(chain=ctypes.pointer(self._chain)), 0
        self._given = (POINTER(_Rows) * 1)(ctypes.pointer(self._rows))
        # those of the last round: mostly the next ones are the same view
        self._logits, self._checks = np.zeros(0, np.float32), False

    def _make_room(self, n: int) -> None:
        """Allocate the results of `n` rows."""
        n_top, rows = max(0, self._n_top), self._rows
        self._room = n
        self._tokens = rows.tokens = (c_int32 * n)()
        self._near_ties = rows.near_ties = (c_uint8 * n)()
        rows.logprobs, rows.n_named = (c_double * n)(), (c_int32 * n)()
        rows.named, rows.named_logprobs = (c_int32 * (n * n_top))(), (c_double * (n * n_top))()

    def _look_at(self, logits: Logits, checks: bool) -> None:
        """Take the rows of a round; mostly they are where the last ones were."""
        rows = self._rows
        if logits is not self._logits:
            if not (logits.flags.c_contiguous and logits.flags.writeable):
                logits = np.array(logits)
            self._logits, n = logits, len(logits)
            if n > self._room:
                self._make_room(n)
            # without the checks of `ctypes.data`, which take longer than the rest
            rows.logits = logits.__array_interface__["data"][0]
            rows.n_vocab, rows.n_rows = logits.shape[1], n
            self._n_rows = n
        if checks != self._checks:
            self._checks = rows.checks = checks

    def choose(
        self, logits: Logits, history: Sequence[int], draft: Sequence[int], checks: bool
    ) -> Chosen | None:
        """Return the tokens of a round; None where the masks of the grammar take too much work.

        Args:
            logits: Rows after the text and each token of the draft, shape `(n, V)`.
            history: All token ids before the draft.
            draft: Tokens of the draft.
            checks: Whether to look for near ties.

        Raises:
            NoTokenLeftError: No logit of a row is a finite number.
        """
        dry = self._sampler.filters.dry
        if dry is None:
            return self.choose_together(logits, history, draft, checks)
        found = Chosen([], [], [])
        for i, row in enumerate(logits):
            past = [*history, *draft[:i]]
            one = self.choose_together(row[None], past, (), checks, dry(past))
            if one is None:
                return None
            found.near_ties.extend([i] if one.near_ties else [])
            found.tokens.extend(one.tokens)
            found.logprobs.extend(one.logprobs)
            if i < len(draft) and one.tokens[0] != draft[i]:
                break
        return found

    def choose_together(
        self,
        logits: Logits,
        history: Sequence[int],
        draft: Sequence[int],
        checks: bool,
        dry: tuple[Any, Any] | None = None,
    ) -> Chosen | None:
        """Return what `choose` does, in one call; the penalties of DRY are those of all rows."""
        rows, grammar = self._rows, self._sampler.filters.grammar
        if grammar:
            masks = grammar.masks(history, draft)
            if masks is None:
                return None
            if len(masks) < len(logits):  # a token of the draft is not allowed
                logits, draft = logits[: len(masks)], draft[: len(masks) - 1]
            rows.masks = (ctypes.c_char_p * len(masks))(*masks)
        self._look_at(logits, checks)
        if draft:
            rows.draft = (c_int32 * len(draft))(*draft)
        if self._is_drawn:
            rows.keys = self._keys(len(history), self._n_rows)
        if self._n_last:
            begin = self._sampler.filters.penalise_from
            begin = max(begin, len(history) - self._n_last) if self._n_last > 0 else begin
            last = history[begin:]
            rows.history, rows.n_history = (c_int32 * len(last))(*last), len(last)
        if dry:
            rows.n_dry = len(dry[0])
            rows.dry_ids = (c_int32 * rows.n_dry)(*dry[0].tolist())
            rows.dry = (c_double * rows.n_dry)(*dry[1].tolist())
        self._library.sample(rows, self._given)
        n = rows.n_tokens
        if n < 0:
            raise NoTokenLeftError
        tokens = self._tokens[:n]
        near_ties = self._near_ties[:n] if checks else []
        if near_ties:
            near_ties = [i for i, is_near in enumerate(near_ties) if is_near]
        return Chosen(tokens, near_ties, [] if self._n_top < 0 else self._named(tokens))

    def _named(self, tokens: Sequence[int]) -> list[TokenLogprob]:
        rows, n_top, found = self._rows, self._n_top, []
        for i, token in enumerate(tokens):
            begin, end = i * n_top, i * n_top + rows.n_named[i]
            top = zip(rows.named[begin:end], rows.named_logprobs[begin:end], strict=True)
            found.append(TokenLogprob(token, rows.logprobs[i], tuple(top)))
        return found


def _limits(s: Sampling) -> _Limits:
    return _Limits(s.top_p, float(np.log(s.min_p)) if s.min_p > 0 else -math.inf, s.typical_p)
