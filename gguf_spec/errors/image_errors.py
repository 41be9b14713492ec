"""Errors about images in prompts."""

from __future__ import annotations

from .base import GgufSpecError
from .texts import Option, Text, advice


class ImageError(GgufSpecError, ValueError):
    """An image cannot be read: it is damaged, too large, or the model cannot take it."""


class NoVisionError(GgufSpecError):
    """The prompt has an image, but the model was loaded without a projector.

    Attributes:
        name: File of the model.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} was loaded without a projector, so it cannot read images.",
            advice(Text("set ", Option("mmproj"), " to the projector file of the model")),
        )
        self.name = name
