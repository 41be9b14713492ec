"""Keywords of JSON schemas: which exist, to which types they apply, and checks of their values."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable
from typing import Any

from .work import spend

_ENCODER = json.JSONEncoder(sort_keys=True)
# patterns of dates and times
_LEAP = r"(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DAY = (
    r"(\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)"
    rf"|02-(0[1-9]|1\d|2[0-8]))|{_LEAP}-02-29)"
)
_HOUR = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
# supported values of `format` -> pattern
FORMATS = {
    "date": _DAY,
    "time": _HOUR,
    "date-time": f"{_DAY}T{_HOUR}",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
# type -> keywords that apply only to this type
KINDS = {
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "additionalItems", "minItems", "maxItems"},
    "string": {"pattern", "format", "minLength", "maxLength"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
}
# unsupported keyword -> values without an effect, with which it is ignored
REFUSED: dict[str, tuple[Any, ...]] = {
    "not": (False,),
    "if": (),
    "contains": (),
    "uniqueItems": (False,),
    "patternProperties": ({},),
    "propertyNames": (True, {}, {"type": "string"}),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "$dynamicRef": (),
    "$recursiveRef": (),
}
# all keywords that are not ignored
KEYWORDS = {"$ref", "allOf", "anyOf", "oneOf", "type", "enum", "const", *REFUSED}.union(
    *KINDS.values()
)
# keyword of a bound -> test of a value, or of its length, against the bound
TESTS = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
} | {
    f"{way}{what}": test
    for way, test in (("min", operator.ge), ("max", operator.le))
    for what in ("Length", "Items", "Properties")
}


def typed(value: Any, kind: type, key: str) -> Any:
    """Return the value of a keyword if it has the right type.

    Raises:
        ValueError: The value has another type, or is empty where this is invalid. The message
            contains the keyword.
    """
    if not isinstance(value, kind) or (
        key in ("enum", "anyOf", "oneOf", "allOf", "type") and not value
    ):
        raise ValueError(f"{key} is {value!r:.60}")
    return value


def count(schema: dict[str, Any], key: str) -> int | None:
    """Return the value of a keyword that counts; None if it is missing.

    Raises:
        ValueError: The value is no count, or 10^9 or more.
    """
    n = schema.get(key)
    if isinstance(n, float) and n.is_integer():
        n = int(n)
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or not 0 <= n < 10**9):
        raise ValueError(f"{key} is {n!r}")
    return n


def kinds(kind: Any) -> list[str]:
    """Return the type names of `type`, which is one name or a list."""
    return [
        typed(k, str, "type")
        for k in (typed(kind, list, "type") if isinstance(kind, list) else [kind])
    ]


def same(value: Any) -> str:
    """Return a text that is equal for equal JSON values.

    In Python 1 and True are equal.
    """
    text = _ENCODER.encode(int(value) if isinstance(value, float) and value.is_integer() else value)
    spend(3 + len(text) // 32)
    return text


def unique(values: Iterable[Any]) -> list[Any]:
    """Return JSON values, each once, in the order of their first places."""
    return [*{same(value): value for value in values}.values()]
