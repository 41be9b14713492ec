"""Incremental conversion of tokens to the parts of a text: reasoning and answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ..llama.model import Model
from ..results import Part
from .detokenizer import TextStream
from .reasoning import State
from .reasoning_format import ReasoningFormat


class PartStream:
    """Converts tokens to parts; stop strings are searched in the answer only.

    Attributes:
        n_reasoning: Number of tokens of reasoning parts so far, with their tags.
    """

    def __init__(
        self,
        model: Model,
        stop: Sequence[str],
        errors: Literal["replace", "ignore"],
        reasoning: ReasoningFormat | None,
        state: State | None,
        shown: Mapping[int, str] | None = None,
    ) -> None:
        """Start a text.

        Args:
            model: The model of the tokens.
            stop: Strings that end the answer.
            errors: Treatment of bytes that are not UTF-8, as for `TextStream`.
            reasoning: Reasoning parts of the model; None if the whole text is the answer.
            state: State of their parser after the prompt.
            shown: Special tokens that are written by their names in the text.
        """
        self._model, self._format, self._state = model, reasoning, state
        self._shown = shown or {}
        self._decoder, self._answer = TextStream((), errors), TextStream(stop, errors)
        self.n_reasoning = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self._answer.stopped

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._answer.stop_string

    def push(self, token: int) -> list[Part]:
        """Return the parts that a token completes."""
        if self._format is None or self._state is None:
            return _text(self._answer.push(self._piece(token)))
        before = self._state
        text = self._decoder.push(self._piece(token))
        self._state, parts = self._format.syntax.read(before, text)
        self.n_reasoning += before.is_reasoning or self._state.is_reasoning
        return self._stopped(parts)

    def _piece(self, token: int) -> bytes:
        name = self._shown.get(token)
        if name is not None:
            return name.encode()
        return self._format.piece(self._model, token) if self._format else self._model.piece(token)

    def finish(self) -> list[Part]:
        """Return the text that was held back."""
        parts: list[Part] = []
        if self._format and self._state and not self.stopped:
            parts = self._stopped(self._format.syntax.finish(self._state))
        return [*parts, *_text(self._answer.finish())]

    def _stopped(self, parts: list[Part]) -> list[Part]:
        """Return parts up to a stop string of the answer."""
        kept: list[Part] = []
        for part in parts:
            if part.kind == "reasoning":
                kept += [] if self.stopped else [part]
            else:
                kept += _text(self._answer.add(part.text))
        return kept


def _text(text: str) -> list[Part]:
    return [Part("text", text)] if text else []


def joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Join adjacent parts of one kind."""
    found: list[Part] = []
    for part in parts:
        if found and found[-1].kind == part.kind:
            found[-1] = Part(part.kind, found[-1].text + part.text)
        else:
            found.append(part)
    return tuple(found)


def text_of(parts: Sequence[Part], kind: str) -> str:
    """Return the text of all parts of one kind."""
    return "".join(part.text for part in parts if part.kind == kind)
