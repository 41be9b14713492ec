"""Conversion of the array and object keywords of JSON schemas to GBNF."""

from __future__ import annotations

import re
from typing import Any, Protocol

from .json_keywords import count, typed
from .json_pattern import QUOTED, literal, repeated
from .json_values import value_gbnf


class Builder(Protocol):
    """Protocol of the conversion that an array or an object is part of."""

    def visit(self, schema: Any) -> str:
        """Return the name of the rule for a schema."""

    def rule(self, body: str) -> str:
        """Return the name of the rule with this body."""


def _positions(schema: dict[str, Any]) -> tuple[list[Any], Any, int | None]:
    """Return the schemas of the first items, the schema of the others, and the most items."""
    old = isinstance(schema.get("items"), list)  # older form of prefixItems
    if old and "prefixItems" in schema:
        raise ValueError("two different prefixItems are not supported together")
    fixed = typed(schema["items"] if old else schema.get("prefixItems", []), list, "prefixItems")
    least, most = count(schema, "minItems"), count(schema, "maxItems")
    others = schema.get(
        "additionalItems" if old else "items", not fixed or (least or 0) > len(fixed)
    )
    n = next((i for i, item in enumerate(fixed) if item is False), len(fixed))
    if others is False or n < len(fixed):
        fixed, others, most = fixed[:n], False, n if most is None else min(n, most)
    return fixed[:most], others, most


def array(schema: dict[str, Any], build: Builder) -> str:
    """Return the name of the rule for the arrays of a schema."""
    fixed, others, most = _positions(schema)
    least = count(schema, "minItems")
    least = len(fixed) if least is None else least
    repeated(least, most)
    after, more = "", None if most is None else most - len(fixed)
    if others is not False and more != 0:
        item = build.visit(others)
        if fixed:
            after = f'("," space {item}){repeated(max(least - len(fixed), 0), more)}'
        else:
            times = repeated(max(least - 1, 0), None if more is None else more - 1)
            after = f'{item} ("," space {item}){times}'
            after = after if least else f"({after})?"
    for i, item_schema in reversed([*enumerate(fixed)]):
        comma = '"," space ' if i else ""
        after = f"{comma}{build.visit(item_schema)} {after}"
        after = after if i < least else build.rule(after) + "?"
    return build.rule(f'"[" space {after} "]" space')


def _other_key(names: list[str], at: int, build: Builder) -> str:
    """Return GBNF for the rest of a key that differs from all these names.

    Args:
        names: The names; they share their first `at` characters.
        at: Length of the common prefix, which is already written.
        build: The conversion.
    """
    whole, groups = any(len(name) == at for name in names), dict[str, list[str]]()
    for name in names:
        if len(name) > at:
            groups.setdefault(name[at], []).append(name)
    parts = [
        f"{literal(letter)} {_other_key(group, at + 1, build)}" for letter, group in groups.items()
    ]
    not_these = "".join(f"\\U{ord(letter):08X}" for letter in groups)
    parts.append(f"[{QUOTED}{not_these}] [{QUOTED}]*")
    return build.rule(f"({' | '.join(parts)}){'' if whole else '?'}")


def _other_pair(names: list[str], extra: Any, build: Builder) -> str:
    """Return GBNF for a pair whose key differs from all these names."""
    key = "string"
    if names:
        # a key with an escape differs from all other keys
        plain = [name for name in names if not re.search(r'["\\\x00-\x1f\ud800-\udfff]', name)]
        key = build.rule(rf'"\"" {_other_key(plain, 0, build)} "\"" space')
    return f'{key} ":" space {build.visit(extra)}'


def _check_sizes(schema: dict[str, Any], n_required: int, n_named: int, open_: bool) -> None:
    most = count(schema, "maxProperties")
    if (count(schema, "minProperties") or 0) > n_required:
        raise ValueError("minProperties above the number of required properties is not supported")
    if most is not None and (open_ or most < n_named):
        raise ValueError("maxProperties below the number of allowed properties is not supported")


def object_(schema: dict[str, Any], build: Builder) -> str:
    """Return the name of the rule for the objects of a schema."""
    properties = dict(typed(schema.get("properties", {}), dict, "properties"))
    required = dict.fromkeys(
        typed(name, str, "required") for name in typed(schema.get("required", []), list, "required")
    )
    extra = schema.get("additionalProperties", not properties)
    for name in required:
        properties.setdefault(name, schema.get("additionalProperties", True))
    pairs = {
        name: build.rule(f'{value_gbnf(name)} ":" space {build.visit(part)}')
        for name, part in properties.items()
        if part is not False
    }
    if required.keys() - pairs.keys():
        raise ValueError("a required property is forbidden")
    _check_sizes(schema, len(required), len(pairs), extra is not False)
    first = ' "," space '.join(pairs.pop(name) for name in required)
    more = _other_pair([*properties], extra, build) if extra is not False else None
    rest = build.rule(f'("," space {more})*') if more else ""
    starts = [f"{more} {rest}"] if more else []
    # each pair with its possible successors: the number of rules is the number of properties
    for pair in reversed(pairs.values()):
        starts.append(f"{pair} {rest}")
        rest = build.rule(f'("," space {pair})? {rest}')
    some = " | ".join(reversed(starts))
    inner = f"{first} {rest}" if first else f"({some})?" if some else ""
    return build.rule(f'"{{" space {inner} "}}" space')
