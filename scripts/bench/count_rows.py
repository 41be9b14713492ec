"""Count the instructions of products with 1 to 16 rows on ARM processors, in emulation: llama.cpp's kernels and the own ones. They repeat to the digit.

    .venv/bin/python scripts/bench/count_rows.py FOLDER                    # FOLDER: `package/bins/linux-arm64` of npm's @node-llama-cpp/linux-arm64
    .venv/bin/python scripts/bench/count_rows.py FOLDER --types q4_0,q4_1 --rows 1,2,4

Prints instructions for each 32 elements of four columns, and in brackets how many single rows that is. A product has 1024 x 512 weights, and quantises
its rows. It needs g++-aarch64-linux-gnu and qemu-user; `scripts/checks/arm.py` says how the folder is made.

With `--model`, times that follow from the counts, where a core executes 2 (Cortex-A76) or 4 instructions a cycle and memory gives what is
measured elsewhere: a Raspberry Pi 5 at 2.4 GHz with 10 GB/s (llama.cpp issue 26484), and a core of the M class at 3.5 GHz with 60 GB/s, four cores
each. It is a model: nothing of it was measured on such a machine.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "checks"))
import arm  # noqa: E402 -- found by the path set above

K, COLUMNS, TIMES = 1024, 512, 2
# bytes of 32 weights of a type
BYTES = {"q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "q8_0": 34, "q2_K": 10.5, "q3_K": 13.75}
BYTES |= {"q4_K": 18, "q5_K": 22, "q6_K": 26.25, "iq4_nl": 18, "mxfp4": 17, "f16": 64, "bf16": 64}
# name, gigahertz, instructions a cycle, GB/s, cores
MACHINES = [("Pi 5", 2.4, 2, 10, 4), ("M class", 3.5, 4, 60, 4)]


def counted(run, kernels: str, kind: int, repacked: bool, rows: int) -> float:
    """Return the instructions of a product for each 32 elements of four columns; NaN if llama.cpp repacks no such weights."""
    each = []
    for times in (0, TIMES):
        done = run(kernels, "count", str(kind), str(int(repacked)), str(rows), str(times))
        if done.returncode == 3:
            return float("nan")
        found = re.search(r"^instructions: (\d+)$", done.stderr, re.MULTILINE)
        if done.returncode or not found:
            raise SystemExit(f"Error: {done.stdout}{done.stderr}")
        each.append(int(found[1]))
    return (each[1] - each[0]) / TIMES / (K / 32 * COLUMNS / 4)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--types", default="q4_0,q4_1,q8_0,q4_K,q6_K")
    parser.add_argument("--rows", default="1,2,3,4,6,8,16")
    parser.add_argument("--builds", default="dotprod,i8mm")
    parser.add_argument("--kernels", type=Path, help="a compiled library of the own kernels")
    parser.add_argument("--model", action="store_true")
    args = parser.parse_args()
    if missing := arm.missing():
        raise SystemExit(f"Error: {missing}.")
    rows = [int(one) for one in args.rows.split(",")]
    with tempfile.TemporaryDirectory() as work:
        program = arm.program(Path(work))
        kernels = args.kernels or arm.kernels(Path(work))
        plugin = Path(work, "count.so")
        source = Path(__file__).with_name("count_instructions.c")
        command = ["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(plugin)]
        subprocess.run(command, check=True)
        for build in args.builds.split(","):
            one = arm.BUILDS[build]

            def run(*words: str, one=one) -> subprocess.CompletedProcess:
                return arm.run(program, args.folder, one, *words, options=["-plugin", str(plugin)])

            for name in args.types.split(","):
                for repacked in (False, True):
                    for who, library in (("llama.cpp", "-"), ("own", str(kernels))):
                        counts = [counted(run, library, arm.TYPES[name], repacked, n) for n in rows]
                        if counts[0] != counts[0]:
                            continue
                        cells = " ".join(f"{one:6.1f} ({one / counts[0]:5.2f})" for one in counts)
                        what = f"{build} {'repacked ' if repacked else ''}{name}"
                        print(f"{what:24} {who:10} {cells}", flush=True)
                        if args.model:
                            print_model(name, rows, counts)
    return 0


def print_model(name: str, rows: list, counts: list) -> None:
    for machine, ghz, per_cycle, bandwidth, cores in MACHINES:
        memory = 4 * BYTES[name] / bandwidth * cores  # nanoseconds of a core, weights read once
        times = [max(memory, one / per_cycle / ghz) for one in counts]
        cells = " ".join(f"{n}: {one / times[0]:.2f}" for n, one in zip(rows, times, strict=True))
        print(f"{'':24} model of {machine}, weights read once: {cells}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
