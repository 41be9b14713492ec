"""Choice of flash attention by measurement, before a context exists.

A small model with the same attention is timed with and without flash attention. The attention of
one layer does not depend on the rest of the model, so its cost times the number of layers is the
extra cost of a pass per cached token. The same passes show whether a row has the same bits in
passes of every width. On a CPU, flash attention on f16 fails this check.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import GgufSpecError
from ..gguf.validation import Header
from ..system.cache import cache_file, read_json, this_machine, write_json
from ..system.competition import cores_are_shared
from .backend import library_parts, uses_gpu
from .model import Model
from .options import ContextOptions, physical_cores
from .placement import Placement
from .probe_model import N_LAYERS, N_VOCAB, AttentionShape, write_probe_model

# part of the cache key; changes with the format of the measurements
_VERSION = 1
# tokens of the timed passes
_WIDTHS = (1, 2, 4, 8, 32)
# cached tokens before the timed passes
_NEAR, _FAR = 32, 1024
# passes of each width; the shortest counts, because other programs only make a pass longer
_TIMES = 4
# rows of the widest verification pass
_WIDE = 65
# Seconds per setting after which no pass is repeated, and after which the measurement fails.
_PATIENCE_S, _MOST_S = (1.5, 6.0)
# tokens decoded one by one as reference, in the check for exact rows
_SINGLES = 96
# cached tokens from which llama.cpp splits flash attention over threads: 512 cells
_SPLIT = 520


@dataclass(frozen=True)
class AttentionCosts:
    """Measured cost of the attention of one layer on this machine.

    Attributes:
        flash: `on` or `off`.
        near: Tokens in a pass -> seconds of a layer after 32 cached tokens. Empty if only exact
            rows were of interest, and these are not exact.
        per_cached: Tokens in a pass -> extra seconds of a layer per cached token; empty as `near`.
        read_s: Seconds of a layer to prefill 1,024 tokens; 0 if `near` is empty.
        exact: Whether rows have the same bits in passes of all widths, at all tested depths.
    """

    flash: str
    near: Mapping[int, float]
    per_cached: Mapping[int, float]
    read_s: float
    exact: bool

    @property
    def is_timed(self) -> bool:
        """Whether there are times."""
        return bool(self.near)

    def depth_costs(self, header: Header) -> dict[int, float]:
        """Return pass width -> seconds of all layers of a model per cached token."""
        n_layers = header.of_architecture("block_count", 0)
        return (
            {width: seconds * n_layers for width, seconds in self.per_cached.items()}
            if isinstance(n_layers, int)
            else {}
        )

    @classmethod
    def from_dict(cls, data: Any) -> AttentionCosts:
        """Parse the result of `asdict`, also after a conversion to JSON.

        Raises:
            KeyError, TypeError, ValueError: The data is invalid.
        """
        read_s, flash, exact = float(data["read_s"]), data["flash"], data["exact"]
        if flash not in ("on", "off") or not isinstance(exact, bool):
            raise ValueError(data)
        if not (exact or read_s or data["near"] or data["per_cached"]):
            return cls(flash, {}, {}, 0.0, exact)
        near, per_cached = (
            seconds_by_width(data[name], _WIDTHS) for name in ("near", "per_cached")
        )
        if not (
            all(0 < s < 1e3 for s in (*near.values(), read_s))
            and all(0 <= s < 1 for s in per_cached.values())
        ):
            raise ValueError(data)
        return cls(flash, near, per_cached, read_s, exact)


def seconds_by_width(data: Any, widths: Sequence[int]) -> dict[int, float]:
    """Return a table of times from plain values.

    Args:
        data: Tokens in a pass -> seconds, also after a conversion to JSON.
        widths: Exactly the widths that the table must have.

    Raises:
        TypeError, ValueError: The data has another form.
    """
    if not isinstance(data, Mapping):
        raise TypeError(data)
    table = {int(width): float(seconds) for width, seconds in data.items()}
    if set(table) != set(widths):
        raise ValueError(data)
    return table


def attention_shape(header: Header) -> AttentionShape | None:
    """Return the shape of a model's attention; None if the header lacks the usual keys."""
    width, n_head = (
        header.of_architecture("embedding_length", 0),
        _most(header.of_architecture("attention.head_count", 0)),
    )
    if (
        header.of_architecture("attention.key_length_mla")
        or not isinstance(width, int)
        or not 0 < n_head <= 1024
    ):
        return None
    n_head_kv = _most(header.of_architecture("attention.head_count_kv", n_head)) or n_head
    key, value = (
        header.of_architecture(f"attention.{name}_length", width // n_head)
        for name in ("key", "value")
    )
    if (
        not all(isinstance(n, int) and 0 < n <= 1024 and n % 32 == 0 for n in (key, value))
        or n_head % n_head_kv
    ):
        return None
    return AttentionShape(n_head, n_head_kv, key, value)


def _most(value: Any) -> int:
    """Return an integer, or the largest of one per layer; 0 for anything else."""
    numbers = value if isinstance(value, tuple) else (value,)
    return max((n for n in numbers if isinstance(n, int)), default=0)


def choose_attention(
    header: Header, options: ContextOptions, must_be_exact: bool
) -> tuple[str, AttentionCosts | None]:
    """Choose `on` or `off` for flash attention and return it with its measured costs.

    Args:
        header: Header of the model.
        options: Requested options. `on` and `off` are kept; only their cost is measured.
        must_be_exact: Prefer the fastest choice whose rows have the same bits in passes of all
            widths, if there is one. A draft model need not be exact: its bits do not change the
            text.

    Returns:
        The choice and its costs. The costs are None if the shape is unknown or the measurement
        failed; `auto` stays `auto` then on a build with a GPU.
    """
    shape, unmeasured = (
        attention_shape(header),
        options.flash_attention if uses_gpu(options) else options.flash_on_cpu,
    )
    if shape is None:
        return unmeasured, None
    settings = (
        [options.flash_attention]
        if options.flash_attention != "auto"
        else ["on"]
        if options.needs_flash_attention
        else ["off", "on"]
    )
    found: list[AttentionCosts] = []
    for flash in settings:
        one = replace(options, flash_attention=flash)
        has_exact = must_be_exact and any(costs.exact for costs in found)
        costs = measured_attention(shape, one, only_if_exact=has_exact)
        if costs is None:
            return unmeasured, None
        found.append(costs)
    if must_be_exact and any(costs.exact for costs in found):
        found = [costs for costs in found if costs.exact]
    best = min(found, key=lambda costs: _time(costs, found))
    return best.flash, best


def _time(costs: AttentionCosts, others: list[AttentionCosts]) -> float:
    """Return the time of a typical workload, relative to the fastest of `others`.

    The workload is passes of 1 and 8 tokens after 512 cached tokens, and prefill.
    """

    def times(one: AttentionCosts) -> list[float]:
        return [one.near[width] + 512 * one.per_cached[width] for width in (1, 8)] + [one.read_s]

    fastest = [min(column) for column in zip(*map(times, others), strict=True)]
    return sum((own / least for own, least in zip(times(costs), fastest, strict=True)), 0.0)


def measured_attention(
    shape: AttentionShape, options: ContextOptions, only_if_exact: bool = False
) -> AttentionCosts | None:
    """Return the cost of attention of this shape, from the user's cache or measured now.

    A measurement takes half a second to two seconds. With `only_if_exact`, one whose rows are not
    exact is not timed. The result is None if the measurement fails, and while other programs use
    the cores; a later load measures then.
    """
    o, threads = options, options.threads or physical_cores()
    parts = [
        _VERSION,
        *this_machine(),
        *library_parts(),
        *shape,
        o.flash_attention,
        o.kv_type,
        threads,
        o.gpu_layers,
        *replace(o.placement, n_cpu_moe=0, overrides=()).parts,
    ]
    file = cache_file("attention", parts)
    data = read_json(file)
    try:
        kept = AttentionCosts.from_dict(data)
    except (KeyError, TypeError, ValueError):
        pass
    else:
        if kept.is_timed or only_if_exact:
            return kept
    if cores_are_shared(threads):
        return None
    try:
        costs = _measure(shape, options, only_if_exact)
    except (GgufSpecError, OSError, TimeoutError):
        return None
    write_json(file, asdict(costs))
    return costs


def _measure(shape: AttentionShape, options: ContextOptions, only_if_exact: bool) -> AttentionCosts:
    n_ctx = _FAR + 256
    with tempfile.TemporaryDirectory(prefix="gguf-spec-") as folder:
        path = Path(folder) / "attention.gguf"
        write_probe_model(path, shape, n_ctx)
        # all cores, even if other programs run now
        threads = options.threads or physical_cores()
        placement = Placement(options.placement.devices)
        measured = replace(options, n_ctx=n_ctx, threads=threads, lora=(), verbose=False)
        model = Model(path, replace(measured, placement=placement))
    try:
        text = [3 + i * 7 % (N_VOCAB - 3) for i in range(n_ctx)]
        if model.slow_first_pass:
            _warm_up(model, text)
        exact = _is_exact(model, text)
        if only_if_exact and not exact:
            return AttentionCosts(options.flash_attention, {}, {}, 0.0, exact)
        model.rollback(_NEAR)
        near = _passes(model, text)
        started = time.perf_counter()
        for i in range(_NEAR, _FAR, model.reads_at_once):
            model.read(text[i : min(i + model.reads_at_once, _FAR)])
        read_s = time.perf_counter() - started
        far = _passes(model, text)
    finally:
        model.close()
    per_cached = {
        width: max(0.0, far[width] - near[width]) / (_FAR - _NEAR) / N_LAYERS for width in _WIDTHS
    }
    return AttentionCosts(
        options.flash_attention,
        {w: s / N_LAYERS for w, s in near.items()},
        per_cached,
        read_s / N_LAYERS,
        exact,
    )


def _warm_up(model: Model, text: list[int]) -> None:
    """Make one pass of each kind, so that a driver compiles its kernels before the measurement."""
    model.read(text[:_FAR])
    for width in (*_WIDTHS, 33, _WIDE):
        model.rollback(_NEAR)
        model.logits(text[_NEAR : _NEAR + width], width)
    model.rollback(0)
    model.busy_s = 0.0


def _passes(model: Model, text: list[int]) -> dict[int, float]:
    """Return the shortest time of a pass of each width, after the tokens in the cache."""
    n_past, best = model.n_past, dict.fromkeys(_WIDTHS, float("inf"))
    for i in range(_TIMES):
        for width in _WIDTHS:
            if i and model.busy_s > _PATIENCE_S:
                return best
            started = time.perf_counter()
            model.logits(text[n_past : n_past + width], 1)
            best[width] = min(best[width], time.perf_counter() - started)
            model.rollback(n_past)
            _check_patience(model)
    return best


def _check_patience(model: Model) -> None:
    if model.busy_s > _MOST_S:
        raise TimeoutError


def _is_exact(model: Model, text: list[int]) -> bool:
    """Return whether rows after 0 and 520 tokens have the same bits in passes of all widths.

    The cached tokens are also decoded with different pass widths.
    """
    for depth in (0, _SPLIT):
        model.rollback(0)
        model.read(text[:depth])
        rows = []
        for token in text[depth : depth + _SINGLES]:
            rows.append(model.logits([token], 1)[0].copy())
            _check_patience(model)
        for width in (2, 8, 33, _WIDE):
            model.rollback(depth)
            if not np.array_equal(model.logits(text[depth : depth + width], width), rows[:width]):
                return False
        model.rollback(depth)
        model.read(text[depth : depth + _SINGLES - 1])
        if not np.array_equal(
            model.logits(text[depth + _SINGLES - 1 : depth + _SINGLES], 1)[0], rows[-1]
        ):
            return False
    return True
