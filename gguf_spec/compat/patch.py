"""Replacement of `llama_cpp.Llama` in packages that import it themselves."""

from __future__ import annotations

import sys
from types import ModuleType

import llama_cpp

from .llama import Llama

_Original = llama_cpp.Llama
# Prefixes of modules that are left unchanged, because they need the original class.
_OWN = ("llama_cpp.", "gguf_spec.")
# Replaced attributes: (module, name).
_places: list[tuple[ModuleType, str]] = []


def install() -> None:
    """Replace `llama_cpp.Llama` in this process by `gguf_spec.compat.Llama`.

    This also applies to modules that have already imported it. A second call has no further
    effect. LangChain's `ChatLlamaCpp` and `LlamaCpp` and LlamaIndex's `LlamaCPP` then run with
    speculation. The submodules of llama-cpp-python stay unchanged.
    """
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and not module.__name__.startswith(_OWN):
            _places.extend(
                (module, name) for name, value in vars(module).items() if value is _Original
            )
    for module, name in _places:
        setattr(module, name, Llama)


def uninstall() -> None:
    """Undo `install`. Objects that were created since then keep their class."""
    while _places:
        module, name = _places.pop()
        setattr(module, name, _Original)
