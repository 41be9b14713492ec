"""Table of the options of `load` for devices and memory: one `Rule` for each.

The checks of `load` and the options of the command line are made from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import InvalidOptionError
from .option_rule import Rule

# Largest number of devices and of patterns, and characters of a pattern.
_ITEMS_MAX, PATTERN_MAX = 64, 256
# llama.cpp's largest number of layers
LAYERS_MAX = 512

LOADING: dict[str, Rule] = {
    "draft_threads": Rule(
        "integer",
        "Threads of the draft model.  [default: as the target]",
        1, 512, optional=True,
    ),
    "device": Rule(
        "string",
        "Device for the layers, as doctor names it, or none for the CPU alone. Repeatable.  "
        "[default: all GPUs]",
        shape="sequence", items_max=_ITEMS_MAX,
    ),
    "draft_device": Rule(
        "string",
        "The same for the draft model.  [default: as the target]",
        shape="sequence", items_max=_ITEMS_MAX,
    ),
    "cpu_moe": Rule("boolean", "Keep the experts of all layers in main memory."),
    "n_cpu_moe": Rule(
        "integer", "Keep the experts of the first N layers in main memory.", 0, LAYERS_MAX
    ),
    "override_tensor": Rule(
        "string",
        "PATTERN=DEVICE: put the tensors whose names match a regular expression on a device, or on "
        "CPU. The first match counts. Repeatable.",
        shape="sequence", items_max=_ITEMS_MAX,
    ),
    "mmap": Rule(
        "boolean",
        "Map the files into memory, or read them into it.  [default: mapped, if the device can]",
        optional=True, flags=("--mmap/--no-mmap",),
    ),
    "mlock": Rule("boolean", "Lock the weights in main memory, so that they are never paged out."),
    "numa": Rule(
        "string",
        "Placement of threads on a machine with several NUMA nodes.  [default: by the system]",
        choices=("distribute", "isolate", "numactl"), optional=True,
    ),
    "kernels": Rule(
        "string",
        "Kernels of this package where they work (auto), or llama.cpp's (stock). An instruction "
        "set serves tests.",
        choices=("auto", "stock", "avx2", "avxvnni", "avx512", "avx512vnni"),
    ),
}  # fmt: skip


def checked(name: str, value: Any) -> Any:
    """Return the value of an option; one text stands for a sequence of it.

    Raises:
        InvalidOptionError: The value is not allowed.
    """
    rule = LOADING[name]
    if rule.shape == "sequence":
        texts = (value,) if isinstance(value, str) else value
        value = tuple(texts) if isinstance(texts, Iterable) else value
    if not rule.accepts(value):
        raise InvalidOptionError(name, value, rule.allowed)
    return value
