"""Estimate of the memory of a context for embeddings, and a check of it."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import NotEnoughMemoryError
from ..gguf.header import TOKENS
from ..gguf.validation import Header, embeds_only
from ..system.machine import available_bytes, format_bytes, resident_bytes, total_bytes
from .backend import build_features, uses_gpu
from .cache_size import cache_bytes, padded
from .memory import MemoryEstimate, row_values
from .options import ContextOptions
from .repacking import repacked_bytes

# Tokens of a pass: the least; more for longer texts.
LEAST = 256
# bytes of a float32
_FLOAT = 4
# bytes; largest attention scores of a pass without flash attention
_MOST_SCORES = 256 << 20
# bytes; buffers of a context that do not depend on its size, measured
_FIXED = 2 << 20
_HINT = "use a smaller model, or close other programs."


def flash_attention(header: Header, options: ContextOptions, n_tokens: int) -> str:
    """Return the flash attention of a context that embeds `n_tokens` tokens in one pass.

    `auto` is off on a CPU, which is more precise, while the attention scores need little memory.
    """
    if options.flash_attention != "auto" or uses_gpu(options):
        return options.flash_attention
    heads = max(header.by_layer("attention.head_count", 0), default=0)
    scores = _FLOAT * n_tokens * padded(n_tokens) * heads
    return "on" if options.needs_flash_attention or scores > _MOST_SCORES else "off"


def embedding_bytes(header: Header, options: ContextOptions, n_tokens: int) -> int:
    """Return the approximate memory of a context that embeds `n_tokens` tokens in one pass.

    llama.cpp reserves logits for all of them, and computes them if the model generates text.
    """
    flash = flash_attention(header, options, n_tokens) != "off"
    logits = header.n_values(TOKENS) * (1 if embeds_only(header) else 2)
    cache = 0 if header.facts.output == "embeddings" else cache_bytes(header, options, n_tokens)
    # keys, values and queries have no place in a cache then
    own = 4 * header.whole("embedding_length")
    row = row_values(header, padded(n_tokens), flash) + own + logits
    return _FIXED + cache + _FLOAT * n_tokens * row


def embedding_needs(
    header: Header, options: ContextOptions, features: Mapping[str, str]
) -> MemoryEstimate:
    """Return the memory of an embedding model, with the context for its first texts."""
    copied, idle = repacked_bytes(header, features) if options.repacks else (0, 0)
    copies = copied + sum(one.path.stat().st_size for one in options.lora if one.path.exists())
    compute = embedding_bytes(header, options, LEAST)
    return MemoryEstimate(
        header.file_bytes + copies, 0, compute, resident_bytes(), copies, idle, LEAST
    )


def check_room_to_embed(header: Header, options: ContextOptions) -> None:
    """Reject an embedding model that does not fit into memory, before it is loaded.

    Models that may use a GPU are not checked.

    Raises:
        NotEnoughMemoryError: It does not fit.
    """
    free, total = available_bytes(), total_bytes()
    needed = embedding_needs(header, options, build_features())
    if uses_gpu(options) or needed.fits(free, total):
        return
    has = (
        f"{format_bytes(free)} are free"
        if free is not None and needed.own > free
        else f"this machine has {format_bytes(total or 0)}"
    )
    error = NotEnoughMemoryError(
        f"{header.path.name} needs {format_bytes(needed.added)} of memory; {has}.",
        needed.added,
        free,
    )
    error.hint = _HINT
    raise error


def check_embedding_memory(header: Header, options: ContextOptions, n_tokens: int) -> None:
    """Reject a context for embeddings that does not fit into memory.

    Models that may use a GPU are not checked.

    Args:
        header: Header of the model.
        options: Its options.
        n_tokens: Number of tokens of a pass.

    Raises:
        NotEnoughMemoryError: It does not fit. It contains the required and the free memory, and the
            longest text that would fit.
    """
    needed, free = embedding_bytes(header, options, n_tokens), available_bytes()
    if uses_gpu(options) or free is None or needed <= free:
        return
    fits = n_tokens
    while fits >= LEAST and embedding_bytes(header, options, fits) > free:
        fits //= 2
    would_fit = (
        f"texts of {fits:,} tokens would fit" if fits >= LEAST else "not even short texts fit"
    )
    error = NotEnoughMemoryError(
        f"embeddings of texts of {n_tokens:,} tokens need {format_bytes(needed)} of memory; "
        f"{format_bytes(free)} are free: {would_fit}.",
        needed,
        free,
    )
    error.hint = f"shorten the texts, {_HINT}"
    raise error
