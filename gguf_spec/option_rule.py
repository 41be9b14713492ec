"""Allowed values of one option, from which its check, its description and its schema are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple


class Rule(NamedTuple):
    """Allowed values of an option, its help text, and its names outside of Python.

    Attributes:
        type: JSON type of the value, or of the items of a sequence or mapping.
        help: Help text on the command line.
        least: Smallest allowed number, or None.
        most: Largest allowed number, or None.
        above: Whether `least` itself is not allowed.
        choices: Allowed texts; empty for any text.
        optional: Whether None is allowed.
        shape: Whether the value is one such value, a sequence, or a mapping from token ids.
        items_max: Maximum number of items of a sequence, or None.
        flags: Names on the command line; empty for `--field-name`.
        inverted: Whether the flag on the command line sets the option to False.
        in_requests: Whether server requests have a field with this name and these values.
    """

    type: Literal["number", "integer", "boolean", "string", "any"]
    help: str
    least: float | None = None
    most: float | None = None
    above: bool = False
    choices: tuple[str, ...] = ()
    optional: bool = False
    shape: Literal["one", "sequence", "mapping"] = "one"
    items_max: int | None = None
    flags: tuple[str, ...] = ()
    inverted: bool = False
    in_requests: bool = True

    def accepts(self, value: Any) -> bool:
        """Return whether a value is allowed. A sequence must be a tuple; a mapping is not read."""
        if value is None:
            return self.optional
        if self.shape == "mapping":
            return isinstance(value, Mapping)
        if self.shape == "sequence":
            return (
                isinstance(value, tuple)
                and len(value) <= (self.items_max or len(value))
                and all(self.accepts_one(one) and one != "" for one in value)
            )
        return self.accepts_one(value)

    def accepts_one(self, value: Any) -> bool:
        """Return whether an item, or a value that is neither sequence nor mapping, is allowed."""
        if self.type == "boolean":
            return isinstance(value, bool)
        if self.type == "string":
            return isinstance(value, str) and (not self.choices or value in self.choices)
        if self.type == "any":
            return True
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if not (isinstance(value, int) if self.type == "integer" else math.isfinite(value)):
            return False
        low = self.least is None or (value > self.least if self.above else value >= self.least)
        return low and (self.most is None or value <= self.most)

    @property
    def allowed(self) -> str:
        """The allowed values in words; completes a sentence that ends with "must be"."""
        if self.shape == "mapping":
            return "a mapping from token ids to numbers"
        if self.shape == "sequence":
            items = "non-empty strings" if self.type == "string" else "token ids"
            return f"at most {self.items_max} {items}" if self.items_max else items
        if self.choices:
            few = len(self.choices) == 2
            return " or ".join(self.choices) if few else f"one of {', '.join(self.choices)}"
        if self.type in ("boolean", "string"):
            return "True or False" if self.type == "boolean" else "text"
        kind = "a whole number" if self.type == "integer" else ""
        if self.most is None:
            return f"{kind}, {_shown(self.least)} or more"
        limits = f"from {_shown(self.least)} to {_shown(self.most)}"
        if self.above:
            limits = f"above {_shown(self.least)} and at most {_shown(self.most)}"
        return f"{kind} {limits}".strip()

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of an item, or of a value that is neither sequence nor mapping."""
        if self.choices:
            return {"enum": list(self.choices)}
        schema: dict[str, Any] = {"type": self.type}
        if self.least is not None:
            schema["exclusiveMinimum" if self.above else "minimum"] = self.least
        if self.most is not None:
            schema["maximum"] = self.most
        return schema


def _shown(limit: float | None) -> str:
    words: dict[float, str] = {
        10**6: "a million",
        -(10**6): "minus a million",
        2**64 - 1: "2**64 - 1",
    }
    return words.get(limit, str(limit)) if limit is not None else ""
