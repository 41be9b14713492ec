"""Check the kernels for ARM in emulation, beside the ready-made llama.cpp for Linux on ARM.

    .venv/bin/python scripts/checks/arm.py [--folder FOLDER] [--builds dotprod,i8mm,sve256]
    .venv/bin/python scripts/checks/arm.py --whole [--builds dotprod,i8mm,without]

For each build of llama.cpp all types, plain and repacked, and attention with each cache: rows of passes over 1 to 33 rows have the bits of single rows,
with 1 to 4 threads and beside other rows; these are near those of an exact reference and of llama.cpp, and have its bits for repacked Q4_0 and Q8_0. Some
planted mistakes must be found. It needs g++-aarch64-linux-gnu and qemu-user, and npm unless FOLDER has the libraries; without them it is skipped.
It takes some minutes.

With --whole, the product in a Debian for ARM, which is kept in the cache: our wheel with its kernels, and llama-cpp-python's, as a release has them, and all
packages are installed by pip; then the self-test, `doctor`, texts with and without drafts, `verify`, a server and saved sessions run on each processor
(arm_product.py). The self-test and `verify` must find planted mistakes. It needs root, mmdebstrap and qemu-user-static, too, and takes about an hour.

Nothing here runs on an ARM processor.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "build"))

import _llama_wheel  # noqa: E402 -- found by the path set above
import build_kernels  # noqa: E402 -- found by the path set above
import ready_made  # noqa: E402 -- found by the path set above
import wheels  # noqa: E402 -- found by the path set above

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
    ("vmulq_n_f32(scale, numbers[r % 4])", "vmulq_n_f32(scale, numbers[0])", "dotprod", "q5_1"),
    ("? 8 : 6, 0}, x);", "? 8 : 7, 0}, x);", "dotprod", "q5_0"),
    ("vdupq_n_s8((int8_t) (-2 * j))", "vdupq_n_s8((int8_t) (-j))", "dotprod", "q5_K"),
    ("four[r / 4]->sums[r % 4][i]", "four[r / 4]->sums[0][i]", "dotprod", "q4_K"),
    ("rows + r0 / 4 * bytes_of_4, out", "rows + r0 / 8 * bytes_of_4, out", "dotprod", "repacked q6_K"),
    ("both(right<-2>(h[j]), 48)", "both(right<-4>(h[j]), 48)", "dotprod", "q6_K"),
    ("vmmlaq_s32(t, y, w[g][3])", "vmmlaq_s32(t, x, w[g][3])", "i8mm", "repacked q8_0"),
    ("r / 2 * 32 * G + r % 2 * 8", "r / 2 * 32 * G + (r + 1) % 2 * 8", "i8mm", "repacked q4_0"),
    ("(const Four32<T::minimum> *) rows + i * n_blocks", "(const Four32<T::minimum> *) rows + i % 3 * n_blocks", "i8mm", "repacked iq4_nl"),
    ("at.shorts({0, -16})", "at.shorts({0, -8})", "sve256", "repacked q4_0"),
    ("vmlaq_s32(sum[r + 1], t, scale23)", "vmlaq_s32(sum[r + 1], t, scale01)", "i8mm", "repacked q4_K"),
]  # fmt: skip


class Processor(NamedTuple):
    """A processor for the whole product, what its system says of it, and the own kernels that are to be in use there."""

    emulated: str
    features: str
    kernels: str


FEATURES = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
DOTPROD = f"{FEATURES} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"
PROCESSORS = {
    "dotprod": Processor("cortex-a76", DOTPROD, "neondot"),
    # as Graviton 4: where a processor has I8MM and no SVE, the ready-made llama.cpp takes its build with dot products
    "i8mm": Processor(NO_SVE, f"{DOTPROD} i8mm bf16 sve sve2", "neoni8mm"),
    "without": Processor("cortex-a72", FEATURES, ""),  # as a Raspberry Pi 4
}
# How the kernel starts programs for ARM: qemu is opened at once, so a folder that is the root needs none.
BINFMT = Path("/proc/sys/fs/binfmt_misc")
STARTS_ARM = (
    r":qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64-static:F"
)
# Enters a folder as the root, with its own mounts and processes, which end with it. Devices are files there, and nothing of this system is mounted.
ENTER = """
mount -t proc proc "$1/proc"
mount --bind "$1/opt/cpuinfo-$2" "$1/proc/cpuinfo"
exec chroot "$1" "${@:3}"
"""
DEVICES = {"null": (1, 3), "zero": (1, 5), "random": (1, 8), "urandom": (1, 9)}
IN_DEBIAN = "python3,python3-venv,libgomp1,libstdc++6,ca-certificates"
PIP = ("-m", "pip", "--disable-pip-version-check")


def missing(*more: tuple[str, str]) -> str:
    """Return what is missing for a check, or of more programs of packages; empty if nothing is."""
    return absent(((COMPILER, "g++-aarch64-linux-gnu"), (EMULATOR, "qemu-user"), *more))


def absent(programs: Iterable[tuple[str, str]]) -> str:
    """Return which of programs, with their packages, is missing; empty if none is."""
    for program, package in programs:
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


def kernels(work: Path, sources: Path = build_kernels.SOURCES, flags=(), which="all") -> Path:
    """Compile the kernels for ARM."""
    return build_kernels.build(work, which, sources, flags, [COMPILER])


def program(work: Path, compiler: Sequence[str] = (COMPILER,), name: str = "operations") -> Path:
    """Compile the program that computes operations."""
    path = work / name
    source = Path(__file__).with_name("operations.cpp")
    libraries = ["-ldl"] if path.suffix != ".exe" else []
    command = [*compiler, "-std=c++17", "-O2", str(source), "-o", str(path), *libraries]
    subprocess.run(command, check=True)
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


def plant(sources: Path, text: str, wrong: str, file: str = "neon.h") -> None:
    source = sources / file
    content = source.read_text(encoding="utf-8")
    if content.count(text) != 1:
        raise SystemExit(f"Error: {file} has not once: {text}")
    source.write_text(content.replace(text, wrong), encoding="utf-8")


def check_kernels(builds: dict[str, Build], args) -> int:
    """Check the kernels beside builds of llama.cpp; return how many checks failed."""
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
            plant(sources, text, wrong)
            (work / str(i)).mkdir()
            planted = kernels(work / str(i), sources, ["-O1"], builds[name].kernels)
            done = run(test, folder, builds[name], str(planted), "check", spoils)
            is_found = done.returncode == 1 and f"\n{spoils} " in "\n" + done.stdout
            n_bad += not is_found
            print(f"{'found' if is_found else 'NOT FOUND'}: {wrong}", flush=True)
    return n_bad


# ---- the whole product


@contextlib.contextmanager
def starting_arm():
    """Let the kernel start programs for ARM, in this block."""
    if (BINFMT / "qemu-aarch64").exists():
        yield
        return
    if not (BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "none", BINFMT], check=True)
    (BINFMT / "register").write_text(STARTS_ARM)
    try:
        yield
    finally:
        (BINFMT / "qemu-aarch64").write_text("-1")


def debian() -> Path:
    """Return the folder with a Debian for ARM, from the cache or made: some minutes."""
    root = _llama_wheel.cache_folder() / "debian-arm64"
    if not root.exists():
        part = root.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        command = ["mmdebstrap", "--skip=check/qemu", "--arch=arm64", "--variant=minbase"]
        subprocess.run([*command, f"--include={IN_DEBIAN}", "bookworm", part], check=True)
        part.rename(root)
    for name, (major, minor) in DEVICES.items():
        if not (root / "dev" / name).is_char_device():
            os.mknod(root / "dev" / name, 0o20666, os.makedev(major, minor))
    for name, one in PROCESSORS.items():
        text = "".join(f"processor\t: {i}\nFeatures\t: {one.features}\n\n" for i in range(2))
        (root / "opt" / f"cpuinfo-{name}").write_text(text)
    return root


def inside(root: Path, name: str, *words: str, **settings) -> subprocess.CompletedProcess:
    """Run a command in it, on a processor; what it prints is printed."""
    env = {"PATH": "/opt/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    env |= {"HOME": f"/root/{name}", "QEMU_CPU": PROCESSORS[name].emulated}
    enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-e", "-c", ENTER]
    command = [*enter, "enter", str(root), name, *words]
    return subprocess.run(
        command, env=env | settings, stdin=subprocess.DEVNULL, text=True, check=False
    )


def packages(folder: Path, work: Path) -> None:
    """Put all wheels into a folder: ours and llama-cpp-python's as a release has them for ARM, and those of PyPI."""
    pip, row = [sys.executable, *PIP], ready_made.BUILDS["linux-aarch64"]
    with (work / "log").open("wb") as log:
        (work / "libraries").mkdir()
        wheel = ready_made.assemble(
            work / "libraries", row, pip, _llama_wheel.call, _llama_wheel.say, log
        )
        shutil.copy(wheel, folder)
        auditor = wheels.Auditor(work / "auditwheel", log)
        source = Path(shutil.copytree(ROOT, work / "source", ignore=ignored))
        wheels.wheel_with_kernels("aarch64", source, folder, work, auditor, log)
    platforms = [f"--platform=manylinux_2_{n}_aarch64" for n in range(34, 16, -1)]
    command = [*pip, "download", "--only-binary=:all:", f"--constraint={_llama_wheel.CONSTRAINTS}"]
    command += [*platforms, "--platform=manylinux2014_aarch64", "--python-version=3.11"]
    command += [f"--find-links={folder}", f"--dest={folder}", "--quiet", "gguf-spec[server]"]
    subprocess.run(list(map(str, command)), check=True)


def ignored(folder: str, names: list[str]) -> set[str]:
    """Return what is not copied: what is not committed."""
    command = ["git", "-C", folder, "check-ignore", "--", *names]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
    return {".git", *found.splitlines()}


def install(root: Path, work: Path) -> None:
    """Install the wheels in a new environment there, as a user without a network does."""
    folder = root / "opt" / "wheels"
    for old in (folder, root / "opt" / "venv", *(root / "root").glob("*")):
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir()
    packages(folder, work)
    command = ("pip", "install", "--no-index", "--find-links=/opt/wheels", "gguf-spec[server]")
    for words in (("python3", "-m", "venv", "/opt/venv"), command):
        if inside(root, "dotprod", *words).returncode:
            raise SystemExit(f"Error: {' '.join(words)} failed.")
    shutil.copy(Path(__file__).with_name("arm_product.py"), root / "opt")


def whole(names: list[str], keep: bool) -> int:
    """Check the product on processors; return how many checks failed."""
    n_bad = 0
    root = debian()
    with tempfile.TemporaryDirectory() as name:
        if not keep:
            install(root, Path(name))
        shutil.copy(Path(__file__).with_name("arm_product.py"), root / "opt")
        for one in names:
            print(f"== {one}: {PROCESSORS[one].emulated}", flush=True)
            program = ("python3", "/opt/arm_product.py", PROCESSORS[one].kernels)
            n_bad += bool(inside(root, one, *program).returncode)
            for text, wrong, build, spoils in PLANTED:
                if build != one:
                    continue
                with tempfile.TemporaryDirectory(dir=name) as copy:
                    sources = Path(shutil.copytree(build_kernels.SOURCES, Path(copy) / "kernels"))
                    plant(sources, text, wrong)
                    kernels(root / "opt", sources, ["-O1"], PROCESSORS[one].kernels)
                planted = {"GGUF_SPEC_KERNELS_LIBRARY": f"/opt/{build_kernels.LIBRARY}"}
                n_bad += bool(
                    inside(root, one, *program, "--planted", spoils, **planted).returncode
                )
    return n_bad


def said(n_bad: int) -> int:
    print("All is right." if not n_bad else f"{n_bad} checks failed.")
    return int(n_bad > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="with the ready-made libraries")
    parser.add_argument(
        "--builds", help="some of dotprod,i8mm,sve256; with --whole dotprod,i8mm,without"
    )
    parser.add_argument("--whole", action="store_true", help="check the product")
    parser.add_argument("--again", action="store_true", help="the product that is installed there")
    parser.add_argument("--only", default="", help="check operations whose names contain this")
    args = parser.parse_args()
    wanted = args.builds.split(",") if args.builds else None
    if args.whole:
        reason = missing(
            ("mmdebstrap", "mmdebstrap"), ("qemu-aarch64-static", "qemu-user-static")
        ) or ("" if os.geteuid() == 0 else "root's rights are missing")
        if reason:
            print(f"Skipped: {reason}.")
            return 0
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(starting_arm())
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"Skipped: the kernel cannot start programs for ARM: {error}.")
                return 0
            return said(whole(wanted or [*PROCESSORS], args.again))
    builds = {name: BUILDS[name] for name in wanted or BUILDS}
    reason = missing() or ("" if args.folder or shutil.which("npm") else "npm is missing")
    if reason:
        print(f"Skipped: {reason}.")
        return 0
    return said(check_kernels(builds, args))


if __name__ == "__main__":
    sys.exit(main())
