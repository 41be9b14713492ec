"""Rows of reasoning: where it is open, its token budget, and where a grammar begins.

Everything follows from the tokens of a history, so it is the same for every draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..llama.model import Model
from .reasoning import ChannelSyntax, State
from .reasoning_format import ReasoningFormat


class _Place(NamedTuple):
    """State after a token.

    Attributes:
        state: State of the parser.
        n: Number of tokens so far.
        n_inside: Number of tokens of reasoning so far.
        n_forced: Number of tokens of the forced end so far; 0 outside of it.
        begin: Number of tokens before the answer.
    """

    state: State
    n: int = 0
    n_inside: int = 0
    n_forced: int = 0
    begin: int = 0


class Thinking:
    """Reasoning in the rows of one request; implements `sampling.constraints.Reasoning`."""

    def __init__(
        self,
        model: Model,
        reasoning: ReasoningFormat,
        n_prompt: int,
        state: State,
        budget: int | None,
    ) -> None:
        """Start after a prompt.

        Args:
            model: The target.
            reasoning: Its reasoning parts.
            n_prompt: Number of prompt tokens.
            state: State of the parser after the prompt.
            budget: Number of reasoning tokens after which the end is forced; None for no limit.
        """
        self._model, self._format, self._n_prompt = model, reasoning, n_prompt
        self._budget = budget
        self._end = reasoning.end(model) if budget is not None else []
        # Tokens of the last history, and the places before the first and after each of them.
        self._path: list[int] = []
        self._places = [_Place(state)]

    def after(self, tokens: Sequence[int]) -> Thinking:
        """Return the reasoning of a context from which the first tokens of the text are dropped.

        Args:
            tokens: The dropped tokens.
        """
        place = self._places[0]
        for token in tokens:
            place = self._step(place, token)
        moved = Thinking(self._model, self._format, self._n_prompt, place.state, self._budget)
        moved._places = [place]
        return moved

    def forced(self, history: Sequence[int]) -> int | None:
        """Return the only token that may follow, where the budget is used up; otherwise None."""
        return None if self._budget is None else self._forced(self._place(history))

    def is_answer(self, history: Sequence[int]) -> bool:
        """Return whether the next token belongs to the answer."""
        return self._place(history).state.is_answer

    def answer(self, history: Sequence[int]) -> list[int]:
        """Return the prompt and the tokens of the answer, without the reasoning between them."""
        begin = self._place(history).begin
        return [*history[: self._n_prompt], *history[self._n_prompt + begin :]]

    def forbidden(self, history: Sequence[int]) -> NDArray[np.int64]:
        """Return the tokens that end the reasoning and contain the beginning of the answer.

        A grammar could not check that beginning.
        """
        state, syntax = self._place(history).state, self._format.syntax
        found = [
            token
            for token, text in self._ending
            if any(part.kind == "text" for part in syntax.read(state, text)[1])
        ]
        return np.array(found, dtype=np.int64)

    def _forced(self, place: _Place) -> int | None:
        if place.n_forced:
            return self._end[place.n_forced]
        is_used = place.state.is_reasoning and place.n_inside >= (self._budget or 0)
        return self._end[0] if is_used else None

    def _step(self, place: _Place, token: int) -> _Place:
        state, _ = self._format.syntax.read(place.state, self._text(token))
        is_forced = self._budget is not None and token == self._forced(place)
        is_before = is_forced or not (place.state.is_answer and state.is_answer)
        return _Place(
            state,
            place.n + 1,
            place.n_inside + (place.state.is_reasoning and state.is_reasoning),
            (place.n_forced + 1) % len(self._end) if is_forced else 0,
            place.n + 1 if is_before else place.begin,
        )

    def _place(self, history: Sequence[int]) -> _Place:
        path = list(history[self._n_prompt :])
        n = min(len(path), len(self._path))
        if path[:n] != self._path[:n]:
            n = next(i for i in range(n) if path[i] != self._path[i])
        del self._places[n + 1 :]
        for token in path[n:]:
            self._places.append(self._step(self._places[-1], token))
        self._path = path
        return self._places[-1]

    def _text(self, token: int) -> str:
        """Return the text of a token, one character for each byte: tags are ASCII."""
        name = self._format.shown.get(token)
        return self._model.piece(token).decode("latin-1") if name is None else name

    @cached_property
    def _ending(self) -> list[tuple[int, str]]:
        """Tokens with more text after the end of a closing tag, and their texts."""
        if isinstance(self._format.syntax, ChannelSyntax):
            return []  # its tags are tokens of their own
        last = self._format.syntax.close[-1]
        texts = ((token, self._text(token)) for token in range(self._model.n_vocab))
        return [(token, text) for token, text in texts if text.partition(last)[2].strip()]
