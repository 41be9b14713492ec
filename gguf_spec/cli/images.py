"""Images on the command line: the option, and the text that stands for one at the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from .. import LLM

F = TypeVar("F", bound=Callable[..., Any])

image_option = click.option(
    "--image",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Image before the prompt; needs --mmproj. Repeatable.",
)


def check_images(files: Sequence[Path], options: Mapping[str, Any]) -> None:
    """Check the images of a command before a model is loaded.

    Raises:
        ImageError: An image cannot be read or is not allowed.
        click.UsageError: There is no projector.
    """
    if not files:
        return
    if options["mmproj"] is None:
        raise click.UsageError("--image needs --mmproj FILE, the projector of the model.")
    from ..images import read_image

    for file in files:
        read_image(file)


def check_image(file: Path, llm: LLM) -> None:
    """Check an image for the next message of a chat.

    Raises:
        ImageError: It cannot be read or is not allowed.
        NoVisionError: The model has no projector.
    """
    from ..errors import NoVisionError
    from ..images import read_image

    if not llm.can_see:
        raise NoVisionError(llm.name)
    read_image(file)


def plain(content: str | Sequence[Mapping[str, Any]]) -> str:
    """Return the content of a message as text, with `[image]` for each image."""
    if isinstance(content, str):
        return content
    return " ".join("[image]" if "image_url" in part else part["text"] for part in content)
