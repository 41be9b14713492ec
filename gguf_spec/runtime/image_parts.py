"""Contents of a conversation's messages: a text, or parts with images, which a file can hold."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from .images import MARKER, GivenImage, as_image

Part = dict[str, Any]


def with_image_parts(text: str, images: Sequence[GivenImage]) -> list[Part]:
    """Return a content with images before its text.

    Raises:
        ImageError: An image cannot be read or is not allowed.
    """
    return [
        *(_part(one, f"images[{i}]") for i, one in enumerate(images)),
        {"type": "text", "text": text},
    ]


def _part(given: GivenImage, name: str) -> Part:
    data = base64.b64encode(as_image(given, name).data).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/any;base64,{data}"}}


def text_of(content: str | Sequence[Part]) -> str:
    """Return the text of a content without outer white space, with a marker for each image."""
    if isinstance(content, str):
        return content.strip()
    return "".join(MARKER if "image_url" in part else part["text"].strip() for part in content)


def images_of(content: str | Sequence[Part]) -> list[str]:
    """Return the `data:` URLs of the images in a content."""
    if isinstance(content, str):
        return []
    return [part["image_url"]["url"] for part in content if "image_url" in part]


def are_parts(value: object) -> bool:
    """Return whether a value from a file is a content with images."""
    return isinstance(value, list) and all(map(_is_part, value))


def _is_part(value: object) -> bool:
    match value:  # a pattern allows further keys, the comparison does not
        case {"type": "text", "text": str(text)}:
            return value == {"type": "text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return value == {"type": "image_url", "image_url": {"url": url}}
    return False
