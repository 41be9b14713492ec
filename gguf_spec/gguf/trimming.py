"""Trimmed drafts: a copy of a GGUF file with the rows of some tokens only.

Rows of a tensor are contiguous, so quantised rows are copied as they are. Where the architecture
takes embeddings in place of token ids, those of all tokens are appended: llama.cpp does not see
them, and `llama.token_rows` reads them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import NotAModelError, UnsupportedModelError
from .header import IDS, ROWS, SIZE, TOKENS, Header, Reader, Tensor
from .validation import TOKENIZER, read_header, trimmed
from .vocabulary import FileVocabulary, read_tokens
from .writing import TensorInfo, Value, encoded, padded, write_head

# matrices with one row for each token
_EMBEDDINGS = "token_embd.weight"
_BY_TOKEN = re.compile(
    r"(token_embd|output|per_layer_token_embd)\.(weight|bias)"
    r"|blk\.\d+\.nextn\.(embed_tokens|shared_head_head)\.weight"
)
# metadata that a model without a tokenizer does not need, and those that change
_DROPPED = re.compile(
    r"tokenizer\.(ggml\.(merges|scores|precompiled_charsmap)|chat_template.*)|split\..*"
)
_TYPES = "tokenizer.ggml.token_type"
# token types that are always kept: unknown, control, byte
_SPECIAL = {2, 3, 6}
# names of placeholder tokens
_UNUSED = re.compile(rb"[<\[|]+(unused|reserved|pad|extra_id|dummy)[-_ a-z]*\d+[|\]>]+")
# ggml's type of 64-bit numbers in metadata
_U64 = 10

# bytes of an array before its items: two types and a length
_HEAD = 16
# bytes that are copied at once
_PIECE = 1 << 20


class _Values(Reader):
    """Reads a header, and notes where its metadata stand: key -> start and end in the file."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        super().__init__(file, path, path.stat().st_size)
        self.places: dict[str, tuple[int, int]] = {}

    def value(self, key: str) -> tuple[str, Any]:
        start, found = self.at, super().value(key)
        self.places[key] = start, self.at
        return found


def read_values(header: Header) -> list[Value]:
    """Return the metadata of a file whose header was read before.

    Raises:
        NotAModelError: The file changed after that.
    """
    try:
        with header.path.open("rb") as file:
            reader = _Values(file, header.path)
            now = reader.header()
    except (OSError, NotAModelError) as error:
        raise _changed(header.path) from error
    if [*now.metadata] != [*header.metadata] or now.data_at != header.data_at:
        raise _changed(header.path)
    return [Value(key, reader.data[start:end]) for key, (start, end) in reader.places.items()]


def matrices(header: Header) -> list[str]:
    """Return the names of the matrices with one row for each token.

    Raises:
        UnsupportedModelError: A matrix has another number of rows, or another one depends on the
            token.
    """
    n_vocab = FileVocabulary(header).n_vocab
    found = [one for one in header.tensors if _BY_TOKEN.fullmatch(one.name)]
    wrong = next((one.name for one in found if one.shape[-1] != n_vocab or not one.n_bytes), None)
    others = (one for one in header.tensors if "tid2eid" in one.name or n_vocab in one.shape)
    wrong = wrong or next((one.name for one in others if one not in found), None)
    if wrong or not any(one.name == _EMBEDDINGS for one in found):
        what = f"the vocabulary of {header.path.name} cannot be trimmed"
        why = f"{wrong} is not known to have one row for each token" if wrong else "no embeddings"
        hint = "use the whole model as the draft."
        raise UnsupportedModelError(header.path, f"{what}: {why}.", hint)
    return [one.name for one in found]


def by_use(header: Header, counts: Mapping[int, int]) -> tuple[list[int], int]:
    """Return the tokens of a model, the most used ones first, and how many must be kept.

    Bytes and control tokens come first, and must be kept; then those of the texts; then the first
    tokens of the vocabulary, which are frequent ones in most vocabularies.

    Args:
        header: The header of a model.
        counts: Token -> how often it occurs in texts.
    """
    vocabulary, names = FileVocabulary(header), read_tokens(header)
    types = _token_types(read_values(header))
    kept = [
        token
        for token, kind in enumerate(types)
        if kind in _SPECIAL and not _UNUSED.fullmatch(names[token])
    ]
    kept += [token for text, token in vocabulary.by_bytes.items() if len(text) == 1]
    special = (value for key, value in header.metadata.items() if key.endswith("_token_id"))
    kept += [one for one in special if isinstance(one, int) and 0 <= one < vocabulary.n_vocab]
    used = sorted(counts, key=lambda one: (-counts[one], one))
    return [*dict.fromkeys((*kept, *used, *range(vocabulary.n_vocab)))], len({*kept})


def _token_types(values: Sequence[Value]) -> list[int]:
    data = next((one.data[_HEAD:] for one in values if one.key == _TYPES), b"")
    return [*struct.unpack(f"<{len(data) // 4}i", data)]


def write_trimmed(
    header: Header, path: Path, ids: Sequence[int], on_tensor: Callable[[int], object]
) -> Header:
    """Write a model with the rows of some tokens, and return the header of the file.

    Args:
        header: Header of the source; its files are read.
        path: The file, which is replaced.
        ids: The tokens to keep, ascending.
        on_tensor: Called with the number of written tensors.

    Raises:
        UnsupportedModelError: As `matrices`.
        NotAModelError: The source changed after its header was read.
        OSError: A file cannot be read or written.
    """
    rows = dict.fromkeys(matrices(header), ids)
    with path.open("wb") as out:
        _write(header, out, _metadata(header, ids), rows, on_tensor)
    made = read_header(path)
    if trimmed(made) is None:
        raise NotAModelError(path, f"{path.name} has no id table.", "try again.")
    return made


def _metadata(header: Header, ids: Sequence[int]) -> list[Value]:
    """Return the metadata of the trimmed file."""
    names, values = read_tokens(header), read_values(header)
    changed = {
        "tokenizer.ggml.model": encoded("none"),
        TOKENS: encoded([names[token] for token in ids]),
        f"{header.architecture}.vocab_size": encoded(len(ids)),
        IDS: encoded(ids),
        TOKENIZER: encoded(str(header.metadata["tokenizer.ggml.model"])),
        SIZE: encoded(len(names)),
    }
    types = _token_types(values)
    if len(types) == len(names):
        changed[_TYPES] = encoded([types[token] for token in ids])
    left = [one for one in values if one.key not in {*changed, _TYPES}]
    left = [one for one in left if not _DROPPED.fullmatch(one.key)]
    return [*left, *(Value(key, data) for key, data in changed.items())]


def _write(
    header: Header,
    out: BinaryIO,
    values: Sequence[Value],
    rows: Mapping[str, Sequence[int]],
    on_tensor: Callable[[int], object],
) -> None:
    """Write a GGUF file with some rows of those tensors that are in `rows`."""
    alignment = int(header.metadata.get("general.alignment", 32))
    tensors = []
    for tensor in header.tensors:
        kept = rows.get(tensor.name)
        shape = tensor.shape if kept is None else (*tensor.shape[:-1], len(kept))
        n_bytes = tensor.n_bytes // tensor.shape[-1] * shape[-1]
        tensors.append(TensorInfo(tensor.name, shape, tensor.type, n_bytes))
    if header.facts.takes_rows:
        end = sum(padded(tensor.n_bytes, alignment) for tensor in tensors)
        values = [*values, Value(ROWS, struct.pack("<IQ", _U64, end))]
    write_head(out, values, tensors, alignment)
    files = [path.open("rb") for path in header.parts]
    try:
        for i, tensor in enumerate(header.tensors, 1):
            source = files[tensor.part]
            n = _copy(source, tensor, rows.get(tensor.name), out, header)
            out.write(b"\0" * (padded(n, alignment) - n))
            on_tensor(i)
        whole = header.tensor(_EMBEDDINGS)
        if header.facts.takes_rows and whole:
            _copy(files[whole.part], whole, None, out, header)
    finally:
        for file in files:
            file.close()


def _copy(
    source: BinaryIO, tensor: Tensor, kept: Sequence[int] | None, out: BinaryIO, header: Header
) -> int:
    """Copy a tensor, or some of its rows, and return the number of bytes."""
    row = tensor.n_bytes // tensor.shape[-1] if kept is not None else tensor.n_bytes
    start, done = header.parts_at[tensor.part] + tensor.offset, 0
    for number in kept if kept is not None else (0,):
        source.seek(start + number * row)
        left = row
        while left:
            piece = source.read(min(left, _PIECE))
            if not piece:
                raise _changed(header.path)
            out.write(piece)
            left -= len(piece)
        done += row
    return done


def _changed(path: Path) -> NotAModelError:
    """Return the error for a file that changed after its header was read."""
    return NotAModelError(path, f"{path.name} changed while it was read.", "try again.")
