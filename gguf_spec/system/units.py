"""Formatting of sizes."""

from __future__ import annotations

_MIB, _GIB = 1 << 20, 1 << 30


def format_bytes(n_bytes: float) -> str:
    """Format a number of bytes for display, in binary units: `2.6 MiB`, `120 MiB`, `1.1 GiB`."""
    if n_bytes >= _GIB:
        return f"{n_bytes / _GIB:,.1f} GiB"
    return f"{n_bytes / _MIB:,.{0 if n_bytes >= 10 * _MIB else 1}f} MiB"
