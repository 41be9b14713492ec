"""Images in requests: `data:` URLs or base64 only, checked before the request waits for a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ImageError
from ..llama.image_file import Image
from ..runtime.images import image_of_base64, image_of_url
from .errors import ApiError, bad, unsupported

Part = dict[str, Any]


def image_url(value: Any, at: str) -> Part:
    """Return the part of an image for messages.

    Args:
        value: A `data:` URL, or an object with one in `url`, as at OpenAI.
        at: Its place in the request.

    Raises:
        ApiError: It is no image that is allowed. The error names the field.
    """
    if isinstance(value, dict):
        for name, given in value.items():
            if name not in ("url", "detail") and given is not None:
                raise unsupported(f"{at}.{name[:100]}")
        value, at = value.get("url"), f"{at}.url"
    return _part(value, at, "a data: URL", image_of_url)


def image_base64(value: Any, at: str) -> Part:
    """Return the part of an image from its bytes in base64.

    Raises:
        ApiError: It is no image that is allowed. The error names the field.
    """
    return _part(value, at, "an image in base64", image_of_base64)


def _part(value: Any, at: str, form: str, read: Callable[[str, str], Image]) -> Part:
    if not isinstance(value, str):
        raise bad(at, f"must be {form}.")
    try:
        return {"type": "image_url", "image_url": read(value, at)}
    except ImageError as error:
        hint = error.hint[:1].upper() + error.hint[1:]
        raise ApiError(f"{error.message} {hint}", at, "invalid_image") from None


def content_of(parts: list[Part]) -> str | list[Part]:
    """Return the content of a message: one text, or parts if there are images."""
    if any(part["type"] == "image_url" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def text_part(text: str) -> Part:
    """Return the part of a text."""
    return {"type": "text", "text": text}
