"""What `doctor` finds out about Python and the machine, before it judges."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

from ..llama.options import physical_cores
from ..system.files import cache_folder, existing, this_machine
from ..system.limits import ProcessorLimit, processor_limit
from ..system.machine import available_bytes, is_arm, limit_of, total_bytes

# exists if an NVIDIA driver is loaded
_NVIDIA = Path("/proc/driver/nvidia/version")


def _runs_on() -> str:
    return f"({platform.python_implementation()}) on {platform.system()} {platform.machine()}"


def cpu_of(machine: str, text: str) -> tuple[str, frozenset[str]]:
    """Return the processor's name and features, from `this_machine`; none if they are unknown."""
    pairs = (line.partition(":") for line in text.splitlines())
    fields = {key.strip(): value.strip() for key, colon, value in pairs if colon}
    # an emulator shows the processor of its host, which has the other field
    flags = fields.get("Features" if is_arm(machine) else "flags", "")
    # without fields the text is the name
    return fields.get("model name") or ("" if fields else text) or machine, frozenset(flags.split())


def _free_disk() -> int | str:
    folder = existing(cache_folder())
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        return f"{folder} cannot be examined: {error.strerror}"


def _allowed() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0


def version_of(distribution: str) -> str:
    """Return the installed version; empty if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return ""


@dataclass(frozen=True)
class Machine:
    """Python, the processor, the memory and the disk; asks the system for each field.

    Attributes:
        runs_on: Implementation of Python, operating system and architecture.
        installed: Version of the installed gguf-spec; empty if none is installed.
        flags: Features of the processor, as Linux names them; empty if they are unknown.
        allowed: Processors that this process may use; 0 if unknown.
        free: Free memory in bytes; None if unknown, as `total`.
        memory_limit: The limit that leaves no more free memory, for a message.
        free_disk: Free bytes on the disk of the cache, or why they are unknown.
    """

    python: tuple[int, ...] = field(default_factory=lambda: tuple(sys.version_info[:3]))
    runs_on: str = field(default_factory=_runs_on)
    installed: str = field(default_factory=lambda: version_of("gguf-spec"))
    cpu: str = field(default_factory=lambda: cpu_of(*this_machine())[0])
    flags: frozenset[str] = field(default_factory=lambda: cpu_of(*this_machine())[1])
    physical_cores: int = field(default_factory=physical_cores)
    processors: int = field(default_factory=lambda: os.cpu_count() or 1)
    allowed: int = field(default_factory=_allowed)
    processor_limit: ProcessorLimit | None = field(default_factory=processor_limit)
    free: int | None = field(default_factory=available_bytes)
    total: int | None = field(default_factory=total_bytes)
    memory_limit: str = field(default_factory=lambda: limit_of(available_bytes() or 0))
    free_disk: int | str = field(default_factory=_free_disk)
    has_nvidia: bool = field(default_factory=_NVIDIA.exists)
