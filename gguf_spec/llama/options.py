"""Load and context options: the context, adapters, and where the weights are."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import InvalidOptionError, Option, Text
from ..gguf.validation import Header
from ..options import DEFAULT_CTX, LAYERS_MAX, PATTERN_MAX, checked, require
from ..system.files import absolute, content_id
from ..system.limits import ProcessorLimit, processor_limit

if TYPE_CHECKING:
    from ..arguments import AdapterFile

# value of `device` for no GPU, and the name of the CPU for `override_tensor`
NONE, CPU = "none", "CPU"
# what to do where llama.cpp has a library for a GPU that cannot be used
NEEDS_OF_GPU = (
    "install what this library needs: the driver of the GPU; for CUDA the packages nvidia-cublas "
    "and nvidia-cuda-runtime, with the folders of their libraries in LD_LIBRARY_PATH."
)
# Matrices of experts, as llama.cpp's `--cpu-moe` selects them; the group is the layer.
_EXPERTS = re.compile(r"^blk\.(\d+)\.ffn_(?:up|down|gate|gate_up)_(?:ch|)exps")
# start of the name of a tensor of a layer
_LAYER = re.compile(r"^blk\.(\d+)(?=\.)")


@dataclass(frozen=True)
class Placement:
    """Devices and memory of the weights.

    Attributes:
        devices: Names of the devices for layers; empty for all GPUs, `none` alone for the CPU.
        n_cpu_moe: Number of first layers whose experts stay in main memory.
        overrides: Pairs of a regular expression and a device. A tensor goes to the device of the
            first expression that matches a part of its name; before `n_cpu_moe`.
        mmap: Whether files are mapped into memory; None maps them if the devices can use that,
            unless `memory.read_files` decides otherwise.
        mlock: Whether the weights in main memory are locked there.
        numa: NUMA strategy of the process, or None.
        kernels: Kernels of the process (`own_kernels.start`).
    """

    devices: tuple[str, ...] = ()
    n_cpu_moe: int = 0
    overrides: tuple[tuple[str, str], ...] = ()
    mmap: bool | None = None
    mlock: bool = False
    numa: str | None = None
    kernels: str = "auto"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Placement:
        """Return the placement from arguments of `load`; whether the devices exist is not checked.

        Raises:
            InvalidOptionError: An argument is not allowed.
        """
        names = {"device", "cpu_moe", "override_tensor"} | {one.name for one in fields(cls)}
        values = {name: checked(name, given[name]) for name in given if name in names}
        devices, overrides = values.pop("device", ()), values.pop("override_tensor", ())
        if values.pop("cpu_moe", False):
            values["n_cpu_moe"] = LAYERS_MAX
        return cls(devices, overrides=tuple(map(_override, overrides)), **values)

    @property
    def uses_gpu(self) -> bool:
        return NONE not in self.devices

    @property
    def parts(self) -> list[object]:
        """Parts of the names of files with measurements; empty for the defaults.

        Mapped and locked files do not change a bit.
        """
        parts: list[object] = [f"device {name}" for name in self.devices]
        parts += [f"{pattern}={device}" for pattern, device in self.overrides]
        parts += [f"experts {self.n_cpu_moe}"] if self.n_cpu_moe else []
        return [*parts, *([f"numa {self.numa}"] if self.numa else [])]

    def places(self, names: Iterable[str]) -> dict[str, str]:
        """Return tensor -> device, for the tensors that do not go where their layer goes."""
        patterns = [(_compiled(pattern), device) for pattern, device in self.overrides]
        found = {}
        for name in names:
            expert = _EXPERTS.match(name)
            device = next((device for pattern, device in patterns if pattern.search(name)), None)
            if device is None and expert and int(expert[1]) < self.n_cpu_moe:
                device = CPU
            if device is not None:
                found[name] = device
        return found

    def check_header(self, header: Header) -> None:
        """Reject options that select no tensor of a model.

        Raises:
            InvalidOptionError: A pattern matches no name, or the model has no experts.
        """
        names = [tensor.name for tensor in header.tensors]
        for pattern, device in self.overrides:
            if not any(_compiled(pattern).search(name) for name in names):
                such = names[len(names) // 2] if names else "output"
                allowed = f"a pattern that matches a tensor of {header.path.name}, such as {such}"
                raise InvalidOptionError("override_tensor", f"{pattern}={device}", allowed)
        if self.n_cpu_moe and not any(map(_EXPERTS.match, names)):
            of_all = self.n_cpu_moe == LAYERS_MAX
            name, value, other = (
                ("cpu_moe", True, False) if of_all else ("n_cpu_moe", self.n_cpu_moe, 0)
            )
            what = f"{other}: {header.path.name} is no mixture of experts"
            raise InvalidOptionError(name, value, what)


def expression(names: Iterable[str]) -> str:
    """Return a regular expression that matches exactly these names of tensors.

    Layers are grouped, because llama.cpp limits the size of an expression.
    """
    layers: dict[str, list[str]] = {}
    for name in names:
        layer = _LAYER.match(name)
        rest, number = (name[layer.end() :], layer[1]) if layer else (name, "")
        layers.setdefault(re.escape(rest), []).append(number)
    parts = [
        rf"blk\.(?:{'|'.join(numbers)}){rest}" if numbers[0] else rest
        for rest, numbers in layers.items()
    ]
    return f"^(?:{'|'.join(parts)})$"


def _override(given: str) -> tuple[str, str]:
    """Return pattern and device of a `PATTERN=DEVICE` text; the device is not checked.

    Raises:
        InvalidOptionError: The text has another form, or its pattern is not a regular expression or
            longer than 256 characters.
    """
    pattern, _, device = given.rpartition("=")
    if not pattern or not device:
        raise InvalidOptionError("override_tensor", given[:80], "PATTERN=DEVICE, as in exps=CPU")
    if len(pattern) > PATTERN_MAX:
        allowed = f"a pattern of at most {PATTERN_MAX} characters"
        raise InvalidOptionError("override_tensor", f"{pattern[:40]}...={device[:40]}", allowed)
    try:
        _compiled(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        allowed = f"a regular expression and a device ({error})"
        raise InvalidOptionError("override_tensor", given, allowed) from None
    return pattern, device


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


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
# largest number of sequences of a context; a pass has at most K_MAX + 1 rows
PARALLEL_MAX = 64


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter: products, times `scale`, that are added to the products of a model."""

    path: Path
    scale: float = 1.0

    @cached_property
    def content_id(self) -> str:
        """Hash of the file, computed when the adapter is loaded."""
        return content_id(self.path)


_USUAL_PLACEMENT = Placement()
# largest absolute value of a scale
_MAX_SCALE = 1_000_000


def adapters(
    given: AdapterFile | Sequence[AdapterFile], option: str = "lora"
) -> tuple[Adapter, ...]:
    """Return the adapters from an argument of `load`.

    The argument is one file or several, each with or without a scale.

    Raises:
        InvalidOptionError: The argument has another form, or a scale is out of range.
    """
    result = []
    is_pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], (int, float))
    for item in [given] if is_pair or isinstance(given, (str, Path)) else given:
        file, scale = item if isinstance(item, tuple) and len(item) == 2 else (item, 1.0)
        if not isinstance(file, (str, Path)):
            raise InvalidOptionError(option, item, "a file, or a pair of a file and a scale")
        if not (isinstance(scale, (int, float)) and abs(scale) <= _MAX_SCALE):
            allowed = f"a file and a scale from -{_MAX_SCALE} to {_MAX_SCALE}"
            raise InvalidOptionError(option, f"{file}:{scale}", allowed)
        result.append(Adapter(absolute(Path(file)), float(scale)))
    return tuple(result)


@dataclass(frozen=True)
class ContextOptions:
    """Options for loading a model and creating its context.

    Attributes:
        n_ctx: Capacity of the cache, in positions; None selects the trained length, at most 4,096.
        threads: Threads for all batches; None selects the number of physical cores.
        flash_attention: `on`, `off`, or `auto`: on a CPU the best choice whose rows have the same
            bits in passes of all widths (`llama.own_kernels`), on a GPU llama.cpp's choice.
        kv_type: Number type of the cache, one of `KV_TYPES`. Types below 16 bits need flash
            attention.
        gpu_layers: Layers to offload; -1 for all if the build has a GPU backend; `auto` for as many
            as fit (`llama.memory`).
        extra_bufts: Whether llama.cpp may repack weights for this CPU (AMX and others).
        verbose: Whether to write llama.cpp's log to stderr.
        rpc: Addresses of the workers that hold the layers; empty for none.
        lora: Adapters, all applied together.
        drafts: Whether these are options of a draft model. Errors then use the option names of
            drafts, such as `draft_kv_type`.
        parallel: Number of sequences of the context, each with `n_ctx` positions of its own.
        n_snapshots: Number of earlier states of recurrent layers that llama.cpp keeps, where it
            can; each is as large as the state.
        pooling: How embeddings are pooled, one of `POOLING`; None as the file says.
        head: Prediction head that drafts for this model: `own` for one in its file, `file` for one
            in a file of its own, or empty. For that file itself it is `self`.
        head_layers: Layers of this model whose inputs an EAGLE-3 head reads; empty for other heads.
    """

    n_ctx: int | None = None
    threads: int | None = None
    flash_attention: str = "auto"
    kv_type: str = "f16"
    gpu_layers: int | Literal["auto"] = -1
    extra_bufts: bool = True
    verbose: bool = False
    lora: tuple[Adapter, ...] = ()
    drafts: bool = False
    parallel: int = 1
    rpc: tuple[str, ...] = ()
    n_snapshots: int = 0
    pooling: str | None = None
    head: Literal["", "own", "file", "self"] = ""
    placement: Placement = _USUAL_PLACEMENT
    head_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        n, n_ctx, named = self.gpu_layers, self.n_ctx, self._named
        is_length = n_ctx is None or (isinstance(n_ctx, int) and 1 < n_ctx < 2**31)
        if self.pooling is not None:
            checked("pooling", self.pooling)
        is_count = isinstance(self.parallel, int) and 1 <= self.parallel <= PARALLEL_MAX
        allowed = f"a whole number from 1 to {PARALLEL_MAX}, or auto"
        require("parallel", self.parallel, allowed, is_count)
        require("n_ctx", n_ctx, "a whole number above 1", is_length)
        checked("threads", self.threads)
        for option, known in (("flash_attention", FLASH_ATTENTION), ("kv_type", KV_TYPES)):
            value = getattr(self, option)
            require(named(option), value, "one of " + ", ".join(known), value in known)
        name, is_layers = named("gpu_layers"), n == "auto" or (isinstance(n, int) and n >= -1)
        require(name, n, "a whole number, -1 for all layers, or auto", is_layers)
        if self.rpc:
            require("gpu_layers", n, "omitted with rpc", n != "auto")
            devices = self.placement.devices
            require("device", ", ".join(devices), "omitted with rpc", not devices)
        fits_device = not self.wants_gpu or self.placement.uses_gpu
        require(name, n, f"0, -1 or auto with {named('device')} none", fits_device)
        if self.flash_attention == "off" and self.needs_flash_attention:
            flash, usual = Option(named("flash_attention"), "auto"), Option(named("kv_type"), "f16")
            hint = Text("set {} | set {}.", flash, usual)
            allowed = "f16, bf16 or f32 when flash attention is off"
            raise InvalidOptionError(named("kv_type"), self.kv_type, allowed, hint)

    def for_draft(
        self,
        flash_attention: str | None = None,
        kv_type: str | None = None,
        gpu_layers: int | Literal["auto"] | None = None,
        lora: tuple[Adapter, ...] = (),
        threads: int | None = None,
        devices: tuple[str, ...] = (),
    ) -> ContextOptions:
        """Return the options for a draft model: these options with the given changes.

        Tensors with a device of their own are those of the target alone.
        """
        devices = devices or self.placement.devices
        placement = replace(self.placement, devices=devices, n_cpu_moe=0, overrides=())
        # a draft without a GPU has no number of layers there
        own_layers = self.gpu_layers if placement.uses_gpu else -1
        return replace(
            self,
            drafts=True,
            rpc=(),
            n_snapshots=0,
            head="",
            head_layers=(),
            lora=lora,
            placement=placement,
            threads=self.threads if threads is None else threads,
            flash_attention=self.flash_attention if flash_attention is None else flash_attention,
            kv_type=self.kv_type if kv_type is None else kv_type,
            gpu_layers=own_layers if gpu_layers is None else gpu_layers,
        )

    @property
    def repacks(self) -> bool:
        """Whether llama.cpp may repack the weights; workers do not."""
        return self.extra_bufts and not self.rpc

    @property
    def wants_gpu(self) -> bool:
        """Whether a number of layers is to be offloaded."""
        return isinstance(self.gpu_layers, int) and self.gpu_layers > 0

    @property
    def needs_flash_attention(self) -> bool:
        """Whether the cache's number type requires flash attention, as it has blocks of values."""
        return KV_TYPES[self.kv_type][1] < 2

    def positions(self, n_ctx_train: int) -> int:
        """Return the context length to request, for a model trained for `n_ctx_train` positions."""
        return self.n_ctx or min(n_ctx_train or DEFAULT_CTX, DEFAULT_CTX)

    def check_backend(self, has_gpu: bool, problem: Callable[[], str] = str) -> None:
        """Reject GPU layers if the build of llama.cpp has no GPU backend that can be used.

        llama.cpp would silently keep them on the CPU.

        Args:
            problem: Returns why a backend that was found cannot be used; an empty text without one.

        Raises:
            InvalidOptionError: There is no GPU backend. The hint explains how to get a build with
                one, or what the one that is there lacks.
        """
        name = self._named("gpu_layers")
        if self.wants_gpu and not has_gpu:
            if found := problem():
                hint = Text("omit {}, or {}", Option(name), NEEDS_OF_GPU)
                raise InvalidOptionError(name, self.gpu_layers, f"0 or -1: {found}", hint)
            hint = Text(
                "omit {}, or take a build for your GPU: in a clone scripts/run --gpu, elsewhere "
                "GGUF_SPEC_BUILD_LLAMA=gpu and pip install --force-reinstall there.",
                Option(name),
            )
            allowed = "0 or -1: this build of llama.cpp has no GPU backend"
            raise InvalidOptionError(name, self.gpu_layers, allowed, hint)

    def check_heads(self, header: Header) -> None:
        """Reject a cache type whose blocks of 32 values do not divide the heads of a model.

        Raises:
            InvalidOptionError: A head has another length. The message contains it.
        """
        uneven = [n for pair in head_sizes(header) for n in pair if n % _KV_BLOCK]
        if self.needs_flash_attention and uneven:
            allowed = (
                f"f16, bf16 or f32: heads of {header.path.name} have {uneven[0]} values, "
                f"which is not a multiple of {_KV_BLOCK}"
            )
            name = self._named("kv_type")
            hint = Text("set {}.", Option(name, "f16"))
            raise InvalidOptionError(name, self.kv_type, allowed, hint)

    def _named(self, option: str) -> str:
        return f"draft_{option}" if self.drafts else option


def context_options(**given: Any) -> tuple[ContextOptions, ContextOptions]:
    """Return the options of a target and of its draft model from arguments of `load`, by name.

    Other arguments have no effect. Files, devices and workers are not checked.

    Raises:
        InvalidOptionError: An argument is not allowed.
    """
    rpc = given.get("rpc", ())
    own = {one.name for one in fields(ContextOptions)} - {"parallel"}  # which may be `auto`
    values = {name: value for name, value in given.items() if name in own} | {
        "placement": Placement.of(given),
        "lora": adapters(given.get("lora", ())),
        "rpc": (rpc,) if isinstance(rpc, str) else tuple(rpc),
        "extra_bufts": given.get("extra_bufts") is not False,
    }
    target = ContextOptions(**values)
    checked("draft_threads", given.get("draft_threads"))
    return target, target.for_draft(
        **{
            name: given.get(f"draft_{name}")
            for name in ("flash_attention", "kv_type", "gpu_layers", "threads")
        },
        lora=adapters(given.get("draft_lora", ()), "draft_lora"),
        devices=checked("draft_device", given.get("draft_device", ())),
    )


def head_sizes(header: Header) -> list[tuple[int, int]]:
    """Return the lengths of a head's keys and values, also those of sliding windows."""
    return [*dict.fromkeys(header.head_lengths(kind) for kind in ("", "_swa"))]


def physical_cores() -> int:
    """Return the number of physical cores available to this process.

    A second thread on a core slows decoding down, and so do threads that use up the processor time
    of a control group before its period ends.
    """
    return cores_within(processor_limit(), _cores())


def cores_within(limit: ProcessorLimit | None, cores: int) -> int:
    """Return how many of some cores a limit of processor time keeps busy, at least 1."""
    return min(cores, max(1, int(limit.processors))) if limit else cores


def _cores() -> int:
    """Return the number of physical cores on which this process may run."""
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
