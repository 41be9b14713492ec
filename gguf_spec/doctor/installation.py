"""Checks of `doctor` for the installation: Python, this package and llama.cpp.

llama.cpp may be broken, so it is imported only in the checks that need it.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import InvalidOptionError, Text
from ..llama import openmp
from ..llama.memory import features_of
from ..llama.options import ContextOptions
from .check import Check

# oldest supported version of Python
_OLDEST_PYTHON = (3, 10)
# functions of llama.cpp that this package needs
_NEEDED = (
    "llama_memory_seq_rm",
    "llama_model_is_hybrid",
    "llama_model_is_diffusion",
    "llama_synchronize",
    "llama_log_set",
)
# exists if an NVIDIA driver is loaded
_NVIDIA = Path("/proc/driver/nvidia/version")
# advice for builds
_GPU_BUILD = "export CMAKE_ARGS=-DGGML_CUDA=on and reinstall llama-cpp-python to use the GPU."
REBUILD = (
    "build llama-cpp-python again on this machine: in a clone, scripts/run does so; elsewhere run "
    "`pip uninstall llama-cpp-python` there, then `pip install .` in a clone."
)


def python() -> Check:
    """Check that Python is new enough."""
    version, oldest = sys.version_info[:3], ".".join(map(str, _OLDEST_PYTHON))
    found = (
        f"{'.'.join(map(str, version))} ({platform.python_implementation()}) "
        f"on {platform.system()} {platform.machine()}"
    )
    return (
        Check("Python", "ok", found)
        if version >= _OLDEST_PYTHON
        else Check("Python", "fail", found, f"use Python {oldest} or newer.")
    )


def package(version: str) -> Check:
    """Check that the running package is the installed one."""
    try:
        installed = importlib.metadata.version("gguf-spec")
    except importlib.metadata.PackageNotFoundError:
        return Check("gguf-spec", "ok", f"{version}, from {Path(__file__).parents[2]}")
    if installed != version:
        found = f"{version} runs from {Path(__file__).parents[2]}, but {installed} is installed"
        return Check(
            "gguf-spec", "warn", found, "reinstall gguf-spec, or run it outside the clone."
        )
    return Check("gguf-spec", "ok", version)


def library() -> Check:
    """Check that llama.cpp can be imported and is new enough."""
    name = "llama.cpp"
    try:
        with openmp.spin_count_set():
            import llama_cpp

    # for example, the shared library is missing or was built for another machine
    except (ImportError, OSError, RuntimeError) as error:
        todo = "reinstall it: pip install --force-reinstall llama-cpp-python."
        return Check(name, "fail", f"llama-cpp-python cannot be imported: {error}", todo)
    missing = [one for one in _NEEDED if not hasattr(llama_cpp, one)]
    if missing:
        found = f"llama-cpp-python {llama_cpp.__version__} lacks {', '.join(missing)}"
        return Check(name, "fail", found, "upgrade it: pip install --upgrade llama-cpp-python.")
    return Check(name, "ok", f"llama-cpp-python {llama_cpp.__version__}")


def build_features() -> dict[str, str]:
    """Return the features of this build of llama.cpp, from its own report.

    The report has the form `CPU : AVX2 = 1 | REPACK = 1 | `. `GPU` is added: whether the build
    can offload to a GPU.
    """
    import llama_cpp

    from ..llama.rpc import has_gpu, has_rpc

    gpu = llama_cpp.llama_supports_gpu_offload() and (not has_rpc() or has_gpu())
    return features_of(llama_cpp.llama_print_system_info().decode()) | {"GPU": str(int(gpu))}


def build(features: Mapping[str, str], options: ContextOptions) -> Check:
    """Check that the build can use the GPU, if there is one."""
    gpu = has(features, "GPU")
    found = (
        f"{'with' if gpu else 'without'} GPU offload; "
        f"{', '.join(name for name in features if name != 'GPU' and has(features, name))}"
    )
    if not gpu and options.wants_gpu:
        found = Text(
            "it has no GPU backend, which {gpu_layers=} needs", gpu_layers=options.gpu_layers
        )
        return Check("build", "fail", found, Text("omit {gpu_layers}, or {}", _GPU_BUILD))
    if not gpu and _NVIDIA.exists():
        return Check(
            "build", "warn", f"it does not use this machine's NVIDIA GPU; {found}", _GPU_BUILD
        )
    return Check("build", "ok", found)


def devices(options: ContextOptions, draft_options: ContextOptions) -> list[Check]:
    """List the GPUs, and check that the devices of the options exist."""
    from ..llama import devices

    try:
        devices.check_placement(options.placement)
        devices.check_placement(draft_options.placement, "draft_device")
    except InvalidOptionError as error:
        return [Check("devices", "fail", error.message, error.hint)]
    found = devices.devices()
    return [Check("devices", "ok", "; ".join(map(str, found)))] if found else []


def has(features: Mapping[str, str], name: str) -> bool:
    """Return whether a build has a feature."""
    return features.get(name, "0") != "0"


def workers(addresses: Sequence[str]) -> Check:
    """Check that the workers of a model accept connections."""
    from ..llama import rpc

    try:
        lost = rpc.unreachable(rpc.parse_workers(addresses))
    except InvalidOptionError as error:
        return Check("workers", "fail", error.message, error.hint)
    if lost:
        port = lost[0].rpartition(":")[2]
        return Check(
            "workers",
            "fail",
            f"no worker answers at {' and '.join(lost)}",
            f"on the other machine: gguf-spec worker; here: ssh -N -L {port}:127.0.0.1:50052 HOST.",
        )
    return Check("workers", "ok", f"{' and '.join(addresses)} accept connections")
