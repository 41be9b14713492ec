"""Quantisation of a model with llama.cpp's quantiser, for example to make a draft model.

Returns data and prints nothing. The import alone loads only the table of types.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .types import TYPES

if TYPE_CHECKING:
    from .quantizer import Quantized, is_quantized, quantize

__all__ = ["TYPES", "Quantized", "is_quantized", "quantize"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(".quantizer", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
