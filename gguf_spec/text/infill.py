"""Prompts for filling in the middle of a text."""

from __future__ import annotations

from ..errors import NoInfillError
from ..llama.model import Model


def encode_infill(model: Model, prefix: str, suffix: str) -> list[int]:
    """Return the token ids of a prompt that ends where the middle of a text begins.

    Args:
        model: The model.
        prefix: Text before the middle.
        suffix: Text after the middle.

    Raises:
        NoInfillError: The vocabulary has no tokens for it.
    """
    if model.infill_marks is None:
        raise NoInfillError(model.path.name)
    before, after, middle = model.infill_marks
    start = [model.vocabulary["bos"]] if model.vocabulary["add_bos"] else []
    parts = [model.tokenize(text, special=False, start=False) for text in (prefix, suffix)]
    return [*start, before, *parts[0], after, *parts[1], middle]
