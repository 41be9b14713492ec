"""Load and context options, and the meaning of llama.cpp's load errors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from ..errors import (
    ContextFailedError,
    GgufSpecError,
    InvalidOptionError,
    NotEnoughMemoryError,
    UnsupportedModelError,
)
from ..errors.texts import Option, Optionally, Text, advice
from ..gguf.validation import Header
from ..system.hardware import available_bytes

# name -> (ggml type, bytes per value)
KV_TYPES = {
    "f32": (0, 4.0),
    "f16": (1, 2.0),
    "bf16": (30, 2.0),
    "q8_0": (8, 34 / 32),
    "q5_1": (7, 24 / 32),
    "q5_0": (6, 22 / 32),
    "q4_1": (3, 20 / 32),
    "q4_0": (2, 18 / 32),
}
# values per block, for all types below 16 bits
_KV_BLOCK = 32
# name -> llama.cpp's llama_flash_attn_type
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
# positions; limit of the default context
DEFAULT_CTX = 4096
# largest number of sequences of a context; a pass has at most K_MAX + 1 rows
PARALLEL_MAX = 64


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter: low-rank matrix products that are added to the products of a model.

    Attributes:
        path: Its GGUF file.
        scale: Factor of the adapter's products; 0 adds nothing.
    """

    path: Path
    scale: float = 1.0


AdapterFile: TypeAlias = "str | Path | tuple[str | Path, float]"
"""A file, or a file and its scale."""
# largest absolute value of a scale
_MAX_SCALE = 1_000_000


def adapters(
    given: AdapterFile | Sequence[AdapterFile], option: str = "lora"
) -> tuple[Adapter, ...]:
    """Return the adapters from an argument of `load`.

    The argument is one file or several, each with or without a scale.

    Args:
        given: The argument.
        option: Its name, for error messages.

    Raises:
        InvalidOptionError: The argument has another form, or a scale is out of range.
    """
    found = []
    for one in [given] if isinstance(given, (str, Path)) else given:
        file, scale = one if isinstance(one, tuple) and len(one) == 2 else (one, 1.0)
        if not isinstance(file, (str, Path)):
            raise InvalidOptionError(option, one, "a file, or a pair of a file and a scale")
        if not (isinstance(scale, (int, float)) and abs(scale) <= _MAX_SCALE):
            raise InvalidOptionError(
                option, f"{file}:{scale}", f"a file and a scale from -{_MAX_SCALE} to {_MAX_SCALE}"
            )
        found.append(Adapter(Path(file), float(scale)))
    return tuple(found)


@dataclass(frozen=True)
class ContextOptions:
    """Options for loading a model and creating its context.

    Attributes:
        n_ctx: Capacity of the cache, in positions; None selects the trained length, at most 4,096.
        threads: Threads for all batches; None selects the number of physical cores.
        flash_attention: `on`, `off`, or `auto` for the best measured choice on this machine
            (`llama.attention`).
        kv_type: Number type of the cache, one of `KV_TYPES`. Types below 16 bits need flash
            attention.
        gpu_layers: Layers to offload; -1 for all if the build has a GPU backend.
        extra_bufts: Whether llama.cpp may repack weights for this CPU (AMX and others).
        verbose: Whether to write llama.cpp's log to stderr.
        rpc: Addresses of the workers that hold the layers; empty for none.
        lora: Adapters, all applied together.
        drafts: Whether these are options of a draft model. Errors then use the option names of
            drafts, such as `draft_kv_type`.
        parallel: Number of sequences of the context, each with `n_ctx` positions of its own.
    """

    n_ctx: int | None = None
    threads: int | None = None
    flash_attention: str = "auto"
    kv_type: str = "f16"
    gpu_layers: int = -1
    extra_bufts: bool = True
    verbose: bool = False
    lora: tuple[Adapter, ...] = ()
    drafts: bool = False
    parallel: int = 1
    rpc: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (isinstance(self.parallel, int) and 1 <= self.parallel <= PARALLEL_MAX):
            raise InvalidOptionError(
                "parallel", self.parallel, f"a whole number from 1 to {PARALLEL_MAX}, or auto"
            )
        if self.n_ctx is not None and not (isinstance(self.n_ctx, int) and 1 < self.n_ctx < 2**31):
            raise InvalidOptionError("n_ctx", self.n_ctx, "a whole number above 1")
        if self.threads is not None and not (
            isinstance(self.threads, int) and 0 < self.threads <= 512
        ):
            raise InvalidOptionError("threads", self.threads, "a whole number from 1 to 512")
        if self.flash_attention not in FLASH_ATTENTION:
            raise InvalidOptionError(
                self._named("flash_attention"),
                self.flash_attention,
                "one of " + ", ".join(FLASH_ATTENTION),
            )
        if self.kv_type not in KV_TYPES:
            raise InvalidOptionError(
                self._named("kv_type"), self.kv_type, "one of " + ", ".join(KV_TYPES)
            )
        if not (isinstance(self.gpu_layers, int) and self.gpu_layers >= -1):
            raise InvalidOptionError(
                self._named("gpu_layers"), self.gpu_layers, "a whole number, -1 for all layers"
            )
        if self.flash_attention == "off" and self._cache_in_blocks:
            hint = advice(
                Text("set ", Option(self._named("flash_attention"), "auto")),
                Text("set ", Option(self._named("kv_type"), "f16")),
            )
            raise InvalidOptionError(
                self._named("kv_type"),
                self.kv_type,
                "f16, bf16 or f32 when flash attention is off",
                hint,
            )

    def for_draft(
        self,
        flash_attention: str | None = None,
        kv_type: str | None = None,
        gpu_layers: int | None = None,
        lora: tuple[Adapter, ...] = (),
    ) -> ContextOptions:
        """Return the options for a draft model: these options with the given changes."""
        return replace(
            self,
            drafts=True,
            rpc=(),
            lora=lora,
            flash_attention=self.flash_attention if flash_attention is None else flash_attention,
            kv_type=self.kv_type if kv_type is None else kv_type,
            gpu_layers=self.gpu_layers if gpu_layers is None else gpu_layers,
        )

    @property
    def repacks(self) -> bool:
        """Whether llama.cpp may repack the weights; workers do not."""
        return self.extra_bufts and not self.rpc

    @property
    def needs_flash_attention(self) -> bool:
        """Whether the cache's number type requires flash attention."""
        return self._cache_in_blocks

    @property
    def flash_on_cpu(self) -> str:
        """Value of `auto` on a CPU.

        It is off if possible, because rows then have the same bits in passes of all widths.
        """
        if self.flash_attention != "auto":
            return self.flash_attention
        return "on" if self._cache_in_blocks else "off"

    def positions(self, n_ctx_train: int) -> int:
        """Return the context length to request, for a model trained for `n_ctx_train` positions."""
        return self.n_ctx or min(n_ctx_train or DEFAULT_CTX, DEFAULT_CTX)

    def kv_bytes(self, header: Header, n_ctx_train: int) -> int:
        """Return the approximate size of the cache, in bytes."""
        return header.kv_bytes(self.positions(n_ctx_train), KV_TYPES[self.kv_type][1])

    def check_backend(self, has_gpu: bool) -> None:
        """Reject GPU layers if the build of llama.cpp has no GPU backend.

        llama.cpp would silently keep them on the CPU.

        Raises:
            InvalidOptionError: There is no GPU backend. The hint explains how to get a build with
                one.
        """
        if self.gpu_layers > 0 and not has_gpu:
            hint = Text(
                "omit ",
                Option(self._named("gpu_layers")),
                ", or build for your GPU: CMAKE_ARGS=-DGGML_CUDA=on pip install "
                "--force-reinstall --no-cache-dir llama-cpp-python (or -DGGML_VULKAN=on, "
                "-DGGML_METAL=on).",
            )
            raise InvalidOptionError(
                self._named("gpu_layers"),
                self.gpu_layers,
                "0 or -1: this build of llama.cpp has no GPU backend",
                hint,
            )

    def check_heads(self, header: Header) -> None:
        """Reject a cache type whose blocks of 32 values do not divide the heads of a model.

        Raises:
            InvalidOptionError: A head has another length. The message contains it.
        """
        uneven = [n for n in _head_sizes(header) if n % _KV_BLOCK]
        if self._cache_in_blocks and uneven:
            allowed = (
                f"f16, bf16 or f32: heads of {header.path.name} have {uneven[0]} values, "
                f"which is not a multiple of {_KV_BLOCK}"
            )
            hint = Text("set ", Option(self._named("kv_type"), "f16"), ".")
            raise InvalidOptionError(self._named("kv_type"), self.kv_type, allowed, hint)

    @property
    def _cache_in_blocks(self) -> bool:
        return KV_TYPES[self.kv_type][1] < 2

    def _named(self, option: str) -> str:
        return f"draft_{option}" if self.drafts else option


def _head_sizes(header: Header) -> list[int]:
    """Return the known lengths of a head's keys and values."""
    n_heads = header.of_architecture("attention.head_count", 0)
    n_heads = n_heads[0] if isinstance(n_heads, tuple) and n_heads else n_heads
    width = header.of_architecture("embedding_length", 0)
    plain = (
        width // n_heads
        if isinstance(n_heads, int) and isinstance(width, int) and n_heads > 0
        else 0
    )
    sizes = (header.of_architecture(f"attention.{name}_length", plain) for name in ("key", "value"))
    return [n for n in sizes if isinstance(n, int) and n > 0]


def physical_cores() -> int:
    """Return the number of physical cores available to this process.

    A second thread on a core slows decoding down.
    """
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        import psutil

        return int(psutil.cpu_count(logical=False) or os.cpu_count() or 1)
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text(encoding="ascii"))
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def _reason(log: Iterable[str]) -> str:
    """Return the most informative line of llama.cpp's log, without the function name."""
    lines = [
        line.split(": ", 1)[-1]
        if line.startswith(("llama_", "common_", "ggml_", "gguf_"))
        else line
        for line in log
    ]
    telling = (
        [
            line
            for line in lines
            if "error loading model" in line and "failed to load model from" not in line
        ]
        or lines
        or ["llama.cpp gave no reason"]
    )
    return telling[0].removeprefix("error loading model: ").rstrip(".")


def load_error(header: Header, log: Iterable[str]) -> GgufSpecError:
    """Return the error for a file that llama.cpp did not load, based on its log."""
    reason, name = _reason(log), header.path.name
    if "alloc" in reason or "memory" in reason:
        return NotEnoughMemoryError(
            f"{name} does not fit into memory ({reason}).", header.file_bytes, available_bytes()
        )
    if "unknown model architecture" in reason:
        hint = (
            "use a model of an architecture that llama-cpp-python supports, "
            "or upgrade llama-cpp-python."
        )
        return UnsupportedModelError(
            header.path,
            f"{name} has the architecture {header.architecture!r}, "
            "which llama.cpp does not support.",
            hint,
        )
    hint = _with_log("download or convert it again")
    return UnsupportedModelError(header.path, f"llama.cpp cannot load {name}: {reason}.", hint)


def context_error(options: ContextOptions, n_ctx: int, log: Iterable[str]) -> GgufSpecError:
    """Return the error for a context that llama.cpp did not create, based on its log."""
    log = list(log)
    if any("alloc" in line or "memory" in line for line in log):
        return NotEnoughMemoryError(
            f"there is not enough memory for a context of {n_ctx:,} tokens.",
            None,
            available_bytes(),
        )
    prefix = "draft_" if options.drafts else ""
    return ContextFailedError(
        n_ctx,
        Option(f"{prefix}kv_type", options.kv_type),
        Option(f"{prefix}flash_attention", options.flash_attention),
        _reason(log),
    )


def _with_log(hint: str) -> Text:
    """Return a hint that also names the option that shows llama.cpp's log."""
    return Text(hint, Optionally("; ", Option("verbose", True), " shows llama.cpp's log"), ".")


def adapter_error(adapter: Adapter, log: Iterable[str]) -> GgufSpecError:
    """Return the error for an adapter that llama.cpp did not load, based on its log."""
    name = adapter.path.name
    lines = [
        line.split("lora adapter: ", 1)[-1]
        for line in log
        if "failed to apply lora adapter: " in line
    ] or ["llama.cpp gave no reason"]
    reason = lines[-1].rstrip(".")
    if "alloc" in reason:
        return NotEnoughMemoryError(
            f"the adapter {name} does not fit into memory ({reason}).", None, available_bytes()
        )
    hint = _with_log("use an adapter that was made for this model")
    return UnsupportedModelError(
        adapter.path, f"llama.cpp cannot use the adapter {name}: {reason}.", hint
    )
