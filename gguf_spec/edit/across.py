"""Renames in several files of one command: which of them import a name from another one.

Only imports are read that name a file, as those of Python, JavaScript and TypeScript do. What a
rename changes in a file, `by_code` decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath, PurePosixPath
from typing import Protocol


class Renaming(Protocol):
    """A plan of an edit, as far as it is needed here."""

    @property
    def renamed(self) -> str: ...

    @property
    def lines(self) -> list[str]: ...


def imported_names(files: Sequence[tuple[PurePath, Renaming | None]]) -> list[frozenset[str]]:
    """Return for each file the names that it imports from another one, which renames them.

    Args:
        files: Paths of files, absolute or from one folder, and what is planned for each of them.
    """
    renamed = [(path, plan.renamed) for path, plan in files if plan and plan.renamed]
    return [
        frozenset(
            name
            for other, name in renamed
            if plan and other != path and name != plan.renamed
            if {other.stem, other.parent.name} & _modules_of(name, "\n".join(plan.lines))
        )
        for path, plan in files
    ]


def _modules_of(name: str, text: str) -> set[str]:
    """Return the last part of the names of the modules that a name is imported from."""
    word = rf"(?<![\w$]){re.escape(name)}(?![\w$])"
    python = rf"(?m)^[ \t]*from[ \t]+\.*([\w.]*)[ \t]+import[ \t]*(?:\([^)]*?|[^\n(]*?){word}"
    script = (
        rf"(?m)^[ \t]*(?:import|export)\b[^;'\"]*?{word}[^;'\"]*?\bfrom\s*['\"]([^'\"\n]+)['\"]"
    )
    found = {one.rpartition(".")[2] for one in re.findall(python, text)}
    return found | {PurePosixPath(one).name.partition(".")[0] for one in re.findall(script, text)}
