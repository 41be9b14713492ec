"""Read and check the header of a GGUF model, including all files of a split model.

Rejects files that would make llama.cpp fail or abort.
"""

from __future__ import annotations

import dataclasses
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import (
    ModelNotFoundError,
    NoGenerationError,
    NotAModelError,
    UnsupportedModelError,
)
from .embeddings import check_embeds, embeds_only
from .header import I64, TOKEN_TABLE, TOKENS, ArrayLength, Header, Tensor, damaged, shown
from .header_reader import parse
from .trimmed import trimmed

__all__ = [
    "ArrayLength",
    "Header",
    "Tensor",
    "check_generates_text",
    "check_model",
    "read_header",
]

# most files of a split model
_MAX_PARTS = 1024
# ggml types
_F32, _I32 = 0, 26
# parts of the names of tensors that must be f32, besides all one-dimensional tensors
_ONLY_F32 = ("_norm.weight", "ssm_conv1d", "ssm_a", "shortconv.conv")


def read_header(path: Path) -> Header:
    """Read and check the header of a GGUF file, and that the file contains all its tensors.

    For a split model, all its files are read and checked.

    Raises:
        ModelNotFoundError: The file does not exist.
        NotAModelError: The path is a directory, or the file is not GGUF, unreadable or damaged, or
            a part is missing.
    """
    header = _read(path)
    count = header.metadata.get("split.count")
    if isinstance(count, int) and count > 1 and header.metadata.get("split.no", 0) == 0:
        return _join(header, count)
    return header


def _read(path: Path) -> Header:
    try:
        mode = path.stat().st_mode
    # a name with a zero byte raises ValueError
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise ModelNotFoundError(
            path,
            f"there is no file {path}.",
            "name a GGUF file, or a model from `gguf-spec models list`, such as tales.",
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    if stat.S_ISDIR(mode):
        raise NotAModelError(path, f"{path} is a directory.", "name the .gguf file inside it.")
    if not stat.S_ISREG(mode):  # reading a pipe could block forever
        raise NotAModelError(path, f"{path} is not a regular file.", "name a GGUF file on a disk.")
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise NotAModelError(
                    path,
                    f"{path.name} is not a GGUF file.",
                    "use a file in the GGUF format; convert other formats first.",
                )
            file.seek(0)
            return parse(file, path, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> NotAModelError:
    return NotAModelError(
        path, f"{path} cannot be read: {error.strerror}.", "check its permissions."
    )


def _join(first: Header, count: int) -> Header:
    """Join the headers of a split model.

    Its files are in one folder and named by llama.cpp's rule.
    """
    hint = f"pull the model again, or copy all {count:,} parts into one folder."
    ending = f"-00001-of-{count:05}.gguf"
    if count > _MAX_PARTS or not first.path.name.endswith(ending) or first.path.name == ending:
        raise NotAModelError(
            first.path,
            f"{first.path.name} is the first of {count:,} parts "
            f"but its name does not end in {ending}.",
            hint,
        )
    parts = [first]
    for i in range(1, count):
        path = first.path.with_name(
            first.path.name.removesuffix(ending) + f"-{i + 1:05}-of-{count:05}.gguf"
        )
        try:
            part = _read(path)
        except ModelNotFoundError as error:
            raise NotAModelError(
                path,
                f"{path.name} is missing: {first.path.name} is the first of {count:,} parts.",
                hint,
            ) from error
        number, of = part.metadata.get("split.no"), part.metadata.get("split.count", count)
        # llama.cpp aborts on any other type
        if part.kinds.get("split.no") != "u16" or (number, of) != (i, count):
            what = (
                f"{path.name} is marked as part {_next(number)} of {of!r}, not {i + 1} of {count}"
            )
            raise NotAModelError(path, f"{what}.", hint)
        parts.append(part)
    tensors = tuple(
        tensor._replace(part=i) for i, part in enumerate(parts) for tensor in part.tensors
    )
    names = {tensor.name for tensor in tensors}
    if len(names) < len(tensors):
        raise damaged(
            first.path, f"{len(tensors) - len(names):,} of its tensors occur in two of its parts"
        )
    return dataclasses.replace(
        first,
        n_tensors=len(tensors),
        file_bytes=sum(part.file_bytes for part in parts),
        tensors=tensors,
        parts=tuple(part.path for part in parts),
        parts_at=tuple(part.data_at for part in parts),
    )


def _next(number: Any) -> Any:
    return number + 1 if isinstance(number, int) else repr(number)


def check_generates_text(header: Header, as_draft: bool = False) -> None:
    """Reject files that cannot generate text, based on their header.

    Args:
        header: The header.
        as_draft: The model only drafts, so its vocabulary may be trimmed.

    Raises:
        UnsupportedModelError: As for `check_model`, or the file is an embedding model.
        NotAModelError: It contains numbers on which llama.cpp would abort the process.
    """
    check_model(header, as_draft)
    if embeds_only(header):
        raise NoGenerationError(header.path, header.architecture)


def check_model(header: Header, as_draft: bool = False) -> None:
    """Reject files that neither generate text nor compute embeddings, based on their header.

    Args:
        header: The header.
        as_draft: As for `check_generates_text`.

    Raises:
        UnsupportedModelError: The file is an adapter, a projector, an encoder or a later part of a
            split model, or has no tokenizer.
        NotAModelError: It contains numbers on which llama.cpp would abort the process.
    """
    name, metadata = header.path.name, header.metadata

    def refuse(what: str, hint: str) -> UnsupportedModelError:
        return UnsupportedModelError(header.path, f"{name} {what}.", hint)

    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise refuse(
            f"is not a model but of type {shown(kind)}",
            "use the file of the language model itself.",
        )
    if not header.architecture:
        raise refuse("does not name its architecture", "convert it again with a current llama.cpp.")
    if len(header.architecture) > 64:
        raise damaged(header.path, f"its architecture is {shown(header.architecture)}")
    if isinstance(metadata.get("split.no"), int) and metadata["split.no"] > 0:
        raise refuse(
            f"is part {metadata['split.no'] + 1} of {metadata.get('split.count', '?')} "
            "of a split model",
            "name the first part, which has -00001-of- in its name.",
        )
    if header.facts.output == "encoding":
        raise refuse(
            f"is an encoder ({header.architecture}), not a text generator",
            "use a chat or base model.",
        )
    _check_tokenizer(header, as_draft, refuse)
    if header.n_tensors == 0:
        raise refuse("has a vocabulary but no weights", "use the complete model file.")
    if metadata.get("tokenizer.ggml.model") == "bert" and not embeds_only(header):
        raise refuse("has the tokenizer of an embedding model (bert)", "use a chat or base model.")
    _check_numbers(header)
    _check_heads(header)
    _check_tensors(header)
    if embeds_only(header):
        check_embeds(header)


def _check_tokenizer(
    header: Header, as_draft: bool, refuse: Callable[[str, str], UnsupportedModelError]
) -> None:
    """Reject files without a tokenizer, and trimmed drafts that are used as models."""
    metadata = header.metadata
    kept = trimmed(header)
    if kept and not as_draft:
        raise refuse(
            f"is a draft that knows only {len(kept.ids):,} of {kept.size:,} tokens",
            "use it as a draft, for a model with the same tokens.",
        )
    has_none = metadata.get("tokenizer.ggml.model", "no_vocab") in ("no_vocab", "none")
    if (has_none and not kept) or metadata.get(TOKENS, ArrayLength(0)) == ArrayLength(0):
        raise refuse("has no tokenizer", "convert the complete model again, with its vocabulary.")


def _check_numbers(header: Header) -> None:
    """Reject numbers on which llama.cpp aborts the process without an error message."""

    def check(key: str, ok: Callable[[Any], bool]) -> None:
        value = header.of_architecture(key)
        if value is not None and not isinstance(value, (tuple, ArrayLength)) and not ok(value):
            raise damaged(header.path, f"its {header.architecture}.{key} is {shown(value)}")

    def number(key: str) -> int:
        """Return an integer, or the largest of one per layer."""
        value = header.of_architecture(key, 0)
        return max(
            (
                n % 2**32
                for n in (value if isinstance(value, tuple) else (value,))
                if isinstance(n, int)
            ),
            default=0,
        )

    check("block_count", lambda n: isinstance(n, int) and 0 < n <= 512)
    check("nextn_predict_layers", lambda n: isinstance(n, int) and n <= number("block_count"))
    check("attention.sliding_window", lambda n: isinstance(n, int) and n <= 1 << 26)
    check("rope.scaling.type", lambda kind: kind in ("none", "linear", "yarn", "longrope"))
    for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
        check(key, lambda x: isinstance(x, float) and 0 <= x < math.inf)
    n_experts, n_used = number("expert_count"), number("expert_used_count")
    n_groups, n_groups_used = number("expert_group_count"), number("expert_group_used_count")
    if header.facts.one_expert_is_none and n_experts <= 1:
        n_experts = n_used = 0
    check("expert_count", lambda n: isinstance(n, int) and n <= 1024)
    if not min(n_experts, 1) <= n_used <= n_experts:
        raise damaged(
            header.path,
            f"its {header.architecture}.expert_used_count is {n_used:,} of {n_experts:,} experts",
        )
    if n_groups and not (
        n_groups < n_experts
        and (n_groups == 1 or (n_experts % n_groups == 0 and 0 < n_groups_used < n_groups))
    ):
        what = (
            f"its {header.architecture}.expert_group_count is {n_groups:,}, "
            f"{n_groups_used:,} of them used, of {n_experts:,} experts"
        )
        raise damaged(header.path, what)


def _check_heads(header: Header) -> None:
    """Reject inconsistent numbers and sizes of attention heads."""

    def numbers(key: str, default: Any) -> tuple[int, ...]:
        """Return integers, one or one per layer.

        The result is empty for other values, which llama.cpp reports itself.
        """
        value = header.of_architecture(key, default)
        value = value if isinstance(value, tuple) else (value,)
        return value if all(isinstance(n, int) for n in value) else ()

    def refuse(what: str) -> NotAModelError:
        return damaged(header.path, f"{what} in its {header.architecture}.attention and .rope")

    n_heads, width = numbers("attention.head_count", 0), numbers("embedding_length", 0)
    shared = numbers("attention.head_count_kv", 0)
    n_layers = max(len(n_heads), len(shared))
    for n, n_kv in zip(
        n_heads * (n_layers if len(n_heads) == 1 else 1),
        shared * (n_layers if len(shared) == 1 else 1),
        strict=False,
    ):
        if n_kv and n % n_kv:
            raise refuse(f"{n:,} heads share {n_kv:,}")
    if not (header.facts.has_rope and n_heads and n_heads[0] and width):
        return
    usual = width[0] // n_heads[0]
    keys, values = numbers("attention.key_length", usual), numbers("attention.value_length", usual)
    turned = numbers("rope.dimension_count", keys[0] if keys else 0)
    if not (keys and values and turned) or (header.facts.rope_is_checked and turned != keys):
        return
    if turned[0] % 2 or not 0 < turned[0] <= keys[0]:
        raise refuse(f"{turned[0]:,} of a head's {keys[0]:,} dimensions are rotated")
    if header.facts.even_heads and not keys == values == turned:
        raise refuse(f"heads have {keys[0]:,}, {values[0]:,} and {turned[0]:,} dimensions")


def _check_tensors(header: Header) -> None:
    """Reject tensor types on which llama.cpp would abort the process during a pass."""
    for tensor in header.tensors:
        if header.facts.heads == "layers" and (tensor.name, tensor.type) == (TOKEN_TABLE, I64):
            continue
        # "tid2eid" is a table of experts
        if tensor.type == _I32 and not tensor.name.endswith("tid2eid.weight"):
            raise damaged(header.path, f"the tensor {shown(tensor.name)} contains integers")
        if tensor.type != _F32 and (
            len(tensor.shape) == 1 or any(part in tensor.name for part in _ONLY_F32)
        ):
            raise damaged(
                header.path,
                f"the tensor {shown(tensor.name)} is of the type {tensor.type} "
                "but llama.cpp computes with it in f32",
            )
