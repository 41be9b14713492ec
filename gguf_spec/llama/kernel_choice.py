"""Choice between repacked and plain kernels by measurement.

llama.cpp can copy weights into another order for this CPU. The kernels for these copies are usually
faster for a single row. For K-quants they limit verification to fewer rows with exact bits
(`llama.exact_kernels`), and prompts can take longer. Both kinds are timed on a model of two layers
with the sizes and weight types of the real one.

The choice changes the last bits of logits, and with them a text now and then. So only `tune`
measures, and loads use its result: a text does not depend on the moment at which a model is loaded
first. Plain kernels are chosen only if they are clearly faster.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import GgufSpecError
from ..gguf.validation import Header
from ..system.cache import cache_file, read_json, this_machine, write_json
from .attention import attention_shape, seconds_by_width
from .backend import library_parts, uses_gpu
from .exact_kernels import most_exact_rows
from .model import Model
from .options import ContextOptions, physical_cores
from .placement import Placement
from .probe_model import (
    N_VOCAB,
    AttentionShape,
    LayerWeights,
    can_be_written,
    write_probe_model,
)

# part of the cache key; changes with the format of the measurements
_VERSION = 1
# tokens of the timed passes; the last one stands for reading a prompt
_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 256)
# rounds in which each pass of both models runs once; the shortest time of a pass counts
_TIMES = 4
# seconds after which a measurement ends early, with at least one round
_PATIENCE_S = 2.0
# largest channels and feed-forward units of the timed model
_MOST_CHANNELS, _MOST_UNITS = 4096, 8192
# matrices of a layer that a timed model has
_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
# weights of a block of a K-quant
_BLOCK = 256
# Typical request: tokens of the prompt and of the answer, acceptance rate of drafted tokens, and
# the time to draft one in single-token passes.
_PROMPT, _ANSWER, _ACCEPTED, _DRAFTED = 512, 128, 0.75, 0.1
# repacked kernels stay unless plain ones take less than this share of the time
_CLEARLY = 0.95


@dataclass(frozen=True)
class KernelCosts:
    """Measured passes of two layers with the weights of a model.

    Attributes:
        repacked: Tokens in a pass -> seconds with repacked weights.
        plain: Tokens in a pass -> seconds without.
    """

    repacked: Mapping[int, float]
    plain: Mapping[int, float]

    @classmethod
    def from_dict(cls, data: Any) -> KernelCosts:
        """Parse the result of `to_dict`, also after a conversion to JSON.

        Raises:
            KeyError, TypeError, ValueError: The data is invalid.
        """
        repacked, plain = (seconds_by_width(data[name], _WIDTHS) for name in ("repacked", "plain"))
        for times in (repacked, plain):
            if not all(0 < s < 1e3 for s in times.values()):
                raise ValueError(data)
        return cls(repacked, plain)

    def to_dict(self) -> dict[str, dict[int, float]]:
        """Return the fields as dictionaries, ready for JSON."""
        return {"repacked": dict(self.repacked), "plain": dict(self.plain)}

    def repacked_pays(self, exact_repacked: int, exact_plain: int) -> bool:
        """Return whether repacked kernels are as fast or faster.

        Args:
            exact_repacked: Rows of the widest pass with exact bits, with repacked kernels.
            exact_plain: The same with plain kernels.
        """
        repacked_s = request_seconds(self.repacked, exact_repacked)
        return request_seconds(self.plain, exact_plain) >= _CLEARLY * repacked_s


def request_seconds(pass_s: Mapping[int, float], most_rows: int) -> float:
    """Return the seconds of a typical request, half of it decoded plainly and half with drafts.

    Args:
        pass_s: Tokens in a pass -> its seconds.
        most_rows: Rows of the widest pass that may verify a draft.
    """
    widest = max(pass_s)
    speculative_s = min(
        (pass_s[n] + (n - 1) * _DRAFTED * pass_s[1]) / sum(_ACCEPTED**i for i in range(n))
        for n in pass_s
        if n <= most_rows and n < widest
    )
    reading_s = pass_s[widest] / widest
    return _PROMPT * reading_s + _ANSWER * (pass_s[1] + speculative_s) / 2


def layer_weights(header: Header) -> LayerWeights | None:
    """Return sizes and types of a layer in the middle of a model; None for other architectures.

    Large sizes are reduced. Their cost is the same per weight.
    """
    width, n_ff, n_layers = (
        header.of_architecture(name, 0)
        for name in ("embedding_length", "feed_forward_length", "block_count")
    )
    if not all(isinstance(n, int) and n > 0 for n in (width, n_ff, n_layers)):
        return None
    start = f"blk.{n_layers // 2}."
    types = {
        name: tensor.type
        for tensor in header.tensors
        for name in _MATRICES
        if tensor.name == f"{start}{name}.weight"
    }
    if len(types) < len(_MATRICES) or not all(map(can_be_written, types.values())):
        return None
    width, n_ff = min(width, _MOST_CHANNELS), min(n_ff, _MOST_UNITS)
    if width % _BLOCK or n_ff % _BLOCK:
        return None
    return LayerWeights(width, n_ff, types)


class _Probe(NamedTuple):
    """Everything that the costs of the kernels depend on.

    Attributes:
        shape: Attention of the timed model.
        weights: Its weights.
        limits: Rows of the widest pass with exact bits, with repacked and with plain kernels.
        threads: Threads of a pass.
    """

    shape: AttentionShape
    weights: LayerWeights
    limits: tuple[int, int]
    threads: int

    @property
    def file(self) -> Path:
        """File of the measured costs in the user's cache."""
        sizes = (self.weights.width, self.weights.n_ff, sorted(self.weights.types.items()))
        parts = [_VERSION, *this_machine(), *library_parts(), *self.shape, *sizes, self.threads]
        return cache_file("kernels", parts)

    def pays(self, costs: KernelCosts) -> bool:
        """Return whether repacked kernels are as fast or faster, by these costs."""
        return costs.repacked_pays(*self.limits)


def repacking_pays(header: Header, options: ContextOptions) -> bool:
    """Return whether to repack the weights of a model: unless `tune` found plain ones faster."""
    probe = _probe_of(header, options)
    if not probe:
        return True
    try:
        return probe.pays(KernelCosts.from_dict(read_json(probe.file)))
    except (KeyError, TypeError, ValueError):
        return True


def measure_kernels(header: Header, options: ContextOptions) -> bool | None:
    """Measure both kinds of kernels for a model, in about two seconds, and keep the result.

    Returns:
        Whether repacking pays; None where there is nothing to choose: if repacking does not limit
        exact rows, on a GPU, for an unknown layout, and if the measurement fails.
    """
    probe = _probe_of(header, options)
    if not probe:
        return None
    try:
        costs = _measure(probe.shape, probe.weights, replace(options, threads=probe.threads))
    except (GgufSpecError, OSError):
        return None
    write_json(probe.file, costs.to_dict())
    return probe.pays(costs)


def _probe_of(header: Header, options: ContextOptions) -> _Probe | None:
    limit = most_exact_rows(header, extra_bufts=True)
    limit_plain = most_exact_rows(header, extra_bufts=False)
    shape, weights = attention_shape(header), layer_weights(header)
    if limit is None or limit == limit_plain or uses_gpu(options) or not (shape and weights):
        return None
    n_head = max(1, min(shape.n_head, weights.width // shape.key_length))
    few_heads = AttentionShape(n_head, n_head, shape.key_length, shape.value_length)
    limits = limit, limit_plain or max(_WIDTHS)
    return _Probe(few_heads, weights, limits, options.threads or physical_cores())


def _measure(shape: AttentionShape, weights: LayerWeights, options: ContextOptions) -> KernelCosts:
    n_ctx = max(_WIDTHS) + 1
    placement = Placement(options.placement.devices)
    options = replace(options, n_ctx=n_ctx, lora=(), verbose=False, flash_attention="auto")
    options = replace(options, placement=placement)
    with tempfile.TemporaryDirectory(prefix="gguf-spec-") as folder:
        path = Path(folder) / "kernels.gguf"
        write_probe_model(path, shape, n_ctx, weights)
        models = []
        try:
            for extra_bufts in (True, False):
                models.append(Model(path, replace(options, extra_bufts=extra_bufts)))
            repacked, plain = _passes(models)
        finally:
            for model in models:
                model.close()
    return KernelCosts(repacked, plain)


def _passes(models: Sequence[Model]) -> list[dict[int, float]]:
    """Return, for each model, the shortest time of a pass of each width, on an empty cache."""
    text = [3 + i * 7 % (N_VOCAB - 3) for i in range(max(_WIDTHS))]
    best, began = [dict.fromkeys(_WIDTHS, float("inf")) for _ in models], time.perf_counter()
    for _ in range(_TIMES):
        for width in _WIDTHS:
            for model, times in zip(models, best, strict=True):
                started = time.perf_counter()
                model.logits(text[:width], 1)
                times[width] = min(times[width], time.perf_counter() - started)
                model.rollback(0)
        if time.perf_counter() - began > _PATIENCE_S:
            break
    return best
