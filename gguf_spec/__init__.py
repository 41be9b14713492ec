"""gguf-spec: speculative decoding for quantised GGUF models. Importing it loads nothing; the names below are fetched when used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import errors
    from ._chat import Chat, Turn
    from ._llm import LLM
    from ._load import load, pull
    from ._stream import Stream
    from ._types import Chunk, Completion, Sampling, Speculation, Stats, TokenLogprob

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Chat",
    "Chunk",
    "Completion",
    "Sampling",
    "Speculation",
    "Stats",
    "Stream",
    "TokenLogprob",
    "Turn",
    "__version__",
    "errors",
    "load",
    "pull",
]
_HOME = {"LLM": "_llm", "load": "_load", "pull": "_load", "Chat": "_chat", "Turn": "_chat", "Stream": "_stream"} | dict.fromkeys(
    ["Chunk", "Completion", "Sampling", "Speculation", "Stats", "TokenLogprob"], "_types"
)


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module(".errors", __name__)
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module 'gguf_spec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
