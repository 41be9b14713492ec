"""Check the kernels for Windows under wine, beside a llama.cpp that MinGW compiles.

    .venv/bin/python scripts/checks/wine.py [--folder FOLDER] [--only NAME]

For each instruction set of this processor all types, plain and repacked, and attention with each cache: what arm.py checks for ARM, by the same program
(operations.cpp). Two planted mistakes must be found. It needs g++-mingw-w64-x86-64, wine64 and cmake; without them it is skipped. Compiling takes some
minutes; FOLDER keeps llama.cpp's libraries for the next time.

Python is not run there, and nothing here runs on Windows itself.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import arm

COMPILER = "x86_64-w64-mingw32-g++-posix"
C_COMPILER = COMPILER.replace("g++", "gcc")
NEEDED = (
    (COMPILER, "g++-mingw-w64-x86-64"),
    ("wine", "wine64 and wine"),
    ("cmake", "cmake"),
)
RUNTIME = ("libwinpthread-1.dll", "libgcc_s_seh-1.dll", "libstdc++-6.dll")
LLAMA = ("ggml.dll", "ggml-base.dll", "ggml-cpu.dll")
# Vectors that do not fit the stack of Windows: see build_kernels.of_system.
UNALIGNED = "-Wa,-muse-unaligned-vector-move"
CMAKE = [
    "-DCMAKE_SYSTEM_NAME=Windows",
    "-DCMAKE_SYSTEM_PROCESSOR=AMD64",
    f"-DCMAKE_C_COMPILER={C_COMPILER}",
    f"-DCMAKE_CXX_COMPILER={COMPILER}",
    f"-DCMAKE_C_FLAGS={UNALIGNED}",
    f"-DCMAKE_CXX_FLAGS={UNALIGNED}",
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    *(f"-DGGML_{name}=OFF" for name in ("NATIVE", "LLAMAFILE", "OPENMP")),
    *(f"-DGGML_BUILD_{name}=OFF" for name in ("TESTS", "EXAMPLES")),
    *(f"-DGGML_{name}=ON" for name in ("AVX", "AVX2", "FMA", "F16C", "BMI2")),
]
# A piece of ggml-cpu.c that MinGW's headers of Debian 12 lack the names for: it keeps Windows from saving power.
TOO_NEW = "#if _WIN32_WINNT >= 0x0602\n        THREAD_POWER_THROTTLING_STATE t;"
# Planted mistakes: file, text, text with the mistake, and what it spoils.
PLANTED = [
    ("plain.h", "nibbles32(p + 6), bits32(p + 2)", "nibbles32(p + 6), bits32(p + 3)", "q5_0"),
    ("attention.cpp", "all(query[r * size + d])", "all(query[(d == 7 ? 0 : r) * size + d])", "cache of f16"),
]  # fmt: skip


def libraries(folder: Path, work: Path) -> None:
    """Compile llama.cpp's libraries for tensors and CPUs into a folder."""
    pip = [sys.executable, *arm.PIP]
    with (work / "log").open("wb") as log:
        sdist = arm.ready_made.fetch_sdist(work, pip, arm._llama_wheel.call, log)
        with tarfile.open(sdist) as archive:
            archive.extractall(work, filter="data")
        (source,) = work.glob("llama_cpp_python-*/vendor/llama.cpp/ggml")
        file = source / "src" / "ggml-cpu" / "ggml-cpu.c"
        text = file.read_text(encoding="utf-8")
        if text.count(TOO_NEW) != 1:
            raise SystemExit(f"Error: {file.name} has not once: {TOO_NEW}")
        file.write_text(text.replace(TOO_NEW, TOO_NEW.replace("_WIN32_WINNT >= 0x0602", "0")))
        (source / "ggml.pc.in").touch()  # the sdist lacks it
        for command in (
            ["cmake", "-S", source, "-B", work / "build", *CMAKE],
            ["cmake", "--build", work / "build", "--target", "ggml", "-j", str(os.cpu_count())],
        ):
            if arm._llama_wheel.call(list(map(str, command)), log):
                log.flush()
                print(Path(log.name).read_text(errors="replace")[-5000:], file=sys.stderr)
                raise SystemExit("Error: llama.cpp was not compiled.")
    folder.mkdir(parents=True, exist_ok=True)
    for name in LLAMA:
        shutil.copy(work / "build" / "bin" / name, folder)
    for name in RUNTIME:
        found = subprocess.run(
            [COMPILER, f"-print-file-name={name}"], stdout=subprocess.PIPE, text=True, check=True
        )
        shutil.copy(found.stdout.strip(), folder)


def run(work: Path, folder: Path, kernels: Path, name: str, only: str):
    """Run the program with an instruction set."""
    env = {"WINEPREFIX": str(work / "wine"), "WINEDEBUG": "-all", "WINEPATH": str(folder)}
    command = ["wine", str(work / "operations.exe"), *LLAMA[::2], str(kernels), "check", only]
    return subprocess.run(
        command, env=os.environ | env | {"SET": name}, cwd=folder, capture_output=True, text=True, check=False
    )  # fmt: skip


def check(folder: Path | None, only: str) -> int:
    """Check the kernels; return how many checks failed."""
    n_bad = 0
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        folder = folder or work / "llama"
        if not all((folder / one).exists() for one in (*LLAMA, *RUNTIME)):
            libraries(folder, work)
        arm.program(work, [COMPILER, "-static"], "operations.exe")
        library = arm.build_kernels.build(work, "here", compiler=[COMPILER])
        for one in arm.build_kernels.sets("here", "x86_64", "win32"):
            done = run(work, folder, library, one, only)
            is_right = not done.returncode and f"kernels: {one}\n" in done.stdout
            n_bad += not is_right
            print(done.stdout + ("" if is_right else done.stderr), flush=True)
            print(f"{one}: {'right' if is_right else 'WRONG'}", flush=True)
        for i, (file, text, wrong, spoils) in enumerate(PLANTED):
            sources = Path(shutil.copytree(arm.build_kernels.SOURCES, work / f"sources{i}"))
            arm.plant(sources, text, wrong, file)
            (work / str(i)).mkdir()
            planted = arm.build_kernels.build(work / str(i), "avx2", sources, ["-O1"], [COMPILER])
            done = run(work, folder, planted, "avx2", spoils)
            is_found = done.returncode == 1 and f"\n{spoils} " in "\n" + done.stdout
            n_bad += not is_found
            print(f"{'found' if is_found else 'NOT FOUND'}: {wrong}", flush=True)
    return n_bad


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="of llama.cpp's libraries; made if need be")
    parser.add_argument("--only", default="", help="check operations whose names begin so")
    args = parser.parse_args()
    if reason := arm.absent(NEEDED):
        print(f"Skipped: {reason}.")
        return 0
    return arm.said(check(args.folder and args.folder.absolute(), args.only))


if __name__ == "__main__":
    sys.exit(main())
