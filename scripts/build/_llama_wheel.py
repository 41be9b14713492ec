"""The wheel of llama-cpp-python for this machine, and the kernels: made once, and kept in the user's cache, where other clones find them.

The wheel is assembled from ready-made libraries of llama.cpp (ready_made.py). With GGUF_SPEC_BUILD_LLAMA=native, with CMAKE_ARGS, and where these
libraries cannot be had, it is compiled, with the flags that exact passes need: once for each kind of machine, compiler and flags. One wheel serves all
versions of Python. scripts/run, scripts/test (_setup.py) and `pip install .` (build_backend.py) use this.
Only the standard library; must be importable on Python 3.8, where _setup.py names the fault. Messages go to stderr.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
import zlib
from pathlib import Path

import gpu
import kept
import ready_made

IS_WINDOWS = sys.platform == "win32"
if IS_WINDOWS:
    import msvcrt
else:
    import fcntl

CONSTRAINTS = Path(__file__).resolve().parent / "constraints.txt"
OLDEST, NEWEST = (3, 10), (3, 14)

# Of llama.cpp's tools we use only libmtmd, which reads images, without its videos: half is left to compile. The wrapper forces LLAMA_BUILD_COMMON on
# in CMake's cache, where no argument reaches it; a plain variable of the same name, set by an included file, is stronger.
LEAN = ["-DMTMD_VIDEO=OFF"]
# llamafile's matrix products round differently from the dot product of a single row. Without them, and without flash attention, a row has the same
# bits in a pass of any width (docs/exactness.md).
EXACT = ["-DGGML_LLAMAFILE=OFF"]
# llama.cpp's RPC backend, for `gguf-spec worker` and --rpc.
RPC = ["-DGGML_RPC=ON"]
RPC_SWITCH = "GGUF_SPEC_BUILD_RPC"
# `native` compiles llama.cpp, `ready-made` does not, nor do `images` (with libmtmd), `gpu` (with a backend for the GPU that is there), and
# `cuda`, `cuda-12`, `vulkan` (where no GPU is seen now, as in `docker build`);
# `0` leaves the wheel to the installer (build_backend.py)
SWITCH = "GGUF_SPEC_BUILD_LLAMA"
# `0`: the build backend leaves the kernels to the set-up; `all`: it compiles them for all processors
KERNELS_SWITCH = "GGUF_SPEC_BUILD_KERNELS"
NATIVE, READY_MADE, GPU = "native", "ready-made", "gpu"
# pip's package with a C++ compiler, for machines without one, and its size; GGUF_SPEC_ZIG=0 does without
ZIG, ZIG_MB, ZIG_SWITCH = "ziglang", 101, "GGUF_SPEC_ZIG"
ZIG_TARGET = "{}-linux-gnu.2.28"  # its glibc: the kernels run with this version and newer ones
LEAN_INCLUDE = "set(LLAMA_BUILD_COMMON OFF)\n"
# GCC takes the stores that fill AMX's tile configuration for dead ones; without these flags the first decode of a quantised model crashes.
AMX_FIX = "-fno-tree-dse -fno-dse"
# Variables that pip and `build` set for the build backend that they run: this one, whose folder the pip that we start would search for others.
OUTER_BUILD = ("_PYPROJECT_HOOKS_", "PEP517_")
# Processor minutes that compiling takes, for a first guess.
BUILD_MINUTES = 6
# that making a wheel takes in the cache
ROOM_MB = 500
OFFLINE = re.compile(
    "NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|name resolution|Network is unreachable"
)
ERROR_LINE = re.compile(r"(?m)^.*((?:^|[:\s])error: |^ERROR: |\bCMake Error\b).*$")

_locks = {}  # file numbers of the locks held, and their threads; children inherit them, so that a lock lasts until the last one that writes is gone
_children = set()  # those that run
_stopping = threading.Event()
_instead = []  # the folder in place of a cache that cannot be used


class Problem(Exception):
    """What went wrong and what to do about it, one line each."""

    def __init__(self, error: str, hint: str):
        super().__init__(error)
        self.hint = hint


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def first_line(command: list) -> tuple:
    """Return the first line and the whole of what `command` prints; both are empty where it cannot run."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "", ""
    text = done.stdout.decode(errors="replace")
    return text.partition("\n")[0].strip(), text


# What is built


def user_cmake_args() -> list:
    """Return the words of the user's CMAKE_ARGS, with `-D NAME=x` written as `-DNAME=x`."""
    try:
        return shlex.split(re.sub(r"(^|\s)-D\s+", r"\1-D", os.environ.get("CMAKE_ARGS", "")))
    except ValueError as error:
        raise Problem(
            f"CMAKE_ARGS cannot be read: {error}.", "close the quotes in it, or unset CMAKE_ARGS."
        ) from None


def defined(args: list, name: str):
    """Return the value that the last `-Dname=value` in `args` gives, or None."""
    found = [
        m[1]
        for m in (re.fullmatch(rf"-D{name}(?::\w+)?=(.*)", arg, re.DOTALL) for arg in args)
        if m
    ]
    return found[-1] if found else None


def compiler(language: str) -> tuple:
    """Return `--version` (first line, whole) of the compiler for `C` or `CXX`."""
    return first_line([*compiler_command(language), "--version"])


def compiler_command(language: str) -> list:
    """Return the command of the compiler that CMake will take for `C` or `CXX`."""
    variable, usual = {
        "C": ("CC", ["cc", "gcc", "clang"]),
        "CXX": ("CXX", ["c++", "g++", "clang++"]),
    }[language]
    named = defined(user_cmake_args(), f"CMAKE_{language}_COMPILER")
    command = [named] if named else shlex.split(os.environ.get(variable, ""))
    return command or [next(filter(shutil.which, usual), usual[0])]


def cpu_features() -> list:
    """Return what the compiler makes use of under -march=native, sorted."""
    with (
        contextlib.suppress(OSError),
        Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines,
    ):
        for line in lines:
            if line.lower().startswith(("flags", "features")):
                return sorted(set(line.split(":", 1)[1].split()))
    return [platform.machine(), first_line(["sysctl", "-n", "machdep.cpu.brand_string"])[0]]


def cmake_args(features: list, is_gcc: bool) -> list:
    """Return the arguments to build with: ours, then the user's, which win."""
    args = [*LEAN, *EXACT, *user_cmake_args()]
    if os.environ.get(RPC_SWITCH) == "1":
        args += RPC
    if is_gcc and "amx_int8" in features:
        for language in ("C", "CXX"):
            name = f"CMAKE_{language}_FLAGS"
            given = defined(args, name)
            if (
                given is None
            ):  # once it is defined, CMake no longer reads the variable of the environment
                given = os.environ.get(f"{language}FLAGS", "")
            args.append(f"-D{name}={f'{given} {AMX_FIX}'.strip()}")
    return args


def llama_version() -> str:
    return re.search(r"(?m)^llama-cpp-python==(\S+)", CONSTRAINTS.read_text(encoding="utf-8"))[1]


def digest(*parts) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]


def way(have: str = "", wants_images: bool = False) -> str:
    """Return where llama.cpp comes from: `native`, `ready-made`, or ready made for something (`images`, or one of `ready_made.GPUS`).

    Args:
        have: What is there, if anything; it stays unless another one is asked for.
        wants_images: Take a build that reads images, where there is one and no other is asked for.

    Raises:
        Problem: A build for a GPU is asked for, and there is no GPU or no build for it.
    """
    asked = os.environ.get(SWITCH, "")
    if asked in (NATIVE, READY_MADE, *ready_made.GPUS):
        return asked
    if asked == GPU:
        return have if have in ready_made.GPUS else gpu_build()
    if asked != ready_made.IMAGES:
        if user_cmake_args() or os.environ.get(RPC_SWITCH) == "1":
            return NATIVE
        if have in (NATIVE, ready_made.IMAGES, *ready_made.GPUS):
            return have
        if wants_images:
            with contextlib.suppress(ready_made.Unavailable):
                ready_made.build_here(ready_made.IMAGES)
                return ready_made.IMAGES
    kind = READY_MADE if asked != ready_made.IMAGES else asked
    try:
        ready_made.build_here(kind)
    except ready_made.Unavailable as why:
        say(f"{called(kind)} cannot be used: {why}. It is compiled.")
        return NATIVE
    return kind


def called(kind: str) -> str:
    return f"llama.cpp {'with images, ' if kind == ready_made.IMAGES else ''}ready made"


def gpu_build() -> str:
    """Return the build for the GPU of this machine, and tell what was found."""
    try:
        if sys.platform == "darwin":  # Metal
            ready_made.build_here()
            return READY_MADE
        kind, found = gpu.choose()
        row = ready_made.build_here(kind)
    except ready_made.Unavailable as why:
        raise Problem(
            f"there is no ready-made llama.cpp for a GPU here: {why}.",
            "leave out --gpu to use the processor, or compile llama.cpp for the GPU: docs/gpu.md.",
        ) from None
    say(f"Found {found}: llama.cpp for {kind} is {ready_made.megabytes(row):.0f} MB.")
    return kind


def build_settings(kind: str, have: dict) -> dict:
    """Return everything that decides what the wheel of a kind is, by a name for users; None stands for "cannot tell".

    `have` is what these were for the wheel that is there, if there is one.
    """
    python = f"{sys.implementation.cache_tag}-{sys.platform}-{platform.machine()}"
    if kind != NATIVE:
        try:
            row = ready_made.build_here(kind)
        except ready_made.Unavailable as why:
            raise Problem(
                f"{called(kind)} cannot be used: {why}.", f"compile it: {SWITCH}={NATIVE}."
            ) from None
        return {"Python": python, "llama.cpp": kind, "its build": digest(ready_made.key(row))}
    features = cpu_features()
    compilers = [compiler("C"), compiler("CXX")]
    # The installed wheel still works if the compiler was removed.
    known = all(first for first, _ in compilers)
    is_gcc = "Free Software Foundation" in compilers[0][1]
    # Without arguments of the user, those that the wheel was made with stay: a build for a GPU need not be named again.
    is_given = user_cmake_args() or os.environ.get(RPC_SWITCH) == "1"
    kept = None if is_given else have.get("CMAKE_ARGS")
    return {
        "Python": python,
        "llama.cpp": kind,
        "the processor": digest(features),
        "the compiler": [first for first, _ in compilers] if known else None,
        "CMAKE_ARGS": (kept or cmake_args(features, is_gcc)) if known else None,
        "CC, CXX, CFLAGS or CXXFLAGS": [
            os.environ.get(name, "") for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS")
        ],
        "the way to build": LEAN_INCLUDE,
    }


def wheel_key(settings: dict) -> str:
    """Return the name of the cache's folder for the wheel that `settings` lead to.

    The wheel has the tag py3-none, so one serves all versions of Python.
    """
    system = f"{sys.platform}-{platform.machine()}"
    return f"{llama_version()}-{digest(llama_version(), {**settings, 'Python': system})}"


def check_compiler(settings: dict) -> None:
    """Raise where this machine cannot compile."""
    if settings["the compiler"] is None:
        raise Problem(
            "no working C and C++ compiler (cc, c++): llama.cpp is compiled on this machine.",
            "Debian and Ubuntu: sudo apt install build-essential. Fedora: sudo dnf install gcc-c++. macOS: xcode-select --install.",
        )


# Children


def call(command: list, log=None, env=None, on_line=None, limit_s=None, modules=None) -> int:
    """Run `command` to its end and return its exit code; when we are stopped, end it with all its children.

    A command that takes longer than `limit_s` is ended, too. In another thread, it ends when `stop_children` is called.
    The Python that it starts finds the modules in the folder `modules`, and none of the user's PYTHONPATH.
    """
    child = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if log else None,
        stderr=subprocess.STDOUT if log else None,
        env={
            **{
                name: value
                for name, value in (env or os.environ).items()
                if name not in ("PYTHONPATH", "PYTHONHOME") and not name.startswith(OUTER_BUILD)
            },
            **({"PYTHONPATH": str(modules)} if modules else {}),
        },
        **({} if IS_WINDOWS else {"start_new_session": True, "pass_fds": inherited()}),
    )
    _children.add(child)
    timer = threading.Timer(limit_s, end, [child]) if limit_s else None
    try:
        if timer:
            timer.daemon = True
            timer.start()
        if _stopping.is_set():
            end(child)
        for line in child.stdout or ():
            log.write(line)
            if on_line:
                on_line(line.decode(errors="replace"))
        return child.wait()
    except BaseException:
        stop_children()
        raise
    finally:
        if child.stdout:
            child.stdout.close()
        if timer:
            timer.cancel()
        _children.discard(child)


def inherited() -> list:
    """Return the locks that a program started by this thread keeps."""
    threads = (threading.main_thread(), threading.current_thread())
    return [file for file, thread in _locks.items() if thread in threads]


def end(child) -> None:
    """End a program with all its children."""
    if IS_WINDOWS:
        first_line(["taskkill", "/F", "/T", "/PID", str(child.pid)])
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=5)
        os.killpg(child.pid, signal.SIGKILL)


def stop_children() -> None:
    """End all programs that run, and those that other threads start from now on."""
    _stopping.set()
    if threading.current_thread() is threading.main_thread():
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # an impatient second Ctrl-C must not stop the tidying
    for child in list(_children):
        end(child)


def lock(file: int, wait: bool = False) -> bool:
    """Lock an open file, which is released when it is closed; return whether that was possible."""
    try:
        if IS_WINDOWS:  # this one waits for ten seconds
            msvcrt.locking(file, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if IS_WINDOWS or isinstance(error, BlockingIOError):
            return False
        raise
    return True


@contextlib.contextmanager
def locked(path: Path, waiting_for: str):
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:  # a folder, a link that leads nowhere, or a file of another user
        kept.discard(path)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not lock(file):
            say(f"Waiting for {waiting_for}.")
            while not lock(file, wait=True):
                pass
        _locks[file] = threading.current_thread()
        try:
            yield
        finally:
            del _locks[file]
    finally:
        os.close(file)


def failure(what: str, log) -> Problem:
    """Return the problem in the log of a failed step."""
    log.flush()
    text = Path(log.name).read_text(encoding="utf-8", errors="replace")
    if OFFLINE.search(text):
        return Problem(
            f"{what} failed: pip cannot reach the package index.",
            f"check the network, the proxy or the clock, then try again. The log: {log.name}",
        )
    error = ERROR_LINE.search(text)
    return Problem(
        f"{what} failed{': ' + error[0].strip()[:200] if error else '.'}",
        f"the whole log says more: {log.name}",
    )


class Progress:
    """Show how far ninja is: one line rewritten on a terminal, else a line every 30 seconds."""

    def __init__(self):
        self.start = self.told = time.monotonic()

    def __call__(self, line: str) -> None:
        step = re.match(r"\s*\[(\d+)/(\d+)\] ", line)
        now = time.monotonic()
        on_terminal = sys.stderr.isatty()
        if not step or not (on_terminal or now - self.told >= 30):
            return
        self.told = now
        done, total = int(step[1]), int(step[2])
        left = (now - self.start) / max(done, 1) * (total - done) / 60
        text = f"  {done} of {total} files"
        if done * 10 >= total:  # the first files are a bad estimate for the others
            text += f", about {left:.0f} min left" if left >= 1 else ", less than a minute left"
        say(text) if not on_terminal else print(
            f"\r{text}\033[K", end="" if done < total else "\n", file=sys.stderr, flush=True
        )


# Steps


def get_kernels(which: str, pip: list, log) -> None:
    """Put the kernels into gguf_spec/kernels/, from the cache or compiled; a failure is a warning.

    `which` are the instruction sets (see `build_kernels.sets`), `pip` is the command that starts pip.
    """
    import tempfile

    import build_kernels

    inputs = build_kernels.inputs(which)
    if not inputs:
        return
    target = build_kernels.SOURCES / build_kernels.LIBRARY
    folder = cache_folder() / "kernels"
    mine = folder / kernels_key(inputs)
    try:
        kept.usable(folder)
        with locked(folder / "lock", "another clone that compiles the kernels"):
            if not kept.find(mine, say):
                for leftover in folder.glob("part*"):  # of a set-up that was killed
                    kept.discard(leftover)
                with tempfile.TemporaryDirectory(prefix="part", dir=folder) as part:
                    compiler = kernel_compiler(Path(part), pip, log)
                    env = {
                        **os.environ,
                        "CXX": shlex.join(map(str, compiler)),
                        "ZIG_GLOBAL_CACHE_DIR": f"{part}/zig",
                    }
                    say(f"Compiling the kernels ({', '.join(build_kernels.sets(which))}).")
                    made = Path(part, "made")
                    made.mkdir()
                    command = [sys.executable, build_kernels.__file__, "--sets", which, made]
                    if call(command, log, env):
                        raise Problem("the kernels were not compiled", f"The log: {log.name}")
                    kept.keep(made, mine)
            new = target.with_suffix(".part")
            kept.discard(new)
            shutil.copy(mine / build_kernels.LIBRARY, new)
            kept.place(new, target)
    except Problem as problem:
        say(f"Warning: {problem}, so llama.cpp's are used. {problem.hint}")
    except OSError as error:
        say(f"Warning: the kernels were not stored, so llama.cpp's are used: {error}.")


def kernels_key(inputs: list):
    """Return what names the kernels in the cache; None where there are none for this kind of machine."""
    return digest(inputs, compiler("CXX")[0] or ZIG) if inputs else None


def kernel_compiler(part: Path, pip: list, log) -> list:
    """Return the command of the C++ compiler; where there is none, of one that pip fetches into `part`."""
    if compiler("CXX")[0]:
        return compiler_command("CXX")
    if os.environ.get(ZIG_SWITCH) == "0":
        raise Problem(
            "no C++ compiler",
            "One makes drafts faster: sudo apt install g++, or leave out GGUF_SPEC_ZIG=0.",
        )
    say(
        f"No C++ compiler: fetching {ZIG} ({ZIG_MB} MB) to compile the kernels, and removing it afterwards."
    )
    return fetch_zig(part, pip, log, platform.machine())


def fetch_zig(part: Path, pip: list, log, machine: str) -> list:
    """Fetch a C++ compiler into `part`, and return its command for a kind of machine with Linux."""
    options = [
        "--no-deps",
        "--no-compile",
        "--no-cache-dir",
        f"--constraint={CONSTRAINTS}",
        f"--target={part}/ziglang",
        *ready_made.PIP_OPTIONS,
    ]
    if call([*pip, "install", *options, ZIG], log, limit_s=ready_made.MOST_S):
        raise Problem("no C++ compiler, and pip cannot fetch one", f"The log: {log.name}")
    return [f"{part}/ziglang/ziglang/zig", "c++", "-target", ZIG_TARGET.format(machine)]


def cache_folder() -> Path:
    if _instead:
        return _instead[0]
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "gguf-spec"


def new_log(name: str) -> Path:
    """Return the path of a log, which is not there."""
    kept.usable(cache_folder() / "logs")
    path = cache_folder() / "logs" / name
    kept.discard(path)
    return path


def cache_problem(settings: dict) -> str:
    """Return why the cache cannot take the wheel that `settings` lead to; empty if it can, or has it."""
    import tempfile

    folder = cache_folder()
    try:
        for one in ("logs", "wheels", "packages", "kernels"):
            kept.usable(folder / one)
        with tempfile.TemporaryFile(dir=folder):
            free_mb = shutil.disk_usage(folder).free / 1e6
        if free_mb >= ROOM_MB or kept.whole(folder / "wheels" / wheel_key(settings)):
            return ""
    except OSError as error:
        return error.strerror or str(error)
    return f"{free_mb:.0f} MB are free, and {ROOM_MB} are needed"


@contextlib.contextmanager
def usable_cache(settings: dict):
    """Take a temporary folder in place of a cache that cannot be written or is full, in this block, and say so."""
    import tempfile

    why = cache_problem(settings)
    if not why:
        yield
        return
    say(
        f"Warning: the cache folder {cache_folder()} cannot be used ({why}), so other clones will fetch all again."
    )
    folder = Path(tempfile.mkdtemp(prefix="gguf-spec-"))
    _instead.append(folder)
    try:
        why = cache_problem(settings)
        if why:
            raise Problem(
                f"{folder} cannot be used either: {why}.",
                "TMPDIR and XDG_CACHE_HOME can name other folders.",
            )
        yield
    except BaseException:
        for one in folder.iterdir():
            if one.name != "logs":
                shutil.rmtree(one, ignore_errors=True)
        raise
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        _instead.clear()


def get_wheel(settings: dict, pip: list, log) -> Path:
    """Return the llama-cpp-python wheel that `settings` lead to, from the cache, after making it if it is not there.

    `pip` is the command that starts pip.

    Raises:
        ready_made.Unavailable: The ready-made libraries cannot be had.
    """
    import tempfile

    folder = cache_folder() / "wheels" / wheel_key(settings)
    kept.usable(folder.parent)
    with locked(
        folder.with_name(folder.name + ".lock"), "another clone that makes the same library"
    ):
        with contextlib.suppress(OSError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error):
            (older,) = folder.iterdir()  # of a version that kept no sums
            with zipfile.ZipFile(older) as archive:
                damaged = archive.testzip()
            if not damaged:
                kept.add_sums(folder)
        found = kept.find(folder, say)
        if found:
            return found[0]
        for leftover in folder.parent.glob(folder.name + ".part*"):
            kept.discard(leftover)
        with tempfile.TemporaryDirectory(prefix=folder.name + ".part", dir=folder.parent) as part:
            if settings["llama.cpp"] != NATIVE:
                row = ready_made.build_here(settings["llama.cpp"])
                say(
                    f"Fetching llama.cpp {row['llama']}, ready made ({ready_made.megabytes(row):.0f} MB), and llama-cpp-python {llama_version()} (75 MB)."
                )
                ready_made.assemble(Path(part), row, pip, call, say, log)
            else:
                cores = (
                    len(os.sched_getaffinity(0))
                    if hasattr(os, "sched_getaffinity")
                    else os.cpu_count() or 1
                )
                guess = f"about {max(1, round(BUILD_MINUTES / cores))} min with {cores} core{'s' if cores > 1 else ''}, longer for a GPU"
                say(
                    f"Compiling llama-cpp-python {llama_version()} for this machine, once: {guess}."
                )
                compile_wheel(Path(part), settings["CMAKE_ARGS"], pip, log)
            kept.keep(Path(part) / "wheel", folder)
        return kept.whole(folder)[0]


def get_wheel_or_compile(settings: dict, pip: list, log) -> tuple:
    """Return the wheel and the settings that it was made with: where ready-made libraries cannot be had, it is compiled."""
    try:
        if settings["llama.cpp"] == NATIVE:
            check_compiler(settings)
        return get_wheel(settings, pip, log), settings
    except ready_made.Unavailable as why:
        kind = settings["llama.cpp"]
        if kind in ready_made.GPUS:
            raise Problem(
                f"llama.cpp for {kind} cannot be had: {why}.",
                f"try again, leave out --gpu, or compile it: docs/gpu.md. The log: {log.name}",
            ) from None
        is_asked_for = os.environ.get(SWITCH) == kind
        other = READY_MADE if kind == ready_made.IMAGES and not is_asked_for else NATIVE
        instead = "It is compiled" if other == NATIVE else "Another one, without images, is taken"
        say(f"{called(kind)} cannot be used: {why}. {instead}.")
        log.flush()
        return get_wheel_or_compile(build_settings(other, {}), pip, log)


def compile_wheel(part: Path, args: list, pip: list, log) -> None:
    """Compile the wheel with the CMake arguments `args` into `part`/wheel; `pip` is the command that starts pip."""
    include = part / "lean.cmake"
    include.write_text(LEAN_INCLUDE, encoding="utf-8")
    env = {
        **os.environ,
        "CMAKE_ARGS": shlex.join([f"-DCMAKE_PROJECT_llama_cpp_INCLUDE={include}", *args]),
        "SKBUILD_NINJA_MAKE_FALLBACK": "0",  # without ninja, make would compile on one core and tell nothing of its progress
        "TMPDIR": str(part),
    }
    for name in (
        "PIP_CONSTRAINT",
        "PIP_BUILD_CONSTRAINT",
    ):  # old pip reads the first for what builds the wheel, new pip the second
        env[name] = f"{os.environ.get(name, '')} {CONSTRAINTS.as_uri()}".strip()
    # pip's own cache knows nothing of flags, and a ready-made wheel from elsewhere would lack them: neither is wanted.
    options = [
        "-v",
        "--no-deps",
        "--no-cache-dir",
        "--no-binary=llama-cpp-python",
        f"--wheel-dir={part / 'wheel'}",
    ]
    command = [*pip, "wheel", *options, f"llama-cpp-python=={llama_version()}"]
    if call(command, log, env, Progress()) or not list((part / "wheel").glob("*.whl")):
        raise failure("compiling llama-cpp-python", log)
