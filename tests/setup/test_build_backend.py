"""The build backend: the llama-cpp-python of the metadata, and the message where it cannot be compiled.

Nothing is compiled or downloaded. The backend is the real one, in a small copy of the project; each step runs in a child, as pip runs it.
"""

import ast
import os
import re
import shutil
import sys
import textwrap
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.support import children

ROOT = Path(__file__).resolve().parents[2]
# requirements without a condition: ours, and llama-cpp-python
HOOK = re.search(
    r"(?ms)^dependencies = (\[\n.*?^\])$", (ROOT / "pyproject.toml").read_text(encoding="utf-8")
)
N_REQUIRED = 1 + sum(";" not in one for one in ast.literal_eval(HOOK[1]))
WHEEL = "/cache/gguf-spec/wheels/0.3.36-x/llama_cpp_python-0.3.36-py3-none-linux_x86_64.whl"
# what a child does: the named steps of the backend, with a wheel that was compiled before and an empty environment
STEPS = """
import sys
from pathlib import Path
sys.path.insert(0, "scripts/build")
import build_backend as backend
import _llama_wheel
backend._is_installed = lambda: False
_llama_wheel.get_wheel = lambda settings, pip, log: Path({wheel!r})
_llama_wheel.check_compiler = lambda settings: None
{patch}
for step in {steps}:
    print(getattr(backend, step)("out"))
"""


def test_no_jinja2_whose_sandbox_has_known_holes():
    """scripts/build/constraints.txt holds only for installations from a clone; fixed in 3.1.6: CVE-2025-27516."""
    assert "jinja2>=3.1.6" in ast.literal_eval(HOOK[1])


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """The files that a build reads; the package is its version only."""
    clone = tmp_path_factory.mktemp("a clone")
    for name in ("pyproject.toml", "README.md", "LICENSE", "models.yaml"):
        shutil.copy(ROOT / name, clone)
    shutil.copytree(ROOT / "scripts", clone / "scripts", ignore=shutil.ignore_patterns("__*"))
    (clone / "gguf_spec").mkdir()
    shutil.copy(ROOT / "gguf_spec" / "__init__.py", clone / "gguf_spec")
    (clone / "out").mkdir()
    (clone / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "cli.md", clone / "docs")
    return clone


def run(clone, *steps, patch="", **env):
    """Run steps of the backend in `clone`."""
    names = ("GGUF_SPEC_BUILD_LLAMA", "GGUF_SPEC_LLAMA_REQUIREMENT", "PYTHONPATH")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    code = STEPS.format(wheel=WHEEL, patch=textwrap.dedent(patch), steps=steps)
    return children.run(
        [sys.executable, "-c", code],
        cwd=clone,
        env=inherited | {"XDG_CACHE_HOME": str(clone / "cache")} | env,
        capture_output=True,
        text=True,
        check=False,
    )


def llama_in(clone, done, name="METADATA"):
    """Return the requirements on llama-cpp-python in the metadata that the last step of `done` wrote, and how many there are in all."""
    assert done.returncode == 0, done.stderr
    made = clone / "out" / done.stdout.split()[-1]
    if made.is_dir():
        text = (made / name).read_text(encoding="utf-8")
    else:
        with zipfile.ZipFile(made) as wheel:
            (member,) = (one for one in wheel.namelist() if one.endswith(name))
            text = wheel.read(member).decode()
    wanted = [one for one in Parser().parsestr(text).get_all("Requires-Dist") if ";" not in one]
    return [one for one in wanted if one.startswith("llama")], len(wanted)


@pytest.mark.full
@pytest.mark.parametrize(
    "step", ["build_wheel", "build_editable", "prepare_metadata_for_build_wheel"]
)
def test_the_metadata_names_the_compiled_wheel(clone, step):
    llama, n = llama_in(clone, run(clone, step))
    assert llama == [f"llama-cpp-python @ file://{WHEEL}"]
    assert n == N_REQUIRED


@pytest.fixture(scope="module")
def sdist(clone, tmp_path_factory):
    """The sdist of `clone`, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    children.run(command, cwd=clone, check=True, capture_output=True)
    (file,) = folder.iterdir()
    shutil.unpack_archive(file, folder)
    (unpacked,) = (one for one in folder.iterdir() if one.is_dir())
    (unpacked / "out").mkdir(exist_ok=True)
    return unpacked


@pytest.mark.full
@pytest.mark.parametrize("step", ["build_wheel", "prepare_metadata_for_build_wheel"])
def test_an_sdist_names_the_compiled_wheel_too(sdist, step):
    about = (sdist / "PKG-INFO").read_text(encoding="utf-8")
    assert "Requires-Dist: llama-cpp-python\n" in about
    llama, n = llama_in(sdist, run(sdist, step))
    assert llama == [f"llama-cpp-python @ file://{WHEEL}"]
    assert n == N_REQUIRED
    assert (sdist / "PKG-INFO").read_text(encoding="utf-8") == about


@pytest.mark.full
def test_the_plain_name_stays_in_an_sdist(sdist):
    llama, n = llama_in(sdist, run(sdist, "build_wheel", GGUF_SPEC_BUILD_LLAMA="0"))
    assert (llama, n) == (["llama-cpp-python"], N_REQUIRED)


@pytest.mark.full
def test_each_step_asks_for_the_same(clone):
    """pip and uv reject a wheel whose metadata differs from what was prepared."""
    first = llama_in(clone, run(clone, "prepare_metadata_for_build_wheel"))
    assert llama_in(clone, run(clone, "prepare_metadata_for_build_wheel", "build_wheel")) == first


@pytest.mark.full
@pytest.mark.parametrize(
    ("patch", "env"),
    [
        ("", {"GGUF_SPEC_BUILD_LLAMA": "0"}),
        ("backend._is_installed = lambda: True", {}),
    ],
    ids=["switched off", "already installed"],
)
def test_the_plain_name_stays(clone, patch, env):
    llama, n = llama_in(clone, run(clone, "build_wheel", patch=patch, **env))
    assert (llama, n) == (["llama-cpp-python"], N_REQUIRED)


@pytest.mark.full
def test_what_is_installed_is_seen_through_an_isolated_build(clone, tmp_path):
    """pip hides the environment's packages from imports of the build; they count all the same."""
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    lent = os.pathsep.join(sys.path)
    code = "import sys; sys.path.insert(0, 'scripts/build'); import build_backend as b; print(b._is_installed())"
    command = [tmp_path / "venv" / "bin" / "python", "-c", code]

    def answer():
        env = os.environ | {"PYTHONPATH": lent}
        return children.run(
            command, cwd=clone, env=env, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert answer() == "False"
    (site / "Llama_Cpp_Python-0.3.36.dist-info").mkdir()
    (site / "Llama_Cpp_Python-0.3.36.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: llama_cpp_python\nVersion: 0.3.36\n"
    )
    assert answer() == "True"


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        (
            """
            def get_wheel(settings, pip, log):
                log.write(b"x.cpp:1: error: no\\n")
                raise _llama_wheel.failure("compiling llama-cpp-python", log)
            _llama_wheel.get_wheel = get_wheel
            """,
            "Error: compiling llama-cpp-python failed: x.cpp:1: error: no",
        ),
        (
            """
            def get_wheel(*_):
                raise OSError("No space left on device")
            _llama_wheel.get_wheel = get_wheel
            """,
            "Error: No space left on device.\nHint: is the disk full",
        ),
        (
            "backend.importlib.util.find_spec = lambda name: None",
            "Error: pip is not installed.\nHint: ",
        ),
    ],
    ids=["a failed build", "a full disk", "no pip"],
)
def test_a_failure_is_one_error_and_one_hint(clone, patch, said):
    done = run(clone, "build_wheel", patch=patch)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_no_compiler(clone):
    patch = """
    import importlib; importlib.reload(_llama_wheel)
    _llama_wheel.compiler = lambda language: ("", "")
    """
    done = run(clone, "build_wheel", patch=patch, GGUF_SPEC_BUILD_LLAMA="native")
    assert "Error: no working C and C++ compiler (cc, c++)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_the_command_for_pip_works_without_the_paths_of_the_build(clone):
    code = "import sys; sys.path.insert(0, 'scripts/build'); import build_backend as b; print(*b._pip(), sep='\\n')"
    asked = {"cwd": clone, "capture_output": True, "text": True, "check": True}
    command = children.run([sys.executable, "-c", code], **asked).stdout.splitlines()
    assert "-I" in command
    assert children.run([*command, "--version"], **asked).stdout.startswith("pip ")


@pytest.mark.full
@pytest.mark.parametrize("compiles", [True, False])
def test_a_wheel_has_the_kernels_if_they_can_be_compiled(clone, compiles, tmp_path):
    there = tmp_path / "there"
    shutil.copytree(clone, there)
    (there / "gguf_spec" / "kernels").mkdir()
    (there / "gguf_spec" / "kernels" / "entry.cpp").write_text("")
    patch = f"""
    import build_kernels
    def call(command, log, env):
        if {compiles}:
            Path(command[-1], "libgguf_spec_kernels.so").touch()
        return {int(not compiles)}
    _llama_wheel.call = call
    """
    done = run(there, "build_wheel", patch=patch)
    assert done.returncode == 0, done.stderr
    made = there / "out" / done.stdout.split()[-1]
    with zipfile.ZipFile(made) as wheel:
        has_library = "gguf_spec/kernels/libgguf_spec_kernels.so" in wheel.namelist()
    tag = "linux_x86_64" if compiles else "any"
    assert (has_library, made.stem.endswith(f"py3-none-{tag}")) == (compiles, True)
    assert ("Warning: the kernels" in done.stderr) != compiles


def test_a_wheel_for_an_index_asks_for_the_plain_name(clone):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "out"]
    children.run(command, cwd=clone, check=True, capture_output=True)
    with zipfile.ZipFile(next((clone / "out").glob("gguf_spec-*.whl"))) as wheel:
        (member,) = (one for one in wheel.namelist() if one.endswith("METADATA"))
        text = wheel.read(member).decode()
    assert "Requires-Dist: llama-cpp-python\n" in text
    assert "file:" not in text
