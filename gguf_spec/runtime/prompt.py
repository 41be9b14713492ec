"""Prompts as token ids: texts, messages and ids, with the places of their images.

A content of a message may be a list of parts, as at OpenAI. For the chat template it is one text,
in which a mark stands for each image: a character that is in no text of the request. The tokens of
the text between the marks are those of text alone.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..errors import ImageError, InvalidOptionError, NoVisionError, TemplateError
from ..images import MARKER, GivenImage, Image, PromptTokens, as_image, image_of_url
from ..llama.sequence import CachedSequence
from ..llama.vision import ImageTokens
from ..llama.weights import Weights
from ..options import IMAGE_IDS, Message, PromptOptions, check_text
from ..text.templates import encode_chat

if TYPE_CHECKING:
    from ..llama.vision import VisionSequence

# Most images of a request.
IMAGES_MAX = 32


class _Marked:
    """A vocabulary for the tokens of one prompt: marks in a text become the ids of their images."""

    def __init__(self, weights: Weights, ids: Mapping[str, PromptTokens]) -> None:
        self._weights, self._ids = weights, ids
        self._split = re.compile(f"([{''.join(ids)}])")
        self.path, self.n_ctx, self.chat_template = (
            weights.path,
            weights.n_ctx,
            weights.chat_template,
        )
        self.special_tokens, self.token_text = weights.special_tokens, weights.token_text
        self.check_length = weights.check_length

    def tokenize(
        self, text: str, *, special: bool, start: bool = True, most: int | None = None
    ) -> list[int]:
        found: list[int] = []
        for i, part in enumerate(self._split.split(text)):
            if part in self._ids:
                found += self._ids[part]
            elif part or (i == 0 and start):
                begins = start and i == 0
                found += self._weights.tokenize(part, special=special, start=begins, most=most)
        return found

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token; an image has some, as it is no control token."""
        return b"\xff" if token >= IMAGE_IDS else self._weights.piece(token)


def encode(
    target: CachedSequence,
    prompt: str | Sequence[Message],
    options: PromptOptions,
    *,
    special: bool = True,
    images: Sequence[GivenImage] = (),
    most: int | None = None,
) -> list[int]:
    """Return the token ids of a text or messages; none for an empty prompt.

    Args:
        prompt: A text, or messages for its chat template. In a text `<__media__>` stands for an
            image; without it the images come first. The images of messages are parts of their
            contents.
        options: Prefill, and for messages tools and variables of the template.
        special: Parse strings such as `<|im_end|>` in a text as special tokens.
        images: Images besides those of the messages. They come first in the last message of the
            user.
        most: Most tokens that are of use; None for any number.

    Raises:
        ImageError: An image cannot be read, or there are too many.
        InvalidOptionError: The text has another number of places for images.
        NoVisionError: The model has no projector.
        PromptTooLongError: The prompt has many more than `most` tokens.
        TemplateError: The chat template leaves an image out.
    """
    extra = [as_image(one, f"images[{i}]") for i, one in enumerate(images)]
    if isinstance(prompt, str):
        all_images, n = extra, prompt.count(MARKER)
        if extra and not n:
            prompt = MARKER * len(extra) + prompt
        elif extra and n != len(extra):
            allowed = f"as many images as the prompt has {MARKER}, which is {n}"
            raise InvalidOptionError("images", len(extra), allowed)
    else:
        prompt = _with_images(prompt, extra) if extra else prompt
        all_images = [
            _of_part(part, f"messages[{i}].content[{j}]")
            for i, message in enumerate(prompt)
            for j, part in enumerate(_parts(message))
            if part["type"] == "image_url"
        ]
    if not all_images:
        return _encode(target.weights, prompt, options, special, [], most)
    if len(all_images) > IMAGES_MAX:
        raise ImageError(
            f"there are {len(all_images)} images: at most {IMAGES_MAX} are allowed.", "send fewer."
        )
    image_tokens, marks = image_tokens_of(target), _unused(prompt, len(all_images))
    ids = {mark: image_tokens.ids(image) for mark, image in zip(marks, all_images, strict=True)}
    marked = cast("Weights", _Marked(target.weights, ids))
    tokens = _encode(marked, prompt, options, special, marks, most)
    firsts = {next(token for token in of_image if token >= IMAGE_IDS) for of_image in ids.values()}
    if not firsts <= {*tokens}:
        raise TemplateError(
            f"the chat template of {target.path.name} leaves an image out.",
            "put the image into a message of the user.",
        )
    return PromptTokens(tokens, [chunk for of_image in ids.values() for chunk in of_image.chunks])


def _encode(
    weights: Weights,
    prompt: str | Sequence[Message],
    options: PromptOptions,
    special: bool,
    marks: Sequence[str],
    most: int | None,
) -> list[int]:
    """Return the token ids of a prompt, with a mark in place of each image."""
    left = iter(marks)
    if isinstance(prompt, str):
        check_text(options)
        text = re.sub(re.escape(MARKER), lambda _: next(left), prompt) if marks else prompt
        text += options.prefill
        return weights.tokenize(text, special=special, most=most) if text else []

    def marked(message: Message) -> Message:
        if not (isinstance(message, Mapping) and isinstance(message.get("content"), list)):
            return message
        texts = (part["text"] if part["type"] == "text" else next(left) for part in _parts(message))
        return {**message, "content": "".join(texts)}

    return encode_chat(weights, [*map(marked, prompt)], options, most) if prompt else []


def with_images(tokens: Sequence[int], target: CachedSequence) -> list[int]:
    """Return the ids of a prompt, which keep its images in memory.

    Raises:
        ImageError: An image is not whole or not in memory.
    """
    if not tokens or not getattr(target, "sees", False) or max(tokens) < IMAGE_IDS:
        return [*tokens]
    return PromptTokens(tokens, image_tokens_of(target).chunks_of(tokens))


def image_tokens_of(target: CachedSequence) -> ImageTokens:
    """Return the images of a target.

    Raises:
        NoVisionError: It was loaded without a projector.
    """
    if not getattr(target, "sees", False):
        raise NoVisionError(target.path.name)
    return cast("VisionSequence", target).image_tokens


def _with_images(messages: Sequence[Message], images: Sequence[Image]) -> list[Message]:
    """Return messages with images at the start of the last one of the user."""
    last = max((i for i, one in enumerate(messages) if one.get("role") == "user"), default=None)
    if last is None:
        raise InvalidOptionError("images", len(images), "given with a message of the user")
    content = messages[last].get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    before = [{"type": "image_url", "image_url": one} for one in images]
    changed = {**messages[last], "content": [*before, *parts]}
    return [*messages[:last], changed, *messages[last + 1 :]]


def _parts(message: Message) -> list[Any]:
    """Return the checked parts of a content; none for a content that is a text."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "image_url") or (
            kind == "text" and not isinstance(part.get("text"), str)
        ):
            raise TemplateError(
                f"{str(part)[:100]!r} is not a part of a message.",
                'write parts as {"type": "text", "text": "..."} or '
                '{"type": "image_url", "image_url": {"url": "data:..."}}.',
            )
    return content


def _of_part(part: Mapping[str, Any], name: str) -> Image:
    url = part.get("image_url")
    url = url.get("url") if isinstance(url, Mapping) else url
    if isinstance(url, Image):
        return url
    if not isinstance(url, str):
        raise ImageError(f"{name} has no URL.", "give the image as a data: URL in base64.")
    return image_of_url(url, name)


def _unused(prompt: object, n: int) -> list[str]:
    """Return private-use characters that a prompt does not contain."""
    taken, found = {*_all_text(prompt)}, list[str]()
    while len(found) < n:
        one = chr(0x100000 + secrets.randbelow(0xFFFE))
        if one not in taken:
            taken.add(one)
            found.append(one)
    return found


def _all_text(value: object) -> str:
    if isinstance(value, str):
        return "" if value.startswith("data:") else value
    if isinstance(value, Mapping):
        return "".join(map(_all_text, value.values()))
    return "".join(map(_all_text, value)) if isinstance(value, (list, tuple)) else ""
