"""Estimate of the main memory that models need, from their headers alone, and a check of it.

llama.cpp does not check: the kernel kills the process. llama.cpp maps a file and reads all of it at
once. Weights that it repacks for this CPU are additional copies. Both count for the peak, but the
kernel can drop the file pages that were copied. Cache sizes follow llama.cpp's formulas; the rest
follows measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import NotEnoughMemoryError, Text
from ..gguf.validation import Header
from ..options import BRANCHES_MAX, K_MAX
from ..system.machine import available_bytes, format_bytes, resident_bytes, total_bytes
from .cache_size import (
    PAD,
    cache_bytes,
    checkpoint_bytes,
    head_bytes,
    hidden_bytes,
    padded,
    state_bytes,
)
from .exact_kernels import flash_on_cpu
from .offload import offloaded
from .options import ContextOptions
from .repacking import repacked_bytes

# tokens of a prefill pass on a CPU: default and minimum
_BATCH, _LEAST_BATCH = 256, 64
# bytes; largest attention scores of a pass (tokens x heads x positions, without flash attention)
_MOST_SCORES = 256 << 20
# Share of the free memory that the caches of requests may take if the user gives no number.
_CACHES_SHARE = 0.25
# Share of the memory that stays free which kept prefixes may take, and bounds of that memory.
_KEPT_SHARE, _LEAST_KEPT, _MOST_KEPT = 1 / 8, 64 << 20, 8 << 30
# largest number of rows of logits of a pass
_ROWS = K_MAX + 1 + BRANCHES_MAX
# bytes of a float32
_FLOAT = 4
# Measured, in bytes: llama.cpp's code and tables, and its vocabulary data per token and per merge.
_SMALL, _PER_TOKEN, _PER_MERGE = 6 << 20, 150, 140
# bytes; the process that holds a target on workers, measured
_CHILD = 60 << 20


@dataclass(frozen=True)
class MemoryEstimate:
    """Estimated peak memory of a process, in bytes.

    Attributes:
        weights: The files, whose pages are all read at once, and the repacked copies.
        caches: Keys and values of `n_ctx` positions, or the state of recurrent models.
        compute: Activations of a batch, logits, vocabularies.
        base: Memory in use before loading.
        copies: Part of `weights`: repacked copies, adapters, and files that are not mapped or are
            locked.
        idle: Part of `weights`: file pages that were copied and are not read again.
        n_ctx: Requested positions of the context.
    """

    weights: int
    caches: int
    compute: int
    base: int
    copies: int
    idle: int
    n_ctx: int

    @property
    def total(self) -> int:
        """Peak of the resident memory."""
        return self.weights + self.caches + self.compute + self.base

    @property
    def added(self) -> int:
        """Memory in addition to `base`, after idle pages are dropped."""
        return self.total - self.base - self.idle

    @property
    def own(self) -> int:
        """Part of `added` without a file behind it: the kernel cannot drop it and read it again."""
        return self.copies + self.caches + self.compute

    def fits(self, free: int | None, total: int | None) -> bool:
        """Return whether there is enough memory.

        `own` must be free. File pages may displace other pages, but the machine must hold them.

        Args:
            free: Free memory; None if unknown.
            total: Memory of the machine; None if unknown.
        """
        return not (
            (free is not None and self.own > free) or (total and self.base + self.added > total)
        )


def needs(
    models: Sequence[tuple[Header, ContextOptions]], features: Mapping[str, str]
) -> MemoryEstimate:
    """Return the memory that models need if they are loaded together.

    Args:
        models: Header and options of the target, and of a draft, whose context is as long as the
            target's.
        features: Features of the llama.cpp build, from `features_of`.
    """
    header, options = models[0]
    n_ctx = options.positions(header.whole("context_length"))
    weights = caches = compute = copies = idle = 0
    for header, options in models:
        copied, of = repacked_bytes(header, features) if options.repacks else (0, 0)
        adapters = sum(
            adapter.path.stat().st_size for adapter in options.lora if adapter.path.exists()
        )
        mapped, read = header.file_bytes, 0
        if options.placement.mmap is False:
            mapped, read, of = 0, header.file_bytes - of, 0
        elif options.placement.mlock:
            mapped, read = of, header.file_bytes - of
        weights, copies, idle = weights + mapped, copies + read + copied + adapters, idle + of
        cache = (
            head_bytes(header, options, n_ctx)
            if options.head == "self"
            else options.parallel * cache_bytes(header, options, n_ctx)
        )
        if options.rpc:
            there = offloaded(header, options)
            idle, cache = idle + there.n_bytes, round(cache * (1 - there.share))
            compute += _CHILD
        if options.head in ("own", "file"):
            cache += hidden_bytes(header, options, n_ctx)
        if options.head == "own":
            cache += head_bytes(header, options, n_ctx)
            compute += _compute_bytes(header, options, n_ctx)
        caches += cache + (0 if options.head == "self" else checkpoint_bytes(header, options))
        compute += _compute_bytes(header, options, n_ctx)
    return MemoryEstimate(weights + copies, caches, compute, resident_bytes(), copies, idle, n_ctx)


def largest_ctx(
    models: Sequence[tuple[Header, ContextOptions]],
    features: Mapping[str, str],
    free: int | None,
    total: int | None,
) -> int:
    """Return the longest context that fits, at most the requested one; 0 if none fits."""

    def fits(n_ctx: int) -> bool:
        return needs(
            [(header, replace(options, n_ctx=n_ctx)) for header, options in models], features
        ).fits(free, total)

    requested = needs(models, features).n_ctx
    if fits(requested):
        return requested
    low, high = 0, requested // PAD + 1  # in multiples of PAD
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * PAD) else (low, middle)
    return low * PAD


def most_parallel(
    models: Sequence[tuple[Header, ContextOptions]],
    features: Mapping[str, str],
    free: int | None,
    total: int | None,
) -> int:
    """Return how many requests fit at once with the whole context, at most the requested number.

    It is 0 if not even one fits.
    """
    return next(
        (
            n
            for n in range(models[0][1].parallel, 0, -1)
            if needs(_at_once(models, n), features).fits(free, total)
        ),
        0,
    )


def ample_parallel(
    models: Sequence[tuple[Header, ContextOptions]], features: Mapping[str, str], most: int
) -> int | None:
    """Return for how many requests at once the caches take at most a quarter of the free memory.

    It is at least 1 and at most `most`; None if the free memory is unknown.
    """
    free, total = available_bytes(), total_bytes()
    if free is None:
        return None
    one = needs(_at_once(models, 1), features).caches
    n = min(most, int(_CACHES_SHARE * free / max(one, 1)))
    return max(1, most_parallel(_at_once(models, max(1, n)), features, free, total))


def fitting_snapshots(
    models: Sequence[tuple[Header, ContextOptions]], features: Mapping[str, str]
) -> int:
    """Return the number of snapshots of the target's state that fit into the free memory.

    They may take a quarter of it, and the models must fit, too. It is at most the number in the
    options, and 0 if the free memory is unknown.
    """
    header, options = models[0]
    free, total, state = available_bytes(), total_bytes(), state_bytes(header)
    if not (state and free):
        return 0
    most = min(options.n_snapshots, int(_CACHES_SHARE * free / state))
    return next(
        (
            n
            for n in range(most, 0, -1)
            if needs([(header, replace(options, n_snapshots=n)), *models[1:]], features).fits(
                free, total
            )
        ),
        0,
    )


def usual_prefix_memory(
    models: Sequence[tuple[Header, ContextOptions]], features: Mapping[str, str]
) -> int:
    """Return the memory for kept prefixes if the user gives none, in bytes.

    It is an eighth of the memory that stays free beside the models, at most 8 GiB; 0 where that is
    little, or where the free memory is unknown.
    """
    free = available_bytes()
    if free is None:
        return 0
    share = int(_KEPT_SHARE * (free - needs(models, features).own))
    return min(share, _MOST_KEPT) if share >= _LEAST_KEPT else 0


def _at_once(
    models: Sequence[tuple[Header, ContextOptions]], n: int
) -> list[tuple[Header, ContextOptions]]:
    return [(header, replace(options, parallel=n)) for header, options in models]


def check_memory(
    models: Sequence[tuple[Header, ContextOptions]], features: Mapping[str, str]
) -> None:
    """Reject models that do not fit into main memory.

    The kernel would kill the process instead.

    Args:
        models: As for `needs`.
        features: As for `needs`.

    Raises:
        NotEnoughMemoryError: The models do not fit. It contains the required and the free memory
            and the context and the number of parallel requests that would fit.
    """
    all_of_it, free, total = needs(models, features), available_bytes(), total_bytes()
    if all_of_it.fits(free, total):
        return
    names = " and ".join(header.path.name for header, _ in models)
    verb = "need" if len(models) > 1 else "needs"
    parallel = models[0][1].parallel
    each = f" for each of {parallel} parallel requests" if parallel > 1 else ""
    wants = (
        f"{names} {verb} {format_bytes(all_of_it.added)} of memory, "
        f"{format_bytes(all_of_it.caches)} of it for a context of {all_of_it.n_ctx:,}{each}"
    )
    has = (
        f"{format_bytes(free)} are free"
        if free is not None and all_of_it.own > free
        else f"this machine has {format_bytes(total or 0)}"
    )
    n_ctx = largest_ctx(models, features, free, total)
    would_fit = (
        f"a context of {n_ctx:,} would fit"
        if n_ctx
        else _without_copies(models, features, free, total)
    )
    n = most_parallel(models, features, free, total)
    with_all = f", or {n} parallel request{'s' * (n > 1)} with the whole context" if n else ""
    raise NotEnoughMemoryError(
        Text("{}; {}: {}{}.", wants, has, would_fit, with_all),
        all_of_it.added,
        free,
        n_ctx or None,
        n or None,
    )


def _without_copies(
    models: Sequence[tuple[Header, ContextOptions]],
    features: Mapping[str, str],
    free: int | None,
    total: int | None,
) -> str:
    """Return what would fit if the weights, which do not fit, were not copied."""
    mapped = [(header, replace(options, extra_bufts=False)) for header, options in models]
    if n_ctx := largest_ctx(mapped, features, free, total):
        return Text(
            "the weights alone do not fit; with {extra_bufts=False}, which does not copy them, a "
            "context of {} would fit",
            f"{n_ctx:,}",
        )
    return "the weights alone do not fit"


def features_of(system_info: str) -> dict[str, str]:
    """Parse llama.cpp's report of its build: `CPU : AVX2 = 1 | REPACK = 1 | `."""
    pairs = (part.rpartition(" : ")[2].partition("=") for part in system_info.split("|"))
    return {key.strip(): value.strip() for key, _, value in pairs if key.strip()}


def _compute_bytes(header: Header, options: ContextOptions, n_ctx: int) -> int:
    """Return the approximate bytes of the widest pass, the vocabulary and the logits."""
    n_tokens, n_merges = (
        header.n_values("tokenizer.ggml.tokens"),
        header.n_values("tokenizer.ggml.merges"),
    )
    return (
        _SMALL
        + compute_bytes(header, options, n_ctx, cpu_batch(header, options, n_ctx))
        + _FLOAT * _ROWS * n_tokens  # the output buffer
        + _PER_TOKEN * n_tokens
        + _PER_MERGE * n_merges
    )


def compute_bytes(
    header: Header, options: ContextOptions, n_ctx: int, n_batch: int, with_logits: bool = True
) -> int:
    """Return the approximate bytes of the activations of a pass over `n_batch` tokens."""
    of_row = row_values(header, n_ctx, flash_on_cpu(header, options) == "on")
    logits = _ROWS * header.n_values("tokenizer.ggml.tokens") if with_logits else 0
    return _FLOAT * (n_batch * of_row + logits)


def row_values(header: Header, n_ctx: int, flash: bool) -> int:
    """Return the approximate number of values that a pass holds for each of its tokens.

    Args:
        header: Header of the model.
        n_ctx: Positions that the attention reads.
        flash: Whether it is flash attention.
    """
    embedding = header.whole("embedding_length")
    heads = max(header.by_layer("attention.head_count", 0), default=0)
    experts = header.whole("expert_used_count")
    ff = max(
        *header.by_layer("feed_forward_length", 0),
        experts * header.whole("expert_feed_forward_length"),
        2 * header.whole("ssm.inner_size"),
        0,
    )
    of_row = 4 * embedding + 3 * ff + experts * embedding
    # Attention mask of a row: 16 bits per position. Without flash attention 32 bits, and a score
    # for each head and position.
    return of_row + (padded(n_ctx) // 2 if flash else padded(n_ctx) * (heads + 1))


def cpu_batch(header: Header, options: ContextOptions, n_ctx: int) -> int:
    """Return the number of tokens of a prefill pass on a CPU.

    It is smaller if the attention scores of a long context would need much memory.
    """
    heads = max(header.by_layer("attention.head_count", 0), default=0)
    scores = _FLOAT * padded(n_ctx) * max(heads, 1)
    batch = _BATCH
    if flash_on_cpu(header, options) == "off":
        while batch > _LEAST_BATCH and batch * scores > _MOST_SCORES:
            batch //= 2
    return batch
