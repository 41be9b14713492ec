"""Check that a LoRA adapter fits a model, by the headers of both files.

llama.cpp checks less: it aborts the process in the first pass with some adapters that do not fit.
"""

from __future__ import annotations

import math
from pathlib import Path

from ..errors import UnsupportedModelError
from .validation import Header, read_header

# ends of the names of the two matrices
_ENDS = (".lora_a", ".lora_b")
_HINT = "use an adapter that was made for this model."

Shape = tuple[int, ...]


def check_adapter(path: Path, model: Header) -> None:
    """Reject a file that is not a LoRA adapter of this model.

    Raises:
        ModelNotFoundError, NotAModelError: The file is missing or damaged.
        UnsupportedModelError: It contains something else, or belongs to another model.
    """
    header = read_header(path)
    _check_kind(header, model)
    shapes = {tensor.name: _four(tensor.shape) for tensor in model.tensors}
    pairs = _pairs(header)
    if not pairs:
        raise _refused(header, "does not change any weights")
    for name, (a, b) in pairs.items():
        _check_pair(header, name, a, b, shapes.get(name), model)
    if "token_embd.weight" in pairs and "output.weight" not in shapes:
        raise _refused(
            header,
            f"changes token_embd.weight, which {model.path.name} also uses for its output: "
            "llama.cpp does not support that",
        )


def _refused(header: Header, why: str, hint: str = _HINT) -> UnsupportedModelError:
    return UnsupportedModelError(header.path, f"{header.path.name} {why}.", hint)


def _check_kind(header: Header, model: Header) -> None:
    """Check the declared kind of the file; llama.cpp aborts on metadata of an unexpected type."""
    metadata = header.metadata
    kind, of = metadata.get("general.type"), metadata.get("adapter.type")
    if kind != "adapter":
        raise _refused(
            header,
            f"is not an adapter but of type {kind or 'model'!r}",
            "use a LoRA adapter that was converted to GGUF.",
        )
    if of != "lora":
        raise _refused(
            header,
            f"is an adapter of type {of!r}, not 'lora'",
            "use a LoRA adapter that was converted to GGUF.",
        )
    if metadata.get("general.architecture") != model.architecture:
        theirs = metadata.get("general.architecture")
        raise _refused(
            header,
            f"was made for the architecture {theirs!r}, "
            f"but {model.path.name} has {model.architecture!r}",
        )
    alpha, of_type = (
        metadata.get("adapter.lora.alpha", 0.0),
        header.kinds.get("adapter.lora.alpha", "f32"),
    )
    if of_type != "f32" or not math.isfinite(alpha):
        raise _refused(
            header,
            f"has the adapter.lora.alpha {alpha!r} of type {of_type}, not a number of type f32",
            "convert the adapter again.",
        )
    if len(header.parts) > 1:  # llama.cpp reads only the first
        raise _refused(
            header,
            f"is the first of {len(header.parts)} parts, but an adapter must be one file",
            "join the parts first.",
        )
    if "adapter.alora.invocation_tokens" in metadata:
        raise _refused(
            header,
            "is an activated LoRA (aLoRA), which is not supported",
            "use a plain LoRA adapter.",
        )


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
            raise _refused(
                header,
                f"contains the tensor {tensor.name}, which is not part of a LoRA adapter",
                "convert the adapter again.",
            )
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
        raise _refused(
            header,
            f"contains only one of the two matrices for {name}",
            "convert the adapter again.",
        )
    if changed is None:
        raise _refused(header, f"changes {name}, which {model.path.name} does not have")
    if name.endswith("token_embd.weight"):
        rank, n_in, n_out, others = (a[0], b[0]), b[1], a[1], (a[2:], b[2:])
    else:
        rank, n_in, n_out, others = (a[1], b[0]), a[0], b[1], (a[2:], b[2:])
    if (n_in, n_out) != changed[:2] or others != (changed[2:], changed[2:]):
        shown = " and ".join(" x ".join(map(str, _short(one))) for one in (a, b))
        raise _refused(
            header,
            f"contains matrices of {shown} for {name}, "
            f"which is {' x '.join(map(str, _short(changed)))} in {model.path.name}",
        )
    if rank[0] != rank[1] or rank[0] < 1:
        raise _refused(
            header,
            f"has the ranks {rank[0]} and {rank[1]} for {name}, which must be equal",
            "convert the adapter again.",
        )


def _short(shape: Shape) -> Shape:
    return (
        shape[: max(2, *(i + 1 for i, n in enumerate(shape) if n > 1))]
        if any(n > 1 for n in shape)
        else shape[:2]
    )
