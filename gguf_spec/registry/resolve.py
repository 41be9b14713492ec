"""Resolution of names, paths, hub locations and names of other programs to entries.

Names come from the package's models.yaml and from the user's own models file, which has priority.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from ..errors import ModelNotFoundError
from ..system.files import config_folder
from . import references
from .models_file import Entry, Part, is_model_file, is_repo, read_models_file, split_names

__all__ = ["Entry", "Part", "entries", "resolve", "split_names", "user_file"]

_PACKAGE = Path(__file__).resolve().parents[1]
_HUB = re.compile(r"hf:([^/]+/[^/]+)/(.+?\.(?i:gguf))(?:@(.+))?")
_REVISION = re.compile(r"(?!.*(?:\.\.|//))\w[\w./-]{0,199}", re.ASCII)
_HUB_HINT = "write hf:OWNER/REPO/FILE.gguf, or hf:OWNER/REPO/FILE.gguf@REVISION."


@cache
def _package_entries() -> dict[str, Entry]:
    for folder in (_PACKAGE, _PACKAGE.parent):  # installed; in a checkout
        path = folder / "models.yaml"
        if path.exists():
            return read_models_file(path, {})
    raise FileNotFoundError(
        "models.yaml is neither in the package nor beside it; install gguf-spec again"
    )


def user_file() -> Path | None:
    """Return the path of the user's own models file, or None for a user without a home folder."""
    try:
        path = config_folder() / "models.yaml"
    except RuntimeError:
        return None
    return path if path.is_absolute() else None


def entries(models_file: Path | None = None) -> dict[str, Entry]:
    """Return all entries by name.

    Entries of the user's file override those of the package. Entries of `models_file` override
    both.

    Raises:
        InvalidModelsFileError: One of the files has an error.
    """
    found = dict(_package_entries())
    own = user_file()
    for file in (own if own and os.path.lexists(own) else None, models_file):
        if file:
            found = _overlay(found, read_models_file(file, found))
    return found


def _overlay(below: Mapping[str, Entry], above: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries of both files; those above take names and aliases from those below."""
    taken = set(above).union(*(entry.aliases for entry in above.values()))
    left = {
        name: replace(entry, aliases=tuple(alias for alias in entry.aliases if alias not in taken))
        for name, entry in below.items()
    }
    return left | dict(above)


def resolve(model: str | Path, models_file: Path | None = None) -> Entry:
    """Return the entry of a name, an alias, a location on the hub or the path of a GGUF file.

    An `hf:` location has the form `hf:OWNER/REPO/FILE[@REVISION]`; `hf:OWNER/REPO[:QUANT]` means
    the same as without `hf:`. A text that is a name means the
    name even if a file with that name exists; `./name` means the file. A `Path` is never a name.
    Texts that are neither names nor files are taken as `references.find` takes them.

    Raises:
        ModelNotFoundError: The text matches none of these. The hint contains the closest name.
        InvalidModelsFileError: A models file has an error.
    """
    if isinstance(model, str) and model.startswith("hf:"):
        if references.parse(model[3:]) and (entry := references.find(model[3:])):
            return entry
        return _on_hub(model)
    if isinstance(model, str) and not {"/", os.sep} & set(model):
        known = entries(models_file)
        found = known.get(model.lower()) or _by_alias(known).get(model.lower())
        if found:
            return found
    path = Path(model)
    try:
        path = path.expanduser()
        if path.exists():
            return Entry(path.name, None, None, (), path)
    except (OSError, RuntimeError, ValueError):
        pass  # the name is too long, or the home folder does not exist
    if isinstance(model, str) and (entry := references.find(model)):
        return entry
    known = entries(models_file)
    close = difflib.get_close_matches(str(model)[:200].lower(), [*known, *_by_alias(known)], n=1)
    hint = (
        "name a GGUF file, OWNER/REPO or hf:OWNER/REPO/FILE, or a name that "
        "`gguf-spec models list` shows."
    )
    if close:
        hint = f"did you mean {close[0]}?"
    raise ModelNotFoundError(path, f"there is no file {path} and no model with that name.", hint)


def _by_alias(known: Mapping[str, Entry]) -> dict[str, Entry]:
    return {alias: entry for entry in known.values() for alias in entry.aliases}


def _on_hub(spec: str) -> Entry:
    parsed = _HUB.fullmatch(spec)
    repo, file, revision = parsed.groups(default="main") if parsed else ("", "", "")
    if not is_repo(repo) or not is_model_file(file):
        message = f"{spec!r} does not name a GGUF file on the hub."
        raise ModelNotFoundError(Path(spec), message, _HUB_HINT)
    if not _REVISION.fullmatch(revision):
        message = f"{revision!r} in {spec!r} is not a revision."
        hint = "name a branch, a tag or a commit of the repository."
        raise ModelNotFoundError(Path(spec), message, hint)
    names = split_names(file)
    if file != names[0]:
        message = f"{file} is a later part of a split model."
        raise ModelNotFoundError(Path(spec), message, f"name its first part, {names[0]}.")
    return Entry(spec, repo, revision, tuple(Part(name) for name in names), None)
