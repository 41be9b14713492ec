"""In the place of llama-cpp-python: `Llama` instead of `llama_cpp.Llama`, and our drafters for those who keep that one.

    from gguf_spec.compat import Llama          # instead of: from llama_cpp import Llama

Packages that import it themselves, such as LangChain and LlamaIndex, get it after

    import gguf_spec.compat
    gguf_spec.compat.install()

Importing this changes nothing and loads nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llama_cpp import LlamaGrammar

    from .draft_model import DraftModel
    from .llama import Llama
    from .patch import install, uninstall

__all__ = ["DraftModel", "Llama", "LlamaGrammar", "install", "uninstall"]
_HOME = {
    "DraftModel": "gguf_spec.compat.draft_model", "Llama": "gguf_spec.compat.llama", "LlamaGrammar": "llama_cpp",
    "install": "gguf_spec.compat.patch", "uninstall": "gguf_spec.compat.patch",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        import_module("gguf_spec.llama.bindings")  # sets the spin count before llama_cpp is loaded
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'gguf_spec.compat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
