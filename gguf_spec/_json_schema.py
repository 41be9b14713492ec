"""JSON schemas to grammars. A schema is not trusted: it may come with a request, and nothing that it names is fetched."""

from __future__ import annotations

import importlib
import json
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from ._automaton import Automaton
from ._gbnf import MAX_BYTES, MAX_DEPTH, NEVER, Ranges, others_than
from .errors import InvalidOptionError

_SPACE = '" "?'
_QUOTED = r'[^"\\\x00-\x1F]'  # a character that stands for itself in a JSON string
_BUILT_IN = {
    "space": _SPACE,
    "char": rf'{_QUOTED} | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{{4}})',
    "string": r'"\"" char* "\"" space',
    "natural": '"0" | [1-9] [0-9]{0,15}',
    "fraction": r'natural ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})?',
    "object": '"{" space (string ":" space value ("," space string ":" space value)*)? "}" space',
    "array": '"[" space (value ("," space value)*)? "]" space',
    "value": '(object | array | string | "-"? fraction space | "true" space | "false" space | "null" space)',
}
_DAY, _HOUR = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{3})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_FORMATS = {"date": _DAY, "time": _HOUR, "date-time": f"{_DAY}T{_HOUR}", "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"}
_KINDS = (
    ("object", {"properties", "required", "additionalProperties"}), ("array", {"items", "prefixItems", "minItems", "maxItems"}),
    ("string", {"pattern", "format", "minLength", "maxLength"}),
)  # fmt: skip
_SAYS_NOTHING = {"title", "description", "default", "examples", "$defs", "definitions", "$schema", "$id", "$comment"}
_MAX_SCHEMAS = 5000


def to_gbnf(schema: Mapping[str, Any] | str | bool) -> str:
    """Return a grammar of the JSON values that a schema allows. Nothing is fetched.

    Bounds of numbers are followed where they say the sign or leave few whole numbers; `not`, `if`, `uniqueItems`, `multipleOf` and
    `patternProperties` are not followed. Of an object's properties, the required ones come first.

    Args:
        schema: A JSON schema, as a mapping or as JSON; True for any value.

    Raises:
        InvalidOptionError: It is no JSON schema, or one that no grammar can follow.
    """
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        if len(text) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES >> 10} KiB")
        gbnf = _Converter(json.loads(text, parse_constant=_no_constant)).gbnf()
        Automaton(gbnf, int)
    except InvalidOptionError as error:
        raise _bad_schema(schema, error.hint) from error
    except RecursionError:
        raise _bad_schema(schema, "it is nested too deeply.") from None
    except (ValueError, TypeError, re.error, OverflowError, Warning) as error:
        raise _bad_schema(schema, f"{error}.") from error
    return gbnf


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _bad_schema(schema: object, hint: str) -> InvalidOptionError:
    try:
        shown = str(schema)[:77]
    except RecursionError:
        shown = "a deep schema"
    return InvalidOptionError("json_schema", shown, "a JSON schema that a grammar can follow", hint[:300])


def _literal(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return _literal(text if text.isprintable() else json.dumps(value))  # half surrogate pairs can only be escaped


def _count(schema: dict[str, Any], key: str) -> int | None:
    count = schema.get(key)
    if isinstance(count, float) and count.is_integer():
        count = int(count)
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < 10**9):
        raise ValueError(f"{key} is {count!r}")
    return count


def _times(least: int | None, most: int | None) -> str:
    if most is not None and most < (least or 0):
        raise ValueError(f"at least {least} and at most {most} cannot be")
    return f"{{{least or 0},{'' if most is None else most}}}"


def _typed(value: Any, kind: type, key: str) -> Any:
    if not isinstance(value, kind) or (key in ("enum", "anyOf", "oneOf", "allOf", "type") and not value):
        raise ValueError(f"{key} is {value!r:.60}")
    return value


def _merged(a: Any, b: Any) -> Any:
    """Return one schema for what two say; where they contradict each other the second one counts."""
    if a is True or b is True or a is False or b is False:
        return False if a is False or b is False else b if a is True else a
    both = {**_typed(a, dict, "a schema"), **_typed(b, dict, "a schema")}
    for key in both.keys() & a.keys() & b.keys():
        if key == "properties":
            both[key] = {**_typed(a[key], dict, key), **_typed(b[key], dict, key)}
        elif key == "required":
            both[key] = _typed(a[key], list, key) + _typed(b[key], list, key)
        elif key in ("allOf", "anyOf", "oneOf"):
            raise ValueError(f"{key} meets {key}")
    return both


class _Converter:
    """Rules for the parts of one schema."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._rules: dict[str, str] = {}  # what it stands for -> name
        self._refs: dict[str, str] = {}
        self._aliases: list[str] = []
        self._n_visited = 0

    def gbnf(self) -> str:
        root = self._visit(self._root)
        rules = [f"{name} ::= {body}" for name, body in _BUILT_IN.items()] + [f"{name} ::= {body}" for body, name in self._rules.items()]
        return "\n".join([f"root ::= {root}", *rules, *self._aliases]) + "\n"

    def _rule(self, body: str) -> str:
        return self._rules.setdefault(body, f"r{len(self._rules)}")

    def _visit(self, schema: Any) -> str:
        """Return the name of a rule, or of one in parentheses."""
        self._n_visited += 1
        if self._n_visited > _MAX_SCHEMAS:
            raise ValueError(f"it has more than {_MAX_SCHEMAS} parts")
        if schema is True:
            return "value"
        if schema is False:
            raise ValueError("a part of it allows nothing")
        if "$ref" in _typed(schema, dict, "a schema"):
            return self._ref(schema["$ref"])
        if "allOf" in schema:
            return self._visit(self._all(schema))
        for key in ("anyOf", "oneOf"):
            if key in schema:
                rest = {k: v for k, v in schema.items() if k != key}
                return self._either(self._with(rest, s) for s in _typed(schema[key], list, key) if s is not False)
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else _typed(schema["enum"], list, "enum")
            return self._rule(f"({' | '.join(map(_json, values))}) space")
        return self._of_type(schema)

    def _of_type(self, schema: dict[str, Any]) -> str:
        kind = schema.get("type") or next((kind for kind, keys in _KINDS if keys & schema.keys()), None)
        if isinstance(kind, list):
            return self._either({**schema, "type": k} for k in dict.fromkeys(_typed(k, str, "type") for k in kind))
        if kind is None and "type" not in schema:
            return "value"
        simple = {"null": '"null" space', "boolean": '("true" | "false") space'}
        if kind in simple:
            return self._rule(simple[kind])
        makers = {"object": self._object, "array": self._array, "string": self._string, "integer": self._number, "number": self._number}
        if kind not in makers:
            raise ValueError(f"there is no type {kind!r:.60}")
        return makers[kind](schema)

    def _either(self, schemas: Iterable[Any]) -> str:
        return self._rule(" | ".join([self._visit(s) for s in schemas]) or _typed([], list, "anyOf"))

    def _target(self, ref: Any) -> Any:
        target = self._root
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise ValueError(f"$ref {ref!r:.60} leads out of the schema")
        for part in ref.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(key) if isinstance(target, list) else key]
            except (KeyError, IndexError, TypeError):
                raise ValueError(f"$ref {ref!r:.60} leads nowhere") from None
        return target

    def _ref(self, ref: Any) -> str:
        target = self._target(ref)
        if ref not in self._refs:
            name = self._refs[ref] = f"ref{len(self._refs)}"  # named first, as it may hold itself
            self._aliases.append(f"{name} ::= {self._visit(target)}")
        return self._refs[ref]

    def _follow(self, schema: Any) -> Any:
        for _ in range(MAX_DEPTH):
            if not (isinstance(schema, dict) and "$ref" in schema):
                return schema
            schema = self._target(schema["$ref"])
        raise ValueError("its references go round in a circle")

    def _with(self, rest: Any, schema: Any) -> Any:
        """Merge a schema into what stands beside it; references are followed only where there is something to merge."""
        if isinstance(rest, dict) and rest.keys() <= _SAYS_NOTHING:
            return schema
        return _merged(self._follow(rest), self._follow(schema))

    def _all(self, schema: dict[str, Any]) -> Any:
        whole: Any = {k: v for k, v in schema.items() if k != "allOf"}
        for part in _typed(schema["allOf"], list, "allOf"):
            whole = self._with(whole, part)
        return whole

    def _number(self, schema: dict[str, Any]) -> str:
        low, high = schema.get("minimum"), schema.get("maximum")
        whole = schema["type"] == "integer"
        for bound in (low, high):
            _typed(0 if bound is None else bound, (int, float), "a bound")  # type: ignore[arg-type]
        if whole and low is not None and high is not None and high - low <= 256:
            return self._visit({"enum": list(range(-int(-low // 1), int(high // 1) + 1))})
        sign = "" if low is not None and low >= 0 else '"-"? '
        return self._rule(f"{sign}{'natural' if whole else 'fraction'} space")

    def _string(self, schema: dict[str, Any]) -> str:
        pattern = schema.get("pattern")
        if pattern is None and schema.get("format") in _FORMATS:
            pattern = f"^{_FORMATS[schema['format']]}$"
        if pattern is not None:
            return self._rule(rf'"\"" {_Pattern(_typed(pattern, str, "pattern")).gbnf} "\"" space')
        times = _times(_count(schema, "minLength"), _count(schema, "maxLength"))
        return "string" if times == "{0,}" else self._rule(rf'"\"" char{times} "\"" space')

    def _array(self, schema: dict[str, Any]) -> str:
        items = schema.get("items", True)
        fixed = items if isinstance(items, list) else schema.get("prefixItems")
        least, most = _count(schema, "minItems"), _count(schema, "maxItems")
        if fixed is not None:
            parts = [self._visit(s) for s in _typed(fixed, list, "prefixItems")]
            return self._rule('"[" space ' + ' "," space '.join(parts) + ' "]" space')
        if items is False or most == 0:
            _times(least, 0)
            return self._rule('"[" space "]" space')
        _times(least, most)
        times = _times(max((least or 0) - 1, 0), None if most is None else most - 1)
        item = self._visit(items)
        some = f'{item} ("," space {item}){times}'
        return self._rule('"[" space ' + (some if least else f"({some})?") + ' "]" space')

    def _object(self, schema: dict[str, Any]) -> str:
        properties = dict(_typed(schema.get("properties", {}), dict, "properties"))
        required = [_typed(name, str, "required") for name in _typed(schema.get("required", []), list, "required")]
        extra = schema.get("additionalProperties", not properties)
        properties |= {name: True if extra is False else extra for name in required if name not in properties}
        pairs = {name: self._rule(f'{_json(name)} space ":" space {self._visit(s)}') for name, s in properties.items() if s is not False}
        if set(required) - pairs.keys():
            raise ValueError("a required property is forbidden")
        first = ' "," space '.join(pairs.pop(name) for name in dict.fromkeys(required))
        more = f'string ":" space {self._visit(extra)}' if extra is not False else None
        rest = self._rule(f'("," space {more})*') if more else ""
        starts = [f"{more} {rest}"] if more else []
        for pair in reversed(pairs.values()):  # each with what may come after it, so that there are as many rules as properties
            starts.append(f"{pair} {rest}")
            rest = self._rule(f'("," space {pair})? {rest}')
        some = " | ".join(reversed(starts))
        return self._rule('"{" space ' + (f"{first} {rest}" if first else f"({some})?" if some else "") + ' "}" space')


class _Pattern:
    """A regular expression, as GBNF of what stands between the quotes of a JSON string."""

    _CLASSES = {  # noqa: RUF012
        "CATEGORY_DIGIT": ((48, 57),), "CATEGORY_WORD": ((48, 57), (65, 90), (95, 95), (97, 122)),
        "CATEGORY_SPACE": ((9, 13), (32, 32), (160, 160)),
    }  # fmt: skip

    def __init__(self, pattern: str) -> None:
        parser = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = parser.parse(pattern)  # what Python will read otherwise one day is no concern of the user's
        if parsed.state.flags & ~re.UNICODE:
            raise ValueError("a pattern sets flags")
        parts = [(str(op), arg) for op, arg in parsed]
        begins = parts[:1] == [("AT", parser.AT_BEGINNING)]
        ends = len(parts) > begins and parts[-1] == ("AT", parser.AT_END)
        inner = self._sequence(parts[begins : len(parts) - ends])
        self.gbnf = f"{'' if begins else 'char*'} {inner} {'' if ends else 'char*'}".strip()

    def _sequence(self, parts: Iterable[tuple[Any, Any]]) -> str:
        return " ".join(self._part(str(op), arg) for op, arg in parts) or '""'

    def _part(self, op: str, arg: Any) -> str:
        if op in ("LITERAL", "NOT_LITERAL"):
            return self._characters(((arg, arg),), op == "NOT_LITERAL")
        if op == "ANY":
            return self._characters(((10, 10), (13, 13)), True)
        if op == "IN":
            return self._set(arg)
        if op == "BRANCH":
            return f"({' | '.join(map(self._sequence, arg[1]))})"
        if op == "SUBPATTERN" and not (arg[1] or arg[2]):
            return f"({self._sequence(arg[3])})"
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
            return f"({self._sequence(arg[2])}){_times(arg[0], arg[1] if isinstance(arg[1], int) and arg[1] < 10**9 else None)}"
        raise ValueError(f"a pattern holds {op.lower()}, which no grammar can follow")

    def _set(self, members: list[tuple[Any, Any]]) -> str:
        ranges: list[tuple[int, int]] = []
        negated = False
        for op, arg in members:
            name = str(arg)
            if str(op) == "NEGATE":
                negated = True
            elif str(op) == "CATEGORY":
                ranges += others_than(self._CLASSES[name.replace("_NOT", "")]) if "_NOT" in name else self._CLASSES[name]
            else:
                ranges.append(arg if str(op) == "RANGE" else (arg, arg))
        return self._characters(tuple(ranges), negated)

    @staticmethod
    def _characters(ranges: Ranges, negated: bool) -> str:
        """Return what a JSON string writes for one of these characters."""
        chosen = ranges if negated else others_than(ranges)
        plain = others_than((*chosen, *NEVER, (0, 31), (34, 34), (92, 92)))
        ways = ["[" + "".join(f"\\U{low:08X}-\\U{high:08X}" for low, high in plain) + "]"] if plain else []
        others = others_than(chosen)
        for letter, code in zip('"\\bfnrt', (34, 92, 8, 12, 10, 13, 9), strict=True):
            if any(low <= code <= high for low, high in others):
                ways.append(_literal("\\" + letter))
        if not ways:
            raise ValueError("a pattern holds a character that no text holds")
        return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"
