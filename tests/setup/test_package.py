"""The wheel and the sdist carry all that is needed, and work where the clone is not."""

import importlib
import json
import os
import re
import shutil
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import gguf_spec
from gguf_spec import plugins
from tests.support import children

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))


@pytest.mark.parametrize("folder", [ROOT, *PLUGINS], ids=lambda folder: folder.name)
def test_each_dependency_has_a_line_that_says_why(folder):
    lines, section = [], ""
    for line in (folder / "pyproject.toml").read_text(encoding="utf-8").splitlines():
        section = line if line.startswith("[") else section
        if section in (
            "[build-system]",
            "[project.optional-dependencies]",
            "[tool.hatch.metadata.hooks.custom]",
        ) and re.match(r'    "[\w-]+|(?:requires|dependencies|\w+) = \["', line):
            lines.append(line)
    assert lines
    assert [line for line in lines if "#" not in line and '"gguf-spec[' not in line] == []


def test_what_the_package_requires_is_imported():
    hook = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\ndependencies = [")[2]
    wanted = {
        Requirement(one).name for one in re.findall(r'(?m)^    "([^"]+)"', hook.split("\n]")[0])
    }
    modules = {
        "huggingface_hub": "huggingface_hub",
        "jsonschema-rs": "jsonschema_rs",
        "pyyaml": "yaml",
    }
    source = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "gguf_spec").rglob("*.py")
    )
    imported = set(re.findall(r"(?m)^\s*(?:import|from) (\w+)", source))
    assert len(wanted) > 10
    # pip is called by a child process, for models from packages
    assert {name for name in wanted if modules.get(name, name) not in imported} == {"pip"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build both from a copy of the tracked files, as for a release."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path_factory.mktemp("build")
    files = children.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    for name in filter(None, files):
        if (ROOT / name).exists():
            (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "clone" / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder / "dist")]
    children.run(command, cwd=folder / "clone", check=True, capture_output=True)
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return wheel, sdist


@pytest.mark.full
def test_the_wheel_holds_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names, folder = wheel.namelist(), f"gguf_spec-{gguf_spec.__version__}.dist-info"
        about = Parser().parsestr(wheel.read(f"{folder}/METADATA").decode())
    ours = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "gguf_spec").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    assert {name for name in names if not name.startswith(folder)} == ours | {
        "gguf_spec/models.yaml",
        f"{folder.removesuffix('dist-info')}data/data/share/man/man1/gguf-spec.1",
    }
    for name in (
        "gguf_spec/py.typed",
        "gguf_spec/server/page/page.html",
        "gguf_spec/server/page/main.js",
        "gguf_spec/server/page/page.css",
        "gguf_spec/data/prompts.txt",
        "gguf_spec/data/code.txt",
        "gguf_spec/data/tales/tales-target-Q8_0.gguf",
    ):
        assert name in names
    assert f"{folder}/licenses/LICENSE" in names
    assert (about["Name"], about["Version"], about["License-Expression"]) == (
        "gguf-spec",
        gguf_spec.__version__,
        "Apache-2.0",
    )
    assert set(about.get_all("Provides-Extra")) == {"server", "bench", "docs", "dev", "mcp"}


@pytest.mark.full
def test_the_sdist_holds_what_the_tests_need(built):
    with tarfile.open(built[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for name in (
        "pyproject.toml",
        "models.yaml",
        "README.md",
        "LICENSE",
        "docs/index.md",
        "scripts/build/constraints.txt",
        "scripts/run",
        "tests/conftest.py",
    ):
        assert name in names
    assert not [
        name for name in names if name.startswith((".venv", "dist/")) or "__pycache__" in name
    ]


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The wheel in an environment of its own; what it depends on is lent by this one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", symlinks=True)
    purelib = Path(
        sysconfig.get_path(
            "purelib", "venv", {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
        )
    )
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "venv" / "bin" / "python")]
    children.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(built[0])], check=True)
    # Behind the wheel's own folder in the path; without its .pth files, so that the clone of this environment is not found through it.
    (purelib / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "venv" / "bin"


def run(command, tmp_path, **env):
    environment = (
        {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "GGUF_SPEC_KERNELS")  # the wheel has none of a variant
        }
        | {"HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
        | env
    )
    return children.run(
        list(map(str, command)),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.full
def test_it_works_where_the_clone_is_not(installed, tmp_path):
    where = run(
        [installed / "python", "-c", "import gguf_spec; print(gguf_spec.__file__)"], tmp_path
    )
    assert str(ROOT) not in where.stdout
    programs = [([installed / "gguf-spec"], {}), ([installed / "python", "-m", "gguf_spec"], {})]
    programs += [([sys.executable, "-m", "gguf_spec"], {"PYTHONPATH": str(ROOT)})]
    # This wheel has no kernels, and llama.cpp's AMX has other bits than the kernels of the clone.
    programs = [(program, env | {"GGUF_SPEC_KERNELS": "stock"}) for program, env in programs]
    tale = [
        "generate",
        "-m",
        "tales",
        "Once upon a time",
        "--seed",
        "1",
        "-n",
        "20",
        "--threads",
        "1",
    ]
    told = [run([*program, *tale], tmp_path, **env) for program, env in programs]
    assert [one.returncode for one in told] == [0, 0, 0]
    assert told[0].stdout == told[1].stdout == told[2].stdout != ""
    assert (
        run([installed / "gguf-spec", "--version"], tmp_path).stdout
        == f"gguf-spec {gguf_spec.__version__}\n"
    )
    assert "smollm2" in run([installed / "gguf-spec", "models", "list"], tmp_path).stdout
    verified = run(
        [installed / "gguf-spec", "verify", "--count", "1", "--draws", "50", "--threads", "1"],
        tmp_path,
    )
    assert "does not change" in verified.stdout, verified.stderr


@pytest.mark.full
def test_a_library_compiled_without_our_flags_is_tried_out_first(installed, tmp_path):
    """The first load runs the self-test of the kernels in a child process; where it fails, they are not used."""
    start = "import os, sys\nos.environ['GGUF_SPEC_KERNELS'] = 'stock'\nfrom gguf_spec import Sampling, load\nfrom gguf_spec.llama import probe as _probe\n"
    dies = "_probe.command = lambda *_: [sys.executable, '-c', 'import os; os.abort()']\n"
    tell = "with load('tales', threads=1{}) as llm:\n    print(llm.generate('Once', Sampling(seed=1, max_tokens=20)).text)\n"
    done = run(
        [installed / "python", "-c", start + dies + tell.format("")],
        tmp_path,
        XDG_CACHE_HOME=str(tmp_path / "cache"),
    )
    assert done.returncode == 0, done.stderr
    assert (
        "repacked kernels fail on this machine (the self-test was ended by signal 6). Models are loaded without them"
        in done.stderr
    )
    without = run(
        [installed / "python", "-c", start + tell.format(", extra_bufts=False")], tmp_path
    )  # the others round otherwise on some machines
    assert (done.stdout, without.returncode) == (without.stdout, 0), without.stderr


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_plugins_have_this_version_and_need_it(folder):
    """One place sets all versions: gguf_spec/__init__.py."""
    command = [sys.executable, "-m", "hatchling", "metadata"]
    done = children.run(command, cwd=folder, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["name"], found["version"]) == (folder.name, gguf_spec.__version__)
    (wanted,) = [one for one in map(Requirement, found["dependencies"]) if one.name == "gguf-spec"]
    assert wanted.specifier == SpecifierSet(f"=={gguf_spec.__version__}")


@pytest.mark.parametrize(
    ("old", "name"), [("compat", "compat"), ("ray", "ray"), ("trim", "trim"), ("worker", "workers")]
)
def test_the_old_place_of_a_plugin_names_the_new_one(old, name):
    with pytest.raises(gguf_spec.errors.MovedError) as caught:
        importlib.import_module(f"gguf_spec.{old}")
    assert str(caught.value) == f"gguf_spec.{old} is now the package gguf_spec_{name}."
    assert caught.value.hint == (
        f"run pip install . plugins/gguf-spec-{name} in a clone of gguf-spec, and import gguf_spec_{name}."
    )
    assert (ROOT / f"plugins/gguf-spec-{name}/gguf_spec_{name}/__init__.py").exists()


@pytest.mark.parametrize("name", sorted(plugins._USERS))
def test_a_plugin_that_is_missing_is_named_with_what_installs_it(name, monkeypatch):
    assert plugins.plugin(name).__name__ == f"gguf_spec_{name}"
    monkeypatch.setitem(sys.modules, f"gguf_spec_{name}", None)
    with pytest.raises(
        gguf_spec.errors.NotInstalledError, match="which is not installed"
    ) as caught:
        plugins.plugin(name)
    assert (caught.value.package, caught.value.extra) == (f"gguf-spec-{name}", "")
    assert caught.value.hint == (
        f"run pip install . plugins/gguf-spec-{name} in a clone of gguf-spec, or where it came as a wheel, "
        f"install gguf-spec-{name} in the same way."
    )
    assert (ROOT / "plugins" / f"gguf-spec-{name}" / "pyproject.toml").exists()
