"""Check the kernels for ARM in emulation, beside the ready-made llama.cpp for Linux on ARM.

    .venv/bin/python scripts/checks/arm.py [--folder FOLDER] [--builds dotprod,i8mm,sve256]

For each build of llama.cpp all types, plain and repacked, and attention with each cache: rows of passes over 1 to 33 rows have the bits of single rows,
with 1 to 4 threads and beside other rows; these are near those of an exact reference and of llama.cpp, and have its bits for repacked Q4_0 and Q8_0. Some
planted mistakes must be found. It needs g++-aarch64-linux-gnu and qemu-user, and npm unless FOLDER has the libraries; without them it is skipped.
It takes some minutes. Nothing here runs on an ARM processor.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "build"))

import build_kernels  # noqa: E402 -- found by the path set above
import ready_made  # noqa: E402 -- found by the path set above

COMPILER, EMULATOR, SYSROOT = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"
TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q2_K": 10}
TYPES |= {"q3_K": 11, "q4_K": 12, "q5_K": 13, "q6_K": 14, "iq4_nl": 20, "bf16": 30, "mxfp4": 39}


class Build(NamedTuple):
    """A build of llama.cpp, the processor that is emulated for it, and the own kernels beside it."""

    library: str
    processor: str
    kernels: str


NO_SVE = "max,sme=off,sve-default-vector-length=16"  # vectors of 128 bits, as most processors have
BUILDS = {
    "dotprod": Build("armv8.2_2", "cortex-a76", "neondot"),  # as a Raspberry Pi 5
    "i8mm": Build("armv8.6_1", NO_SVE, "neoni8mm"),
    # another layout of repacked Q4_0
    "sve256": Build("armv8.6_1", NO_SVE.replace("=16", "=32"), "neoni8mm"),
}
# Planted mistakes in neon.h: text, text with the mistake, the build that shows it, and what it spoils.
PLANTED = [
    ("vdotq_laneq_s32(s, w[g][3], x, 3)", "vdotq_laneq_s32(s, w[g][3], x, 2)", "dotprod", "repacked q4_0"),
    ("vpaddq_s32(s[2], s[3])", "vpaddq_s32(s[2], s[2])", "dotprod", "q4_1"),
    ("vmulq_n_f32(scale, row[r]->scale)", "vmulq_n_f32(scale, row[0]->scale)", "dotprod", "q5_1"),
    ("? 8 : 6, 0}, x);", "? 8 : 7, 0}, x);", "dotprod", "q5_0"),
    ("vdupq_n_s8((int8_t) (-2 * j))", "vdupq_n_s8((int8_t) (-j))", "dotprod", "q5_K"),
    ("rows[r].sums32 + 8 * b", "rows[0].sums32 + 8 * b", "dotprod", "q4_K"),
    ("both(right<-2>(h[j]), 48)", "both(right<-4>(h[j]), 48)", "dotprod", "q6_K"),
    ("vmmlaq_s32(t, codes_of(y), w[g][3])", "vmmlaq_s32(t, codes_of(x), w[g][3])", "i8mm", "repacked q8_0"),
    ("at.shorts({0, -16})", "at.shorts({0, -8})", "sve256", "repacked q4_0"),
    ("vmlaq_s32(sum[r + 1], t, scale23)", "vmlaq_s32(sum[r + 1], t, scale01)", "i8mm", "repacked q4_K"),
]  # fmt: skip


def missing() -> str:
    """Return what is missing for a check; empty if nothing is."""
    for program, package in ((COMPILER, "g++-aarch64-linux-gnu"), (EMULATOR, "qemu-user")):
        if not shutil.which(program):
            return f"{program} is missing (Debian: {package})"
    return ""


def libraries(work: Path) -> Path:
    """Fetch the ready-made libraries, check their sum, and return their folder."""
    build = ready_made.BUILDS["linux-aarch64"]
    subprocess.run(
        ["npm", "pack", "--silent", build["package"]],
        cwd=work,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (archive,) = work.glob("*.tgz")
    if ready_made.hashlib.sha256(archive.read_bytes()).hexdigest() != build["sha256"]:
        raise SystemExit(f"Error: {build['package']} has another sum than ready_made.py says.")
    with tarfile.open(archive) as opened:
        opened.extractall(work, filter="data")
    return work / build["folder"]


def kernels(work: Path, sources: Path = build_kernels.SOURCES, flags=()) -> Path:
    """Compile the kernels for ARM."""
    return build_kernels.build(work, "all", sources, flags, [COMPILER], "aarch64")


def program(work: Path) -> Path:
    """Compile the program that computes operations."""
    path = work / "arm_kernels"
    source = Path(__file__).with_name("arm_kernels.cpp")
    subprocess.run(
        [COMPILER, "-std=c++17", "-O2", str(source), "-o", str(path), "-ldl"], check=True
    )
    return path


def run(
    program: Path, folder: Path, build: Build, *words: str, options=()
) -> subprocess.CompletedProcess:
    """Run it with llama.cpp's libraries of a folder, in emulation."""
    llama, cpu = next(folder.glob("libllama.v*.so")), folder / f"libggml-cpu-{build.library}.so"
    path = f"LD_LIBRARY_PATH={folder}:{SYSROOT}/lib"
    command = [EMULATOR, "-L", SYSROOT, "-E", path, *options, str(program), str(llama), str(cpu)]
    env = os.environ | {"QEMU_CPU": build.processor}
    return subprocess.run([*command, *words], env=env, capture_output=True, text=True, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="with the ready-made libraries")
    parser.add_argument("--builds", default="dotprod,i8mm,sve256")
    parser.add_argument("--only", default="", help="check operations whose names contain this")
    args = parser.parse_args()
    builds = {name: BUILDS[name] for name in args.builds.split(",")}
    reason = missing() or ("" if args.folder or shutil.which("npm") else "npm is missing")
    if reason:
        print(f"Skipped: {reason}.")
        return 0
    n_bad = 0
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        folder, test = args.folder or libraries(work), program(work)
        library = kernels(work)
        for name, build in builds.items():
            done = run(test, folder, build, str(library), "check", args.only)
            is_right = not done.returncode and f"kernels: {build.kernels}\n" in done.stdout
            n_bad += not is_right
            print(done.stdout + ("" if is_right else done.stderr), flush=True)
            print(f"{name}: {'right' if is_right else 'WRONG'}", flush=True)
        for i, (text, wrong, name, spoils) in enumerate(PLANTED):
            if name not in builds:
                continue
            sources = Path(shutil.copytree(build_kernels.SOURCES, work / f"sources{i}"))
            source = sources / "neon.h"
            content = source.read_text(encoding="utf-8")
            if content.count(text) != 1:
                raise SystemExit(f"Error: neon.h has not once: {text}")
            source.write_text(content.replace(text, wrong), encoding="utf-8")
            (work / str(i)).mkdir()
            planted = kernels(work / str(i), sources, ["-O1"])
            done = run(test, folder, builds[name], str(planted), "check", spoils)
            is_found = done.returncode == 1 and f"\n{spoils} " in "\n" + done.stdout
            n_bad += not is_found
            print(f"{'found' if is_found else 'NOT FOUND'}: {wrong}", flush=True)
    print("All is right." if not n_bad else f"{n_bad} checks failed.")
    return int(n_bad > 0)


if __name__ == "__main__":
    sys.exit(main())
