"""Calls of functions of ggml that llama-cpp-python does not wrap."""

from __future__ import annotations

import ctypes
from typing import Any

from .bindings import C


def call(name: str, *arguments: Any, result: Any = ctypes.c_void_p) -> Any:
    """Call a function of ggml; pointers are passed as numbers."""
    function = getattr(C._lib, name)
    function.restype = result
    given = [
        ctypes.c_void_p(one) if isinstance(one, int) and one >= 1 << 20 else one
        for one in arguments
    ]
    return function(*given)
