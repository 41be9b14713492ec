"""Builds of llama.cpp for images and GPUs, and the set-up on macOS and Windows, which are simulated here. Nothing is downloaded."""

import json
import shutil
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.setup import test_setup
from tests.setup.test_setup import machine  # noqa: F401 -- a fixture
from tests.support import children

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "build"))
import _llama_wheel
import gpu
import ready_made

LINUX = "linux-x86_64"
NEW = {"GLIBC": "2.38"}
# makes this system another one, as far as the set-up can see
MAC = """
import ensurepip, fcntl, platform, subprocess, sys, sysconfig
sysconfig.get_config_vars()
sys.platform = "darwin"
platform.machine, platform.mac_ver = lambda: "arm64", lambda: ("14.5", ("", "", ""), "arm64")
del os.confstr, os.sched_getaffinity
"""
WINDOWS = """
import ctypes, ensurepip, fcntl, platform, shutil, signal, subprocess, sysconfig, tempfile, types
sysconfig.get_config_vars()
which = shutil.which
kernel = types.SimpleNamespace(IsProcessorFeaturePresent=lambda _: 1)
ctypes.windll = types.SimpleNamespace(kernel32=kernel)
def locking(file, how, n, flock=fcntl.flock):
    flock(file, fcntl_ex | (fcntl_nb if how == 2 else 0))
fcntl_ex, fcntl_nb = fcntl.LOCK_EX, fcntl.LOCK_NB
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_LOCK=1, LK_NBLCK=2)
sys.modules["fcntl"] = None
real_open, real_popen = os.open, subprocess.Popen
def no_folders(path, *args, **kwargs):
    if os.path.isdir(path) and sys._getframe(1).f_code.co_filename.endswith("kept.py"):
        raise PermissionError(13, "a folder cannot be opened", str(path))
    return real_open(path, *args, **kwargs)
class Popen(real_popen):
    def __init__(self, *args, **kwargs):
        assert not kwargs.get("pass_fds") and not kwargs.get("start_new_session")
        super().__init__(*args, **kwargs)
subprocess.Popen, os.open = Popen, no_folders
for name in ("confstr", "sched_getaffinity", "uname", "killpg", "sync"):
    delattr(os, name)
del signal.SIGHUP
sys.platform, platform.machine = "win32", lambda: "AMD64"
shutil.which = which
"""


# ---- which build


def on(system, glibc="2.41", avx2=True, mac="14.5"):
    return ready_made.System(system, True, f"glibc {glibc}", mac, not avx2)


@pytest.mark.parametrize(
    ("system", "kind", "row"),
    [
        (LINUX, "", LINUX),
        (LINUX, "ready-made", LINUX),
        (LINUX, "images", f"{LINUX}+images"),
        (LINUX, "cuda", f"{LINUX}+cuda"),
        (LINUX, "cuda-12", f"{LINUX}+cuda-12"),
        (LINUX, "vulkan", f"{LINUX}+vulkan"),
        ("linux-aarch64", "", "linux-aarch64"),
        ("darwin-arm64", "", "darwin-arm64"),
        ("darwin-arm64", "images", "darwin-arm64"),
        ("win32-amd64", "", "win32-amd64"),
        ("win32-amd64", "images", "win32-amd64"),
    ],
)
def test_the_build_of_a_machine(system, kind, row):
    assert ready_made.build_for(on(system), kind) is ready_made.BUILDS[row]


@pytest.mark.parametrize(
    ("kind", "given", "why"),
    [
        ("images", {"glibc": "2.37"}, "needs glibc 2.38 (Debian 13, Ubuntu 24.04, Fedora 39 and newer), and this system has 2.37"),
        ("images", {"avx2": False}, "needs a processor with AVX2"),
        ("images", {"system": "linux-aarch64"}, "there is none for linux-aarch64"),
        ("", {"system": "darwin-arm64", "mac": "13.6"}, "needs macOS 14.0, and this is 13.6"),
        ("", {"system": "darwin-x86_64"}, "there is none for darwin-x86_64"),
        ("", {"system": "win32-amd64", "avx2": False}, "needs a processor with AVX2"),
        ("cuda", {"system": "win32-amd64"}, "there is none for win32-amd64"),
    ],
)  # fmt: skip
def test_why_there_is_no_build(kind, given, why):
    with pytest.raises(ready_made.Unavailable) as caught:
        ready_made.build_for(on(**{"system": LINUX, **given}), kind)
    assert why in str(caught.value)


def test_builds_differ_and_are_declared_whole():
    wheels, sums = set(), set()
    for name, row in ready_made.BUILDS.items():
        for one in (row, *row.get("more", ())):
            assert len(one["sha256"]) == 64
            assert one["bytes"] > 1e5
            assert ("==" in one["package"]) == ("of" in one)
        assert ready_made.megabytes(row) >= row["bytes"] / 1e6
        wheels.add((ready_made.local_version(row), row["tag"]))
        sums.add(json.dumps(ready_made.key(row)))
        pins = ready_made.CONSTRAINTS.read_text(encoding="utf-8")
        assert all(f"\n{one}==" in pins for one in row.get("needs", ())), name
    assert len(wheels) == len(sums) == len(ready_made.BUILDS)


def test_what_stays_and_what_is_taken(monkeypatch, capsys):
    here = [on(LINUX, glibc="2.36"), on(LINUX)]
    monkeypatch.setattr(ready_made, "this_system", lambda: here[-1])
    monkeypatch.setattr(_llama_wheel, "user_cmake_args", list)
    monkeypatch.delenv("GGUF_SPEC_BUILD_LLAMA", raising=False)
    monkeypatch.delenv("GGUF_SPEC_BUILD_RPC", raising=False)
    assert _llama_wheel.way() == "ready-made"
    assert _llama_wheel.way("", wants_images=True) == "images"
    assert _llama_wheel.way("ready-made", wants_images=True) == "images"
    for have in ("images", "cuda", "cuda-12", "vulkan", "native"):
        assert _llama_wheel.way(have) == _llama_wheel.way(have, wants_images=True) == have
    del here[-1]
    assert _llama_wheel.way("", wants_images=True) == "ready-made"
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("GGUF_SPEC_BUILD_LLAMA", "images")
    assert _llama_wheel.way() == "native"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("llama.cpp with images, ready made cannot be used: it needs glibc 2.38")
    for asked in ("ready-made", "vulkan", "cuda-12"):
        monkeypatch.setenv("GGUF_SPEC_BUILD_LLAMA", asked)
        assert _llama_wheel.way("images", wants_images=True) == asked


def test_libraries_of_both_kinds_of_package(tmp_path):
    """Of libraries with several names one is taken: a process that loads two has two llama.cpp."""
    test_setup.write_packages(tmp_path / "packages")
    (tmp_path / "more.whl").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "more.whl", "w") as archive:
        archive.writestr("treelite.libs/libgomp-e985bcbb.so.1.0.0", "omp")
    files = [tmp_path / "packages" / "libraries.whl", tmp_path / "more.whl"]
    sdist = tmp_path / "packages" / "sdist.tar.gz"
    for name, found in (
        (f"{LINUX}+images", {"libllama.so.0", "libmtmd.so", "libgomp.so.1"}),
        ("darwin-arm64", {"libllama.0.dylib"}),
        ("win32-amd64", {"llama.dll"}),
    ):
        row = ready_made.BUILDS[name]
        row = {**row, "folder": "llama_cpp_py_sync"}
        n = 1 + len(row.get("more", ()))
        with zipfile.ZipFile(ready_made.make_wheel(tmp_path, row, sdist, files[:n])) as wheel:
            names = {Path(one).name for one in wheel.namelist() if "/lib/" in one}
            about = next(one for one in wheel.namelist() if one.endswith("LICENSE-libraries"))
            assert b"llama-cpp-py-sync==0.11227" in wheel.read(about)
        suffixes = {"linux": ".so", "darwin": ".dylib", "win32": ".dll"}
        of_system = {one for one in names if suffixes[name.partition("-")[0]] in one}
        assert of_system == found
    files[1] = tmp_path / "packages" / "libraries.whl"
    with pytest.raises(ready_made.Unavailable, match=r"treelite==4\.8\.1 lacks treelite\.libs"):
        ready_made.make_wheel(tmp_path, ready_made.BUILDS[f"{LINUX}+images"], sdist, files)


def test_cuda_needs_its_distributions(tmp_path):
    test_setup.write_packages(tmp_path / "packages")
    row = {**ready_made.BUILDS[f"{LINUX}+cuda"], "folder": "package/bins/linux-x64"}
    files = [tmp_path / "packages" / "libraries.tgz"]
    wheel = ready_made.make_wheel(tmp_path, row, tmp_path / "packages" / "sdist.tar.gz", files)
    with zipfile.ZipFile(wheel) as archive:
        about = next(one for one in archive.namelist() if one.endswith("METADATA"))
        lines = archive.read(about).decode().split("\n\n")[0].splitlines()
    assert {"Requires-Dist: nvidia-cublas", "Requires-Dist: nvidia-cuda-runtime"} <= {*lines}


# ---- scripts/run


@pytest.mark.full
def test_the_first_projector_takes_the_build_with_images(machine):  # noqa: F811
    machine.run("x", **NEW)
    assert machine.calls("npm pack")
    done = machine.run("generate", "--mmproj=a", **NEW)
    assert "Fetching llama.cpp b11227, ready made (5 MB)" in done.stderr
    assert done.stdout.endswith(" generate --mmproj=a\n")
    (call,) = machine.calls("py-sync")
    assert "--platform=manylinux2014_x86_64 " in call
    before = machine.calls()
    assert machine.run("y", **NEW).stderr == machine.run("y", "--mmproj", "b", **NEW).stderr == ""
    assert machine.calls() == before, "the choice stays"
    assert "llama.cpp is missing or has changed" in machine.run("--ready-made", "x", **NEW).stderr


@pytest.mark.full
@pytest.mark.parametrize("words", [["--mmproj", "a"], ["--images", "x"]])
def test_where_the_build_with_images_does_not_fit(machine, words):  # noqa: F811
    """A projector asks for no minutes of compiling: the error of the program says how. `--images` does."""
    done = machine.run(*words)
    is_asked = words[0] == "--images"
    assert len(machine.calls(" wheel ")) == is_asked
    assert ("needs glibc 2.38" in done.stderr) == is_asked


@pytest.mark.full
def test_the_tests_read_images(machine):  # noqa: F811
    machine.check(**NEW)
    assert machine.calls("py-sync")


@pytest.mark.full
def test_a_build_with_images_that_cannot_be_fetched(machine):  # noqa: F811
    patch = f"ready_made.BUILDS['{LINUX}+images']['sha256'] = {'0' * 64!r}"
    done = machine.run("--mmproj", "a", PATCH=patch, **NEW)
    (why,) = (line for line in done.stderr.splitlines() if "cannot be used" in line)
    assert why.endswith("Another one, without images, is taken.")
    assert machine.calls("npm pack")


@pytest.mark.full
def test_no_gpu_ends_with_what_was_found(machine):  # noqa: F811
    patch = "import gpu; gpu.ASK_CUDA = 'raise OSError(\"libcuda.so.1: x\")'; gpu.ASK_VULKAN = 'import os; os.abort()'; gpu.DEVICE_FILES = ()"
    done = machine.run("--gpu", "x", PATCH=patch)
    test_setup.assert_one_error(done, "CUDA: libcuda.so.1: x; Vulkan: the driver crashes: signal 6; there are no device files", "leave out --gpu")  # fmt: skip
    assert not machine.calls()
    assert machine.run("x", PATCH=patch).stdout.endswith(" x\n")


@pytest.mark.full
def test_the_build_for_a_gpu_stays_without_asking_again(machine):  # noqa: F811
    folder = (
        f"ready_made.BUILDS['{LINUX}+cuda']['folder'] = row['folder']; import gpu; gpu.ASK_CUDA = "
    )
    found = folder + repr("print('[13, [[\"A GPU\", 8, 9]]]')")
    done = machine.run("--gpu", "x", PATCH=found)
    assert "Found A GPU (compute capability 8.9), driver for CUDA 13: llama.cpp for cuda is 590 MB." in done.stderr  # fmt: skip
    assert "linux-x64-cuda@" in machine.calls("npm pack")[0]
    for words in (["x"], ["--gpu", "x"]):
        assert machine.run(*words, PATCH=folder + "''").stderr == ""
    assert not list(machine.folder.glob("home/.cache/gguf-spec/packages/*/packages.tar"))


# ---- the drivers

CUDA_DRIVER = """
int cuInit(int f) {{ {init} }}
int cuDriverGetVersion(int *v) {{ *v = {version}; return 0; }}
int cuDeviceGetCount(int *n) {{ *n = {n}; return 0; }}
int cuDeviceGetName(char *s, int n, int d) {{ s[0] = 'G'; s[1] = 0; return 0; }}
int cuDeviceGetAttribute(int *v, int what, int d) {{ *v = what == 75 ? {major} : {minor}; return 0; }}
"""
VULKAN_DRIVER = """
#include <string.h>
int vkCreateInstance(const int *about, void *a, void **i) {{ *i = (void *)1; return about[0] == 1 ? 0 : -1; }}
int vkEnumeratePhysicalDevices(void *i, unsigned *n, void **d) {{ *n = {n}; if (d) d[0] = (void *)2; return 0; }}
void vkGetPhysicalDeviceProperties(void *d, int *about) {{ about[4] = {kind}; strcpy((char *)(about + 5), "V"); }}
"""
MISSING = "cannot open shared object file: No such file or directory"


@pytest.fixture
def drivers(tmp_path, monkeypatch):
    """Makes drivers of sources; without one, there is none."""
    if not shutil.which("cc") or not sys.platform.startswith("linux"):
        pytest.skip("there is no compiler, or the drivers have other names")
    monkeypatch.setattr(gpu, "DEVICE_FILES", ())

    def drivers(**sources):
        for name in ("cuda", "vulkan"):
            text = sources.get(name)
            path = tmp_path / f"lib{name}.so.1"
            if text is None:
                path.write_text("none here")
                continue
            (tmp_path / "source.c").write_text(text)
            children.run(["cc", "-shared", "-fPIC", "-o", path, tmp_path / "source.c"], check=True)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))

    return drivers


def cuda(version=13020, n=1, major=8, minor=9, init="return 0;"):
    return CUDA_DRIVER.format(version=version, n=n, major=major, minor=minor, init=init)


@pytest.mark.parametrize(
    ("kind", "driver"),
    [
        ("cuda", cuda()),
        ("cuda", cuda(major=12, minor=0)),
        ("cuda-12", cuda(major=9, minor=0)),
        ("cuda-12", cuda(major=7, minor=5)),
        ("cuda-12", cuda(version=12080)),
    ],
)
def test_a_gpu_of_nvidia(drivers, kind, driver):
    drivers(cuda=driver)
    found, about = gpu.choose()
    assert found == kind
    assert about.startswith("G (compute capability ")


def test_a_gpu_with_vulkan(drivers):
    drivers(vulkan=VULKAN_DRIVER.format(n=1, kind=2))
    assert gpu.choose() == ("vulkan", "V (Vulkan)")


@pytest.mark.parametrize(
    ("cuda", "vulkan", "said"),
    [
        (cuda(init="return 100;"), None, "CUDA: cuInit gives error 100; Vulkan: "),
        (cuda(n=0), None, "CUDA: no GPU, driver for CUDA 13; "),
        (cuda(major=3), None, "CUDA: G is too old, driver for CUDA 13; "),
        (cuda(version=11040), None, "CUDA: G is too old, driver for CUDA 11; "),
        (cuda(init="return *(volatile int *)0;"), None, "CUDA: the driver crashes: signal 11; "),
        (None, VULKAN_DRIVER.format(n=1, kind=4), "; Vulkan: V computes on the processor; "),
        (None, VULKAN_DRIVER.format(n=0, kind=4), "; Vulkan: no GPU; there are no device files"),
    ],
)
def test_no_gpu_that_is_of_use(drivers, cuda, vulkan, said):
    drivers(cuda=cuda, vulkan=vulkan)
    with pytest.raises(ready_made.Unavailable) as caught:
        gpu.choose()
    assert said in str(caught.value)


# ---- macOS and Windows


@pytest.mark.full
@pytest.mark.parametrize(("system", "row"), [(MAC, "darwin-arm64"), (WINDOWS, "win32-amd64")])
def test_the_set_up_on_another_system(machine, system, row):  # noqa: F811
    """It runs to its end, and does nothing the second time. Python is called as `py scripts/run` calls it."""
    windows = {"BIN": "Scripts", "SUFFIX": ".exe"} if system is WINDOWS else {}
    env = machine.env | windows | {"FIRST": system}
    setup = machine.clone / "scripts" / "build" / "_setup.py"

    def run(*words):
        command = [sys.executable, "-I", env["DRIVER"], str(setup), *words]
        return children.run(command, env=env, cwd=machine.folder, capture_output=True, text=True)

    assert run("--ready", "run").returncode == 1
    done = run("run")
    assert done.returncode == 0, done.stderr
    assert "Ready after" in done.stderr
    (call,) = machine.calls("py-sync")
    assert f"--platform={ready_made.BUILDS[row]['of']} " in call
    programs = {one.name for one in (machine.clone / ".venv" / (windows.get("BIN") or "bin")).iterdir()}  # fmt: skip
    suffix = windows.get("SUFFIX", "")
    assert {f"python{suffix}", f"gguf-spec{suffix}"} <= programs
    (wheel,) = machine.folder.glob("home/.cache/gguf-spec/wheels/*/*.whl")
    assert wheel.name.endswith(f"{ready_made.BUILDS[row]['tag']}.whl")
    assert run("--ready", "run").returncode == 0
    before = machine.calls()
    assert run("run").stderr == ""
    assert machine.calls() == before


@pytest.mark.full
def test_scripts_run_is_a_program_in_python_too(machine):  # noqa: F811
    """`py scripts/run` on Windows; here with the Python of the tests, which finds a clone that is ready."""
    machine.run("x")
    patch = f"import _setup, subprocess; _setup.base_python = lambda: {machine.env['PYTHON']!r}"
    script = str(machine.clone / "scripts" / "run")
    code = f"import sys, runpy; sys.argv = sys.argv[1:]; sys.path.insert(0, {str(Path(script).parent / 'build')!r}); {patch}; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = children.run([sys.executable, "-c", code, script, "generate", "two words"], env=machine.env, cwd=machine.folder, capture_output=True, text=True, input="")  # fmt: skip
    assert done.stdout.endswith(" generate two words\n"), done.stderr
    assert done.returncode == 7


# ---- the changed loader of llama-cpp-python


@pytest.fixture
def loader(tmp_path):
    """Makes libraries, and returns the number that the one says that the loader takes for llama."""
    if not shutil.which("cc") or not sys.platform.startswith("linux"):
        pytest.skip("there is no compiler, or libraries are made otherwise")
    package = Path(find_spec("llama_cpp").origin).parent
    text = (package / "_ctypes_extensions.py").read_text(encoding="utf-8")
    if not text.startswith("# Changed by gguf-spec"):  # a compiled one
        text = ready_made.changed(text, ready_made.BUILDS[LINUX])
    lib = tmp_path / "llama_cpp" / "lib"
    lib.mkdir(parents=True)
    (tmp_path / "llama_cpp" / "_ctypes_extensions.py").write_text(text, encoding="utf-8")

    def make(path, number, *words):
        path.parent.mkdir(parents=True, exist_ok=True)
        source = tmp_path / "source.c"
        source.write_text(f"int number(void) {{ return {number}; }}")
        command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", path, source, *words]
        children.run(command, check=True)

    def loaded(system="linux", then=""):
        code = (
            f"import ctypes, pathlib, sys; sys.platform = {system!r}; sys.path.insert(0, {str(lib.parent)!r})\n"
            f"import _ctypes_extensions as e; lib = pathlib.Path({str(lib)!r})\n"
            f"llama = e.load_shared_library('llama', lib); {then}\nprint(llama.number())"
        )
        done = children.run([sys.executable, "-c", code], capture_output=True, text=True)
        return done.stdout.strip() or done.stderr.splitlines()[-1]

    return lib, make, loaded


@pytest.mark.parametrize(
    ("system", "names"),
    [
        ("linux", ["libllama.v0.5.0.so", "libllama-common.so"]),
        ("linux", ["libllama.cuda.v0.5.0.so", "libggml.cuda.v0.5.0.so"]),
        ("linux", ["libllama.so.0", "libmtmd.so"]),
        ("darwin", ["libllama.0.dylib", "libllama.dylib"]),
    ],
)
def test_the_library_of_a_package_is_found(loader, system, names):
    lib, make, loaded = loader
    for i, name in enumerate(names, 1):
        make(lib / name, i)
    assert loaded(system) == "1"


@pytest.mark.parametrize(("version", "folder"), [(13, "cu13"), (12, "cublas")])
def test_cudas_libraries_are_loaded_from_their_packages(loader, version, folder):
    """They lie in no folder that is searched; where one is missing, the others work."""
    lib, make, loaded = loader
    make(lib / "libllama.cuda.v0.5.0.so", 1)
    cublas = lib.parents[1] / "nvidia" / folder / "lib" / f"libcublas.so.{version}"
    make(cublas, 2)
    make(lib / "libggml-cuda.so", 3, "-Wl,--no-as-needed", cublas)
    assert loaded(then="ctypes.CDLL(str(lib / 'libggml-cuda.so'))") == "1"
    cublas.write_text("damaged")
    assert loaded() == "1"
    assert cublas.name in loaded(then="ctypes.CDLL(str(lib / 'libggml-cuda.so'))")
