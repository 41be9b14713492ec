"""Events of a parsed answer: its text, and its tool calls with their arguments in pieces."""

from __future__ import annotations

from typing import NamedTuple


class TextPiece(NamedTuple):
    """Text of the answer.

    Attributes:
        text: The piece.
    """

    text: str


class CallStarted(NamedTuple):
    """A call of a tool has begun.

    Attributes:
        name: Name of the tool.
    """

    name: str


class ArgumentPiece(NamedTuple):
    """Next piece of the arguments of the current call, as JSON text.

    Attributes:
        text: The piece.
    """

    text: str


class CallEnded(NamedTuple):
    """The current call is complete."""


class CallBroken(NamedTuple):
    """The current call cannot be read, or the answer ended inside of it.

    Attributes:
        source: Its whole text, as the model wrote it.
        rest: The part of this text after the arguments that were already emitted.
    """

    source: str
    rest: str


Event = TextPiece | CallStarted | ArgumentPiece | CallEnded | CallBroken
