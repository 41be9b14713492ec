"""Libraries of llama.cpp: which one has the kernels of this processor, and what is changed in it.

A build for one kind of processor has its CPU kernels in `libggml-cpu`. A ready-made build has a
library for each generation of processors (`libggml-cpu-haswell` and others), of which ggml loads
the fitting one. `libllama` is not linked with it, so its functions are looked up in it, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import struct
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# functions of ggml's CPU library that multiply with other roundings in wide passes than in narrow
# ones, and the one that tells of them
_LLAMAFILE = ("llamafile_sgemm", "ggml_cpu_has_llamafile")
# a function without a result on these processors: it returns 0
_ZERO = "ggml_cpu_has_wasm_simd"
_NAME = re.compile(r"(?:lib)?ggml-cpu-([\w.]+?)\.(?:so|dylib|dll)")
# a backend for another device than the CPU
_BACKEND = re.compile(r"(?:lib)?ggml-(?!base\b|cpu\b|blas\b|rpc\b)\w+[.\w]*\.(?:so|dylib|dll)")
# fields of an ELF file with 64 bits: of its header, of a segment, and of the dynamic section
_HEADER, _SEGMENT, _DYNAMIC = struct.Struct("<16s16xQ14xHH"), struct.Struct("<I4xQQ8xQQ8x"), "<qQ"
_PT_DYNAMIC = 2
_STRTAB, _SYMTAB, _JMPREL, _PLTRELSZ, _BIND_NOW, _FLAGS, _FLAGS_1 = 5, 6, 23, 2, 24, 30, 0x6FFFFFFB
# a symbol, and a relocation: the offset of its pointer, the number of its symbol
_SYMBOL_BYTES, _RELOCATION = 24, struct.Struct("<QII8x")


class _LibraryInfo(ctypes.Structure):
    """`Dl_info`: the file and the address of the library that an address belongs to."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("start", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


class CpuLibrary:
    """The library with llama.cpp's kernels for this processor.

    Attributes:
        variant: Generation of processors that it is made for; empty for a build for one machine.
    """

    path: Path

    def __init__(self, path: Path, start: int) -> None:
        """Take over a library that is loaded at the address `start`."""
        self.path, self._start = path, start
        self.functions: ctypes.CDLL = ctypes.CDLL(str(path))
        found = _NAME.match(path.name)
        self.variant: str = found[1] if found else ""

    @cache  # noqa: B019 -- one object in a process
    def _pointers(self) -> dict[str, int]:
        """Return the addresses of the pointers through which the library calls functions.

        They are empty where the system's format is unknown here, or the pointers are read-only.
        """
        if not sys.platform.startswith("linux") or struct.calcsize("P") != 8:
            return {}
        with self.path.open("rb") as file:
            ident, at, size, n = _HEADER.unpack(file.read(_HEADER.size))
            if ident[:6] != b"\x7fELF\x02\x01" or size != _SEGMENT.size:
                return {}
            file.seek(at)
            segments = [_SEGMENT.unpack(file.read(size)) for _ in range(n)]
            fields: dict[int, int] = {}
            for kind, offset, _, n_bytes, _ in segments:
                if kind == _PT_DYNAMIC:
                    file.seek(offset)
                    fields.update(struct.iter_unpack(_DYNAMIC, file.read(n_bytes)))
        if _BIND_NOW in fields or fields.get(_FLAGS, 0) & 8 or fields.get(_FLAGS_1, 0) & 1:
            return {}
        relocations = ctypes.string_at(self._start + fields[_JMPREL], fields[_PLTRELSZ])
        names = self._start + fields[_STRTAB]
        found = {}
        for offset, _, symbol in _RELOCATION.iter_unpack(relocations):
            entry = self._start + fields[_SYMTAB] + symbol * _SYMBOL_BYTES
            name = ctypes.string_at(names + ctypes.c_uint32.from_address(entry).value)
            found[name.decode(errors="replace")] = self._start + offset
        return found

    @property
    def uses_openmp(self) -> bool:
        """Whether GNU OpenMP runs its threads."""
        return "GOMP_parallel" in self._pointers()

    def calls(self, names: Iterable[str]) -> bool:
        """Return whether all these functions can be replaced by `rebind`."""
        return all(name in self._pointers() for name in names)

    def rebind(self, name: str, function: Any) -> bool:
        """Let the library call another function, from now on; return whether it is possible.

        Args:
            name: The function that it calls now, of its own or of another library.
            function: A function of ctypes with the same arguments.
        """
        pointer = self._pointers().get(name)
        if pointer is None:
            return False
        address = ctypes.cast(function, ctypes.c_void_p).value
        ctypes.c_void_p.from_address(pointer).value = address
        return True

    def has(self, name: str) -> bool:
        """Return whether it offers a function by this name."""
        return hasattr(self.functions, name)

    def leave_out_llamafile(self) -> None:
        """Let matrix products round alike in passes of all widths.

        llamafile's products round differently from the product of a single row. A build can leave
        them out; in a ready-made one the function that offers them says that it takes none.
        """
        nothing = getattr(self.functions, _ZERO, None)
        if nothing is not None and self.calls(_LLAMAFILE):
            for name in _LLAMAFILE:
                self.rebind(name, nothing)


def library_folder() -> Path | None:
    """Return the folder of llama.cpp's libraries, without loading them."""
    package = find_spec("llama_cpp")
    if not (package and package.origin):
        return None
    return Path(os.environ.get("LLAMA_CPP_LIB_PATH") or Path(package.origin).parent / "lib")


def gpu_backends(folder: Path | None) -> list[Path]:
    """Return the libraries in a folder that are for GPUs, loaded or not."""
    if not (folder and folder.is_dir()):
        return []
    return sorted(one for one in folder.iterdir() if _BACKEND.fullmatch(one.name))


def load_own_libraries() -> None:
    """Load the libraries of llama-cpp-python by their paths, where others may have their names.

    A folder in `LD_LIBRARY_PATH` with another llama.cpp goes before the folder of a library that
    needs them, but not before what is loaded.
    """
    folder = library_folder()
    if not (os.environ.get("LD_LIBRARY_PATH") and folder):
        return
    for name in ("ggml-base", "ggml-cpu", "ggml", "llama"):
        for file in (f"lib{name}.so", f"lib{name}.so.0"):
            with contextlib.suppress(OSError):  # a build without it, or one that cannot be loaded
                ctypes.CDLL(str(Path(folder, file)))


def cpu_library(llama: Any, folder: Path) -> CpuLibrary | None:
    """Return the library with the CPU's kernels; None if it is unknown.

    Args:
        folder: That of llama.cpp's libraries.
    """
    if os.name == "nt":
        found = next(_on_windows(folder, ("ggml-cpu",)), None)
        return CpuLibrary(found, 0) if found else None
    registry, function = llama.ggml_backend_reg_by_name, llama.ggml_backend_reg_get_proc_address
    registry.restype = function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    cpu, place = registry(b"CPU"), _LibraryInfo()
    address = function(cpu, b"ggml_backend_set_n_threads") if cpu else None
    find = getattr(ctypes.CDLL(None), "dladdr", None)
    if find is None or not find(ctypes.c_void_p(address), ctypes.byref(place)):
        return None
    return CpuLibrary(Path(os.fsdecode(place.file)), place.start)


def _on_windows(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    """Yield the libraries in a folder, as MSVC or MinGW names them, that are there."""
    files = (folder / f"{prefix}{name}.dll" for name in names for prefix in ("", "lib"))
    return filter(Path.exists, files)


def libraries(llama: Any, folder: Path, cpu: CpuLibrary | None) -> Iterator[Any]:
    """Yield the loaded libraries in which functions are looked up, one after the other."""
    yield llama
    if os.name == "nt":  # there a library does not pass on the functions of those that it needs
        for path in _on_windows(folder, ("ggml", "ggml-base", "ggml-cpu")):
            yield ctypes.CDLL(str(path))
    elif cpu:
        yield cpu.functions
