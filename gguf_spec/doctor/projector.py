"""Check of `doctor` for the projector of a vision model."""

from __future__ import annotations

from pathlib import Path

from ..errors import GgufSpecError
from ..gguf.adapters import read_projector
from ..registry.download import local
from ..registry.resolve import resolve
from ..system.machine import format_bytes
from .check import Check


def projector(path: Path, model: str | Path, models_file: Path | None, works: bool) -> Check:
    """Check that a projector fits its model.

    Args:
        path: The projector.
        model: The model, as for `load`.
        models_file: As for `load`.
        works: Whether llama.cpp can be used.
    """
    try:
        header = read_projector(path)
        if works:
            from ..llama.projector_probe import check_projector

            check_projector(path, local(resolve(model, models_file)))
    except GgufSpecError as error:
        return Check("projector", "fail", error.message, error.hint)
    kind = header.metadata.get("clip.projector_type") or header.metadata.get(
        "clip.vision.projector_type"
    )
    side = header.metadata["clip.vision.image_size"]
    return Check(
        "projector",
        "ok",
        f"{path.name}: {kind}, images of {side:,} pixels, {format_bytes(header.file_bytes)}",
    )
