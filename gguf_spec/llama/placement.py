"""Where the weights of a model are: its devices, tensors with a device of their own, and paging."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from ..errors import InvalidOptionError
from ..gguf.validation import Header
from ..options import LAYERS_MAX, PATTERN_MAX, checked

# value of `device` for no GPU, and the name of the CPU for `override_tensor`
NONE, CPU = "none", "CPU"
# llama.cpp's llama_load_mode by (mapped, locked)
_LOAD_MODES = {
    (None, False): -1,
    (False, False): 0,
    (True, False): 1,
    (False, True): 2,
    (True, True): 3,
    (None, True): 3,
}
# Matrices of experts, as llama.cpp's `--cpu-moe` selects them; the group is the layer.
_EXPERTS = re.compile(r"^blk\.(\d+)\.ffn_(?:up|down|gate|gate_up)_(?:ch|)exps")
# start of the name of a tensor of a layer
_LAYER = re.compile(r"^blk\.(\d+)(?=\.)")


@dataclass(frozen=True)
class Placement:
    """Devices and memory of the weights.

    Attributes:
        devices: Names of the devices for layers; empty for all GPUs, `none` alone for the CPU.
        n_cpu_moe: Number of first layers whose experts stay in main memory.
        overrides: Pairs of a regular expression and a device. A tensor goes to the device of the
            first expression that matches a part of its name; before `n_cpu_moe`.
        mmap: Whether files are mapped into memory; None maps them if the devices can use that.
        mlock: Whether the weights in main memory are locked there.
        numa: NUMA strategy of the process, or None.
        kernels: Kernels of the process (`own_kernels.start`).
    """

    devices: tuple[str, ...] = ()
    n_cpu_moe: int = 0
    overrides: tuple[tuple[str, str], ...] = ()
    mmap: bool | None = None
    mlock: bool = False
    numa: str | None = None
    kernels: str = "auto"

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU may be used."""
        return NONE not in self.devices

    @property
    def parts(self) -> list[object]:
        """Parts of the names of files with measurements; empty for the defaults.

        Mapped and locked files change neither a bit nor, once read, a time.
        """
        parts: list[object] = [f"device {name}" for name in self.devices]
        parts += [f"{pattern}={device}" for pattern, device in self.overrides]
        parts += [f"experts {self.n_cpu_moe}"] if self.n_cpu_moe else []
        return [*parts, *([f"numa {self.numa}"] if self.numa else [])]

    def places(self, names: Iterable[str]) -> dict[str, str]:
        """Return tensor -> device, for the tensors that do not go where their layer goes."""
        patterns = [(_compiled(pattern), device) for pattern, device in self.overrides]
        found = {}
        for name in names:
            expert = _EXPERTS.match(name)
            device = next((device for pattern, device in patterns if pattern.search(name)), None)
            if device is None and expert and int(expert[1]) < self.n_cpu_moe:
                device = CPU
            if device is not None:
                found[name] = device
        return found

    def check_header(self, header: Header) -> None:
        """Reject options that select no tensor of a model.

        Raises:
            InvalidOptionError: A pattern matches no name, or the model has no experts.
        """
        names = [tensor.name for tensor in header.tensors]
        for pattern, device in self.overrides:
            if not any(_compiled(pattern).search(name) for name in names):
                raise InvalidOptionError(
                    "override_tensor",
                    f"{pattern}={device}",
                    f"a pattern that matches a tensor of {header.path.name}, such as "
                    f"{names[len(names) // 2] if names else 'output'}",
                )
        if self.n_cpu_moe and not any(map(_EXPERTS.match, names)):
            of_all = self.n_cpu_moe == LAYERS_MAX
            raise InvalidOptionError(
                "cpu_moe" if of_all else "n_cpu_moe",
                True if of_all else self.n_cpu_moe,
                f"{'False' if of_all else '0'}: {header.path.name} is no mixture of experts",
            )

    @property
    def load_mode(self) -> int:
        """llama.cpp's `llama_load_mode`."""
        return _LOAD_MODES[self.mmap, self.mlock]


def expression(names: Iterable[str]) -> str:
    """Return a regular expression that matches exactly these names of tensors.

    Layers are grouped, because llama.cpp limits the size of an expression.
    """
    layers: dict[str, list[str]] = {}
    for name in names:
        layer = _LAYER.match(name)
        layers.setdefault(name[layer.end() :] if layer else name, []).append(
            layer[1] if layer else ""
        )
    parts = [
        (rf"blk\.(?:{'|'.join(numbers)})" if numbers[0] else "") + re.escape(rest)
        for rest, numbers in layers.items()
    ]
    return f"^(?:{'|'.join(parts)})$"


def read_placement(
    device: str | Sequence[str] = (),
    cpu_moe: bool = False,
    n_cpu_moe: int = 0,
    override_tensor: str | Sequence[str] = (),
    mmap: bool | None = None,
    mlock: bool = False,
    numa: str | None = None,
    kernels: str = "auto",
) -> Placement:
    """Return the placement from arguments of `load`.

    Whether the devices exist is not checked (`devices.check_placement`).

    Raises:
        InvalidOptionError: An argument is not allowed.
    """
    n_experts = checked("n_cpu_moe", n_cpu_moe)
    return Placement(
        checked("device", device),
        LAYERS_MAX if checked("cpu_moe", cpu_moe) else n_experts,
        tuple(_override(one) for one in checked("override_tensor", override_tensor)),
        checked("mmap", mmap),
        checked("mlock", mlock),
        checked("numa", numa),
        checked("kernels", kernels),
    )


def _override(given: str) -> tuple[str, str]:
    """Return pattern and device of a `PATTERN=DEVICE` text; the device is not checked.

    Raises:
        InvalidOptionError: The text has another form, or its pattern is not a regular expression or
            longer than 256 characters.
    """
    pattern, _, device = given.rpartition("=")
    if not pattern or not device:
        raise InvalidOptionError("override_tensor", given[:80], "PATTERN=DEVICE, as in exps=CPU")
    if len(pattern) > PATTERN_MAX:
        raise InvalidOptionError(
            "override_tensor",
            f"{pattern[:40]}...={device[:40]}",
            f"a pattern of at most {PATTERN_MAX} characters",
        )
    try:
        _compiled(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidOptionError(
            "override_tensor", given, f"a regular expression and a device ({error})"
        ) from None
    return pattern, device


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
