"""Hooks for PyInstaller, which finds them through the entry point group `pyinstaller40`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["hook_dirs"]


def hook_dirs() -> list[str]:
    """Return the folder of the hooks."""
    return [str(Path(__file__).parent)]
