"""Names to files: models.yaml, and paths."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from .errors import ModelNotFoundError

_PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Entry:
    """A model that a name or a path stands for.

    Attributes:
        name: The name, or the file's name.
        target: The model file.
        draft: The draft that belongs to it, or None.
        prompt: What a bare prompt is to it: `text` to go on from, `chat` to answer, or None where its chat template decides.
    """

    name: str
    target: Path
    draft: Path | None = None
    prompt: Literal["text", "chat"] | None = None


@cache
def _entries() -> dict[str, dict[str, Any]]:
    for path in (_PACKAGE / "models.yaml", _PACKAGE.parent / "models.yaml"):  # installed; in a checkout
        if path.exists():
            entries: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))["models"]
            return entries
    raise FileNotFoundError("models.yaml is neither in the package nor beside it: the installation is broken")


def names() -> list[str]:
    """Return the names in models.yaml."""
    return sorted(_entries())


def resolve(model: str | Path) -> Entry:
    """Return the entry for a name in models.yaml or the path of a GGUF file.

    Raises:
        ModelNotFoundError: Neither; the hint names what comes close.
    """
    found = _entries().get(str(model))
    if found:
        folder = _PACKAGE / "models"
        return Entry(str(model), folder / found["target"], folder / found["draft"], found["prompt"])
    path = Path(model)
    try:
        path = path.expanduser()
        if path.exists():
            return Entry(path.name, path)
    except (OSError, RuntimeError, ValueError):
        pass  # a name too long, a home that nobody has
    close = difflib.get_close_matches(str(model), names(), n=1)
    hint = f"did you mean {close[0]}?" if close else f"give the path of a GGUF file, or a name: {', '.join(names())}."
    raise ModelNotFoundError(path, f"there is no file {path} and no model of that name.", hint)
