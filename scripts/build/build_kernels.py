"""Compile gguf_spec/kernels/ into one library: entry.cpp once, products.cpp, attention.cpp and sampling.cpp once for each instruction set, tiles.cpp for AMX.

    python scripts/build/build_kernels.py [--sets best | here | all] [FOLDER]

Only the standard library. It needs a C++ compiler (CXX, else c++) and takes some seconds on all cores. The library is for the system and the processor
that the compiler is for: Linux, macOS, or Windows (MinGW, or clang for it). scripts/run, scripts/test (_setup.py) and `pip install .` (build_backend.py)
use it on Linux; without the library, llama.cpp's own kernels are used.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from _llama_wheel import compiler_command, cpu_features, first_line

SOURCES = Path(__file__).resolve().parents[2] / "gguf_spec" / "kernels"
# Names of libraries by system, as `sys.platform` has it; own_kernels.py looks for them.
LIBRARIES = {
    system: f"libgguf_spec_kernels.{end}"
    for system, end in (("linux", "so"), ("darwin", "dylib"), ("win32", "dll"))
}
LIBRARY = LIBRARIES.get(sys.platform, LIBRARIES["linux"])
# What compilers and zig's targets call the systems.
SYSTEMS = {
    "linux": "linux",
    "darwin": "darwin",
    "macos": "darwin",
    "mingw": "win32",
    "windows-gnu": "win32",
}
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
# A text with an instruction of AMX.
TILES = 'void f() { asm volatile("tdpbf16ps %tmm2, %tmm1, %tmm0"); }\n'
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


def is_possible(machine: str = "", system: str = "") -> bool:
    """Return whether there are kernels for a kind of machine."""
    is_x86 = (machine or platform.machine()).lower() in ("x86_64", "amd64")
    system = system or sys.platform
    return system in LIBRARIES and (is_x86 or (is_arm(machine) and system != "win32"))


def sets(which: str, machine: str = "", system: str = "linux") -> list:
    """Return names of instruction sets: the `best` one of this processor, those that it has (`here`), `all`, or the one that is named.

    On ARM the best ones are all that it has: llama.cpp decides. Tiles (AMX) are asked of Linux alone.
    """
    known = [name for name in SETS if (name in ARM) == is_arm(machine)]
    if system != "linux" and "amx" in known:
        known.remove("amx")
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
    """Return all but the compiler that decides what the library is; empty where the set-up compiles none: anywhere but on Linux."""
    if not (is_possible() and sys.platform == "linux"):
        return []
    files = sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")])
    texts = [path.read_text(encoding="utf-8") for path in [*files, Path(__file__)]]
    return [*texts, *sets(which)] if files else []


def target_of(compiler: list) -> tuple:
    """Return the processor and the system (`sys.platform`; as the compiler calls it where there are no kernels) that a compiler is for.

    A compiler that does not tell is for this machine.
    """
    if is_zig(compiler) and "-target" in compiler:
        told = compiler[compiler.index("-target") + 1]
    else:
        told = first_line([*compiler, "-dumpmachine"])[0]
    if not (triple := re.fullmatch(r"(\w+)-(\S+)", told)):
        return platform.machine(), sys.platform
    machine, rest = triple.groups()
    return machine, next((name for word, name in SYSTEMS.items() if word in rest), rest)


def is_zig(compiler: list) -> bool:
    return bool({"zig", "ziglang"} & {Path(compiler[0]).name, *compiler})


def knows(compiler: list, text: str, flags=()) -> bool:
    """Return whether a compiler, or its assembler, compiles a text with options."""
    with tempfile.TemporaryDirectory() as work:
        source = Path(work, "text.cpp")
        source.write_text(text)
        command = [*compiler, *flags, "-c", str(source), "-o", f"{work}/text.o"]
        return not subprocess.run(command, capture_output=True, check=False).returncode


def of_system(compiler: list, system: str) -> tuple:
    """Return the options of a compiler for a system: to compile, to link, and at the end of the link."""
    if system == "win32":
        # GCC leaves the stack of Windows at 16 bytes and moves vectors of 32 and 64 bytes to it as if they were aligned (bug 54412). Debian's GCC has a
        # patch: there the option changes nothing.
        unaligned = ["-Wa,-muse-unaligned-vector-move"]
        if "clang" in first_line([*compiler, "--version"])[1].lower():
            unaligned = []
        elif not knows(compiler, "", unaligned):
            raise OSError(
                "an assembler for Windows that knows -muse-unaligned-vector-move is needed (binutils 2.38)"
            )
        return (
            unaligned,
            ["-shared", "-O3", *(["-nostdlib++"] if is_zig(compiler) else ["-static"])],
            [],
        )
    if is_zig(compiler):  # it would compile a C++ library first, and checks for debugging
        link = ["-shared", "-O3", "-nostdlib++", "-fno-sanitize=all"]
    else:
        link = ["-shared", "-O3", *(["-Wl,--as-needed"] if system == "linux" else [])]
    if system == "darwin":
        link.append(f"-Wl,-install_name,@rpath/{LIBRARIES[system]}")
    return [], link, ["-ldl", "-lpthread"] if system == "linux" else []


def build(
    folder: Path, which: str = "here", sources: Path = SOURCES, flags=(), compiler=None
) -> Path:
    """Compile the library into `folder` and return its path. Where the sources lie does not change its bytes."""
    compiler = compiler or compiler_command("CXX")
    machine, system = target_of(compiler)
    if not is_possible(machine, system):
        raise OSError(f"there are none for {machine} on {system}, for which {compiler[0]} compiles")
    of_target, link, libraries = of_system(compiler, system)
    with tempfile.TemporaryDirectory() as work:
        jobs = []
        flags = [*of_target, *flags, f"-ffile-prefix-map={sources}=."]
        compiled = sets(which, machine, system)
        if "amx" in compiled and not knows(compiler, TILES):
            print("The compiler does not know AMX: products without tiles.", file=sys.stderr)
            compiled.remove("amx")
        for name in compiled:
            defines = [f"-DISA={name}", f"-DKERNELS=kernels_{name}", f'-DISA_NAME="{name}"']
            parts = ("attention", "products", "sampling") if name != "amx" else ("tiles",)
            options = list(SETS[name][0])
            if is_zig(compiler):
                # it knows no -march of ARM; GCC's generic one lacks what arm_neon.h asks for
                options = [one.replace("-march=armv8.2-a", "-mcpu=generic") for one in options]
            jobs += [(part, f"{part}-{name}", [*options, *defines]) for part in parts]
        rows = " ".join(f"SET({name})" for name in compiled if name != "amx")
        tiles = ["-DTILES"] if {"amx", "avx512vnni"} <= {*compiled} else []
        jobs.append(("entry", "entry", [f"-DSETS={rows}", *tiles]))
        jobs.sort(key=lambda job: LONGEST.index(job[0]))

        def run(job) -> str:
            source, name, options = job
            target = f"{work}/{name}.o"
            subprocess.run(
                [
                    *compiler,
                    *(one for one in FLAGS if one != "-fPIC" or system != "win32"),
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
        target = folder / LIBRARIES[system]
        linked = Path(work, target.name)  # some linkers write more files beside it
        subprocess.run(
            [*compiler, *link, *flags, "-o", str(linked), *objects, *libraries], check=True
        )
        part = target.with_suffix(f".{os.getpid()}.part")
        try:
            shutil.copy(linked, part)
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
    try:
        print(build(args.folder, args.sets))
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"Error: the kernels cannot be compiled: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
