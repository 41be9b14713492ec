"""Test whether JSON schemas are disjoint, as `oneOf` requires of its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, combinations, product
from typing import Any

from .json_keywords import KINDS, kinds, same
from .work import spend

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


class _Facts:
    """Facts about a schema that is not a boolean, without references and `allOf` at its top level.

    Attributes:
        schema: The schema.
        choice: The first of `anyOf` and `oneOf` that it has; empty for none.
        values: The values of `enum` as texts; None without `enum`.
        types: Types of the valid values.
        written: Types of the values that a grammar of the schema can write.
        named: The named properties.
        required: Names of the required properties.
        rest: `additionalProperties`, or None.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        self.choice = next((k for k in ("anyOf", "oneOf") if isinstance(schema.get(k), list)), "")
        values = schema.get("enum")
        self.values = frozenset(map(same, values)) if isinstance(values, list) else None
        self.types = _ALL
        if "type" in schema:
            self.types &= {"number" if k == "integer" else k for k in kinds(schema["type"])}
        if isinstance(values, list):
            self.types &= {_NAMES[type(value)] for value in values}
        spoken_of = next((kind for kind, keys in KINDS.items() if keys & schema.keys()), None)
        is_free = not schema.keys() & {"type", "enum"}
        self.written = frozenset({spoken_of}) if is_free and spoken_of else self.types
        named, required = schema.get("properties", {}), schema.get("required", [])
        is_valid = isinstance(named, dict) and isinstance(required, list)
        self.named: dict[str, Any] = named if is_valid else {}
        self.required = {name for name in required if isinstance(name, str)} if is_valid else set()
        self.rest: Any = schema.get("additionalProperties") if is_valid else True

    @property
    def is_object(self) -> bool:
        """Whether its grammar writes objects, and their properties decide which."""
        return self.written == {"object"} and "enum" not in self.schema


class Disjointness:
    """Test whether schemas are disjoint; each schema and each pair is examined once."""

    def __init__(self, plain: Plain) -> None:
        """Create a test.

        Args:
            plain: Converts any schema to a form without references and `allOf` at its top level.
        """
        self._plain = plain
        self._facts: dict[str, _Facts | bool] = {}  # by the text of the schema
        self._ways: dict[_Facts, list[_Facts | bool]] = {}
        self._found: dict[tuple[_Facts, _Facts, int], bool] = {}

    def of_all(self, schemas: Sequence[Any]) -> bool:
        """Return whether no two schemas allow the same value.

        The result is False if this is uncertain.
        """
        enums, objects, others = list[_Facts](), list[_Facts](), list[_Facts | bool]()
        for one in map(self._of, schemas):
            if isinstance(one, bool) or (one.values is None and (one.choice or not one.is_object)):
                others.append(one)
            else:
                (objects if one.values is None else enums).append(one)
        pairs = chain(
            () if _differ(enums) else combinations(enums, 2),
            () if self._have_tag(objects) else combinations(objects, 2),
            combinations(others, 2),
            product(enums, objects),
            product([*enums, *objects], others),
        )
        return all(self._two(a, b, 0) for a, b in pairs)

    def _of(self, schema: Any) -> _Facts | bool:
        plain = self._plain(schema)
        text = same(plain)
        if text not in self._facts:
            self._facts[text] = plain if isinstance(plain, bool) else _Facts(plain)
        return self._facts[text]

    def _have_tag(self, facts: Sequence[_Facts]) -> bool:
        """Return whether the enum of a property that all objects have tells them apart."""
        tags = set[str]().union(*(one.required for one in facts))
        tags = tags.intersection(*(one.required & one.named.keys() for one in facts))
        return any(_differ([self._of(one.named[tag]) for one in facts]) for tag in sorted(tags))

    def _two(self, a: _Facts | bool, b: _Facts | bool, depth: int) -> bool:
        """Return whether no value of one grammar is valid for the other schema.

        Args:
            a: A schema.
            b: Another one.
            depth: Current depth of nested properties.
        """
        spend(5)
        if isinstance(a, bool) or isinstance(b, bool):
            return a is False or b is False
        found = self._found.get((a, b, depth))
        if found is None:
            if a.choice:
                found = all(self._two(way, b, depth) for way in self._ways_of(a))
            elif b.choice:
                found = all(self._two(a, way, depth) for way in self._ways_of(b))
            else:
                found = self._excludes(a, b, depth) and self._excludes(b, a, depth)
            self._found[a, b, depth] = found
        return found

    def _ways_of(self, facts: _Facts) -> list[_Facts | bool]:
        """Return the parts of `anyOf` or `oneOf`, each with the keywords beside it."""
        if facts not in self._ways:
            rest = {k: v for k, v in facts.schema.items() if k != facts.choice}
            parts = (part for part in facts.schema[facts.choice] if part is not False)
            ways = [self._of({"allOf": [rest, part]}) for part in parts]
            self._ways[facts] = [*dict.fromkeys(ways)]
        return self._ways[facts]

    def _excludes(self, writer: _Facts, other: _Facts, depth: int) -> bool:
        """Return whether no output of a grammar of `writer` is valid for the other schema."""
        if writer.values is not None and other.values is not None:
            spend(len(writer.values) // 16)
            return writer.values.isdisjoint(other.values)
        if not writer.written & other.types:
            return True
        if not writer.is_object or "enum" in other.schema or depth >= _DEPTH:
            return False
        spend((len(writer.named) + len(other.named)) // 16)
        if (
            writer.rest is False or (writer.named and writer.rest is None)
        ) and other.required - writer.named.keys() - writer.required:
            return True  # the other schema requires a property that is never written
        if other.rest is False and writer.required - other.named.keys():
            return True  # the other schema forbids a property that is always written
        shared = writer.named.keys() & other.named.keys() & (writer.required | other.required)
        return any(
            self._two(self._of(writer.named[name]), self._of(other.named[name]), depth + 1)
            for name in sorted(shared)
        )


def _differ(facts: Sequence[_Facts | bool]) -> bool:
    """Return whether all schemas have an enum, and no value is in two of them."""
    values = [one.values for one in facts if isinstance(one, _Facts) and one.values is not None]
    n_values = sum(map(len, values))
    return len(values) == len(facts) and n_values == len(frozenset[str]().union(*values))
