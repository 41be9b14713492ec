"""Images in the contents of messages."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from ..images import GivenImage, as_image

Part = dict[str, Any]


def with_image_parts(text: str, images: Sequence[GivenImage]) -> list[Part]:
    """Return a content with images before its text.

    Raises:
        ImageError: An image cannot be read or is not allowed.
    """
    parts: list[Part] = []
    for i, one in enumerate(images):
        data = base64.b64encode(as_image(one, f"images[{i}]").data).decode()
        url = {"url": f"data:image/any;base64,{data}"}
        parts.append({"type": "image_url", "image_url": url})
    return [*parts, {"type": "text", "text": text}]


def are_parts(value: object) -> bool:
    """Return whether a value from a file is a content with images."""
    for part in value if isinstance(value, list) else [None]:
        match part:  # a pattern allows further keys, the comparison does not
            case {"type": "text", "text": str(text)}:
                expected: Part = {"type": "text", "text": text}
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                expected = {"type": "image_url", "image_url": {"url": url}}
            case _:
                return False
        if part != expected:
            return False
    return True
