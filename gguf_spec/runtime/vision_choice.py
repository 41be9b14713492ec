"""The models of a load with a projector: their checks, and the classes that take images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, cast

from ..errors import NoGenerationError, NotEnoughMemoryError
from ..gguf.adapters import read_projector
from ..gguf.header import Header
from ..gguf.validation import ModelFile
from ..llama.model import Model
from ..llama.options import ContextOptions
from ..options import Speculation
from ..system.machine import available_bytes, format_bytes
from .parallel_choice import ParallelChoice, choose_parallel

OnShare = Callable[[float], object] | None


def choose_projector(
    mmproj: str | Path | None,
    file: ModelFile,
    options: ContextOptions,
    parallel: int | Literal["auto"],
) -> Header | None:
    """Return the header of the projector, after all tests of it; None without one.

    Raises:
        ModelError: The file is missing or damaged, or does not fit the model.
        InvalidOptionError: Other options exclude a projector, or this build has no libmtmd.
        NotEnoughMemoryError: It does not fit into memory.
    """
    if mmproj is None:
        return None
    from ..llama.projector_probe import check_projector
    from ..llama.vision import check_images_possible

    if file.embeds_only:
        raise NoGenerationError(file.path, file.header.architecture)
    check_images_possible(parallel, options.rpc)
    header = read_projector(Path(mmproj))
    free = available_bytes()
    if free is not None and header.file_bytes > free:
        raise NotEnoughMemoryError(
            f"the projector {header.path.name} needs {format_bytes(header.file_bytes)} of memory; "
            f"{format_bytes(free)} are free.",
            header.file_bytes,
            free,
        )
    check_projector(header.path, file.path)
    return header


def choose_slots(
    parallel: int | Literal["auto"],
    files: Sequence[tuple[ModelFile, ContextOptions]],
    speculation: Speculation | None,
    has_projector: bool,
) -> ParallelChoice:
    """Return how many requests run at once."""
    if parallel != "auto":
        return ParallelChoice(parallel)
    if has_projector:
        return ParallelChoice(1, "prompts with images are read one by one")
    return choose_parallel(files, speculation)


def load_target(
    file: ModelFile,
    options: ContextOptions,
    projector: Header | None,
    progress: OnShare,
) -> Model:
    """Load the target, with its projector if there is one."""
    if projector is None:
        return Model(file, options, progress)
    from ..llama.vision import VisionModel

    return VisionModel(file, options, projector, progress)


def load_beside(
    target: Model,
    file: ModelFile,
    options: ContextOptions,
    progress: OnShare,
) -> Model:
    """Load a draft model for a target, which may see images."""
    if not getattr(target, "sees", False):
        return Model(file, options, progress)
    from ..llama.vision import BlindModel, VisionModel

    pictures = cast(VisionModel, target).pictures
    return BlindModel(file, options, pictures, progress)
