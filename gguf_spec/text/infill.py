"""Prompts for the text between two others, with the vocabulary's own tokens for it."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import NoInfillError, PromptTooLongError
from ..vocabulary import Vocabulary


def encode_infill(
    model: Vocabulary,
    prefix: str,
    suffix: str,
    files: Sequence[tuple[str, str]] = (),
    most: int | None = None,
) -> list[int]:
    """Return the prompt: files, prefix, suffix, middle. Special tokens in texts are not parsed.

    Args:
        files: Names and texts of other files, in the form of llama-server's `/infill`.
        most: Most tokens; None for any number.

    Raises:
        PromptTooLongError: There are more than `most`.
        NoInfillError: The vocabulary has no tokens for it.
    """
    if model.infill_marks is None:
        raise NoInfillError(model.path.name)
    before, after, middle = model.infill_marks
    start = [model.special_tokens["bos"]] if model.special_tokens["add_bos"] else []
    n_before = 0

    def ids(text: str) -> list[int]:
        nonlocal n_before
        found = model.tokenize(text, special=False, start=False, most=most)
        n_before += len(found)
        if most is not None and n_before > most:
            raise PromptTooLongError(n_before, model.n_ctx, True, model.n_ctx_limit)
        return found

    repository, file = model.file_marks
    if files and file >= 0:
        start += [repository, *ids("myproject\n")] if repository >= 0 else []
        for name, text in files:
            start += [file, *ids(f"{name}\n"), *ids(text)]
        start += [file, *ids("filename\n")]
    else:
        start += [id_ for _, text in files for id_ in ids(f"\n\n--- snippet ---\n\n{text}")]
    return [*start, before, *ids(prefix), after, *ids(suffix), middle]
