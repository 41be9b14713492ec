"""Devices of this build of llama.cpp: the CPU, and the GPUs that layers can be offloaded to."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidOptionError, Option, Text
from ..system.machine import format_bytes
from .bindings import C, call
from .options import CPU, NONE, Placement, expression

# ggml_backend_dev_type
CPU_KIND, GPU_KIND, _INTEGRATED_GPU = 0, 1, 2


@dataclass(frozen=True)
class Device:
    """A device that can hold layers.

    Attributes:
        name: Its name in llama.cpp, such as `CUDA0`.
        description: Its name by the manufacturer.
        is_integrated: Whether it is a part of the processor and uses the main memory.
        free_bytes: Free memory; 0 if the device does not report it.
        total_bytes: All of its memory; 0 if the device does not report it.
    """

    name: str
    description: str
    is_integrated: bool
    free_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        free = f", {format_bytes(self.free_bytes)} free" if self.free_bytes else ""
        return f"{self.name} ({self.description}{free})"


def devices() -> list[Device]:
    """Return all devices that can hold layers, in llama.cpp's order."""
    found = []
    for i in range(call("ggml_backend_dev_count", result=ctypes.c_size_t)):
        pointer = call("ggml_backend_dev_get", ctypes.c_size_t(i))
        kind = call("ggml_backend_dev_type", pointer, result=ctypes.c_int)
        if kind in (GPU_KIND, _INTEGRATED_GPU):
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            call("ggml_backend_dev_memory", pointer, ctypes.byref(free), ctypes.byref(total))
            name, description = (
                (call(f"ggml_backend_dev_{one}", pointer, result=ctypes.c_char_p) or b"").decode(
                    "utf-8", errors="replace"
                )
                for one in ("name", "description")
            )
            is_integrated = kind == _INTEGRATED_GPU
            found.append(Device(name, description, is_integrated, free.value, total.value))
    return found


def first_device(kind: int) -> Any:
    """Return the first device of a kind, as a pointer; None if there is none."""
    return call("ggml_backend_dev_by_type", kind)


def has_rpc() -> bool:
    return bool(C.llama_supports_rpc())


def has_gpu() -> bool:
    """Return whether there is a GPU; a build with the RPC backend claims it in any case."""
    return bool(first_device(GPU_KIND) or first_device(_INTEGRATED_GPU))


def devices_in_use(names: Sequence[str]) -> list[Device]:
    """Return the devices that llama.cpp uses for the option `device`.

    Args:
        names: Value of the option. If it is empty, llama.cpp takes all GPUs, and integrated ones
            only if there is no other.
    """
    return [] if NONE in names else taken(devices(), names)


def taken(found: list[Device], names: Sequence[str]) -> list[Device]:
    """Return those of the devices that llama.cpp takes for these names; see `devices_in_use`."""
    if names:
        return [one for one in found if one.name in names]
    return [one for one in found if not one.is_integrated] or found


def check_placement(placement: Placement, option: str = "device") -> None:
    """Reject devices that this build of llama.cpp does not have.

    Raises:
        InvalidOptionError: A device is unknown, named twice, or combined with `none`. The message
            lists the devices.
    """
    is_needed = placement.overrides or placement.devices not in ((), (NONE,))
    check_names(placement, devices() if is_needed else [], option)


def check_names(placement: Placement, known: Sequence[Device], option: str = "device") -> None:
    """Reject devices that are not among those that are known; see `check_placement`."""
    names = placement.devices
    for name in names if names != (NONE,) else ():
        if name not in [one.name for one in known]:
            no_gpu = Text("omit {}: this build of llama.cpp finds no GPU.", Option(option))
            allowed = _allowed(known, NONE)
            raise InvalidOptionError(option, name, allowed, None if known else no_gpu)
    if len(set(names)) < len(names):
        raise InvalidOptionError(option, ", ".join(names), "different devices")
    for pattern, name in placement.overrides:
        if name not in [CPU, *(one.name for one in known)]:
            allowed = f"PATTERN=DEVICE, with {_allowed(known, CPU)}"
            raise InvalidOptionError("override_tensor", f"{pattern}={name}", allowed)


def _allowed(known: Sequence[Device], other: str) -> str:
    return " or ".join([*(str(one) for one in known), other])


def apply_placement(placement: Placement, params: Any, names: Iterable[str]) -> list[Any]:
    """Write the fields of `llama_model_params` for devices and memory.

    Returns:
        Objects that must live until the model is loaded.
    """
    mmap = placement.mmap
    # llama.cpp's llama_load_mode
    params.load_mode = 3 - (mmap is False) if placement.mlock else -1 if mmap is None else int(mmap)
    kept: list[Any] = []
    if placement.devices:
        found = [_pointer(name) for name in placement.devices if name != NONE]
        array = (ctypes.c_void_p * (len(found) + 1))(*found, None)
        params.devices = ctypes.cast(array, ctypes.c_void_p)
        kept.append(array)
    # Names take the place of the user's patterns, because llama.cpp's expressions recurse for every
    # character of a match.
    if places := placement.places(names):
        entries = []
        for device in dict.fromkeys(places.values()):
            pattern = expression(name for name, place in places.items() if place == device)
            buffer_type = (
                call("ggml_backend_cpu_buffer_type")
                if device == CPU
                else call("ggml_backend_dev_buffer_type", _pointer(device))
            )
            entries.append(_Override(pattern.encode(), buffer_type))
        overrides = (_Override * (len(entries) + 1))(*entries, _Override(None, None))
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
        kept.append(overrides)
    return kept


class _Override(ctypes.Structure):
    """llama.cpp's `llama_model_tensor_buft_override`."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


def _pointer(name: str) -> int:
    return int(call("ggml_backend_dev_by_name", name.encode()))


def start_numa(strategy: str | None) -> None:
    """Choose how llama.cpp places its threads on NUMA nodes; once per process.

    Args:
        strategy: `distribute`, `isolate` or `numactl`; None changes nothing.

    Raises:
        InvalidOptionError: Another strategy is in use in this process.
    """
    if strategy is None or _numa == [strategy]:
        return
    if _numa:
        allowed = f"{_numa[0]} or omitted: llama.cpp takes one value per process"
        raise InvalidOptionError("numa", strategy, allowed)
    C.llama_numa_init(_NUMA[strategy])
    _numa.append(strategy)


_NUMA = {"distribute": 1, "isolate": 2, "numactl": 3}
# the strategy of this process; empty before the choice
_numa: list[str] = []
