"""The sampler in the library of the kernels: the same choices as `chain`, in one call a round.

`kernels/sampling.h` has the structures. The rows are read where llama.cpp wrote them.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_int64, c_uint8
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arrays import Logits
from ..errors import NoTokenLeftError
from ..results import TokenLogprob
from .chain import COLDEST, Sampler
from .near_ties import limits_of, scaled_noise

if TYPE_CHECKING:
    from ..options import Sampling


class _Limits(Structure):
    _fields_ = (("top_p", c_double), ("log_min_p", c_double))


class _Chain(Structure):
    _fields_ = (
        ("temperature", c_double),
        ("sigma", c_double),
        ("usual", _Limits),
        ("tight", _Limits),
        ("loose", _Limits),
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
        ("n_banned", c_int32),
        ("bias_ids", POINTER(c_int32)),
        ("biases", POINTER(c_float)),
        ("banned", POINTER(c_int32)),
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
        ("work", ctypes.c_void_p),
        ("n_tokens", c_int32),
        ("tokens", POINTER(c_int32)),
        ("near_ties", POINTER(c_uint8)),
        ("logprobs", POINTER(c_double)),
        ("n_named", POINTER(c_int32)),
        ("named", POINTER(c_int32)),
        ("named_logprobs", POINTER(c_double)),
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


class Library:
    """The sampler's functions of a loaded library of kernels."""

    def __init__(self, library: Any) -> None:
        self.sample: Any = library.gguf_spec_sample
        self.compute: Any = library.gguf_spec_sampling_compute
        self.compute.argtypes = (ctypes.c_int, ctypes.c_void_p, c_int64)
        self._bytes = library.gguf_spec_sampling_bytes
        self._bytes.restype, self._bytes.argtypes = c_int64, (c_int64,)
        self._kept = threading.local()

    def work(self, n_vocab: int) -> int:
        """Return the address of this thread's work memory for rows of one size."""
        if getattr(self._kept, "n_vocab", 0) != n_vocab:
            self._kept.n_vocab = 0
            self._kept.memory = ctypes.create_string_buffer(self._bytes(n_vocab))
            self._kept.address = ctypes.addressof(self._kept.memory)
            self._kept.n_vocab = n_vocab
        address: int = self._kept.address
        return address


@cache
def functions(library: Any) -> Library | None:
    """Return the functions of a loaded library; None if it lacks them."""
    return Library(library) if hasattr(library, "gguf_spec_sample") else None


def is_possible(sampler: Sampler, noise: float) -> bool:
    """Return whether the library has all filters of a request; NumPy's rule is used if not."""
    s, filters = sampler.sampling, sampler.filters
    rare = s.typical_p < 1 or s.xtc_probability > 0 or (s.top_n_sigma and noise)
    return not (rare or filters.grammar or filters.reasoning or filters.infill)


def chooser(library: Any, sampler: Sampler, noise: float) -> Callable[..., Chosen] | None:
    """Return the sampler of a library of kernels; None where it has not all of a chain."""
    found = functions(library) if is_possible(sampler, noise) else None
    if not found:
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
        self._library, self._sampler, self._call = library, sampler, library.sample
        self._keys = sampler.rng.keys
        self._is_drawn, self._n_top = not s.greedy, -1 if s.logprobs is None else s.logprobs
        penalises = s.repeat_penalty != 1 or s.frequency_penalty != 0 or s.presence_penalty != 0
        self._n_last = s.penalty_last_n if penalises else 0
        noise = scaled_noise(s, noise)
        banned = sampler.filters.ends if s.ignore_eos else ()
        self._chain = _Chain(
            temperature=max(s.temperature, COLDEST),
            sigma=s.top_n_sigma,
            usual=_limits(s),
            tight=_limits(limits_of(s, -noise)),
            loose=_limits(limits_of(s, noise)),
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
            n_banned=len(banned),
            bias_ids=(c_int32 * len(s.logit_bias))(*s.logit_bias),
            biases=(c_float * len(s.logit_bias))(*s.logit_bias.values()),
            banned=(c_int32 * len(banned))(*banned),
        )
        self._rows, self._room = _Rows(chain=ctypes.pointer(self._chain)), 0
        # those of the last round: mostly the next ones are the same view
        self._logits, self._thread, self._checks = np.zeros(0, np.float32), 0, False
        self._pointer = (POINTER(_Rows) * 1)(ctypes.pointer(self._rows))

    def _make_room(self, n: int) -> None:
        """Allocate the results of `n` rows."""
        n_top, rows = max(0, self._n_top), self._rows
        self._room = n
        self._tokens = rows.tokens = (c_int32 * n)()
        self._near_ties = rows.near_ties = (c_uint8 * n)()
        rows.logprobs, rows.n_named = (c_double * n)(), (c_int32 * n)()
        rows.named, rows.named_logprobs = (c_int32 * (n * n_top))(), (c_double * (n * n_top))()

    def choose(
        self, logits: Logits, history: Sequence[int], draft: Sequence[int], checks: bool
    ) -> Chosen:
        """Return the tokens of a round.

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
    ) -> Chosen:
        """Return what `choose` does, in one call; the penalties of DRY are those of all rows."""
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
            self._n_rows, self._n_vocab = n, logits.shape[1]
        thread = self._library.work(self._n_vocab)
        if thread != self._thread or checks != self._checks:
            self._thread, self._checks = thread, checks
            rows.work, rows.checks = thread, checks
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
        self._call(self._pointer, 1)
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
    return _Limits(s.top_p, float(np.log(s.min_p)) if s.min_p > 0 else -math.inf)
