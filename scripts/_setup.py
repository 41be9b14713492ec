"""Make what scripts/run and scripts/test need in .venv, and nothing else.

`_setup.py --ready run` answers by its exit code whether all is there; `_setup.py run` makes it (`test` in place of `run`: the checks too).
llama-cpp-python is compiled once for each kind of machine, compiler and flags; the wheel goes to the user's cache, where other clones find it.
A marker file, written last, holds all that .venv was made for: without it, or when something in it has changed, .venv is made anew.
Only the standard library; must start on Python 3.8, to say there what is wrong. Everything it says goes to stderr.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
CONSTRAINTS = ROOT / "scripts" / "constraints.txt"
DEFAULT_MODEL = "smollm2-135m-instruct"  # as in gguf_spec/runtime/default_model.py
OLDEST, NEWEST = (3, 10), (3, 14)

# We use neither llava nor llama.cpp's own tools: less than half is left to compile. The wrapper forces LLAMA_BUILD_COMMON on in CMake's cache, where
# no argument reaches it; a plain variable of the same name, set by an included file, is stronger.
LEAN = ["-DLLAVA_BUILD=OFF"]
# llamafile's matrix products round differently from the dot product of a single row. Without them, and without flash attention, a row has the same
# bits in a pass of any width (docs/exactness.md).
EXACT = ["-DGGML_LLAMAFILE=OFF"]
LEAN_INCLUDE = "set(LLAMA_BUILD_COMMON OFF)\n"
# GCC takes the stores that fill AMX's tile configuration for dead ones; without these flags the first decode of a quantised model crashes.
AMX_FIX = "-fno-tree-dse -fno-dse"
# Processor minutes that compiling takes, for a first guess.
BUILD_MINUTES = 6
OFFLINE = re.compile(
    "NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|name resolution|Network is unreachable"
)
ERROR_LINE = re.compile(r"(?m)^.*((?:^|[:\s])error: |^ERROR: |\bCMake Error\b).*$")

_locks = []  # file numbers of the locks held; children inherit them, so that a lock lasts until the last one that writes is gone


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


# What is wanted


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
    """Return `--version` (first line, whole) of the compiler that CMake will take for `C` or `CXX`."""
    variable, usual = {
        "C": ("CC", ["cc", "gcc", "clang"]),
        "CXX": ("CXX", ["c++", "g++", "clang++"]),
    }[language]
    named = defined(user_cmake_args(), f"CMAKE_{language}_COMPILER")
    command = [named] if named else shlex.split(os.environ.get(variable, ""))
    return first_line([*(command or [next(filter(shutil.which, usual), usual[0])]), "--version"])


def cpu_features() -> list:
    """Return what the compiler makes use of under -march=native, sorted."""
    with (
        contextlib.suppress(OSError),
        Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines,
    ):
        for line in lines:
            if line.lower().startswith(("flags", "features")):
                return sorted(set(line.split(":", 1)[1].split()))
    return [os.uname().machine, first_line(["sysctl", "-n", "machdep.cpu.brand_string"])[0]]


def cmake_args(features: list, is_gcc: bool) -> list:
    """Return the arguments to build with: ours, then the user's, which win."""
    args = [*LEAN, *EXACT, *user_cmake_args()]
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


def wanted() -> dict:
    """Return all that .venv is made for, by the word that names it; None stands for "cannot tell"."""
    features = cpu_features()
    compilers = [compiler("C"), compiler("CXX")]
    # What is installed goes on working when the compiler has been taken away.
    known = all(first for first, _ in compilers)
    is_gcc = "Free Software Foundation" in compilers[0][1]
    return {
        "the place of this folder": str(ROOT),
        "Python": f"{sys.implementation.cache_tag}-{sys.platform}-{os.uname().machine}",
        "the list of packages": digest(
            (ROOT / "pyproject.toml").read_text(encoding="utf-8"),
            CONSTRAINTS.read_text(encoding="utf-8"),
        ),
        "the processor": digest(features),
        "the compiler": [first for first, _ in compilers] if known else None,
        "CMAKE_ARGS": cmake_args(features, is_gcc) if known else None,
        "CC, CXX, CFLAGS or CXXFLAGS": [
            os.environ.get(name, "") for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS")
        ],
        "the way to build": LEAN_INCLUDE,
    }


def wheel_key(want: dict) -> str:
    """Return the name of the cache's folder for the wheel that `want` needs."""
    other = ("the place of this folder", "the list of packages")
    return f"{llama_version()}-{digest(llama_version(), {name: value for name, value in want.items() if name not in other})}"


def changed(kind: str, want: dict) -> list:
    """Return what is missing or different from `want` in .venv; empty means ready for `kind` (`run` or `test`)."""
    try:
        have = json.loads((VENV / f"ready-{kind}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ["the mark of a finished set-up"]
    programs = [
        f".venv/bin/{name}"
        for name in ("python", "gguf-spec")
        if not os.access(VENV / "bin" / name, os.X_OK)
    ]
    return programs + [
        name for name, value in want.items() if value is not None and have.get(name) != value
    ]


# Children


def call(command: list, log=None, env=None, on_line=None) -> int:
    """Run `command` to its end and return its exit code; when we are stopped, end it with all its children."""
    child = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if log else None,
        stderr=subprocess.STDOUT if log else None,
        env={
            name: value
            for name, value in (env or os.environ).items()
            if name not in ("PYTHONPATH", "PYTHONHOME")
        },
        start_new_session=True,
        pass_fds=_locks,
    )
    try:
        for line in child.stdout or ():
            log.write(line)
            if on_line:
                on_line(line.decode(errors="replace"))
        return child.wait()
    except BaseException:
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # an impatient second Ctrl-C must not stop the tidying
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=5)
            os.killpg(child.pid, signal.SIGKILL)
        raise


@contextlib.contextmanager
def locked(path: Path, waiting_for: str):
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Waiting for {waiting_for}.")
            fcntl.flock(file, fcntl.LOCK_EX)
        _locks.append(file.fileno())
        try:
            yield
        finally:
            _locks.remove(file.fileno())


def failure(what: str, log) -> Problem:
    """Return the problem that the log of a failed step tells of."""
    log.flush()
    text = Path(log.name).read_text(encoding="utf-8", errors="replace")
    if OFFLINE.search(text):
        return Problem(
            f"{what} failed: pip cannot reach the package index.",
            f"check the network or the proxy, then try again. The log: {log.name}",
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
        if done * 10 >= total:  # the first files say little about the others
            text += f", about {left:.0f} min left" if left >= 1 else ", less than a minute left"
        say(text) if not on_terminal else print(
            f"\r{text}\033[K", end="" if done < total else "\n", file=sys.stderr, flush=True
        )


# Steps


def cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "gguf-spec"


def find_wheel(folder: Path):
    """Return the finished wheel in `folder`, or None."""
    import zipfile

    return next(
        (
            path
            for path in sorted(folder.glob("llama_cpp_python-*.whl"))
            if zipfile.is_zipfile(path)
        ),
        None,
    )


def get_wheel(want: dict, log) -> Path:
    """Return the llama-cpp-python wheel for this machine from the cache, after compiling it where there is none."""
    import tempfile

    folder = cache_folder() / "wheels" / wheel_key(want)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(
        folder.with_name(folder.name + ".lock"), "another clone that compiles the same library"
    ):
        wheel = find_wheel(folder)
        if wheel:
            return wheel
        cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        guess = f"about {max(1, round(BUILD_MINUTES / cores))} min with {cores} core{'s' if cores > 1 else ''}, longer for a GPU"
        say(f"Compiling llama-cpp-python {llama_version()} for this machine, once: {guess}.")
        for leftover in folder.parent.glob(folder.name + ".part*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=folder.name + ".part", dir=folder.parent) as part:
            compile_wheel(Path(part), want["CMAKE_ARGS"], log)
            shutil.rmtree(folder, ignore_errors=True)
            (Path(part) / "wheel").rename(folder)
        return find_wheel(folder)


def compile_wheel(part: Path, args: list, log) -> None:
    """Compile the wheel with the CMake arguments `args` into `part`/wheel."""
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
    command = [*PIP, "wheel", *options, f"llama-cpp-python=={llama_version()}"]
    if call(command, log, env, Progress()) or not find_wheel(part / "wheel"):
        raise failure("compiling llama-cpp-python", log)


PIP = [VENV / "bin" / "python", "-I", "-m", "pip", "--disable-pip-version-check"]


def install(log, *what) -> None:
    if call([*PIP, "install", "--constraint", CONSTRAINTS, *what], log):
        raise failure("installing the packages", log)


def check_tools(want: dict) -> None:
    """Raise where this machine lacks something that pip cannot install."""
    import importlib.util

    version = "{}.{}".format(*sys.version_info)
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        raise Problem(
            f"this Python {version} cannot make virtual environments (its ensurepip or venv module is missing).",
            f"Debian and Ubuntu: sudo apt install python{version}-venv. Or name another Python: PYTHON=/path/to/python3.",
        )
    if want["the compiler"] is None:
        raise Problem(
            "no working C and C++ compiler (cc, c++): llama.cpp is compiled on this machine.",
            "Debian and Ubuntu: sudo apt install build-essential. Fedora: sudo dnf install gcc-c++. macOS: xcode-select --install.",
        )


def base_python() -> str:
    """Return the Python that .venv is made from; never one inside a virtual environment, least of all the one being replaced."""
    outside = Path(sys.base_prefix) / "bin" / "python{}.{}".format(*sys.version_info)
    return str(outside) if sys.prefix != sys.base_prefix and outside.exists() else sys.executable


def set_up(kind: str) -> None:
    """Make what is missing for `kind`. Called with the lock held."""
    want = wanted()
    if not changed(kind, want):
        return  # another set-up made it while we waited
    check_tools(want)
    start = time.monotonic()
    log_path = cache_folder() / "logs" / f"setup-{digest(str(ROOT))}.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    remake = changed("run", want)
    with log_path.open("wb") as log:
        for old in VENV.glob("ready-*.json"):
            old.unlink()
        if remake:
            make_venv(remake, want, log)
        if kind == "test":
            say("Installing the tools for the checks (about half a minute).")
            install(log, "--no-build-isolation", "--editable", f"{ROOT}[dev]")
        if remake:
            say("Trying the library out on this processor.")
            call([VENV / "bin" / "python", "-I", "-m", "gguf_spec.llama.selftest"])
            fetch_default_model()
    for done in ("run", "test") if kind == "test" else ("run",):
        marker = VENV / f"ready-{done}.json"
        marker.with_suffix(".part").write_text(json.dumps(want, indent=1), encoding="utf-8")
        marker.with_suffix(".part").replace(marker)
    say(f"Ready after {time.monotonic() - start:.0f} s.")


def fetch_default_model() -> None:
    """Download the model of commands without -m; the set-up succeeds without it."""
    say(f"Downloading the default model, {DEFAULT_MODEL}.")
    if call([VENV / "bin" / "gguf-spec", "models", "pull", "--yes", DEFAULT_MODEL]):
        say(
            f"Warning: {DEFAULT_MODEL} was not downloaded. Later: scripts/run models pull {DEFAULT_MODEL}."
        )


def make_venv(why: list, want: dict, log) -> None:
    """Make .venv with the package and what it needs to run."""
    say(
        f"Making .venv {'anew: ' + why[0] + ' is missing or has changed' if VENV.exists() else 'in ' + str(ROOT)} (about half a minute)."
    )
    if VENV.is_symlink():
        VENV.unlink()
    elif VENV.exists():
        shutil.rmtree(VENV)
    if call([base_python(), "-I", "-m", "venv", VENV], log):
        raise failure("python -m venv", log)
    install(log, "pip", "hatchling", "editables")
    install(log, get_wheel(want, log))
    install(log, "--no-build-isolation", "--editable", f"{ROOT}[server]")


def require_python(kind: str) -> None:
    """Go on with a newer Python of this machine when this one is too old; raise where there is none."""
    if sys.version_info >= OLDEST:
        return
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1) if not os.environ.get("PYTHON") else ():
        newer = shutil.which(f"python3.{minor}")
        if (
            newer and first_line([newer, "-c", "print(1)"])[0]
        ):  # a pyenv shim can be there and lead nowhere
            os.execv(newer, [newer, "-I", __file__, kind])
    raise Problem(
        "Python {}.{} is too old: Python 3.10 or newer is needed.".format(*sys.version_info),
        "install a newer one (Debian, Ubuntu, Fedora: package python3; macOS: brew install python), or name it: PYTHON=/path/to/python3.12.",
    )


def stop(number, _frame) -> None:
    raise SystemExit(128 + number)


def main(args: list) -> int:
    if args[0] == "--ready":
        return 1 if changed(args[1], wanted()) else 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # not under nohup
            signal.signal(number, stop)
    try:
        require_python(args[0])
        with locked(ROOT / ".venv.lock", "another set-up of this folder"):
            set_up(args[0])
    except KeyboardInterrupt:
        say("\nStopped. The next run starts where this one can be trusted.")
        return 130
    except Problem as problem:
        say(f"Error: {problem}\nHint: {problem.hint}")
        return 1
    except OSError as error:
        say(
            f"Error: {error}.\nHint: is the disk full, or the folder not yours? XDG_CACHE_HOME can name another cache folder."
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
