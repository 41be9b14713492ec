"""Images for prompts: checks of image files, without loading a model.

from gguf_spec.images import read_image

image = read_image("cat.jpg")  # type and size are checked; nothing is decoded
llm.generate("What is this?", images=[image])
"""

# Images are untrusted. llama.cpp decodes them with native code, so only files of four types within
# these limits reach it. Their type and size are read from their first bytes.

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from .errors import ImageError
from .options import IMAGE_IDS

__all__ = ["Image", "read_image"]

# Limits of a file in bytes, and of an image in pixels and in pixels of a side.
_MOST = "20 MiB"
BYTES_MAX, PIXELS_MAX, SIDE_MAX = 20 << 20, 50_000_000, 16_384
# Largest ratio of the two sides.
RATIO_MAX = 200
# Mark of an image in a text, in all programs of llama.cpp.
MARKER = "<__media__>"
_TYPES = "PNG, JPEG, GIF or BMP"
# Bytes of a size in a JPEG file that come before the numbers: length and precision.
_JPEG_SIZE_AT = 3


@dataclass(frozen=True)
class Image:
    """A checked image file; the digest is SHA-256."""

    data: bytes
    digest: bytes
    width: int
    height: int


def read_image(path: str | Path) -> Image:
    """Return the image of a file: PNG, JPEG, GIF or BMP, at most 20 MiB and 50 million pixels.

    Raises:
        ImageError: The file cannot be read, or is no image that is allowed.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ImageError(f"{path} cannot be read: {reason}.", "check its name.") from error
    return check_image(data, str(path))


def check_image(data: bytes, name: str = "the image") -> Image:
    """Return an image whose type and size are allowed.

    Raises:
        ImageError: It is larger than the limits, or no image of a type that is supported.
    """
    if len(data) > BYTES_MAX:
        raise _too_large(name, _MOST)
    size = _size(data)
    if size is None:
        what = "is a WebP image" if data[8:12] == b"WEBP" else f"is not a {_TYPES} image"
        raise ImageError(f"{name} {what}.", f"convert it to {_TYPES}.")
    width, height = size
    if not (width and height):
        raise ImageError(f"{name} is damaged: it has no pixels.", "save it again.")
    if width * height > PIXELS_MAX or max(size) > SIDE_MAX:
        limit = f"{PIXELS_MAX:,} pixels and {SIDE_MAX:,} in a row or column"
        raise _too_large(name, limit, f" of {width:,} x {height:,} pixels")
    if max(size) > RATIO_MAX * min(size):
        raise ImageError(
            f"{name} of {width:,} x {height:,} pixels is too narrow: one side may be at most "
            f"{RATIO_MAX} times as long as the other.",
            "crop it.",
        )
    return Image(data, hashlib.sha256(data).digest(), width, height)


def _too_large(name: str, limit: str, what: str = "") -> ImageError:
    return ImageError(
        f"{name}{what} is too large: at most {limit} are allowed.", "make it smaller."
    )


def _size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of an image, or None if the bytes are no image."""
    try:
        match data[:2]:
            case b"\x89P" if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
                width, height = struct.unpack_from(">II", data, 16)
            case b"\xff\xd8" if data[2:3] == b"\xff":
                return _jpeg(data)
            case b"GI" if data.startswith((b"GIF87a", b"GIF89a")):
                width, height = struct.unpack_from("<HH", data, 6)
            case b"BM":
                (header,) = struct.unpack_from("<I", data, 14)
                width, height = struct.unpack_from("<HH" if header == 12 else "<ii", data, 18)
            case _:
                return None
    except (struct.error, IndexError):
        return None
    return abs(width), abs(height)


def _jpeg(data: bytes) -> tuple[int, int] | None:
    """Return the size in the first start-of-frame segment."""
    at = 2
    while True:
        while data[at] != 0xFF:  # bytes between two segments
            at += 1
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        at += 1
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + _JPEG_SIZE_AT)
            return width, height
        if marker in (0xD9, 0xDA):  # the pixels begin without a size, or the image ends
            return None
        if not 0xD0 <= marker <= 0xD8 and marker != 0x01:
            (length,) = struct.unpack_from(">H", data, at)
            at += length


# ---- images as requests give them: files, bytes and data: URLs, and their places in messages

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


def has_images(prompt: object) -> bool:
    """Return whether a prompt has images: parts of messages, or ids of images among its ids."""
    if not isinstance(prompt, (list, tuple)):
        return False
    if prompt and isinstance(prompt[0], int):
        return bool(max(prompt) >= IMAGE_IDS)
    contents = [one.get("content") for one in prompt if isinstance(one, Mapping)]
    parts = [part for one in contents if isinstance(one, list) for part in one]
    return any(isinstance(part, Mapping) and part.get("type") == "image_url" for part in parts)


class PromptTokens(list[int]):
    """Token ids of a prompt, and the images in it, which stay in memory as long as this list."""

    def __init__(self, ids: Iterable[int], chunks: Sequence[Any]) -> None:
        super().__init__(ids)
        self.chunks: tuple[Any, ...] = tuple(chunks)


def check_ids(tokens: Sequence[int]) -> list[int]:
    """Return the tokens of a prompt without its images.

    Raises:
        ImageError: The prompt ends with an image.
    """
    if not isinstance(tokens, PromptTokens):
        return [*tokens]
    if tokens[-1] >= IMAGE_IDS:
        raise ImageError("the prompt ends with an image.", "add a text after it.")
    return [token for token in tokens if token < IMAGE_IDS]
