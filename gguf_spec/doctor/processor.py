"""Checks of `doctor` for the processor: its features, the kernels and the threads."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from ..errors import InvalidOptionError, Text
from ..llama import openmp as openmp_module
from ..llama.options import ContextOptions, physical_cores
from ..system.files import read_json, write_json
from .check import Check
from .installation import REBUILD, has

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


def _cpu() -> tuple[str, set[str]]:
    """Return the processor's name and features.

    The set is empty if they are unknown.
    """
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n", maxsplit=1)[0]
    except OSError:
        return platform.processor() or platform.machine(), set()
    fields = {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in text.splitlines())
    }
    return fields.get("model name", platform.machine()), set(
        (fields.get("flags") or fields.get("Features") or "").split()
    )


def processor(features: Mapping[str, str]) -> Check:
    """Check that the build fits the processor."""
    name, flags = _cpu()
    there = {feature for feature, flag in _FEATURES.items() if flag in flags}
    used = {feature for feature in _FEATURES if has(features, feature)}
    if not flags:
        return Check("processor", "ok", f"{name}; its features are unknown")
    if used - there:
        return Check(
            "processor",
            "fail",
            f"{name} lacks {_listed(used - there)}, which this build of llama.cpp needs",
            REBUILD,
        )
    if unused := there - used - {"AMX_INT8"}:  # AMX has its own check
        return Check(
            "processor",
            "warn",
            f"{name} has {_listed(unused)}, which this build of llama.cpp does not use",
            REBUILD,
        )
    return Check("processor", "ok", f"{name}; the build uses all its features")


def _listed(features: set[str]) -> str:
    return ", ".join(feature for feature in _FEATURES if feature in features)


def fast_kernels(features: Mapping[str, str], options: ContextOptions) -> Check:
    """Check that the probe finds repacked weights correct.

    A failed probe is repeated, because its result is cached until the library changes.
    """
    from ..llama import selftest

    name, file = "fast kernels", selftest.result_file()
    if not options.extra_bufts:
        return Check(
            name,
            "ok",
            Text("not used: {extra_bufts=False}"),
            Text("omit {extra_bufts=False} to use them."),
        )
    kept = read_json(file)
    known = isinstance(kept, dict) and "ok" in kept
    if not (known and kept["ok"]):
        problem = selftest.probe()
        if problem:
            return Check(
                name,
                "warn",
                "repacked weights fail on this machine, so models are loaded without them, "
                f"which is slower but correct: {problem}",
                _REBUILD_AMX if has(features, "AMX_INT8") else REBUILD,
            )
        if known:
            found = (
                "they work now, but are not used because an earlier self-test failed: "
                f"{kept.get('problem')}"
            )
            return Check(name, "warn", found, f"remove {file} to repeat the self-test.")
        write_json(file, {"ok": True, "problem": None})
    how = "weights are repacked" if has(features, "REPACK") else "this build repacks no weights"
    return Check(
        name, "ok", f"{how}; the self-test finds the same logits with and without repacking"
    )


def kernels(options: ContextOptions) -> Check:
    """Start the kernels of this package, and check that they are in use."""
    from ..llama import own_kernels

    try:
        found = own_kernels.start(options.placement.kernels)
    except InvalidOptionError as error:
        return Check("kernels", "fail", error.message, error.hint)
    if found.name:
        return Check("kernels", "ok", f"those of gguf-spec, for {found.name}")
    text = f"those of llama.cpp: {found.reason}"
    return Check("kernels", "warn" if found.todo else "ok", text, found.todo)


def amx(features: Mapping[str, str], fast: Check) -> Check:
    """Check that the processor's matrix unit (AMX), if any, is used."""
    if "amx_int8" not in _cpu()[1]:
        return Check("AMX", "ok", "this processor has no AMX")
    if not has(features, "AMX_INT8"):
        return Check(
            "AMX", "warn", "this processor has it, but llama.cpp was built without it", REBUILD
        )
    if fast.status != "ok" or fast.todo:
        return Check(
            "AMX",
            "warn",
            "this processor and llama.cpp have it, but it is not used: see fast kernels",
            fast.todo,
        )
    return Check("AMX", "ok", "in use")


def threads(options: ContextOptions) -> Check:
    """Check that each core has exactly one thread."""
    cores, quota = physical_cores(), _quota()
    threads = options.threads or cores
    found = f"{threads} on {cores} physical core{'s' if cores > 1 else ''}"
    use_cores = Text("omit {threads}, or set {threads=}.", threads=cores)
    if quota is not None and threads > quota + 0.5:
        return Check(
            "threads",
            "warn",
            f"{found}, but this container may use {quota:.3g} of them",
            Text("set {threads=}.", threads=max(1, int(quota))),
        )
    if threads > cores:
        return Check(
            "threads",
            "warn",
            f"{found}: they wait for each other",
            use_cores,
        )
    if threads < cores:
        return Check("threads", "warn", f"{found}: the others are idle", use_cores)
    return Check("threads", "ok", found)


def openmp() -> Check:
    """Check that threads do not spin long at barriers.

    Long spinning makes passes many times slower beside another program.
    """
    name, slow = "OpenMP", "beside another program, passes can take many times as long"
    count, state = f"{openmp_module.SPIN_COUNT:,}", openmp_module.state()
    if state == "set":
        return Check(
            name, "ok", f"threads spin {count} times at a barrier, then sleep (set by gguf-spec)"
        )
    if state == "user":
        given = ", ".join(
            f"{one}={os.environ[one]}" for one in openmp_module.VARIABLES if one in os.environ
        )
        return Check(
            name, "ok", f"the environment sets how long threads spin at a barrier: {given}"
        )
    if state == "loaded":
        found = (
            f"another library of this process loaded libgomp first, with a long spin count: {slow}"
        )
        return Check(
            name,
            "warn",
            found,
            f"set GOMP_SPINCOUNT={openmp_module.SPIN_COUNT} before the program starts.",
        )
    if state == "absent":
        return Check(name, "ok", "this build does not use libgomp: the spin count is not set")
    return Check(name, "ok", "the spin count is set on Linux only")


def _quota() -> float | None:
    """Return the processor limit of the container; None without a limit."""
    try:
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return int(most) / int(period)
    except (OSError, ValueError):
        return None
