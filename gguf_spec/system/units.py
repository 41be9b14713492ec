"""Sizes in bytes, as texts."""

from __future__ import annotations

import re

_MIB, _GIB = 1 << 20, 1 << 30
# Unit of a size in lower case -> its bytes. Units without "i" are decimal if they end with "b".
_UNITS = {"b": 1} | {
    f"{letter}{end}": (1000 if end == "b" else 1024) ** power
    for power, letter in enumerate("kmgt", 1)
    for end in ("", "b", "ib")
}


def format_bytes(n_bytes: float) -> str:
    """Format a number of bytes for display, in binary units: `2.6 MiB`, `120 MiB`, `1.1 GiB`."""
    if n_bytes >= _GIB:
        return f"{n_bytes / _GIB:,.1f} GiB"
    return f"{n_bytes / _MIB:,.{0 if n_bytes >= 10 * _MIB else 1}f} MiB"


def parse_bytes(text: str) -> int:
    """Return the bytes of a size such as `500MB`, `1.5 GiB`, `2G` or `0`.

    Raises:
        ValueError: It is not a size. A number above 0 needs a unit.
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]*)", text.strip().lower())
    if not found or (found[2] and found[2] not in _UNITS):
        raise ValueError(text)
    number = float(found[1])
    if number and not found[2]:
        raise ValueError(text)
    return int(number * _UNITS.get(found[2], 1))
