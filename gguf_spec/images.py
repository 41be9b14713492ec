"""Images for prompts: checks of image files, without loading a model.

from gguf_spec.images import read_image

image = read_image("cat.jpg")  # type and size are checked; nothing is decoded
llm.generate("What is this?", images=[image])
"""

from __future__ import annotations

from pathlib import Path

from .llama.image_file import Image
from .llama.image_file import read_image as _read

__all__ = ["Image", "read_image"]


def read_image(path: str | Path) -> Image:
    """Return the image of a file: PNG, JPEG, GIF or BMP, at most 20 MiB and 50 million pixels.

    Raises:
        ImageError: The file cannot be read, or is no image that is allowed.
    """
    return _read(Path(path))
