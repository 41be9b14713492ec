"""llama.cpp's C functions, as `C`. Modules import them from here, so that the spin count is set first."""

from .openmp import spin_count_set

with spin_count_set():
    from llama_cpp import llama_cpp as C

__all__ = ["C"]
