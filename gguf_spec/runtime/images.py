"""Images of a request: files, bytes and `data:` URLs, and their places in messages."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import ImageError
from ..llama.image_file import BYTES_MAX, Image, check_image, read_image

# Characters of a data: URL whose image has the largest size, with its type.
_URL_MAX = BYTES_MAX * 4 // 3 + 200
_DATA_URL = re.compile(r"data:(?:[\w.+-]+/[\w.+-]+)?(?:;[\w.+-]+=[\w.+-]+)*;base64,", re.ASCII)

GivenImage: TypeAlias = "str | Path | bytes | Image"
"""An image: its file, its bytes, or a `data:` URL."""


def as_image(given: GivenImage, name: str) -> Image:
    """Return the image of a file, of bytes or of a `data:` URL.

    Raises:
        ImageError: It cannot be read or is not allowed.
    """
    if isinstance(given, Image):
        return given
    if isinstance(given, (bytes, bytearray, memoryview)):
        return check_image(bytes(given), name)
    if isinstance(given, str) and given.startswith("data:"):
        return image_of_url(given, name)
    if isinstance(given, str) and re.match(r"https?://", given):
        raise _not_fetched(name)
    if not isinstance(given, (str, Path)):
        raise ImageError(f"{name} is not an image.", "give a file, its bytes or a data: URL.")
    return read_image(Path(given))


def image_of_url(url: str, name: str) -> Image:
    """Return the image of a `data:` URL in base64.

    Raises:
        ImageError: It is another URL, too long, or no image that is allowed.
    """
    head = _DATA_URL.match(url[:200])
    if not head:
        if url.startswith("data:"):
            raise ImageError(f"{name} is a data: URL without ;base64,.", "encode it in base64.")
        raise _not_fetched(name)
    return image_of_base64(url[head.end() :], name)


def image_of_base64(text: str, name: str) -> Image:
    """Return an image from its bytes in base64.

    Raises:
        ImageError: The text is no base64, too long, or no image that is allowed.
    """
    if len(text) > _URL_MAX:
        return check_image(bytes(BYTES_MAX + 1), name)
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (ValueError, binascii.Error):
        raise ImageError(f"{name} is not base64.", "encode the bytes of the file again.") from None
    return check_image(data, name)


def _not_fetched(name: str) -> ImageError:
    return ImageError(
        f"{name} is a URL, and nothing is fetched.",
        "send the image itself, as a data: URL in base64.",
    )


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
