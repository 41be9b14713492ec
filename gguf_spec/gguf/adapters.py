"""Check the headers of files that are used with a model: LoRA adapters and projectors (mmproj).

llama.cpp checks less: it aborts the process on some adapters that do not fit, and on some numbers
and tensors of a projector. Checks that depend on the kind of projector run in a
child process (`llama.vision`).
"""

from __future__ import annotations

import math
from pathlib import Path

from ..errors import UnsupportedModelError
from .architectures import PROJECTOR
from .header import Header, damaged, shown
from .validation import check_written, not_f32, read_header

_F32 = 0
# ends of the names of the two matrices of an adapter
_ENDS = (".lora_a", ".lora_b")
_OTHER_ADAPTER = "use an adapter that was made for this model."
_CONVERT = "convert the adapter again."
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
_HAS_IMAGES = "clip.has_vision_encoder"
OTHER_PROJECTOR = "use the mmproj file that belongs to the model."

Shape = tuple[int, ...]


def _refused(header: Header, why: str, hint: str) -> UnsupportedModelError:
    return UnsupportedModelError(header.path, f"{header.path.name} {why}.", hint)


# ---- adapters


def check_adapter(path: Path, model: Header) -> None:
    """Reject a file that is not a LoRA adapter of this model.

    Raises:
        ModelNotFoundError, NotAModelError: The file is missing or damaged.
        UnsupportedModelError: It contains something else, or belongs to another model.
    """
    header = read_header(path)
    check_written(header)
    _check_kind(header, model)
    shapes = {tensor.name: _four(tensor.shape) for tensor in model.tensors}
    pairs = _pairs(header)
    if not pairs:
        raise _refused(header, "does not change any weights", _OTHER_ADAPTER)
    for name, (a, b) in pairs.items():
        _check_pair(header, name, a, b, shapes.get(name), model)
    if "token_embd.weight" in pairs and "output.weight" not in shapes:
        why = (
            f"changes token_embd.weight, which {model.path.name} also uses for its output: "
            "llama.cpp does not support that"
        )
        raise _refused(header, why, _OTHER_ADAPTER)


def _check_kind(header: Header, model: Header) -> None:
    """Check the declared kind of the file; llama.cpp aborts on metadata of an unexpected type."""
    metadata = header.metadata
    kind, of = metadata.get("general.type"), metadata.get("adapter.type")
    theirs = metadata.get("general.architecture")
    alpha = metadata.get("adapter.lora.alpha", 0.0)
    of_type = header.kinds.get("adapter.lora.alpha", "f32")
    to_gguf = "use a LoRA adapter that was converted to GGUF."
    if kind != "adapter":
        raise _refused(header, f"is not an adapter but of type {kind or 'model'!r}", to_gguf)
    if of != "lora":
        raise _refused(header, f"is an adapter of type {of!r}, not 'lora'", to_gguf)
    if theirs != model.architecture:
        why = (
            f"was made for the architecture {theirs!r}, "
            f"but {model.path.name} has {model.architecture!r}"
        )
        raise _refused(header, why, _OTHER_ADAPTER)
    if of_type != "f32" or not math.isfinite(alpha):
        why = f"has the adapter.lora.alpha {alpha!r} of type {of_type}, not a number of type f32"
        raise _refused(header, why, _CONVERT)
    if len(header.parts) > 1:  # llama.cpp reads only the first
        why = f"is the first of {len(header.parts)} parts, but an adapter must be one file"
        raise _refused(header, why, "join the parts first.")
    if "adapter.alora.invocation_tokens" in metadata:
        why = "is an activated LoRA (aLoRA), which is not supported"
        raise _refused(header, why, "use a plain LoRA adapter.")


def _four(shape: Shape) -> Shape:
    return (*shape, *(1,) * (4 - len(shape)))


def _pairs(header: Header) -> dict[str, tuple[Shape | None, Shape | None]]:
    """Return the shapes of both matrices for each changed tensor; None for a missing matrix."""
    pairs: dict[str, tuple[Shape | None, Shape | None]] = {}
    for tensor in header.tensors:
        name, end = tensor.name[: -len(_ENDS[0])], tensor.name[-len(_ENDS[0]) :]
        if end in _ENDS:
            a, b = pairs.get(name, (None, None))
            shape = _four(tensor.shape)
            pairs[name] = (shape, b) if end == _ENDS[0] else (a, shape)
        elif not tensor.name.endswith("_norm.weight"):  # llama.cpp ignores these
            why = f"contains the tensor {tensor.name}, which is not part of a LoRA adapter"
            raise _refused(header, why, _CONVERT)
    return pairs


def _check_pair(
    header: Header,
    name: str,
    a: Shape | None,
    b: Shape | None,
    changed: Shape | None,
    model: Header,
) -> None:
    """Check the two matrices for one tensor.

    `a` projects to the rank, `b` projects from the rank. The matrices for token embeddings are
    transposed.
    """
    if a is None or b is None:
        raise _refused(header, f"contains only one of the two matrices for {name}", _CONVERT)
    if changed is None:
        why = f"changes {name}, which {model.path.name} does not have"
        raise _refused(header, why, _OTHER_ADAPTER)
    is_embedding = name.endswith("token_embd.weight")
    rank, n_in, n_out = (a[0], b[0]), b[1], a[1]
    if not is_embedding:
        rank, n_in, n_out = (a[1], b[0]), a[0], b[1]
    if (n_in, n_out) != changed[:2] or (a[2:], b[2:]) != (changed[2:], changed[2:]):
        texts = []
        for one in (a, b, changed):  # without dimensions of 1 after the second
            n = max([2, *(i for i, size in enumerate(one, 1) if size > 1)])
            texts.append(" x ".join(map(str, one[:n])))
        why = (
            f"contains matrices of {texts[0]} and {texts[1]} for {name}, "
            f"which is {texts[2]} in {model.path.name}"
        )
        raise _refused(header, why, _OTHER_ADAPTER)
    if rank[0] != rank[1] or rank[0] < 1:
        why = f"has the ranks {rank[0]} and {rank[1]} for {name}, which must be equal"
        raise _refused(header, why, _CONVERT)


# ---- projectors


def read_projector(path: Path) -> Header:
    """Return the header of a projector file for images, after all checks.

    Raises:
        ModelNotFoundError, NotAModelError: The file is missing or damaged.
        UnsupportedModelError: It is no projector, or one without an image encoder.
    """
    header, why = read_header(path), ""
    if (of := header.architecture) != PROJECTOR:
        why = f"is not a projector but {f'a model ({of[:64]})' if of else 'another GGUF file'}"
    elif len(header.parts) > 1:
        why = "is the first of several parts, but a projector must be one file"
    elif not isinstance(has_images := header.metadata.get(_HAS_IMAGES, False), bool):
        # llama.cpp aborts on another type
        raise damaged(header.path, f"its {_HAS_IMAGES} is {shown(has_images)}")
    elif not has_images:
        why = "is a projector without an image encoder"
    if why:
        raise _refused(header, why, OTHER_PROJECTOR)
    for key in ("clip.projector_type", "clip.vision.projector_type"):
        if not isinstance(header.metadata.get(key, ""), str):
            raise damaged(path, f"its {key} is not a text")
    if not header.tensors:
        raise damaged(path, "it has no tensors")
    _check_numbers(header)
    for tensor in header.tensors:
        if len(tensor.shape) == 1 and tensor.type != _F32:
            raise not_f32(header, tensor)
    check_written(header)
    return header


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
