"""Incremental conversion of tokens to text: whole characters, parts, and stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from ..results import Part
from ..vocabulary import Vocabulary, n_open

if TYPE_CHECKING:
    from .reasoning import ReasoningFormat, State


class TextStream:
    """Converts pieces (bytes) to text as soon as the text is final.

    The text ends at the first position at which a stop string is complete. If several end there,
    the longest counts. The text therefore does not depend on the boundaries of the pieces. Text
    that may be the start of a stop string is held back.

    Attributes:
        stop_string: The stop string that ended the text, or None.
    """

    def __init__(
        self, stop: Sequence[str] = (), errors: Literal["replace", "ignore"] = "replace"
    ) -> None:
        """`replace` puts a replacement character for bytes that are not UTF-8, `ignore` none."""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors=errors)
        self._is_whole = True  # no character has begun
        self._stop = tuple(stop)
        self._held = ""
        self.stop_string: str | None = None

    @property
    def stopped(self) -> bool:
        return self.stop_string is not None

    def push(self, piece: bytes) -> str:
        """Return the text that `piece` completes."""
        return self.add(self.decoded(piece))

    def decoded(self, piece: bytes) -> str:
        """Return the characters that `piece` completes."""
        if self._is_whole and piece.isascii():
            return piece.decode("ascii")
        text = self._decoder.decode(piece)
        self._is_whole = not self._decoder.getstate()[0]
        return text

    def add(self, text: str) -> str:
        """Return the text that is final after `text`, which follows all pieces so far."""
        if not self._stop:
            return text
        if self.stopped:
            return ""
        self._held += text
        found = [(at + len(s), at, s) for s in self._stop if (at := self._held.find(s)) >= 0]
        if found:
            _, at, self.stop_string = min(found)
            text, self._held = self._held[:at], ""
            return text
        n_safe = len(self._held) - n_open(self._held, self._stop)
        text, self._held = self._held[:n_safe], self._held[n_safe:]
        return text

    def finish(self) -> str:
        """Return the text that was held back, without an incomplete character at its end."""
        text, self._held = self._held, ""
        return text


class PartStream:
    """Converts tokens to parts; stop strings are searched in the answer only.

    Attributes:
        answer: Text of the answer, with the stop string that ended it.
        n_reasoning: Number of tokens of reasoning parts so far, with their tags.
    """

    n_reasoning: int

    def __init__(
        self,
        model: Vocabulary,
        stop: Sequence[str],
        errors: Literal["replace", "ignore"],
        reasoning: ReasoningFormat | None,
        state: State | None,
        shown: Mapping[int, str] | None = None,
    ) -> None:
        """Start a text; without reasoning parts the whole text is the answer.

        Args:
            state: State of the parser of reasoning after the prompt.
            shown: Special tokens that are written by their names in the text.
        """
        self._model, self._format, self._state = model, reasoning, state
        named = {**(reasoning.shown if reasoning else {}), **(shown or {})}
        self._named = {token: name.encode() for token, name in named.items()}
        self.answer: TextStream = TextStream(stop, errors)
        self.n_reasoning = 0

    def push(self, token: int) -> list[Part]:
        """Return the parts that a token completes."""
        named, answer = self._named, self.answer
        piece = named[token] if token in named else self._model.piece(token)
        text, before = answer.decoded(piece), self._state
        if self._format is None or before is None:
            text = answer.add(text)
            return [Part("text", text)] if text else []
        self._state, parts = self._format.syntax.read(before, text)
        self.n_reasoning += before.is_reasoning or self._state.is_reasoning
        return self._stopped(parts)

    def finish(self) -> list[Part]:
        parts: list[Part] = []
        if self._format and self._state and not self.answer.stopped:
            parts = self._stopped(self._format.syntax.finish(self._state))
        text = self.answer.finish()
        return [*parts, Part("text", text)] if text else parts

    def _stopped(self, parts: list[Part]) -> list[Part]:
        kept: list[Part] = []
        for part in parts:
            if part.kind == "reasoning":
                kept += [] if self.answer.stopped else [part]
            elif text := self.answer.add(part.text):
                kept.append(Part("text", text))
        return kept


def joined(
    parts: Sequence[tuple[Part, bool]],
) -> tuple[str, str, tuple[tuple[str, bool], ...], tuple[Part, ...]]:
    """Join the parts of a round.

    Args:
        parts: Each with whether it comes from accepted draft tokens.

    Returns:
        The text of the answer, that of the reasoning, the segments of the answer, each with the
            same mark, and the parts, those of one kind joined where they are adjacent.
    """
    text, reasoning, found = "", "", list[Part]()
    shown: list[tuple[str, bool]] = []
    for part, is_accepted in parts:
        kind, piece = part
        if kind == "text":
            text += piece
            shown.append((piece, is_accepted))
        else:
            reasoning += piece
        if found and found[-1].kind == kind:
            found[-1] = Part(kind, found[-1].text + piece)
        else:
            found.append(part)
    return text, reasoning, tuple(shown), tuple(found)
