"""What `doctor` finds out about llama.cpp, before it judges: its build, devices and kernels."""

from __future__ import annotations

import os
from collections.abc import Mapping
from ctypes import c_char_p
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InvalidOptionError
from ..llama import openmp, own_kernels
from ..llama.backend import build_features, gpu_problem, offloads
from ..llama.bindings import CPU_LIBRARY, call
from ..llama.devices import Device, check_placement, devices
from ..llama.options import ContextOptions
from ..system.files import read_json, write_json
from .facts import version_of

READY_MADE, COMPILED = "ready made", "compiled"
# part of the version of a ready-made llama-cpp-python (scripts/build/ready_made.py)
_OF_READY_MADE = "+llama.cpp."


@dataclass(frozen=True)
class Repacking:
    """Result of the self-test of repacked weights.

    Attributes:
        file: Where it is kept.
        problem: Why they fail now; empty if they work.
        earlier: Why they failed in the kept test; empty if they worked.
    """

    file: Path
    problem: str = ""
    earlier: str = ""

    @property
    def works(self) -> bool:
        return not (self.problem or self.earlier)


def _spin_variables() -> dict[str, str]:
    return {one: os.environ[one] for one in openmp.VARIABLES if one in os.environ}


@dataclass(frozen=True)
class Build:
    """The library llama.cpp that is in use; asks it for each field that is not given.

    Attributes:
        devices: The GPUs, or why those of the options cannot be used.
        repacking: Result of the self-test; None if the options leave repacked weights out.
        refused: Why the kernels of the options cannot be used.
        version: Version of llama-cpp-python; empty in a frozen app without it.
        features: As llama.cpp reports them, and `GPU`: whether it can offload to a GPU.
        variant: Processors that the library is made for; empty for a build for one machine.
        gpu_problem: Why the libraries for GPUs are of no use; empty without one.
        spin_variables: Those of the environment that decide how long threads spin.
        spins: As `openmp.spins`; None if llama.cpp's threads are not kept.
    """

    devices: tuple[Device, ...] | InvalidOptionError
    repacking: Repacking | None
    refused: InvalidOptionError | None
    kernels: own_kernels.Kernels
    tiles: int
    features: Mapping[str, str]
    spins: int | None
    version: str = field(default_factory=lambda: version_of("llama-cpp-python"))
    ggml: str = field(default_factory=lambda: call("ggml_version", result=c_char_p).decode())
    variant: str = field(default_factory=lambda: CPU_LIBRARY.variant if CPU_LIBRARY else "")
    gpu_problem: str = field(default_factory=gpu_problem)
    spin_state: openmp.State = field(default_factory=openmp.state)
    spin_variables: Mapping[str, str] = field(default_factory=_spin_variables)

    @classmethod
    def of(cls, options: ContextOptions, draft_options: ContextOptions) -> Build:
        """Start the kernels of these options, test repacked weights, and ask for the rest."""
        refused = None
        try:
            own_kernels.start(options.placement.kernels)
        except InvalidOptionError as error:
            refused = error
        return cls(
            devices=_devices(options, draft_options),
            repacking=_repacking() if options.extra_bufts else None,
            refused=refused,
            kernels=(kernels := own_kernels.in_use()),
            tiles=own_kernels.tiles() if kernels.name else 0,
            features=build_features() | {"GPU": str(int(offloads()))},
            spins=openmp.spins() if own_kernels.keeps_threads() else None,
        )

    def has(self, feature: str) -> bool:
        return self.features.get(feature, "0") != "0"

    @property
    def origin(self) -> str:
        is_ready_made = self.variant or _OF_READY_MADE in self.version
        return READY_MADE if is_ready_made else COMPILED


def _devices(
    options: ContextOptions, draft_options: ContextOptions
) -> tuple[Device, ...] | InvalidOptionError:
    try:
        check_placement(options.placement)
        check_placement(draft_options.placement, "draft_device")
    except InvalidOptionError as error:
        return error
    return tuple(devices())


def _repacking() -> Repacking:
    """Test repacked weights, unless a kept result says that they work.

    A failed test is repeated, because its result is kept until the library changes.
    """
    file = own_kernels.repacking_result()
    kept = read_json(file)
    known = isinstance(kept, dict) and "ok" in kept
    if known and kept["ok"]:
        return Repacking(file)
    problem = own_kernels.repacking_problem()
    if not (problem or known):
        write_json(file, {"ok": True, "problem": None})
    return Repacking(file, problem, str(kept.get("problem")) if known else "")
