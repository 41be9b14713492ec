"""Prompts that are kept on disk (`load(keep=...)`): list and remove them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from .errors import InvalidOptionError
from .system.piece_folder import (
    FoundFile,
    about_file,
    all_files,
    drafts_folder,
    folder_and_limit,
    remove_files,
)

__all__ = ["KeptFiles", "KeptPrompt", "kept_prompts", "remove_draft_texts", "remove_kept"]
_ID_DIGITS = 12


@dataclass(frozen=True)
class KeptPrompt:
    """A text on disk that a later request may begin with.

    Attributes:
        id: Its name for `remove_kept`.
        model: File name of the model that read it.
        title: The beginning of the text.
        n_tokens: Its length.
        n_bytes: Size of its files; texts that begin alike share some.
        used_at: When it was written or used last, in seconds since 1970.
    """

    id: str
    model: str
    title: str
    n_tokens: int
    n_bytes: int
    used_at: float


@dataclass(frozen=True)
class KeptFiles:
    """What a folder has.

    Attributes:
        folder: The folder.
        limit_bytes: Its budget.
        n_bytes: Size of all files.
        n_prompts: Number of texts.
        prompts: The texts that were used last, the newest first.
    """

    folder: Path
    limit_bytes: int
    n_bytes: int
    n_prompts: int
    prompts: tuple[KeptPrompt, ...]


def kept_prompts(keep: str | Path | int | None = None, most: int | None = None) -> KeptFiles:
    """Return the prompts in a folder.

    Args:
        keep: The folder, as for `load`; None for the usual one.
        most: Most prompts that are described; None for all.

    Raises:
        InvalidOptionError: `keep` is neither a folder nor a size.
    """
    folder, limit = _folder(keep)
    files = {one.piece.name: one for one in all_files(folder)}
    leaves = sorted(_leaves(files), key=lambda one: -one.used_at)
    shown = [_described(files, one) for one in leaves[:most]]
    n_bytes = sum(one.n_bytes for one in files.values())
    return KeptFiles(folder, limit, n_bytes, len(leaves), tuple(shown))


def remove_kept(
    keep: str | Path | int | None = None, ids: Collection[str] | None = None
) -> tuple[int, int]:
    """Remove prompts; parts that others begin with stay.

    Args:
        keep: The folder, as for `load`; None for the usual one.
        ids: Those of the prompts, or their beginnings; None for all.

    Returns:
        The number of removed prompts, and the freed bytes.

    Raises:
        InvalidOptionError: `keep` is neither a folder nor a size, or there is no such prompt.
    """
    folder, _ = _folder(keep)
    files = {one.piece.name: one for one in all_files(folder)}
    leaves = _leaves(files)
    if ids is None:
        return len(leaves), remove_files(files.values())
    for one in ids:
        if not one or not any(leaf.piece.name.startswith(one) for leaf in leaves):
            raise InvalidOptionError("ids", one, "the id of a kept prompt")
    chosen = [one for one in leaves if one.piece.name.startswith(tuple(ids))]
    removed = {one.piece.name for one in chosen}
    needed = {
        one.piece.name for leaf in leaves if leaf.piece.name not in removed
        for one in _chain(files, leaf)
    }  # fmt: skip
    freed = {one.piece.name: one for leaf in chosen for one in _chain(files, leaf)}
    return len(chosen), remove_files(one for name, one in freed.items() if name not in needed)


def remove_draft_texts() -> int:
    """Remove the texts for drafts in the cache folder; return the freed bytes."""
    return remove_files(all_files(drafts_folder()))


def _folder(keep: str | Path | int | None) -> tuple[Path, int]:
    try:
        found = folder_and_limit(keep)
    except (ValueError, RuntimeError):
        raise InvalidOptionError("keep", keep, "a folder, a size such as 20GB, or both") from None
    return found or _usual()


def _usual() -> tuple[Path, int]:
    found = folder_and_limit("10GB")
    assert found
    return found


def _leaves(files: dict[str, FoundFile]) -> list[FoundFile]:
    parents = {one.piece.parent for one in files.values()}
    return [one for name, one in files.items() if name not in parents]


def _chain(files: dict[str, FoundFile], leaf: FoundFile) -> list[FoundFile]:
    """Return the files of a text, the last one first."""
    found = [leaf]
    while (before := files.get(found[-1].piece.parent)) and before is not found[-1]:
        found.append(before)
    return found


def _described(files: dict[str, FoundFile], leaf: FoundFile) -> KeptPrompt:
    chain = _chain(files, leaf)
    about, first = about_file(leaf.path), about_file(chain[-1].path)
    return KeptPrompt(
        leaf.piece.name[:_ID_DIGITS],
        str(about.get("model", "?")),
        str(first.get("title", "")),
        sum(one.piece.n for one in chain),
        sum(one.n_bytes for one in chain),
        leaf.used_at,
    )
