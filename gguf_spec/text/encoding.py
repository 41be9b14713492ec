"""Texts as token ids, many at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import PromptTooLongError, TextTooLongError
from ..options import wrong_type
from ..results import OnProgress, Progress
from ..vocabulary import Vocabulary

Texts = str | Sequence[int] | Sequence[str | Sequence[int]]


def encode_texts(
    model: Vocabulary,
    texts: Texts | Iterable[Any],
    special: bool,
    on_pass: OnProgress | None = None,
) -> list[list[int]]:
    """Return the token ids of texts, which may be token ids already.

    `on_pass` is called before each that is a text; an exception of it ends the call.

    Raises:
        OptionTypeError: A text is neither.
        TextTooLongError: A text has many more tokens than the context holds.
    """
    items: Any = [texts] if isinstance(texts, str) or _are_ids(texts) else texts
    allowed = "a text, token ids, or a list of texts or of token ids"
    if isinstance(items, (bytes, bytearray, Mapping)) or not isinstance(items, Iterable):
        raise wrong_type("texts", texts, allowed, _decoded(texts))
    encoded: list[list[int]] = []
    n = len(items) if isinstance(items, Sized) else None
    for i, item in enumerate(items):
        if isinstance(item, str):
            if on_pass:
                on_pass(Progress("embed", 0, n, "texts"))
            with of_text(model, i):
                encoded.append(model.tokenize(item, special=special, most=model.n_ctx))
        elif _are_ids(item) or item == []:
            encoded.append([*map(int, item)])
        else:
            raise wrong_type(f"texts[{i}]", item, "a text or token ids", _decoded(item))
    return encoded


def _decoded(value: object) -> str:
    return "decode bytes: text.decode()." if isinstance(value, (bytes, bytearray)) else ""


@contextmanager
def of_text(model: Vocabulary, index: int) -> Iterator[None]:
    """Name a text that is too long."""
    try:
        yield
    except PromptTooLongError as error:
        most, trained = model.n_ctx, model.n_ctx_train
        raise TextTooLongError(index, error.n_prompt, most, trained, True) from None


def _are_ids(value: object) -> bool:
    return (
        isinstance(value, (Sequence, np.ndarray))
        and not isinstance(value, (str, bytes, bytearray))
        and len(value) > 0
        and all(isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in value)
    )
