"""Checks of `doctor` for the installation and the machine.

They are about Python, this package, llama.cpp, the processor, the memory and the disk, and judge
the records `Machine` and `Build`. llama.cpp may be broken: `drivers` and `library` tell whether it
can be asked. The checks of folders look into them.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..errors import BindingError, InvalidOptionError, NotInstalledError, Text
from ..llama import probe, structures
from ..llama.library import library_folder
from ..llama.openmp import SPIN_COUNT, spin_count_set
from ..llama.options import NEEDS_OF_GPU, ContextOptions
from ..plugins import plugin
from ..system.files import (
    CACHE_FOLDERS,
    DISK_FULL,
    cache_file,
    cache_folder,
    config_folder,
    existing,
    files_below,
    read_json,
    state_folder,
    write_json,
)
from ..system.machine import format_bytes
from .facts import Machine

if TYPE_CHECKING:
    from .build import Build  # it loads llama.cpp

# oldest supported version of Python
_OLDEST_PYTHON = (3, 10)
# advice for builds
_GPU_BUILD = (
    "take one for the GPU that is there: in a clone scripts/run --gpu, elsewhere "
    "GGUF_SPEC_BUILD_LLAMA=gpu and pip install --force-reinstall there."
)
REBUILD = (
    "take the ready-made llama.cpp, or build it on this machine: in a clone, scripts/run "
    "--ready-made or --native; elsewhere `pip uninstall llama-cpp-python`, then `pip install .` in "
    "a clone."
)
# advice for a build whose AMX kernels crash
_REBUILD_AMX = f"GCC needs -fno-tree-dse -fno-dse for AMX in CFLAGS and CXXFLAGS; {REBUILD}"
# processor feature in llama.cpp -> its flag in Linux
_FEATURES = {
    "SSE3": "pni",
    "SSSE3": "ssse3",
    "AVX": "avx",
    "AVX2": "avx2",
    "F16C": "f16c",
    "FMA": "fma",
    "BMI2": "bmi2",
    "AVX_VNNI": "avx_vnni",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_int8",
    "NEON": "asimd",
    "DOTPROD": "asimddp",
    "MATMUL_INT8": "i8mm",
    "SVE": "sve",
}
# features from the best to the least -> generations that have them
_GENERATIONS = {
    "amx_int8": "AMX and AVX-512 VNNI (Sapphire Rapids and later)",
    "avx512_vnni": "AVX-512 VNNI (Cascade Lake, Ice Lake, Zen 4 and later)",
    "avx512f": "AVX-512 without VNNI (Skylake-X)",
    "avx_vnni": "AVX-VNNI (Alder Lake and later)",
    "avx2": "AVX2 (Haswell to Zen 3)",
    "avx": "AVX without AVX2 (Sandy Bridge, Ivy Bridge)",
    "sve": "ARM with SVE (Neoverse V)",
    "i8mm": "ARM with i8mm (Apple M2, Neoverse V1, Cortex-X2 and later)",
    "asimddp": "ARM with dot products (Cortex-A76, Raspberry Pi 5, Apple M1)",
    "asimd": "ARM without dot products (Cortex-A72, Raspberry Pi 4)",
}
# bytes of free disk and memory below which a check warns
_LITTLE_DISK, _LITTLE_MEMORY = 100e6, 500e6


Status: TypeAlias = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        status: `ok`; `warn` if it works, but worse than possible; `fail` if it does not work.
        found: Description of the result.
        todo: Advice; empty if nothing is to be done.
    """

    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    todo: str = ""


def python(machine: Machine) -> Check:
    """Check that Python is new enough."""
    found = f"{'.'.join(map(str, machine.python))} {machine.runs_on}"
    if machine.python < _OLDEST_PYTHON:
        oldest = ".".join(map(str, _OLDEST_PYTHON))
        return Check("Python", "fail", found, f"use Python {oldest} or newer.")
    return Check("Python", "ok", found)


def package(machine: Machine, version: str) -> Check:
    """Check that the running package is the installed one."""
    folder, installed = Path(__file__).parents[2], machine.installed
    if not installed:
        return Check("gguf-spec", "ok", f"{version}, from {folder}")
    if installed != version:
        found = f"{version} runs from {folder}, but {installed} is installed"
        todo = "reinstall gguf-spec, or run it outside the clone."
        return Check("gguf-spec", "warn", found, todo)
    return Check("gguf-spec", "ok", version)


def drivers(options: ContextOptions) -> list[Check]:
    """Compute with the GPUs in another process, as a driver may end it.

    llama.cpp must not be loaded here before: it loads the drivers.
    """
    if problem := probe.driver_problem(options.gpu_layers, options.placement.devices):
        found = f"llama.cpp {problem}: the other checks need it"
        todo = (
            "update the driver of the GPU, or remove these files from "
            f"{library_folder()} to use the processor."
        )
        return [Check("GPU driver", "fail", found, todo)]
    return []


def library() -> Check:
    """Check that llama.cpp can be imported, and that its functions and structures fit."""
    name = "llama.cpp"
    try:
        with spin_count_set():
            import llama_cpp

    # for example, the shared library is missing or was built for another machine
    except (ImportError, OSError, RuntimeError) as error:
        todo = (
            "in a clone, remove .venv, then scripts/run; elsewhere "
            "pip install --force-reinstall llama-cpp-python."
        )
        return Check(name, "fail", f"llama-cpp-python cannot be imported: {error}", todo)
    if reason := structures.misfit(llama_cpp):
        misfit = BindingError(llama_cpp.__version__, reason, structures.TESTED)
        return Check(name, "fail", misfit.message, misfit.hint)
    version = llama_cpp.__version__
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # a frozen app without it
        version = importlib.metadata.version("llama-cpp-python")
    return Check(name, "ok", f"llama-cpp-python {version}")


def can_offload() -> bool:
    """Return whether this build of llama.cpp can use a GPU."""
    from ..llama.backend import offloads

    return offloads()


def why_no_gpu() -> str:
    """Return what a library for a GPU lacks, or that this build of llama.cpp has none."""
    from ..llama.backend import gpu_problem

    return gpu_problem() or "this build of llama.cpp has no GPU backend"


def of_build(machine: Machine, build: Build, options: ContextOptions) -> list[Check]:
    """Check llama.cpp's build, its devices and kernels, and that they fit the processor."""
    return [
        offload(machine, build, options),
        *devices(build),
        processor(machine, build),
        fast_kernels(build),
        kernels(build),
        amx(machine, build),
        openmp(build),
    ]


def offload(machine: Machine, build: Build, options: ContextOptions) -> Check:
    """Check that the build can use the GPU, if there is one."""
    gpu = build.has("GPU")
    names = ", ".join(name for name in build.features if name != "GPU" and build.has(name))
    found = (
        f"{build.origin}, ggml {build.ggml}; {'with' if gpu else 'without'} GPU offload; {names}"
    )
    if not gpu and build.gpu_problem:
        status: Status = "fail" if options.wants_gpu else "warn"
        return Check("build", status, build.gpu_problem, NEEDS_OF_GPU)
    if not gpu and options.wants_gpu:
        found = Text(
            "it has no GPU backend, which {gpu_layers=} needs", gpu_layers=options.gpu_layers
        )
        return Check("build", "fail", found, Text("omit {gpu_layers}, or {}", _GPU_BUILD))
    if not gpu and machine.has_nvidia:
        found = f"it does not use this machine's NVIDIA GPU; {found}"
        return Check("build", "warn", found, _GPU_BUILD)
    return Check("build", "ok", found)


def devices(build: Build) -> list[Check]:
    """List the GPUs, and check that the devices of the options exist."""
    found = build.devices
    if isinstance(found, InvalidOptionError):
        return [Check("devices", "fail", found.message, found.hint)]
    return [Check("devices", "ok", "; ".join(map(str, found)))] if found else []


def workers(addresses: Sequence[str]) -> Check:
    """Check that the workers of a model accept connections."""
    try:
        package = plugin("workers")
        lost = package.unreachable(package.parse_workers(addresses))
    except (InvalidOptionError, NotInstalledError) as error:
        return Check("workers", "fail", error.message, error.hint)
    if not lost:
        return Check("workers", "ok", f"{' and '.join(addresses)} accept connections")
    port = lost[0].rpartition(":")[2]
    todo = f"on the other machine: gguf-spec worker; here: ssh -N -L {port}:127.0.0.1:50052 HOST."
    return Check("workers", "fail", f"no worker answers at {' and '.join(lost)}", todo)


def processor(machine: Machine, build: Build) -> Check:
    """Check that the build fits the processor, and name its generation."""
    name, flags = machine.cpu, machine.flags
    there = {feature for feature, flag in _FEATURES.items() if flag in flags}
    used = {feature for feature in _FEATURES if build.has(feature)}
    unused = there - used - {"AMX_INT8"}  # AMX has its own check
    if not flags:
        return Check("processor", "ok", f"{name}; its features are unknown")
    about = f"{name}: {generation(flags)}"
    if used - there:
        found = f"{about}; it lacks {_listed(used - there)}, which this build of llama.cpp needs"
        return Check("processor", "fail", found, REBUILD)
    if build.variant:
        return Check("processor", "ok", f"{about}; llama.cpp's kernels for {build.variant}")
    if unused and not build.kernels.name:
        found = f"{about}; it has {_listed(unused)}, which this build of llama.cpp does not use"
        return Check("processor", "warn", found, REBUILD)
    return Check("processor", "ok", about)


def generation(flags: Iterable[str]) -> str:
    """Return the generation of a processor: the best of its features, as Linux names them."""
    return next((text for flag, text in _GENERATIONS.items() if flag in flags), "without AVX")


def _listed(features: set[str]) -> str:
    return ", ".join(feature for feature in _FEATURES if feature in features)


def fast_kernels(build: Build) -> Check:
    """Check that the self-test finds repacked weights correct."""
    name, test = "fast kernels", build.repacking
    if not test:
        todo = Text("omit {extra_bufts=False} to use them.")
        return Check(name, "ok", Text("not used: {extra_bufts=False}"), todo)
    if test.problem:
        found = (
            "repacked weights fail on this machine, so models are loaded without them, "
            f"which is slower but correct: {test.problem}"
        )
        return Check(name, "warn", found, _REBUILD_AMX if build.has("AMX_INT8") else REBUILD)
    if test.earlier:
        found = (
            f"they work now, but are not used because an earlier self-test failed: {test.earlier}"
        )
        return Check(name, "warn", found, f"remove {test.file} to repeat the self-test.")
    how = "weights are repacked" if build.has("REPACK") else "this build repacks no weights"
    found = f"{how}; the self-test finds the same logits with and without repacking"
    return Check(name, "ok", found)


def kernels(build: Build) -> Check:
    """Check that the kernels of this package are in use."""
    found, error = build.kernels, build.refused
    if error:
        return Check("kernels", "fail", error.message, error.hint)
    if found.name:
        return Check("kernels", "ok", f"those of gguf-spec, for {found.name}")
    text = f"those of llama.cpp: {found.reason}"
    return Check("kernels", "warn" if found.todo else "ok", text, found.todo)


def amx(machine: Machine, build: Build) -> Check:
    """Check that the processor's matrix unit (AMX), if any, is used."""
    if "amx_int8" not in machine.flags:
        return Check("AMX", "ok", "this processor has no AMX")
    if used := build.kernels.name:
        if build.tiles < 0:
            text = "the system refuses its use, as a rule because of a small signal stack"
            return Check("AMX", "warn", text, "give signal stacks AT_MINSIGSTKSZ bytes and more.")
        text = "in use, by the kernels of gguf-spec, for many rows"
        return Check("AMX", "ok", text if build.tiles else f"not used by the kernels for {used}")
    if not build.has("AMX_INT8"):
        found = "this processor has it, but llama.cpp was built without it"
        return Check("AMX", "warn", found, REBUILD)
    if todo := fast_kernels(build).todo:
        found = "this processor and llama.cpp have it, but it is not used: see fast kernels"
        return Check("AMX", "warn", found, todo)
    return Check("AMX", "ok", "in use")


def threads(machine: Machine, options: ContextOptions) -> Check:
    """Check that each core has exactly one thread."""
    cores, limit, allowed = machine.physical_cores, machine.processor_limit, machine.allowed
    threads = options.threads or cores
    found = f"{threads} on {cores} physical core{'s' if cores > 1 else ''}"
    if limit:
        found += f" (the limit is {limit.processors:.3g}: {limit.source})"
    if 0 < allowed < machine.processors:
        found += f" ({allowed} of {machine.processors} processors are allowed)"
    todo = Text("omit {threads}, or set {threads=}.", threads=cores)
    if threads == cores:
        return Check("threads", "ok", found)
    found += ": they wait for each other" if threads > cores else ": the others are idle"
    return Check("threads", "warn", found, todo)


def openmp(build: Build) -> Check:
    """Check that threads do not spin long at barriers, which is slow beside another program."""
    state = build.spin_state
    if state == "absent" and build.spins is not None:
        fact = f"not used: llama.cpp's threads spin {build.spins:,} times, then sleep"
        return Check("OpenMP", "ok", fact)
    if state == "loaded":
        fact = (
            "another library of this process loaded libgomp first, with a long spin count: beside "
            "another program, passes can take many times as long"
        )
        todo = f"set GOMP_SPINCOUNT={SPIN_COUNT} before the program starts."
        return Check("OpenMP", "warn", fact, todo)
    values = ", ".join(f"{name}={value}" for name, value in build.spin_variables.items())
    fact = {
        "set": f"threads spin {SPIN_COUNT:,} times at a barrier, then sleep (set by gguf-spec)",
        "user": f"the environment sets how long threads spin at a barrier: {values}",
        "absent": "not used: llama.cpp's threads spin as long as they wait",
    }.get(state, "the spin count is set on Linux only")
    return Check("OpenMP", "ok", fact)


def memory(machine: Machine) -> Check:
    """Check that some memory is free."""
    free, total = machine.free, machine.total
    if free is None or not total:
        return Check("memory", "ok", "unknown")
    found = f"{format_bytes(free)} of {format_bytes(total)} are free{machine.memory_limit}"
    if free < _LITTLE_MEMORY:
        return Check("memory", "warn", found, "close other programs.")
    return Check("memory", "ok", found)


def own_folders() -> list[tuple[str, Path, int]]:
    """Return what this program has written for its user: contents, folder and bytes of each."""
    found = []
    for contents, folder in (
        ("models, kernels, measurements", cache_folder()),
        ("chats, typed lines, texts before edits", state_folder()),
        ("settings", config_folder()),
    ):
        if folder.is_dir():
            found.append((contents, folder, sum(_sizes(files_below(folder)))))
    return found


def history() -> Check:
    """Say what is kept of the chats at this terminal."""
    folder = state_folder()
    n = len([*(folder / "chats").glob("*.json")])
    typed = folder / "chat-history"
    n_bytes = sum(file_sizes([folder / "chats"]))
    n_bytes += typed.stat().st_size if typed.is_file() else 0
    found = f"{n:,} chat{'' if n == 1 else 's'} and typed lines in {folder}, {n_bytes:,} bytes"
    more = "; `gguf-spec chat --forget` removes them"
    return Check("history", "ok", found + more if n_bytes else "nothing of a chat is kept")


def disk(machine: Machine) -> Check:
    """Check that the disk has space for the caches."""
    free = machine.free_disk
    if isinstance(free, str):
        return Check("disk", "warn", free, "set XDG_CACHE_HOME to another folder.")
    found = f"{format_bytes(free)} are free in {cache_folder()}"
    if free < _LITTLE_DISK:
        todo = "free disk space, or set XDG_CACHE_HOME to a folder on another disk."
        return Check("disk", "warn", found, todo)
    return Check("disk", "ok", found)


def _is_full(folder: Path) -> bool:
    """Return whether nothing can be written because the disk, or the user's quota, is full."""
    try:
        with TemporaryFile(dir=existing(folder), buffering=0) as file:
            file.write(bytes(4096))
    except OSError as error:
        return error.errno in DISK_FULL
    return False


def cache() -> Check:
    """Check that measurements can be cached."""
    failed = []
    for kind in CACHE_FOLDERS:
        file = cache_file(kind, ["doctor", os.getpid()])
        if not write_json(file, kind) or read_json(file) != kind:
            failed.append(str(cache_file(kind, []).parent))
        with contextlib.suppress(OSError):
            file.unlink()
    if failed:
        found = f"nothing can be saved in {' and '.join(failed)}: each load measures again"
        why = "free disk space" if _is_full(cache_folder()) else "change its permissions"
        todo = f"{why}, or set XDG_CACHE_HOME to another folder."
        return Check("cache", "warn", found, todo)
    folder = cache_folder()
    places = {
        "measurements": [folder / kind for kind in CACHE_FOLDERS],
        "models": [folder / "models", *(folder / "models").glob("*")],
        "the set-up": [folder / "kernels", *(folder / "wheels").glob("*")],
    }
    sizes = {what: sum(file_sizes(where)) for what, where in places.items()}
    shown = [f"{format_bytes(n)} of {what}" for what, n in sizes.items() if n]
    found = f"{folder} can be written and read; it contains {', '.join(shown) or 'nothing'}"
    return Check("cache", "ok", found)


def file_sizes(folders: Iterable[Path]) -> Iterator[int]:
    """Yield the sizes of the files in folders, without subfolders."""
    for folder in folders:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            yield from _sizes(folder.iterdir())


def _sizes(paths: Iterable[Path]) -> Iterator[int]:
    """Yield the sizes of those paths that are files; another program may remove one meanwhile."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                yield status.st_size
