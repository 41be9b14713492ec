"""Result of one check of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        name: Subject of the check.
        status: `ok`; `warn` if it works, but worse than possible; `fail` if it does not work.
        found: Description of the result.
        todo: Advice; empty if nothing is to be done.
    """

    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    todo: str = ""
