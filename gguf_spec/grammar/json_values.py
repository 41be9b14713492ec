"""JSON values of `enum` and `const`: their types, the keywords beside them, and their GBNF."""

from __future__ import annotations

import json
from typing import Any

from .json_keywords import KINDS, TESTS, kinds
from .json_pattern import literal


def is_type(value: Any, kind: str) -> bool:
    """Return whether a value has a JSON type."""
    if kind in ("integer", "number"):
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and (kind == "number" or value == int(value))
        )
    types = {"null": type(None), "boolean": bool, "string": str, "array": list, "object": dict}
    if kind not in types:
        raise ValueError(f"there is no type {kind!r:.60}")
    return isinstance(value, types[kind])


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Return whether a value of an enum is valid for the other keywords of the schema."""
    if "type" in schema and not any(is_type(value, kind) for kind in kinds(schema["type"])):
        return False
    for key in sorted(
        schema.keys() & next((keys for kind, keys in KINDS.items() if is_type(value, kind)), set())
    ):
        if key not in TESTS:
            raise ValueError(f"{key} is not supported beside enum or const")
        if not TESTS[key](value if is_type(value, "number") else len(value), schema[key]):
            return False
    return True


def value_gbnf(value: Any) -> str:
    """Return GBNF for a value, with optional white space."""
    if isinstance(value, dict):
        pairs = ' "," space '.join(
            f'{value_gbnf(key)} ":" space {value_gbnf(item)}' for key, item in value.items()
        )
        return f'"{{" space {pairs} "}}" space'
    if isinstance(value, list):
        items = ' "," space '.join(map(value_gbnf, value))
        return f'"[" space {items} "]" space'
    if isinstance(value, float) and value.is_integer() and abs(value) < 10**15:
        return f'"{int(value)}" ".0"? space'
    text = json.dumps(value, ensure_ascii=False)
    # lone surrogates can only be escaped
    return literal(text if text.isprintable() else json.dumps(value)) + " space"
