"""Which rows of a model are kept, and what its metadata become."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gguf_spec.errors import (
    InvalidOptionError,
    NotAModelError,
    OutputFileError,
    UnsupportedModelError,
)
from gguf_spec.gguf.header import IDS, TOKENS
from gguf_spec.gguf.validation import SIZE, TOKENIZER, Header, ModelFile, read_header, trimmed
from gguf_spec.gguf.vocabulary import FileVocabulary, read_tokens
from gguf_spec.gguf.writing import Value, check_place, encoded
from gguf_spec.llama.weights import Tokenizer
from gguf_spec.results import OnProgress, Progress
from gguf_spec.system.files import atomic_write

from .rows import array_items, read_values, write_with_rows

# default number of kept tokens
KEEP = 16384
# fewest kept tokens: the bytes and some others
_LEAST = 300
# matrices with one row for each token
_BY_TOKEN = re.compile(
    r"(token_embd|output|per_layer_token_embd)\.(weight|bias)"
    r"|blk\.\d+\.nextn\.(embed_tokens|shared_head_head)\.weight"
)
# metadata that a model without a tokenizer does not need
_DROPPED = re.compile(r"tokenizer\.(ggml\.(merges|scores|precompiled_charsmap)|chat_template.*)")
_TYPES = "tokenizer.ggml.token_type"
# token types that are always kept: unknown, control, byte
_SPECIAL = {2, 3, 6}
# names of placeholder tokens
_UNUSED = re.compile(rb"[<\[|]+(unused|reserved|pad|extra_id|dummy)[-_ a-z]*\d+[|\]>]+")
# bytes of a text that are tokenised at once
_PIECE = 1 << 16


@dataclass(frozen=True)
class Trimmed:
    """Result of trimming.

    Attributes:
        source: The model.
        target: The written file.
        source_bytes: Size of the model, all its files included.
        target_bytes: Size of the file.
        n_vocab: Number of tokens of the model.
        n_kept: Number of kept tokens.
        n_text: Number of tokens of the given texts; 0 without texts.
        coverage: Share of these tokens that are kept; None without texts.
        seconds: Duration.
    """

    source: Path
    target: Path
    source_bytes: int
    target_bytes: int
    n_vocab: int
    n_kept: int
    n_text: int
    coverage: float | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self) | {"source": str(self.source), "target": str(self.target)}


def trim(
    source: str | Path,
    target: str | Path,
    *,
    keep: int = KEEP,
    texts: Iterable[str | Path] = (),
    force: bool = False,
    progress: OnProgress | None = None,
) -> Trimmed:
    """Write a model again with the rows of its most used tokens only, to draft faster.

    The file drafts for every model that the source drafts for, and can do nothing else. Its
    proposals are limited to the kept tokens; the text stays that of plain decoding. Single bytes
    and control tokens are always kept.

    The file appears under its name when it is complete.

    Args:
        source: A GGUF file. For a split model, the first file; all files become one.
        target: The file to write.
        keep: Number of tokens to keep.
        texts: Text files. The tokens that occur most often in them are kept; free places go to the
            first tokens of the vocabulary, which are frequent ones in most vocabularies.
        force: Whether to replace an existing file.
        progress: Called with the written tensors.

    Raises:
        ModelError: The source is missing or damaged, or generates no text.
        UnsupportedModelError: The source is trimmed already, or its vocabulary cannot be trimmed.
        InvalidOptionError: `keep` is out of range, or a text cannot be read.
        OutputFileError: The target exists, is the source, or cannot be written.
    """
    source, target, started = Path(source), Path(target), time.monotonic()
    header = ModelFile(source).header
    vocabulary = FileVocabulary(header)
    n_vocab = vocabulary.n_vocab
    if not _LEAST <= keep < n_vocab:
        allowed = f"a whole number from {_LEAST} to {n_vocab - 1:,}"
        raise InvalidOptionError("keep", keep, allowed, f"{source.name} has {n_vocab:,} tokens.")
    check_place(header, target, force)
    rows = _matrices(header, n_vocab)
    values = read_values(header)
    counts = _count(source, texts)
    ids = _most_used(header, values, counts, keep)
    n_tensors = header.n_tensors

    def on_tensor(n: int) -> None:
        if progress:
            progress(Progress("trim", n, n_tensors, "tensors"))

    try:
        with atomic_write(target, private=False, in_place=False) as part:
            with part.open("wb") as out:
                trimmed_values = _metadata(header, values, ids, n_vocab)
                write_with_rows(header, out, trimmed_values, dict.fromkeys(rows, ids), on_tensor)
            made = read_header(part)
            if trimmed(made) is None:
                raise NotAModelError(part, f"{target.name} has no id table.", "try again.")
    except OSError as error:
        why = error.strerror or error
        hint = "choose a file in a folder with write permission and enough free space."
        what = f"{target} cannot be written: {why}."
        raise OutputFileError("target", target, what, hint) from error
    n_text, kept = sum(counts.values()), set(ids)
    covered = sum(n for token, n in counts.items() if token in kept)
    share = covered / n_text if n_text else None
    return Trimmed(
        source, target, source_bytes=header.file_bytes, target_bytes=made.file_bytes,
        n_vocab=n_vocab, n_kept=len(ids), n_text=n_text, coverage=share,
        seconds=time.monotonic() - started,
    )  # fmt: skip


def _matrices(header: Header, n_vocab: int) -> list[str]:
    """Return the names of the matrices with one row for each token.

    Raises:
        UnsupportedModelError: A matrix has another number of rows, or another one depends on the
            token.
    """
    found = [one for one in header.tensors if _BY_TOKEN.fullmatch(one.name)]
    wrong = next((one.name for one in found if one.shape[-1] != n_vocab or not one.n_bytes), None)
    others = (one for one in header.tensors if "tid2eid" in one.name or n_vocab in one.shape)
    wrong = wrong or next((one.name for one in others if one not in found), None)
    if wrong or not any(one.name == "token_embd.weight" for one in found):
        what = f"the vocabulary of {header.path.name} cannot be trimmed"
        why = f"{wrong} is not known to have one row for each token" if wrong else "no embeddings"
        hint = "use the whole model as the draft."
        raise UnsupportedModelError(header.path, f"{what}: {why}.", hint)
    return [one.name for one in found]


def _count(source: Path, texts: Iterable[str | Path]) -> Counter[int]:
    """Return how often each token occurs in the texts."""
    counts: Counter[int] = Counter()
    paths = list(map(Path, texts))
    if not paths:
        return counts
    with Tokenizer(ModelFile(source)) as tokenizer:
        for path in paths:
            try:
                with path.open("rb") as file:
                    while piece := file.read(_PIECE):
                        text = piece.decode("utf-8", errors="replace")
                        counts.update(tokenizer.tokenize(text, special=False, start=False))
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                allowed = f"readable text files ({why})"
                raise InvalidOptionError("texts", str(path), allowed) from None
    return counts


def _most_used(
    header: Header, values: Sequence[Value], counts: Counter[int], keep: int
) -> list[int]:
    """Return the ids of the tokens to keep, ascending."""
    vocabulary, names = FileVocabulary(header), read_tokens(header)
    types = next((array_items(one.data, 4) for one in values if one.key == _TYPES), [])
    kept = {
        token
        for token, kind in enumerate(types)
        if int.from_bytes(kind, "little") in _SPECIAL and not _UNUSED.fullmatch(names[token])
    }
    kept |= {token for text, token in vocabulary.by_bytes.items() if len(text) == 1}
    special = (value for key, value in header.metadata.items() if key.endswith("_token_id"))
    kept |= {one for one in special if isinstance(one, int) and 0 <= one < vocabulary.n_vocab}
    if len(kept) > keep:
        allowed = f"at least {len(kept):,}, the number of bytes and control tokens"
        raise InvalidOptionError("keep", keep, allowed)
    order = [token for token, _ in sorted(counts.items(), key=lambda one: (-one[1], one[0]))]
    for token in (*order, *range(vocabulary.n_vocab)):
        if len(kept) == keep:
            break
        kept.add(token)
    return sorted(kept)


def _metadata(
    header: Header, values: Sequence[Value], ids: Sequence[int], n_vocab: int
) -> list[Value]:
    """Return the metadata of the trimmed file."""
    names = read_tokens(header)
    tokenizer = str(header.metadata["tokenizer.ggml.model"])
    size_key = f"{header.architecture}.vocab_size"
    changed = {
        "tokenizer.ggml.model": encoded("none"),
        TOKENS: encoded([names[token] for token in ids]),
        size_key: encoded(len(ids)),
        IDS: encoded(ids),
        TOKENIZER: encoded(tokenizer),
        SIZE: encoded(n_vocab),
    }
    for one in values:
        if one.key == _TYPES and header.n_values(_TYPES) == n_vocab:
            items = array_items(one.data, 4)
            types = [int.from_bytes(items[token], "little", signed=True) for token in ids]
            changed[_TYPES] = encoded(types)
    left = [one for one in values if one.key not in changed and one.key != _TYPES]
    left = [
        one for one in left if not (_DROPPED.fullmatch(one.key) or one.key.startswith("split."))
    ]
    return [*left, *(Value(key, data) for key, data in changed.items())]
