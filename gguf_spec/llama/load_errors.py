"""Meaning of llama.cpp's errors while it loads a model, from its log."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import (
    ContextFailedError,
    GgufSpecError,
    InvalidOptionError,
    NotEnoughMemoryError,
    Option,
    Text,
    UnsupportedModelError,
)
from ..gguf.validation import Header
from ..system.machine import available_bytes
from .options import Adapter, ContextOptions


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


def not_locked(header: Header, log: Iterable[str]) -> GgufSpecError:
    """Return the error for weights that the system did not lock in memory."""
    reason = _reason(log).removeprefix("warning: ")
    return InvalidOptionError(
        "mlock",
        True,
        f"False: {header.path.name} cannot be locked in memory ({reason})",
        "raise the limit of locked memory (ulimit -l).",
    )


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
    return Text("{}[; {verbose=True} shows llama.cpp's log].", hint)


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
