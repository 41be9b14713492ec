"""Choose flash attention by measurement, before a context exists: a small model with the same attention is timed with and without it.

The attention of one layer does not depend on the rest of the model, so its cost times the number of layers is what a pass costs more for each
cached token. The same passes show whether a row has the same bits in passes of every width: on a CPU flash attention on f16 has not.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import GgufSpecError
from ..gguf.validation import Header
from ..system.cache import cache_file, read_json, this_machine, write_json
from ..system.competition import cores_are_shared
from .backend import library_parts, offloads
from .model import Model
from .options import ContextOptions, physical_cores
from .probe_model import N_LAYERS, N_VOCAB, AttentionShape, write_probe_model

_VERSION = 1
_WIDTHS = (1, 2, 4, 8, 32)  # tokens of the passes that are timed
_NEAR, _FAR = 32, 1024  # cached tokens before them
_TIMES = 4  # passes of each width; the shortest counts, as other programs only make a pass longer
_WIDE = 65  # rows of the widest pass that verifies
_PATIENCE_S = (
    1.5  # for one setting: beyond that another program is running, and nothing is measured now
)
_SINGLES = 96  # tokens read one by one behind `_SPLIT`, as reference
_SPLIT = 520  # cached tokens from which llama.cpp splits flash attention over threads: 512 cells


@dataclass(frozen=True)
class AttentionCosts:
    """What the attention of one layer costs here.

    Attributes:
        flash: `on` or `off`.
        near: Tokens in a pass -> seconds of a layer behind 32 cached tokens.
        per_cached: Tokens in a pass -> seconds of a layer for each cached token more.
        read_s: Seconds of a layer to read a prompt of 1,024 tokens.
        exact: Rows have the same bits in passes of all widths, at all depths tried.
    """

    flash: str
    near: Mapping[int, float]
    per_cached: Mapping[int, float]
    read_s: float
    exact: bool

    def depth_costs(self, header: Header) -> dict[int, float]:
        """Return for passes of some widths the seconds that all layers of a model take for each cached token."""
        n_layers = header.of_architecture("block_count", 0)
        return (
            {width: seconds * n_layers for width, seconds in self.per_cached.items()}
            if isinstance(n_layers, int)
            else {}
        )

    @classmethod
    def from_dict(cls, data: Any) -> AttentionCosts:
        """Read what `asdict` gave, from JSON too.

        Raises:
            KeyError, TypeError, ValueError: It is something else.
        """
        near, per_cached = (
            {int(width): float(data[name][width]) for width in data[name]}
            for name in ("near", "per_cached")
        )
        read_s, flash, exact = float(data["read_s"]), data["flash"], data["exact"]
        if (
            set(near) != set(_WIDTHS)
            or set(per_cached) != set(_WIDTHS)
            or flash not in ("on", "off")
            or not isinstance(exact, bool)
        ):
            raise ValueError(data)
        if not (
            all(0 < s < 1e3 for s in (*near.values(), read_s))
            and all(0 <= s < 1 for s in per_cached.values())
        ):
            raise ValueError(data)
        return cls(flash, near, per_cached, read_s, exact)


def attention_shape(header: Header) -> AttentionShape | None:
    """Return the shape of a model's attention; None where its header does not say it in the usual way."""
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
    """Return a whole number, the largest where there is one for each layer; 0 where there is something else."""
    numbers = value if isinstance(value, tuple) else (value,)
    return max((n for n in numbers if isinstance(n, int)), default=0)


def choose_attention(
    header: Header, options: ContextOptions, must_be_exact: bool
) -> tuple[str, AttentionCosts | None]:
    """Return whether to use flash attention, `on` or `off`, and what attention costs so.

    Args:
        header: The model's.
        options: Those asked for; `on` and `off` stay, and only their cost is measured.
        must_be_exact: Take the fastest choice whose rows have the same bits in passes of all widths, where there is one. A draft model need
            not be exact: its bits do not change the text.

    Returns:
        None for the costs where the shape is not known or the measurement failed; `auto` stays `auto` then on a build with a GPU.
    """
    shape, unmeasured = (
        attention_shape(header),
        options.flash_attention if offloads() else options.flash_on_cpu,
    )
    if shape is None:
        return unmeasured, None
    asked = (
        [options.flash_attention]
        if options.flash_attention != "auto"
        else ["on"]
        if options.needs_flash_attention
        else ["off", "on"]
    )
    found = []
    for flash in asked:
        costs = measured_attention(shape, replace(options, flash_attention=flash))
        if costs is None:
            return unmeasured, None
        found.append(costs)
    if must_be_exact and any(costs.exact for costs in found):
        found = [costs for costs in found if costs.exact]
    best = min(found, key=lambda costs: _time(costs, found))
    return best.flash, best


def _time(costs: AttentionCosts, others: list[AttentionCosts]) -> float:
    """Return how long typical work takes against the fastest of `others`: passes of 1 and 8 behind 512 tokens, and reading a prompt."""

    def times(one: AttentionCosts) -> list[float]:
        return [one.near[width] + 512 * one.per_cached[width] for width in (1, 8)] + [one.read_s]

    fastest = [min(column) for column in zip(*map(times, others), strict=True)]
    return sum((own / least for own, least in zip(times(costs), fastest, strict=True)), 0.0)


def measured_attention(shape: AttentionShape, options: ContextOptions) -> AttentionCosts | None:
    """Return what attention of this shape costs, from the user's cache, or measured in about half a second.

    None where that fails, and while other programs use the cores: a later load measures then.
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
    ]
    file = cache_file("attention", parts)
    data = read_json(file)
    try:
        return AttentionCosts.from_dict(data)
    except (KeyError, TypeError, ValueError):
        pass
    if cores_are_shared(threads):
        return None
    try:
        costs = _measure(shape, options)
    except (GgufSpecError, OSError, TimeoutError):
        return None
    write_json(file, asdict(costs))
    return costs


def _measure(shape: AttentionShape, options: ContextOptions) -> AttentionCosts:
    n_ctx = _FAR + 256
    with tempfile.TemporaryDirectory(prefix="gguf-spec-") as folder:
        path = Path(folder) / "attention.gguf"
        write_probe_model(path, shape, n_ctx)
        threads = options.threads or physical_cores()  # all of them, whatever else runs now
        model = Model(path, replace(options, n_ctx=n_ctx, threads=threads, lora=(), verbose=False))
    try:
        text = [3 + i * 7 % (N_VOCAB - 3) for i in range(n_ctx)]
        exact = _is_exact(model, text)
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


def _passes(model: Model, text: list[int]) -> dict[int, float]:
    """Return the shortest time of passes of each width behind what is cached."""
    n_past, best = model.n_past, dict.fromkeys(_WIDTHS, float("inf"))
    for _ in range(_TIMES):
        for width in _WIDTHS:
            started = time.perf_counter()
            model.logits(text[n_past : n_past + width], 1)
            best[width] = min(best[width], time.perf_counter() - started)
            model.rollback(n_past)
            _check_patience(model)
    return best


def _check_patience(model: Model) -> None:
    if model.busy_s > _PATIENCE_S:
        raise TimeoutError


def _is_exact(model: Model, text: list[int]) -> bool:
    """Return whether rows behind 0 and 520 tokens have the same bits alone and in wider passes, and after other ways to read the past."""
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
