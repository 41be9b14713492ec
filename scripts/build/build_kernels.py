"""Compile gguf_spec/kernels/ into one library: entry.cpp once, products.cpp and attention.cpp once for each instruction set.

    python scripts/build/build_kernels.py [FOLDER]

Only the standard library. It needs a C++ compiler (CXX, else c++) and takes some seconds on all cores. scripts/run, scripts/test (_setup.py)
and `pip install .` (build_backend.py) call it; without the library, llama.cpp's own kernels are used.
"""

import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from _llama_wheel import compiler_command

SOURCES = Path(__file__).resolve().parents[2] / "gguf_spec" / "kernels"
LIBRARY = "libgguf_spec_kernels.so"
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]
SETS = {
    "avx2": AVX2,
    "avxvnni": [*AVX2, "-mavxvnni"],
    "avx512": AVX512,
    "avx512vnni": [*AVX512, "-mavx512vnni"],
}
# Sums are added as written: no contraction to fused operations but the explicit ones, so that bits do not depend on the compiler.
FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]


def inputs() -> list:
    """Return the contents of all files that decide what the library is; empty where it cannot be compiled."""
    if platform.machine().lower() not in ("x86_64", "amd64") or not sys.platform.startswith(
        "linux"
    ):
        return []
    files = sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")])
    return [path.read_text(encoding="utf-8") for path in [*files, Path(__file__)]] if files else []


def build(folder: Path, sources: Path = SOURCES, flags=()) -> Path:
    """Compile the library into `folder` and return its path."""
    compiler = compiler_command("CXX")
    with tempfile.TemporaryDirectory() as work:
        jobs = [("entry", "entry", [])]
        for name, options in SETS.items():
            defines = [f"-DISA={name}", f"-DKERNELS=kernels_{name}", f'-DISA_NAME="{name}"']
            jobs += [
                (part, f"{part}-{name}", [*options, *defines]) for part in ("products", "attention")
            ]

        def run(job) -> str:
            source, name, options = job
            target = f"{work}/{name}.o"
            subprocess.run(
                [
                    *compiler,
                    *FLAGS,
                    *flags,
                    *options,
                    "-c",
                    str(sources / f"{source}.cpp"),
                    "-o",
                    target,
                ],
                check=True,
            )
            return target

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(run, jobs))
        target = folder / LIBRARY
        part = target.with_suffix(".part")
        subprocess.run(
            [*compiler, "-shared", *flags, "-o", str(part), *objects, "-ldl"], check=True
        )
        part.replace(target)
    return target


def main(folder: Path) -> int:
    if not inputs():
        print("Error: the kernels are for Linux on x86-64 processors.", file=sys.stderr)
        return 1
    try:
        print(build(folder))
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"Error: the kernels cannot be compiled: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCES))
