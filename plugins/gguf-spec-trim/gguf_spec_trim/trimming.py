"""Trimmed drafts from a user's own texts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gguf_spec.errors import InvalidOptionError, OutputFileError
from gguf_spec.gguf.trimming import by_use, matrices, write_trimmed
from gguf_spec.gguf.validation import ModelFile
from gguf_spec.gguf.vocabulary import FileVocabulary
from gguf_spec.gguf.writing import check_place
from gguf_spec.llama.weights import Tokenizer
from gguf_spec.results import OnProgress, Progress
from gguf_spec.system.files import atomic_write

# default number of kept tokens
KEEP = 16384
# fewest kept tokens: the bytes and some others
_LEAST = 300
# bytes of a text that are tokenised at once
_PIECE = 1 << 16


@dataclass(frozen=True)
class Trimmed:
    """Result of trimming.

    Attributes:
        source: The model.
        target: The written file.
        source_bytes: Size of the model, all its files included.
        target_bytes: Size of the file, without the embeddings of all tokens behind its tensors.
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
    n_vocab = FileVocabulary(header).n_vocab
    if not _LEAST <= keep < n_vocab:
        allowed = f"a whole number from {_LEAST} to {n_vocab - 1:,}"
        raise InvalidOptionError("keep", keep, allowed, f"{source.name} has {n_vocab:,} tokens.")
    check_place(header, target, force)
    matrices(header)
    counts = _count(source, texts)
    tokens, n_least = by_use(header, counts)
    if n_least > keep:
        allowed = f"at least {n_least:,}, the number of bytes and control tokens"
        raise InvalidOptionError("keep", keep, allowed)
    ids, n_tensors = sorted(tokens[:keep]), header.n_tensors

    def on_tensor(n: int) -> None:
        if progress:
            progress(Progress("trim", n, n_tensors, "tensors"))

    try:
        with atomic_write(target, private=False, in_place=False) as part:
            made = write_trimmed(header, part, ids, on_tensor)
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
