"""Memory that models need, estimated from their headers alone: checks, and what fits.

llama.cpp does not check: the kernel kills the process. A file that is mapped is read whole at once.
Weights that llama.cpp repacks for this CPU are additional copies. Both count for the peak, but the
kernel can drop the file pages that were copied. Cache sizes follow llama.cpp's formulas; the rest
follows measurements.

`gpu_layers="auto"` offloads as many layers as fit into the free memory of the devices. The draft
model comes first, because it is small and runs most often. A mixture of experts that does not fit
keeps the experts of its first layers in main memory: an expert is used for few tokens, the rest of
a layer for all.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ..errors import NotEnoughMemoryError, Text
from ..gguf.header import TOKENS
from ..gguf.heads import n_heads, shares_cache
from ..gguf.validation import Header, embeds_only
from ..options import DEFAULT_CTX, K_MAX, LONG_CTX
from ..system.machine import available_bytes, format_bytes, limit_of, resident_bytes, total_bytes
from .backend import build_features, uses_gpu
from .devices import Device, devices_in_use
from .native import N_BATCH
from .options import KV_TYPES, ContextOptions
from .own_kernels import TYPES, flash_on_cpu, in_use

Models: TypeAlias = Sequence[tuple[Header, ContextOptions]]
"""Header and options of the target, and of a draft, whose context is as long as the target's."""

# tokens of a prefill pass on a CPU: default and minimum
_BATCH, _LEAST_BATCH = 256, 64
# bytes; largest attention scores of a pass (tokens x heads x positions, without flash attention)
_MOST_SCORES = 256 << 20
# Share of the free memory that the caches of requests may take if the user gives no number.
_CACHES_SHARE = 0.25
# Contexts that are taken without being asked for, and the share of the free memory for them.
_LONG_CONTEXTS, _CTX_SHARE = (LONG_CTX, 8_192), 0.1
_MOST_POSITIONS = (1 << 31) - 1  # as `ContextOptions` allows
# Share of the memory that stays free which kept prefixes may take, and bounds of that memory.
_KEPT_SHARE, _LEAST_KEPT, _MOST_KEPT = 1 / 8, 64 << 20, 8 << 30
# largest number of rows of logits of a pass
_ROWS = K_MAX + 1
# bytes of a float32
_FLOAT = 4
# Measured, in bytes: llama.cpp's code and tables, and its vocabulary data per token and per merge.
_SMALL, _PER_TOKEN, _PER_MERGE = 6 << 20, 150, 140
# bytes; the process that holds a target on workers, measured
_CHILD = 60 << 20
# Tokens of a pass of an embedding model: the least; more for longer texts.
LEAST = 256
# bytes; buffers of a context for embeddings that do not depend on its size, measured
_FIXED = 2 << 20
# Memory of a device that stays free for the driver and other programs: bytes, and largest share.
_MARGIN, _MARGIN_SHARE = 1 << 30, 0.125
# A file is read into memory if it has at least so many bytes that llama.cpp does not repack (94
# MiB were no faster), and if what cannot be dropped takes at most this share of the free memory.
_LEAST_READ, _READ_SHARE = 128 << 20, 0.5
_LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# bytes; stands for a device that reports no memory
_UNLIMITED = float(1 << 60)
# Snapshots of a recurrent state that are kept at most. Each lengthens a pass by about 1 %; longer
# drafts use a copy of the state.
_SNAPSHOTS = 8
# positions; llama.cpp rounds contexts up to a multiple
PAD = 256
# copies of a state that `llama.recurrent_state` keeps without memory for more: before the last
# draft, and after the last prompt
_CHECKPOINTS = 2
# Repacked ggml types -> divisor of the number of rows of a matrix. For AMX: divisor of the number
# of columns, and size of the copy relative to the original.
_AVX2 = {2: 8, 12: 8, 20: 8, 39: 8}
_AVX512 = {10: 8}
_DOTPROD = {2: 4, 8: 4, 12: 8, 13: 8, 14: 8, 20: 4, 39: 4}
_AMX = {
    1: (16, 1.0),
    2: (32, 1.0),
    3: (32, 1.0),
    8: (32, 38 / 34),
    12: (256, 148 / 144),
    13: (256, 180 / 176),
    14: (256, 1.0),
    23: (256, 138 / 136),
}
# tensors that are looked up or added, not multiplied
_NOT_MULTIPLIED = re.compile(
    r"^(token_embd(_norm)?|token_types|position_embd|per_layer_token_embd|rope_.*)\."
    r"|norm\.|\.bias$|conv1d|rope_freqs|shortconv\.conv\."
)
_HINT = "use a smaller model, or close other programs."


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
        free: Free memory; None if unknown.
        machine: Memory of the machine; None if unknown.
    """

    weights: int
    caches: int
    compute: int
    base: int
    copies: int
    idle: int
    n_ctx: int
    free: int | None
    machine: int | None

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

    @property
    def fits(self) -> bool:
        """Whether there is enough memory.

        `own` must be free. File pages may displace other pages, but the machine must hold them.
        """
        is_free = self.free is None or self.own <= self.free
        return is_free and not (self.machine and self.base + self.added > self.machine)

    @property
    def room(self) -> str:
        """The memory that is too small: the free one, or that of the machine."""
        if self.free is not None and self.own > self.free:
            return f"{format_bytes(self.free)} are free{limit_of(self.free)}"
        return f"this machine has {format_bytes(self.machine or 0)}{limit_of(self.free or 0)}"


def needs(models: Models) -> MemoryEstimate:
    """Return the memory that models need if they are loaded together."""
    header, options = models[0]
    n_ctx = options.positions(header.whole("context_length"))
    weights = caches = compute = copies = idle = 0
    for header, options in models:
        copied, of = _copies(header, options)
        mapped, read = header.file_bytes, 0
        if options.placement.mmap is False:
            mapped, read, of = 0, header.file_bytes - of, 0
        elif options.placement.mlock:
            mapped, read = of, header.file_bytes - of
        weights, copies, idle = weights + mapped, copies + read + copied, idle + of
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
            # the rows that the target sends to the head
            n_rows = max(1, len(options.head_layers))
            cache += _FLOAT * n_rows * header.whole("embedding_length") * n_ctx
        passes = _passes_bytes(header, options, n_ctx)
        if options.head == "own":
            cache += head_bytes(header, options, n_ctx)
            passes *= 2
        if options.head != "self" and not options.rpc:
            # without snapshots several requests are decoded without drafts
            drafts = options.parallel == 1 or options.n_snapshots
            n_copies = options.parallel * (_CHECKPOINTS if drafts else 1)
            cache += n_copies * state_bytes(header)
        caches, compute = caches + cache, compute + passes
    return _estimate(
        weights=weights + copies,
        caches=caches,
        compute=compute,
        copies=copies,
        idle=idle,
        n_ctx=n_ctx,
    )


def _estimate(**sizes: int) -> MemoryEstimate:
    free, machine = available_bytes(), total_bytes()
    return MemoryEstimate(**sizes, base=resident_bytes(), free=free, machine=machine)


def _copies(header: Header, options: ContextOptions) -> tuple[int, int]:
    """Return the bytes of repacked weights and adapters, and those of pages not read again."""
    copies = sum(one.path.stat().st_size for one in options.lora if one.path.exists())
    if not options.repacks:
        return copies, 0
    has = {name for name, value in build_features().items() if value != "0"}
    rows: dict[int, int] = {}
    if "REPACK" in has:
        rows |= _AVX2 if "AVX2" in has else {}
        rows |= _AVX512 if "AVX512" in has else {}
        rows |= _DOTPROD if {"NEON", "DOTPROD"} <= has else {}
    amx = _AMX if {"AMX_INT8", "AVX512_VNNI"} <= has else {}
    own = TYPES if in_use().name else frozenset()  # not copied by AMX
    # tied embeddings are the output matrix, too, so they are both mapped and copied
    tied, idle = header.tensor("output.weight") is None, 0
    for tensor in header.tensors:
        is_output = tied and tensor.name == "token_embd.weight"
        n_dims = len(tensor.shape)
        if n_dims < 2 or (_NOT_MULTIPLIED.search(tensor.name) and not is_output):
            continue
        columns, growth = (0, 0.0) if tensor.type in own else amx.get(tensor.type, (0, 0.0))
        if columns and n_dims == 2 and not (tensor.shape[1] % 32 or tensor.shape[0] % columns):
            copies += int(tensor.n_bytes * growth)
        elif tensor.type in rows and not tensor.shape[1] % rows[tensor.type]:
            copies += tensor.n_bytes
        else:
            continue
        idle += 0 if is_output else tensor.n_bytes
    return copies, idle


def largest_ctx(models: Models) -> int:
    """Return the longest context that fits, at most the requested one; 0 if none fits.

    If the requested one does not fit, it is at most the one that the target was trained for.
    """
    wanted = needs(models)
    if wanted.fits:
        return wanted.n_ctx
    most = min(wanted.n_ctx, models[0][0].whole("context_length") or wanted.n_ctx)
    return PAD * _most(most // PAD, lambda n: _with(models, n_ctx=n * PAD))


def _most(most: int, models: Callable[[int], Models]) -> int:
    """Return the largest number up to `most` with which models fit; 0 if there is none."""
    return bisect_left(range(1, most + 1), True, key=lambda n: not needs(models(n)).fits)


def _with(models: Models, **changes: Any) -> list[tuple[Header, ContextOptions]]:
    return [(header, replace(options, **changes)) for header, options in models]


def ctx_in_room(models: Models) -> int | None:
    """Return the context length to load; None for `ContextOptions.positions`.

    Where the user gives none, it is the trained one, at most 16,384 or 8,192, if the caches take at
    most a tenth of the free memory. Models that may use a GPU are not checked.
    """
    header, options = models[0]
    if options.n_ctx or any(uses_gpu(one) for _, one in models):
        return options.n_ctx
    for n_ctx in (min(header.whole("context_length"), most) for most in _LONG_CONTEXTS):
        if n_ctx > DEFAULT_CTX:
            longer = needs(_with(models, n_ctx=n_ctx))
            if longer.fits and longer.caches <= _CTX_SHARE * (longer.free or 0):
                return n_ctx
    return None


def longest_ctx(models: Models) -> int:
    """Return the longest context with which models could be loaded in place of theirs.

    It is at most the trained one. Where positions are rotated in another way behind some length,
    it ends there: longer contexts have other texts. Models that may use a GPU keep what they have,
    as do all where the free memory is unknown.
    """
    header, options = models[0]
    most = header.whole("context_length")
    n_ctx = options.positions(most)
    if any("rope_factors_long" in tensor.name for tensor in header.tensors):
        most = header.whole("rope.scaling.original_context_length", most)
    most = min(most, _MOST_POSITIONS)
    if most <= n_ctx or any(uses_gpu(one) for _, one in models) or available_bytes() is None:
        return n_ctx
    return max(n_ctx, largest_ctx(_with(models, n_ctx=most)))


def parallel_in_room(models: Models, most: int) -> int | None:
    """Return for how many requests at once the caches take at most a quarter of the free memory.

    Returns:
        At least 1 and at most `most`; None if it is unknown, as for models that may use a GPU.
    """
    if any(uses_gpu(options) for _, options in models):
        return None
    one = needs(_with(models, parallel=1))
    if one.free is None:
        return None
    most = max(1, min(most, int(_CACHES_SHARE * one.free / max(one.caches, 1))))
    return max(1, _most(most, lambda n: _with(models, parallel=n)))


def prefix_memory_in_room(models: Models) -> int:
    """Return the memory for kept prefixes if the user gives none, in bytes.

    It is an eighth of the memory that stays free beside the models, at most 8 GiB; 0 where that is
    little, or where the free memory is unknown.
    """
    needed = needs(models)
    share = int(_KEPT_SHARE * (needed.free - needed.own)) if needed.free is not None else 0
    return min(share, _MOST_KEPT) if share >= _LEAST_KEPT else 0


def with_snapshots(models: Models, k: int) -> list[tuple[Header, ContextOptions]]:
    """Return the models with options for snapshots of the target's state.

    They serve drafts of up to `k` tokens. They may take a quarter of the free memory, and the
    models must fit, too; there are none if the free memory is unknown. Models that may use a GPU
    are not checked.
    """
    (header, options), *others = models
    # Requests that run at once have as many together as two alone, and shorter drafts.
    most = min(_SNAPSHOTS, max(1, 2 * _SNAPSHOTS // options.parallel))
    n = min(k, most) if header.facts.has_snapshots else 0

    def asked(n: int) -> list[tuple[Header, ContextOptions]]:
        return [(header, replace(options, n_snapshots=n)), *others]

    if n and not uses_gpu(options):
        free, state = available_bytes(), options.parallel * state_bytes(header)
        n = _most(min(n, int(_CACHES_SHARE * free / state)), asked) if state and free else 0
    return asked(n)


def has_room(models: Models) -> bool:
    """Return whether `check_room` accepts the models."""
    try:
        check_room(models)
    except NotEnoughMemoryError:
        return False
    return True


def check_room(models: Models) -> None:
    """Reject models that do not fit into main memory together, before any of them is loaded.

    The kernel would kill the process instead. Models that may use a GPU are not checked.


    Raises:
        NotEnoughMemoryError: The models do not fit. It contains the required and the free memory
            and the context and the number of parallel requests that would fit.
    """
    if any(uses_gpu(options) for _, options in models):
        return
    needed = needs(models)
    if needed.fits:
        return
    names = " and ".join(header.path.name for header, _ in models)
    verb = "need" if len(models) > 1 else "needs"
    parallel = models[0][1].parallel
    each = f" for each of {parallel} parallel requests" if parallel > 1 else ""
    wants = (
        f"{names} {verb} {format_bytes(needed.added)} of memory, "
        f"{format_bytes(needed.caches)} of it for a context of {needed.n_ctx:,}{each}"
    )
    n_ctx = largest_ctx(models)
    would_fit: str = f"a context of {n_ctx:,} would fit"
    if not n_ctx:
        would_fit = "the weights alone do not fit"
        if without_copies := largest_ctx(_with(models, extra_bufts=False)):
            would_fit = Text(
                "{}; with {extra_bufts=False}, which does not copy them, a context of {} would fit",
                would_fit,
                f"{without_copies:,}",
            )
    n = _most(parallel, lambda n: _with(models, parallel=n))
    with_all = f", or {n} parallel request{'s' * (n > 1)} with the whole context" if n else ""
    what = Text("{}; {}: {}{}.", wants, needed.room, would_fit, with_all)
    raise NotEnoughMemoryError(what, needed.added, needed.free, n_ctx, n or None)


def check_room_to_embed(
    header: Header, options: ContextOptions, n_tokens: int | None = None, at_once: int = 1 << 30
) -> None:
    """Reject an embedding model or its context if it does not fit into memory.

    Models that may use a GPU are not checked.

    Args:
        n_tokens: Number of tokens of the context of a loaded model; None before it is loaded.
        at_once: Most tokens of a pass.

    Raises:
        NotEnoughMemoryError: It does not fit. It contains the required and the free memory, and for
            a loaded model the longest text that would fit.
    """
    if uses_gpu(options):
        return
    hint = _HINT
    if n_tokens is None:
        estimate = embedding_needs(header, options)
        if estimate.fits:
            return
        needed, free = estimate.added, estimate.free
        what = f"{header.path.name} needs {format_bytes(needed)} of memory; {estimate.room}."
    else:
        needed, free = embedding_bytes(header, options, n_tokens, at_once), available_bytes()
        if free is None or needed <= free:
            return
        fits = n_tokens
        while fits >= LEAST and embedding_bytes(header, options, fits, at_once) > free:
            fits //= 2
        fit = f"texts of {fits:,} tokens would" if fits >= LEAST else "not even short texts"
        what = (
            f"passes over texts of {n_tokens:,} tokens need {format_bytes(needed)} of memory; "
            f"{format_bytes(free)} are free: {fit} fit."
        )
        hint = f"shorten the texts, {_HINT}"
    error = NotEnoughMemoryError(what, needed, free)
    error.hint = hint
    raise error


def _passes_bytes(header: Header, options: ContextOptions, n_ctx: int) -> int:
    """Return the approximate bytes of the widest pass, the vocabulary and the logits."""
    n_tokens, n_merges = header.n_values(TOKENS), header.n_values("tokenizer.ggml.merges")
    of_vocabulary = (_FLOAT * _ROWS + _PER_TOKEN) * n_tokens + _PER_MERGE * n_merges
    n_batch = cpu_batch(header, options, n_ctx)
    return _SMALL + of_vocabulary + compute_bytes(header, options, n_ctx, n_batch)


def compute_bytes(
    header: Header, options: ContextOptions, n_ctx: int, n_batch: int, with_logits: bool = True
) -> int:
    """Return the approximate bytes of the activations of a pass over `n_batch` tokens."""
    of_row = row_values(header, n_ctx, flash_on_cpu(header, options) == "on")
    logits = _ROWS * header.n_values(TOKENS) if with_logits else 0
    return _FLOAT * (n_batch * of_row + logits)


def row_values(header: Header, n_ctx: int, flash: bool) -> int:
    """Return the approximate number of values that a pass holds for each of its tokens.

    Args:
        n_ctx: Positions that the attention reads.
    """
    embedding = header.whole("embedding_length")
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
    return of_row + (padded(n_ctx) // 2 if flash else padded(n_ctx) * (_most_heads(header) + 1))


def _most_heads(header: Header) -> int:
    return max(header.by_layer("attention.head_count", 0), default=0)


def cpu_batch(header: Header, options: ContextOptions, n_ctx: int) -> int:
    """Return the number of tokens of a prefill pass on a CPU.

    It is smaller if the attention scores of a long context would need much memory.
    """
    scores = _FLOAT * padded(n_ctx) * max(_most_heads(header), 1)
    batch = _BATCH
    if flash_on_cpu(header, options) == "off":
        while batch > _LEAST_BATCH and batch * scores > _MOST_SCORES:
            batch //= 2
    return batch


def flash_attention(header: Header, options: ContextOptions, n_tokens: int) -> str:
    """Return the flash attention of a context that embeds `n_tokens` tokens in one pass.

    `auto` is off on a CPU, which is more precise, while the attention scores need little memory.
    """
    if options.flash_attention != "auto" or uses_gpu(options):
        return options.flash_attention
    scores = _FLOAT * n_tokens * padded(n_tokens) * _most_heads(header)
    return "on" if options.needs_flash_attention or scores > _MOST_SCORES else "off"


def embedding_bytes(
    header: Header, options: ContextOptions, n_tokens: int, at_once: int = 1 << 30
) -> int:
    """Return the approximate memory of a context for `n_tokens`, at most `at_once` in a pass.

    llama.cpp reserves logits for all of them, and computes them if the model generates text.
    """
    flash = flash_attention(header, options, n_tokens) != "off"
    logits = header.n_values(TOKENS) * (1 if embeds_only(header) else 2)
    cache = 0 if header.facts.output == "embeddings" else cache_bytes(header, options, n_tokens)
    # keys, values and queries have no place in a cache then
    own = 4 * header.whole("embedding_length")
    row = row_values(header, padded(n_tokens), flash) + own + logits
    return _FIXED + cache + _FLOAT * min(n_tokens, at_once) * row


def embedding_needs(header: Header, options: ContextOptions) -> MemoryEstimate:
    """Return the memory of an embedding model, with the context for its first texts."""
    copies, idle = _copies(header, options)
    weights, compute = header.file_bytes + copies, embedding_bytes(header, options, LEAST)
    return _estimate(
        weights=weights, caches=0, compute=compute, copies=copies, idle=idle, n_ctx=LEAST
    )


def fit_layers(
    models: Models, devices: Callable[[Sequence[str]], list[Device]] = devices_in_use
) -> list[tuple[Header, ContextOptions]]:
    """Return the models with numbers in place of `auto`."""
    if not any(options.gpu_layers == "auto" for _, options in models):
        return [*models]
    header, options = models[0]
    n_ctx = options.positions(header.whole("context_length"))
    taken: dict[str, float] = {}
    fitted: list[tuple[Header, ContextOptions]] = []
    for header, options in reversed(models):
        of_model = devices(options.placement.devices)
        free = {one.name: max(0.0, room_of(one) - taken.get(one.name, 0.0)) for one in of_model}
        chosen = _fitted(header, options, n_ctx, free) if options.gpu_layers == "auto" else options
        used, whole = device_bytes(header, chosen, n_ctx, len(free)), sum(free.values())
        for name, n_bytes in free.items():
            taken[name] = taken.get(name, 0.0) + (used * n_bytes / whole if whole else 0.0)
        fitted.insert(0, (header, chosen))
    return fitted


def read_files(models: Models) -> list[tuple[Header, ContextOptions]]:
    """Return the models with `mmap` off for files that are read into memory, and not mapped.

    The library of the own kernels gives memory large pages, and a mapped file has small ones, with
    which passes over few rows take up to a fifth longer. A file is read if `mmap` is None, many of
    its bytes are not repacked, and all models together take at most half of the free memory. A head
    in a file of its own stays mapped.

    Returns:
        Header and options of each model, in their order.
    """
    mapped = [*models]
    if not in_use().name or not has_large_pages():
        return mapped
    read = [
        (header, replace(options, placement=replace(options.placement, mmap=False)))
        if _may_be_read(header, options)
        else (header, options)
        for header, options in models
    ]
    if read == mapped:
        return mapped
    needed = needs(read)
    is_roomy = needed.free is not None and needed.own <= _READ_SHARE * needed.free
    return read if is_roomy and needed.fits else mapped


def _may_be_read(header: Header, options: ContextOptions) -> bool:
    own = options.placement
    if own.mmap is not None or own.mlock or options.head == "self":
        return False
    if options.rpc or uses_gpu(options):
        return False
    return header.file_bytes - _copies(header, options)[1] >= _LEAST_READ


def has_large_pages() -> bool:
    """Return whether the system gives large pages to a program that asks for them."""
    try:
        return "[never]" not in _LARGE_PAGES.read_text()
    except OSError:
        return False


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


def cache_bytes(header: Header, options: ContextOptions, n_ctx: int) -> int:
    """Return the size of llama.cpp's cache for `n_ctx` positions, in bytes."""
    n_snapshots = options.n_snapshots if header.facts.has_snapshots else 0
    states = (1 + n_snapshots) * state_bytes(header)
    return states + int(padded(n_ctx) * bytes_of_position(header, options))


def bytes_of_position(header: Header, options: ContextOptions) -> float:
    """Return the size of the keys and values of one position in the cache, in bytes."""
    of, facts = header.of_architecture, header.facts
    if facts.cache == "recurrent":
        return 0.0
    n_layers = header.whole("block_count")
    n_trunk = n_layers - header.whole("nextn_predict_layers")
    # the other layers use the cache of the first ones
    n_own = facts.own_kv_layers or n_layers - header.whole("attention.shared_kv_layers")
    slides = of("attention.sliding_window_pattern")
    keys, values = [], []
    for i, n in enumerate(_kv_heads(header)):
        slide = isinstance(slides, tuple) and i < len(slides) and bool(slides[i])
        key, value = header.head_lengths("_swa" if slide else "")
        keys.append(n * key)
        values.append(n * value)
    if of("attention.key_length_mla") and of("attention.value_length_mla"):
        values = [0] * n_layers  # values are a view of the keys
    if flash_on_cpu(header, options) == "off" and values:
        # values are transposed, and all layers are as wide as the widest
        values = [max(values)] * n_layers
    n_values = sum(
        keys[i] + values[i]
        for i in range(min(n_trunk, n_own))
        if facts.caches_both or not _is_recurrent(header, i)
    )
    return n_values * KV_TYPES[options.kv_type][1]


def _kv_heads(header: Header) -> list[int]:
    return header.by_layer("attention.head_count_kv", header.by_layer("attention.head_count", 0))


def head_bytes(header: Header, options: ContextOptions, n_ctx: int) -> int:
    if shares_cache(header):
        return 0
    kv_heads = _kv_heads(header)[header.whole("block_count") - n_heads(header) :]
    n_values = sum(kv_heads) * sum(header.head_lengths())
    return int(padded(n_ctx) * n_values * KV_TYPES[options.kv_type][1])


def state_bytes(header: Header) -> int:
    heads = header.by_layer("attention.head_count", 0)
    n_trunk = header.whole("block_count") - header.whole("nextn_predict_layers")
    n_recurrent = sum(_is_recurrent(header, i) for i in range(n_trunk))
    return _FLOAT * _state(header, heads[0] if heads else 0) * n_recurrent


def _is_recurrent(header: Header, layer: int) -> bool:
    facts = header.facts
    if facts.cache != "hybrid" or facts.caches_both:
        return facts.cache == "recurrent" or facts.caches_both
    layers = header.of_architecture("attention.recurrent_layers")
    if isinstance(layers, tuple) and layer < len(layers):
        return bool(layers[layer])
    if facts.attention_every:
        every = header.whole("full_attention_interval", facts.attention_every)
        return bool((layer + 1) % max(every, 1))
    none = header.by_layer("attention.head_count_kv", 0)[layer] == 0
    has_feed_forward = header.by_layer("feed_forward_length", 0)[layer] > 0
    return none and not (facts.feed_forward_alone and has_feed_forward)


def _state(header: Header, n_heads: int) -> int:
    """Return the number of values in the state of a recurrent layer."""
    embedding, wkv = header.whole("embedding_length"), header.whole("wkv.head_size")
    if wkv:
        return embedding * (header.whole("token_shift_count", 2) + wkv)
    if kernel := header.whole("shortconv.l_cache"):
        return embedding * (kernel - 1)
    names = ("inner_size", "state_size", "conv_kernel")
    inner, state, convolution = (header.whole(f"ssm.{name}") for name in names)
    if head := header.whole("kda.head_dim"):
        return 3 * (convolution - 1 if convolution else 3) * n_heads * head + head * head * n_heads
    if header.facts.linear_attention:
        head = header.whole("attention.key_length", embedding // max(n_heads, 1))
        return head * head * n_heads
    width = inner + 2 * header.whole("ssm.group_count") * state
    return max(convolution - 1, 0) * width + state * inner


def padded(n_ctx: int) -> int:
    """Return a context length as llama.cpp rounds it up."""
    return -(-n_ctx // PAD) * PAD


class Offloaded(NamedTuple):
    """The part of a model that is on devices.

    Attributes:
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
    tied = header.tensor("output.weight") is None
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
