"""Requests and batches on several machines with Ray; from the distribution `gguf-spec-ray`.

`application` serves a model by Ray Serve, and `Generate` answers the rows of a Ray Data set. Ray is
imported when one of them is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data import Generate
    from .serving import application, build

__all__ = ["Generate", "application", "build"]
_HOME = {"Generate": "data", "application": "serving", "build": "serving"}


if not TYPE_CHECKING:  # for a type checker, a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(import_module(f".{_HOME[name]}", __name__), name)
        raise AttributeError(f"module 'gguf_spec_ray' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
