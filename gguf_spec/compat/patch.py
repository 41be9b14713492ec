"""`llama_cpp.Llama` for packages that import it themselves."""

from __future__ import annotations

import sys
from types import ModuleType

import llama_cpp

from .llama import Llama

_Original = llama_cpp.Llama
_OWN = ("llama_cpp.", "gguf_spec.")  # modules that need the class they have
_places: list[tuple[ModuleType, str]] = []  # where ours stands in its place


def install() -> None:
    """Let every package of this process that asks `llama_cpp` for `Llama` get ours, and those that have it already too; twice does nothing more.

    LangChain's `ChatLlamaCpp` and `LlamaCpp` and LlamaIndex's `LlamaCPP` then run with speculation. llama-cpp-python itself stays as it is.
    """
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and not module.__name__.startswith(_OWN):
            _places.extend(
                (module, name) for name, value in vars(module).items() if value is _Original
            )
    for module, name in _places:
        setattr(module, name, Llama)


def uninstall() -> None:
    """Take back what `install` did. Objects that were made meanwhile stay what they are."""
    while _places:
        module, name = _places.pop()
        setattr(module, name, _Original)
