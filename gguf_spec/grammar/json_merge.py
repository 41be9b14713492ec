"""Merge JSON schemas that apply together.

These are the parts of `allOf`, and a `$ref` and the keywords beside it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from .json_keywords import FORMATS, KEYWORDS, REFUSED, TESTS, kinds, same, typed, unique
from .work import spend


def reduced(schema: Any) -> dict[str, Any]:
    """Return a schema without keywords that are ignored or have no effect.

    `const` becomes an `enum`.
    """
    spend(1 + len(typed(schema, dict, "a schema")))
    kept = {k: v for k, v in schema.items() if k in KEYWORDS and v not in REFUSED.get(k, ())}
    if "format" in kept and not (isinstance(kept["format"], str) and kept["format"] in FORMATS):
        del kept["format"]
    if "const" in kept:
        values = [kept.pop("const")]
        kept["enum"] = _common(kept.get("enum", values), values)
    return kept


def _common(a: Any, b: Any) -> list[Any]:
    there = {same(value) for value in typed(b, list, "enum")}
    common = [value for value in typed(a, list, "enum") if same(value) in there]
    if not common:
        raise ValueError("two values of enum or const have nothing in common")
    return common


def _common_kinds(a: Any, b: Any) -> list[str]:
    a, b = (
        {*kinds, "integer"} if "number" in kinds else set(kinds) for kinds in (kinds(a), kinds(b))
    )
    common = a & b
    if not common:
        raise ValueError("two values of type have nothing in common")
    return sorted(common - {"integer"} if "number" in common else common)


def _both(a: Any, b: Any) -> Any:
    if isinstance(a, bool) or isinstance(b, bool):
        return False if a is False or b is False else b if a is True else a
    return a if same(a) == same(b) else {"allOf": [a, b]}


# keyword -> function that merges two values
_COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    **{key: min if test in (operator.le, operator.lt) else max for key, test in TESTS.items()},
    "type": _common_kinds,
    "enum": _common,
    "items": _both,
    "additionalItems": _both,
    "required": lambda a, b: typed(a, list, "required") + typed(b, list, "required"),
    "allOf": lambda a, b: unique(typed(a, list, "allOf") + typed(b, list, "allOf")),
}


def merged(a: Any, b: Any) -> Any:
    """Return one schema that is equivalent to two schemas together.

    Raises:
        ValueError: They cannot be merged.
    """
    if isinstance(a, bool) or isinstance(b, bool):
        return _both(a, b)
    a, b = reduced(a), reduced(b)
    both = {**a, **b}
    tuples = [
        {k: s[k] for k in ("items", "prefixItems", "additionalItems") if k in s} for s in (a, b)
    ]
    if (
        all(tuples)
        and ("prefixItems" in both or any(isinstance(s.get("items"), list) for s in (a, b)))
        and same(tuples[0]) != same(tuples[1])
    ):
        raise ValueError("two different prefixItems are not supported together")
    for key in a.keys() & b.keys() - {"properties", "additionalProperties"}:
        if same(a[key]) != same(b[key]):
            if key not in _COMBINED:
                raise ValueError(f"two different values of {key} are not supported together")
            both[key] = _COMBINED[key](a[key], b[key])
    (named_a, rest_a), (named_b, rest_b) = (
        (typed(s.get("properties", {}), dict, "properties"), s.get("additionalProperties", True))
        for s in (a, b)
    )
    spend(len(named_a) + len(named_b))
    if "additionalProperties" in both:
        both["additionalProperties"] = _both(rest_a, rest_b)
    # a named property of one schema may be an additional property of the other
    if "properties" in both:
        both["properties"] = {
            name: _both(named_a.get(name, rest_a), named_b.get(name, rest_b))
            for name in {**named_a, **named_b}
        }
    return both
