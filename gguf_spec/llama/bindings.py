"""llama.cpp's C functions, as `C`.

Importing them from here sets the spin count first.
"""

from .openmp import spin_count_set

with spin_count_set():
    from llama_cpp import llama_cpp as C

__all__ = ["C"]
