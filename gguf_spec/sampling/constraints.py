"""Constraints on the tokens of a row: grammars, and reasoning before the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..arrays import Ids, Logits
from .rows import largest


class Grammar(Protocol):
    """Protocol of a grammar; `gguf_spec.grammar.token_grammar.Grammar` implements it."""

    def possible(self, history: Sequence[int]) -> NDArray[np.bool_]:
        """Return a superset of the tokens that may follow, shape `(V,)`, at low cost."""

    def allowed(self, history: Sequence[int], ids: Ids) -> NDArray[np.bool_]:
        """Return for each of `ids` whether it may follow, shape `(n,)`."""

    def rest_by(self, rest: Callable[[], object]) -> None:
        """Call `rest` again and again during long work from now on."""


class Reasoning(Protocol):
    """Protocol of the reasoning before an answer; `text.thinking.Thinking` implements it.

    All results depend only on the history.
    """

    def forced(self, history: Sequence[int]) -> int | None:
        """Return the only token that may follow; None if the token is free."""

    def is_answer(self, history: Sequence[int]) -> bool:
        """Return whether the next token belongs to the answer."""

    def answer(self, history: Sequence[int]) -> list[int]:
        """Return the history without the reasoning."""

    def forbidden(self, history: Sequence[int]) -> Ids:
        """Return the tokens that may not end the reasoning if a grammar follows."""


def mask(logits: Logits, history: Sequence[int], grammar: Grammar, n_needed: int) -> Logits:
    """Return the logits with -inf for all tokens that the grammar forbids.

    Of the allowed tokens only the best are kept, at least `n_needed` if there are as many.
    """
    reachable = np.flatnonzero(grammar.possible(history)[: len(logits)] & (logits > -np.inf))
    row, n = logits[reachable], 2 * n_needed + 50
    while True:
        ids = reachable[largest(row, n)] if n < len(row) else reachable
        ids_allowed = ids[grammar.allowed(history, ids)]
        if len(ids_allowed) >= n_needed or len(ids) < n:
            break
        n *= 8
    masked = np.full_like(logits, -np.inf)
    masked[ids_allowed] = logits[ids_allowed]
    return masked


def only(logits: Logits, ids: Ids | Sequence[int]) -> Logits:
    """Return a row in which only some tokens are possible, all with the logit 0.

    A draft model may have a smaller vocabulary than its target; its row is then empty.
    """
    row = np.full_like(logits, -np.inf)
    row[_within(logits, ids)] = 0
    return row


def without(logits: Logits, ids: Ids | Sequence[int]) -> Logits:
    """Return a row in which some tokens are forbidden."""
    row = logits.copy()
    row[_within(logits, ids)] = -np.inf
    return row


def _within(logits: Logits, ids: Ids | Sequence[int]) -> Ids:
    found = np.asarray(ids, dtype=np.int64)
    return found[found < len(logits)]
