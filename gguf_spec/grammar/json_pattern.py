"""Conversion of regular expressions in JSON schemas to GBNF for the inside of a JSON string."""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Iterable
from typing import Any, ClassVar

from .gbnf import NEVER, Ranges, others_than
from .work import spend

# inside of a character class: the characters that a JSON string may hold without an escape
QUOTED = r'^"\\\x00-\x1F'


def literal(text: str) -> str:
    """Return a text as a GBNF literal."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def repeated(least: int | None, most: int | None) -> str:
    """Return GBNF's repetition suffix; None means no limit.

    Raises:
        ValueError: `most` is less than `least`.
    """
    if most is not None and most < (least or 0):
        raise ValueError(f"at least {least} and at most {most} is impossible")
    return f"{{{least or 0},{'' if most is None else most}}}"


# Tokens of a pattern. `python`: unknown in ECMA 262 or with another meaning. `brace`: a literal.
# `name`: the start of a named group.
_WORDS = re.compile(
    r"""(?P<python>\\(?:[AZaNU]|0\d)|\(\?[P#]|\[\^?\])
    | (?P<brace>\{,)
    | (?P<name>\(\?<[A-Za-z_$][\w$]*>)
    | \\.
    | \[(?:[^\]\\]|\\.)*\]?
    | .""",
    re.VERBOSE | re.DOTALL,
)


def _as_python(pattern: str) -> str:
    """Return a regular expression of ECMA 262 in Python's syntax.

    Raises:
        ValueError: Python would interpret it in another way.
    """

    def word(match: re.Match[str]) -> str:
        escapes = re.findall(r"\\0\d|\\.", match[0]) if match[0][0] == "[" else []
        if match["python"] or any(re.fullmatch(r"\\([AZaNU]|0\d)", escape) for escape in escapes):
            raise ValueError(
                f"a pattern contains {match[0]:.20}, which has no or another meaning in ECMA 262"
            )
        return r"\{," if match["brace"] else "(" if match["name"] else match[0]

    return _WORDS.sub(word, pattern)


class Pattern:
    """A regular expression, converted to GBNF for the inside of a JSON string.

    Attributes:
        gbnf: The result.
    """

    # code points that "." does not match
    _LINE_ENDS: ClassVar = ((10, 10), (13, 13), (0x2028, 0x2029))
    # code points of the character classes; white space is that of ECMA 262, which differs from
    # Python's
    _CLASSES: ClassVar = {
        "CATEGORY_DIGIT": ((48, 57),),
        "CATEGORY_WORD": ((48, 57), (65, 90), (95, 95), (97, 122)),
        "CATEGORY_SPACE": (
            (9, 13),
            (32, 32),
            (160, 160),
            (0x1680, 0x1680),
            (0x2000, 0x200A),
            (0x2028, 0x2029),
            (0x202F, 0x202F),
            (0x205F, 0x205F),
            (0x3000, 0x3000),
            (0xFEFF, 0xFEFF),
        ),
    }

    def __init__(self, pattern: str) -> None:
        spend(2 * len(pattern) + len(pattern) ** 2 // 20_000)  # equal branches take quadratic time
        parser = importlib.import_module(
            "re._parser" if sys.version_info >= (3, 11) else "sre_parse"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # warnings about future changes of Python's syntax are not for the user
            parsed = parser.parse(_as_python(pattern))
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
            return self._characters(self._LINE_ENDS, True)
        if op == "IN":
            return self._set(arg)
        if op == "BRANCH":
            return f"({' | '.join(map(self._sequence, arg[1]))})"
        if op == "SUBPATTERN" and not (arg[1] or arg[2]):
            return f"({self._sequence(arg[3])})"
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
            most = arg[1] if isinstance(arg[1], int) and arg[1] < 10**9 else None
            return f"({self._sequence(arg[2])}){repeated(arg[0], most)}"
        raise ValueError(f"a pattern contains {op.lower()}, which is not supported")

    def _set(self, members: list[tuple[Any, Any]]) -> str:
        ranges: list[tuple[int, int]] = []
        negated = False
        for op, arg in members:
            name = str(arg)
            if str(op) == "NEGATE":
                negated = True
            elif str(op) == "CATEGORY":
                ranges += (
                    others_than(self._CLASSES[name.replace("_NOT", "")])
                    if "_NOT" in name
                    else self._CLASSES[name]
                )
            else:
                ranges.append(arg if str(op) == "RANGE" else (arg, arg))
        return self._characters(tuple(ranges), negated)

    @staticmethod
    def _characters(ranges: Ranges, negated: bool) -> str:
        """Return GBNF for the ways to write one of these characters in a JSON string."""
        spend(20 + 8 * len(ranges))
        chosen = ranges if negated else others_than(ranges)
        plain = others_than((*chosen, *NEVER, (0, 31), (34, 34), (92, 92)))
        ways = (
            ["[" + "".join(f"\\U{low:08X}-\\U{high:08X}" for low, high in plain) + "]"]
            if plain
            else []
        )
        others = others_than(chosen)
        for letter, code in zip('"\\bfnrt', (34, 92, 8, 12, 10, 13, 9), strict=True):
            if any(low <= code <= high for low, high in others):
                ways.append(literal("\\" + letter))
        for high in (0, 16):  # control characters without a letter escape
            codes = [
                code
                for code in range(high, high + 16)
                if code not in (8, 9, 10, 12, 13) and any(low <= code <= end for low, end in others)
            ]
            if codes:
                digits = "".join(dict.fromkeys(f"{code - high:x}{code - high:X}" for code in codes))
                ways.append(f"{literal(chr(92) + f'u00{high >> 4}')} [{digits}]")
        if not ways:
            raise ValueError("a pattern contains an invalid character")
        return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"
