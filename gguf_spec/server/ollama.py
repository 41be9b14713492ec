"""Ollama's routes about models: which there are, and what their files say."""

from __future__ import annotations

import asyncio
import datetime
import math
import re
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .. import __version__
from ..errors import GgufSpecError
from ..gguf.header import Header
from ..gguf.validation import embeds_only, read_header
from ..options import Sampling
from ..protocols.ollama import OPTIONS, SHOW
from ..text.jinja_sandbox import names_read
from .model_pool import ModelPool, ServedModel
from .model_routes import ModelRoutes
from .streams import JsonAnswer
from .uploads import BodyReader

OLLAMA_VERSION = "0.6.4"  # some clients demand at least this one


def ollama_routes(pool: ModelPool, models: ModelRoutes, bodies: BodyReader) -> list[Route]:
    async def tags(_: Request) -> Response:
        found = await asyncio.to_thread(lambda: [*map(entry_of, pool.models)])
        return JSONResponse({"models": found})

    async def version(_: Request) -> Response:
        return JSONResponse({"version": OLLAMA_VERSION, "gguf_spec": __version__})

    async def show(request: Request) -> Response:
        data = await bodies.read(request, lambda data: SHOW.read(data, ""))
        model = models.find(data.get("model", data.get("name")), any_model=False)
        loaded = pool.loaded(model)
        sampling = loaded.llm.sampling if loaded else Sampling()
        here = {name: getattr(sampling, option) for name, option in OPTIONS.items()}
        shown = {name: value for name, value in here.items() if value not in (None, ())}
        n_ctx = pool.ctx_max(loaded.llm) if loaded else None
        return await asyncio.to_thread(lambda: JsonAnswer(description_of(model, shown, n_ctx)))

    return [
        Route("/api/tags", tags, methods=["GET"]),
        Route("/api/show", show, methods=["POST"]),
        Route("/api/version", version, methods=["GET"]),
    ]


# `general.file_type` of a GGUF file -> name.
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 22: "IQ3_XS", 23: "IQ3_XXS",
    24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS",
    31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
# Keys of the metadata that are long or are shown elsewhere.
_LEFT_OUT = ("tokenizer.chat_template", "general.license.link")


def header_of(model: ServedModel) -> Header | None:
    """Return the header of a model's file; None if it cannot be read."""
    try:
        return read_header(model.path) if model.path else None
    except GgufSpecError:
        return None


def entry_of(model: ServedModel) -> dict[str, Any]:
    header = header_of(model)
    return {
        "name": model.id,
        "model": model.id,
        "modified_at": _modified(model.path),
        "size": header.file_bytes if header else 0,
        "digest": "",
        "details": details_of(header),
    }


def details_of(header: Header | None) -> dict[str, Any]:
    family = header.architecture if header else ""
    number = header.metadata.get("general.file_type") if header else None
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _parameters(header) if header else "",
        "quantization_level": _FILE_TYPES.get(number, "") if isinstance(number, int) else "",
    }


def description_of(
    model: ServedModel, sampling: dict[str, Any], n_ctx: int | None
) -> dict[str, Any]:
    """Return the answer of `/api/show` about a model.

    Args:
        sampling: Its default sampling options, with Ollama's names.
        n_ctx: Length of its context here; None for that of its training.
    """
    header = header_of(model)
    metadata = header.metadata if header else {}
    template = metadata.get("tokenizer.chat_template")
    plain = {
        key: value
        for key, value in metadata.items()
        if isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
        if key not in _LEFT_OUT
    }
    if header and n_ctx:
        plain[f"{header.architecture}.context_length"] = n_ctx
    return {
        "modelfile": "",
        "parameters": "\n".join(f"{name} {value}" for name, value in sampling.items()),
        "template": template if isinstance(template, str) else "",
        "license": str(metadata.get("general.license", "")),
        "modified_at": _modified(model.path),
        "details": details_of(header),
        "model_info": plain | {"general.parameter_count": _count(header) if header else 0},
        "capabilities": _capabilities(header, template if isinstance(template, str) else ""),
    }


def _capabilities(header: Header | None, template: str) -> list[str]:
    if header is None:
        return []
    if embeds_only(header):
        return ["embedding"]
    found = ["completion"]
    if re.search(r"\btools\b", template):
        found.append("tools")
    if "enable_thinking" in names_read(template) or "<think>" in template:
        found.append("thinking")
    if "tokenizer.ggml.fim_pre_token_id" in header.metadata:
        found.append("insert")
    return found


def _modified(path: Path | None) -> str:
    try:
        seconds = path.stat().st_mtime if path else 0.0
    except OSError:
        seconds = 0.0
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat()


def _count(header: Header) -> int:
    return sum(math.prod(tensor.shape) for tensor in header.tensors)


def _parameters(header: Header) -> str:
    """Return the number of weights in words, such as `134.52M`."""
    n = _count(header)
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if n >= size:
            return f"{n / size:.2f}{unit}" if unit == "M" else f"{n / size:.1f}{unit}"
    return str(n)
