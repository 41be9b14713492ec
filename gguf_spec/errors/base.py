"""Base class of all errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .texts import Option, Text, Write, written


class GgufSpecError(Exception):
    """Base class of all errors of this package.

    Attributes:
        hint: One sentence that states how to fix the error.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def message(self) -> str:
        """The fact, as in `str(error)`."""
        message: str = self.args[0]
        return message

    @property
    def suggested(self) -> dict[str, Any]:
        """The values that the hint suggests, by option."""
        options = self.hint.options() if isinstance(self.hint, Text) else ()
        return {option.name: option.value for option in options if option.value is not ...}

    def written(self, write: Write) -> tuple[str, str]:
        """Return message and hint as a surface writes them.

        The hint is empty if the surface has none of the options in it.

        Args:
            write: Writes the name of an option or a function; None if the surface does not have it.
        """
        return written(self.message, write), written(self.hint, write, "")

    def translate(self, translate: Callable[[Option], Option | None]) -> None:
        """Replace the options in message and hint by those of another Python interface.

        Args:
            translate: Returns the other option; None removes advice that names the option.
        """
        if isinstance(self.message, Text):
            self.args = (self.message.translated(lambda option: translate(option) or option),)
        if isinstance(self.hint, Text):
            self.hint = self.hint.translated(translate)
