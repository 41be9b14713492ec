"""Rows of wide passes compared with those of single-token passes: exact widths and logit noise."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..arrays import Logits
from ..options import K_MAX
from ..sampling.near_ties import NOISE_MARGIN, SingleTokenReference
from .interfaces import LanguageModel, return_to

# Cached tokens from which flash attention is split over threads: 512 cells.
_SPLIT = 520
# Number of rows behind `_SPLIT` cached tokens that are compared.
_DEEP_ROWS = 32
# Number of tokens before the one that tests a rollback.
_TESTED = 12
# Largest number of widths between an exact and an inexact one that are tested one by one.
_MANY = 7


class Generated(NamedTuple):
    """Text that a model generated in passes over one token, with its measurements.

    Attributes:
        tokens: The ids that the model read, in order.
        rows: A hash of the bits of each row.
        gaps: The best logits of each row, for the comparison with other rows.
        single_s: Lower quartile of the time of a pass, in seconds.
        steady: No other program appeared to run at the same time.
        token_s: Python's time to choose a token from a row, in seconds.
    """

    tokens: list[int]
    rows: list[bytes]
    gaps: SingleTokenReference
    single_s: float
    steady: bool
    token_s: float


def row_bits(row: Logits) -> bytes:
    """Return a hash of the bits of a row."""
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


class PassRows:
    """Comparison of rows of wide passes with those of single-token passes over the same tokens.

    Attributes:
        noise: Pass width in tokens -> shift of its logits against each other, in logits; 0 if all
            rows have the same bits.
    """

    def __init__(self, model: LanguageModel, generated: Generated) -> None:
        self._model, self._generated = model, generated
        self.noise: dict[int, float] = {}

    def compare(self, width: int, logits: Logits) -> None:
        """Compare the rows of a pass over the first tokens, shape `(width, V)`, once per width."""
        if width in self.noise:
            return
        same = all(
            row_bits(row) == alone for row, alone in zip(logits, self._generated.rows, strict=False)
        )
        moved = (
            0.0
            if same
            else max(self._generated.gaps.max_shift(logits), float(np.finfo(np.float32).tiny))
        )
        # The last rows may use other kernels: decode the last token again in a pass of its own.
        if same and width > len(self._generated.rows):
            last, token = row_bits(logits[-1]), self._text(width)[-1]
            return_to(self._model, self._text(width), width - 1)
            moved = (
                0.0
                if row_bits(self._model.logits([token], 1)[0]) == last
                else float(np.finfo(np.float32).tiny)
            )
        self.noise[width] = moved

    def exact_width(self) -> int:
        """Return the widest pass up to which all passes have the bits of single rows.

        Untested widths before an inexact one are tested too.
        """
        exact = 1
        for width in sorted(self.noise):
            if self.noise[width]:
                if width - exact <= _MANY + 1:
                    exact += self._n_exact(exact + 1, width)
                break
            exact = width
        return exact

    def _n_exact(self, first: int, end: int) -> int:
        """Return the number of consecutive exact widths from `first` on, before `end`."""
        for width in range(first, end):
            self._model.rollback(0)
            self.compare(width, self._model.logits(self._text(width), width))
            if self.noise[width]:
                return width - first
        return end - first

    def with_deep_noise(self) -> dict[int, float]:
        """Return the noise, at least that behind many cached tokens.

        Attention may round differently there. A short context allows only a smaller number of
        tokens.
        """
        n_deep = max(0, min(_SPLIT, self._model.n_ctx - _DEEP_ROWS - 1))
        text, alone = self._text(n_deep + _DEEP_ROWS), SingleTokenReference()
        self._model.rollback(0)
        self._model.read(text[:n_deep])
        for token in text[n_deep:]:
            alone.add(self._model.logits([token], 1)[0])
        deep = 0.0
        for width in (2, _DEEP_ROWS):
            return_to(self._model, text, n_deep)
            deep = max(
                deep, alone.max_shift(self._model.logits(text[n_deep : n_deep + width], width))
            )
        return {width: max(noise, deep) for width, noise in self.noise.items()}

    def _text(self, width: int) -> list[int]:
        return repeated(self._generated.tokens, width)


def restores_states(
    model: LanguageModel, generated: Sequence[int], noise: Mapping[int, float]
) -> bool:
    """Return whether rows after a rollback are those of the text without the dropped tokens.

    Models whose cache drops any number of tokens are not tested. Others depend on code of llama.cpp
    that exists once for each architecture.

    Args:
        model: The model; its cache is changed.
        generated: Token ids.
        noise: Pass width in tokens -> shift of its logits, in logits.
    """
    free = model.free_rollback
    if free >= K_MAX or model.n_ctx < _TESTED + free + 2:
        return True
    text, alone = repeated(generated, _TESTED + 1), SingleTokenReference()
    model.rollback(0)
    for token in text[:-1]:
        model.logits([token], 1)
    alone.add(model.logits(text[-1:], 1)[0])
    # A snapshot drops a few tokens; more than that need a checkpoint.
    for n in {min(2, free), free + 1} - {0}:
        model.rollback(0)
        model.read(text[:1])
        # One wrong token and more follow the right ones.
        model.logits([*text[1:_TESTED], *[text[0]] * n], n + 1)
        return_to(model, text, _TESTED)
        moved = alone.max_shift(model.logits(text[_TESTED:], 1))
        if moved > NOISE_MARGIN * max(noise.values(), default=0.0):
            return False
    return True


def repeated(tokens: Sequence[int], n: int) -> list[int]:
    """Return the first `n` tokens of an endless repetition of `tokens`."""
    return (list(tokens) * (n // len(tokens) + 1))[:n]
