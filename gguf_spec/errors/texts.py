"""Texts that name options as data, so that each surface writes its own names.

The library writes a text once. Python shows `n_ctx=8192`, the command line `--ctx 8192`, and the
server the field of the request. A surface without such an option leaves the advice out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias


class Option(NamedTuple):
    """An option, named as in Python.

    Attributes:
        name: Name of the parameter or field, such as `n_ctx`.
        value: The value to set; `...` names the option without a value.
        of_commands: Whether only commands have this option.
    """

    name: str
    value: Any = ...
    of_commands: bool = False


class Call(NamedTuple):
    """A call of a function of this package, such as `gguf_spec.pull('smollm2')`.

    Attributes:
        function: Name of the function, such as `pull`.
        argument: Its first argument.
        options: Its other arguments.
    """

    function: str
    argument: str
    options: tuple[Option, ...] = ()


Write: TypeAlias = Callable[[Option | Call], "str | None"]
"""Writes a name for one surface; None if the surface has no such option or function."""


def in_python(part: Option | Call) -> str | None:
    """Write an option or a call as in Python: `n_ctx=8192`."""
    if isinstance(part, Call):
        arguments = [repr(part.argument), *(str(in_python(option)) for option in part.options)]
        return f"gguf_spec.{part.function}({', '.join(arguments)})"
    if part.of_commands:
        return None
    return part.name if part.value is ... else f"{part.name}={part.value!r}"


class Text(str):
    """A text with options in it. As a `str` it has the names of Python.

    Attributes:
        parts: Plain texts, options, calls and nested texts, in order.
    """

    parts: tuple[str | Option | Call, ...]

    def __new__(cls, *parts: str | Option | Call) -> Text:
        """Join parts to a text."""
        text = super().__new__(cls, cls._written(parts, in_python) or "")
        text.parts = parts
        return text

    def __getnewargs__(self) -> Any:
        return self.parts

    @classmethod
    def _written(cls, parts: tuple[str | Option | Call, ...], write: Write) -> str | None:
        """Return the text on a surface; None if a part has no name there."""
        written = [_write(part, write) for part in parts]
        return None if None in written else "".join(map(str, written))

    def write(self, write: Write) -> str | None:
        """Return the text on a surface; None if an option in it has no name there."""
        return self._written(self.parts, write)

    def options(self) -> Iterator[Option]:
        """Yield the options of the text."""
        for part in self.parts:
            if isinstance(part, Text):
                yield from part.options()
            elif isinstance(part, Option):
                yield part

    def translated(self, translate: Callable[[Option], Option | None]) -> Text:
        """Return the text with other options; None removes the alternatives that name an option."""
        return type(self)(*(_translate(part, translate) for part in self.parts))


class OneOf(Text):
    """Alternatives, joined by commas and "or"; those without a name on a surface are left out."""

    @classmethod
    def _written(cls, parts: tuple[str | Option | Call, ...], write: Write) -> str | None:
        written = [text for text in (_write(part, write) for part in parts) if text is not None]
        if not written:
            return None
        return " or ".join(filter(None, [", ".join(written[:-1]), written[-1]]))


class Optionally(Text):
    """A text that is left out on surfaces without a name for an option in it."""

    @classmethod
    def _written(cls, parts: tuple[str | Option | Call, ...], write: Write) -> str | None:
        return super()._written(parts, write) or ""


def _write(part: str | Option | Call, write: Write) -> str | None:
    if isinstance(part, (Option, Call)):
        return write(part)
    return part.write(write) if isinstance(part, Text) else part


def _translate(
    part: str | Option | Call, translate: Callable[[Option], Option | None]
) -> str | Option | Call:
    if isinstance(part, Text):
        return part.translated(translate)
    if isinstance(part, Option):
        return translate(part) or Option(part.name, part.value, of_commands=True)
    return part


def written(text: str, write: Write, instead: str | None = None) -> str:
    """Return a text as a surface writes it.

    Args:
        text: The text; one without options stays as it is.
        write: Writes the names.
        instead: Result if the surface has no name for an option; None takes the names of Python.
    """
    if not isinstance(text, Text):
        return text
    found = text.write(write)
    return found if found is not None else str(text) if instead is None else instead


def advice(*alternatives: str) -> Text:
    """Return a sentence that offers alternatives (`do this, do that or do the other.`)."""
    return Text(OneOf(*alternatives), ".")
