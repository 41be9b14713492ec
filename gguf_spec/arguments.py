"""Types of keyword arguments that functions of the API pass on, for editors and type checkers.

Each has the fields of a dataclass of options or the parameters of a function; a test compares them.
At run time `options` checks names and values, and only programs import this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from .images import GivenImage
from .options import Accept, Speculation, Tools
from .results import OnProgress
from .tool_servers import ToolServer

__all__ = ["LoadOptions", "RequestOptions"]

AdapterFile: TypeAlias = "str | Path | tuple[str | Path, float]"
"""An adapter (LoRA): a file, or a file and its scale."""


class NoOptions(TypedDict):
    """No argument: any other one is an error, at run time with the nearest name."""


class _Options(TypedDict, total=False):
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    penalty_last_n: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    logit_bias: Mapping[int, float]
    grammar: str | None
    json_schema: Mapping[str, Any] | str | bool | None
    seed: int | None
    overflow: Literal["stop", "shift"]
    stop: Sequence[str]
    ignore_eos: bool
    logprobs: int | None
    think_budget: int | None
    k: int
    accept: Accept
    strict: bool
    drafter: str
    adaptive: bool
    exact: bool


class EditOptions(_Options, total=False):
    """What `LLM.edit` has beside parameters of its own."""

    stop_tokens: Sequence[int]


class ContinueOptions(_Options, total=False):
    """What `LLM.generate` and `LLM.stream` have beside parameters of their own."""

    max_tokens: int | None


class RequestOptions(EditOptions, ContinueOptions, total=False):
    """Fields of `Sampling` and `Speculation` as keyword arguments of a request.

    All may be missing. A program keeps its settings in one, and gives them as `**options`.
    """


class GenerateOptions(ContinueOptions, total=False):
    """All keyword arguments of `LLM.generate` and `LLM.stream`."""

    speculation: Speculation | None
    images: Sequence[GivenImage]
    prefill: str
    echo: bool
    tools: Tools | None
    stop_tokens: Iterable[int]
    on_token: Callable[[int], object] | None
    on_prompt: OnProgress | None
    think: bool | None
    chat_template_kwargs: Mapping[str, Any] | None
    reasoning: bool | None


class SendOptions(RequestOptions, total=False):
    """All keyword arguments of `Chat.stream`."""

    images: Sequence[GivenImage]
    speculation: Speculation | None
    on_prompt: OnProgress | None


class EncodingOptions(TypedDict, total=False):
    """Keyword arguments of `LLM.tokenize` that `LLM.choose` passes on."""

    images: Sequence[GivenImage]
    special: bool
    tools: Tools | None
    think: bool | None
    chat_template_kwargs: Mapping[str, Any] | None


class _ModelOptions(TypedDict, total=False):
    speculation: Speculation | None
    n_ctx: int | None
    threads: int | None
    flash_attention: str
    kv_type: str
    gpu_layers: int | Literal["auto"]
    draft_flash_attention: str | None
    draft_kv_type: str | None
    draft_gpu_layers: int | Literal["auto"] | None
    draft_threads: int | None
    device: str | Sequence[str]
    draft_device: str | Sequence[str]
    cpu_moe: bool
    n_cpu_moe: int
    override_tensor: str | Sequence[str]
    mmap: bool | None
    mlock: bool
    numa: Literal["distribute", "isolate", "numactl"] | None
    kernels: str
    mmproj: str | Path | None
    lora: AdapterFile | Sequence[AdapterFile]
    draft_lora: AdapterFile | Sequence[AdapterFile]
    extra_bufts: bool | None
    parallel: int | Literal["auto"]
    max_gap: float | None
    prefix_memory: int | str
    keep: int | str | Path | None
    rpc: str | Sequence[str]
    pooling: str | None
    reference: str | Path | None
    draft_texts: str | Path
    sampling: Mapping[str, Any] | None
    chat_template: str | None
    on_measure: Callable[[], object] | None
    verbose: bool


class LoadOptions(_ModelOptions, total=False):
    """Keyword arguments of `load`, for a program that keeps them; all may be missing."""

    models_file: str | Path | None
    progress: OnProgress | None


class ServedOptions(_ModelOptions, total=False):
    """Arguments of `load` that `served_model` passes on."""

    draft: str | Path | None


class ServerOptions(TypedDict, total=False):
    """Fields of `Settings` that `serve_in_thread` passes on."""

    host: str
    api_key: str | None
    cors_origins: Sequence[str]
    allowed_hosts: Sequence[str]
    queue: int
    max_tokens: int | None
    timeout: float | None
    body_bytes: int
    grace: float
    ping: float
    any_model: bool | None
    listed: bool
    tool_servers: Sequence[ToolServer]
