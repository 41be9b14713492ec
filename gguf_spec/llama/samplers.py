"""llama.cpp's own DRY, typical-p and XTC, as pure functions: a draft looks ahead and is taken back, so no state may outlive a call.

And its whole chain, which `verify` compares ours with.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import ClosedError
from ..options import K_MAX, Sampling
from .bindings import C

_CANDIDATE = np.dtype(
    [("id", np.int32), ("logit", np.float32), ("p", np.float32)]
)  # llama_token_data
_MOST = 1e30  # a penalty that forbids where anything else is left, and that a float32 logit can be scaled with


def typical(ids: NDArray[np.int64], logits: NDArray[np.float64], p: float) -> NDArray[np.int64]:
    """Return the ids that locally typical sampling keeps (arXiv:2202.00666), ascending; none when no logit is finite."""
    # a float32 probability of 0 would make llama.cpp's entropy NaN and its choice arbitrary; e**-70 over any V is far from that
    return _survivors(C.llama_sampler_init_typical(p, 1), ids, logits, lowest=-70.0)


def xtc(
    ids: NDArray[np.int64],
    logits: NDArray[np.float64],
    probability: float,
    threshold: float,
    seed: int,
) -> NDArray[np.int64]:
    """Return the ids that XTC keeps, ascending; its one coin is tossed from `seed` (32 bit)."""
    seed %= C.LLAMA_DEFAULT_SEED  # which llama.cpp reads as a random one
    return _survivors(
        C.llama_sampler_init_xtc(probability, threshold, 1, seed), ids, logits, lowest=-np.inf
    )


def _survivors(
    sampler: Any, ids: NDArray[np.int64], logits: NDArray[np.float64], lowest: float
) -> NDArray[np.int64]:
    """Apply a sampler to the finite logits that are at least `lowest` below the largest, free it, and return the ids it kept, ascending."""
    fed = _Fed(sampler, [])
    finite = np.isfinite(logits)
    relative = logits - logits.max(where=finite, initial=np.finfo(np.float64).min)
    use = finite & (relative >= lowest)
    ids, relative = (
        ids[use],
        np.maximum(relative[use], -1e6),
    )  # llama.cpp's sort casts logits to int
    if len(ids):  # llama.cpp ends the process where there are none
        ids = np.sort(_apply(fed.sampler, ids, relative)["id"].astype(np.int64))
    return ids


def _apply(
    sampler: Any, ids: NDArray[np.int64], logits: NDArray[np.float64] | float
) -> NDArray[np.void]:
    """Return what a sampler leaves of the candidates, in its order."""
    candidates = np.empty(len(ids), _CANDIDATE)
    candidates["id"], candidates["logit"], candidates["p"] = ids, logits, 0
    address = candidates.ctypes.data
    array = C.llama_token_data_array(
        ctypes.cast(address, C.llama_token_data_p), len(ids), -1, False
    )
    C.llama_sampler_apply(sampler, ctypes.byref(array))
    first = (
        ctypes.addressof(array.data.contents) - address
    ) // _CANDIDATE.itemsize  # XTC moves the pointer
    return candidates[first : first + array.size]


def distribution(
    logits: NDArray[np.float32], history: Sequence[int], s: Sampling, ends: Sequence[int]
) -> dict[int, float]:
    """Return the probability of each token that may come next, by a chain of llama.cpp's samplers alone.

    Args:
        logits: Shape `(V,)`.
        history: All token ids before.
        s: The options, without DRY, XTC, grammar and a temperature of 0; without typical-p where tokens cannot come (its entropy is NaN then).
        ends: Ids that end a generation, for `ignore_eos`.
    """
    biases = {**s.logit_bias, **(dict.fromkeys(ends, -math.inf) if s.ignore_eos else {})}
    native = (C.llama_logit_bias * len(biases))(*biases.items())
    last_n = len(history) if s.penalty_last_n < 0 else s.penalty_last_n
    chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
    try:
        for one in (
            C.llama_sampler_init_logit_bias(len(logits), len(biases), native),
            C.llama_sampler_init_penalties(
                len(logits), last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty
            ),
            C.llama_sampler_init_top_n_sigma(s.top_n_sigma),
            C.llama_sampler_init_top_k(s.top_k),
            C.llama_sampler_init_typical(s.typical_p, 1),
            C.llama_sampler_init_top_p(s.top_p, 1),
            C.llama_sampler_init_min_p(s.min_p, 1),
            C.llama_sampler_init_temp(s.temperature),
        ):
            C.llama_sampler_chain_add(chain, one)
        for token in history:
            C.llama_sampler_accept(chain, token)
        left = _apply(chain, np.arange(len(logits)), logits.astype(np.float64))
    finally:
        C.llama_sampler_free(chain)
    weights = np.exp(left["logit"].astype(np.float64) - left["logit"].max())
    return {
        int(token): float(weight / weights.sum())
        for token, weight in zip(left["id"], weights, strict=True)
        if weight > 0
    }


class Vocabulary(Protocol):
    """What DRY needs of a model; `gguf_spec.llama.model.Model` has it."""

    n_ctx: int

    @property
    def native(self) -> Any:
        """Pointers of the model."""


class _Fed:
    """A native sampler, freed with this object, and the tokens it was fed."""

    def __init__(self, sampler: Any, tokens: list[int]) -> None:
        self.sampler, self.tokens = sampler, tokens
        self.free = weakref.finalize(self, C.llama_sampler_free, sampler)

    def clone(self) -> _Fed:
        return _Fed(C.llama_sampler_clone(self.sampler), self.tokens)

    def leads_to(self, history: list[int]) -> bool:
        return self.tokens == history[: len(self.tokens)]

    def feed(self, history: list[int], last_n: int) -> None:
        new, self.tokens = (
            history[len(self.tokens) :],
            [-1],
        )  # no history begins so, should Ctrl-C end the loop
        for token in new[max(0, len(new) - last_n) :]:
            C.llama_sampler_accept(self.sampler, token)
        self.tokens = history


_blanks: weakref.WeakKeyDictionary[Vocabulary, tuple[tuple[Any, ...], _Fed]] = (
    weakref.WeakKeyDictionary()
)


def _blank(model: Vocabulary, *options: Any) -> _Fed:
    """Return a sampler to clone; the last one of a model is kept, for llama.cpp looks for every breaker in every token of the vocabulary."""
    known, native = _blanks.get(model), model.native
    if known is None or known[0] != options:
        *numbers, breakers = options
        array = (ctypes.c_char_p * len(breakers))(*breakers)
        known = _blanks[model] = (
            options,
            _Fed(native.vocab(C.llama_sampler_init_dry, *numbers, array, len(breakers)), []),
        )
    return known[1]


class Dry:
    """llama.cpp's DRY as a function of the history.

    A sampler can be fed but not taken back. So there are two: one is ahead, and where a draft was taken back it starts again as a clone of one
    that lags by more than a draft is long. What a call returns depends on its history alone.
    """

    def __init__(
        self,
        model: Vocabulary,
        multiplier: float,
        base: float,
        allowed_length: int,
        last_n: int,
        breakers: Sequence[str],
    ) -> None:
        """Prepare for histories of one model's tokens; `last_n` is how many of them are looked at, -1 for all."""
        self._last_n = (
            min(last_n, model.n_ctx) if last_n >= 0 else model.n_ctx
        )  # llama.cpp reserves room for all it is told
        texts = (
            text.encode("utf-8", errors="replace").split(b"\0")[0][:40] for text in breakers
        )  # llama.cpp cuts them like this
        self._blank = _blank(
            model,
            multiplier,
            base,
            min(allowed_length, 2**31 - 1),
            self._last_n,
            tuple(filter(None, texts)),
        )
        self._behind, self._ahead = self._blank.clone(), self._blank.clone()

    def penalties(self, history: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return token ids, ascending, and what is taken off their logits: at most 1e30, llama.cpp goes up to infinity."""
        self._follow([*history])
        window = {
            *history[max(0, len(history) - self._last_n) :]
        }  # what is not in there cannot go on with a repetition
        lowered = _apply(self._ahead.sampler, np.fromiter(window, np.int64, len(window)), 0.0)
        lowered = np.sort(lowered[lowered["logit"] != 0], order="id")
        return lowered["id"].astype(np.int64), np.clip(
            -lowered["logit"].astype(np.float64), -_MOST, _MOST
        )

    def _follow(self, history: list[int]) -> None:
        if not self._ahead.free.alive:
            raise ClosedError
        if not self._behind.leads_to(history):
            self._behind = self._blank.clone()
        if len(history) - K_MAX - 1 > len(self._behind.tokens):
            self._behind.feed(history[: -K_MAX - 1], self._last_n)
        if len(self._ahead.tokens) < len(self._behind.tokens) or not self._ahead.leads_to(history):
            self._ahead = self._behind.clone()
        self._ahead.feed(history, self._last_n)

    def close(self) -> None:
        """Free the native memory; more than once does nothing."""
        self._behind.free()
        self._ahead.free()
