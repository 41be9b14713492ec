"""JSON schemas of requests: how they are read, and what an answer does not fulfil of one.

A schema is not trusted. No reference is downloaded.
"""

from __future__ import annotations

import json
import math
import re
from itertools import islice
from typing import Any

# most reported faults of an answer
_MAX_FAULTS = 5


def read_schema(text: str) -> Any:
    """Return a schema from JSON text, with keywords of draft 4 and of OpenAPI 3.0 as today's.

    Raises:
        ValueError: It is not JSON.
    """
    return json.loads(text, parse_constant=_finite, parse_float=_finite, object_hook=_modern)


def _modern(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without `nullable` and without a boolean as an exclusive bound."""
    kind = schema.get("type")
    if schema.get("nullable") is True and isinstance(kind, str | list):
        schema = {k: v for k, v in schema.items() if k != "nullable"}
        schema["type"] = [*dict.fromkeys([*([kind] if isinstance(kind, str) else kind), "null"])]
        if isinstance(enum := schema.get("enum"), list) and None not in enum:
            schema["enum"] = [*enum, None]
    for name in ("minimum", "maximum"):
        key = f"exclusive{name.capitalize()}"
        if isinstance(schema.get(key), bool) and isinstance(schema.get(name, 0), int | float):
            schema = {**schema}
            is_open = schema.pop(key)
            if is_open and name in schema:
                schema[key] = schema.pop(name)
    return schema


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text:.60} is not JSON, or too large")
    return float(text)


def faults_of(text: str, schema: Any) -> list[str]:
    """Return what a JSON text does not fulfil of a schema, without the values of the text."""
    import jsonschema_rs

    def refuse(_: str) -> Any:
        raise ValueError("no schema is downloaded")

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ["the JSON text is not complete, and was not checked"]
    try:
        root = read_schema(schema if isinstance(schema, str) else json.dumps(schema))
        limits = jsonschema_rs.FancyRegexOptions(backtrack_limit=10_000, size_limit=1 << 20)
        check = jsonschema_rs.validator_for(
            root, validate_formats=True, retriever=refuse, pattern_options=limits
        )
        errors = [*islice(check.iter_errors(value), _MAX_FAULTS)]
    except Exception as error:  # of a schema that another program refuses, for many reasons
        return [f"the answer could not be checked ({type(error).__name__})"]
    return [
        on_a_line(f"#{''.join(f'/{step}' for step in error.schema_path)} is not fulfilled")[:200]
        for error in errors
    ]


def on_a_line(text: str) -> str:
    """Return a text of a request without control characters, for headers and logs."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", "?", text)
