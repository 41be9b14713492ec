"""One runner of probes: tests in a child process, because llama.cpp may end the process.

The tests are functions of `llama.selftest`. What one finds is kept in a file, for this machine,
this build of llama.cpp and everything else that the result depends on.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..system import subprogram
from ..system.files import cache_file, read_json, this_machine, write_json
from .library import gpu_backends, library_folder

_LOG = logging.getLogger(__name__)
# in the environment of a probe, whose children ask no drivers
_ASKING = "GGUF_SPEC_ASKS_DRIVERS"
# time limit of a try of a GPU in seconds; a driver that takes longer, to compile, is no fault
_PATIENCE_S = 60
# what tells that a driver, or how it is used, has changed: files, and beginnings of variables
_OF_DRIVERS = ("proc/driver/nvidia/version", "usr/share/vulkan/icd.d/*", "etc/vulkan/icd.d/*")
_SETTINGS = ("CUDA_", "GGML_", "VK_", "MESA_", "LD_", "LLAMA_CPP_")


class ProbeError(Exception):
    """A test did not run to its end; the message has no subject."""


def run(test: str, *arguments: object, timeout_s: float = 600) -> Any:
    """Run a test in a child process and return its result.

    Args:
        test: Name of the test in `llama.selftest`.

    Returns:
        The JSON value in the last line of the process's output.

    Raises:
        ProbeError: The process cannot be started, exceeds the time limit or ends without a value.
    """
    try:
        done = subprocess.run(
            command(test, *map(str, arguments)),
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # logs of llama.cpp may have parts of characters
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, _ASKING: "1"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeError(f"did not run: {error}") from None
    if done.returncode < 0:
        raise ProbeError(f"was ended by signal {-done.returncode}")
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise ProbeError(f"ended with code {done.returncode}") from None


@functools.cache
def driver_problem(gpu_layers: int = -1, devices: tuple[str, ...] = ()) -> str:
    """Return how a process ends that computes with the GPUs, as a driver may end it.

    It is empty if none does, or if llama.cpp has no libraries for GPUs. A success is kept until the
    driver, its settings or these libraries change. llama.cpp must not be loaded here before: it
    loads the drivers.
    """
    backends = gpu_backends(library_folder())
    if not backends or _ASKING in os.environ:
        return ""
    files = [*backends, *(one for name in _OF_DRIVERS for one in Path("/").glob(name))]
    about = [f"{path} {one.st_size} {one.st_mtime_ns}" for path in files for one in [path.stat()]]
    version = Path("/", _OF_DRIVERS[0])
    about += [version.read_text(encoding="utf-8")] if version.exists() else []
    about += [f"{name}={os.environ[name]}" for name in os.environ if name.startswith(_SETTINGS)]

    def find() -> str:
        try:
            run("gpu", gpu_layers, *devices, timeout_s=_PATIENCE_S)
        except ProbeError as error:
            # not an exception of Python, which the process that asks meets, too, nor a long time
            if str(error).startswith("was ended"):
                return f"with {', '.join(path.name for path in backends)} {error}"
        return ""

    key = ["drivers", *this_machine(), platform.release(), gpu_layers, *devices, *sorted(about)]
    return remembered(cache_file("probe", key), find, keep=False, alone="")


def command(*arguments: str) -> list[str]:
    return subprogram.command("gguf_spec.llama.selftest", *arguments)


def result_file(test: str, *key: object) -> Path:
    """Return the file of a result.

    Args:
        key: What the result depends on, beside the machine and the build of llama.cpp.
    """
    from .bindings import llama_parts  # a probe of drivers must not load them here

    return cache_file("probe", [test, *this_machine(), *llama_parts(), *key])


def remembered(
    file: Path,
    find: Callable[[], str],
    warning: str = "",
    keep: bool = True,
    alone: str | None = None,
) -> str:
    """Return the problem in a result file, or the one that is found now; empty if there is none.

    A file that is damaged or of another version counts as missing.

    Args:
        find: Runs the test and returns the problem.
        warning: What to log when a problem is found, with a place for it; empty to log nothing.
        keep: Whether a problem is kept. A success is kept in any case.
        alone: The problem where no child can be started, without a result; None to ask `find`.
    """
    match read_json(file):
        case {"ok": True}:
            return ""
        case {"ok": False, "problem": str(problem)} if keep:
            return problem
    if alone is not None and subprogram.refusal():
        return alone
    problem = find()
    if problem and warning:
        _LOG.warning(warning, problem)
    if keep or not problem:
        # if the file cannot be written, the next load tests again
        write_json(file, {"ok": not problem, "problem": problem})
    return problem
