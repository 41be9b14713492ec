"""llama.cpp's DRY sampler as a pure function of the history, and its whole sampler chain.

No state may outlive a call, because drafted tokens are rolled back. `verify` compares this
package's sampler chain with llama.cpp's.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ClosedError
from ..options import K_MAX, Sampling
from .bindings import C

if TYPE_CHECKING:
    from .weights import Weights

# layout of llama_token_data
CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
# Largest penalty, in logits. It excludes a token if any other is left, and a float32 logit can
# still be scaled with it.
_MOST = 1e30


def apply(
    sampler: Any, ids: NDArray[np.int64], logits: NDArray[np.float64] | float
) -> NDArray[np.void]:
    """Return the candidates that a sampler keeps, in its order."""
    candidates = np.empty(len(ids), CANDIDATE)
    candidates["id"], candidates["logit"], candidates["p"] = ids, logits, 0
    address = candidates.ctypes.data
    pointer = ctypes.cast(address, C.llama_token_data_p)
    array = C.llama_token_data_array(pointer, len(ids), -1, False)
    C.llama_sampler_apply(sampler, ctypes.byref(array))
    # XTC moves the pointer
    first = (ctypes.addressof(array.data.contents) - address) // CANDIDATE.itemsize
    return candidates[first : first + array.size]


def distribution(
    logits: NDArray[np.float32], history: Sequence[int], s: Sampling, ends: Sequence[int]
) -> dict[int, float]:
    """Return the distribution of the next token from a chain of llama.cpp's samplers alone.

    Args:
        logits: Shape `(V,)`.
        history: All previous token ids.
        s: The options. DRY, XTC, grammar and a temperature of 0 are not supported; neither is
            typical-p if some tokens are excluded (its entropy is NaN then).
        ends: Ids that end a generation, for `ignore_eos`.

    Returns:
        Token id -> probability, for the tokens with a probability above 0.
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
        left = apply(chain, np.arange(len(logits)), logits.astype(np.float64))
    finally:
        C.llama_sampler_free(chain)
    weights = np.exp(left["logit"].astype(np.float64) - left["logit"].max())
    chances = zip(left["id"].tolist(), (weights / weights.sum()).tolist(), strict=True)
    return {token: chance for token, chance in chances if chance > 0}


class FedSampler:
    """A native sampler, freed with this object, and the tokens it has accepted."""

    def __init__(self, sampler: Any, tokens: list[int]) -> None:
        self.sampler: Any = sampler
        self.tokens: list[int] = tokens
        self.free: weakref.finalize[..., FedSampler] = weakref.finalize(
            self, C.llama_sampler_free, sampler
        )

    def clone(self) -> FedSampler:
        return FedSampler(C.llama_sampler_clone(self.sampler), self.tokens)

    def leads_to(self, history: list[int]) -> bool:
        return self.tokens == history[: len(self.tokens)]

    def feed(self, history: list[int], last_n: int) -> None:
        # no history starts with -1: the state is invalid if Ctrl-C ends the loop
        new, self.tokens = history[len(self.tokens) :], [-1]
        for token in new[max(0, len(new) - last_n) :]:
            C.llama_sampler_accept(self.sampler, token)
        self.tokens = history


# model -> the options and the empty form of its last DRY sampler
_blanks: weakref.WeakKeyDictionary[Weights, tuple[tuple[Any, ...], FedSampler]] = (
    weakref.WeakKeyDictionary()
)


def _blank(model: Weights, *options: Any) -> FedSampler:
    """Return an empty DRY sampler to clone.

    The last one of a model is cached, because llama.cpp searches every token of the vocabulary for
    every breaker.
    """
    known, native = _blanks.get(model), model.native
    if known is None or known[0] != options:
        *numbers, breakers = options
        array = (ctypes.c_char_p * len(breakers))(*breakers)
        sampler = native.vocab(C.llama_sampler_init_dry, *numbers, array, len(breakers))
        known = _blanks[model] = (options, FedSampler(sampler, []))
    return known[1]


class Dry:
    """llama.cpp's DRY as a function of the history.

    A sampler accepts tokens but cannot roll back, so there are two. One is up to date. After a
    rollback it is replaced by a clone of the other, which lags by more than the longest draft. The
    result of a call depends only on its history.
    """

    def __init__(
        self,
        model: Weights,
        multiplier: float,
        base: float,
        allowed_length: int,
        last_n: int,
        breakers: Sequence[str],
    ) -> None:
        """Prepare for token histories of one model.

        Args:
            allowed_length: Longest repetition without a penalty, in tokens.
            last_n: Number of last tokens that are searched; -1 for all.
        """
        # llama.cpp allocates memory for the whole range
        self._last_n = min(last_n, model.n_ctx) if last_n >= 0 else model.n_ctx
        # llama.cpp cuts breakers in the same way
        texts = (text.encode("utf-8", errors="replace").split(b"\0")[0][:40] for text in breakers)
        numbers = (multiplier, base, min(allowed_length, 2**31 - 1), self._last_n)
        self._blank = _blank(model, *numbers, tuple(filter(None, texts)))
        self._behind, self._ahead = self._blank.clone(), self._blank.clone()

    def penalties(self, history: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return token ids, ascending, and the penalty to subtract from each logit.

        A penalty is at most 1e30; llama.cpp's goes up to infinity.
        """
        tokens, n_old = [*history], len(history) - K_MAX - 1
        if not self._ahead.free.alive:
            raise ClosedError
        if not self._behind.leads_to(tokens):
            self._behind = self._blank.clone()
        if n_old > len(self._behind.tokens):
            self._behind.feed(tokens[:n_old], self._last_n)
        if len(self._ahead.tokens) < len(self._behind.tokens) or not self._ahead.leads_to(tokens):
            self._ahead = self._behind.clone()
        self._ahead.feed(tokens, self._last_n)
        # a token outside this range cannot continue a repetition
        window = {*tokens[max(0, len(tokens) - self._last_n) :]}
        lowered = apply(self._ahead.sampler, np.fromiter(window, np.int64, len(window)), 0.0)
        lowered = np.sort(lowered[lowered["logit"] != 0], order="id")
        penalties = np.clip(-lowered["logit"].astype(np.float64), -_MOST, _MOST)
        return lowered["id"].astype(np.int64), penalties

    def close(self) -> None:
        """Free the native memory.

        Further calls do nothing.
        """
        self._behind.free()
        self._ahead.free()


def dry_penalties(
    model: Weights, s: Sampling
) -> Callable[[Sequence[int]], tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Return the penalties of DRY with the options of a request: `Dry.penalties`."""
    return Dry(
        model,
        s.dry_multiplier,
        s.dry_base,
        s.dry_allowed_length,
        s.dry_penalty_last_n,
        s.dry_sequence_breakers,
    ).penalties
