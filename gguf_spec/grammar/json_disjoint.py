"""Test whether JSON schemas are disjoint, as `oneOf` requires of its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .json_keywords import KINDS, kinds, same

# all JSON types
_ALL = frozenset({"null", "boolean", "number", "string", "array", "object"})
# Python type -> JSON type
_NAMES = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
# largest depth of nested properties that are compared
_DEPTH = 8

# converts a schema to a form without references and `allOf` at its top level
Plain = Callable[[Any], Any]


def disjoint(a: Any, b: Any, plain: Plain, depth: int = 0) -> bool:
    """Return whether two schemas are disjoint: no value of one grammar is valid for the other.

    The result is False if this is uncertain.

    Args:
        a: A schema without references and `allOf` at its top level.
        b: Another such schema.
        plain: Converts any schema to this form.
        depth: Current depth of nested properties.
    """
    if isinstance(a, bool) or isinstance(b, bool):
        return a is False or b is False
    for one, other in ((a, b), (b, a)):
        for key in ("anyOf", "oneOf"):
            if isinstance(one.get(key), list):
                rest = {k: v for k, v in one.items() if k != key}
                parts = [plain({"allOf": [rest, part]}) for part in one[key] if part is not False]
                return all(disjoint(part, other, plain, depth) for part in parts)
    return _excludes(a, b, plain, depth) and _excludes(b, a, plain, depth)


def _excludes(writer: dict[str, Any], other: dict[str, Any], plain: Plain, depth: int) -> bool:
    """Return whether no output of a grammar of `writer` is valid for the other schema."""
    if isinstance(writer.get("enum"), list) and isinstance(other.get("enum"), list):
        return not {same(value) for value in writer["enum"]} & {
            same(value) for value in other["enum"]
        }
    written = _written(writer)
    if not written & _types(other):
        return True
    if written != {"object"} or "enum" in writer or "enum" in other or depth >= _DEPTH:
        return False
    (ours, our_required, our_rest), (theirs, their_required, their_rest) = map(
        _properties, (writer, other)
    )
    if (
        our_rest is False or (ours and our_rest is None)
    ) and their_required - ours.keys() - our_required:
        return True  # the other schema requires a property that is never written
    if their_rest is False and our_required - theirs.keys():
        return True  # the other schema forbids a property that is always written
    shared = ours.keys() & theirs.keys() & (our_required | their_required)
    return any(
        disjoint(plain(ours[name]), plain(theirs[name]), plain, depth + 1)
        for name in sorted(shared)
    )


def _types(schema: dict[str, Any]) -> frozenset[str]:
    """Return the types of the valid values of a schema."""
    found = _ALL
    if "type" in schema:
        found &= {"number" if kind == "integer" else kind for kind in kinds(schema["type"])}
    if isinstance(schema.get("enum"), list):
        found &= {_NAMES[type(value)] for value in schema["enum"]}
    return found


def _written(schema: dict[str, Any]) -> frozenset[str]:
    """Return the types of the values that a grammar of a schema can write."""
    if "type" in schema or "enum" in schema:
        return _types(schema)
    spoken_of = next((kind for kind, keys in KINDS.items() if keys & schema.keys()), None)
    return frozenset({spoken_of}) if spoken_of else _ALL


def _properties(schema: dict[str, Any]) -> tuple[dict[str, Any], set[str], Any]:
    """Return the named properties, the required ones, and `additionalProperties` or None."""
    named, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(named, dict) or not isinstance(required, list):
        return {}, set(), True
    return (
        named,
        {name for name in required if isinstance(name, str)},
        schema.get("additionalProperties"),
    )
