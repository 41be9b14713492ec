"""Make the files of a release in a folder: the sdist, our wheels, those of plugins/, those of llama-cpp-python, and SHA256SUMS.

    .venv/bin/python scripts/build/wheels.py [--out FOLDER] [--with-dependencies [VERSION ...]] [--try]

Ours is made three times: for Linux on x86-64 and on aarch64 with the kernels of all instruction sets, and for all else without kernels. The compiler for the kind of
processor that this one is not is fetched (ziglang) and removed. llama-cpp-python's is assembled
from ready-made libraries (ready_made.py), for each row of its table. So `pip install --find-links FOLDER gguf-spec` compiles nothing; with
--with-dependencies the folder has all other packages too, for `--no-index`. auditwheel names the oldest glibc for the platform of each wheel.
The same sources and compiler make the same bytes, in whatever folder. It needs a C++ compiler, the project's .venv, and pip's and npm's indexes.
"""

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from pathlib import Path

import build_kernels
import ready_made
from _llama_wheel import CONSTRAINTS, Problem, call, compiler_command, failure, fetch_zig, say

ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check"]
AUDITORS = ["auditwheel", "pyelftools", "packaging"]
TAG = re.compile(r'platform\s+tag:\s*"(\S+)"')
TALE = ["generate", "-m", "tales", "Once upon a time"]


def hatch(target: str, source: Path, out: Path, log, **env) -> Path:
    """Build the `sdist` or the `wheel` of a folder with sources, and return it."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", out]
    before = set(out.iterdir())
    if subprocess.run(
        command, cwd=source, env={**os.environ, **env}, stdout=log, stderr=log, check=False
    ).returncode:
        raise failure(f"building the {target}", log)
    (made,) = set(out.iterdir()) - before
    return made


class Auditor:
    """auditwheel, which pip fetches into a folder."""

    def __init__(self, folder: Path, log):
        self.folder = folder
        if call(
            [
                *PIP,
                "install",
                "--no-deps",
                "--no-compile",
                "--constraint",
                CONSTRAINTS,
                f"--target={folder}",
                *AUDITORS,
            ],
            log,
        ):
            raise failure("fetching auditwheel", log)

    def platform(self, wheel: Path) -> str:
        """Return the platform that the libraries in a wheel need: `manylinux_...`."""
        command = [sys.executable, "-m", "auditwheel", "show", wheel]
        env = {**os.environ, "PYTHONPATH": str(self.folder)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        found = TAG.search(" ".join(done.stdout.split()))
        if not found:
            raise Problem(
                f"auditwheel cannot tell the platform of {wheel.name}.",
                (done.stderr.strip().splitlines() or ["it said nothing"])[-1],
            )
        return found[1]


def our_files(out: Path, work: Path, auditor: Auditor, log) -> None:
    """Make the sdist, and from it our wheels and those of plugins/."""
    sdist = hatch("sdist", ROOT, out, log)
    with tarfile.open(sdist) as archive:
        archive.extractall(work)  # our own
    source = work / sdist.name[: -len(".tar.gz")]
    hatch("wheel", source, out, log)
    for plugin in sorted((source / "plugins").glob("*/pyproject.toml")):
        hatch("wheel", plugin.parent, out, log)
    for machine in ("x86_64", "aarch64"):
        wheel_with_kernels(machine, source, out, work, auditor, log)


def wheel_with_kernels(
    machine: str, source: Path, out: Path, work: Path, auditor: Auditor, log
) -> None:
    """Make our wheel with the kernels of all instruction sets, from unpacked sources, for Linux on a kind of processor."""
    is_here = sys.platform == "linux" and platform.machine() == machine
    part = work / f"compiler-{machine}"
    command = compiler_command("CXX") if is_here else fetch_zig(part, PIP, log, machine)
    os.environ["ZIG_GLOBAL_CACHE_DIR"] = str(part / "cache")
    say(
        f"Compiling the kernels ({', '.join(build_kernels.sets('all', machine))}) with {Path(command[0]).name}."
    )
    folder = source / "gguf_spec" / "kernels"
    build_kernels.build(folder, "all", folder, ["-s"], command)
    shutil.rmtree(part, ignore_errors=True)
    (work / machine).mkdir()
    settings = {"GGUF_SPEC_WHEEL_WITH_KERNELS": "1"}
    first = hatch(
        "wheel",
        source,
        work / machine,
        log,
        **settings,
        GGUF_SPEC_WHEEL_PLATFORM=f"linux_{machine}",
    )
    hatch("wheel", source, out, log, **settings, GGUF_SPEC_WHEEL_PLATFORM=auditor.platform(first))


def llama_wheels(out: Path, work: Path, auditor: Auditor, log) -> None:
    """Assemble the wheels of llama-cpp-python, one for each kind of machine."""
    builds = {name: row for name, row in ready_made.BUILDS.items() if "+" not in name}
    say(
        f"Fetching llama-cpp-python {ready_made.VERSION} (75 MB) and llama.cpp, ready made, for {' and '.join(builds)}."
    )
    try:
        npm = ready_made.npm_command(work, PIP, say, call, log)
        sdist = ready_made.fetch_sdist(work, PIP, call, log)
        for name, row in builds.items():
            (work / name).mkdir()
            libraries = ready_made.fetch_libraries(work / name, row, lambda: npm, PIP, call, log)
            wheel = ready_made.make_wheel(out, row, sdist, libraries)
            needed = auditor.platform(wheel) if "glibc" in row else row["tag"]
            if needed != row["tag"]:
                raise Problem(
                    f"{wheel.name} is for {row['tag']}, but its libraries need {needed}.",
                    "mend the row in scripts/build/ready_made.py.",
                )
    except ready_made.Unavailable as why:
        raise Problem(f"{why}.", f"the log says more: {log.name}") from None


def dependencies(out: Path, versions: list, log) -> None:
    """Download the wheels of all other packages, for Linux like here, for versions of Python (none: the running one)."""
    (ours,) = (one.name.split("-")[1] for one in out.glob("gguf_spec-*-any.whl"))
    for version in versions or [""]:
        options = [
            "--only-binary=:all:",
            "--constraint",
            CONSTRAINTS,
            "--find-links",
            out,
            "--dest",
            out,
            *ready_made.PIP_OPTIONS,
        ]
        options += ["--python-version", version] if version else []
        if call([*PIP, "download", *options, f"gguf-spec[server]=={ours}"], log):
            raise failure(f"downloading the packages for Python {version or 'here'}", log)


def write_sums(out: Path) -> None:
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(out.iterdir())
    ]
    (out / "SHA256SUMS").write_text("".join(lines), encoding="ascii")


def attempt(out: Path, is_complete: bool) -> None:
    """Install from the folder in a new environment, with an empty home and no other program on the PATH, and tell how long the first answer takes."""
    with tempfile.TemporaryDirectory() as work:
        home = Path(work)
        start = time.monotonic()
        venv.create(home / "venv", with_pip=True)
        inside = home / "venv" / "bin"
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("XDG_", "PYTHON", "GGUF_SPEC_"))
        }
        env.update(PATH=str(inside), HOME=work)
        index = ["--no-index"] if is_complete else ["--constraint", CONSTRAINTS]
        install = [
            inside / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--only-binary=:all:",
            *index,
            "--find-links",
            out.resolve(),
            "gguf-spec",
        ]
        tell = "from gguf_spec import load; from gguf_spec.llama import own_kernels as k; load('tales').close(); print(k.in_use().name or k.in_use().reason)"
        for command in (install, [inside / "gguf-spec", *TALE]):
            if subprocess.run(
                command, env=env, stdin=subprocess.DEVNULL, cwd=work, check=False
            ).returncode:
                raise Problem(
                    f"{Path(command[0]).name} {command[1]} failed in a new environment.",
                    "what it printed above says why.",
                )
        took = time.monotonic() - start
        used = subprocess.run(
            [inside / "python", "-c", tell],
            env=env,
            cwd=work,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        ).stdout.strip()
        say(f"First answer in a new environment after {took:.0f} s; own kernels: {used}.")
        if build_kernels.inputs("all") and used not in build_kernels.SETS:
            raise Problem("the kernels of the wheel are not in use.", "gguf-spec doctor says why.")


def check_sources() -> None:
    """Raise where the sdist would have files that are not committed."""
    if (ROOT / ".git").exists():
        command = ["git", "-C", ROOT, "status", "--porcelain"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        if done.stdout:
            raise Problem(
                f"{len(done.stdout.splitlines())} files are changed or new.",
                "commit them, move them away, or build in a fresh clone.",
            )


def make(out: Path, args) -> None:
    check_sources()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise Problem(f"{out} is not empty.", "name another folder: --out FOLDER.")
    log_path = Path(tempfile.gettempdir(), f"gguf-spec-wheels-{os.getpid()}.log")
    with tempfile.TemporaryDirectory() as folder, log_path.open("wb") as log:
        work = Path(folder)
        auditor = Auditor(work / "auditwheel", log)
        our_files(out, work, auditor, log)
        llama_wheels(out, work, auditor, log)
        if args.with_dependencies is not None:
            dependencies(out, args.with_dependencies, log)
    log_path.unlink()
    write_sums(out)
    for path in sorted(out.iterdir()):
        say(f"{path.stat().st_size / 1e6:7.1f} MB  {path.name}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "dist",
        help="an empty folder, or one to be made (default: dist)",
    )
    parser.add_argument(
        "--with-dependencies",
        nargs="*",
        metavar="VERSION",
        help="the wheels of all other packages too, for versions of Python such as 3.13",
    )
    parser.add_argument(
        "--try",
        dest="attempt",
        action="store_true",
        help="install them in a new environment, and generate a text",
    )
    args = parser.parse_args()
    try:
        make(args.out.resolve(), args)
        if args.attempt:
            attempt(args.out, args.with_dependencies is not None)
    except Problem as problem:
        say(f"Error: {problem}\nHint: {problem.hint}")
        return 1
    except (OSError, subprocess.CalledProcessError) as error:
        say(f"Error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
