"""Drop-in replacement for `llama_cpp.Llama`, and a `draft_model` for the original class.

    from gguf_spec_compat import Llama          # instead of: from llama_cpp import Llama

Packages that import `Llama` themselves, such as LangChain and LlamaIndex, use this class after

    import gguf_spec_compat
    gguf_spec_compat.install()

The import alone changes nothing and loads nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llama_cpp import LlamaGrammar

    from .draft_model import DraftModel
    from .llama import Llama, UnsupportedError, install, uninstall

__all__ = ["DraftModel", "Llama", "LlamaGrammar", "UnsupportedError", "install", "uninstall"]
# Public name -> module that defines it; imported on first access.
_HOME = {
    "DraftModel": "gguf_spec_compat.draft_model",
    "Llama": "gguf_spec_compat.llama",
    "LlamaGrammar": "llama_cpp",
    "UnsupportedError": "gguf_spec_compat.llama",
    "install": "gguf_spec_compat.llama",
    "uninstall": "gguf_spec_compat.llama",
}


if not TYPE_CHECKING:  # for a type checker, a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            # This module sets the spin count; it must be imported before llama_cpp is loaded.
            import_module("gguf_spec.llama.bindings")
            return getattr(import_module(_HOME[name]), name)
        raise AttributeError(f"module 'gguf_spec_compat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
