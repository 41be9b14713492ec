"""Which JSON schemas share no value, as `oneOf` asks of its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .json_merge import KINDS, kinds, same

_ALL = frozenset({"null", "boolean", "number", "string", "array", "object"})
_NAMES = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
_DEPTH = 8  # of properties inside properties that are compared

Plain = Callable[[Any], Any]


def apart(a: Any, b: Any, plain: Plain, depth: int = 0) -> bool:
    """Tell whether no value that a grammar of one schema writes is of the other schema, and the other way round. False where that is not certain.

    Args:
        a: A schema without references and `allOf` at its top.
        b: Another.
        plain: Returns such a schema for any schema.
        depth: How many properties were entered.
    """
    if isinstance(a, bool) or isinstance(b, bool):
        return a is False or b is False
    for one, other in ((a, b), (b, a)):
        for key in ("anyOf", "oneOf"):
            if isinstance(one.get(key), list):
                rest = {k: v for k, v in one.items() if k != key}
                parts = [plain({"allOf": [rest, part]}) for part in one[key] if part is not False]
                return all(apart(part, other, plain, depth) for part in parts)
    return _excludes(a, b, plain, depth) and _excludes(b, a, plain, depth)


def _excludes(writer: dict[str, Any], other: dict[str, Any], plain: Plain, depth: int) -> bool:
    """Tell whether nothing that a grammar of `writer` writes is of the other schema."""
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
        return True  # the other requires what is never written
    if their_rest is False and our_required - theirs.keys():
        return True  # the other forbids what is always written
    shared = ours.keys() & theirs.keys() & (our_required | their_required)
    return any(
        apart(plain(ours[name]), plain(theirs[name]), plain, depth + 1) for name in sorted(shared)
    )


def _types(schema: dict[str, Any]) -> frozenset[str]:
    """Return the types of the values that are of a schema."""
    found = _ALL
    if "type" in schema:
        found &= {"number" if kind == "integer" else kind for kind in kinds(schema["type"])}
    if isinstance(schema.get("enum"), list):
        found &= {_NAMES[type(value)] for value in schema["enum"]}
    return found


def _written(schema: dict[str, Any]) -> frozenset[str]:
    """Return the types of the values that a grammar of a schema writes."""
    if "type" in schema or "enum" in schema:
        return _types(schema)
    spoken_of = next((kind for kind, keys in KINDS.items() if keys & schema.keys()), None)
    return frozenset({spoken_of}) if spoken_of else _ALL


def _properties(schema: dict[str, Any]) -> tuple[dict[str, Any], set[str], Any]:
    """Return the properties that a schema names, those that it requires, and what it says of others, or None."""
    named, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(named, dict) or not isinstance(required, list):
        return {}, set(), True
    return (
        named,
        {name for name in required if isinstance(name, str)},
        schema.get("additionalProperties"),
    )
