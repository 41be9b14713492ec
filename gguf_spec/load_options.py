"""Tables of the options of `load`: one `Rule` for each, beside the model and its draft.

The options of the command line are made from them, and the checks of devices and memory. The other
checks are those of `llama.options.ContextOptions`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import InvalidOptionError
from .option_rule import Rule
from .options import POOLING

# Largest number of devices and of patterns, and characters of a pattern.
_ITEMS_MAX, PATTERN_MAX = 64, 256
# llama.cpp's largest number of layers
LAYERS_MAX = 512
_ATTENTION = ("auto", "on", "off")

LOADING: dict[str, Rule] = {
    "reference": Rule(
        "string", "Text file as an additional source of drafts.", flags=("--draft-text",)
    ),
    "n_ctx": Rule(
        "integer",
        "Context length in tokens.  [default: as trained, at most 4096]",
        2, optional=True, flags=("--ctx",),
    ),
    "threads": Rule(
        "integer", "Number of threads.  [default: physical cores]", 1, 512, optional=True
    ),
    "flash_attention": Rule(
        "string",
        "Flash attention. auto selects the best; a --kv-type below 16 bits requires it.",
        choices=_ATTENTION,
    ),
    "draft_flash_attention": Rule(
        "string",
        "The same for the draft model.  [default: as the target]",
        choices=_ATTENTION, optional=True,
    ),
    "kv_type": Rule(
        "string",
        "Number type of the cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0.",
    ),
    "draft_kv_type": Rule(
        "string", "The same for the draft model.  [default: as the target]", optional=True
    ),
    "gpu_layers": Rule(
        "any",
        "Layers to offload to the GPU; -1 for all, if llama.cpp has a GPU backend; auto for as "
        "many as fit.",
    ),
    "draft_gpu_layers": Rule(
        "any", "The same for the draft model.  [default: as the target]", optional=True
    ),
    "device": Rule(
        "string",
        "Device for the layers, as doctor names it, or none for the CPU alone. Repeatable.  "
        "[default: all GPUs]",
        shape="sequence", items_max=_ITEMS_MAX,
    ),
    "draft_device": Rule(
        "string",
        "The same for the draft model.  [default: as the target]",
        shape="sequence", items_max=_ITEMS_MAX,
    ),
    "cpu_moe": Rule("boolean", "Keep the experts of all layers in main memory."),
    "n_cpu_moe": Rule(
        "integer", "Keep the experts of the first N layers in main memory.", 0, LAYERS_MAX
    ),
    "override_tensor": Rule(
        "string",
        "PATTERN=DEVICE: put the tensors whose names match a regular expression on a device, or on "
        "CPU. The first match counts. Repeatable.",
        shape="sequence", items_max=_ITEMS_MAX,
    ),
    "mmap": Rule(
        "boolean",
        "Map the files into memory, or read them into it.  [default: mapped, if the device can]",
        optional=True, flags=("--mmap/--no-mmap",),
    ),
    "mlock": Rule("boolean", "Lock the weights in main memory, so that they are never paged out."),
    "numa": Rule(
        "string",
        "Placement of threads on a machine with several NUMA nodes.  [default: by the system]",
        choices=("distribute", "isolate", "numactl"), optional=True,
    ),
    "kernels": Rule(
        "string",
        "Kernels of this package where they work (auto), or llama.cpp's (stock). An instruction "
        "set serves tests.",
        choices=("auto", "stock", "avx2", "avxvnni", "avx512", "avx512vnni"),
    ),
    "draft_threads": Rule(
        "integer",
        "Threads of the draft model.  [default: as the target]",
        1, 512, optional=True,
    ),
    "mmproj": Rule(
        "string", "Projector of a vision model, for prompts with images.", optional=True
    ),
    "lora": Rule(
        "any",
        "LoRA adapter of the target; the default of SCALE is 1. Repeatable.",
        shape="sequence",
    ),
    "draft_lora": Rule("any", "The same for the draft model.", shape="sequence"),
    "extra_bufts": Rule(
        "boolean",
        "Repack the weights for this CPU.  [default: if the self-test succeeds]",
        optional=True, flags=("--extra-bufts/--no-extra-bufts",),
    ),
    "rpc": Rule(
        "string",
        "Worker that holds a part of the target, see gguf-spec worker. Repeatable.",
        shape="sequence",
    ),
}  # fmt: skip
# Options that only commands for several requests and for embeddings have.
REQUESTS: dict[str, Rule] = {
    "parallel": Rule(
        "any",
        "Number of requests at once; each has a cache of --ctx tokens. auto: as many as raise the "
        "speed by the measured costs, at most 16, in a quarter of the free memory.",
    ),
    "prefix_memory": Rule(
        "string",
        "Memory for the caches of earlier texts, such as 500MB or 2GiB: a request that begins "
        "like one of them needs not read that part. 0: none. auto: an eighth of the free memory.",
    ),
    "shared_drafts": Rule(
        "boolean",
        "Let drafts also come from the answers of other requests. The texts stay the same; the "
        "time of an answer can show that another one got a text like it.",
    ),
    "pooling": Rule(
        "string",
        "How embeddings are pooled; none gives a row for each token.  "
        "[default: as the file says, else mean]",
        choices=POOLING,
        optional=True,
    ),
}
# Options of `llama.placement.read_placement`.
PLACEMENT = (
    "device", "cpu_moe", "n_cpu_moe", "override_tensor", "mmap", "mlock", "numa", "kernels",
)  # fmt: skip


def checked(name: str, value: Any) -> Any:
    """Return the value of an option; one text stands for a sequence of it.

    Raises:
        InvalidOptionError: The value is not allowed.
    """
    rule = LOADING[name]
    if rule.shape == "sequence":
        texts = (value,) if isinstance(value, str) else value
        value = tuple(texts) if isinstance(texts, Iterable) else value
    if not rule.accepts(value):
        raise InvalidOptionError(name, value, rule.allowed)
    return value
