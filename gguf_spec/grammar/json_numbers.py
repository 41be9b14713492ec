"""Conversion of number bounds in JSON schemas to GBNF, digit by digit."""

from __future__ import annotations

import math
from typing import Any

# bounds with more digits are rejected
_MAX_DIGITS = 100


def _end(schema: dict[str, Any], name: str, sign: int) -> tuple[int, bool] | None:
    """Return the lower bound and whether it is exclusive; None without a bound.

    Args:
        schema: The schema.
        name: `minimum` or `maximum`.
        sign: -1 for `maximum`: the result is then the lower bound of the negated number.
    """
    ends: list[tuple[float, bool]] = []
    for key in (name, f"exclusive{name.capitalize()}"):
        bound = schema.get(key, 0)
        if (
            isinstance(bound, bool)
            or not isinstance(bound, int | float)
            or abs(bound) >= 10**_MAX_DIGITS
        ):
            raise ValueError(f"{key} is {str(bound)[:60]}, which is not supported")
        if key in schema:
            ends.append((sign * bound, key != name))
    if not ends:
        return None
    bound, open_ = max(ends)
    if schema["type"] == "integer":
        return (math.floor(bound) + 1 if open_ else math.ceil(bound)), False
    if bound != int(bound):
        raise ValueError(
            f"{name} or {key} of a number is not a whole number, which is not supported"
        )
    return int(bound), open_


def _between(low: str, high: str) -> list[str]:
    """Return GBNF alternatives for the integers from `low` to `high`, which have as many digits."""
    if low == high:
        return [f'"{low}"']
    n, at = len(low), next(i for i, (a, b) in enumerate(zip(low, high, strict=True)) if a != b)
    parts = [(low[:at], int(low[at]) + 1, int(high[at]) - 1)]
    for i in range(at + 1, n):
        parts += [(low[:i], int(low[i]) + 1, 9), (high[:i], 0, int(high[i]) - 1)]
    ways = [
        f'"{begun}" [{first}-{last}] [0-9]{{{n - len(begun) - 1}}}'
        for begun, first, last in parts
        if first <= last
    ]
    return [*ways, f'"{low}"', f'"{high}"']


def _naturals(low: int, high: int) -> str:
    """Return GBNF for the non-negative integers from `low` to `high`."""
    ways, whole = [], []
    for n in range(len(str(low)), len(str(high)) + 1):
        first, last = 10 ** (n - 1) if n > 1 else 0, 10**n - 1
        if low <= first and last <= high and n > 1:
            whole.append(n - 1)
        else:
            ways += _between(str(max(low, first)), str(min(high, last)))
    if whole:
        ways.append(f"[1-9] [0-9]{{{whole[0]},{whole[-1]}}}")
    return f"({' | '.join(ways)})"


def _magnitudes(low: tuple[int, bool], high: tuple[int, bool], n_digits: int) -> list[str]:
    """Return GBNF alternatives for non-negative numbers between two bounds.

    Args:
        low: Lower bound, and whether it is exclusive.
        high: Upper bound, and whether it is exclusive.
        n_digits: Largest number of digits after the decimal point.
    """
    (least, above), (most, below) = low, high
    if not n_digits:
        return [_naturals(least + above, most - below)] if least + above <= most - below else []
    ways = (
        [f'{_naturals(least + above, most - 1)} ("." [0-9]{{1,{n_digits}}})?']
        if least + above < most
        else []
    )
    if above and least < most:
        ways.append(f'"{least}." [0-9]{{0,{n_digits - 1}}} [1-9]')
    if not below and (least < most or (least == most and not above)):
        ways.append(f'"{most}" ("." "0"{{1,{n_digits}}})?')
    return ways


def number(schema: dict[str, Any]) -> str:
    """Return GBNF for the numbers of a schema.

    A number between bounds has at most 15 digits. Doubles distinguish all such numbers.
    """
    whole = schema["type"] == "integer"
    if "multipleOf" in schema and not (whole and schema["multipleOf"] == 1):
        raise ValueError("multipleOf is not supported")
    low, high = _end(schema, "minimum", 1), _end(schema, "maximum", -1)
    if low is None and high is None:
        return f'"-"? {"natural" if whole else "fraction"} space'
    if not whole and (low, high) in (((0, False), None), (None, (0, False))):
        return "fraction space" if low else '("0" | "-" fraction) space'
    n = max(len(str(abs(end[0]))) for end in (low, high) if end)
    far = 1 - 10 ** max(16, n), False
    # `most` is negated
    (least, above), (most, below) = low or far, high or far
    n_digits = 0 if whole else max(0, 15 - n)
    ways = _magnitudes((max(least, 0), above and least >= 0), (-most, below), n_digits)
    ways += [
        f'"-" {way}'
        for way in _magnitudes((max(most, 0), below or most <= 0), (-least, above), n_digits)
    ]
    if not ways:
        raise ValueError("no number is between minimum and maximum")
    return f"({' | '.join(ways)}) space"
