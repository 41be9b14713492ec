"""Parts of a model that llama.cpp offloads to devices, by its own rule for layers."""

from __future__ import annotations

from typing import NamedTuple

from ..gguf.validation import Header
from .options import ContextOptions


class Offloaded(NamedTuple):
    """The part of a model that is on devices.

    Attributes:
        n_bytes: Bytes of its weights.
        share: Share of the layers, and so of the cache, from 0 to 1.
        has_output: Whether the output matrix is there, which computes the logits.
    """

    n_bytes: int
    share: float
    has_output: bool


def offloaded(header: Header, options: ContextOptions) -> Offloaded:
    """Return the part of a model that is on devices with a number of layers; all layers for `auto`.

    llama.cpp offloads the output first, as if it were the last layer, then the layers from the last
    to the first. The token embeddings stay here; tied ones are copied for the output.
    """
    n_layers = max(1, header.whole("block_count"))
    n = options.gpu_layers
    n_there = n if isinstance(n, int) and 0 <= n <= n_layers else n_layers + 1
    first = n_layers + 1 - n_there
    places = options.placement.places(tensor.name for tensor in header.tensors)
    tied = not any(tensor.name == "output.weight" for tensor in header.tensors)
    n_bytes = 0
    for tensor in header.tensors:
        kind, _, rest = tensor.name.partition(".")
        number = rest.partition(".")[0]
        if tensor.name in places:
            there = places[tensor.name] != "CPU"
        elif kind == "blk" and number.isdecimal():
            there = int(number) >= first
        else:
            is_output = kind.startswith("output") or (tied and kind == "token_embd")
            there = is_output and n_there > 0
        n_bytes += tensor.n_bytes if there else 0
    return Offloaded(n_bytes, (n_layers - min(first, n_layers)) / n_layers, n_there > 0)
