"""Build llama.cpp's library for another kind of processor, to test exact passes there.

    .venv/bin/python scripts/build/library.py avx2 FOLDER
    LLAMA_CPP_LIB_PATH=FOLDER/avx2 .venv/bin/python -m pytest --slow tests/exactness/test_exact_widths.py

`avx2` is a build for processors with AVX2 and without AVX-512 and AMX: the same kernels as there, on any machine that has more.
`llamafile` is one with llamafile's matrix products, with which the tests must fail. A build takes about three minutes on two cores;
it needs cmake, ninja, a C++ compiler, and pip's index.
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from _llama_wheel import llama_version

SAME = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",  # the libraries are moved
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_BUILD_COMMON=OFF",
]
SAME += [f"-DLLAMA_BUILD_{part}=OFF" for part in ("TESTS", "TOOLS", "EXAMPLES", "SERVER")]
AVX2 = [
    "-DGGML_NATIVE=OFF",
    *(f"-DGGML_{name}=ON" for name in ("AVX2", "FMA", "F16C", "BMI2")),
    "-DGGML_AVX512=OFF",
]
KINDS = {"avx2": ["-DGGML_LLAMAFILE=OFF", *AVX2], "llamafile": ["-DGGML_LLAMAFILE=ON"]}


def sources(folder: Path) -> Path:
    """Fetch the sdist of the wheel in use, and return the folder of its llama.cpp."""
    wanted = [
        "--no-deps",
        "--no-binary=llama-cpp-python",
        f"--dest={folder}",
        f"llama-cpp-python=={llama_version()}",
    ]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "download",
            "--quiet",
            *wanted,
        ],
        check=True,
    )
    (archive,) = folder.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument(
        "folder", type=Path, help="where a folder with the name of the kind is made"
    )
    args = parser.parse_args()
    missing = [program for program in ("cmake", "ninja") if not shutil.which(program)]
    if missing:
        print(
            f"Error: {' and '.join(missing)} not found.\nHint: install the package of that name.",
            file=sys.stderr,
        )
        return 1
    with tempfile.TemporaryDirectory() as work:
        build = Path(work) / "build"
        try:
            source = sources(Path(work))
            subprocess.run(
                ["cmake", "-G", "Ninja", "-S", source, "-B", build, *SAME, *KINDS[args.kind]],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            subprocess.run(["ninja", "-C", build, "llama"], check=True)
        except subprocess.CalledProcessError as error:
            print(
                f"Error: {error.cmd[0]} failed with code {error.returncode}.\nHint: what it printed above says why.",
                file=sys.stderr,
            )
            return 1
        target = args.folder / args.kind
        target.mkdir(parents=True, exist_ok=True)
        for library in (build / "bin").glob("*.so*"):
            shutil.copy(library, target, follow_symlinks=True)
    print(f"LLAMA_CPP_LIB_PATH={target.resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
