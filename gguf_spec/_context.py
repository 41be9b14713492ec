"""How a model is put into memory: the options, whether it fits, and what llama.cpp's refusals mean."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ._gguf import Header
from ._memory import available_bytes, total_bytes
from .errors import GgufSpecError, InvalidOptionError, NotEnoughMemoryError, UnsupportedModelError

# name -> (ggml type, bytes a value)
KV_TYPES = {
    "f32": (0, 4.0), "f16": (1, 2.0), "bf16": (30, 2.0), "q8_0": (8, 34 / 32),
    "q5_1": (7, 24 / 32), "q5_0": (6, 22 / 32), "q4_1": (3, 20 / 32), "q4_0": (2, 18 / 32),
}  # fmt: skip
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
DEFAULT_CTX = 4096


@dataclass(frozen=True)
class ContextOptions:
    """How a model is put into memory.

    Attributes:
        n_ctx: Positions the cache holds; None takes the trained length, at most 4,096.
        threads: For batches of one and of many tokens; None takes the physical cores.
        flash_attention: `auto`, `on` or `off`.
        kv_type: Number type of the cache, one of `KV_TYPES`; types below 16 bits need flash attention.
        gpu_layers: Layers to offload in a GPU build; -1 for all.
        extra_bufts: Let llama.cpp repack weights for this CPU (AMX and others).
        verbose: Write llama.cpp's log to stderr.
    """

    n_ctx: int | None = None
    threads: int | None = None
    flash_attention: str = "auto"
    kv_type: str = "f16"
    gpu_layers: int = -1
    extra_bufts: bool = True
    verbose: bool = False

    def __post_init__(self) -> None:
        if self.n_ctx is not None and not (isinstance(self.n_ctx, int) and 1 < self.n_ctx < 2**31):
            raise InvalidOptionError("n_ctx", self.n_ctx, "a whole number above 1")
        if self.threads is not None and not (isinstance(self.threads, int) and 0 < self.threads <= 512):
            raise InvalidOptionError("threads", self.threads, "a whole number from 1 to 512")
        if self.flash_attention not in FLASH_ATTENTION:
            raise InvalidOptionError("flash_attention", self.flash_attention, "one of " + ", ".join(FLASH_ATTENTION))
        if self.kv_type not in KV_TYPES:
            raise InvalidOptionError("kv_type", self.kv_type, "one of " + ", ".join(KV_TYPES))
        if not (isinstance(self.gpu_layers, int) and self.gpu_layers >= -1):
            raise InvalidOptionError("gpu_layers", self.gpu_layers, "a whole number, -1 for all layers")

    def positions(self, n_ctx_train: int) -> int:
        """Return how many positions to ask for, of a model trained for `n_ctx_train`."""
        return self.n_ctx or min(n_ctx_train or DEFAULT_CTX, DEFAULT_CTX)

    def kv_bytes(self, header: Header, n_ctx_train: int) -> int:
        """Return about what the cache takes."""
        return header.kv_bytes(self.positions(n_ctx_train), KV_TYPES[self.kv_type][1])


def physical_cores() -> int:
    """Return the number of physical cores this process may use: a second thread on a core slows decoding down."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = set()
    for cpu in allowed:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text(encoding="ascii"))
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def check_memory(header: Header, kv_bytes: int = 0) -> None:
    """Refuse what cannot fit into main memory: the kernel would kill the process instead.

    Raises:
        NotEnoughMemoryError: Says what is needed and what is free.
    """
    total, available = total_bytes(), available_bytes()
    needed = header.file_bytes + kv_bytes
    if (total and needed > total) or (available is not None and kv_bytes > available):
        wants = f"{header.path.name} needs {_gib(needed)} ({_gib(kv_bytes)} of it for the context)"
        raise NotEnoughMemoryError(f"{wants} but {_gib(available or total or 0)} are free.", needed, available)


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:,.1f} GiB"


def _reason(log: Iterable[str]) -> str:
    """Return the line of llama.cpp's log that says most, without the name of the function that wrote it."""
    lines = [line.split(": ", 1)[-1] if line.startswith(("llama_", "common_", "ggml_", "gguf_")) else line for line in log]
    telling = [line for line in lines if "error loading model" in line and "failed to load model from" not in line] or lines or ["it gives no reason"]
    return telling[0].removeprefix("error loading model: ").rstrip(".")


def load_error(header: Header, log: Iterable[str]) -> GgufSpecError:
    """Return the error for a file that llama.cpp did not load, by what its log says."""
    said, name = _reason(log), header.path.name
    if "alloc" in said or "memory" in said:
        return NotEnoughMemoryError(f"{name} does not fit into memory ({said}).", header.file_bytes, available_bytes())
    if "unknown model architecture" in said:
        hint = "take a model of an architecture that llama-cpp-python knows, or a newer llama-cpp-python."
        return UnsupportedModelError(header.path, f"{name} has the architecture {header.architecture!r}, which llama.cpp does not know.", hint)
    hint = "download or convert it again; -v shows llama.cpp's log."
    return UnsupportedModelError(header.path, f"llama.cpp cannot load {name}: {said}.", hint)


def context_error(options: ContextOptions, n_ctx: int, log: Iterable[str]) -> GgufSpecError:
    """Return the error for a context that llama.cpp did not make, by what its log says."""
    log = list(log)
    if any("alloc" in line or "memory" in line for line in log):
        return NotEnoughMemoryError(f"there is no memory for a context of {n_ctx:,} tokens.", None, available_bytes())
    value = f"{n_ctx:,} tokens, {options.kv_type}, flash attention {options.flash_attention}"
    return InvalidOptionError("context", value, f"one that llama.cpp can make ({_reason(log)})", "try --kv-type f16 --flash-attention auto.")
