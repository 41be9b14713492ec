"""The package of `plugins/` that this one uses where an option needs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import InvalidOptionError


def workers(option: str, value: object) -> Any:
    """Return the package `gguf_spec_workers`.

    Args:
        option: The option that needs it.

    Raises:
        InvalidOptionError: It is not installed.
    """
    try:
        return import_module("gguf_spec_workers")
    except ModuleNotFoundError as error:
        raise InvalidOptionError(
            option,
            value,
            hint="run pip install . plugins/gguf-spec-workers in a clone of gguf-spec.",
            message="workers need the package gguf-spec-workers, which is not installed.",
        ) from error
