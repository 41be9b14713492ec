"""JSON schemas of arguments: the parts of a schema that decide how a value is written and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .json_text import parse
from .source import NotACallError

_MAX_REFS = 20
_JSON_TYPES = {"string", "number", "integer", "boolean", "object", "array", "null"}
_WORDS = {"True": "true", "False": "false", "None": "null"}


def resolved(schema: Any, root: Any) -> Any:
    """Return a schema, or the one that its `$ref` names in `root`; {} if not found."""
    for _ in range(_MAX_REFS):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            return schema if isinstance(schema, Mapping) else {}
        schema = _target(schema["$ref"], root)
    return {}


def _target(ref: str, root: Any) -> Any:
    """Return the part of `root` that a reference names; None if not found."""
    schema = root
    for part in ref.split("/")[1:]:
        schema = schema.get(part) if isinstance(schema, Mapping) else None
    return schema


def property_schema(schema: Any, key: str) -> Any:
    """Return the schema of a property of an object; {} if the schema does not name it."""
    properties = resolved(schema, schema).get("properties")
    part = properties.get(key) if isinstance(properties, Mapping) else None
    return resolved(part, schema)


def types_of(schema: Any, root: Any) -> set[str]:
    """Return the JSON types that a schema allows; all of them if it names none."""
    found, todo, seen = set[str](), [schema], set[int]()
    while todo:
        schema = todo.pop()
        # Each part and each definition counts once, even if it contains itself.
        if id(schema) in seen:
            continue
        seen.add(id(schema))
        if not isinstance(schema, Mapping):
            found |= _JSON_TYPES
        elif isinstance(ref := schema.get("$ref"), str):
            todo.append(_target(ref, root))
        elif isinstance(kind := schema.get("type"), (str, list)):
            found |= {k for k in ([kind] if isinstance(kind, str) else kind) if isinstance(k, str)}
        elif parts := _items(schema.get("anyOf")) or _items(schema.get("oneOf")):
            todo += parts
        else:
            values = _items(schema.get("enum", [schema["const"]] if "const" in schema else None))
            found |= {*map(_type, values)} or _JSON_TYPES
    return found


def _items(value: Any) -> list[Any]:
    """Return a value if it is a list, and otherwise an empty list."""
    return value if isinstance(value, list) else []


def _type(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return "null" if value is None else kinds.get(type(value), "object")


def typed_value(text: str, schema: Any, root: Any) -> str:
    """Return a value that was written without a type as JSON text.

    It is the JSON value that the text is, if the schema allows its type, and otherwise the text.
    """
    core = text.strip()
    core = _WORDS.get(core, core)
    types = types_of(schema, root)
    try:
        kind = _type(parse(core))
    except NotACallError:
        kind = "string"
    allowed = types | ({"integer"} if "number" in types else set())
    if kind != "string" and (kind in allowed or "string" not in types):
        return core
    return json.dumps(text, ensure_ascii=False)
