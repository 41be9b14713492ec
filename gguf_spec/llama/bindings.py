"""llama.cpp's C functions, as `C`, and the files of its library.

Importing them from here sets the spin count first.
"""

from collections.abc import Iterable
from pathlib import Path

from .openmp import spin_count_set

with spin_count_set():
    from llama_cpp import llama_cpp as C

__all__ = ["LIBRARY_FOLDER", "C", "identities", "llama_parts"]
# the folder of llama.cpp's shared libraries
LIBRARY_FOLDER = Path(C._base_path).absolute()


def identities(files: Iterable[Path]) -> list[str]:
    """Return the paths of files with their sizes and times."""
    stats = [(path, path.stat()) for path in files]
    return [f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats]


def llama_parts() -> list[str]:
    """Return the identity of the llama.cpp build: its shared libraries, their sizes and times."""
    return identities(sorted(path for path in LIBRARY_FOLDER.iterdir() if path.is_file()))
