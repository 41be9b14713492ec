"""Check the header of a projector file (mmproj): the part of a vision model that reads images.

llama.cpp aborts the process on some numbers and tensors, so they are checked here first. What only
llama.cpp knows about each kind of projector is tried in a child process (`llama.projector`).
"""

from __future__ import annotations

import math
from pathlib import Path

from ..errors import UnsupportedModelError
from .architectures import PROJECTOR
from .header import Header, damaged, shown
from .validation import read_header

_F32 = 0
# Numbers of the image encoder, with their largest values.
_NUMBERS = {
    "image_size": 8192,
    "patch_size": 1024,
    "embedding_length": 1 << 16,
    "feed_forward_length": 1 << 20,
    "block_count": 512,
    "attention.head_count": 1024,
    "projection_dim": 1 << 20,
}
# Largest number of patches of one image.
_PATCHES_MAX = 1 << 16
# Those of them that may be 0, in a projector without layers of its own.
_MAY_BE_0 = ("feed_forward_length", "block_count", "projection_dim")
_HINT = "use the mmproj file that belongs to the model."


def read_projector(path: Path) -> Header:
    """Return the header of a projector file for images, after all checks.

    Raises:
        ModelNotFoundError, NotAModelError: The file is missing or damaged.
        UnsupportedModelError: It is no projector, or one without an image encoder.
    """
    header = read_header(path)
    if header.architecture != PROJECTOR:
        raise _refused(header, f"is not a projector but {_kind(header)}")
    if len(header.parts) > 1:
        raise _refused(header, "is the first of several parts, but a projector must be one file")
    if not _flag(header, "clip.has_vision_encoder"):
        raise _refused(header, "is a projector without an image encoder")
    for key in ("clip.projector_type", "clip.vision.projector_type"):
        if not isinstance(header.metadata.get(key, ""), str):
            raise damaged(path, f"its {key} is not a text")
    if not header.tensors:
        raise damaged(path, "it has no tensors")
    _check_numbers(header)
    for tensor in header.tensors:
        if len(tensor.shape) == 1 and tensor.type != _F32:
            raise damaged(
                path,
                f"the tensor {shown(tensor.name)} is of the type {tensor.type} "
                "but llama.cpp computes with it in f32",
            )
    return header


def _refused(header: Header, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(header.path, f"{header.path.name} {why}.", _HINT)


def _kind(header: Header) -> str:
    return f"a model ({header.architecture[:64]})" if header.architecture else "another GGUF file"


def _flag(header: Header, key: str) -> bool:
    """Return a flag of the metadata; llama.cpp aborts on another type."""
    value = header.metadata.get(key, False)
    if not isinstance(value, bool):
        raise damaged(header.path, f"its {key} is {shown(value)}")
    return value


def _check_numbers(header: Header) -> None:
    numbers = {}
    for name, most in _NUMBERS.items():
        key = f"clip.vision.{name}"
        value = header.metadata.get(key, 0)
        # llama.cpp aborts on a number of another type
        least = 0 if name in _MAY_BE_0 else 1
        if header.kinds.get(key) != "u32" or not least <= value <= most:
            raise damaged(header.path, f"its {key} is {shown(value)}")
        numbers[name] = value
    epsilon = header.metadata.get("clip.vision.attention.layer_norm_epsilon")
    if not (isinstance(epsilon, float) and 0 <= epsilon < math.inf):
        raise damaged(header.path, f"its layer_norm_epsilon is {shown(epsilon)}")
    size, patch, width = (
        numbers[name] for name in ("image_size", "patch_size", "embedding_length")
    )
    if patch > size or (size // patch) ** 2 > _PATCHES_MAX:
        raise damaged(header.path, f"its images have {size:,} pixels in patches of {patch:,}")
    if width % numbers["attention.head_count"]:
        raise damaged(
            header.path, f"its {numbers['attention.head_count']:,} heads share {width:,} channels"
        )
