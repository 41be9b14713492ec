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

    from ._draft import DraftModel
    from ._install import install, uninstall
    from ._llama import Llama

__all__ = ["DraftModel", "Llama", "LlamaGrammar", "install", "uninstall"]
_HOME = {
    "DraftModel": "gguf_spec.compat._draft", "Llama": "gguf_spec.compat._llama", "LlamaGrammar": "llama_cpp",
    "install": "gguf_spec.compat._install", "uninstall": "gguf_spec.compat._install",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        import_module("gguf_spec._llama")  # sets the spin count before llama_cpp is loaded
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'gguf_spec.compat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
