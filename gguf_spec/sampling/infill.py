"""llama.cpp's sampler `infill`: it ends early, and joins tokens of which one begins another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..arrays import Ids
from ..vocabulary import Vocabulary

_LEAST = 0.2  # probability of a text token that is kept at all


class Infill:
    """The sampler as a function of the candidates, without a limit for the length of a token."""

    def __init__(self, model: Vocabulary) -> None:
        self._model = model
        turn = model.end_of_turn
        self._end = turn if turn >= 0 else int(model.special_tokens["eos"])

    def kept(self, ids: Ids, logits: NDArray[np.float64]) -> Ids:
        """Return the ids that stay; an end token, if no text is likely enough."""
        probs = np.exp(logits - logits.max())
        order = np.argsort(-probs, kind="stable")
        ids, probs = ids[order], probs[order] / probs.sum()
        is_end = np.array([self._model.is_end(int(id_)) for id_ in ids], dtype=np.bool_)
        of_ends = probs[is_end].sum()
        if 3 * of_ends * len(ids) > 1 - of_ends:
            return ids[is_end]
        probs = self._joined(ids, probs)
        keeps = probs >= np.where(is_end, np.finfo(np.float64).tiny, _LEAST)
        n_texts = int((keeps & ~is_end).sum())
        if not n_texts:
            return np.array([self._end] if self._end >= 0 else ids[:1], dtype=np.int64)
        keeps &= is_end | (probs / probs[keeps].sum() >= 1 / (n_texts + 1))
        return ids[keeps]

    def _joined(self, ids: Ids, probs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probabilities; of two tokens of which one begins the other one has both."""
        pieces, probs = [self._model.piece(int(id_)) for id_ in ids], probs.copy()
        is_gone = [False] * len(ids)
        for i, one in enumerate(pieces):
            for j, other in enumerate(pieces):
                if is_gone[i]:
                    break
                if i == j or is_gone[j] or not one or not other.startswith(one):
                    continue
                to, gone = (j, i) if probs[j] > probs[i] else (i, j)
                probs[to] += probs[gone]
                probs[gone], is_gone[gone] = 0, True
        return probs
