"""Open the ready-made libraries for macOS and Windows, which no test here can load, and look up all that our Python asks for.

    .venv/bin/python scripts/checks/other_systems.py [--keep FOLDER]

The wheels of llama-cpp-python are assembled as the set-up does there. Looked up are the functions of llama_cpp.py and mtmd_cpp.py, those of ggml that
gguf_spec names, and the libraries that each library needs: a file beside it whose own name is the one that is asked for, or one of the system.
It needs pip's index; LIEF is fetched into a temporary folder.
"""

import argparse
import fnmatch
import importlib
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "build"))

import ready_made  # noqa: E402 -- found by the path set above
from _llama_wheel import CONSTRAINTS, call, say  # noqa: E402 -- found by the path set above

PIP = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check"]
DECLARED = re.compile(r'@ctypes_function(?:_\w+)?\(\s*"(\w+)"')
OF_GGML = re.compile(r'(?<!b)"(ggml_\w+)"')
# what ggml's libraries for the CPU are asked for where they were ready made with several generations, or for own kernels
LINUX_ONLY = {"ggml_barrier", "ggml_graph_plan", "ggml_cpu_has_llamafile", "ggml_cpu_has_wasm_simd"}
OF_THE_SYSTEM = {
    "darwin": ("/usr/lib/*", "/System/*"),
    "win32": ("kernel32.dll", "advapi32.dll", "api-ms-win-*"),
}


def asked_for(python: dict) -> dict:
    """Return the functions that are asked for, by the library in which they are looked up first."""
    ours = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("gguf_spec/llama/*.py"))
    devices = {f"ggml_backend_dev_{one}" for one in ("name", "description")}
    return {
        "llama": set(DECLARED.findall(python["llama_cpp/llama_cpp.py"].decode())),
        "mtmd": set(DECLARED.findall(python["llama_cpp/mtmd_cpp.py"].decode())),
        "ggml": {*OF_GGML.findall(ours), *devices} - LINUX_ONLY,
    }


class Library:
    """What a file says of itself: its own name, the libraries that it needs, and the functions that it offers."""

    def __init__(self, path: Path, lief):
        found = lief.parse(str(path))
        if isinstance(found, lief.PE.Binary):
            self.name, self.needs = path.name, [one.name for one in found.imports]
            self.offers = {one.name for one in found.exported_functions}
            return
        found = found if isinstance(found, lief.MachO.Binary) else found.at(0)
        names = [one.name for one in found.libraries]
        self.name, *self.needs = [one.replace("@loader_path/", "") for one in names]
        self.offers = {one.name.removeprefix("_") for one in found.exported_symbols}


def faults(system: str, libraries: dict, asked: dict) -> list:
    """Return what is missing in the libraries of a system, by their files."""
    found, lower = [], {name.lower() for name in libraries}
    for file, one in libraries.items():
        if one.name != file:
            found.append(f"{file} calls itself {one.name}: it can be loaded twice")
        for name in one.needs:
            system_has = any(
                fnmatch.fnmatch(name.lower(), it.lower()) for it in OF_THE_SYSTEM[system]
            )
            if name.lower() not in lower and not system_has:
                found.append(f"{file} needs {name}")
    # a library on macOS passes on the functions of those that it needs; on Windows ours are looked up in all of ggml's
    everything = set().union(*(one.offers for one in libraries.values()))
    for base, names in asked.items():
        own = [
            file for file in libraries if re.fullmatch(rf"(lib)?{base}(\.0)?\.(dylib|dll)", file)
        ]
        offered = (
            libraries[own[0]].offers if own and system == "win32" and base != "ggml" else everything
        )
        found += [f"{own[0] if own else base} lacks {name}" for name in sorted(names - offered)]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--keep", type=Path, help="a folder for the wheels")
    keep, n_faults = parser.parse_args().keep, 0
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("wb") as log:
        work = Path(folder)
        options = ["--no-deps", "--quiet", "--constraint", CONSTRAINTS, f"--target={work / 'lief'}"]
        subprocess.run([*PIP, "install", *options, "lief"], check=True)
        sys.path.insert(0, str(work / "lief"))
        lief = importlib.import_module("lief")
        sdist = ready_made.fetch_sdist(work, PIP, call, log)
        for name, row in ready_made.BUILDS.items():
            system = name.partition("-")[0]
            if system not in OF_THE_SYSTEM:
                continue
            part = work / name
            part.mkdir()
            archives = ready_made.fetch_libraries(part, row, None, PIP, call, log)
            if keep:
                keep.mkdir(parents=True, exist_ok=True)
            wheel = ready_made.make_wheel(keep or part, row, sdist, archives, 1)
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(part)
                python = {
                    one: archive.read(one) for one in archive.namelist() if one.endswith(".py")
                }
            files = sorted(part.glob("llama_cpp/lib/*"))
            asked = asked_for(python)
            found = faults(system, {one.name: Library(one, lief) for one in files}, asked)
            counts = ", ".join(f"{len(names)} of {base}" for base, names in asked.items())
            say(
                f"{name}: {len(files)} libraries; functions asked for: {counts}; missing: {len(found)}"
            )
            for one in found:
                say(f"  {one}")
            n_faults += len(found)
    return bool(n_faults)


if __name__ == "__main__":
    sys.exit(main())
