"""Compile gguf_spec/kernels/ into one library: entry.cpp once, products.cpp, attention.cpp and sampling.cpp once for each instruction set, tiles.cpp for AMX.

    python scripts/build/build_kernels.py [--sets best | here | all] [FOLDER]

Only the standard library. It needs a C++ compiler (CXX, else c++) and takes some seconds on all cores. scripts/run, scripts/test (_setup.py)
and `pip install .` (build_backend.py) use it; without the library, llama.cpp's own kernels are used.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from _llama_wheel import compiler_command, cpu_features

SOURCES = Path(__file__).resolve().parents[2] / "gguf_spec" / "kernels"
LIBRARY = "libgguf_spec_kernels.so"
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]
# Compiler options of the sets, and what a processor needs for them (names of Linux); the best set first.
SETS = {
    # the kernels of the next set, and tiles.cpp; its instructions are assembler
    "amx": (
        [*AVX512, "-mavx512vnni"],
        ["avx512_vnni", "avx512vl", "amx_tile", "amx_int8", "amx_bf16"],
    ),
    "avx512vnni": ([*AVX512, "-mavx512vnni"], ["avx512_vnni", "avx512vl"]),
    "avx512": (AVX512, ["avx512f", "avx512bw", "avx512dq", "avx512vl"]),
    "avxvnni": ([*AVX2, "-mavxvnni"], ["avx_vnni"]),
    "avx2": (AVX2, ["avx2", "fma", "f16c"]),
    # for ARM: which one is used depends on what llama.cpp was compiled for, too
    "neoni8mm": (["-march=armv8.2-a+dotprod+i8mm"], ["asimddp", "i8mm"]),
    "neondot": (["-march=armv8.2-a+dotprod"], ["asimddp"]),
}
ARM = ("neoni8mm", "neondot")
# The files; the one that takes longest to compile is first, so that no core waits for it at the end.
LONGEST = ["products", "tiles", "attention", "sampling", "entry"]
# Options of a single file. Comparisons may not raise exceptions (nobody looks): otherwise GCC leaves branches in its loops.
OF_FILE = {"sampling": ["-fno-trapping-math"]}
# Sums are added as written: no contraction to fused operations but the explicit ones, so that bits do not depend on the compiler.
FLAGS = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-rtti",
    "-ffp-contract=off",
    "-fno-builtin-powf",  # clang makes exp2f of it
    "-Wall",
    "-Wextra",
    "-Wno-unknown-warning-option",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]


def is_arm(machine: str = "") -> bool:
    return (machine or platform.machine()).lower() in ("aarch64", "arm64")


def is_possible() -> bool:
    """Return whether there are kernels for this kind of machine."""
    known = is_arm() or platform.machine().lower() in ("x86_64", "amd64")
    return known and sys.platform.startswith("linux")


def sets(which: str, machine: str = "") -> list:
    """Return names of instruction sets: the `best` one of this processor, those that it has (`here`), `all`, or the one that is named.

    On ARM the best ones are all that it has: llama.cpp decides.
    """
    known = [name for name in SETS if (name in ARM) == is_arm(machine)]
    if which in SETS or which == "all":
        return known if which == "all" else [which]
    flags = set(cpu_features())
    # where the system hides what the processor has, all are compiled
    here = [name for name in known if flags.issuperset(SETS[name][1])] or known
    is_hidden = here == known and "avx2" not in flags
    if which == "here" or is_arm(machine) or is_hidden:
        return here
    return here[: 2 if here[0] == "amx" else 1]


def inputs(which: str) -> list:
    """Return all but the compiler that decides what the library is; empty where there are no kernels."""
    if not is_possible():
        return []
    files = sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")])
    texts = [path.read_text(encoding="utf-8") for path in [*files, Path(__file__)]]
    return [*texts, *sets(which)] if files else []


def knows_tiles(compiler: list) -> bool:
    """Return whether a compiler, or its assembler, knows the instructions of AMX."""
    with tempfile.TemporaryDirectory() as work:
        source = Path(work, "tiles.cpp")
        source.write_text('void f() { asm volatile("tdpbf16ps %tmm2, %tmm1, %tmm0"); }\n')
        command = [*compiler, "-c", str(source), "-o", f"{work}/tiles.o"]
        return not subprocess.run(command, capture_output=True, check=False).returncode


def build(
    folder: Path, which: str = "here", sources: Path = SOURCES, flags=(), compiler=None, machine=""
) -> Path:
    """Compile the library into `folder` and return its path. Where the sources lie does not change its bytes.

    `machine`: the processor that the compiler is for, if it is not this one's kind.
    """
    compiler = compiler or compiler_command("CXX")
    link = ["-shared", "-O3", "-Wl,--as-needed"]
    is_zig = bool({"zig", "ziglang"} & {Path(compiler[0]).name, *compiler})
    if is_zig:  # it would compile a C++ library first, and checks for debugging
        link = ["-shared", "-O3", "-nostdlib++", "-fno-sanitize=all"]
    with tempfile.TemporaryDirectory() as work:
        jobs = []
        flags = [*flags, f"-ffile-prefix-map={sources}=."]
        for name in sets(which, machine):
            defines = [f"-DISA={name}", f"-DKERNELS=kernels_{name}", f'-DISA_NAME="{name}"']
            parts = ("attention", "products", "sampling") if name != "amx" else ("tiles",)
            if name == "amx" and not knows_tiles(compiler):
                print("The compiler does not know AMX: products without tiles.", file=sys.stderr)
                continue
            options = list(SETS[name][0])
            if (
                is_zig
            ):  # it knows no -march of ARM; GCC's generic one lacks what arm_neon.h asks for
                options = [one.replace("-march=armv8.2-a", "-mcpu=generic") for one in options]
            jobs += [(part, f"{part}-{name}", [*options, *defines]) for part in parts]
        jobs.append(("entry", "entry", []))
        jobs.sort(key=lambda job: LONGEST.index(job[0]))

        def run(job) -> str:
            source, name, options = job
            target = f"{work}/{name}.o"
            subprocess.run(
                [
                    *compiler,
                    *FLAGS,
                    *flags,
                    *options,
                    *OF_FILE.get(source, ()),
                    "-c",
                    f"{sources / source}.cpp",
                    "-o",
                    target,
                ],
                check=True,
            )
            return target

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(run, jobs))
        target = folder / LIBRARY
        part = target.with_suffix(f".{os.getpid()}.part")
        try:
            command = [*compiler, *link, *flags, "-o", str(part), *objects, "-ldl", "-lpthread"]
            subprocess.run(command, check=True)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    return target


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", choices=["best", "here", "all"], default="here")
    parser.add_argument("folder", nargs="?", type=Path, default=SOURCES)
    args = parser.parse_args()
    if not inputs(args.sets):
        print("Error: the kernels are for Linux on x86-64 and ARM processors.", file=sys.stderr)
        return 1
    try:
        print(build(args.folder, args.sets))
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"Error: the kernels cannot be compiled: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
