"""`gpu_layers="auto"`: as many layers on the devices as fit into their free memory.

The draft model comes first, because it is small and runs most often. A mixture of experts that does
not fit keeps the experts of its first layers in main memory: an expert is used for few tokens, the
rest of a layer for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..gguf.validation import Header
from .cache_size import cache_bytes
from .devices import Device, devices_in_use
from .memory import compute_bytes
from .native import N_BATCH
from .offload import offloaded
from .options import ContextOptions

# Memory of a device that stays free for the driver and other programs: bytes, and largest share.
_MARGIN, _MARGIN_SHARE = 1 << 30, 0.125
# bytes; stands for a device that reports no memory
_UNLIMITED = float(1 << 60)

Models = Sequence[tuple[Header, ContextOptions]]


def fit_layers(
    models: Models, devices: Callable[[Sequence[str]], list[Device]] = devices_in_use
) -> list[tuple[Header, ContextOptions]]:
    """Return the models with numbers in place of `auto`.

    Args:
        models: Header and options of the target, and of a draft, whose context is as long as the
            target's.
        devices: Returns the devices for the option `device`.
    """
    if not any(_is_auto(options) for _, options in models):
        return [*models]
    header, options = models[0]
    n_ctx = options.positions(header.whole("context_length"))
    taken: dict[str, float] = {}
    fitted: list[tuple[Header, ContextOptions]] = []
    for header, options in reversed(models):
        of_model = devices(options.placement.devices)
        free = {one.name: max(0.0, room_of(one) - taken.get(one.name, 0.0)) for one in of_model}
        chosen = _fitted(header, options, n_ctx, free) if _is_auto(options) else options
        used, whole = device_bytes(header, chosen, n_ctx, len(free)), sum(free.values())
        for name, n_bytes in free.items():
            taken[name] = taken.get(name, 0.0) + (used * n_bytes / whole if whole else 0.0)
        fitted.insert(0, (header, chosen))
    return fitted


def _is_auto(options: ContextOptions) -> bool:
    return options.gpu_layers == "auto"


def room_of(device: Device) -> float:
    """Return the bytes of a device that models may take; without limit if it reports none."""
    if not (device.free_bytes or device.total_bytes):
        return _UNLIMITED
    return device.free_bytes - min(_MARGIN, _MARGIN_SHARE * device.total_bytes)


def device_bytes(header: Header, options: ContextOptions, n_ctx: int, n_devices: int) -> int:
    """Return the bytes that a model takes on its devices: weights, cache and activations."""
    there = offloaded(header, options)
    if not n_devices or not (there.n_bytes or there.share):
        return 0
    cache = options.parallel * cache_bytes(header, options, n_ctx)
    passes = compute_bytes(header, options, n_ctx, N_BATCH, with_logits=there.has_output)
    return there.n_bytes + round(cache * there.share) + n_devices * passes


def _fitted(
    header: Header, options: ContextOptions, n_ctx: int, free: dict[str, float]
) -> ContextOptions:
    """Return the options with the largest number of layers that fits."""
    n_layers = max(1, header.whole("block_count"))
    # llama.cpp splits by whole layers, so each device but one may get a layer more
    layer = (len(free) - 1) * header.file_bytes / (n_layers + 1) if free else 0.0
    room = sum(free.values()) - layer

    def fits(one: ContextOptions) -> bool:
        return device_bytes(header, one, n_ctx, len(free)) <= room

    everything = replace(options, gpu_layers=-1)
    if not free or fits(everything):
        return everything
    own = options.placement
    if header.whole("expert_count") and not (own.n_cpu_moe or own.overrides):
        for n in range(1, n_layers + 1):
            everything = replace(everything, placement=replace(own, n_cpu_moe=n))
            if fits(everything):
                return everything
    return next(
        (one for n in range(n_layers, 0, -1) if fits(one := replace(everything, gpu_layers=n))),
        replace(options, gpu_layers=0),
    )
