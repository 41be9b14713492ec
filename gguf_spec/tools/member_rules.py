"""GBNF rules for the arguments of calls that are not JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InvalidGrammarError
from .schemas import resolved

# Keywords that change nothing in a grammar.
_NOTES = {
    "title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated",
    "readOnly", "writeOnly", "$defs", "definitions", "strict", "nullable",
}  # fmt: skip


def unsupported(schema: Any, reason: str) -> InvalidGrammarError:
    """Return the error for a schema that a notation cannot follow."""
    return InvalidGrammarError("json_schema", str(schema)[:77], reason)


def check_keywords(schema: Mapping[str, Any], *allowed: str) -> None:
    """Check that a schema has only some keywords, besides notes.

    Raises:
        InvalidOptionError: It has another one.
    """
    for key in schema:
        if key not in allowed and key not in _NOTES:
            raise unsupported(schema, f"{str(key)[:60]} is not supported in calls of this model")


def members(schema: Any, root: Any) -> tuple[list[tuple[str, Any, bool]], bool]:
    """Return the properties of an object, and whether any other property is allowed instead.

    Returns:
        Name, schema, and whether it is required, of each; the required ones first.

    Raises:
        InvalidOptionError: The schema is not supported.
    """
    schema = resolved(schema, root)
    check_keywords(schema, "type", "properties", "required", "additionalProperties")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if (
        not isinstance(properties, Mapping)
        or not isinstance(required, list)
        or not all(isinstance(name, str) for name in required)
    ):
        raise unsupported(schema, "properties or required is invalid")
    if schema.get("type", "object") != "object":
        raise unsupported(schema, "the arguments are not an object")
    unknown = [name for name in required if name not in properties]
    if unknown:
        raise unsupported(schema, f"the required property {unknown[0]!r:.60} is not in properties")
    names = set(required)
    found = [(name, part, name in names) for name, part in properties.items()]
    is_free = not found and schema.get("additionalProperties") is not False
    return sorted(found, key=lambda one: not one[2]), is_free


def sequence(
    parts: list[tuple[str, bool]], between: str, add: Callable[[str, str], str], name: str
) -> str:
    """Return GBNF for members in their order, of which some may be missing.

    Args:
        parts: GBNF of each member and whether it is required; the required ones first.
        between: GBNF between two members; may be empty.
        add: Adds a rule and returns its name.
        name: Beginning of the names of new rules.
    """
    first = f" {between} ".join(part for part, is_required in parts if is_required)
    optional = [part for part, is_required in parts if not is_required]
    rest, starts = "", list[str]()
    for i, part in reversed([*enumerate(optional)]):
        starts.append(f"{part} {rest}".strip())
        rest = add(f"{name}-{i}", f"({between} {part})? {rest}".strip())
    if first:
        return f"{first} {rest}".strip()
    return f"({' | '.join(reversed(starts))})?" if starts else ""
