"""scripts/run and scripts/test: what they create, and that an incomplete set-up is not used.

Nothing is compiled or downloaded here, but for the last test. The scripts are the real ones, in a small copy of the project; `python`, `npm`, `cc`
and `c++` are shell scripts that write down how they were called and make the files that pip and npm would make.
"""

import importlib.metadata
import importlib.util
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
from pathlib import Path

import pytest

import gguf_spec
from tests.support import children

ROOT = Path(__file__).resolve().parents[2]
CACHE = os.environ.get("XDG_CACHE_HOME") or str(
    Path.home() / ".cache"
)  # the user's, read before the tests get their own
GCC = "cc (Debian 12.2.0) 12.2.0\nCopyright (C) 2022 Free Software Foundation, Inc."
CLANG = "clang version 17.0.0\nTarget: x86_64"
NATIVE = {"GGUF_SPEC_BUILD_LLAMA": "native"}
AMX_FLAGS = "-fno-tree-dse -fno-dse"

# Stands for Python, outside and inside .venv. FAIL_AT and STOP_AT are words of the call to fail or to hang at.
FAKE_PYTHON = r"""#!/bin/bash
case "$*" in
    *_setup.py*) echo "$*" >> "$CALLS.setup"; exec "$REAL_PYTHON" -I "$DRIVER" "$@" ;;
    -c*) exec "$REAL_PYTHON" "$@" ;;
esac
echo "$*" >> "$CALLS"
if [ -n "${FAIL_AT:-}" ]; then
    case "$*" in *"$FAIL_AT"*) echo "$FAIL_TEXT"; exit 1 ;; esac
fi
last=${!#}
case "$*" in
    *"-m venv"*) mkdir -p "$last/${BIN:-bin}" "$last/lib"; cp "$0" "$last/${BIN:-bin}/python${SUFFIX:-}" ;;
    *" download "*)
        file=sdist.tar.gz
        case "$*" in *llama-cpp-py-sync*) file=libraries.whl ;; esac
        for word in "$@"; do case $word in --dest=*) out=${word#--dest=} ;; esac; done
        mkdir -p "$out"
        [ -z "${NO_SDIST:-}" ] && cp "$PACKAGES/$file" "$out" ;;
    *" wheel "*)
        for word in "$@"; do case $word in --wheel-dir=*) out=${word#--wheel-dir=} ;; esac; done
        echo "CMAKE_ARGS=$CMAKE_ARGS" >> "$CALLS"
        mkdir -p "$out"
        "$REAL_PYTHON" -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1], "w").writestr("a", "b")' "$out/llama_cpp_python-0.whl" ;;
    *--editable*)
        program="$(dirname "$0")/gguf-spec${SUFFIX:-}"
        printf '#!/bin/bash\necho "$$ $PWD $*"; cat; exit 7\n' > "$program"; chmod +x "$program" ;;
esac
if [ -n "${STOP_AT:-}" ]; then
    case "$*" in *"$STOP_AT"*) echo $$ > "$CALLS.stopped"; exec sleep "${STOP_S:-60}" ;; esac
fi
"""
FAKE_NPM = """#!/bin/bash
[ "$1" = pack ] || exit 0
echo "npm $*" >> "$CALLS"
[ -z "${NO_NPM:-}" ] || exit 1
while [ "$1" != --pack-destination ]; do shift; done
cp "$PACKAGES/libraries.tgz" "$2"
if [ "${STOP_AT:-}" = npm ]; then echo $$ > "$CALLS.stopped"; exec sleep "${STOP_S:-60}"; fi
"""
# Runs the real _setup.py, but makes .venv from the fake Python, and expects the fake packages. PATCH is Python that changes one more thing, and FIRST
# Python that makes this system another one.
DRIVER = """
import hashlib, importlib.util, os, sys
from pathlib import Path
exec(os.environ.get("FIRST", ""))
path = next(word for word in sys.argv if word.endswith("_setup.py"))
spec = importlib.util.spec_from_file_location("_setup", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.base_python = lambda: os.environ["PYTHON"]
import ready_made
sums = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in Path(os.environ["PACKAGES"]).iterdir()}
for row in ready_made.BUILDS.values():
    row["sha256"] = sums["libraries.whl" if "==" in row["package"] else "libraries.tgz"]
    row.pop("more", None)
row, ready_made.SDIST_SHA256 = ready_made.BUILDS["linux-x86_64"], sums["sdist.tar.gz"]
if "FIRST" not in os.environ:
    libc = "glibc " + os.environ.get("GLIBC", "2.36")
    os.confstr = lambda _: libc
    ready_made.this_system = lambda: ready_made.System("linux-x86_64", True, libc, "", False)
exec(os.environ.get("PATCH", ""))
sys.exit(module.main(sys.argv[sys.argv.index(path) + 1 :]))
"""


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def write_packages(folder: Path) -> None:
    """Write what pip and npm would fetch: the files of an sdist, and libraries."""
    sys.path.insert(0, str(ROOT / "scripts" / "build"))
    import ready_made

    root, row = f"llama_cpp_python-{ready_made.VERSION}", ready_made.BUILDS["linux-x86_64"]
    python = {f"{root}/llama_cpp/{i}.py": "" for i in range(9)}
    changed = "".join(old for old, _ in ready_made.CHANGES)
    python[f"{root}/llama_cpp/_ctypes_extensions.py"] = changed
    python[f"{root}/LICENSE.md"] = "MIT"
    python[f"{root}/PKG-INFO"] = "Name: llama_cpp_python\nVersion: 0\n\nx"
    libraries = {"package/LICENSE": "MIT too"}
    for name in ("libllama.v1", "libggml-cpu-x64", "libllama-common.v1"):
        libraries[f"{row['folder']}/{name}.so"] = name
    folder.mkdir()
    with zipfile.ZipFile(folder / "libraries.whl", "w") as archive:
        for name in ("libllama.so.0", "libllama.so", "libmtmd.so", "libllama.0.dylib", "llama.dll"):
            archive.writestr(f"llama_cpp_py_sync/{name}", name)
        archive.writestr("x.dist-info/licenses/LICENSE", "MIT too")
    for name, files in (("sdist.tar.gz", python), ("libraries.tgz", libraries)):
        with tarfile.open(folder / name, "w:gz") as archive:
            for path, text in files.items():
                member = tarfile.TarInfo(path)
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))


class Machine:
    """A machine with the fake tools, an empty home and one clone."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.calls_file = folder / "calls"
        self.started = []
        self.tools = folder / "tools"
        self.tools.mkdir()
        programs = (
            "bash",
            "sh",
            "env",
            "dirname",
            "readlink",
            "mkdir",
            "cp",
            "chmod",
            "cat",
            "sleep",
        )
        for name in programs:
            (self.tools / name).symlink_to(shutil.which(name))
        self.compilers(GCC)
        script(self.tools / "npm", FAKE_NPM)
        write_packages(folder / "packages")
        self.env = {
            "PACKAGES": str(folder / "packages"),
            "PATH": str(self.tools),
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "PYTHON": str(script(folder / "fake python", FAKE_PYTHON)),
            "REAL_PYTHON": sys.executable,
            "DRIVER": str(script(folder / "driver.py", DRIVER)),
            "CALLS": str(self.calls_file),
        }
        (folder / "tmp").mkdir()
        self.clone = self.new_clone("a clone")

    def compilers(self, text: str) -> None:
        for name in ("cc", "c++"):
            script(self.tools / name, f"#!/bin/bash\necho '{text}'\n")

    def new_clone(self, name: str) -> Path:
        clone = self.folder / name
        shutil.copytree(ROOT / "scripts", clone / "scripts")
        shutil.copy(ROOT / "pyproject.toml", clone)
        shutil.copytree(ROOT / "plugins", clone / "plugins")
        (clone / "gguf_spec").mkdir()
        shutil.copy(ROOT / "gguf_spec" / "__init__.py", clone / "gguf_spec")
        return clone

    def start(self, *args, clone=None, script="run", **env) -> subprocess.Popen:
        process = children.Child(
            [(clone or self.clone) / "scripts" / script, *args],
            cwd=self.folder,
            env=self.env | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, *args, given="", **kwargs) -> subprocess.CompletedProcess:
        process = self.start(*args, **kwargs)
        out, err = process.communicate(given, timeout=180)
        return subprocess.CompletedProcess(process.pid, process.returncode, out, err)

    def check(self, *args, **env) -> subprocess.CompletedProcess:
        return self.run(*args, script="test", **env)

    def calls(self, word="") -> list[str]:
        text = self.calls_file.read_text(encoding="utf-8") if self.calls_file.exists() else ""
        return [line for line in text.splitlines() if word in line]

    def wait_for_stop(self) -> int:
        """Wait until the fake Python hangs at STOP_AT and return its process number."""
        file = Path(f"{self.calls_file}.stopped")
        for _ in range(9000):
            if file.exists() and (text := file.read_text(encoding="utf-8")):
                file.unlink()
                return int(text)
            time.sleep(0.02)
        raise AssertionError("the step to stop at was never reached")


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    yield machine
    for process in machine.started:  # of a test that failed half way
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def llama_wheel(machine, monkeypatch):
    """The module _llama_wheel.py of a clone, on a machine with AMX, in an environment without build settings."""
    for name in ("CMAKE_ARGS", "CC", "CXX", "CFLAGS", "CXXFLAGS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(machine.tools))
    module = load(machine.clone)
    monkeypatch.setattr(module, "cpu_features", lambda: ["amx_int8", "avx2"])
    return module


def load(clone):
    """Return the module _llama_wheel.py of a clone."""
    path = clone / "scripts" / "build" / "_llama_wheel.py"
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("_llama_wheel_of_a_clone", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def assert_one_error(done, *words):
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert re.findall("(?m)^(Error|Hint):", done.stderr) == ["Error", "Hint"], done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in "\n".join(lines[-2:])


# The program


@pytest.mark.full
def test_first_run_makes_all_and_hands_over(machine):
    done = machine.run("generate", "two words", given="from stdin")
    pid, rest = done.stdout.split(" ", 1)
    # the user's own directory, arguments, stdin
    assert rest == f"{machine.folder} generate two words\nfrom stdin"
    assert int(pid) == done.args  # exec: signals reach the program itself
    assert done.returncode == 7
    assert "Fetching llama.cpp" in done.stderr
    names = ("-m venv", "npm pack", " download ", "--editable", "install", "selftest", "recommend")
    assert [next(step for step in names if step in call) for call in machine.calls()] == [
        *("-m venv", "install", "npm pack", " download ", "--editable", "selftest", "recommend")
    ]
    # the pip that comes with Python is unpacked, not compiled
    assert "--without-pip" in machine.calls()[0]
    assert list(machine.clone.glob(".venv/lib/python3*/site-packages/pip/__main__.py"))
    (wheel,) = machine.folder.glob("home/.cache/gguf-spec/wheels/*/*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = {name.rpartition("/")[2] for name in archive.namelist()}
    assert {"libllama.v1.so", "libggml-cpu-x64.so", "LICENSE.md", "LICENSE-libraries"} <= files
    assert "libllama-common.v1.so" not in files


@pytest.mark.full
def test_nothing_to_do_starts_nothing(machine):
    machine.run()
    before = machine.calls()
    starts = Path(f"{machine.calls_file}.setup")
    starts.unlink()
    done = machine.run("again")
    # the quick question, and no set-up after it
    assert len(starts.read_text(encoding="utf-8").splitlines()) == 1
    assert machine.calls() == before
    assert done.stderr == ""
    assert done.stdout.endswith("again\n")


@pytest.mark.full
def test_works_through_a_chain_of_relative_links(machine):
    (machine.folder / "bin").mkdir()
    (machine.folder / "bin" / "one").symlink_to("../a clone/scripts/run")
    (machine.folder / "two").symlink_to("bin/one")
    asked = {"capture_output": True, "text": True, "check": False, "input": ""}
    done = children.run([machine.folder / "two", "x"], env=machine.env, cwd="/", **asked)
    assert done.stdout.endswith(" / x\n"), done.stderr


@pytest.mark.full
def test_checks_are_added_to_what_is_there(machine):
    machine.run()
    before = len(machine.calls())
    machine.check()
    added, plugins = machine.calls()[before:]
    assert "--no-deps" in plugins and plugins.count("--editable") == 4
    assert added.endswith(f"{machine.clone}[dev]")
    machine.check("--all")
    assert "fetch_test_models.py" in machine.calls()[-1]
    machine.check()
    machine.run()
    assert len(machine.calls()) == before + 3  # the quick tests look for no models


@pytest.mark.full
@pytest.mark.parametrize("ci", ["", "true"])
def test_checks_run_in_order_and_stop_at_the_first_failure(machine, ci):
    machine.run()
    machine.check()
    for name in ("ruff", "mypy", "lint-imports", "pytest"):
        script(machine.clone / ".venv" / "bin" / name, '#!/bin/bash\necho "ran $PWD ${0##*/} $*"\n')

    def checks():
        done = machine.check("-k", "x", CI=ci)
        return done.returncode, re.findall(rf"(?m)^ran {machine.clone} (.*?) *$", done.stdout)

    order = ["ruff check", "ruff format --check", "mypy"]
    order += [
        f"mypy --platform {one} --cache-dir .mypy_cache/{one}" for one in ("win32", "darwin") if ci
    ]
    order += ["lint-imports", f"pytest -n auto --dist worksteal {'--all ' if ci else ''}-k x"]
    assert checks() == (0, order)
    script(machine.clone / ".venv" / "bin" / "mypy", "#!/bin/bash\nexit 3\n")
    assert checks() == (3, order[:2])
    for system in ("win32", "darwin") if ci else ():  # both are run to their end, in either case
        fails = f'echo "ran $PWD ${{0##*/}} $*"; case "$*" in *{system}*) exit 3 ;; esac'
        script(machine.clone / ".venv" / "bin" / "mypy", f"#!/bin/bash\n{fails}\n")
        assert checks() == (3, order[:5])


# What is ready and what is not


STEPS = ("-m venv", "pip --disable-pip-version-check install", "npm", " download ", "--editable")


@pytest.mark.full
@pytest.mark.parametrize("step", [*STEPS, " wheel "])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_anywhere_is_not_ready(machine, step, number):
    way = NATIVE if step == " wheel " else {}
    process = machine.start(STOP_AT=step, **way)
    child = machine.wait_for_stop()
    # as a terminal does: the script and _setup.py; what _setup.py started has a session of its own
    os.killpg(process.pid, number)
    if number == signal.SIGKILL:
        os.kill(child, number)  # nobody else is left to end it
    out, err = process.communicate(timeout=180)
    assert "Traceback" not in err
    assert out == ""
    if number != signal.SIGKILL:
        assert process.returncode == (130 if number == signal.SIGINT else -number)
        for _ in range(9000):  # after SIGTERM the shell is gone at once, _setup.py a moment later
            if not is_running(child):
                break
            time.sleep(0.02)
        assert not is_running(child)
    assert not list((machine.clone / ".venv").glob("ready-*.json"))
    done = machine.run("x", **way)
    assert done.stdout.endswith(" x\n"), done.stderr
    assert machine.calls("-m venv")[1:], "what was half built was taken for ready"
    wheels = machine.folder / "home" / ".cache" / "gguf-spec" / "wheels"
    assert not list(wheels.glob("*.part*"))


@pytest.mark.full
def test_interrupted_adding_the_checks_is_not_ready(machine):
    machine.run()
    process = machine.start(script="test", STOP_AT="[dev]")
    machine.wait_for_stop()
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=180)
    # pip may have been half way through replacing our own package
    assert not list((machine.clone / ".venv").glob("ready-*.json"))
    assert machine.run("x").stdout.endswith(" x\n")


@pytest.mark.full
def test_a_moved_clone_is_set_up_again_from_the_cache(machine):
    machine.run()
    moved = machine.folder / "moved"
    machine.clone.rename(moved)
    done = machine.run("x", clone=moved)
    assert done.stdout.endswith(" x\n")
    assert "the place of this folder" in done.stderr
    assert len(machine.calls("-m venv")) == 2
    assert len(machine.calls(" download ")) == 1
    assert len(machine.calls("--editable")) == 2
    assert "--no-index" in machine.calls("--editable")[1], "packages come from the cache, too"


@pytest.mark.full
def test_a_foreign_venv_is_not_ready_nor_one_without_the_program(machine):
    script(machine.clone / ".venv" / "bin" / "gguf-spec", "#!/bin/bash\necho wrong\n")
    assert machine.run("x").stdout.endswith(" x\n")
    (machine.clone / ".venv" / "bin" / "gguf-spec").unlink()
    assert machine.run("x").stdout.endswith(" x\n")


@pytest.mark.full
@pytest.mark.parametrize(
    "file",
    ["pyproject.toml", "scripts/build/constraints.txt", "plugins/gguf-spec-compat/pyproject.toml"],
)
def test_a_changed_list_of_packages_is_noticed(machine, file):
    machine.run()
    with (machine.clone / file).open("a", encoding="utf-8") as text:
        text.write("# more\n")
    assert "the list of packages" in machine.run().stderr
    assert len(machine.calls("-m venv")) == 2


@pytest.mark.full
def test_another_version_is_installed_again(machine):
    """Else the installed package keeps the number of before, and doctor warns."""
    machine.run()
    package = machine.clone / "gguf_spec" / "__init__.py"
    text = package.read_text(encoding="utf-8")
    package.write_text(text.replace('__version__ = "', '__version__ = "9'), encoding="utf-8")
    assert "the version of gguf-spec" in machine.run().stderr
    assert len(machine.calls("-m venv")) == 2


@pytest.mark.full
def test_still_runs_without_the_compiler(machine):
    machine.run()
    (machine.tools / "cc").unlink()
    done = machine.run("x")
    assert done.stderr == ""
    assert done.stdout.endswith(" x\n")


@pytest.mark.full
def test_a_native_build_stays_until_the_other_one_is_asked_for(machine):
    machine.run("--native")
    assert len(machine.calls(" wheel ")) == 1
    assert machine.run("x").stderr == ""
    assert "llama.cpp" in machine.run("--ready-made", "x").stderr
    assert machine.run("x").stderr == ""
    assert len(machine.calls(" download ")) == len(machine.calls(" wheel ")) == 1


@pytest.mark.full
@pytest.mark.parametrize("lacks", ["NO_NPM", "NO_SDIST"])
def test_compiles_where_the_ready_made_libraries_cannot_be_had(machine, lacks):
    done = machine.run("x", **{lacks: "1"})
    assert done.stdout.endswith(" x\n")
    (why,) = (line for line in done.stderr.splitlines() if "cannot be used" in line)
    assert "cannot be fetched. It is compiled." in why
    assert len(machine.calls(" wheel ")) == 1
    assert machine.run("x").stderr == "", "not tried again"


@pytest.mark.full
def test_the_packages_of_a_few_set_ups_are_kept(machine):
    folder = machine.folder / "home/.cache/gguf-spec/packages"
    for i in range(6):
        (folder / f"old-{i}").mkdir(parents=True)
        os.utime(folder / f"old-{i}", (i + 1, i + 1))
    machine.run()
    kept = {one.name for one in folder.iterdir() if one.is_dir()}
    assert len(kept) == 4
    assert kept > {"old-3", "old-4", "old-5"}
    (new,) = kept - {"old-3", "old-4", "old-5"}
    os.utime(folder / new, (1, 1))
    machine.run(clone=machine.new_clone("second"))
    assert (folder / new).stat().st_mtime > 1, "used now, so it is not the next to go"


@pytest.mark.full
def test_a_broken_wheel_in_the_cache_is_made_again(machine):
    machine.run()
    wheel = next(machine.folder.glob("home/.cache/gguf-spec/wheels/*/*.whl"))
    wheel.write_bytes(b"half")
    shutil.rmtree(machine.folder / "home/.cache/gguf-spec/packages")
    machine.run(clone=machine.new_clone("second"))
    assert len(machine.calls(" download ")) == 2
    assert wheel.stat().st_size > 4


# The kernels


@pytest.fixture
def kernels(machine):
    """A clone with sources of kernels, and a compiler that writes down its calls and makes what -o names."""
    folder = machine.clone / "gguf_spec" / "kernels"
    folder.mkdir(parents=True)
    (folder / "entry.cpp").write_text("// one", encoding="utf-8")
    text = f"""#!/bin/bash
echo '{GCC}'
case "$*" in *" -o "*) ;; *) exit 0 ;; esac
echo "c++ $*" >> "$CALLS"
[ -z "${{NO_KERNELS:-}}" ] || exit 1
while [ "$1" != -o ]; do shift; done
echo made > "$2"
"""
    script(machine.tools / "c++", text)
    return folder


@pytest.mark.full
def test_the_kernels_are_compiled_once_and_again_after_a_change(machine, kernels):
    done = machine.run()
    library = kernels / "libgguf_spec_kernels.so"
    assert library.read_text(encoding="utf-8") == "made\n", done.stderr
    n, of_tiles = (
        len(machine.calls("c++ ")),
        len(machine.calls("tiles.cpp")) + len(machine.calls("text.cpp")),
    )
    own = n - of_tiles  # a processor with tiles has more
    assert own == 5, (
        "entry.cpp, sampling.cpp, two files for the best instruction set, and the library"
    )
    machine.run()
    machine.run(clone=machine.new_clone("second"))
    assert len(machine.calls("c++ ")) == n, "the second clone takes them from the cache"
    (kernels / "entry.cpp").write_text("// two", encoding="utf-8")
    machine.run()
    assert len(machine.calls("c++ ")) == 2 * n
    assert len(machine.calls("-m venv")) == 2, "the rest stays"


@pytest.mark.full
def test_runs_without_kernels_that_cannot_be_compiled(machine, kernels):
    done = machine.run("x", NO_KERNELS="1")
    assert done.stdout.endswith(" x\n")
    (warning,) = re.findall("(?m)^Warning: the kernels.*", done.stderr)
    log = Path(warning.rpartition("The log: ")[2])
    assert "llama.cpp's are used" in warning
    assert "the kernels cannot be compiled" in log.read_text(encoding="utf-8")
    assert machine.run().stderr == "", "not tried again before something changes"


@pytest.mark.full
def test_kernels_for_another_kind_of_processor_are_not_compiled(machine, kernels):
    machine.run(PATCH="module.build_kernels.platform.machine = lambda: 'riscv64'")
    assert not machine.calls("c++ ")


@pytest.mark.full
def test_kernels_for_arm_are_compiled(machine, kernels):
    """What this processor has is not that of ARM, so both sets are."""
    done = machine.run(PATCH="module.build_kernels.platform.machine = lambda: 'aarch64'")
    assert "Compiling the kernels (neoni8mm, neondot)." in done.stderr
    assert (kernels / "libgguf_spec_kernels.so").exists()


# Two at once


@pytest.mark.full
def test_two_at_once_in_one_clone(machine):
    first = machine.start("1", STOP_AT=" download ", STOP_S="1")
    machine.wait_for_stop()
    second = machine.run("2")
    out, err = first.communicate(timeout=180)
    assert out.endswith(" 1\n"), err
    assert second.stdout.endswith(" 2\n")
    assert "Waiting for another set-up" in second.stderr
    assert len(machine.calls("-m venv")) == 1


@pytest.mark.full
def test_two_clones_fetch_once(machine):
    first = machine.start("1", STOP_AT=" download ", STOP_S="2")
    machine.wait_for_stop()
    second = machine.run("2", clone=machine.new_clone("second"))
    out, err = first.communicate(timeout=180)
    assert out.endswith(" 1\n"), err
    assert second.stdout.endswith(" 2\n")
    assert "Waiting for another clone" in second.stderr
    assert len(machine.calls("-m venv")) == 2
    assert len(machine.calls(" download ")) == 1


# What this machine lacks


@pytest.mark.parametrize("missing", ["cc", "c++"])
def test_no_compiler(machine, missing):
    (machine.tools / missing).unlink()
    assert_one_error(machine.run(**NATIVE), "compiler", "build-essential", "xcode-select")
    assert machine.calls() == []


@pytest.mark.parametrize("missing", ["venv", "ensurepip"])
def test_no_venv_module(machine, missing):
    patch = f"find = importlib.util.find_spec; importlib.util.find_spec = lambda name: None if name == '{missing}' else find(name)"
    assert_one_error(machine.run(PATCH=patch), "virtual environments", "-venv")
    assert machine.calls() == []


def test_python_too_old(machine):
    done = machine.run(PATCH="module.sys.version_info = (3, 9, 2)")
    assert_one_error(done, "Python 3.9 is too old", "PYTHON=")


def test_python_missing(machine):
    assert_one_error(machine.run(PYTHON="/no/python"), "/no/python", "PYTHON=")
    del machine.env["PYTHON"]
    assert_one_error(machine.run(), "python3", "PYTHON=")


@pytest.mark.full
@pytest.mark.parametrize("step", ["hatchling", " wheel ", "--editable"])
@pytest.mark.parametrize("why", ["NewConnectionError", "SSLError: certificate is not yet valid"])
def test_no_network(machine, step, why):
    text = f"WARNING: Retrying after connection broken by '{why}'\nERROR: Could not find a version that satisfies the requirement x"
    done = machine.run(FAIL_AT=step, FAIL_TEXT=text, **NATIVE)
    assert_one_error(done, "cannot reach", "network", "clock")
    log = Path(done.stderr.strip().rpartition("The log: ")[2])
    assert "Retrying" in log.read_text(encoding="utf-8")
    assert machine.run("x").stdout.endswith(" x\n")


def test_a_failed_build_names_the_error_and_the_log(machine):
    text = "-- ok\n  fatal error: stdio.h: No such file or directory"
    done = machine.run(FAIL_AT=" wheel ", FAIL_TEXT=text, **NATIVE)
    assert_one_error(done, "compiling llama-cpp-python failed: fatal error: stdio.h")
    assert Path(done.stderr.strip().split()[-1]).is_file()


def test_cache_folder_that_cannot_be_written(machine):
    (machine.folder / "file").touch()
    done = machine.run("x", XDG_CACHE_HOME=str(machine.folder / "file"))
    assert done.stdout.endswith(" x\n")
    assert done.stderr.count("Warning: the cache folder") == 1
    assert not list(machine.folder.glob("tmp/*"))


def test_open_quote_in_cmake_args(machine):
    assert_one_error(machine.run(CMAKE_ARGS='-DX="a'), "CMAKE_ARGS", "quotes")


# How the library is built


def test_only_gcc_with_amx_gets_the_flags(llama_wheel, machine, monkeypatch):
    def arguments():
        return llama_wheel.build_settings("native", {})["CMAKE_ARGS"]

    flags = [f"-DCMAKE_{language}_FLAGS={AMX_FLAGS}" for language in ("C", "CXX")]
    assert arguments()[-2:] == flags
    with monkeypatch.context() as patch:
        patch.setattr(llama_wheel, "cpu_features", lambda: ["avx2"])
        assert "-fno-tree-dse" not in str(arguments())
    clang = script(machine.folder / "clang", f"#!/bin/bash\necho '{CLANG}'\n")
    with monkeypatch.context() as patch:
        patch.setenv("CMAKE_ARGS", f"-DCMAKE_C_COMPILER:FILEPATH='{clang}'")
        assert "-fno-tree-dse" not in str(arguments())
    machine.compilers(CLANG)
    assert "-fno-tree-dse" not in str(arguments())


def test_the_rpc_backend_is_a_build_of_its_own(llama_wheel, monkeypatch):
    monkeypatch.delenv("GGUF_SPEC_BUILD_RPC", raising=False)
    plain = llama_wheel.build_settings("native", {})
    assert "-DGGML_RPC=ON" not in plain["CMAKE_ARGS"]
    monkeypatch.setenv("GGUF_SPEC_BUILD_RPC", "1")
    with_rpc = llama_wheel.build_settings("native", {})
    assert "-DGGML_RPC=ON" in with_rpc["CMAKE_ARGS"]
    assert llama_wheel.wheel_key(plain) != llama_wheel.wheel_key(with_rpc)


@pytest.mark.parametrize(
    "given",
    ["-DCMAKE_C_FLAGS='-O2 -g'", "-D CMAKE_C_FLAGS='-O2 -g'", "-DCMAKE_C_FLAGS:STRING='-O2 -g'"],
)
def test_the_users_flags_are_kept_and_ours_added(llama_wheel, monkeypatch, given):
    monkeypatch.setenv("CMAKE_ARGS", f"-DGGML_CUDA=on {given}")
    monkeypatch.setenv("CXXFLAGS", "-Wall")
    args = llama_wheel.build_settings("native", {})["CMAKE_ARGS"]
    assert "-DGGML_CUDA=on" in args
    assert llama_wheel.defined(args, "CMAKE_C_FLAGS") == f"-O2 -g {AMX_FLAGS}"
    assert llama_wheel.defined(args, "CMAKE_CXX_FLAGS") == f"-Wall {AMX_FLAGS}"


@pytest.mark.full
def test_the_arguments_reach_the_build(machine):
    machine.run(
        CMAKE_ARGS="-DGGML_CUDA=on -DX='a b'",
        PATCH="import _llama_wheel; _llama_wheel.cpu_features = lambda: ['amx_int8']",
    )
    (line,) = machine.calls("CMAKE_ARGS=")
    ours = f"'-DCMAKE_C_FLAGS={AMX_FLAGS}'", "-DMTMD_VIDEO=OFF"
    assert all(part in line for part in ("-DGGML_CUDA=on", "'-DX=a b'", *ours))
    (wheel,) = machine.calls(" wheel ")
    assert "--no-cache-dir" in wheel  # pip's own cache knows nothing of flags


@pytest.mark.full
def test_a_build_with_the_rpc_backend_has_the_package_of_workers(machine):
    machine.run()
    assert not machine.calls("gguf-spec-workers")
    machine.run(GGUF_SPEC_BUILD_RPC="1")
    assert len(machine.calls("gguf-spec-workers")) == 1


def test_variables_of_an_outer_build_do_not_reach_the_compiling():
    """pip and `build` set these; with them the pip inside looks for scikit-build-core in our folder of scripts."""
    names = [f"_PYPROJECT_HOOKS_{one}" for one in ("BACKEND_PATH", "BUILD_BACKEND")]
    env = os.environ | dict.fromkeys([*names, "PEP517_BACKEND_PATH"], "x") | {"CFLAGS": "-O2"}
    command = [sys.executable, "-c", "import _llama_wheel; _llama_wheel.call(['env'])"]
    asked = {"env": env, "capture_output": True, "text": True, "check": True}
    done = children.run(command, cwd=ROOT / "scripts" / "build", **asked)
    assert "CFLAGS=-O2" in done.stdout
    assert "BACKEND" not in done.stdout


def test_every_part_changes_the_key(llama_wheel, machine, monkeypatch):
    def key():
        return llama_wheel.wheel_key(llama_wheel.build_settings("native", {}))

    # with AMX, the flags are inside CMAKE_ARGS too
    monkeypatch.setattr(llama_wheel, "cpu_features", lambda: ["avx2"])
    keys = [key()]
    named = {"CMAKE_ARGS": "-DX=on", "CC": f"{machine.tools}/cc", "CXX": f"{machine.tools}/c++"}
    for name in ("CMAKE_ARGS", "CC", "CXX", "CFLAGS", "CXXFLAGS"):
        with monkeypatch.context() as patch:
            patch.setenv(name, named.get(name, "-O2"))
            keys.append(key())
    others = ((llama_wheel, "cpu_features", lambda: ["avx512f"]), (sys, "platform", "other"))
    for place, name, value in others:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            keys.append(key())
    for name in ("cc", "c++"):
        script(machine.tools / name, f"#!/bin/bash\necho '{GCC.replace('12.2.0', '13.1.0')}'\n")
        keys.append(key())
    other = machine.folder / "constraints.txt"
    other.write_text("llama-cpp-python==9.9.9\n", encoding="utf-8")
    monkeypatch.setattr(llama_wheel, "CONSTRAINTS", other)
    keys.append(key())
    assert len(set(keys)) == len(keys)
    assert len(keys) == 11


def test_one_wheel_serves_all_versions_of_python(llama_wheel, machine, monkeypatch):
    settings = llama_wheel.build_settings("native", {})
    monkeypatch.setattr(sys.implementation, "cache_tag", "cpython-399")
    other = llama_wheel.build_settings("native", {})
    assert other != settings  # .venv is made again
    assert llama_wheel.wheel_key(other) == llama_wheel.wheel_key(settings)
    tags = importlib.metadata.distribution("llama-cpp-python").read_text("WHEEL")
    assert re.findall(r"(?m)^Tag: (\w+)-(\w+)-", tags) == [("py3", "none")]


def test_the_key_is_the_same_in_another_clone(llama_wheel, machine):
    other = machine.new_clone("another clone")
    (other / "pyproject.toml").write_text("", encoding="utf-8")
    settings = llama_wheel.build_settings("native", {})
    assert load(other).wheel_key(settings) == llama_wheel.wheel_key(settings)
    assert str(machine.clone) not in json.dumps(settings)


@pytest.mark.full
def test_a_changed_setting_installs_another_wheel(machine):
    machine.run()
    assert "llama.cpp" in machine.run(CMAKE_ARGS="-DGGML_CUDA=on").stderr
    assert len(machine.calls(" wheel ")) == 1
    assert machine.run().stderr == "", "a build for a GPU need not be named again"
    assert "CMAKE_ARGS" in machine.run(CMAKE_ARGS="-DGGML_CUDA=off").stderr
    machine.run(CMAKE_ARGS="-DGGML_CUDA=on")  # and back: from the cache
    assert len(machine.calls(" wheel ")) == 2


def test_the_users_own_constraints_are_kept(llama_wheel, machine, monkeypatch):
    seen = {}
    monkeypatch.setenv("PIP_CONSTRAINT", "mine.txt")
    monkeypatch.setattr(llama_wheel, "call", lambda _, _log, env, _line: seen.update(env) or 1)
    with (machine.folder / "log").open("wb") as log, pytest.raises(llama_wheel.Problem):
        llama_wheel.compile_wheel(machine.folder, [], ["pip"], log)
    mine, ours = seen["PIP_CONSTRAINT"].split()  # at blanks, as pip; this clone's path has one
    assert mine == "mine.txt"
    assert ours == seen["PIP_BUILD_CONSTRAINT"] == llama_wheel.CONSTRAINTS.as_uri()


def test_progress_is_in_lines_without_a_terminal(llama_wheel, monkeypatch, capsys):
    clock = iter([0, 1, 31, 32, 33, 62])
    monkeypatch.setattr(llama_wheel.time, "monotonic", lambda: next(clock))
    progress = llama_wheel.Progress()
    for n in (1, 20, 21, "no step", 40):
        progress(f"  [{n}/80] c++ a.cpp")
    said = ["  20 of 80 files, about 2 min left", "  40 of 80 files, about 1 min left"]
    assert capsys.readouterr().err.splitlines() == said


# The real thing


def test_constraints_pin_exactly_and_name_no_place():
    text = (ROOT / "scripts" / "build" / "constraints.txt").read_text(encoding="utf-8")
    pins = [line for line in re.sub("#.*", "", text).splitlines() if line.strip()]
    assert pins
    for pin in pins:
        assert "==" in pin.partition(";")[0]
        assert "/" not in pin
        assert "*" not in pin


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_fresh_clone_runs(tmp_path):
    """Clones the last commit; the wheel cache is the user's, all else is new. Needs the network."""
    clone = tmp_path / "fresh clone"
    children.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    env = os.environ | {"HOME": str(tmp_path), "XDG_CACHE_HOME": CACHE, "PYTHON": sys.executable}
    command = [clone / "scripts" / "run", "--version"]
    done = children.run(command, env=env, capture_output=True, text=True, check=False, limit_s=600)
    assert done.returncode == 0, done.stderr
    assert gguf_spec.__version__ in done.stdout
    marker = (clone / ".venv" / "ready-run.json").read_text(encoding="utf-8")
    assert {"the place of this folder", "llama.cpp"} <= json.loads(marker).keys()
    again = children.run(command, env=env, capture_output=True, text=True, check=False)
    assert (again.stdout, again.stderr) == (done.stdout, "")
