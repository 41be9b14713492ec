"""Make what scripts/run and scripts/test need in .venv, and nothing else.

`_setup.py --ready run` answers by its exit code whether all is there; `_setup.py run` makes it (`test` in place of `run`: the checks too).
llama-cpp-python's wheel and the kernels come from `_llama_wheel`, which keeps them for other clones.
A marker file, written last, lists all that .venv was made for: without it, or when something in it has changed, .venv is made again.
Only the standard library; must start on Python 3.8, to report the error there. All output goes to stderr.
"""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "build"))  # `python -I` leaves it out

import build_kernels  # noqa: E402 -- found by the path set above
import kept  # noqa: E402 -- found by the path set above
import ready_made  # noqa: E402 -- found by the path set above
from _llama_wheel import (  # noqa: E402 -- found by the path set above
    CONSTRAINTS,
    IS_WINDOWS,
    KERNELS_SWITCH,
    NATIVE,
    RPC,
    SWITCH,
    Problem,
    build_settings,
    cache_folder,
    call,
    check_compiler,
    digest,
    failure,
    first_line,
    get_kernels,
    get_wheel_or_compile,
    kernels_key,
    locked,
    new_log,
    say,
    stop_children,
    usable_cache,
    way,
)

VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if IS_WINDOWS else "bin")
SUFFIX = ".exe" if IS_WINDOWS else ""
PYTHON, PROGRAM = BIN / f"python{SUFFIX}", BIN / f"gguf-spec{SUFFIX}"
PIP = [PYTHON, "-I", "-m", "pip", "--disable-pip-version-check"]
OLDEST, NEWEST = (3, 10), (3, 14)
KERNELS, LIBRARY, PLACE, OUR_VERSION, PACKAGES = (
    "the kernels",
    "the file of the kernels",
    "the place of this folder",
    "the version of gguf-spec",
    "the list of packages",
)
# The distributions that the tests need beside gguf-spec; that for llm is tested where llm is installed.
WORKERS = ROOT / "plugins" / "gguf-spec-workers"  # what a build with RPC is for
OTHERS = ("gguf-spec-compat", "gguf-spec-ray", "gguf-spec-trim")
PLUGINS = [*(ROOT / "plugins" / name for name in OTHERS), WORKERS]
COMMON = (KERNELS, LIBRARY, PLACE, OUR_VERSION, PACKAGES)  # all but the settings of the wheel
# how pip starts a program: see first_lines()
PYTHON_SCRIPT = re.compile(
    rb"\A#!(/bin/sh\n'''exec' [^\n]*/bin/python[^\n]*\n' '''\n|[^\n]*/bin/python[^\n]*\n)"
)
# what pip says of a file of its own cache that is not the package that the index declares, and of one that it cannot unpack
DAMAGED = re.compile(
    "DO NOT MATCH THE HASHES|is invalid|BadZipFile|Bad CRC|Bad magic number|zlib.error|incorrect header check|JSONDecodeError|UnicodeDecodeError"
)
# whether the command that scripts/run is to start reads images
READS_IMAGES = bool(os.environ.get("GGUF_SPEC_MMPROJ")) or any(
    word.partition("=")[0] == "--mmproj" for word in sys.argv
)
# tries the library out; an error is one line
TRY = "import sys; sys.tracebacklimit = 0; from gguf_spec.llama.selftest import main; sys.exit(main())"
# first words of scripts/run: how to get llama.cpp
WAYS = ("--native", "--ready-made", "--images", "--gpu")
DEFAULT_MODEL = "smollm2-135m-instruct"  # as in gguf_spec/runtime/default_model.py


# What is wanted


def made_for(kind: str) -> dict:
    """Return what .venv was made for; empty where it is not ready for `kind` (`run` or `test`)."""
    try:
        with kept.opened(VENV / f"ready-{kind}.json") as file:
            have = json.loads(file.read())
    except (OSError, ValueError):
        return {}
    return have if isinstance(have, dict) else {}


def wanted(kind: str) -> dict:
    """Return all that .venv and the kernels are made for, by the word that names it; None stands for "cannot tell".

    The tests, and a command with a projector, read images.
    """
    package = (ROOT / "gguf_spec" / "__init__.py").read_text(encoding="utf-8")
    have = made_for("run")
    return {
        KERNELS: kernels_key(build_kernels.inputs(sets(kind))),
        LIBRARY: sum_of_kernels(),
        PLACE: str(ROOT),
        OUR_VERSION: next(line for line in package.splitlines() if line.startswith("__version__")),
        PACKAGES: digest(
            (ROOT / "pyproject.toml").read_text(encoding="utf-8"),
            CONSTRAINTS.read_text(encoding="utf-8"),
            *((one / "pyproject.toml").read_text(encoding="utf-8") for one in PLUGINS),
        ),
        **build_settings(way(have.get("llama.cpp", ""), kind == "test" or READS_IMAGES), have),
    }


def sum_of_kernels() -> str:
    """Return the sum of the compiled kernels in this folder; empty where there are none."""
    try:
        return kept.sum_of(build_kernels.SOURCES / build_kernels.LIBRARY)
    except OSError:
        return ""


def sets(kind: str) -> str:
    """Return which instruction sets have kernels: the best one, or for the tests those that this processor has.

    Where the tests were set up, all of theirs stay.
    """
    return "here" if kind == "test" or made_for("test") else "best"


def is_program(path: Path) -> bool:
    """Return whether a file begins as a program does: the shell runs an empty one, without a word."""
    try:
        with kept.opened(path) as file:
            return os.access(path, os.X_OK) and file.read(2) in (
                b"#!",
                b"\x7fE",
                b"\xcf\xfa",
                b"\xca\xfe",
                b"MZ",
            )
    except OSError:
        return False


def changed(kind: str, want: dict) -> list:
    """Return what is missing or different from `want` in .venv; empty means ready for `kind` (`run` or `test`)."""
    have = made_for(kind)
    if not have:
        return ["the mark of a finished set-up"]
    programs = [
        path.relative_to(ROOT).as_posix() for path in (PYTHON, PROGRAM) if not is_program(path)
    ]
    return programs + [
        name for name, value in want.items() if value is not None and have.get(name) != value
    ]


# Steps


def install(log, *what) -> None:
    """Install packages; the wheel of llama-cpp-python and the kernels are ours to make, not the build backend's."""
    command = [*PIP, "install", "--no-compile", "--constraint", CONSTRAINTS, *what]
    env = {**os.environ, SWITCH: "0", KERNELS_SWITCH: "0"}
    if not call(command, log, env):
        return
    problem = failure("installing the packages", log)
    if DAMAGED.search(Path(log.name).read_text(encoding="utf-8", errors="replace")):
        say("pip was given a damaged package, so it fetches all of them again.")
        if not call([*command, "--no-cache-dir"], log, env):
            return
    raise problem


def install_here(log, *folders) -> None:
    """Let .venv use packages where they lie; what they need is there."""
    what = [word for one in folders for word in ("--editable", one)]
    install(log, "--no-build-isolation", "--no-deps", "--no-index", *what)


def check_tools(want: dict) -> None:
    """Raise where this machine lacks something that pip cannot install."""
    import importlib.util

    version = "{}.{}".format(*sys.version_info)
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        raise Problem(
            f"this Python {version} cannot make virtual environments (its ensurepip or venv module is missing).",
            f"Debian and Ubuntu: sudo apt install python{version}-venv. Or name another Python: PYTHON=/path/to/python3.",
        )
    if want["llama.cpp"] == NATIVE:
        check_compiler(want)


def base_python() -> str:
    """Return the Python that .venv is made from; never one inside a virtual environment, least of all the one being replaced."""
    name = "bin/python{}.{}".format(*sys.version_info) if not IS_WINDOWS else "python.exe"
    outside = Path(sys.base_prefix, name)
    return str(outside) if sys.prefix != sys.base_prefix and outside.exists() else sys.executable


def set_up(kind: str) -> None:
    """Make what is missing for `kind`. Called with the lock held."""
    want = wanted(kind)
    missing = changed(kind, want)
    if not missing:
        return  # another set-up made it while we waited
    with usable_cache(wheel_settings(want)):
        make(kind, want, missing)


def make(kind: str, want: dict, missing: list) -> None:
    start = time.monotonic()
    log_path, other_path = (
        new_log(f"setup-{digest(str(ROOT))}{one}.log") for one in ("", ".kernels")
    )
    with log_path.open("wb") as log, other_path.open("wb") as other_log:
        which = sets(kind)
        if {*missing} <= {KERNELS, LIBRARY}:
            if missing == [LIBRARY]:
                say("The compiled kernels are missing or damaged, so they are made again.")
            get_kernels(which, PIP, log)
            mark([path.stem for path in VENV.glob("ready-*.json")], want)
            return
        stale = changed("run", want)
        remake = [name for name in stale if name not in (KERNELS, LIBRARY)]
        if remake:
            check_tools(want)
        for old in VENV.glob("ready-*.json"):
            kept.discard(old)
        with ThreadPoolExecutor(2) as beside:
            keeping = None
            try:
                have = make_venv(remake, kind, want, log) if remake else "run"
                kernels = beside.submit(get_kernels, which, PIP, other_log)
                if not have:
                    want = install_packages(want, log)
                    keeping = beside.submit(keep_packages, "run", want, to_keep())
                if kind == "test" and have != "test":
                    if keeping:
                        keeping.result()
                    say("Installing the tools for the checks (about half a minute).")
                    install(log, "--no-build-isolation", "--editable", f"{ROOT}[dev]")
                    keeping = beside.submit(keep_packages, "test", want, to_keep())
                if kind == "test":
                    install_here(log, *PLUGINS)
                elif RPC[0] in (want.get("CMAKE_ARGS") or ()):
                    install_here(log, WORKERS)
                if remake:
                    if have:
                        install_here(log, ROOT)
                    fetch_default_model()
                kernels.result()
                # or the mark may outlast what it marks; Windows has no such call
                synced = beside.submit(getattr(os, "sync", bool))
                if remake:
                    say("Trying the library out on this processor.")
                    call([PYTHON, "-I", "-c", TRY])
                synced.result()
                if keeping:
                    keeping.result()
            except BaseException:
                stop_children()
                raise
    mark(["ready-run", *(["ready-test"] if kind == "test" else [])], want)
    say(f"Ready after {time.monotonic() - start:.0f} s.")
    if kind == "run":
        say("The model that answers now is a small one, for tries. Larger ones for this machine:")
        command = [PYTHON, "-I", "-m", "gguf_spec", "models", "recommend"]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        say(done.stdout.strip())


def mark(names: list, want: dict) -> None:
    """Write what .venv and the kernels were made for."""
    want = {**want, LIBRARY: sum_of_kernels()}
    for name in names:
        kept.write(VENV / f"{name}.json", json.dumps(want, indent=1))


def fetch_default_model() -> None:
    """Download the model of commands without -m; the set-up succeeds without it."""
    say(f"Downloading the default model, {DEFAULT_MODEL}.")
    if call([PROGRAM, "models", "pull", "--yes", DEFAULT_MODEL]):
        say(
            f"Warning: {DEFAULT_MODEL} was not downloaded. Later: scripts/run models pull {DEFAULT_MODEL}."
        )


def make_venv(why: list, kind: str, want: dict, log) -> str:
    """Make .venv, with packages that an earlier set-up kept; return the kind of set-up that they are for, empty for none."""
    is_there = VENV.exists()
    kept.discard(VENV)
    with packages_lock():
        kinds = dict.fromkeys((kind, "run"))
        keeps = is_kept(want)
        have = next(
            (one for one in kinds if keeps and kept.find(kept_packages(one, want), say)), ""
        )
        say(
            f"Making .venv {'again: ' + why[0] + ' is missing or has changed' if is_there else 'in ' + str(ROOT)} "
            f"(about {'ten seconds' if have else 'a minute'})."
        )
        wheel = pip_of_python()
        without = ["--without-pip"] if have or wheel else []
        if call([base_python(), "-I", "-m", "venv", *without, VENV], log):
            raise failure("python -m venv", log)
        if have:
            folder = kept_packages(have, want)
            unpack(folder / ARCHIVE)
            with contextlib.suppress(OSError):
                os.utime(folder)  # see keep_packages
    if not have:
        if wheel:
            with zipfile.ZipFile(wheel) as files:
                files.extractall(packages_folder())
        install(log, "pip", "hatchling", "editables")
    return have


def packages_folder() -> Path:
    if IS_WINDOWS:
        return VENV / "Lib" / "site-packages"
    return VENV / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"


def pip_of_python():
    """Return the wheel of pip that comes with this Python, None where it is not found.

    Unpacked, it is installed. The module `venv` compiles all of its files, which takes five seconds of processor time.
    """
    import ensurepip
    import sysconfig

    folders = [Path(ensurepip.__file__).parent / "_bundled"]
    folders += [Path(one) for one in [sysconfig.get_config_var("WHEEL_PKG_DIR")] if one]
    return next((wheel for one in folders for wheel in one.glob("pip-*.whl")), None)


# ---- packages for other clones


ARCHIVE = "packages.tar"
# with what runs the program, and with what the tests need, for this clone and for one of another version or Python
N_KEPT_PACKAGES = 4


def kept_packages(kind: str, want: dict) -> Path:
    """Return the folder of the cache with the packages that `want` leads to."""
    about = {
        name: value
        for name, value in want.items()
        if name not in (KERNELS, LIBRARY, PLACE, OUR_VERSION)
    }
    return cache_folder() / "packages" / digest(kind, about, ARCHIVE)


def is_kept(want: dict) -> bool:
    """Return whether packages are kept; a program of Windows names its .venv within, and CUDA's libraries are very large."""
    return not IS_WINDOWS and not want["llama.cpp"].startswith(ready_made.CUDA)


def to_keep() -> list:
    """Return the folders and files of the installed packages, but ours, and their programs."""
    ours = shutil.ignore_patterns("_editable_impl_gguf_spec*", "gguf_spec-*", "gguf_spec_*-*")
    programs = [one for one in BIN.iterdir() if not one.is_symlink()]
    return [*kept.listed(VENV / "lib", ours), *programs]


def keep_packages(kind: str, want: dict, paths: list) -> None:
    """Keep the packages of .venv for other clones, and remove those used longest ago; a failure costs only time."""
    if not is_kept(want):
        return
    folder = kept_packages(kind, want)
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    try:
        with packages_lock():
            for leftover in folder.parent.glob("*.part"):  # of a set-up that was killed
                kept.discard(leftover)
            part.mkdir()
            pack(part / ARCHIVE, paths)
            kept.keep(part, folder)
            os.utime(folder)
            others = sorted(
                (one for one in folder.parent.iterdir() if one.is_dir()),
                key=lambda one: one.stat().st_mtime,
            )
            for old in others[:-N_KEPT_PACKAGES]:
                shutil.rmtree(old, ignore_errors=True)
    except OSError:
        pass
    finally:
        shutil.rmtree(part, ignore_errors=True)


def packages_lock():
    kept.usable(cache_folder() / "packages")
    return locked(cache_folder() / "packages" / "lock", "another clone that copies packages")


# Programs in Python are kept without their first lines, which name .venv's own Python.
BARE = "bare/"


def pack(archive: Path, paths: list) -> None:
    """Write folders and files of .venv into an archive: other clones share no file that a program could change in place."""
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT, dereference=True) as tar:
        for path in paths:
            name = path.relative_to(VENV).as_posix()
            body = PYTHON_SCRIPT.sub(b"", path.read_bytes(), 1) if path.parent == BIN else b""
            if body and len(body) < path.stat().st_size:
                member = tarfile.TarInfo(BARE + path.name)
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))
            else:
                tar.add(path, name, recursive=False)


def unpack(archive: Path) -> None:
    """Write the packages of an archive into .venv, but for what the environment has itself."""
    with tarfile.open(archive) as tar:
        for member in tar:
            path = VENV / member.name
            if member.isdir():
                path.mkdir(exist_ok=True)
                continue
            body = tar.extractfile(member).read()
            if member.name.startswith(BARE):
                path = BIN / member.name[len(BARE) :]
                body = first_lines(PYTHON) + body
                member.mode = 0o755
            if not path.exists():
                path.write_bytes(body)
                path.chmod(member.mode)
                # what Python has compiled names the time of its source
                os.utime(path, (member.mtime, member.mtime))


def first_lines(python: Path) -> bytes:
    """Return how a script in Python starts, as pip writes it: a line with `#!` has no blanks in its path, and a limited length."""
    name = os.fsencode(python)
    if len(name) < 120 and b" " not in name:
        return b"#!" + name + b"\n"
    return b"#!/bin/sh\n'''exec' \"" + name + b'" "$0" "$@"\n\' \'\'\'\n'


def wheel_settings(want: dict) -> dict:
    return {name: value for name, value in want.items() if name not in COMMON}


def install_packages(want: dict, log) -> dict:
    """Install llama-cpp-python, the package and what it needs to run; return the settings that were used."""
    wheel, used = get_wheel_or_compile(wheel_settings(want), PIP, log)
    install(log, wheel, "--no-build-isolation", "--editable", f"{ROOT}[server]")
    return {**want, **used}


def require_python() -> None:
    """Go on with a newer Python of this machine when this one is too old; raise if no newer one is found."""
    if sys.version_info >= OLDEST:
        return
    none_else = os.environ.get("PYTHON") or IS_WINDOWS  # there `py` takes the newest
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1) if not none_else else ():
        newer = shutil.which(f"python3.{minor}")
        if (
            newer and first_line([newer, "-c", "print(1)"])[0]
        ):  # a pyenv shim can be there and lead nowhere
            os.execv(newer, [newer, "-I", __file__, *sys.argv[1:]])
    raise Problem(
        "Python {}.{} is too old: Python 3.10 or newer is needed.".format(*sys.version_info),
        "install a newer one (Debian, Ubuntu, Fedora: package python3; macOS: brew install python), or name it: PYTHON=/path/to/python3.12.",
    )


def stop(number, _frame) -> None:
    raise SystemExit(128 + number)


def main(args: list) -> int:
    if args[0] == "--ready":
        return 1 if changed(args[1], wanted(args[1])) else 0
    for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
        if signal.getsignal(number) == signal.SIG_DFL:  # not under nohup
            signal.signal(number, stop)
    try:
        require_python()
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


def run(words: list) -> int:
    """Do what scripts/run does where there is no bash: make what is missing, and start the program."""
    os.environ.setdefault("GGUF_SPEC_CALLED", f"py {sys.argv[0]}")
    if words[:1] and words[0] in WAYS:
        os.environ[SWITCH] = words.pop(0)[2:]
    command = [base_python(), "-I", __file__]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    nothing = subprocess.DEVNULL
    if subprocess.call([*command, "--ready", "run", *words], stdin=nothing, **quiet):
        code = subprocess.call([*command, "run", *words], stdin=nothing, stdout=sys.stderr)
        if code:
            return code
    if not IS_WINDOWS:
        os.execv(PROGRAM, [PROGRAM, *words])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program
    return subprocess.call([PROGRAM, *words])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
