"""GBNF rules for arguments in tags."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..grammar.json_schema import to_rules
from .member_rules import check_keywords, members, sequence, unsupported
from .schemas import resolved, types_of
from .text_rules import Sym, until

if TYPE_CHECKING:
    from .notation import TagNotation

_ANY_KEY = "[a-zA-Z0-9_-]+"


def tag_rules(notation: TagNotation, schema: Any, prefix: str, sym: Sym) -> list[str]:
    """Return rules for the arguments of a tool; the first one is `<prefix>root`.

    Raises:
        InvalidOptionError: The schema is not supported.
    """
    rules: list[str] = []

    def add(name: str, body: str) -> str:
        rules.append(f"{prefix}{name} ::= {body}")
        return f"{prefix}{name}"

    end = notation.pad + notation.end
    # A text ends at its first closing tag.
    text = until({notation.end.strip(): sym(_after(notation))}, f"{prefix}text", sym, False)
    found, is_free = members(schema, schema)
    parts = []
    for i, (key, part, is_required) in enumerate(found):
        head = sym(notation.begin + key + notation.middle + notation.pad)
        value = _value(part, schema, f"{prefix}v{i}-", rules, end, sym)
        parts.append((f"{head} {value or prefix + 'text'}", is_required))
    root = sequence(parts, "", add, "rest")
    if is_free:
        head = f"{sym(notation.begin)} {_ANY_KEY} {sym(notation.middle + notation.pad)}"
        root = f"({head} {prefix}text)*"
    return [f"{prefix}root ::= {root or chr(34) * 2}", *rules, *text]


def _after(notation: TagNotation) -> str:
    return notation.end[len(notation.end.rstrip()) :]


def _value(schema: Any, root: Any, name: str, rules: list[str], end: str, sym: Sym) -> str:
    """Return GBNF for a value with its end; empty for any text."""
    schema = resolved(schema, root)
    types = types_of(schema, root)
    if "string" not in types:
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        rules += to_rules({**shared, **schema}, name)
        return f"{name}root {sym(end)}"
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is not None:
        check_keywords(schema, "type", "enum", "const")
        texts = [
            one if isinstance(one, str) else json.dumps(one)
            for one in (values if isinstance(values, list) else ())
        ]
        if not texts or any(end.strip() in text for text in texts):
            raise unsupported(schema, "enum is invalid")
        return f"({' | '.join(map(sym, texts))}) {sym(end)}"
    check_keywords(schema, "type", "anyOf", "oneOf")
    return ""
