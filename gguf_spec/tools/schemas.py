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
        ref = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(ref, str):
            return schema if isinstance(schema, Mapping) else {}
        schema = root
        for part in ref.split("/")[1:]:
            schema = schema.get(part) if isinstance(schema, Mapping) else None
    return {}


def property_schema(schema: Any, key: str) -> Any:
    """Return the schema of a property of an object; {} if the schema does not name it."""
    properties = resolved(schema, schema).get("properties")
    part = properties.get(key) if isinstance(properties, Mapping) else None
    return resolved(part, schema)


def types_of(schema: Any, root: Any) -> set[str]:
    """Return the JSON types that a schema allows; all of them if it names none."""
    schema = resolved(schema, root)
    kind = schema.get("type")
    if isinstance(kind, (str, list)):
        return {one for one in ([kind] if isinstance(kind, str) else kind) if isinstance(one, str)}
    for key in ("anyOf", "oneOf"):
        parts = schema.get(key)
        if isinstance(parts, list) and parts:
            return set().union(*(types_of(part, root) for part in parts))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        return {_type(value) for value in values}
    return {*_JSON_TYPES}


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
