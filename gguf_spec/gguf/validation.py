"""GGUF models on the disk: their headers, read and checked, including all files of a split model.

Files that would make llama.cpp fail or abort are rejected. Facts about embedding models, and the
table of a trimmed vocabulary, are read from headers, too.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from ..errors import (
    ModelNotFoundError,
    NoGenerationError,
    NotAModelError,
    UnsupportedModelError,
)
from ..options import POOLING
from ..system.files import absolute, content_id, version
from .header import (
    I64,
    IDS,
    MAX_TOKENS,
    ROWS,
    SIZE,
    TOKEN_TABLE,
    TOKENS,
    ArrayLength,
    Header,
    Reader,
    Tensor,
    damaged,
    shown,
)

__all__ = [
    "ArrayLength",
    "Header",
    "ModelFile",
    "Tensor",
    "check_model",
    "read_header",
]

# most files of a split model, and the name of its first file
_MAX_PARTS, _FIRST_PART = 1024, re.compile(r"(.+)-00001-of-(\d{5})\.gguf")
# ggml types
_F32, _I32 = 0, 26
# samples of a file that show zeros in place of data, their bytes, and those at the end of a tensor
_N_SAMPLES, _SAMPLE, _LEAST = 16, 4096, 64
# ends of the names of norms, of models and of projectors
_NORMS = ("norm.weight", "ln1.weight", "ln2.weight", "_ln.weight")
# parts of the names of tensors that must be f32, besides all one-dimensional tensors
_ONLY_F32 = ("_norm.weight", "ssm_conv1d", "ssm_a", "shortconv.conv")
# Special tokens of the tokenizer `bert`: metadata key -> default of llama.cpp.
_BERT_TOKENS = {"bos": 101, "unknown": 100, "seperator": 102, "padding": 0, "mask": 103}
# metadata keys: tokenizer.ggml.model of the whole vocabulary, and its number of tokens
TOKENIZER = "gguf_spec.trim.tokenizer"


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
        what = f"there is no file {path}."
        missing = ModelNotFoundError(path, what, "name a GGUF file that exists.")
        raise _other_files().link_refusal(path) or missing from error
    except OSError as error:
        raise _other_files().link_refusal(path) or _unreadable(path, error) from error
    if stat.S_ISDIR(mode):
        raise _other_files().folder_refusal(path)
    if not stat.S_ISREG(mode):  # reading a pipe could block forever
        raise NotAModelError(path, f"{path} is not a regular file.", "name a GGUF file on a disk.")
    try:
        with path.open("rb") as file:
            n_bytes = os.fstat(file.fileno()).st_size
            if (head := file.read(4)) != b"GGUF":
                other = _other_files()
                head += file.read(other.FIRST_BYTES - len(head))
                raise other.refusal(path, head, n_bytes)
            file.seek(0)
            try:
                return Reader(file, path, n_bytes).header()
            except NotAModelError as error:
                error.hint = _other_files().todo_by_name(path.name) or error.hint
                raise
    except OSError as error:
        raise _unreadable(path, error) from error


def _other_files() -> ModuleType:
    from . import other_files  # needed for wrong files alone

    return other_files


def _unreadable(path: Path, error: OSError) -> NotAModelError:
    what = f"{path} cannot be read: {error.strerror}."
    return NotAModelError(path, what, "check its permissions.")


def _join(first: Header, count: int) -> Header:
    """Join the headers of a split model.

    Its files are in one folder and named by llama.cpp's rule.
    """
    hint = f"pull the model again, or copy all {count:,} parts into one folder."
    ending = f"-00001-of-{count:05}.gguf"
    begin = f"{first.path.name} is the first of {count:,} parts"
    if count > _MAX_PARTS or not first.path.name.endswith(ending) or first.path.name == ending:
        what = f"{begin} but its name does not end in {ending}."
        raise NotAModelError(first.path, what, hint)
    parts = [first]
    for i, path in enumerate(_part_paths(first.path)[1:], 1):
        name = path.name
        try:
            part = _read(path)
        except ModelNotFoundError as error:
            raise NotAModelError(path, f"{name} is missing: {begin}.", hint) from error
        number, of = part.metadata.get("split.no"), part.metadata.get("split.count", count)
        # llama.cpp aborts on any other type
        if part.kinds.get("split.no") != "u16" or (number, of) != (i, count):
            marked = number + 1 if isinstance(number, int) else repr(number)
            what = f"{name} is marked as part {marked} of {of!r}, not {i + 1} of {count}."
            raise NotAModelError(path, what, hint)
        parts.append(part)
    tensors = tuple(
        tensor._replace(part=i) for i, part in enumerate(parts) for tensor in part.tensors
    )
    n_twice = len(tensors) - len({tensor.name for tensor in tensors})
    if n_twice:
        raise damaged(first.path, f"{n_twice:,} of its tensors occur in two of its parts")
    return dataclasses.replace(
        first,
        n_tensors=len(tensors),
        file_bytes=sum(part.file_bytes for part in parts),
        tensors=tensors,
        parts=tuple(part.path for part in parts),
        parts_at=tuple(part.data_at for part in parts),
    )


def _part_paths(first: Path) -> list[Path]:
    """Return the files of a split model by the name of the first; this one if it is not split."""
    match = _FIRST_PART.fullmatch(first.name)
    if not match or int(match[2]) > _MAX_PARTS:
        return [first]
    names = (f"{match[1]}-{i + 1:05}-of-{match[2]}.gguf" for i in range(int(match[2])))
    return [first.with_name(name) for name in names]


def check_model(header: Header, *, may_embed: bool = False, as_draft: bool = False) -> None:
    """Reject files that cannot generate text, based on their header.

    Args:
        may_embed: Whether it may be a model that computes embeddings only.
        as_draft: The model only drafts, so its vocabulary may be trimmed.

    Raises:
        UnsupportedModelError: The file is an adapter, a projector, an encoder or a later part of a
            split model, or has no tokenizer; or it only computes embeddings.
        NotAModelError: It contains numbers on which llama.cpp would abort the process.
    """
    name, metadata = header.path.name, header.metadata

    def refuse(what: str, hint: str) -> UnsupportedModelError:
        return UnsupportedModelError(header.path, f"{name} {what}.", hint)

    kind = metadata.get("general.type", "model")
    number, of = metadata.get("split.no"), metadata.get("split.count", "?")
    if isinstance(number, int) and number > 0:  # a later part has no other metadata
        first = re.sub(r"-\d{5}(?=-of-\d{5}\.gguf$)", "-00001", header.path.name)
        is_named = first != header.path.name
        hint = f"name the first part: {header.path.with_name(first)}."
        hint = hint if is_named else "name the first part, which has -00001-of- in its name."
        raise refuse(f"is part {number + 1} of {of} of a split model", hint)
    if kind != "model":
        hint = "use the file of the language model itself."
        raise refuse(f"is not a model but of type {shown(kind)}", hint)
    if not header.architecture:
        raise refuse("does not name its architecture", "convert it again with a current llama.cpp.")
    if len(header.architecture) > 64:
        raise damaged(header.path, f"its architecture is {shown(header.architecture)}")
    if header.facts.output == "encoding":
        what = f"is an encoder ({header.architecture}), not a text generator"
        raise refuse(what, "use a chat or base model.")
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
        if not may_embed:
            raise NoGenerationError(header.path, header.architecture)


def _check_tokenizer(
    header: Header, as_draft: bool, refuse: Callable[[str, str], UnsupportedModelError]
) -> None:
    """Reject files without a tokenizer, and trimmed drafts that are used as models."""
    metadata = header.metadata
    kept = trimmed(header)
    if kept and not as_draft:
        what = f"is a draft that knows only {len(kept.ids):,} of {kept.size:,} tokens"
        raise refuse(what, "use it as a draft, for a model with the same tokens.")
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
        values = value if isinstance(value, tuple) else (value,)
        return max((n % 2**32 for n in values if isinstance(n, int)), default=0)

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
        what = f"expert_used_count is {n_used:,} of {n_experts:,} experts"
        raise damaged(header.path, f"its {header.architecture}.{what}")
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
    by_layer = [one * (n_layers if len(one) == 1 else 1) for one in (n_heads, shared)]
    for n, n_kv in zip(*by_layer, strict=False):
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
            raise not_f32(header, tensor)


def not_f32(header: Header, tensor: Tensor) -> NotAModelError:
    what = f"the tensor {shown(tensor.name)} is of the type {tensor.type}"
    return damaged(header.path, f"{what} but llama.cpp computes with it in f32")


# ---- embedding models


def embeds_only(header: Header) -> bool:
    """Return whether a model computes embeddings and generates no text."""
    return (
        header.facts.output == "embeddings"
        or header.of_architecture("attention.causal", True) is False
        or header.of_architecture("pooling_type", 0) not in (0, None)
    )


def pooling_of(header: Header) -> str:
    """Return the pooling that the file names, otherwise `mean`."""
    number = header.of_architecture("pooling_type")
    known = isinstance(number, int) and 0 <= number < len(POOLING)
    return POOLING[number] if known else "mean"


def ranks(header: Header) -> bool:
    """Return whether the file has the classification head that ranking needs."""
    names = {tensor.name for tensor in header.tensors}
    if "cls.output.weight" in names:
        return True
    # Without the output layer llama.cpp takes the first values of the embedding as scores.
    n_scores = max(1, header.n_values(f"{header.architecture}.classifier.output_labels"))
    return "cls.weight" in names and n_scores <= header.whole("embedding_length")


def check_embeds(header: Header) -> None:
    """Reject numbers of an embedding model on which llama.cpp would abort the process.

    Raises:
        NotAModelError: The file is damaged.
    """
    width, heads = header.whole("embedding_length"), header.by_layer("attention.head_count", 0)
    if header.facts.output == "embeddings" and heads and heads[0] and width:
        usual = width // heads[0]
        key, value = (header.whole(f"attention.{name}_length", usual) for name in ("key", "value"))
        if key != value or ("attention.key_length" not in header.metadata and width % heads[0]):
            what = f"its {heads[0]:,} heads have {key:,} and {value:,} of {width:,} dimensions"
            raise damaged(header.path, what)
    size, metadata = header.n_values(TOKENS), header.metadata
    if metadata["tokenizer.ggml.model"] == "bert":
        # llama.cpp takes its defaults for missing or wrong ids of the tokens around a text
        for name, default in _BERT_TOKENS.items():
            token = metadata.get(f"tokenizer.ggml.{name}_token_id", default)
            known = isinstance(token, int) and 0 <= token < size
            if not known and default >= size:
                what = f"its vocabulary of {size:,} tokens lacks the token {name!r}"
                raise damaged(header.path, what)
    for tensor in header.tensors:
        if tensor.name == "token_types.weight" and tensor.type != _F32:
            raise damaged(
                header.path, f"the tensor {shown(tensor.name)} is of the type {tensor.type}"
            )


# ---- trimmed vocabularies


@dataclass(frozen=True)
class Trimmed:
    """The kept part of a vocabulary, in the metadata of a draft with a trimmed vocabulary.

    Such a file has rows for some tokens of a vocabulary only. Row i belongs to the token `ids[i]`.
    `gguf.trimming` writes it; llama.cpp loads it as a model without a tokenizer.

    Attributes:
        ids: Ids of the kept tokens, ascending.
        tokenizer: `tokenizer.ggml.model` of the whole vocabulary.
        size: Number of tokens of the whole vocabulary.
        rows_at: Byte of the file at which the embeddings of all tokens start, in the type of
            `token_embd.weight`. So every token can be read, and only the kept ones are proposed.
            None in a file without them, and for an architecture that does not take them.
    """

    ids: tuple[int, ...]
    tokenizer: str
    size: int
    rows_at: int | None = None


def trimmed(header: Header) -> Trimmed | None:
    """Return the id table of a file; None if its vocabulary is complete.

    Raises:
        NotAModelError: The table is invalid.
    """
    if IDS not in header.metadata:
        return None
    metadata = header.metadata
    ids, size, name = metadata[IDS], metadata.get(SIZE), metadata.get(TOKENIZER)
    n = len(ids) if isinstance(ids, tuple) else 0
    embedding = header.tensor("token_embd.weight")
    rows = embedding.shape[-1] if embedding else 0
    n_vocab = header.of_architecture("vocab_size")
    if not (header.kinds[IDS] in ("[i32]", "[u32]") and isinstance(size, int) and n):
        raise damaged(header.path, "its table of kept tokens is no list of ids")
    if not 0 < size <= MAX_TOKENS or not isinstance(name, str):
        raise damaged(header.path, f"its whole vocabulary has {size:,} tokens")
    if not (n == rows == header.n_values(TOKENS) and isinstance(n_vocab, int) and n == n_vocab):
        raise damaged(header.path, f"its table has {n:,} kept tokens, and its weights {rows:,}")
    ordered = all(a < b for a, b in itertools.pairwise(ids))
    if not (ordered and ids[0] >= 0 and ids[-1] < size):
        raise damaged(header.path, "the ids in its table of kept tokens are not ascending")
    has_rows = ROWS in metadata and header.facts.takes_rows
    rows_at = header.data_at + metadata[ROWS] if has_rows else None
    return Trimmed(ids, name, size, rows_at)


# ---- data that were never written


def check_written(header: Header) -> None:
    """Check by samples that no part of a file has zeros in place of tensors.

    A loss of power or a full disk leaves such files, of the right size. A tensor may be zero by
    right, and so may the rows of unused tokens at the end of a table. But no norm is zero, and no
    run of zeros begins within one matrix and goes on in the next.

    Raises:
        NotAModelError: A file has such a part.
    """
    for i, path in enumerate(header.parts):
        tensors = [tensor for tensor in header.tensors if tensor.part == i and tensor.n_bytes]
        tensors.sort(key=lambda one: one.offset)
        try:
            with path.open("rb") as file:
                found = _unwritten(file, header.parts_at[i], tensors)
        except OSError as error:
            raise _unreadable(path, error) from error
        if found:
            what = f"{path.name} has zeros in place of data, as in the tensor {shown(found.name)}."
            hint = "download or copy it again; it was not written to the disk completely."
            raise NotAModelError(path, what, hint)


def _unwritten(file: BinaryIO, data_at: int, tensors: list[Tensor]) -> Tensor | None:
    """Return a tensor that was not written; None if there is none, as far as samples tell."""

    def is_zero(start: int, end: int) -> bool:
        file.seek(data_at + start)
        return not any(file.read(min(end - start, _SAMPLE)))

    def ends_in_zeros(tensor: Tensor) -> bool:
        end = tensor.offset + tensor.n_bytes
        return is_zero(max(tensor.offset, end - _LEAST), end)

    def begins_with_zeros(tensor: Tensor) -> bool:
        return is_zero(tensor.offset, tensor.offset + tensor.n_bytes)

    size = max((one.offset + one.n_bytes for one in tensors), default=0)
    at = (size * i // _N_SAMPLES for i in range(1, _N_SAMPLES + 1))
    if not any(is_zero(max(0, end - _SAMPLE), end) for end in at):
        return None
    norms = [one for one in tensors if one.name.endswith(_NORMS) and one.type == _F32]
    for norm in norms:
        if norm.n_bytes >= _LEAST and begins_with_zeros(norm) and ends_in_zeros(norm):
            return norm
    matrices = (i for i, one in enumerate(tensors) if len(one.shape) > 1)
    for i, after in itertools.pairwise(matrices):
        if (
            ends_in_zeros(tensors[i])
            and all(map(begins_with_zeros, tensors[i + 1 : after + 1]))
            and not begins_with_zeros(tensors[i])
        ):
            return tensors[i]
    return None


# ---- a model on the disk


def check_version(path: Path, before: tuple[int, ...]) -> None:
    """Check that a file still has the version that was read.

    Raises:
        NotAModelError: It was replaced or changed.
    """
    if version(path) != before:
        what = f"{path.name} was changed while it was loaded."
        raise NotAModelError(path, what, "load it again when it is complete.")


class ModelFile:
    """A file with a model.

    The file is read on first use of a property; later uses take what was read.

    Attributes:
        path: The file from the root, or the first file of a split model.
    """

    path: Path

    def __init__(self, path: Path, *, may_embed: bool = False, as_draft: bool = False) -> None:
        """Name a file, which is not opened yet; the options are those of `check_model`."""
        self.path, self._may_embed, self._as_draft = absolute(path), may_embed, as_draft

    @cached_property
    def _versions(self) -> dict[Path, tuple[int, ...]]:
        """Its files with their versions when the first of them was read."""
        return {path: version(path) for path in _part_paths(self.path)}

    @property
    def paths(self) -> list[Path]:
        """All its files."""
        return [*self._versions]

    @cached_property
    def header(self) -> Header:
        """The header, after all checks.

        Raises:
            ModelError: The file is missing or damaged, or generates no text.
        """
        _ = self._versions
        header = read_header(self.path)
        check_model(header, may_embed=self._may_embed, as_draft=self._as_draft)
        return header

    @cached_property
    def embeds_only(self) -> bool:
        """Whether the model computes embeddings and generates no text."""
        return embeds_only(self.header)

    @cached_property
    def content_id(self) -> str:
        """Hash of the content, under which measurements and caches are stored.

        It is computed when the model is loaded: later another file may have the name.

        Raises:
            NotAModelError: A file cannot be read.
        """
        try:
            ids = [content_id(path) for path in self._versions]
        except OSError as error:
            raise _unreadable(self.path, error) from error
        return " ".join(ids)

    def check_unchanged(self) -> None:
        """Check that no other file took the name since the header was read.

        Raises:
            NotAModelError: A file was replaced or changed.
        """
        for path, before in self._versions.items():
            check_version(path, before)

    def is_rewritten(self) -> bool:
        """Whether the loaded file itself has other content now, which mapped weights follow.

        A file that was replaced or removed is not: the mapped one lasts.
        """
        for path, before in self._versions.items():
            now = version(path)
            if now[:1] == before[:1] and now[1:3] != before[1:3]:
                ids = [content_id(path) for path in self._versions]
                return " ".join(ids) != self.content_id
        return False

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """Real path and version."""
        return self.path.resolve(), *version(self.path)[1:]
