"""Speculative decoding for quantised GGUF models.

Importing the package loads no module: each public name is imported on first use.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    from typing import Any

    from . import errors
    from .edit import Edit, Hunk
    from .models import pull
    from .options import Sampling, Speculation
    from .results import (
        Chunk,
        Completion,
        Part,
        PassCounts,
        PrefixMemory,
        Progress,
        ScoredOption,
        SlotState,
        Stats,
        TokenLogprob,
    )
    from .runtime.async_llm import AsyncChat, AsyncLLM, AsyncStream
    from .runtime.chat import Chat, Turn
    from .runtime.llm import LLM
    from .runtime.load import load
    from .runtime.stream import Stream
    from .system.subprogram import freeze_support

__version__ = "0.4.0"
__all__ = [
    "LLM",
    "AsyncChat",
    "AsyncLLM",
    "AsyncStream",
    "Chat",
    "Chunk",
    "Completion",
    "Edit",
    "Hunk",
    "Part",
    "PassCounts",
    "PrefixMemory",
    "Progress",
    "Sampling",
    "ScoredOption",
    "SlotState",
    "Speculation",
    "Stats",
    "Stream",
    "TokenLogprob",
    "Turn",
    "__version__",
    "errors",
    "freeze_support",
    "load",
    "pull",
]
_HOME = (
    {
        "LLM": "runtime.llm",
        "load": "runtime.load",
        "pull": "models",
        "freeze_support": "system.subprogram",
        "Edit": "edit",
        "Hunk": "edit",
        "Chat": "runtime.chat",
        "Turn": "runtime.chat",
        "Stream": "runtime.stream",
        "AsyncLLM": "runtime.async_llm",
        "AsyncChat": "runtime.async_llm",
        "AsyncStream": "runtime.async_llm",
    }
    | dict.fromkeys(
        [
            "Chunk",
            "Completion",
            "Part",
            "PassCounts",
            "PrefixMemory",
            "Progress",
            "ScoredOption",
            "SlotState",
            "Stats",
            "TokenLogprob",
        ],
        "results",
    )
    | {"Sampling": "options", "Speculation": "options"}
)

if type(__spec__.loader).__name__ == "zipimporter":
    raise ImportError(
        "gguf-spec does not run from a zip archive, as its libraries and models must be files: "
        "unpack the archive, as shiv and pex do, or use PyInstaller"
    )


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module(".errors", __name__)
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module 'gguf_spec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
