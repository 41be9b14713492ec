"""Speculative decoding for quantised GGUF models.

Importing the package loads no module: each public name is imported on first use.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    from . import errors
    from .arguments import LoadOptions, RequestOptions
    from .edit import Edit, Hunk
    from .errors import (
        BusyError,
        ClosedError,
        GgufSpecError,
        ImageError,
        InvalidOptionError,
        LoadCancelledError,
        ModelError,
        ModelNotFoundError,
        NoEditError,
        NotDownloadedError,
        NotEnoughMemoryError,
        NotInstalledError,
        OptionTypeError,
        PromptTooLongError,
        SessionError,
        StoreError,
    )
    from .models import pull
    from .options import Sampling, Speculation
    from .results import (
        Answer,
        Chunk,
        Completion,
        Ended,
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

__version__ = "0.5.0"
__all__ = [
    "LLM",
    "Answer",
    "AsyncChat",
    "AsyncLLM",
    "AsyncStream",
    "BusyError",
    "Chat",
    "Chunk",
    "ClosedError",
    "Completion",
    "Edit",
    "Ended",
    "GgufSpecError",
    "Hunk",
    "ImageError",
    "InvalidOptionError",
    "LoadCancelledError",
    "LoadOptions",
    "ModelError",
    "ModelNotFoundError",
    "NoEditError",
    "NotDownloadedError",
    "NotEnoughMemoryError",
    "NotInstalledError",
    "OptionTypeError",
    "Part",
    "PassCounts",
    "PrefixMemory",
    "Progress",
    "PromptTooLongError",
    "RequestOptions",
    "Sampling",
    "ScoredOption",
    "SessionError",
    "SlotState",
    "Speculation",
    "Stats",
    "StoreError",
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
            "Answer",
            "Chunk",
            "Completion",
            "Ended",
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
    | {name: "errors" for name in __all__ if name.endswith("Error")}  # those that programs catch
    | {"Sampling": "options", "Speculation": "options"}
    | {"LoadOptions": "arguments", "RequestOptions": "arguments"}
)

if type(__spec__.loader).__name__ == "zipimporter":
    raise ImportError(
        "gguf-spec does not run from a zip archive, as its libraries and models must be files: "
        "unpack the archive, as shiv and pex do, or use PyInstaller"
    )


if not TYPE_CHECKING:  # for a type checker, a name that is not there is an error

    def __getattr__(name: str) -> object:
        if name == "errors":
            return import_module(".errors", __name__)
        if name in _HOME:
            return getattr(import_module(f".{_HOME[name]}", __name__), name)
        raise AttributeError(f"module 'gguf_spec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
